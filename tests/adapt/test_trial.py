"""Kernels alone: what isolating one keeps, cases as data, sizes that agree, and calls with zones around memory."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from onnx import numpy_helper
from tests.adapt.networks import WIDTH, cases, chain, encoder, load, of_kind, perceptron, program_of, with_program
from tests.security.models import model, node, value

from tierup.adapt.case import Case, NotAlone, isolate, values_read, values_written
from tierup.adapt.case_record import BufferRecord, CallRecord, CaseRecord, case_of, record_of
from tierup.adapt.draws import draw_inputs, draw_sizes
from tierup.adapt.trial import Sized, Trial, Unfit, overwrites
from tierup.errors import TierupError
from tierup.ir.types import DType, Sym
from tierup.ir.verify import verify
from tierup.lower.kernel import Panels
from tierup.lower.parse import parse_program
from tierup.lower.text import print_program
from tierup.reference.evaluate import evaluate


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_case_is_closed_and_reads_what_its_kernel_reads() -> None:
    for alone in cases(encoder()):
        case = alone.case
        verify(case.graph, case.weights)
        assert set(values_read(case.kernels)) <= set(case.graph.inputs[:-1])
        assert values_written(case.kernels) == list(case.graph.outputs)
        assert case_of(record_of(case)).graph == case.graph


def test_views_between_memory_and_region_are_part_of_the_case() -> None:
    """Attention reads what the products before it wrote; reshapes and transposes lie between."""
    case = of_kind(encoder(), "attention")
    q, k, v, mask = values_read(case.kernels)
    types = [case.graph.type(value) for value in (q, k, v, mask)]
    assert all(repr(type) == f"f32[d0, d1, {WIDTH}]" for type in types[:3])
    assert repr(types[3]) == "f32[d0, 1, 1, d1]"
    ops = [node.op for node in case.graph.nodes]
    assert ops.count("core.reshape") == 3
    assert ops.count("core.transpose") == 4
    shapes = case.graph.inputs[4:-1]
    assert all(case.graph.type(value).dtype is DType.I64 for value in shapes)  # type: ignore[union-attr]
    sized = Sized(case, [2, 5])
    known = sized.known_inputs()
    assert {tuple(known[value]) for value in shapes} == {(2, 5, 2, WIDTH // 2)}
    assert known[case.graph.inputs[-1]].tolist() == [2, 5]


def test_numbers_in_the_code_stay_and_weights_are_drawn() -> None:
    case = of_kind(chain(), "rows")
    constants = [case.weights[digest] for _, digest in case.graph.weights]
    assert all(array.size == 1 for array in constants)
    assert any(array == np.float32(0.5) for array in constants)
    assert [repr(case.graph.type(value)) for value in values_read(case.kernels)] == [
        "f32[d0, 100]",
        "f32[100]",
        "f32[100]",
    ]
    packed = next(b for b in of_kind(perceptron(), "matmul").kernels[0].buffers if isinstance(b, Panels))
    assert packed.value in of_kind(perceptron(), "matmul").graph.inputs


def test_equal_layers_are_one_case() -> None:
    records = [record_of(alone.case) for alone in cases(encoder(2))]
    assert len(records) == 16
    # q, k and v are made alike; what joins the heads again, and the second product of the network, differ
    assert len(set(records)) == 6 == len({record_of(alone.case) for alone in cases(encoder(1))})


def test_a_kernel_that_needs_more_than_its_buffers_is_not_alone() -> None:
    case = of_kind(perceptron(), "rows")
    (source,) = values_read(case.kernels)
    (result,) = values_written(case.kernels)
    other = next(node.outputs[0] for node in case.graph.nodes)
    assert other is not None
    (kernel,) = case.kernels
    elsewhere = replace(kernel, buffers=tuple(other if b == source else b for b in kernel.buffers))
    with pytest.raises(NotAlone, match=f"the kernel computes with value %{source}, but does not read it"):
        isolate(case.graph, case.weights, [elsewhere], case.graph.dims)
    assert result in case.graph.outputs


def record() -> CaseRecord:
    return record_of(of_kind(encoder(), "attention"))


def test_a_record_travels() -> None:
    sent = msgspec.msgpack.encode(record())
    assert msgspec.msgpack.decode(sent, type=CaseRecord) == record()
    again = case_of(record())
    assert record_of(again) == record()
    assert isinstance(again.kernels[0].sizes[0], Sym)


def call() -> CallRecord:
    return record().calls[0]


@pytest.mark.parametrize(
    "change",
    [
        {"graph": "graph {\n  return\n}\n"},
        {"graph": record().graph.replace("core.exp", "onnx.Nothing")},
        {"graph": record().graph.replace("dim d0 = elem", "dim d0 = of")},
        {"graph": record().graph.replace("elem %5 1", "elem %5 7")},
        {"constants": ()},
        {"assumed": (("d0", "d9999"),)},
        {"known": ((0, ("d0",)),)},
        {"known": ((4, ("d9999",) * 4),)},
        {"calls": (call(), msgspec.structs.replace(call(), program="program x() {\n  grid i < 1 step 1\n}\n"))},
        {"program": "program x {"},
        {"buffers": call().buffers[:-1]},
        {"buffers": (*call().buffers[:-1], BufferRecord(0))},
        {"buffers": (BufferRecord(10**9), *call().buffers[1:])},
        {"buffers": (BufferRecord(0, 32), *call().buffers[1:])},
        {"buffers": tuple(BufferRecord(b.value + 1) for b in call().buffers)},
        {"sizes": call().sizes[1:]},
        {"sizes": ("d9999", *call().sizes[1:])},
        {"scratch_bytes": "d9999"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_no_case_is_refused(change: dict[str, object]) -> None:
    if change.keys() <= set(CallRecord.__struct_fields__):
        change = {"calls": (msgspec.structs.replace(call(), **change),)}
    broken = msgspec.structs.replace(record(), **change)
    assert broken != record()
    with pytest.raises((ValueError, TierupError)):
        case_of(broken)


@pytest.mark.parametrize("size", ["x", "d", "d1234567", "d1 ", 1 << 63, 1.5])
def test_sizes_are_numbers_or_dims(size: object) -> None:
    content = msgspec.to_builtins(record())
    content["calls"][0]["grain"] = size
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(content, CaseRecord)


def test_sizes_that_no_call_has_do_not_fit() -> None:
    case = of_kind(encoder(), "attention")
    assert Sized(case, [2, 3]).shape(case.graph.outputs[0]) == (2, 3, 2, WIDTH // 2)
    with pytest.raises(Unfit):
        Sized(case, [-1, 3])
    with pytest.raises(Unfit, match="are not"):
        Sized(replace(case, assumed=((Sym(0), Sym(1)),)), [2, 3])


def test_sizes_that_broadcast_are_drawn_so() -> None:
    nodes = [node("Add", ["x", "z"], ["s"]), node("Relu", ["s"], ["y"])]
    proto = model(nodes, [value("x", ["n", 8]), value("z", ["m", 8])], [value("y", [None, 8])])
    case = of_kind(proto, "rows")
    with pytest.raises(Unfit, match="do not broadcast"):
        Sized(case, [2, 3])
    found = [draw_sizes(case, draw(seed), profile) for seed in range(9) for profile in ("ragged", "mixed")]
    assert {(1, 9), (9, 1)} < {sized.open_sizes for sized in found if sized is not None}


def test_an_axis_is_made_long_where_windows_leave_nothing_of_a_short_one() -> None:
    """Of 400 samples a window of 400 leaves one; shorter axes leave fewer than none."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Sub", ["s", "w"], ["c"]),
        node("Expand", ["one", "c"], ["e"]),
        node("Exp", ["e"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.array([399]), "w"), numpy_helper.from_array(np.ones(1, np.float32), "one")]
    case = of_kind(model(nodes, [value("x", ["n"])], [value("y", [None])], weights), "rows")
    found = draw_sizes(case, draw(), "typical")
    assert found is not None
    assert max(found.open_sizes) > 399


@pytest.mark.parametrize("profile", ["typical", "ragged", "few", "larger", "one", "mixed", "none"])
def test_sizes_are_drawn_for_each_profile(profile: str) -> None:
    case = of_kind(encoder(), "attention")
    found = [draw_sizes(case, draw(seed), profile) for seed in range(10)]
    numbers = [number for sized in found if sized is not None for number in sized.open_sizes]
    assert len(numbers) == 20
    if profile == "none":
        assert all(0 in sized.open_sizes for sized in found if sized is not None)
    elif profile in ("one", "mixed"):
        assert set(numbers) == ({1} if profile == "one" else {1, 9})
    else:
        assert min(numbers) >= 1
        assert max(numbers) > (30 if profile == "larger" else 2)


def trial(case: Case, style: str = "normal", seed: int = 0, **options: int) -> tuple[Trial, object, list[np.ndarray]]:
    """A trial, what keeps its code, and what its results should be."""
    loaded = load(case)
    sized = draw_sizes(case, draw(seed), "ragged")
    assert sized is not None
    inputs = draw_inputs(sized, draw(seed), style, 0.1)
    expected = evaluate(case.graph, case.weights, [inputs[value] for value in case.graph.inputs])
    made = Trial(sized, [address for address, _ in loaded], inputs, **options)  # type: ignore[arg-type]
    made.clear()
    return made, loaded, expected


@pytest.mark.parametrize("shift", [0, 1, 5])
@pytest.mark.parametrize("kind", ["attention", "matmul", "rows"])
def test_a_call_over_the_range_or_over_its_pieces(kind: str, shift: int) -> None:
    case = of_kind(encoder(), kind)
    made, loaded, expected = trial(case, shift=shift)
    assert made.run() == 0
    whole = made.results()
    # products of at most 64 terms and softmax of normal numbers: some 20 eps of values of about 1
    np.testing.assert_allclose(whole[0], expected[0], atol=4e-6)
    made.clear()
    steps = made.steps
    assert made.run(sorted([0, steps // 3, steps // 3, steps]), backwards=True) == 0
    np.testing.assert_array_equal(made.results()[0], whole[0])
    assert made.trespass() is None
    assert loaded is not None


def test_what_is_not_written_shows() -> None:
    made, loaded, _ = trial(of_kind(encoder(), "rows"))
    assert np.isnan(made.results()[0]).all()
    assert made.run([0, made.steps - 1]) == 0
    assert not np.isnan(made.results()[0]).any()
    assert loaded is not None


def test_writes_outside_are_named() -> None:
    case = of_kind(encoder(), "rows")
    text = print_program(program_of(case))
    store = next(line for line in text.split("\n") if "store b" in line and " + j]" in line)
    buffer = store.split("store ")[1].split("[")[0]
    for offset, where in ((32, "behind"), (-1, "before")):
        broken = with_program(case, parse_program(text.replace(store, store.replace(" + j]", f" + j + {offset}]"))))
        made, loaded, _ = trial(broken)
        assert made.run() == 0
        assert made.trespass() == f"it writes {where} buffer '{buffer}'"
        assert loaded is not None


def test_results_may_lie_over_inputs() -> None:
    nodes = [node("Add", ["x", "z"], ["y"])]
    proto = model(nodes, [value("x", ["n", 24]), value("z", ["n", 24])], [value("y", ["n", 24])])
    case = of_kind(proto, "rows")
    made, loaded, expected = trial(case, in_place=True)
    assert overwrites(made.sized)
    assert made.run() == 0
    np.testing.assert_array_equal(made.results()[0], expected[0])
    assert made.trespass() is None
    assert loaded is not None


def test_what_a_kernel_reads_twice_is_not_written_over() -> None:
    """h · w + h: the result has h's shape and follows it element by element, but the product reads all of a row."""
    nodes = [node("MatMul", ["h", "w"], ["m"]), node("Add", ["m", "h"], ["y"])]
    proto = model(nodes, [value("h", ["n", 24]), value("w", [24, 24])], [value("y", ["n", 24])])
    case = of_kind(proto, "matmul")
    assert any(case.kernels[0].replaces(result) for result in case.graph.outputs)
    made, loaded, _ = trial(case, in_place=True)
    assert not overwrites(made.sized)
    assert loaded is not None


def test_equal_draws_are_equal_and_styles_are_what_they_say() -> None:
    case = of_kind(encoder(), "matmul")
    sized = draw_sizes(case, draw(), "typical")
    assert sized is not None
    left = case.graph.inputs[0]
    once, again = (draw_inputs(sized, draw(5), "wide", 0.1)[left] for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert once.dtype == np.float32
    assert (draw_inputs(sized, draw(), "positive", 0.1)[left] > 0).all()
    wild = draw_inputs(sized, draw(), "wild", 0.1)[left]
    assert np.isnan(wild).any()
    assert np.isinf(wild).any()
    assert np.isfinite(wild).mean() > 0.5
    assert np.abs(draw_inputs(sized, draw(), "extreme", 0.1)[left]).max() == np.float32(1e30)
    simple = draw_inputs(sized, draw(), "simple", 0.1)[left]
    assert len(np.unique(simple)) < 30
