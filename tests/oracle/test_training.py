"""Optimiser steps against onnx.reference, gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.oracle.cases import build, from_onnx, run

from tierup.errors import UnsupportedError
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import DType
from tierup.reference.evaluate import evaluate

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("tensors", [1, 2])
@pytest.mark.parametrize(
    ("op", "states", "attrs"),
    [
        ("Adagrad", 1, {"decay_factor": 0.1, "epsilon": 1e-5, "norm_coefficient": 0.01}),
        (
            "Adam",
            2,
            {"alpha": 0.9, "beta": 0.99, "epsilon": 1e-5, "norm_coefficient": 0.01, "norm_coefficient_post": 0.001},
        ),
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.01}),
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.5, "mode": "nesterov", "norm_coefficient": 0.01}),
    ],
)
def test_optimizers(op: str, states: int, attrs: dict[str, Any], tensors: int, step: int) -> None:
    rows = [RNG.uniform(0.1, 1, size=(2 + i, 3)).astype(np.float32) for i in range(tensors)] * (2 + states)
    inputs = [np.array(0.1, np.float32), np.array(step, np.int64), *rows]
    count = tensors * (1 + states)
    results = run(f"training.{op}", *inputs, outputs=count, **attrs)
    expected = from_onnx(f"training.{op}", *inputs, version=1, outputs=count, **attrs)
    for ours, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-5)


Make = Callable[..., int]
SLOPES = (("Tanh", 13), ("Sigmoid", 13), ("Relu", 14), ("Sin", 7), ("Cos", 7), ("Erf", 13), ("Neg", 13), ("Abs", 13),
          ("Reciprocal", 13), ("Identity", 13))  # fmt: skip


def division(b: GraphBuilder, x: int, z: int) -> int:
    return b.op("onnx.Div", b.op("onnx.Exp", x, version=13), b.op("onnx.Sqrt", z, version=13), version=14)


def functions(b: GraphBuilder, x: int, z: int) -> int:
    return b.op("onnx.Sum", *(b.op(f"onnx.{name}", x, version=version) for name, version in SLOPES), z, version=13)


def means(b: GraphBuilder, x: int, z: int) -> int:
    rows = b.op("onnx.ReduceMean", x, b.weight(np.array([1])), version=18, keepdims=0)
    columns = b.op("onnx.ReduceMean", z, b.weight(np.array([0])), version=18, keepdims=0)
    return b.op("onnx.Mul", rows, columns, version=14)


def flat(b: GraphBuilder, x: int, z: int) -> int:
    row = b.op("onnx.Reshape", x, b.weight(np.array([-1])), version=14)
    return b.op("onnx.Mul", row, b.op("onnx.Flatten", z, version=13, axis=0), version=14)


FORWARDS: dict[str, Make] = {
    "add and mul": lambda b, x, z: b.op("onnx.Mul", b.op("onnx.Add", x, z, version=14), x, version=14),
    "broadcast": lambda b, x, z: b.op("onnx.Sub", b.op("onnx.ReduceSum", x, version=13, keepdims=1), z, version=14),
    "division": division,
    "logs": lambda b, x, z: b.op("onnx.Log", b.op("onnx.Pow", x, z, version=15), version=13),
    "functions": functions,
    "matmul": lambda b, x, z: b.op("onnx.MatMul", x, b.op("onnx.Transpose", z, version=13, perm=(1, 0)), version=13),
    "gemm": lambda b, x, z: b.op("onnx.Gemm", x, z, x, version=13, alpha=0.5, beta=2.0, transA=1, transB=0),
    "softmax": lambda b, x, z: b.op("onnx.Mul", b.op("onnx.Softmax", x, version=13, axis=-1), z, version=14),
    "means": means,
    "flat": flat,
}


def gradient_graph(make: Make, weights: Weights) -> tuple[Graph, Graph]:
    inner = GraphBuilder(weights)
    forward = inner.finish([make(inner, *(inner.open_input(DType.F64, [3, 3]) for _ in range(2)))])
    attrs: dict[str, Any] = {"xs": ("x", "z"), "y": "y", "graphs": (("forward", forward),), "store": weights}
    return forward, build("static", "training.Gradient", np.ones((3, 3)), np.ones((3, 3)), outputs=2, **attrs).graph


@pytest.mark.parametrize("name", FORWARDS)
def test_gradients(name: str) -> None:
    weights = Weights()
    forward, graph = gradient_graph(FORWARDS[name], weights)
    point = [RNG.uniform(0.5, 1.5, size=(3, 3)) for _ in range(2)]
    results = evaluate(graph, weights, point)
    for which, result in enumerate(results):
        assert result.shape == (3, 3)
        for place in np.ndindex(3, 3):
            sides = []
            for sign in (1, -1):
                moved = [p.copy() for p in point]
                moved[which][place] += sign * 1e-5
                sides.append(evaluate(forward, weights, moved)[0].sum())
            np.testing.assert_allclose(result[place], (sides[0] - sides[1]) / 2e-5, rtol=1e-6, atol=1e-8)


def test_an_op_without_derivative_is_named() -> None:
    weights = Weights()
    _, graph = gradient_graph(lambda b, x, z: b.op("onnx.Floor", x, version=13), weights)
    with pytest.raises(UnsupportedError, match=r"onnx\.Floor"):
        evaluate(graph, weights, [np.ones((3, 3))] * 2)
