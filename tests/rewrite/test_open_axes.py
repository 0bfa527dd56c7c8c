"""Reductions whose axes only the call knows: each axis is divided in two, of which one has a single element."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.rewrite.graphs import made, node

from tierup.ir.build import GraphBuilder
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.decompose import decompose

SHAPE = (2, 3, 4)
OPS = ("ReduceSum", "ReduceMax", "ReduceL2", "ReduceMean", "ReduceLogSumExp")


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_choice_of_axes(op: str, keep: int, count: int) -> None:
    def build(b: GraphBuilder) -> int:
        x, axes = b.open_input(DType.F32, ("n", 3, "m")), b.open_input(DType.I64, (count,))
        return int(node(b, f"onnx.{op}", x, axes, version=18, keepdims=keep, noop_with_empty_axes=0))

    graph, weights = made(build)
    after = decompose(graph, weights)
    verify(after, weights)
    assert all(n.op.startswith("core.") for n in after.nodes)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    for chosen in combinations(range(3), count):
        for shift in (0, -3):
            axes = np.array([axis + shift for axis in reversed(chosen)])
            (wanted,), (got,) = evaluate(graph, weights, [x, axes]), evaluate(after, weights, [x, axes])
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=2e-6)  # at most 24 terms, in another order


@pytest.mark.parametrize("axes", [[3], [-4], [0, 5]])
def test_an_axis_outside_is_an_error(axes: list[int]) -> None:
    def build(b: GraphBuilder) -> int:
        x, chosen = b.open_input(DType.F32, SHAPE), b.open_input(DType.I64, (len(axes),))
        return int(node(b, "onnx.ReduceSum", x, chosen, version=13, keepdims=1, noop_with_empty_axes=0))

    graph, weights = made(build)
    after = decompose(graph, weights)
    with pytest.raises(Exception, match="reshape"):
        evaluate(after, weights, [np.ones(SHAPE, np.float32), np.array(axes)])


@pytest.mark.parametrize("noop", [0, 1])
def test_no_axes_are_all_or_none(noop: int) -> None:
    def build(b: GraphBuilder) -> int:
        x, axes = b.open_input(DType.F32, SHAPE), b.open_input(DType.I64, (0,))
        return int(node(b, "onnx.ReduceSum", x, axes, version=13, keepdims=0, noop_with_empty_axes=noop))

    graph, weights = made(build)
    after = decompose(graph, weights)
    inputs = [np.ones(SHAPE, np.float32), np.zeros(0, np.int64)]
    np.testing.assert_array_equal(evaluate(after, weights, inputs)[0], evaluate(graph, weights, inputs)[0])
