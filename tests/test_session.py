"""What a user holds: loading, calling, errors, lifetime."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tierup
from tests.security.models import model, node, value

X = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)


def linear() -> onnx.ModelProto:
    """y = relu(x @ w + b), x[batch, 2]; b has a default."""
    weights = [
        numpy_helper.from_array(np.array([[1, 0], [0, 2]], np.float32), "w"),
        numpy_helper.from_array(np.array([1, 1], np.float32), "b"),
    ]
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["s"]), node("Relu", ["s"], ["y"])]
    return model(nodes, [value("x", ["batch", 2]), value("b", [2])], [value("y", ["batch", 2])], weights)


EXPECTED = np.array([[2, 0], [4, 9]], np.float32)


@pytest.mark.parametrize("form", ["path", "str", "bytes", "proto"])
def test_every_source_loads(form: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(linear().SerializeToString())
    source: Any = {"path": path, "str": str(path), "bytes": path.read_bytes(), "proto": linear()}[form]
    assert np.array_equal(tierup.load(source)(x=X)["y"], EXPECTED)


def test_keywords_and_run_agree() -> None:
    loaded = tierup.load(linear())
    assert np.array_equal(loaded(x=X)["y"], loaded.run({"x": X})["y"])


def test_inputs_and_outputs_are_described() -> None:
    loaded = tierup.load(linear())
    x, b = loaded.inputs
    assert (x.name, x.dtype, x.shape, x.required) == ("x", np.float32, ("batch", 2), True)
    assert (b.name, b.shape, b.required) == ("b", (2,), False)
    (y,) = loaded.outputs
    assert (y.name, y.dtype, y.shape) == ("y", np.float32, ("batch", 2))


def test_a_default_can_be_overridden() -> None:
    loaded = tierup.load(linear())
    assert np.array_equal(loaded(x=X, b=np.zeros(2, np.float32))["y"], [[1, 0], [3, 8]])


class DLPackOnly:
    """Something that speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "given",
    [
        X.tolist(),
        memoryview(X),
        DLPackOnly(X),
        np.asfortranarray(X),
        np.repeat(X, 2, axis=0)[::2],
        X.astype(">f4"),
        X[::-1][::-1],
        np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 2),
        [[1, -2], [3, 4]],
    ],
    ids=["list", "memoryview", "dlpack", "fortran", "strided", "big-endian", "negative-strides", "unaligned", "ints"],
)
def test_inputs_of_every_kind(given: Any) -> None:
    assert np.array_equal(tierup.load(linear())(x=given)["y"], EXPECTED)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x' is missing; the model needs 'x', 'b'"),
        ({"x": X, "z": X}, "there is no input 'z'; the model's inputs are 'x', 'b'"),
        ({"X": X}, "there is no input 'X'"),
        ({"x": X.astype(np.float64)}, "input 'x' must be float32, but is float64"),
        ({"x": X.astype(np.int32)}, "input 'x' must be float32, but is int32"),
        ({"x": X[0]}, r"input 'x' must have 2 dims \[batch, 2\], but has 1: \[2\]"),
        ({"x": np.zeros((2, 3), np.float32)}, "axis 1 is 3 instead of 2"),
        ({"x": "text"}, "input 'x' must be float32, but is"),
        ({"x": [["a"]]}, "input 'x' must be float32, but is"),
        ({"x": None}, "input 'x' must be float32, but is object"),
        ({"x": [[1.0], [1.0, 2.0]]}, "input 'x' cannot be read as an array"),
    ],
)
def test_bad_inputs_get_a_sentence(feeds: dict[str, Any], message: str) -> None:
    loaded = tierup.load(linear())
    with pytest.raises(tierup.InputError, match=message):
        loaded.run(feeds)
    assert np.array_equal(loaded(x=X)["y"], EXPECTED)  # and the model still answers


def test_named_dims_have_one_size_in_a_call() -> None:
    inputs = [value("a", ["n", 2]), value("b", ["n", 2])]
    loaded = tierup.load(model([node("Add", ["a", "b"], ["y"])], inputs, [value("y", ["n", 2])]))
    with pytest.raises(tierup.InputError, match="the dim 'n' must have one size, but is 2 as axis 0 of 'a' and 1"):
        loaded(a=X, b=X[:1])


def test_positional_inputs_are_refused() -> None:
    with pytest.raises(TypeError):
        tierup.load(linear())(X)


def test_data_errors_name_the_node() -> None:
    inputs = [value("x", [2]), value("i", ["n"], TensorProto.INT64)]
    loaded = tierup.load(model([node("Gather", ["x", "i"], ["y"])], inputs, [value("y", ["n"])]))
    with pytest.raises(tierup.InputError, match="node 'node_y'"):
        loaded(x=np.ones(2, np.float32), i=np.array([5]))


def test_outputs_belong_to_the_caller() -> None:
    nodes = [node("Identity", ["x"], ["y"]), node("Reshape", ["x", "s"], ["z"]), node("Identity", ["w"], ["v"])]
    outputs = [value("y", [2, 2]), value("z", [4]), value("v", [2])]
    weights = [
        numpy_helper.from_array(np.array([4]), "s"),
        numpy_helper.from_array(np.array([7, 8], np.float32), "w"),
    ]
    loaded = tierup.load(model(nodes, [value("x", [2, 2])], outputs, weights))
    x = X.copy()
    first = loaded(x=x)
    for array in first.values():
        assert array.flags.writeable
        array[...] = -1
    assert np.array_equal(x, X)
    assert loaded(x=x)["v"].tolist() == [7, 8]


def test_onnxruntime_names() -> None:
    session = tierup.InferenceSession(linear().SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {"x": X})
    assert np.array_equal(answer, EXPECTED)
    assert np.array_equal(session.run(["y"], {"x": X})[0], EXPECTED)
    (x,) = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["batch", 2])
    assert [arg.name for arg in session.get_overridable_initializers()] == ["b"]
    assert session.get_outputs()[0].name == "y"
    assert "CPUExecutionProvider" in session.get_providers()
    with pytest.raises(tierup.InputError, match="no output 'q'"):
        session.run(["q"], {"x": X})


def test_report_counts() -> None:
    loaded = tierup.load(linear())
    loaded(x=X)
    loaded(x=X)
    counters = loaded.settle(timeout_s=1).to_dict()["counters"]
    assert counters["calls"] == 2
    assert counters["fallback_nodes"] == 3
    expected = {"calls", "builds", "swaps", "rollbacks", "refusals", "quarantined", "deopts", "plans", "fallback_nodes"}
    assert counters.keys() == expected
    assert "3 nodes" in str(loaded.report())


def test_a_closed_model_says_so() -> None:
    with tierup.load(linear()) as loaded:
        loaded(x=X)
    with pytest.raises(tierup.TierupError, match="closed"):
        loaded(x=X)
    with pytest.raises(tierup.TierupError, match="closed"):
        loaded.run({"x": X})


def test_a_dropped_model_is_gone() -> None:
    loaded = tierup.load(linear())
    loaded(x=X)
    gone = weakref.ref(loaded)
    del loaded
    gc.collect()
    assert gone() is None


def test_a_failed_load_raises_and_nothing_else() -> None:
    with pytest.raises(tierup.ModelError):
        tierup.load(b"\x08")


def test_many_threads_call_one_model() -> None:
    loaded = tierup.load(linear())
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((seed + 1, 2)).astype(np.float32)
        expected = np.maximum(x @ np.array([[1, 0], [0, 2]], np.float32) + 1, 0)
        for _ in range(50):
            if not np.allclose(loaded(x=x)["y"], expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert loaded.report().to_dict()["counters"]["calls"] == 400


def test_empty_batches() -> None:
    assert tierup.load(linear())(x=np.zeros((0, 2), np.float32))["y"].shape == (0, 2)


@pytest.mark.parametrize(
    "dtype",
    [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.uint2, np.bool_, np.complex64],
)
def test_small_types_go_in_and_out(dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model([node("Identity", ["x"], ["y"])], [value("x", ["n"], kind)], [value("y", ["n"], kind)])
    proto.opset_import[0].version = 25
    x = np.array([0, 1, 1], dtype)
    answer = tierup.load(proto)(x=x)["y"]
    assert answer.dtype == x.dtype
    assert np.array_equal(answer, x)


def test_strings_are_object_arrays() -> None:
    kind = TensorProto.STRING
    proto = model([node("Identity", ["x"], ["y"])], [value("x", ["n"], kind)], [value("y", ["n"], kind)])
    loaded = tierup.load(proto)
    assert loaded(x=np.array(["a", "bc"]))["y"].tolist() == ["a", "bc"]
    assert loaded(x=np.array(["a", "bc"], object))["y"].dtype == object
    with pytest.raises(tierup.InputError, match="must be strings"):
        loaded(x=np.array([1, 2]))


def test_sequences_are_lists() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    proto = model(
        [node("SequenceAt", ["s", "i"], ["y"])], [sequence, value("i", [], TensorProto.INT64)], [value("y", [None])]
    )
    loaded = tierup.load(proto)
    assert loaded(s=[X[0], X[1]], i=np.array(1))["y"].tolist() == X[1].tolist()
    with pytest.raises(tierup.InputError, match="input 's' must be a list"):
        loaded(s=3, i=np.array(1))
    with pytest.raises(tierup.InputError, match="item 1 of input 's' must be float32"):
        loaded(s=[X[0], X[1].astype(np.int64)], i=np.array(1))


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, **environment},
    )


def test_import_is_light() -> None:
    """Neither onnx nor NumPy is imported before they are needed."""
    done = run_python("import sys, tierup; print('onnx' in sys.modules, 'numpy' in sys.modules)")
    assert done.stdout.split() == ["False", "False"]


def test_a_warm_start_imports_little(tmp_path: Path) -> None:
    """Neither front end, op table nor compiler, and nothing that takes milliseconds and is not needed."""
    path = tmp_path / "m.onnx"
    path.write_bytes(linear().SerializeToString())
    cold = tierup.load(path, config=tierup.Config(cache_dir=tmp_path / "cache", force_tier=1))
    assert cold.report().tier == 1
    done = run_python(
        f"""
import sys, numpy as np, tierup
session = tierup.InferenceSession({str(path)!r})
(y,) = session.run(None, {{"x": np.array([[1, -2], [3, 4]], np.float32)}})
print(y.tolist(), [arg.type for arg in session.get_inputs()], session.report().to_dict()["cache"]["plan_hits"])
heavy = "onnx google.protobuf llvmlite ml_dtypes hashlib threadpoolctl platformdirs logging pathlib subprocess"
ours = "ir.ops ir.graph reference.bind frontends.onnx.load plan.program codegen.target profile.identity adapt.tiering"
print([name for name in [*heavy.split(), *(f"tierup.{{name}}" for name in ours.split())] if name in sys.modules])
""",
        TIERUP_FORCE_TIER="1",
        TIERUP_CACHE_DIR=str(tmp_path / "cache"),
    )
    first, imported = done.stdout.splitlines()
    assert first == f"{EXPECTED.tolist()} ['tensor(float)'] 1"
    # a report is for people who have time, but takes none of these either
    assert imported == "[]"


def cold_answer(proto: onnx.ModelProto, folder: Path) -> list[str]:
    """What the baseline of a fresh process answers to ones, and what it has imported for that."""
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    done = run_python(
        f"""
import sys, numpy as np, tierup
(y,) = tierup.load({str(path)!r})(x=np.ones((1, 2), np.float32)).values()
print(np.asarray(y, np.float32).tolist())
print([name for name in ("onnx", "ml_dtypes", "hashlib", "llvmlite") if name in sys.modules])
""",
        TIERUP_CACHE_DIR=str(folder / "cache"),
        TIERUP_DATA_DIR=str(folder / "data"),
        TIERUP_ADAPT="0",
    )
    return done.stdout.splitlines()


def test_a_cold_start_of_ordinary_types_imports_no_others(tmp_path: Path) -> None:
    assert cold_answer(linear(), tmp_path) == ["[[2.0, 3.0]]", "[]"]


def test_a_cold_start_knows_the_types_inside_a_model(tmp_path: Path) -> None:
    """A loop stacks them step by step, though neither inputs nor outputs have them."""
    bf16 = TensorProto.BFLOAT16
    go, state = value("go", [], TensorProto.BOOL), value("v", [1, 2], bf16)
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["v", "v"], ["w"]), node("Identity", ["w"], ["each"])],
        "body",
        [value("i", [], TensorProto.INT64), go, state],
        [value("on", [], TensorProto.BOOL), value("w", [1, 2], bf16), value("each", [1, 2], bf16)],
    )
    nodes = [node("Cast", ["x"], ["n"], to=bf16), node("Loop", ["three", "", "n"], ["last", "all"], body=body)]
    nodes.append(node("Cast", ["all"], ["y"], to=TensorProto.FLOAT))
    three = numpy_helper.from_array(np.array(3), "three")
    proto = model(nodes, [value("x", [1, 2])], [value("y", [3, 1, 2])], [three])
    assert cold_answer(proto, tmp_path)[0] == "[[[2.0, 2.0]], [[4.0, 4.0]], [[8.0, 8.0]]]"


@pytest.mark.parametrize("tier", ["0", "1", ""])
def test_library_prints_nothing(tier: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(linear().SerializeToString())
    code = f"import tierup, numpy as np; tierup.load({str(path)!r})(x=np.ones((1, 2), np.float32))"
    done = run_python(code, TIERUP_FORCE_TIER=tier, TIERUP_ADAPT="0")
    assert (done.stdout, done.stderr) == ("", "")


def test_a_forked_child_answers() -> None:
    loaded = tierup.load(linear())
    loaded(x=X)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(loaded(x=X)["y"], EXPECTED) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_blas_threads_come_back() -> None:
    from threadpoolctl import threadpool_info

    before = [pool["num_threads"] for pool in threadpool_info()]
    tierup.load(linear())(x=X)
    assert [pool["num_threads"] for pool in threadpool_info()] == before
