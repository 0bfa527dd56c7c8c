"""Plans with kernels: what is cut, what is fused, and that the answers are the baseline's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tests.security.models import model, node, value

import tierup
from tierup.frontends.onnx import load_onnx
from tierup.lower.tile import Loop, TileProgram
from tierup.lower.verify import verify
from tierup.plan.cut import cut
from tierup.plan.program import StepCode
from tierup.plan.regions import Region
from tierup.rewrite.rewrite import lower_to_core

RANDOM = np.random.default_rng(0)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    scale = shape[0] ** -0.5
    return numpy_helper.from_array((RANDOM.standard_normal(shape) * scale).astype(np.float32), name)


def perceptron() -> onnx.ModelProto:
    """softmax(relu(x w0 + b0) w1 + b1), batch open."""
    nodes = [
        node("Gemm", ["x", "w0", "b0"], ["h"], transB=1),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "w1"], ["m"]),
        node("Add", ["m", "b1"], ["a"]),
        node("Softmax", ["a"], ["y"], axis=-1),
    ]
    weights = [weight("w0", 33, 20), weight("b0", 33), weight("w1", 33, 10), weight("b1", 10)]
    return model(nodes, [value("x", ["batch", 20])], [value("y", ["batch", 10])], weights)


def normalised() -> onnx.ModelProto:
    """x + gelu(layer_norm(x)), three axes, two of them open."""
    nodes = [
        node("LayerNormalization", ["x", "g", "b"], ["n"], axis=-1),
        node("Div", ["n", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["f"]),
        node("Mul", ["n", "f"], ["p"]),
        node("Mul", ["p", "half"], ["q"]),
        node("Add", ["x", "q"], ["y"]),
    ]
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    scalars = [numpy_helper.from_array(np.array(v, np.float32), k) for k, v in numbers.items()]
    shape = ["batch", "length", 70]
    return model(nodes, [value("x", shape)], [value("y", shape)], [weight("g", 70), weight("b", 70), *scalars])


def masked() -> onnx.ModelProto:
    """softmax(scores + mask) with the mask repeated over heads, and the largest of each row as a second output."""
    nodes = [
        node("Add", ["s", "m"], ["z"]),
        node("Softmax", ["z"], ["y"], axis=-1),
        node("ReduceMax", ["z"], ["top"], axes=[-1], keepdims=0),
    ]
    inputs = [value("s", ["b", 3, "t", "u"]), value("m", ["b", 1, 1, "u"])]
    return model(nodes, inputs, [value("y", ["b", 3, "t", "u"]), value("top", ["b", 3, "t"])])


def integers() -> onnx.ModelProto:
    """Comparison, selection, casts and integer arithmetic."""
    nodes = [
        node("Less", ["i", "k"], ["c"]),
        node("Mod", ["i", "k"], ["r"]),
        node("Where", ["c", "i", "r"], ["w"]),
        node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        node("ReduceSum", ["f", "axes"], ["y"], keepdims=1),
    ]
    weights = [numpy_helper.from_array(np.array(7, np.int64), "k"), numpy_helper.from_array(np.array([-1]), "axes")]
    return model(nodes, [value("i", ["n", 9], TensorProto.INT64)], [value("y", ["n", 1])], weights)


def moved() -> onnx.ModelProto:
    """Transposed, reshaped by computed sizes, repeated."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[2, 0, 1]),
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "first"], ["n"]),
        node("Concat", ["five", "n", "rest"], ["target"], axis=0),
        node("Reshape", ["t", "target"], ["r"]),
        node("Relu", ["r"], ["u"]),
        node("Expand", ["c", "target"], ["e"]),
        node("Add", ["u", "e"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array([0]), "first"),
        numpy_helper.from_array(np.array([5]), "five"),
        numpy_helper.from_array(np.array([3]), "rest"),
        weight("c", 5, 1, 3),
    ]
    return model(nodes, [value("x", ["n", 3, 5])], [value("y", [5, "n", 3])], weights)


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


CASES = [
    ("perceptron", perceptron(), [{"x": floats(n, 20)} for n in (0, 1, 2, 7, 8, 64)]),
    ("normalised", normalised(), [{"x": floats(b, t, 70)} for b, t in ((1, 1), (2, 3), (0, 4), (5, 16))]),
    (
        "masked",
        masked(),
        [{"s": floats(b, 3, t, u), "m": floats(b, 1, 1, u)} for b, t, u in ((1, 1, 1), (2, 5, 40), (2, 0, 3))],
    ),
    ("moved", moved(), [{"x": floats(n, 3, 5)} for n in (0, 1, 4, 20)]),
    ("integers", integers(), [{"i": np.arange(-9, 18).reshape(3, 9)}, {"i": np.zeros((0, 9), np.int64)}]),
]  # fmt: skip


@pytest.mark.parametrize(("proto", "calls"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_answers_are_the_baselines(proto: onnx.ModelProto, calls: list[dict[str, Any]]) -> None:
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    baseline = tierup.load(proto, config=tierup.Config(force_tier=0))
    assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
    for feeds in calls:
        got, wanted = compiled.run(feeds), baseline.run(feeds)
        for name, expected in wanted.items():
            assert (got[name].shape, got[name].dtype) == (expected.shape, expected.dtype)
            # both round in f32, in different orders, over rows of at most 70: 2e-6 is 17 eps
            np.testing.assert_allclose(got[name], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("columns", [1, 10, 16, 33, 48, 64, 100, 128, 200])
def test_products_of_every_number_of_rows(columns: int) -> None:
    """Full tiles and what is left of them; a row too many would be written behind the result."""
    w = weight("w", 37, columns)
    proto = model([node("MatMul", ["x", "w"], ["y"])], [value("x", ["n", 37])], [value("y", ["n", columns])], [w])
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    for rows in range(34):
        x = floats(rows, 37)
        expected = x.astype(np.float64) @ numpy_helper.to_array(w)
        np.testing.assert_allclose(compiled(x=x)["y"], expected, atol=2e-6)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["b", "t", 24], ["b", 24, "u"]),
        (["b", 3, "t", 24], ["b", 3, 24, 40]),
        (["b", "t", "k"], ["k", 70]),
        (["t", 24], [24, "u"]),
        (["b", 1, "t", 24], [3, 24, "u"]),
        (["t", 24], ["b", 24, "u"]),
    ],
)
def test_products_of_two_inputs(left: list[Any], right: list[Any]) -> None:
    """Scaled, and with the largest of zero behind it: what follows a product stays in its kernel."""
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Mul", ["p", "c"], ["q"]), node("Relu", ["q"], ["y"])]
    half = numpy_helper.from_array(np.array(0.5, np.float32), "c")
    rank = max(len(left), len(right))
    proto = model(nodes, [value("x", left), value("w", right)], [value("y", [None] * rank)], [half])
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
    assert compiled.report().kernel_steps == 1
    for numbers in ((2, 9, 50, 5), (1, 1, 1, 1), (3, 16, 33, 0), (0, 4, 8, 3), (2, 0, 8, 3)):
        sizes = dict(zip("btuk", numbers, strict=True))
        x = floats(*(sizes.get(dim, dim) for dim in left))
        w = floats(*(sizes.get(dim, dim) for dim in right))
        expected = np.maximum(np.matmul(x.astype(np.float64), w) * 0.5, 0)
        np.testing.assert_allclose(compiled(x=x, w=w)["y"], expected, atol=4e-6)


@pytest.mark.parametrize(
    ("left", "right", "turn_left", "turn_right"),
    [
        (["b", "t", 24], ["b", "u", 24], None, [0, 2, 1]),
        (["t", "k"], ["u", "k"], None, [1, 0]),
        (["b", "k", "t"], ["b", "k", "u"], [0, 2, 1], None),
        (["b", "t", 2, 24], ["b", "u", 2, 24], [0, 2, 1, 3], [0, 2, 3, 1]),
    ],
)
def test_products_of_transposed_sides_read_them_where_they_lie(
    left: list[Any], right: list[Any], turn_left: list[int] | None, turn_right: list[int] | None
) -> None:
    nodes = [
        node("Transpose", ["x"], ["a"], perm=turn_left) if turn_left else node("Identity", ["x"], ["a"]),
        node("Transpose", ["w"], ["c"], perm=turn_right) if turn_right else node("Identity", ["w"], ["c"]),
        node("MatMul", ["a", "c"], ["y"]),
    ]
    proto = model(nodes, [value("x", left), value("w", right)], [value("y", [None] * len(left))])
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled.report().kernel_steps == 1
    for numbers in ((2, 9, 50, 5), (1, 1, 1, 1), (3, 16, 33, 0), (0, 4, 8, 3), (2, 0, 8, 3), (1, 40, 64, 100)):
        sizes = dict(zip("btuk", numbers, strict=True))
        x = floats(*(sizes.get(dim, dim) for dim in left))
        w = floats(*(sizes.get(dim, dim) for dim in right))
        a, c = (v if turn is None else v.transpose(turn) for v, turn in ((x, turn_left), (w, turn_right)))
        bound = (4 + a.shape[-1] ** 0.5) * np.finfo(np.float32).eps * np.matmul(abs(a), abs(c), dtype=np.float64)
        assert (abs(compiled(x=x, w=w)["y"] - np.matmul(a.astype(np.float64), c)) <= bound).all()


def test_row_tiles_cover_every_row_once() -> None:
    """The interpreter checks every address, and that loops marked exact are."""
    from tierup.codegen.target import AVX512
    from tierup.lower.interpret import interpret
    from tierup.runtime.compiled import compile_plan
    from tierup.runtime.constants import pack_panels

    for columns in (10, 40, 100, 128):
        w = weight("w", 3, columns)
        proto = model([node("MatMul", ["x", "w"], ["y"])], [value("x", ["n", 3])], [value("y", ["n", columns])], [w])
        imported = load_onnx(proto)
        compiled = compile_plan(imported.graph, imported.weights, AVX512)
        (program,) = compiled.programs
        packed = pack_panels(numpy_helper.to_array(w), program.grid[0].step)
        for rows in range(20):
            sizes = _row_ends(rows, program)
            x, y = floats(rows, 3), np.full((rows, columns), np.nan, np.float32)
            buffers = {"a": x.reshape(-1), "w": packed.reshape(-1), "out": y.reshape(-1)}
            interpret(program, buffers, sizes)
            np.testing.assert_allclose(y, x @ numpy_helper.to_array(w), atol=1e-6)


def _row_ends(rows: int, program: TileProgram) -> list[int]:
    """What the plan's dim code gives the program: where each size of row tile ends."""
    ends, begin = [], 0
    for loop in program.body:
        assert isinstance(loop, Loop)
        begin = rows if loop.step == 1 else begin + (rows - begin) // loop.step * loop.step
        ends.append(begin)
    return ends


def test_strided_and_unaligned_inputs() -> None:
    compiled = tierup.load(perceptron(), config=tierup.Config(force_tier=1))
    x = floats(6, 20)
    expected = compiled(x=x)["y"]
    for same in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x[::-1].copy()[::-1]):
        assert np.array_equal(compiled(x=same)["y"], expected)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    assert np.array_equal(compiled(x=unaligned)["y"], expected)


def test_outputs_are_the_callers() -> None:
    compiled = tierup.load(normalised(), config=tierup.Config(force_tier=1))
    x = floats(2, 3, 70)
    first = compiled(x=x)["y"]
    kept = first.copy()
    compiled(x=-x)
    assert np.array_equal(first, kept)


def regions(proto: onnx.ModelProto) -> list[tuple[str, int]]:
    imported = load_onnx(proto)
    graph = lower_to_core(imported.graph, imported.weights)
    return [(r.kind, len(r.nodes)) for r in cut(graph, imported.weights).order if isinstance(r, Region)]


def test_what_is_fused() -> None:
    assert regions(perceptron()) == [("matmul", 3), ("matmul", 2), ("rows", 5)]
    assert [kind for kind, _ in regions(normalised())] == ["rows"]
    assert [kind for kind, _ in regions(masked())] == ["rows"]


def test_programs_are_valid() -> None:
    from tierup.codegen.target import AVX2, AVX512
    from tierup.runtime.compiled import compile_plan

    for _, proto, _ in CASES:
        for target in (AVX2, AVX512):
            imported = load_onnx(proto)
            for program in compile_plan(imported.graph, imported.weights, target).programs:
                verify(program)


def test_values_share_the_arena() -> None:
    """A chain of products needs two places, however long it is."""
    from tierup.codegen.target import AVX512
    from tierup.runtime.compiled import compile_plan

    nodes, weights, name = [], [], "x"
    for layer in range(6):
        weights.append(weight(f"w{layer}", 16, 16))
        nodes.append(node("MatMul", [name, f"w{layer}"], [f"h{layer}"]))
        nodes.append(node("Softmax", [f"h{layer}"], [f"s{layer}"], axis=-1))
        name = f"s{layer}"
    proto = model(nodes, [value("x", ["n", 16])], [value(name, ["n", 16])], weights)
    imported = load_onnx(proto)
    steps = compile_plan(imported.graph, imported.weights, AVX512).plan.functions[0].steps
    offsets = {step[4] for step in steps if step[0] == StepCode.ALLOC and step[3] == 1}
    assert len(offsets) == 2
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    baseline = tierup.load(proto, config=tierup.Config(force_tier=0))
    x = floats(5, 16)
    np.testing.assert_allclose(compiled(x=x)[name], baseline(x=x)[name], rtol=1e-5)


def test_what_has_no_kernel_falls_back_and_is_counted() -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Bernoulli", ["r"], ["c"]), node("Neg", ["c"], ["y"])]
    proto = model(nodes, [value("x", ["n"])], [value("y", [None])])
    compiled = tierup.load(proto, config=tierup.Config(force_tier=2))
    assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 1
    assert compiled(x=np.array([1, -2, 1], np.float32))["y"].tolist() == [-1, 0, -1]  # certain, or impossible


def test_memory_that_is_read_under_two_names_is_not_written_over() -> None:
    """h + hᵀ, where the second h went through a reshape that is no copy: h ends here, but may not be replaced."""
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("MatMul", ["e", "w"], ["h"]),
        node("Reshape", ["h", "shape"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[1, 0]),
        node("Add", ["h", "t"], ["s"]),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    weights = [weight("w", 32, 32), numpy_helper.from_array(np.array([32, -1]), "shape")]
    proto = model(nodes, [value("x", [32, 32])], [value("y", [32, 32])], weights)
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    baseline = tierup.load(proto, config=tierup.Config(force_tier=0))
    x = floats(32, 32)
    np.testing.assert_allclose(compiled(x=x)["y"], baseline(x=x)["y"], atol=1e-4)


@pytest.mark.parametrize("right", [["k", 40], ["b", "k", 40], ["b", 40, "k"]])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.int64, np.uint32])
def test_products_of_other_types(dtype: Any, right: list[Any]) -> None:
    """Of integers they are exact; of f16 they are summed in f32 and rounded once."""
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    turned = right[-1] == "k"
    nodes = [node("Transpose", ["w"], ["t"], perm=[0, 2, 1])] if turned else []
    nodes.append(node("MatMul", ["x", "t" if turned else "w"], ["y"]))
    inputs = [value("x", ["b", "t", "k"], code), value("w", right, code)]
    compiled = tierup.load(model(nodes, inputs, [value("y", ["b", "t", 40], code)]), config=tierup.Config(force_tier=1))
    assert compiled.report().fallback_nodes == 0
    for sizes in ({"b": 2, "t": 9, "k": 33}, {"b": 1, "t": 1, "k": 1}, {"b": 2, "t": 3, "k": 0}):
        x, w = ((10 * floats(*(sizes.get(d, d) for d in dims))).astype(dtype) for dims in (["b", "t", "k"], right))
        y = compiled(x=x, w=w)["y"]
        wide = np.int64 if np.issubdtype(dtype, np.integer) else np.float64
        exact = np.matmul(x.astype(wide), w.swapaxes(-1, -2).astype(wide) if turned else w.astype(wide))
        if wide is np.int64:
            assert np.array_equal(y, exact.astype(dtype))
        else:
            bound = np.matmul(abs(x).astype(wide), abs(w.swapaxes(-1, -2) if turned else w).astype(wide))
            sums = np.float32 if dtype is np.float16 else dtype  # and half a step of the result's own type
            eps = (4 + sizes["k"] ** 0.5) * np.finfo(sums).eps * bound + np.finfo(dtype).eps * abs(exact)
            assert (abs(y - exact) <= eps).all()


@pytest.mark.parametrize("pieces", [3, 63, 64, 70, 4100])
def test_many_pieces_are_joined(pieces: int) -> None:
    """From 64 on the join falls back; what stands around it compiles all the same."""
    nodes = [node("Exp", ["x"], ["e"]), node("Concat", ["e"] * pieces, ["c"], axis=0), node("Neg", ["c"], ["y"])]
    proto = model(nodes, [value("x", [2, 3])], [value("y", [2 * pieces, 3])])
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled.report().fallback_nodes == (pieces >= 64)
    x = floats(2, 3)
    np.testing.assert_allclose(compiled(x=x)["y"], -np.tile(np.exp(x), (pieces, 1)), rtol=1e-6)


@pytest.mark.parametrize("columns", [3, 8])
def test_a_product_whose_sides_do_not_fit_is_an_error(columns: int) -> None:
    """Of an open size only the call knows; a kernel would read beyond its rows."""
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])], [value("x", ["n", "k"])], [value("y", ["n", 2])], [weight("w", 5, 2)]
    )
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled(x=floats(3, 5))["y"].shape == (3, 2)
    with pytest.raises(tierup.InputError):
        compiled(x=floats(3, columns))
