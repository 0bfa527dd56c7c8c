"""The plan cache: what is found again, what is not, and that answers stay the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper
from tests.security.models import model, node, value
from tests.store.samples import entries, floats, perceptron, positions, saved, settings

import tierup
from tierup.codegen.target import AVX512
from tierup.frontends.onnx import load_onnx
from tierup.ir.graph import Weights
from tierup.ir.types import DType as D
from tierup.ir.types import MapType, OptionalType, SequenceType, Sym, TensorType
from tierup.plan.baseline import baseline
from tierup.runtime.compiled import compile_plan
from tierup.store import plans as plans_module
from tierup.store.plans import Plans, cache_parts
from tierup.store.records import ARRAYS, INLINE, MODEL, callout_record, node_of, type_of, type_record
from tierup.store.source import BytesSource, FileSource, fingerprint_file
from tierup.store.weights import StoredWeights, place


@pytest.fixture(autouse=True)
def _no_forced_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")


def hits(loaded: tierup.Model) -> tuple[int, int]:
    cache = loaded.report().to_dict()["cache"]
    return cache["plan_hits"], cache["plan_misses"]


@pytest.mark.parametrize("form", ["path", "bytes"])
def test_the_second_load_comes_from_the_cache(form: str, tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    source: Any = path if form == "path" else path.read_bytes()
    cold = tierup.load(source, config=settings(tmp_path, force_tier=1))
    warm = tierup.load(source, config=settings(tmp_path, force_tier=1))
    assert hits(cold) == (0, 1)
    assert hits(warm) == (1, 0)
    report = warm.report().to_dict()
    assert (report["tier"], report["settled"], report["counters"]["builds"]) == (1, True, 0)
    assert (warm.inputs, warm.outputs) == (cold.inputs, cold.outputs)
    for rows in (0, 1, 7):
        x = floats(rows, 40)
        assert warm(x=x)["y"].tobytes() == cold(x=x)["y"].tobytes()


def test_a_proto_is_not_cached(tmp_path: Path) -> None:
    """It has no bytes of its own, and may change."""
    tierup.load(perceptron(), config=settings(tmp_path, force_tier=1))
    assert entries(tmp_path) == []


def test_call_outs_and_guards_work_after_a_warm_start(tmp_path: Path) -> None:
    path = saved(tmp_path, positions(limit=512))
    tierup.load(path, config=settings(tmp_path, force_tier=1))
    warm = tierup.load(path, config=settings(tmp_path, force_tier=1))
    oracle = tierup.load(path, config=settings(tmp_path, force_tier=0))
    assert hits(warm) == (1, 0)
    assert warm.report().fallback_nodes > 0
    x = floats(2, 9, 4)
    np.testing.assert_array_equal(warm(x=x)["y"], oracle(x=x)["y"])
    assert warm.report().to_dict()["counters"]["deopts"] == 0
    with pytest.raises(tierup.InputError):
        warm(x=floats(2, 600, 4))  # longer than the table: the imported graph is asked, and says what is wrong
    assert warm.report().to_dict()["counters"]["deopts"] == 1


def test_a_guard_that_fails_is_answered_by_the_imported_model(tmp_path: Path) -> None:
    """max(length, 3) is the length in every example that the planner tried."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Max", ["shape", "three"], ["size"]),
        node("ConstantOfShape", ["size"], ["zeros"]),
        node("Exp", ["x"], ["e"]),
    ]
    three = numpy_helper.from_array(np.array([3]), "three")
    path = saved(tmp_path, model(nodes, [value("x", ["n"])], [value("zeros", [None]), value("e", ["n"])], [three]))
    tierup.load(path, config=settings(tmp_path, force_tier=1))
    warm = tierup.load(path, config=settings(tmp_path, force_tier=1))
    assert hits(warm) == (1, 0)
    for length, deopts in ((8, 0), (2, 1), (0, 2)):
        assert warm(x=np.ones(length, np.float32))["zeros"].shape == (max(length, 3),)
        assert warm.report().to_dict()["counters"]["deopts"] == deopts


def test_the_imported_model_is_there_on_demand(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    tierup.load(path, config=settings(tmp_path, force_tier=1))
    warm = tierup.load(path, config=settings(tmp_path, force_tier=1))
    assert [each.op for each in warm.imported.graph.nodes] == ["onnx.Gemm", "onnx.Relu", "onnx.MatMul", "onnx.Softmax"]


def test_a_model_that_changed_in_place_is_another(tmp_path: Path) -> None:
    """Same path, same size, other weights."""
    path = saved(tmp_path, perceptron(0))
    x = floats(3, 40)
    first = tierup.load(path, config=settings(tmp_path, force_tier=1))(x=x)["y"]
    saved(tmp_path, perceptron(1))
    changed = tierup.load(path, config=settings(tmp_path, force_tier=1))
    assert hits(changed) == (0, 1)
    assert not np.allclose(changed(x=x)["y"], first)
    assert len(entries(tmp_path)) == 2
    saved(tmp_path, perceptron(0))
    assert tierup.load(path, config=settings(tmp_path, force_tier=1))(x=x)["y"].tobytes() == first.tobytes()


def test_a_file_that_changed_after_loading_is_not_taken_for_the_model(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron(0))
    tierup.load(path, config=settings(tmp_path, force_tier=1))
    warm = tierup.load(path, config=settings(tmp_path, force_tier=1))
    (tmp_path / "new.onnx").write_bytes(perceptron(1).SerializeToString())
    os.replace(tmp_path / "new.onnx", path)
    with pytest.raises(tierup.ModelError, match="was changed"):
        _ = warm.imported
    assert warm(x=floats(1, 40))["y"].shape == (1, 33)  # its weights are those of the old file


def test_other_sources_of_ours_are_other_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, perceptron())
    tierup.load(path, config=settings(tmp_path, force_tier=1))
    monkeypatch.setattr(plans_module, "_sources", lambda: "another planner")
    assert hits(tierup.load(path, config=settings(tmp_path, force_tier=1))) == (0, 1)
    monkeypatch.setattr(plans_module, "_processor", lambda: "another machine")
    assert hits(tierup.load(path, config=settings(tmp_path, force_tier=1))) == (0, 1)
    assert len(entries(tmp_path)) == 3


def external_model(folder: Path, matrix: Any) -> Path:
    """y = softmax(x w), with w in a file beside the model."""
    tensor = numpy_helper.from_array(matrix, "w")
    (folder / "weights.bin").write_bytes(b"\0" * 3 + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", "weights.bin"), ("offset", "3"), ("length", str(matrix.nbytes))):
        tensor.external_data.add(key=key, value=entry)
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"], axis=-1)]
    rows, columns = matrix.shape
    return saved(folder, model(nodes, [value("x", ["n", rows])], [value("y", ["n", columns])], [tensor]))


def test_external_data_is_part_of_the_model(tmp_path: Path) -> None:
    path, x = external_model(tmp_path, floats(32, 48)), floats(2, 32)
    cold = tierup.load(path, config=settings(tmp_path, force_tier=1))
    warm = tierup.load(path, config=settings(tmp_path, force_tier=1))
    assert hits(warm) == (1, 0)
    assert warm(x=x)["y"].tobytes() == cold(x=x)["y"].tobytes()
    external_model(tmp_path, floats(32, 48) + 1)  # the model's own file is the same as before
    changed = tierup.load(path, config=settings(tmp_path, force_tier=1))
    assert hits(changed) == (0, 1)
    assert hits(tierup.load(path, config=settings(tmp_path, force_tier=1))) == (1, 0)


def test_external_data_keeps_its_rules(tmp_path: Path) -> None:
    """What was a file when the entry was made is a link out of the folder now."""
    path = external_model(tmp_path, floats(32, 48))
    tierup.load(path, config=settings(tmp_path, force_tier=1))
    outside = tmp_path / "outside"
    outside.mkdir()
    os.rename(tmp_path / "weights.bin", outside / "weights.bin")
    (tmp_path / "weights.bin").symlink_to(outside / "weights.bin")
    with pytest.raises(tierup.ModelError, match="symbolic link"):
        tierup.load(path, config=settings(tmp_path, force_tier=1))


def test_concurrent_loads(tmp_path: Path) -> None:
    path, x = saved(tmp_path, perceptron()), floats(4, 40)
    expected = tierup.load(path, config=settings(tmp_path, force_tier=0))(x=x)["y"]
    wrong: list[Any] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        try:
            loaded = tierup.load(path, config=settings(tmp_path, force_tier=1))
            np.testing.assert_allclose(loaded(x=x)["y"], expected, atol=2e-6)  # probabilities, over sums of 64
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(entries(tmp_path)) == 1
    assert not list((tmp_path / "cache" / "plans").glob("*.tmp"))


def test_types_that_are_not_numpys_own(tmp_path: Path) -> None:
    """They are known after a warm start, though only an input and an output have them."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(ml_dtypes.bfloat16))
    nodes = [
        node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        node("Exp", ["f"], ["e"]),
        node("Cast", ["e"], ["y"], to=kind),
    ]
    path = saved(tmp_path, model(nodes, [value("x", ["n"], kind)], [value("y", ["n"], kind)]))
    cold = tierup.load(path, config=settings(tmp_path, force_tier=1))
    code = f"""
import ml_dtypes, numpy as np, tierup
warm = tierup.load({str(path)!r}, config=tierup.Config(cache_dir={str(tmp_path / "cache")!r}, force_tier=1))
print(warm.report().to_dict()["cache"]["plan_hits"], warm(x=np.array([0, 1, 2], ml_dtypes.bfloat16))["y"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == f"1 {cold(x=np.array([0, 1, 2], ml_dtypes.bfloat16))['y']}"


def test_old_entries_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans_module, "MAX_ENTRIES", 3)
    paths = [saved(tmp_path, perceptron(seed), f"{seed}.onnx") for seed in range(5)]
    for number, path in enumerate(paths):
        tierup.load(path, config=settings(tmp_path, force_tier=1))
        for entry in entries(tmp_path):  # so that the order does not hang on the clock
            os.utime(entry, (number, number)) if entry.stat().st_mtime > 5 else None
    assert len(entries(tmp_path)) == 3
    assert [hits(tierup.load(path, config=settings(tmp_path, force_tier=0))) for path in paths] == [(0, 0)] * 5
    config = settings(tmp_path)
    plans = Plans(config.cache_path)
    found = [plans.find(FileSource(path), cache_parts("f32")) is not None for path in paths]
    assert found == [False, False, True, True, True]


def test_a_folder_that_cannot_be_written_costs_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("not a folder")
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path, force_tier=1))
    assert loaded.report().tier == 1
    assert "is not kept" in caplog.text
    assert "the next process does not start with this plan" in str(loaded.report())


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (9 << 20) + 5])
def test_a_fingerprint_is_the_contents(size: int, tmp_path: Path) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    (tmp_path / "file").write_bytes(content)
    source = FileSource(tmp_path / "file")
    known = source.fingerprint(1)
    assert {source.fingerprint(threads) for threads in (2, 3, 4)} == {known}
    assert BytesSource(content).fingerprint(2) == known
    assert BytesSource(content + b"\0").fingerprint(1) != known
    if size:
        other = bytearray(content)
        other[size // 2] ^= 1
        assert BytesSource(bytes(other)).fingerprint(1) != known


def test_a_file_that_shrank_has_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="shorter"):
            fingerprint_file(descriptor, 9, 1)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "type",
    [
        TensorType(D.F32, None),
        TensorType(D.BF16, ()),
        TensorType(D.I64, (3, Sym(0), 0, Sym(7))),
        SequenceType(OptionalType(TensorType(D.STR, None))),
        MapType(D.STR, SequenceType(TensorType(D.F64, (2,)))),
    ],
)
def test_types_come_back(type: Any) -> None:
    assert type_of(type_record(type)) == type


def test_nodes_come_back() -> None:
    """With bodies, attributes of every kind, absent inputs, and the numbers that the plan knows them by."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "i"], ["s2"]), helper.make_node("Identity", ["s2"], ["o"])],
        "body",
        [value("s", [2]), value("i", [2])],
        [value("s2", [2]), value("o", [2])],
        [],
    )
    nodes = [
        node("Scan", ["x", "xs"], ["y", "ys"], body=body, num_scan_inputs=1),
        node("Clip", ["y", "", "one"], ["z"]),
        node("Resize", ["image", "", "scales"], ["r"], mode="linear", coordinate_transformation_mode="asymmetric"),
    ]
    one = numpy_helper.from_array(np.array(1, np.float32), "one")
    inputs = [value("x", [2]), value("xs", ["n", 2]), value("image", [1, 1, "h", "w"]), value("scales", [4])]
    outputs = [value("z", [2]), value("ys", ["n", 2]), value("r", [None] * 4)]
    imported = load_onnx(model(nodes, inputs, outputs, [one]))
    for each in imported.graph.nodes:
        assert node_of(callout_record(each)) == each
    shifted = replace(imported.graph.nodes[-1], inputs=(100, None, 7, None), outputs=(3,))
    assert node_of(callout_record(shifted)) == shifted
    assert baseline(imported.graph).callouts  # they are what plans call out to


def test_weights_are_found_where_they_lie(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    imported = load_onnx(path)
    plan = compile_plan(imported.graph, imported.weights, AVX512).plan
    digests = [each if isinstance(each, str) else each[0] for each in plan.constants]
    files = {MODEL: imported.files[""]}
    placed = place(imported.weights, digests, files)
    by_shape = {imported.weights[digest].shape: placed.records[digest] for digest in digests}
    assert by_shape[40, 64].axes == (1, 0)  # the planner transposed it, the file has it as it was
    assert by_shape[64, 33].axes == ()
    assert (by_shape[40, 64].where, by_shape[64, 33].where) == (MODEL, MODEL)
    assert placed.arrays == []
    stored = StoredWeights(placed.records, files)
    for digest in digests:
        np.testing.assert_array_equal(stored[digest], imported.weights[digest])


def test_weights_of_no_file_are_kept() -> None:
    weights = Weights()
    arrays = [floats(100, 30), floats(3), np.array(["a", "bc"], object), np.zeros((0, 3), np.int8)]
    arrays += [np.arange(5000, dtype=ml_dtypes.bfloat16), np.asfortranarray(floats(70, 40))]
    digests = [weights.add(array) for array in arrays]
    placed = place(weights, digests, {})
    wheres = [placed.records[digest].where for digest in digests]
    assert wheres == [ARRAYS, INLINE, INLINE, INLINE, ARRAYS, ARRAYS]
    content = b"".join(bytes(piece) for piece in placed.pieces())
    assert len(content) == placed.arrays_bytes
    stored = StoredWeights(placed.records, {ARRAYS: memoryview(content)})
    for digest, array in zip(digests, arrays, strict=True):
        assert stored[digest].dtype == array.dtype
        np.testing.assert_array_equal(stored[digest], array)
        assert placed.records[digest].offset % 64 == 0


def test_derived_arrays_lie_beside_the_entry(tmp_path: Path) -> None:
    """2w is folded, is in no file, and is too large for the record."""
    weights = [
        numpy_helper.from_array(floats(64, 48), "w"),
        numpy_helper.from_array(np.array(2, np.float32), "two"),
    ]
    nodes = [node("Mul", ["w", "two"], ["w2"]), node("MatMul", ["x", "w2"], ["m"]), node("Relu", ["m"], ["y"])]
    path = saved(tmp_path, model(nodes, [value("x", ["n", 64])], [value("y", ["n", 48])], weights))
    cold = tierup.load(path, config=settings(tmp_path, force_tier=1))
    (arrays,) = (tmp_path / "cache" / "plans").glob("*.arrays")
    assert arrays.stat().st_size == 64 * 48 * 4
    warm, x = tierup.load(path, config=settings(tmp_path, force_tier=1)), floats(3, 64)
    assert hits(warm) == (1, 0)
    assert warm(x=x)["y"].tobytes() == cold(x=x)["y"].tobytes()
    arrays.write_bytes(bytes(64 * 48 * 4))
    again = tierup.load(path, config=settings(tmp_path, force_tier=1))
    assert hits(again) == (0, 1)
    assert again(x=x)["y"].tobytes() == cold(x=x)["y"].tobytes()


def test_pages_that_were_packed_are_given_back(tmp_path: Path) -> None:
    """A warm start holds its weights once: packed, and not also as pages of the mapped file."""
    matrix = floats(2048, 2048)  # 16 MiB
    tensor = numpy_helper.from_array(matrix, "w")
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    path = saved(tmp_path, model(nodes, [value("x", ["n", 2048])], [value("y", ["n", 2048])], [tensor]))
    tierup.load(path, config=settings(tmp_path, force_tier=1))
    warm = tierup.load(path, config=settings(tmp_path, force_tier=1))
    assert hits(warm) == (1, 0)
    assert mapped_bytes(path) < 1 << 20
    x = floats(2, 2048)
    # 2048 products of numbers around 1: an error of sqrt(2048) times 2**-24 times their sum of squares' root
    np.testing.assert_allclose(warm(x=x)["y"], x.astype(np.float64) @ matrix, atol=1e-3)


def mapped_bytes(path: Path) -> int:
    """How much of a file's mappings is in this process's memory."""
    total, inside = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as smaps:
        for line in smaps:
            if "-" in line.split(" ", 1)[0]:
                inside = line.rstrip().endswith(str(path))
            elif inside and line.startswith("Rss:"):
                total += int(line.split()[1]) << 10
    return total
