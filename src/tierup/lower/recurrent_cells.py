"""The cells of recurrent layers as maps on tiles: gates and states in, new states out, all in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierup.ir.graph import Node
from tierup.ir.types import DType
from tierup.lower.names import Names
from tierup.lower.sources import Value
from tierup.lower.tile import COMPARISONS, Fill, Map, Statement, Tile


class Maps:
    """Appends maps to a body. Their results have all axes of their arguments, in the order of `axes`."""

    def __init__(self, body: list[Statement], names: Names, dtype: DType, axes: tuple[str, ...]) -> None:
        self.body, self._names, self._dtype, self._axes = body, names, dtype, axes

    def __call__(self, op: str, *arguments: Value) -> Value:
        met = {axis for _, tile in arguments for axis in tile.axes}
        dtype = DType.BOOL if op in COMPARISONS else arguments[-1][1].dtype
        tile = Tile(dtype, tuple(axis for axis in self._axes if axis in met))
        name = self._names.new()
        self.body.append(Map(name, tile, op, tuple(argument for argument, _ in arguments)))
        return name, tile

    def number(self, number: float) -> Value:
        """One number for all elements."""
        name = self._names.new("c")
        self.body.append(Fill(name, Tile(self._dtype), float(number)))
        return name, Tile(self._dtype)


Function = Callable[[Maps, Value], Value]


def _relu(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    return m("max", x, m.number(0))


def _tanh(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    return m("tanh", x)


def _sigmoid(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    """e = exp(-|x|): 1 / (1 + e) from 0 on, else e / (1 + e); nothing overflows or cancels."""
    e, one = m("exp", m("neg", m("abs", x))), m.number(1)
    return m("div", m("select", m("le", m.number(0), x), one, e), m("add", one, e))


def _affine(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    return m("add", m("mul", m.number(alpha), x), m.number(beta))


def _leaky_relu(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    return m("select", m("lt", x, m.number(0)), m("mul", m.number(alpha), x), x)


def _thresholded_relu(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    return m("select", m("lt", x, m.number(alpha)), m.number(0), x)


def _scaled_tanh(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    return m("mul", m.number(alpha), m("tanh", m("mul", m.number(beta), x)))


def _hard_sigmoid(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    return m("min", m("max", _affine(m, x, alpha, beta), m.number(0)), m.number(1))


def _elu(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    below = m("mul", m.number(alpha), m("expm1", m("min", x, m.number(0))))
    return m("select", m("lt", x, m.number(0)), below, x)


def _softsign(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    return m("div", x, m("add", m.number(1), m("abs", x)))


def _softplus(m: Maps, x: Value, alpha: float, beta: float) -> Value:
    """max(x, 0) + log1p(exp(-|x|))"""
    return m("add", m("max", x, m.number(0)), m("log1p", m("exp", m("neg", m("abs", x)))))


ACTIVATIONS: dict[str, Callable[[Maps, Value, float, float], Value]] = {
    "Relu": _relu,
    "Tanh": _tanh,
    "Sigmoid": _sigmoid,
    "Affine": _affine,
    "LeakyRelu": _leaky_relu,
    "ThresholdedRelu": _thresholded_relu,
    "ScaledTanh": _scaled_tanh,
    "HardSigmoid": _hard_sigmoid,
    "Elu": _elu,
    "Softsign": _softsign,
    "Softplus": _softplus,
}


def activations(node: Node) -> list[Function]:
    """A node's functions in order, each after the clip."""
    rows = zip(node.attrs["activations"], node.attrs["alphas"], node.attrs["betas"], strict=True)
    clip = float(node.attrs["clip"])

    def bound(name: str, alpha: float, beta: float) -> Function:
        def function(m: Maps, x: Value) -> Value:
            if clip:
                x = m("min", m("max", x, m.number(-clip)), m.number(clip))
            return ACTIVATIONS[name](m, x, alpha, beta)

        return function

    return [bound(*row) for row in rows]


def rnn_cell(m: Maps, node: Node, gates: Sequence[Value]) -> Value:
    """The new hidden state."""
    (f,) = activations(node)
    return f(m, gates[0])


def gru_gates(m: Maps, node: Node, update: Value, reset: Value) -> tuple[Value, Value]:
    """How much of the state is kept, and how much of it goes into the new one."""
    f, _ = activations(node)
    return f(m, update), f(m, reset)


def gru_cell(m: Maps, node: Node, update: Value, hidden: Value, h: Value) -> Value:
    """The new hidden state; `hidden` is what goes into its function."""
    _, g = activations(node)
    return m("add", m("mul", m("sub", m.number(1), update), g(m, hidden)), m("mul", update, h))


def lstm_cell(
    m: Maps, node: Node, gates: Sequence[Value], peepholes: Sequence[Value] | None, c: Value
) -> tuple[Value, Value]:
    """The new hidden state and the new cell."""
    f, g, out = activations(node)
    entry, exit, forget, cell = gates

    def peep(gate: Value, which: int, state: Value) -> Value:
        return gate if peepholes is None else m("add", gate, m("mul", peepholes[which], state))

    taken = f(m, peep(entry, 0, c))
    kept = m("sub", m.number(1), taken) if node.attrs["input_forget"] else f(m, peep(forget, 2, c))
    new = m("add", m("mul", kept, c), m("mul", taken, g(m, cell)))
    return m("mul", f(m, peep(exit, 1, new)), out(m, new)), new
