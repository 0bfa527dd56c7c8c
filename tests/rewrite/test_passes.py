"""The passes one by one: what each establishes, what it leaves alone, and that graphs keep their faces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.rewrite.graphs import assert_same, const, f32, ints, made, node, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import DType, Sym, TensorType
from tierup.rewrite.decompose import decompose
from tierup.rewrite.fold import BOUND_BYTES
from tierup.rewrite.rewrite import (
    apply_rules,
    fold_constants,
    lower_to_core,
    merge_equal,
    prune,
    settle_shapes,
    simplify,
)

PASSES = [
    prune, fold_constants, settle_shapes, merge_equal, apply_rules, simplify, decompose, lower_to_core,
]  # fmt: skip


def with_body(b: GraphBuilder, x: int, build_body: object) -> int:
    """A loop of three trips whose body is `build_body(inner builder, state)`."""
    inner = GraphBuilder(b.weights)
    inner.open_input(DType.I64, ())
    going, state = inner.open_input(DType.BOOL, ()), inner.open_input(DType.F32, (3,))
    graph = inner.finish([going, build_body(inner, state)])  # type: ignore[operator]  # called with what it takes
    inputs = [const(b, 3, np.int64), None, x]
    (result,) = b.node("onnx.Loop", inputs, Attrs({"captures": 0}), graphs=(("body", graph),), version=21)
    assert result is not None
    return result


def body_ops(graph: Graph) -> list[str]:
    return [n.op for part in graph.nodes for _, body in part.graphs for n in body.nodes]


@pytest.mark.parametrize("pass_", PASSES)
def test_face_survives(pass_: Callable[[Graph, Weights], Graph]) -> None:
    """Names, order, defaults, named dims, and outputs that are inputs, weights or the same value twice."""
    builder = GraphBuilder(Weights(), "face")
    x = builder.open_input(DType.F32, ("batch", None), "x")
    y = builder.open_input(DType.F32, ("batch", 2), "y", default=np.ones((3, 2), np.float32))
    unused = builder.open_input(DType.I64, (2,), "unused")
    weight = builder.weight(np.arange(3, dtype=np.float32), "w")
    (total,) = builder.node("onnx.Relu", [y], version=14, output_names=["total"])
    assert total is not None
    graph = builder.finish([total, x, weight, total, unused])
    after = pass_(graph, builder.weights)
    assert_same(graph, after, builder.weights)
    assert [after.values[v].name for v in after.inputs] == ["x", "y", "unused"]
    assert [after.values[v].name for v in after.outputs] == ["total", "x", "w", "total", "unused"]
    assert after.name == "face"
    assert after.defaults[0][0] == after.inputs[1]
    assert after.defaults[0][1] == graph.defaults[0][1]
    assert [name for _, name in after.dim_names] == ["batch"]
    first, second = (after.type(v) for v in after.inputs[:2])
    assert isinstance(first, TensorType)
    assert isinstance(second, TensorType)
    assert first.shape is not None
    assert second.shape is not None
    assert first.shape[0] == second.shape[0]  # the two batches are still one dim
    assert isinstance(first.shape[1], Sym)
    assert first.shape[1] != first.shape[0]


def test_prune_drops_what_nothing_uses() -> None:
    def build(b: GraphBuilder) -> int:
        x = f32(b, 4)
        b.op("core.exp", b.op("core.neg", x))
        parts = node(b, "onnx.Split", x, None, axis=0, num_outputs=2, version=18, outputs=2)
        const(b, [1, 2, 3])
        return int(parts[0])

    graph, weights = made(build)
    after = prune(graph, weights)
    assert ops(after) == ["onnx.Split"]
    assert after.nodes[0].outputs[1] is None  # the unused half is not wanted, but still counted
    assert after.weights == ()
    assert_same(graph, after, weights)


def test_prune_keeps_what_asks_for_training() -> None:
    def build(b: GraphBuilder) -> int:
        scale = [const(b, [1.0, 2.0]) for _ in range(4)]
        x = b.open_input(DType.F32, (3, 2))
        return int(node(b, "onnx.BatchNormalization", x, *scale, version=9, outputs=3, epsilon=1e-5, momentum=0.9)[0])

    graph, weights = made(build)
    after = prune(graph, weights)
    assert all(value is not None for value in after.nodes[0].outputs)


def test_fold_computes_constants() -> None:
    graph, weights = made(lambda b: b.op("core.add", f32(b, 2), b.op("core.exp", const(b, [0.0, 1.0]))))
    after = fold_constants(graph, weights)
    assert ops(after) == ["core.add"]
    assert_same(graph, after, weights)


def test_fold_is_bounded() -> None:
    """A small constant is not blown up; a large one may become another that is not larger."""
    grown = BOUND_BYTES // 4 + 1

    def build(b: GraphBuilder) -> list[int]:
        large = b.weight(np.ones((grown, 2), np.float32))
        return [b.op("core.broadcast", const(b, 1.0), ints(b, grown)), b.op("core.neg", large)]

    graph, weights = made(build)
    after = fold_constants(graph, weights)
    assert ops(after) == ["core.broadcast"]
    assert_same(graph, after, weights, [])


def test_fold_looks_through_what_is_too_large_to_keep() -> None:
    """The sums of a large byte matrix are folded; the matrix cast to 32 bits is not kept."""

    def build(b: GraphBuilder) -> int:
        wide = b.op("core.cast", b.weight(np.ones((BOUND_BYTES, 2), np.uint8)), to=DType.I32.code, saturate=1)
        return b.op("core.reduce_sum", wide, axes=(0,), keepdims=0)

    graph, weights = made(build)
    after = prune(fold_constants(graph, weights), weights)
    assert ops(after) == []
    assert max(weights[digest].nbytes for _, digest in after.weights) == 8
    assert_same(graph, after, weights, [])


def test_fold_makes_no_huge_temporaries() -> None:
    def build(b: GraphBuilder) -> int:
        huge = b.op("core.neg", b.op("core.broadcast", const(b, 1.0), ints(b, 1 << 40)))
        return b.op("core.reduce_sum", huge, axes=(0,), keepdims=0)

    graph, weights = made(build)
    assert ops(fold_constants(graph, weights)) == ops(graph)


def test_fold_does_not_walk_a_wide_chain_again_and_again() -> None:
    """Sums of sums of one large constant: 100⁴ ways lead to it, but it is looked at once."""

    def build(b: GraphBuilder) -> int:
        value = b.op("core.broadcast", const(b, 1.0), ints(b, BOUND_BYTES))
        for _ in range(4):
            value = int(node(b, "onnx.Sum", *[value] * 100, version=13))
        return b.op("core.reduce_sum", value, axes=(0,), keepdims=0)

    graph, weights = made(build)
    after = fold_constants(graph, weights)  # five nodes deep: too deep to look through
    assert ops(after)[-1] == "core.reduce_sum"


def test_fold_leaves_work_that_outgrows_its_data() -> None:
    side = 1024  # a thousand million terms
    graph, weights = made(lambda b: b.op("core.matmul", *[b.weight(np.ones((side, side), np.float32))] * 2))
    assert ops(fold_constants(graph, weights)) == ["core.matmul"]


def test_fold_computes_products_that_are_soon_done() -> None:
    """A table of positions times a projection. Once: it is no larger than what it came from."""
    random = np.random.default_rng(0)

    def build(b: GraphBuilder) -> int:
        table, projection = (b.weight(random.standard_normal((n, 128)).astype(np.float32)) for n in (256, 128))
        return b.op("core.add", f32(b, 256, 128), b.op("core.matmul", table, projection))

    graph, weights = made(build)
    after = fold_constants(graph, weights)
    assert ops(after) == ["core.add"]
    assert_same(graph, after, weights)


def test_fold_leaves_what_fails_to_fail_in_the_call() -> None:
    graph, weights = made(lambda b: b.op("core.gather", const(b, [1.0, 2.0]), ints(b, 5), axis=0))
    assert ops(fold_constants(graph, weights)) == ["core.gather"]


def test_fold_leaves_random_numbers_and_strings() -> None:
    def build(b: GraphBuilder) -> list[int]:
        text = b.weight(np.array(["a"], object))
        attrs = {"dtype": 1, "shape": (2,), "low": 0.0, "high": 1.0}
        return [node(b, "onnx.RandomUniform", version=1, **attrs), node(b, "onnx.StringConcat", text, text, version=20)]

    graph, weights = made(build)
    assert ops(fold_constants(graph, weights)) == ["onnx.RandomUniform", "onnx.StringConcat"]


def test_fold_reaches_bodies() -> None:
    graph, weights = made(
        lambda b: with_body(b, f32(b, 3), lambda i, s: i.op("core.add", s, i.op("core.neg", const(i, [1, 2, 3]))))
    )
    after = fold_constants(graph, weights)
    assert body_ops(after) == ["core.add"]
    assert_same(graph, after, weights)


def test_shapes_that_are_known_become_constants() -> None:
    """reshape(x, [shape(x)[0] · shape(x)[1]]) for a closed x."""

    def build(b: GraphBuilder) -> int:
        x = f32(b, 2, 3)
        sizes = node(b, "onnx.Shape", x, version=15, start=0)
        count = node(b, "onnx.ReduceProd", sizes, None, version=18, keepdims=1, noop_with_empty_axes=0)
        return int(node(b, "onnx.Reshape", x, count, version=14, allowzero=0))

    graph, weights = made(build)
    after = settle_shapes(graph, weights)
    assert ops(after) == ["onnx.Reshape"]
    assert_same(graph, after, weights)


def test_shapes_that_are_open_stay() -> None:
    def build(b: GraphBuilder) -> list[int]:
        x = f32(b, "n", 3)
        sizes = node(b, "onnx.Shape", x, version=15, start=0)
        return [sizes, b.op("core.slice", sizes, ints(b, 1), ints(b, 2), axes=(0,), steps=(1,))]

    graph, weights = made(build)
    after = settle_shapes(graph, weights)
    assert ops(after) == ["onnx.Shape"]  # the 3 is known, the n is not
    assert_same(graph, after, weights)


def test_equal_nodes_are_merged() -> None:
    def build(b: GraphBuilder) -> int:
        x = f32(b, 3)
        twice = [b.op("core.exp", b.op("core.neg", x)) for _ in range(2)]
        return b.op("core.add", *twice)

    graph, weights = made(build)
    after = merge_equal(graph, weights)
    assert ops(after) == ["core.neg", "core.exp", "core.add"]
    assert_same(graph, after, weights)


def test_what_only_looks_equal_is_not_merged() -> None:
    def build(b: GraphBuilder) -> list[int]:
        x = f32(b, 3, 3)
        sums = [b.op("core.reduce_sum", x, axes=(axis,), keepdims=0) for axis in (0, 1)]
        attrs = {"dtype": 1, "shape": (2,), "low": 0.0, "high": 1.0}
        return [*sums, *(node(b, "onnx.RandomUniform", version=1, **attrs) for _ in range(2))]

    graph, weights = made(build)
    assert ops(merge_equal(graph, weights)) == ops(graph)


def test_equal_bodies_are_merged_and_so_is_what_is_in_them() -> None:
    def build(b: GraphBuilder) -> int:
        x = f32(b, 3)
        twice = [with_body(b, x, lambda i, s: i.op("core.add", i.op("core.abs", s), i.op("core.abs", s)))] * 2
        again = with_body(b, x, lambda i, s: i.op("core.add", i.op("core.abs", s), i.op("core.abs", s)))
        return b.op("core.add", twice[0], again)

    graph, weights = made(build)
    after = merge_equal(graph, weights)
    assert ops(after) == ["onnx.Loop", "core.add"]
    assert body_ops(after) == ["core.abs", "core.add"]
    assert_same(graph, after, weights)


def test_simplify_settles() -> None:
    """Rules feed each other: the branch is known once its condition is folded, and then there is nothing left of it."""

    def build(b: GraphBuilder) -> int:
        x = f32(b, "n", 2)
        closed = node(b, "onnx.Gather", node(b, "onnx.Shape", x, version=15, start=0), const(b, 1, np.int64), axis=0)
        then, other = GraphBuilder(b.weights), GraphBuilder(b.weights)
        inner = then.open_input(DType.F32, ("n", 2))
        graphs = (
            ("else_branch", other.finish([other.op("core.neg", other.open_input(DType.F32, ("n", 2)))])),
            ("then_branch", then.finish([then.op("core.mul", inner, const(then, 1.0))])),
        )
        (result,) = b.node(
            "onnx.If", [b.op("core.eq", closed, const(b, 2, np.int64)), x], Attrs({"captures": 1}), graphs=graphs,
            version=21,
        )  # fmt: skip
        assert result is not None
        return b.op("core.add", result, const(b, [-0.0]))

    graph, weights = made(build)
    after = simplify(graph, weights)
    assert ops(after) == []
    assert_same(graph, after, weights)
    assert simplify(after, weights) == after


def test_captured_weights_reach_the_rules_of_a_body() -> None:
    def build(b: GraphBuilder) -> int:
        inner = GraphBuilder(b.weights)
        inner.open_input(DType.I64, ())
        going, state = inner.open_input(DType.BOOL, ()), inner.open_input(DType.F32, (3,))
        one = inner.open_input(DType.F32, ())
        graph = inner.finish([going, inner.op("core.neg", inner.op("core.mul", state, one))])
        inputs = [const(b, 3, np.int64), None, f32(b, 3), const(b, 1.0)]
        (result,) = b.node("onnx.Loop", inputs, Attrs({"captures": 1}), graphs=(("body", graph),), version=21)
        assert result is not None
        return result

    graph, weights = made(build)
    after = simplify(graph, weights)
    assert body_ops(after) == ["core.neg"]
    assert after.nodes[0].attrs["captures"] == 0
    assert_same(graph, after, weights)
