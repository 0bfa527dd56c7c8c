"""Factors of channels that go to the weights behind them: where they do, where not, and that kernels are proved."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.adapt.networks import distinct, load
from tests.rewrite.graphs import Build, const, f32, made, ops
from tests.runtime.answers import compiled

from tierup.adapt.prove import prove
from tierup.ir.build import GraphBuilder
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import scale_rows

RANDOM = np.random.default_rng(3)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def rewritten(build: Build, *feeds: Any) -> list[str]:
    """The ops that are left; answers are the same up to one rounding of each term."""
    graph, weights = made(build)
    after = scale_rows(graph, weights)
    verify(after, weights)
    for wanted, got in zip(*(evaluate(g, weights, list(feeds), wide=True) for g in (graph, after)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    return ops(after)


def scaled(b: GraphBuilder, x: int, s: int, first: bool = False, columns: int = 5) -> int:
    return b.op("core.matmul", b.op("core.mul", *((s, x) if first else (x, s))), const(b, floats(8, columns)))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("factors", [(8,), (1, 8), (1, 1, 1, 8)])
def test_factors_go_to_the_weights(factors: tuple[int, ...], first: bool) -> None:
    left = rewritten(
        lambda b: scaled(b, f32(b, 1, 16, 20, 8), f32(b, *factors), first), floats(1, 16, 20, 8), floats(*factors)
    )
    assert "core.matmul_scaled" in left
    assert "core.mul" not in left


def shared(b: GraphBuilder) -> list[int]:
    product = b.op("core.mul", f32(b, 300, 8), f32(b, 8))
    return [b.op("core.matmul", product, const(b, floats(8, 5))), b.op("core.exp", product)]


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda b: scaled(b, f32(b, 100, 8), f32(b, 8)), [(100, 8), (8,)]),  # few rows
        (lambda b: scaled(b, f32(b, 300, 8), f32(b, 8), columns=40), [(300, 8), (8,)]),  # many columns
        (lambda b: scaled(b, f32(b, 300, 8), f32(b, 300, 1)), [(300, 8), (300, 1)]),  # a factor for each row
        (lambda b: scaled(b, f32(b, 2, 300, 8), f32(b, 2, 1, 8)), [(2, 300, 8), (2, 1, 8)]),  # others for each picture
        (lambda b: scaled(b, f32(b, 300, 8), const(b, floats(8))), [(300, 8)]),  # what can be folded
        (lambda b: b.op("core.matmul", b.op("core.mul", f32(b, 300, 8), f32(b, 8)), f32(b, 8, 5)),
         [(300, 8), (8,), (8, 5)]),  # weights that are computed
        (shared, [(300, 8), (8,)]),
    ],
)  # fmt: skip
def test_other_factors_stay(build: Build, shapes: list[tuple[int, ...]]) -> None:
    assert "core.matmul_scaled" not in rewritten(build, *(floats(*shape) for shape in shapes))


def excited() -> onnx.ModelProto:
    """Squeeze and excitation between two 1×1 convolutions."""
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["h"]),
        helper.make_node("GlobalAveragePool", ["h"], ["p"]),
        helper.make_node("Sigmoid", ["p"], ["s"]),
        helper.make_node("Mul", ["h", "s"], ["z"]),
        helper.make_node("Conv", ["z", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    sides = {"v": floats(40, 8, 1, 1), "w": floats(24, 40, 1, 1), "b": floats(24)}
    weights = [numpy_helper.from_array(array, name) for name, array in sides.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 18, 18))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "excited", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_network_with_them() -> None:
    proto, x = excited(), floats(1, 8, 18, 18)
    kernels = [one for one in distinct(proto) if "core.matmul_scaled" in {node.op for node in one.case.graph.nodes}]
    assert kernels
    for alone in kernels:
        loaded = load(alone.case)
        proof = prove(alone.case, [address for address, _ in loaded])
        assert proof.passed, proof.reason
    v, w, bias = (numpy_helper.to_array(tensor).astype(np.float64) for tensor in proto.graph.initializer)
    h = np.einsum("nchw,mc->nmhw", x.astype(np.float64), v[:, :, 0, 0])
    z = h / (1 + np.exp(-h.mean((2, 3), keepdims=True)))
    wanted = np.maximum(np.einsum("nchw,mc->nmhw", z, w[:, :, 0, 0]) + bias[:, None, None], 0)
    np.testing.assert_allclose(compiled(proto, x), wanted, rtol=0, atol=1e-4)  # 40 sums of 8 terms around 1
