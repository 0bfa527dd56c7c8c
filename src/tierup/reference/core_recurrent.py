"""The core recurrences: one matrix product and a few maps for each step of time.

Gates come with the inputs' product and the biases already in. A row whose length is over keeps its state and gives
zeros; with `reverse`, time runs backwards from each row's own end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference.precision import down, up

Activation = Callable[[Array, float, float], Array]
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


def _steps(node: Node, gates: Array, lengths: Array) -> Iterator[tuple[int, Array]]:
    """Each step of time in its order, with the rows that are still running as a column."""
    times = range(len(gates))
    for step in reversed(times) if node.attrs["reverse"] else times:
        yield step, (step < lengths)[:, None]


def _outputs(gates: Array, r: Array) -> Array:
    return np.zeros((*gates.shape[:2], r.shape[1]), gates.dtype)


def _narrow(like: Array, *results: Array) -> tuple[Array, ...]:
    return tuple(down(result, like.dtype) for result in results)


def rnn(node: Node, gates: Array, r: Array, h: Array, lengths: Array) -> tuple[Array, ...]:
    like = gates
    gates, r, h = map(up, (gates, r, h))
    (f,) = _activations(node)
    y = _outputs(gates, r)
    for step, running in _steps(node, gates, lengths):
        h = np.where(running, f(gates[step] + h @ r.T), h)
        y[step] = h * running
    return _narrow(like, y, h)


def gru(node: Node, gates: Array, r: Array, bias: Array, h: Array, lengths: Array) -> tuple[Array, ...]:
    like = gates
    gates, r, bias, h = map(up, (gates, r, bias, h))
    f, g = _activations(node)
    y, size = _outputs(gates, r), r.shape[1]
    for step, running in _steps(node, gates, lengths):
        zr = f(gates[step, :, : 2 * size] + h @ r[: 2 * size].T)
        update, reset = zr[:, :size], zr[:, size:]
        if node.attrs["linear_before_reset"]:
            hidden = reset * (h @ r[2 * size :].T + bias)
        else:
            hidden = (reset * h) @ r[2 * size :].T + bias
        new = g(gates[step, :, 2 * size :] + hidden)
        h = np.where(running, (1 - update) * new + update * h, h)
        y[step] = h * running
    return _narrow(like, y, h)


def lstm(node: Node, gates: Array, r: Array, p: Array, h: Array, c: Array, lengths: Array) -> tuple[Array, ...]:
    like = gates
    gates, r, p, h, c = map(up, (gates, r, p, h, c))
    f, g, out = _activations(node)
    y, size = _outputs(gates, r), r.shape[1]
    peep = p if p.size else np.zeros(3 * size, gates.dtype)
    p_i, p_o, p_f = peep[:size], peep[size : 2 * size], peep[2 * size :]
    for step, running in _steps(node, gates, lengths):
        i, o, forget, cell = np.split(gates[step] + h @ r.T, 4, axis=1)
        i = f(i + p_i * c)
        forget = 1 - i if node.attrs["input_forget"] else f(forget + p_f * c)
        new_c = forget * c + i * g(cell)
        new_h = f(o + p_o * new_c) * out(new_c)
        h, c = np.where(running, new_h, h), np.where(running, new_c, c)
        y[step] = h * running
    return _narrow(like, y, h, c)
