"""The error bounds of core recurrences: every step of time by the rules of the maps and products that it consists of.

Values are those of `core_recurrent.py`; only the bounds come from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from tierup.ir.graph import Attrs, Node
from tierup.ir.types import Array, DType
from tierup.reference.bounded import FORMATS, Bounded, Step
from tierup.reference.core_recurrent import steps_of

Rule = Callable[..., Bounded]
Function = Callable[[Bounded], Bounded]


class Arithmetic:
    """Core ops on values with bounds."""

    def __init__(self, rules: Mapping[str, Rule], dtype: DType, unit: float) -> None:
        self._rules, self._dtype, self._unit = rules, dtype, unit

    def __call__(self, op: str, *given: Bounded) -> Bounded:
        node = Node(f"core.{op}", 1, tuple(range(len(given))), (len(given),), Attrs({}))
        dtype = DType.BOOL if op in ("le", "lt") else self._dtype
        return overflowed(self._rules[node.op](Step(node, dtype, self._unit), *given), self._unit)

    def number(self, number: float) -> Bounded:
        return Bounded(np.asarray(number, np.float64), self._dtype)


def overflowed(x: Bounded, unit: float) -> Bounded:
    """As those see it that compute with it: what may be more than the dtype holds may be infinite by now, or not. What
    is exact is a number of the dtype, be it the largest."""
    if x.bound is None or not x.is_float:
        return x
    large = np.abs(x.value) + unit * x.bound >= FORMATS[x.dtype].largest
    over = np.isfinite(x.value) & large & (x.bound > 0)
    return replace(x, bound=np.where(over, np.inf, x.bound)) if over.any() else x


def _sigmoid(m: Arithmetic, x: Bounded) -> Bounded:
    e, one = m("exp", m("neg", m("abs", x))), m.number(1)
    return m("div", m("select", m("le", m.number(0), x), one, e), m("add", one, e))


def _affine(m: Arithmetic, x: Bounded, alpha: float, beta: float) -> Bounded:
    return m("add", m("mul", m.number(alpha), x), m.number(beta))


def _elu(m: Arithmetic, x: Bounded, alpha: float) -> Bounded:
    below = m("mul", m.number(alpha), m("expm1", m("min", x, m.number(0))))
    return m("select", m("lt", x, m.number(0)), below, x)


def _softplus(m: Arithmetic, x: Bounded) -> Bounded:
    return m("add", m("max", x, m.number(0)), m("log1p", m("exp", m("neg", m("abs", x)))))


def _leaky(m: Arithmetic, x: Bounded, alpha: float) -> Bounded:
    return m("select", m("lt", x, m.number(0)), m("mul", m.number(alpha), x), x)


_ACTIVATIONS: dict[str, Callable[[Arithmetic, Bounded, float, float], Bounded]] = {
    "Relu": lambda m, x, a, b: m("max", x, m.number(0)),
    "Tanh": lambda m, x, a, b: m("tanh", x),
    "Sigmoid": lambda m, x, a, b: _sigmoid(m, x),
    "Affine": _affine,
    "LeakyRelu": lambda m, x, a, b: _leaky(m, x, a),
    "ThresholdedRelu": lambda m, x, a, b: m("select", m("lt", x, m.number(a)), m.number(0), x),
    "ScaledTanh": lambda m, x, a, b: m("mul", m.number(a), m("tanh", m("mul", m.number(b), x))),
    "HardSigmoid": lambda m, x, a, b: m("min", m("max", _affine(m, x, a, b), m.number(0)), m.number(1)),
    "Elu": lambda m, x, a, b: _elu(m, x, a),
    "Softsign": lambda m, x, a, b: m("div", x, m("add", m.number(1), m("abs", x))),
    "Softplus": lambda m, x, a, b: _softplus(m, x),
}


def _activations(m: Arithmetic, node: Node) -> Iterator[Function]:
    clip = float(node.attrs["clip"])

    def bound(name: str, alpha: float, beta: float) -> Function:
        def function(x: Bounded) -> Bounded:
            if clip:
                x = m("min", m("max", x, m.number(-clip)), m.number(clip))
            return _ACTIVATIONS[name](m, x, alpha, beta)

        return function

    for row in zip(node.attrs["activations"], node.attrs["alphas"], node.attrs["betas"], strict=True):
        yield bound(*row)


def _part(x: Bounded, *index: int | slice) -> Bounded:
    return Bounded(x.value[index], x.dtype, None if x.bound is None else x.bound[index])


def _columns(x: Bounded, size: int, gate: int, count: int = 1) -> Bounded:
    return _part(x, slice(None), slice(gate * size, (gate + count) * size))


def _kept(running: Array | bool, after: Bounded, before: Bounded) -> Bounded:
    """Rows that are over keep what they had."""
    value = np.where(running, after.value, before.value)
    return Bounded(value, after.dtype, np.where(running, after.own, before.own))


def _steps(
    step: Step, gates: Bounded, lengths: Bounded, first: Sequence[Bounded], cell: Callable[..., list[Bounded]]
) -> tuple[Bounded, ...]:
    """All steps of a cell, which gets the inputs of a step and the states before it."""
    states, time = list(first), len(gates.value)
    bounds = np.zeros((time, *first[0].value.shape))
    for now, running in steps_of(step.node, time, lengths.value):
        new = cell(_part(gates, now), *states)
        states = [_kept(running, after, before) for after, before in zip(new, states, strict=True)]
        bounds[now] = np.where(running, states[0].own, 0.0)
    return Bounded(np.zeros(0), step.dtype, bounds), *states


def _valued(step: Step, given: Sequence[Bounded], bounded: Sequence[Bounded]) -> tuple[Bounded, ...]:
    """The values of the reference with these bounds."""
    values = step.results(*(x.value for x in given))
    return tuple(step.passed(value, x.own) for value, x in zip(values, bounded, strict=True))


def recurrent_rules(rules: Mapping[str, Rule]) -> dict[str, Callable[..., tuple[Bounded, ...]]]:
    """The rules of core recurrences, from those of maps and products."""

    def rnn(step: Step, *given: Bounded) -> tuple[Bounded, ...]:
        gates, r, h, lengths = given
        m = Arithmetic(rules, step.dtype, step.unit)
        (f,) = _activations(m, step.node)

        def cell(x: Bounded, h: Bounded) -> list[Bounded]:
            return [f(m("add", x, m("matmul", h, r)))]

        return _valued(step, given, _steps(step, gates, lengths, [h], cell))

    def gru(step: Step, *given: Bounded) -> tuple[Bounded, ...]:
        gates, r, bias, h, lengths = given
        m, size = Arithmetic(rules, step.dtype, step.unit), r.value.shape[0]
        f, g = _activations(m, step.node)
        both, own = _columns(r, size, 0, 2), _columns(r, size, 2)

        def cell(x: Bounded, h: Bounded) -> list[Bounded]:
            zr = f(m("add", _columns(x, size, 0, 2), m("matmul", h, both)))
            update, reset = _columns(zr, size, 0), _columns(zr, size, 1)
            if step.node.attrs["linear_before_reset"]:
                hidden = m("mul", reset, m("add", m("matmul", h, own), bias))
            else:
                hidden = m("add", m("matmul", m("mul", reset, h), own), bias)
            new = g(m("add", _columns(x, size, 2), hidden))
            return [m("add", m("mul", m("sub", m.number(1), update), new), m("mul", update, h))]

        return _valued(step, given, _steps(step, gates, lengths, [h], cell))

    def lstm(step: Step, *given: Bounded) -> tuple[Bounded, ...]:
        gates, r, p, h, c, lengths = given
        m, size = Arithmetic(rules, step.dtype, step.unit), r.value.shape[0]
        f, g, out = _activations(m, step.node)

        def peep(gate: Bounded, which: int, state: Bounded) -> Bounded:
            peephole = _part(p, slice(which * size, (which + 1) * size))
            return m("add", gate, m("mul", peephole, state)) if p.value.size else gate

        def cell(x: Bounded, h: Bounded, c: Bounded) -> list[Bounded]:
            gates = m("add", x, m("matmul", h, r))
            entry, exit, forget, new = (_columns(gates, size, gate) for gate in range(4))
            taken = f(peep(entry, 0, c))
            kept = m("sub", m.number(1), taken) if step.node.attrs["input_forget"] else f(peep(forget, 2, c))
            after = m("add", m("mul", kept, c), m("mul", taken, g(new)))
            return [m("mul", f(peep(exit, 1, after)), out(after)), after]

        return _valued(step, given, _steps(step, gates, lengths, [h, c], cell))

    return {"core.rnn": rnn, "core.gru": gru, "core.lstm": lstm}
