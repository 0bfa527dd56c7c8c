"""Recurrent layers: the inputs' products for all steps and directions as one matmul, then a recurrence for each.

Everything runs in f32 or better and is rounded once, as a state in a narrow type would drift from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Attr, Node, ValueId
from tierup.ir.ops.recurrent import GATES, Activation, activations
from tierup.ir.types import Dim
from tierup.rewrite.decompose.core import Core, Decomposition
from tierup.rewrite.decompose.nn import ranked

_STATES = {"onnx.RNN": 1, "onnx.GRU": 1, "onnx.LSTM": 2}
_FLAGS = {"onnx.RNN": (), "onnx.GRU": ("linear_before_reset",), "onnx.LSTM": ("input_forget",)}


class Layer(Struct, frozen=True):
    """The inputs of one node: time first, wide, directions still side by side."""

    b: Core
    node: Node
    x: ValueId  # time, batch, inputs
    w: ValueId  # directions, gates · hidden, inputs
    r: ValueId  # directions, gates · hidden, hidden
    bias: ValueId | None  # directions, both biases one behind the other
    lengths: ValueId  # without elements where every row has all steps
    states: tuple[ValueId | None, ...]  # directions, batch, hidden
    peepholes: ValueId | None  # directions, 3 · hidden

    @property
    def hidden(self) -> Dim:
        return self.b.shape(self.r)[2]

    def of(self, value: ValueId, direction: int) -> ValueId:
        """One direction of a tensor, without that axis."""
        return self.b.reshape(self.b.part(value, 0, direction, direction + 1), self.b.shape(value)[1:])

    def zeros(self, *dims: Dim) -> ValueId:
        return self.b.broadcast(self.b.like(0, self.x), dims)


def _layer(b: Core, n: Node) -> Layer:
    batchwise = n.attrs.get("layout", 0) == 1

    def time_first(value: ValueId) -> ValueId:
        value = ranked(b, value, 3)
        return b.wide(b.transpose(value, (1, 0, 2)) if batchwise else value)

    def wide(index: int) -> ValueId | None:
        value = b.given(n, index)
        return None if value is None else b.wide(value)

    x = time_first(b.input(n))
    lengths = b.given(n, 4)
    if lengths is None:
        lengths = b.integers([])
    first = (b.given(n, 5 + i) for i in range(_STATES[n.op]))
    states = tuple(None if state is None else time_first(state) for state in first)
    peepholes = wide(7) if n.op == "onnx.LSTM" else None
    return Layer(b, n, x, b.wide(b.input(n, 1)), b.wide(b.input(n, 2)), wide(3), lengths, states, peepholes)


def _products(layer: Layer) -> ValueId:
    """x · Wᵀ and the biases for every step and direction at once: (time, batch, directions · gates · hidden)."""
    b = layer.b
    directions, rows, columns = b.shape(layer.w)
    all_rows = b.dims.mul(directions, rows)
    products = b.matmul(layer.x, b.transpose(b.reshape(layer.w, (all_rows, columns)), (1, 0)))
    return products if layer.bias is None else b.add(products, b.reshape(_biases(layer, layer.bias), (all_rows,)))


def _biases(layer: Layer, both: ValueId) -> ValueId:
    """The sum of both biases, (directions, gates · hidden), but for what the recurrence needs apart."""
    b, (directions, rows, _) = layer.b, layer.b.shape(layer.w)
    inputs, own = b.part(both, 1, 0, rows), b.part(both, 1, rows, b.dims.mul(2, rows))
    if layer.node.op == "onnx.GRU":  # the reset gate may multiply the bias of the hidden part: the recurrence adds it
        zeros = layer.zeros(directions, layer.hidden)
        own = b.concat([b.part(own, 1, 0, b.dims.mul(2, layer.hidden)), zeros], 1)
    return b.add(inputs, own)


def _gates(layer: Layer, products: ValueId, direction: int) -> ValueId:
    """One direction's part of the products."""
    b, rows = layer.b, layer.b.shape(layer.w)[1]
    return b.part(products, 2, b.dims.mul(rows, direction), b.dims.mul(rows, direction + 1))


def _extra(layer: Layer, direction: int) -> list[ValueId]:
    """What stands between weights and states: an LSTM's peepholes, a GRU's recurrent bias of the hidden part."""
    b = layer.b
    if layer.node.op == "onnx.RNN":
        return []
    if layer.node.op == "onnx.LSTM":
        none = np.zeros(0, b.dtype(layer.x).numpy)
        return [b.weight(none) if layer.peepholes is None else layer.of(layer.peepholes, direction)]
    if layer.bias is None:
        return [layer.zeros(layer.hidden)]
    return [b.part(layer.of(layer.bias, direction), 0, b.dims.mul(5, layer.hidden), b.dims.mul(6, layer.hidden))]


def _attrs(node: Node, functions: Sequence[Activation], direction: int) -> dict[str, Attr]:
    padded = [(name, (*parameters, 0.0, 0.0)) for name, parameters in functions]
    return {
        "activations": tuple(name for name, _ in padded),
        "alphas": tuple(float(parameters[0]) for _, parameters in padded),
        "betas": tuple(float(parameters[1]) for _, parameters in padded),
        "clip": max(float(node.attrs.get("clip") or 0.0), 0.0),
        "reverse": int(direction == 1 or node.attrs.get("direction") == "reverse"),
        **{flag: int(node.attrs.get(flag, 0)) for flag in _FLAGS[node.op]},
    }


def _recurrence(
    layer: Layer, products: ValueId, direction: int, functions: Sequence[Activation]
) -> tuple[ValueId, ...]:
    """y (time, batch, hidden) and the last states (batch, hidden) of one direction."""
    shape = (layer.b.shape(layer.x)[1], layer.hidden)
    first = [layer.zeros(*shape) if state is None else layer.of(state, direction) for state in layer.states]
    weights = layer.b.transpose(layer.of(layer.r, direction), (1, 0))
    inputs = [_gates(layer, products, direction), weights, *_extra(layer, direction), *first]
    name = layer.node.op.removeprefix("onnx.").lower()
    attrs = _attrs(layer.node, functions, direction)
    return layer.b.many(name, 1 + len(first), *inputs, layer.lengths, **attrs)


def _recurrent(b: Core, n: Node) -> list[ValueId]:
    layer = _layer(b, n)
    products = _products(layer)
    rows = [_recurrence(layer, products, i, functions) for i, functions in enumerate(activations(n.op, n.attrs))]
    y, *last = zip(*rows, strict=True)
    outputs = b.concat([b.unsqueeze(value, 1) for value in y], 1)
    states = [b.concat([b.unsqueeze(value, 0) for value in values], 0) for values in last]
    if n.attrs.get("layout", 0) == 1:
        outputs = b.transpose(outputs, (2, 0, 1, 3))
        states = [b.transpose(state, (1, 0, 2)) for state in states]
    return [b.cast(value, b.dtype(b.input(n))) for value in (outputs, *states)]


RECURRENT: dict[str, Decomposition] = dict.fromkeys(GATES, _recurrent)
