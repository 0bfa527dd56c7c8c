"""Ops on f16 and bf16 as ops on f32: which are, which are not, and that answers come nearer."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rewrite.graphs import Build, const, ints, made, node, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, ValueId, Weights
from tierup.ir.types import DType, TensorType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import lower_to_core, simplify, widen_floats

RANDOM = np.random.default_rng(9)
NARROW = (DType.F16, DType.BF16)


def given(b: GraphBuilder, *shape: int | str, dtype: DType = DType.F16) -> ValueId:
    return b.open_input(dtype, shape)


def half(b: GraphBuilder, *shape: int) -> ValueId:
    return const(b, RANDOM.standard_normal(shape), np.float16)


def widened(build: Build) -> tuple[Graph, Graph, Weights]:
    graph, weights = made(build)
    after = widen_floats(simplify(graph, weights), weights)
    verify(after, weights)
    return graph, after, weights


def narrow_ops(graph: Graph) -> list[str]:
    """The ops that have something narrow among what they read and write."""

    def is_narrow(value: ValueId | None) -> bool:
        type = None if value is None else graph.type(value)
        return isinstance(type, TensorType) and type.dtype in NARROW

    return [n.op for n in graph.nodes if any(map(is_narrow, (*n.inputs, *n.outputs)))]


def layer(b: GraphBuilder, x: ValueId) -> ValueId:
    summed = node(b, "onnx.Add", node(b, "onnx.MatMul", x, half(b, 8, 8)), half(b, 8))
    return node(b, "onnx.Mul", summed, node(b, "onnx.Sigmoid", summed))


@pytest.mark.parametrize("dtype", NARROW)
def test_a_chain_is_widened_once_and_rounded_once(dtype: DType) -> None:
    def build(b: GraphBuilder) -> ValueId:
        x = given(b, "n", 8, dtype=dtype)
        return node(b, "onnx.Softmax", node(b, "onnx.Tanh", node(b, "onnx.Neg", x)), axis=-1)

    _, after, _ = widened(build)
    assert ops(after) == ["core.cast", "onnx.Neg", "onnx.Tanh", "onnx.Softmax", "core.cast"]
    assert narrow_ops(after) == ["core.cast", "core.cast"]


def test_answers_come_nearer() -> None:
    graph, after, weights = widened(lambda b: layer(b, layer(b, layer(b, given(b, "n", 8)))))
    x = RANDOM.standard_normal((200, 8)).astype(np.float16)
    (exact,), (before,), (now,) = (
        evaluate(graph, weights, [x], wide=True), evaluate(graph, weights, [x]), evaluate(after, weights, [x]),
    )  # fmt: skip
    assert now.dtype == np.float16
    off, off_before = (np.sqrt(np.mean((y - exact) ** 2)) for y in (now.astype(np.float64), before.astype(np.float64)))
    assert off < off_before
    assert (np.abs(now - exact) <= 2.0**-11 * np.abs(exact) + 1e-5).all()  # one rounding, as good as can be


def test_what_is_a_result_and_goes_on_is_rounded_for_the_caller_alone() -> None:
    def build(b: GraphBuilder) -> list[ValueId]:
        middle = node(b, "onnx.Tanh", given(b, "n"))
        return [middle, node(b, "onnx.Neg", middle)]

    _, after, _ = widened(build)
    assert sorted(ops(after)) == ["core.cast", "core.cast", "core.cast", "onnx.Neg", "onnx.Tanh"]
    (neg,) = (n for n in after.nodes if n.op == "onnx.Neg")
    (tanh,) = (n for n in after.nodes if n.op == "onnx.Tanh")
    assert neg.inputs == tanh.outputs


def test_casts_of_the_model_stay() -> None:
    def build(b: GraphBuilder) -> ValueId:
        x = b.open_input(DType.F32, ("n",))
        rounded = node(b, "onnx.Cast", x, to=DType.F16.code, saturate=1)
        return node(b, "onnx.Cast", node(b, "onnx.Neg", rounded), to=DType.F32.code, saturate=1)

    graph, after, weights = widened(build)
    assert ops(after) == ["onnx.Cast", "core.cast", "onnx.Neg"]
    x = np.array([1e5, 1.0001, -3.3, np.nan], np.float32)
    np.testing.assert_array_equal(evaluate(after, weights, [x])[0], evaluate(graph, weights, [x])[0])


def test_rows_are_looked_up_in_a_narrow_table() -> None:
    def build(b: GraphBuilder) -> ValueId:
        return node(b, "onnx.Neg", node(b, "onnx.Gather", half(b, 50, 8), b.open_input(DType.I64, ("n",)), axis=0))

    _, after, _ = widened(build)
    assert ops(after) == ["onnx.Gather", "core.cast", "onnx.Neg", "core.cast"]


def test_what_is_put_beside_narrow_elements_is_rounded() -> None:
    def build(b: GraphBuilder) -> ValueId:
        kept, new = given(b, "n", 8), node(b, "onnx.Tanh", given(b, "m", 8))
        return node(b, "onnx.Concat", kept, new, axis=0)

    _, after, _ = widened(build)
    assert ops(after) == ["core.cast", "onnx.Tanh", "core.cast", "onnx.Concat"]


def test_what_moves_widened_elements_moves_them_wide() -> None:
    def build(b: GraphBuilder) -> ValueId:
        turned = node(b, "onnx.Transpose", node(b, "onnx.Tanh", given(b, "n", 8)), perm=(1, 0))
        return node(b, "onnx.Exp", node(b, "onnx.Concat", turned, half(b, 8, 1), axis=1))

    _, after, _ = widened(build)
    assert ops(after) == ["core.cast", "onnx.Tanh", "onnx.Transpose", "onnx.Concat", "onnx.Exp", "core.cast"]


@pytest.mark.parametrize("op", ["onnx.MatMul", "onnx.Gemm"])
def test_a_large_right_side_stays_narrow_in_memory(op: str) -> None:
    def build(b: GraphBuilder) -> ValueId:
        if op == "onnx.MatMul":
            return node(b, op, given(b, 20, 256), half(b, 256, 160))
        return node(b, op, given(b, 20, 256), half(b, 160, 256), alpha=1.0, beta=1.0, transA=0, transB=1)

    graph, weights = made(build)
    after = lower_to_core(graph, weights)
    assert ops(after) == ["core.cast", "core.cast", "core.matmul", "core.cast"]
    ((_, digest),) = after.weights
    assert weights[digest].shape == (256, 160)
    assert weights[digest].dtype == np.float16


def test_in_a_loop_what_is_carried_stays_narrow() -> None:
    def build(b: GraphBuilder) -> ValueId:
        body = GraphBuilder(b.weights)
        _, going, state = (body.open_input(dtype, shape) for dtype, shape in (
            (DType.I64, ()), (DType.BOOL, ()), (DType.F16, ("n",)),
        ))  # fmt: skip
        after = node(body, "onnx.Tanh", node(body, "onnx.Neg", state))
        inner = body.finish([going, after])
        loop = (ints(b, 3), None, given(b, "n"))
        (result,) = b.node("onnx.Loop", loop, Attrs({"captures": 0}), version=21, graphs=(("body", inner),))
        assert result is not None
        return result

    graph, after, weights = widened(build)
    ((_, body),) = next(n for n in after.nodes if n.op.endswith("Loop")).graphs
    assert ops(body) == ["core.cast", "onnx.Neg", "onnx.Tanh", "core.cast"]
    x = RANDOM.standard_normal(5).astype(np.float16)
    (exact,), (got,) = evaluate(graph, weights, [x], wide=True), evaluate(after, weights, [x])
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=3 * 2.0**-10)


def test_what_has_no_such_type_is_left_alone() -> None:
    def build(b: GraphBuilder) -> ValueId:
        return node(b, "onnx.CastLike", b.open_input(DType.F32, ("n",)), given(b, 1), saturate=1)

    graph, weights = made(build)
    assert widen_floats(graph, weights) is graph


def test_a_graph_of_f32_is_not_walked() -> None:
    graph, weights = made(lambda b: node(b, "onnx.Neg", b.open_input(DType.F32, ("n",))))
    assert widen_floats(graph, weights) is graph


def test_a_comparison_of_narrow_floats_is_one_of_f32() -> None:
    graph, after, weights = widened(lambda b: node(b, "onnx.Less", given(b, "n"), given(b, "n")))
    assert ops(after) == ["core.cast", "core.cast", "onnx.Less"]
    a, c = (RANDOM.standard_normal(40).astype(np.float16) for _ in range(2))
    np.testing.assert_array_equal(evaluate(after, weights, [a, c])[0], evaluate(graph, weights, [a, c])[0])
