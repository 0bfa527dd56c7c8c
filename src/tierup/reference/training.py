"""Optimiser steps, and gradients by reverse mode.

A Gradient node holds the computation from its inputs to y as the body `forward`. The body runs once with all its
values kept; then each node, last first, passes the derivative of the sum of y on to its inputs by its row in
`_DERIVATIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from tierup.errors import UnsupportedError
from tierup.ir.graph import Graph, Node
from tierup.ir.types import Array

RunGraph = Callable[[Graph, Sequence[Any]], list[Any]]
Step = Callable[..., tuple[Array, ...]]


def _each(step: Step, states: int) -> Callable[..., tuple[Array, ...]]:
    """An optimiser over many tensors: inputs come kind by kind, and so do results."""

    def call(node: Node, rate: Array, count: Array, *tensors: Array) -> tuple[Array, ...]:
        n = len(tensors) // (2 + states)
        results = [step(node, rate, count, *tensors[i::n]) for i in range(n)]
        columns = [column for kind in zip(*results, strict=True) for column in kind]
        return tuple(np.asarray(c, tensors[i % n].dtype) for i, c in enumerate(columns))

    return call


def _adagrad(node: Node, rate: Array, count: Array, x: Array, gradient: Array, squares: Array) -> tuple[Array, ...]:
    attrs = node.attrs
    gradient = attrs["norm_coefficient"] * x + gradient
    squares = squares + gradient * gradient
    rate = rate / (1 + count * attrs["decay_factor"])
    return x - rate * gradient / (np.sqrt(squares) + attrs["epsilon"]), squares


def _adam(node: Node, rate: Array, count: Array, x: Array, gradient: Array, v: Array, h: Array) -> tuple[Array, ...]:
    attrs = node.attrs
    alpha, beta = attrs["alpha"], attrs["beta"]
    gradient = attrs["norm_coefficient"] * x + gradient
    v = alpha * v + (1 - alpha) * gradient
    h = beta * h + (1 - beta) * gradient * gradient
    if count > 0:
        rate = rate * np.sqrt(1 - beta**count) / (1 - alpha**count)
    x = x - rate * v / (np.sqrt(h) + attrs["epsilon"])
    return (1 - attrs["norm_coefficient_post"]) * x, v, h


def _momentum(node: Node, rate: Array, count: Array, x: Array, gradient: Array, v: Array) -> tuple[Array, ...]:
    attrs = node.attrs
    gradient = attrs["norm_coefficient"] * x + gradient
    v = attrs["alpha"] * v + (attrs["beta"] if count > 0 else 1) * gradient
    step = gradient + attrs["alpha"] * v if attrs["mode"] == "nesterov" else v
    return x - rate * step, v


adagrad, adam, momentum = _each(_adagrad, 1), _each(_adam, 2), _each(_momentum, 1)


def gradient(node: Node, *inputs: Any, run: RunGraph) -> tuple[Array, ...]:
    body = node.graph("forward")
    assert body is not None
    count = len(node.attrs["xs"])
    every = dict(enumerate(run(replace(body, outputs=tuple(range(len(body.values)))), inputs)))
    flow: dict[int, Array] = {body.outputs[0]: np.ones_like(every[body.outputs[0]])}
    for inner in reversed(body.nodes):
        _pass_on(inner, every, flow)
    zero = [np.zeros_like(every[value]) for value in body.inputs[:count]]
    return tuple(flow.get(value, none) for value, none in zip(body.inputs[:count], zero, strict=True))


def _pass_on(node: Node, every: dict[int, Any], flow: dict[int, Array]) -> None:
    """Add what `node`'s result passes back to the flow of each of its inputs."""
    output = node.outputs[0]
    if output is None or output not in flow:
        return
    rule = _DERIVATIVES.get(node.op)
    if rule is None:
        raise UnsupportedError(f"{node.label} has no derivative here, but a Gradient needs it")
    values = [None if value is None else every[value] for value in node.inputs]
    for value, part in zip(node.inputs, rule(node, flow[output], every[output], *values), strict=False):
        if value is not None and part is not None:
            shaped = _summed(part, every[value])
            flow[value] = flow[value] + shaped if value in flow else shaped


def _summed(part: Array, like: Array) -> Array:
    """The flow into a value that was broadcast: the sum over the axes that it was repeated on."""
    part = part.sum(axis=tuple(range(part.ndim - like.ndim)))
    repeated = tuple(i for i, size in enumerate(like.shape) if size == 1 and part.shape[i] != 1)
    return np.asarray(part.sum(axis=repeated, keepdims=True), like.dtype)


Derivative = Callable[..., Sequence[Any]]  # (node, flow, result, *inputs) -> what flows to each input


def _map(rule: Callable[[Array, Array], Array]) -> Derivative:
    """A function of one input: `rule(x, y)` is its slope."""
    return lambda node, flow, y, x, *rest: [flow * rule(x, y)]


def _shaped(node: Node, flow: Array, y: Array, x: Array, *rest: Any) -> list[Array]:
    return [flow.reshape(x.shape)]


def _transposed(node: Node, flow: Array, y: Array, x: Array) -> list[Array]:
    perm = node.attrs.get("perm") or tuple(reversed(range(x.ndim)))
    return [flow.transpose(np.argsort(perm))]


def _matmul(node: Node, flow: Array, y: Array, a: Array, b: Array) -> list[Array]:
    """A vector stands for a row on the left, for a column on the right."""
    left, right = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    flow = flow.reshape(np.matmul(left, right).shape)
    to_a, to_b = flow @ np.swapaxes(right, -1, -2), np.swapaxes(left, -1, -2) @ flow
    return [_summed(to_a, left).reshape(a.shape), _summed(to_b, right).reshape(b.shape)]


def _gemm(node: Node, flow: Array, y: Array, a: Array, b: Array, c: Array | None = None) -> list[Any]:
    attrs = node.attrs
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
    left, right = (a.T if attrs.get("transA") else a), (b.T if attrs.get("transB") else b)
    to_a, to_b = alpha * flow @ right.T, alpha * left.T @ flow
    return [to_a.T if attrs.get("transA") else to_a, to_b.T if attrs.get("transB") else to_b, beta * flow]


def _spread(flow: Array, x: Array, axes: Any) -> Array:
    """The flow out of a reduction, repeated over what was reduced."""
    axes = range(x.ndim) if axes is None or len(axes) == 0 else [int(axis) % x.ndim for axis in axes]
    sizes = [1 if i in axes else size for i, size in enumerate(x.shape)]
    return np.broadcast_to(flow.reshape(sizes), x.shape)


def _reduced(mean: bool) -> Derivative:
    def rule(node: Node, flow: Array, y: Array, x: Array, axes: Array | None = None) -> list[Array]:
        given = node.attrs.get("axes") if axes is None else axes
        if node.attrs.get("noop_with_empty_axes") and (given is None or len(given) == 0):
            return [flow]
        share = x.size / y.size if mean and y.size else 1
        return [_spread(flow, x, given) / share]

    return rule


def _power(node: Node, flow: Array, y: Array, a: Array, b: Array) -> list[Any]:
    to_b = flow * y * np.log(np.where(a > 0, a, 1)) if b.dtype.kind == "f" else None
    return [flow * b * np.power(a, b - 1), to_b]


def _softmax(node: Node, flow: Array, y: Array, x: Array) -> list[Array]:
    if node.version < 13:
        raise UnsupportedError(f"{node.label} of opset {node.version} has no derivative here; opset 13 has")
    return [y * (flow - (flow * y).sum(axis=node.attrs.get("axis", -1), keepdims=True))]


_DERIVATIVES: dict[str, Derivative] = {
    "onnx.Identity": _map(lambda x, y: np.ones_like(x)),
    "onnx.Neg": _map(lambda x, y: -np.ones_like(x)),
    "onnx.Abs": _map(lambda x, y: np.sign(x)),
    "onnx.Exp": _map(lambda x, y: y),
    "onnx.Log": _map(lambda x, y: 1 / x),
    "onnx.Sqrt": _map(lambda x, y: 0.5 / y),
    "onnx.Reciprocal": _map(lambda x, y: -y * y),
    "onnx.Sin": _map(lambda x, y: np.cos(x)),
    "onnx.Cos": _map(lambda x, y: -np.sin(x)),
    "onnx.Tanh": _map(lambda x, y: 1 - y * y),
    "onnx.Sigmoid": _map(lambda x, y: y * (1 - y)),
    "onnx.Relu": _map(lambda x, y: (x > 0).astype(x.dtype)),
    "onnx.Erf": _map(lambda x, y: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "onnx.Softmax": _softmax,
    "onnx.Add": lambda node, flow, y, a, b: [flow, flow],
    "onnx.Sub": lambda node, flow, y, a, b: [flow, -flow],
    "onnx.Mul": lambda node, flow, y, a, b: [flow * b, flow * a],
    "onnx.Div": lambda node, flow, y, a, b: [flow / b, -flow * y / b],
    "onnx.Pow": _power,
    "onnx.Sum": lambda node, flow, y, *inputs: [flow] * len(inputs),
    "onnx.MatMul": _matmul,
    "onnx.Gemm": _gemm,
    "onnx.Transpose": _transposed,
    "onnx.Reshape": _shaped,
    "onnx.Flatten": _shaped,
    "onnx.Squeeze": _shaped,
    "onnx.Unsqueeze": _shaped,
    "onnx.ReduceSum": _reduced(mean=False),
    "onnx.ReduceMean": _reduced(mean=True),
}
