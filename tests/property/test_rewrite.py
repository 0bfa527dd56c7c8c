"""Random small graphs: simplified, decomposed and lowered graphs compute what the original does."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import assert_same, feeds

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, ValueId, Weights
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import lower_to_core, simplify

_MAPS = ("onnx.Neg", "onnx.Abs", "onnx.Relu", "onnx.Identity", "onnx.Floor", "core.neg", "core.abs")
_PAIRS = ("onnx.Add", "onnx.Sub", "onnx.Mul", "onnx.Max", "core.min", "core.add")
_NEUTRAL = (0.0, -0.0, 1.0, 2.0)


class _Draw:
    """Adds random nodes over matrices of one open and one closed size; both are 3 in the calls."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.builder = GraphBuilder(Weights())
        self.values = [
            self.builder.open_input(DType.F32, shape, name)
            for shape, name in ((("n", 3), "x"), ((3, "n"), "y"), ((3, 3), "z"))
        ]

    def pick(self, options: Any) -> Any:
        return self.data.draw(st.sampled_from(options))

    def op(self, op: str, *inputs: ValueId | None, **attrs: Any) -> ValueId:
        (result,) = self.builder.node(op, inputs, Attrs(attrs), version=14)
        assert result is not None
        return result

    def ints(self, *numbers: int) -> ValueId:
        return self.builder.weight(np.array(numbers, np.int64))

    def step(self) -> ValueId:
        x = self.pick(self.values)
        match self.pick(("map", "pair", "neutral", "transpose", "reshape", "cast", "slice", "where", "shape")):
            case "map":
                return self.op(self.pick(_MAPS), x)
            case "pair":
                return self.op(self.pick(_PAIRS), x, self.pick(self.values))
            case "neutral":
                return self.op(self.pick(_PAIRS), x, self.builder.weight(np.array(self.pick(_NEUTRAL), np.float32)))
            case "transpose":
                return self.op("onnx.Transpose", x, perm=self.pick(((0, 1), (1, 0))))
            case "reshape":
                return self.op(
                    "onnx.Reshape", x, self.ints(*self.pick(((3, 3), (0, -1), (-1, 3), (0, 0)))), allowzero=0
                )
            case "cast":
                wide = self.op("onnx.Cast", x, to=self.pick((DType.F64, DType.F16, DType.F32)).code, saturate=1)
                return self.op("onnx.Cast", wide, to=DType.F32.code, saturate=1)
            case "slice":
                end = self.pick((2**31 - 1, 3))
                return self.op("onnx.Slice", x, self.ints(0), self.ints(end), self.ints(self.pick((0, 1))))
            case "where":
                condition = self.builder.weight(np.array(self.pick(([True], [False], [True, False, True]))))
                return self.op("onnx.Where", condition, x, self.pick(self.values))
            case _:
                sizes = self.op("onnx.Shape", self.pick(self.values), start=0)
                return self.op("onnx.Expand", x, sizes)

    def graph(self) -> tuple[Graph, Weights]:
        for _ in range(self.data.draw(st.integers(1, 12))):
            self.values.append(self.step())
        outputs = self.data.draw(st.lists(st.sampled_from(self.values), min_size=1, max_size=3))
        return self.builder.finish(outputs), self.builder.weights


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_simplified_is_original(data: st.DataObject) -> None:
    graph, weights = _Draw(data).graph()
    after = simplify(graph, weights)
    assert len(after.nodes) <= len(graph.nodes)
    assert_same(graph, after, weights)
    assert simplify(after, weights) == after


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_lowered_is_original(data: st.DataObject) -> None:
    """These ops are single core ops, so that even the lowered graph is exact but for the sign of zeros in max."""
    graph, weights = _Draw(data).graph()
    after = lower_to_core(graph, weights)
    verify(after, weights)
    assert all(node.op.startswith("core.") for node in after.nodes)
    inputs = feeds(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b in zip(evaluate(graph, weights, inputs), evaluate(after, weights, inputs), strict=True):
            np.testing.assert_array_equal(a, b)
