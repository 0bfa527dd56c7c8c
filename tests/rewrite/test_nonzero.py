"""Places of what is not zero by counting: every type and rank against the op itself, and compiled without call-outs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.rewrite.graphs import made, ops

import tierup
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import ValueId
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rules.reforms import reformed
from tierup.rewrite.walk import walk

X = np.array([[[0, 1, 0, -2], [0, 0, 0, 0], [5, 6, 7, 0]], [[0] * 4, [0, 0, 0, 9], [1, 0, 0, 0]]])
SHAPES: list[tuple[Any, ...]] = [(2, 3, 4), ("a", 3, "b"), ("n",)]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64, DType.U8, DType.BOOL])
@pytest.mark.parametrize("shape", SHAPES)
def test_places_are_those_of_the_op(shape: tuple[Any, ...], dtype: DType) -> None:
    def build(b: GraphBuilder) -> ValueId:
        return b.op("core.nonzero", b.open_input(dtype, shape))

    graph, weights = made(build)
    after = walk(graph, weights, (reformed,)).graph
    verify(after, weights)
    assert "core.nonzero" not in ops(after)
    whole = X if len(shape) == 3 else X.reshape(-1)
    feeds = [whole, np.zeros_like(whole), np.ones_like(whole)]
    if "b" in shape or "n" in shape:
        feeds.append(whole[..., :0])
    for given in feeds:
        x = given.astype(dtype.numpy)
        (wanted,), (got,) = evaluate(graph, weights, [x]), evaluate(after, weights, [x])
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(got, wanted)


def test_nan_is_not_zero() -> None:
    graph, weights = made(lambda b: b.op("core.nonzero", b.open_input(DType.F32, (3,))))
    after = walk(graph, weights, (reformed,)).graph
    assert evaluate(after, weights, [np.array([np.nan, -0.0, 1], np.float32)])[0].tolist() == [[0, 2]]


def test_a_single_number_stays() -> None:
    graph, weights = made(lambda b: b.op("core.nonzero", b.open_input(DType.F32, ())))
    assert ops(walk(graph, weights, (reformed,)).graph) == ["core.nonzero"]


def model() -> onnx.ModelProto:
    """Rows of x where a mask holds, doubled, and the places of what is not zero in them."""
    nodes = [
        helper.make_node("Compress", ["x", "mask"], ["kept"], axis=0),
        helper.make_node("Add", ["kept", "kept"], ["y"]),
        helper.make_node("NonZero", ["y"], ["z"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 4)),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, ("n",)),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (None, 4)),
        helper.make_tensor_value_info("z", TensorProto.INT64, (2, None)),
    ]
    graph = helper.make_graph(nodes, "kept", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_sizes_that_data_decides_are_compiled() -> None:
    random = np.random.default_rng(2)
    with tierup.load(model(), config=tierup.Config(force_tier=1)) as session:
        for rows in (9, 0, 1, 300):
            x = random.integers(-1, 2, (rows, 4)).astype(np.float32)
            for mask in (random.random(rows) < 0.5, np.zeros(rows, bool), np.ones(rows, bool)):
                got = session(x=x, mask=mask)
                np.testing.assert_array_equal(got["y"], 2 * x[mask])
                np.testing.assert_array_equal(got["z"], np.nonzero(x[mask]))
        assert session.report().to_dict()["counters"]["fallback_nodes"] == 0
