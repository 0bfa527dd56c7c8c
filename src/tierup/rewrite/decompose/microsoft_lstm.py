"""DynamicQuantizeLSTM: the inputs of all steps and directions as one product of bytes, then a Scan for each direction.

The hidden state of a whole batch is rounded to 8 bits before every step, under the range that it has there, so that no
core recurrence fits: a step is the body of a Scan, a product of bytes with the cell behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.ops.recurrent import Activation, activations
from tierup.ir.types import Array, Dim, DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.quant import accumulate, dynamic_quantize
from tierup.rewrite.decompose.scans import scan
from tierup.rewrite.walk import Rewriter

_GATES = 4


class _Bytes(Struct, frozen=True):
    """Constant weights of all directions, (directions, rows, gates · hidden), with a scale and a zero point for each
    column."""

    whole: Array
    scale: Array
    zero: Array


class _Step(Struct, frozen=True):
    """What the body of one direction is made of; sizes and values are those of the graph around it."""

    node: Node
    functions: Sequence[Activation]
    batch: Dim
    hidden: int
    recurrence: _Bytes  # of this direction
    peepholes: Array | None
    lengths: ValueId | None


def _constant(b: Core, value: ValueId) -> Array:
    found = b.out.constant(value)
    if found is None:
        raise Declined("its weights, scales or zero points are known only in the call")
    return found


def _weights(b: Core, n: Node, at: int, scale_at: int) -> _Bytes:
    whole = _constant(b, b.input(n, at))
    shape = (len(whole), 1, whole.shape[2])
    scale, zero = (_constant(b, b.input(n, index)).reshape(len(whole), 1, -1) for index in (scale_at, scale_at + 1))
    return _Bytes(whole, np.broadcast_to(scale, shape), np.broadcast_to(zero, shape))


def _products(b: Core, n: Node, w: _Bytes) -> ValueId:
    """x · W and both biases for every step and direction at once: (time, batch, directions · gates · hidden)."""
    x, scale, zero = dynamic_quantize(b, b.input(n))
    rows, columns = w.whole.shape[1], w.whole.shape[0] * w.whole.shape[2]
    matrix = np.ascontiguousarray(w.whole.transpose(1, 0, 2).reshape(rows, columns))
    total = accumulate(b, x, zero, b.weight(matrix), b.weight(w.zero.reshape(columns)))
    result = _real(b, total, w, scale)
    bias = b.given(n, 3)
    if bias is None:
        return result
    half = w.whole.shape[2]
    both = b.add(b.part(bias, 1, 0, half), b.part(bias, 1, half, 2 * half))
    return b.add(result, b.reshape(both, (columns,)))


def _real(b: Core, total: ValueId, w: _Bytes, scale: ValueId) -> ValueId:
    """Sums of bytes by the weights' scales, and then by the data's, which is one number: both are maps behind them."""
    return b.mul(b.mul(b.cast(total, DType.F32), b.weight(w.scale.reshape(-1).astype(np.float32))), scale)


def _body(b: Core, step: _Step) -> Graph:
    """One step: hidden state, cell and gates in, with lengths also the number of the step and they themselves; the new
    states and the step's result out."""
    out = Rewriter(b.out.weights, b.out.source)
    c = Core(out)
    state = (step.batch, step.hidden)
    hidden, cell = (out.open_input(DType.F32, state) for _ in range(2))
    given = out.open_input(DType.F32, (step.batch, _GATES * step.hidden))
    r = step.recurrence
    rounded, scale, zero = dynamic_quantize(c, hidden)
    total = accumulate(c, rounded, zero, c.weight(np.ascontiguousarray(r.whole[0])), c.weight(r.zero.reshape(-1)))
    gates = c.add(given, _real(c, total, r, scale))
    new_hidden, new_cell = _cell(c, step, gates, cell)
    result = new_hidden
    if step.lengths is not None:
        now, lengths = out.open_input(DType.I64, ()), out.open_input(b.dtype(step.lengths), (step.batch,))
        running = c.unsqueeze(c.lt(now, c.cast(lengths, DType.I64)), 1)
        result = c.select(running, new_hidden, c.like(0, new_hidden))
        new_hidden, new_cell = c.select(running, new_hidden, hidden), c.select(running, new_cell, cell)
    return out.finish([new_hidden, new_cell, result])


def _cell(c: Core, step: _Step, gates: ValueId, cell: ValueId) -> tuple[ValueId, ValueId]:
    """The new hidden state and the new cell."""
    size = step.hidden
    entry, exit, forget, new = (c.part(gates, 1, size * gate, size * (gate + 1)) for gate in range(_GATES))
    f, g, squash = (_function(step.node, *activation) for activation in step.functions)

    def peeped(gate: ValueId, which: int, state: ValueId) -> ValueId:
        if step.peepholes is None:
            return gate
        part = np.ascontiguousarray(step.peepholes[which * size : (which + 1) * size])
        return c.add(gate, c.mul(c.weight(part), state))

    taken = f(c, peeped(entry, 0, cell))
    kept = c.sub(c.like(1, taken), taken) if step.node.attrs["input_forget"] else f(c, peeped(forget, 2, cell))
    after = c.add(c.mul(kept, cell), c.mul(taken, g(c, new)))
    return c.mul(f(c, peeped(exit, 1, after)), squash(c, after)), after


def _function(node: Node, name: str, parameters: Sequence[float]) -> Callable[[Core, ValueId], ValueId]:
    """An activation after the clip."""
    clip = float(node.attrs.get("clip") or 0.0)
    alpha, beta, *_ = (*parameters, 0.0, 0.0)

    def function(c: Core, x: ValueId) -> ValueId:
        if clip > 0:
            x = c.clamp(x, c.like(-clip, x), c.like(clip, x))
        return _ACTIVATIONS[name](c, x, alpha, beta)

    return function


def _sigmoid(c: Core, x: ValueId, alpha: float, beta: float) -> ValueId:
    e, one = c.exp(c.neg(c.abs(x))), c.like(1, x)
    return c.div(c.select(c.le(c.like(0, x), x), one, e), c.add(one, e))


def _affine(c: Core, x: ValueId, alpha: float, beta: float) -> ValueId:
    return c.add(c.mul(c.like(alpha, x), x), c.like(beta, x))


def _below(c: Core, x: ValueId, limit: float, value: ValueId) -> ValueId:
    return c.select(c.lt(x, c.like(limit, x)), value, x)


def _softplus(c: Core, x: ValueId, alpha: float, beta: float) -> ValueId:
    return c.add(c.max(x, c.like(0, x)), c.op("log1p", c.exp(c.neg(c.abs(x)))))


_ACTIVATIONS: dict[str, Callable[[Core, ValueId, float, float], ValueId]] = {
    "Relu": lambda c, x, alpha, beta: c.max(x, c.like(0, x)),
    "Tanh": lambda c, x, alpha, beta: c.op("tanh", x),
    "Sigmoid": _sigmoid,
    "Affine": _affine,
    "LeakyRelu": lambda c, x, alpha, beta: _below(c, x, 0, c.mul(c.like(alpha, x), x)),
    "ThresholdedRelu": lambda c, x, alpha, beta: _below(c, x, alpha, c.like(0, x)),
    "ScaledTanh": lambda c, x, alpha, beta: c.mul(c.like(alpha, x), c.op("tanh", c.mul(c.like(beta, x), x))),
    "HardSigmoid": lambda c, x, alpha, beta: c.clamp(_affine(c, x, alpha, beta), c.like(0, x), c.like(1, x)),
    "Elu": lambda c, x, alpha, beta: _below(
        c, x, 0, c.mul(c.like(alpha, x), c.op("expm1", c.min(x, c.like(0, x))))
    ),
    "Softsign": lambda c, x, alpha, beta: c.div(x, c.add(c.like(1, x), c.abs(x))),
    "Softplus": _softplus,
}  # fmt: skip


def _direction(b: Core, n: Node, step: _Step, gates: ValueId, direction: int) -> tuple[ValueId, ValueId, ValueId]:
    """The results of all steps, (time, batch, hidden), and the last states, (batch, hidden)."""
    time, shape = b.shape(gates)[0], (step.batch, step.hidden)
    states = []
    for index in (5, 6):
        given = b.given(n, index)
        if given is None:
            states.append(b.broadcast(b.number(0, DType.F32), shape))
        else:
            states.append(b.reshape(b.part(given, 0, direction, direction + 1), shape))
    scanned = [gates] if step.lengths is None else [gates, b.iota((time,), 0)]
    captures = [] if step.lengths is None else [step.lengths]
    backward = direction == 1 or n.attrs["direction"] == "reverse"
    hidden, cell, y = scan(b, _body(b, step), states, scanned, captures, backward=backward)
    return b.reshape(y, (time, *shape)), b.reshape(hidden, shape), b.reshape(cell, shape)


def _dynamic_quantize_lstm(b: Core, n: Node) -> list[ValueId]:
    w, r = _weights(b, n, 1, 8), _weights(b, n, 2, 10)
    hidden, columns = r.whole.shape[1], r.whole.shape[2]
    peepholes = b.given(n, 7)
    peeped = None if peepholes is None else _constant(b, peepholes)
    products = _products(b, n, w)
    rows = []
    for d, functions in enumerate(activations("onnx.LSTM", n.attrs)):
        own = _Bytes(r.whole[d : d + 1], r.scale[d], r.zero[d])
        extra = None if peeped is None else peeped[d]
        step = _Step(n, functions, b.shape(b.input(n))[1], hidden, own, extra, b.given(n, 4))
        gates = b.part(products, 2, columns * d, columns * (d + 1))
        rows.append(_direction(b, n, step, gates, d))
    y, *last = zip(*rows, strict=True)
    results = b.concat([b.unsqueeze(value, 1) for value in y], 1)
    return [results, *(b.concat([b.unsqueeze(value, 0) for value in values], 0) for values in last)]


MICROSOFT_LSTM: dict[str, Decomposition] = {"ms.DynamicQuantizeLSTM": _dynamic_quantize_lstm}
