"""The core recurrences: one matrix product and a few maps for each step of time.

Gates come with the inputs' product and the biases already in. A row whose length is over keeps its state and gives
zeros; with `reverse`, time runs backwards from each row's own end. Lengths without elements: all rows have every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference.precision import down, up

Activation = Callable[[Array, float, float], Array]
Product = Callable[[Array, Array], Array]
ACTIVATIONS: dict[str, Activation] = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: _sigmoid(x),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a, b: np.where(x < a, 0, x),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.logaddexp(0, x),
}


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e), x.dtype)


def _activations(node: Node) -> list[Callable[[Array], Array]]:
    """The node's functions, each after the clip, in the dtype of what they are given."""
    clip = node.attrs["clip"]
    rows = zip(node.attrs["activations"], node.attrs["alphas"], node.attrs["betas"], strict=True)
    functions = [(ACTIVATIONS[name], alpha, beta) for name, alpha, beta in rows]

    def bound(function: Activation, alpha: float, beta: float) -> Callable[[Array], Array]:
        return lambda x: function(np.clip(x, -clip, clip) if clip else x, alpha, beta).astype(x.dtype, copy=False)

    return [bound(*row) for row in functions]


def steps_of(node: Node, time: int, lengths: Array) -> Iterator[tuple[int, Array | bool]]:
    """Each step of time in its order, with the rows that are still running as a column; True: all are."""
    for step in reversed(range(time)) if node.attrs["reverse"] else range(time):
        yield step, (step < lengths)[:, None] if lengths.size else True


def _outputs(gates: Array, r: Array) -> Array:
    return np.zeros((*gates.shape[:2], r.shape[0]), gates.dtype)


def _narrow(like: Array, *results: Array) -> tuple[Array, ...]:
    return tuple(down(result, like.dtype) for result in results)


def rnn(
    node: Node, gates: Array, r: Array, h: Array, lengths: Array, product: Product = np.matmul
) -> tuple[Array, ...]:
    like = gates
    gates, r, h = map(up, (gates, r, h))
    (f,) = _activations(node)
    y = _outputs(gates, r)
    for step, running in steps_of(node, len(gates), lengths):
        h = np.where(running, f(gates[step] + product(h, r)), h)
        y[step] = np.where(running, h, 0)
    return _narrow(like, y, h)


def gru(
    node: Node, gates: Array, r: Array, bias: Array, h: Array, lengths: Array, product: Product = np.matmul
) -> tuple[Array, ...]:
    like = gates
    gates, r, bias, h = map(up, (gates, r, bias, h))
    f, g = _activations(node)
    y, size = _outputs(gates, r), r.shape[0]
    for step, running in steps_of(node, len(gates), lengths):
        zr = f(gates[step, :, : 2 * size] + product(h, r[:, : 2 * size]))
        update, reset = zr[:, :size], zr[:, size:]
        if node.attrs["linear_before_reset"]:
            hidden = reset * (product(h, r[:, 2 * size :]) + bias)
        else:
            hidden = product(reset * h, r[:, 2 * size :]) + bias
        new = g(gates[step, :, 2 * size :] + hidden)
        h = np.where(running, (1 - update) * new + update * h, h)
        y[step] = np.where(running, h, 0)
    return _narrow(like, y, h)


def lstm(
    node: Node, gates: Array, r: Array, p: Array, h: Array, c: Array, lengths: Array, product: Product = np.matmul
) -> tuple[Array, ...]:
    like = gates
    gates, r, p, h, c = map(up, (gates, r, p, h, c))
    f, g, out = _activations(node)
    y, size = _outputs(gates, r), r.shape[0]

    def peeped(gate: Array, which: int, state: Array) -> Array:
        """Without peepholes a gate sees nothing of the state: 0 times an infinite one would be no number."""
        return gate + p[which * size : (which + 1) * size] * state if p.size else gate

    for step, running in steps_of(node, len(gates), lengths):
        i, o, forget, cell = np.split(gates[step] + product(h, r), 4, axis=1)
        i = f(peeped(i, 0, c))
        forget = 1 - i if node.attrs["input_forget"] else f(peeped(forget, 2, c))
        new_c = forget * c + i * g(cell)
        new_h = f(peeped(o, 1, new_c)) * out(new_c)
        h, c = np.where(running, new_h, h), np.where(running, new_c, c)
        y[step] = np.where(running, h, 0)
    return _narrow(like, y, h, c)
