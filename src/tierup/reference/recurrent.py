"""Recurrent layers. The inputs of all steps are multiplied at once; only the recurrence itself goes step by step.

A sequence that is shorter than the longest keeps its state from its own end on (from its own start, in reverse), and
its outputs there are zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Node
from tierup.ir.ops.recurrent import GATES, activations
from tierup.ir.types import Array
from tierup.reference.precision import down, up

Function = Callable[[Array], Array]
State = tuple[Array, ...]


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # never overflows
    result: Array = np.where(x < 0, small, 1) / (1 + small)
    return result


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Sigmoid": _sigmoid,
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "ThresholdedRelu": lambda x, alpha: np.where(x < alpha, 0, x),
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "Elu": lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.logaddexp(x, 0),
}


class Direction(Struct, frozen=True):
    """What one direction of a layer computes with; biases are zero where the model has none."""

    functions: list[Function]
    recurrence: Array  # hidden size × gates · hidden size
    bias: Array  # of the recurrence, not yet part of the inputs' products
    peepholes: Array
    options: Node

    def gates(self, values: Array) -> list[Array]:
        return np.split(values, GATES[self.options.op], axis=-1)


Step = Callable[[Direction, Array, State], State]


def rnn(node: Node, x: Array, w: Array, r: Array, *rest: Array | None) -> tuple[Array, ...]:
    return run_layer(node, _rnn_step, x, w, r, rest)


def gru(node: Node, x: Array, w: Array, r: Array, *rest: Array | None) -> tuple[Array, ...]:
    return run_layer(node, _gru_step, x, w, r, rest)


def lstm(node: Node, x: Array, w: Array, r: Array, *rest: Array | None) -> tuple[Array, ...]:
    return run_layer(node, lstm_step, x, w, r, rest)


def _rnn_step(layer: Direction, inputs: Array, state: State) -> State:
    (f,) = layer.functions
    return (f(inputs + state[0] @ layer.recurrence + layer.bias),)


def _gru_step(layer: Direction, inputs: Array, state: State) -> State:
    f, g = layer.functions
    (h,) = state
    size = h.shape[-1]
    update_in, reset_in, hidden_in = layer.gates(inputs)
    update_bias, reset_bias, hidden_bias = layer.gates(layer.bias)
    hidden_weight = layer.recurrence[:, 2 * size :]
    update_h, reset_h = np.split(h @ layer.recurrence[:, : 2 * size], 2, axis=-1)
    update = f(update_in + update_h + update_bias)
    reset = f(reset_in + reset_h + reset_bias)
    if layer.options.attrs.get("linear_before_reset", 0):
        hidden = g(hidden_in + reset * (h @ hidden_weight + hidden_bias))
    else:
        hidden = g(hidden_in + (reset * h) @ hidden_weight + hidden_bias)
    return ((1 - update) * hidden + update * h,)


def lstm_step(layer: Direction, inputs: Array, state: State) -> State:
    f, g, squash = layer.functions
    h, c = state
    entry_in, out_in, forget_in, cell_in = layer.gates(inputs + h @ layer.recurrence + layer.bias)
    entry = f(_peeped(layer, entry_in, 0, c))
    forget = 1 - entry if layer.options.attrs.get("input_forget", 0) else f(_peeped(layer, forget_in, 2, c))
    c = forget * c + entry * g(cell_in)
    out = f(_peeped(layer, out_in, 1, c))
    return out * squash(c), c


def _peeped(layer: Direction, gate: Array, which: int, state: Array) -> Array:
    """A gate with what its peephole lets through; without peepholes it is nothing, not 0 times the state."""
    size = layer.peepholes.size // 3
    return gate + layer.peepholes[which * size : (which + 1) * size] * state if size else gate


def run_layer(
    node: Node, step: Step, x: Array, w: Array, r: Array, rest: tuple[Array | None, ...]
) -> tuple[Array, ...]:
    """Y and the last state of each kind. `rest`: bias, lengths, first states, peepholes."""
    dtype = x.dtype
    arguments: list[Array | None] = [*rest, *[None] * (5 - len(rest))]
    bias, lengths, *others = arguments
    batchwise = node.attrs.get("layout", 0) == 1
    x = up(x.swapaxes(0, 1) if batchwise else x)
    kinds = 2 if node.op == "onnx.LSTM" else 1
    shape = (w.shape[0], x.shape[1], r.shape[2])  # directions, batch, hidden size
    first = [_first(state, shape, batchwise, x) for state in others[:kinds]]
    y = np.zeros((x.shape[0], *shape), x.dtype)
    last = [np.empty(shape, x.dtype) for _ in range(kinds)]
    for d, functions in enumerate(_functions(node)):
        backward = node.attrs.get("direction") == "reverse" or d == 1
        input_bias, own_bias = np.split(np.zeros(2 * w.shape[1], x.dtype) if bias is None else up(bias[d]), 2)
        peepholes = np.zeros(0, x.dtype) if others[2] is None else up(others[2][d])
        layer = Direction(functions, np.ascontiguousarray(up(r[d]).T), own_bias, peepholes, node)
        products = x @ up(w[d]).T + input_bias
        state = _run(layer, step, products, tuple(s[d] for s in first), lengths, y[:, d], backward)
        for result, value in zip(last, state, strict=True):
            result[d] = value
    if batchwise:
        y = y.transpose(2, 0, 1, 3)
        last = [state.swapaxes(0, 1) for state in last]
    return down(y, dtype), *(down(state, dtype) for state in last)


def _first(state: Array | None, shape: tuple[int, int, int], batchwise: bool, x: Array) -> Array:
    if state is None:
        return np.zeros(shape, x.dtype)
    state = up(state.swapaxes(0, 1) if batchwise else state)
    if state.shape != shape:
        raise ValueError(f"a first state has the shape {list(state.shape)}, expected {list(shape)}")
    return state


def _run(
    layer: Direction, step: Step, products: Array, state: State, lengths: Array | None, y: Array, backward: bool
) -> State:
    """All steps of one direction; fills `y` and returns the last state."""
    if lengths is not None and ((lengths < 0) | (lengths > len(y))).any():
        raise ValueError(f"sequence_lens must lie between 0 and {len(y)}")
    times = range(len(y))
    for time in reversed(times) if backward else times:
        new = step(layer, products[time], state)
        if lengths is None:
            state, y[time] = new, new[0]
        else:
            running = (time < lengths)[:, None]
            state = tuple(np.where(running, after, before) for after, before in zip(new, state, strict=True))
            y[time] = np.where(running, new[0], 0)
    return state


def _functions(node: Node) -> list[list[Function]]:
    """The activations of each direction, after the clip."""
    clip = node.attrs.get("clip")

    def bound(name: str, parameters: tuple[float, ...]) -> Function:
        function = _FUNCTIONS[name]
        if clip is None or clip <= 0:
            return lambda x: function(x, *parameters)
        return lambda x: function(np.clip(x, -clip, clip), *parameters)

    return [[bound(name, parameters) for name, parameters in row] for row in activations(node.op, node.attrs)]
