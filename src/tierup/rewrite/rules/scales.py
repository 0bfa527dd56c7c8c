"""Maps between sums of bytes and the bytes that they become, with fewer steps.

    clip(c · s + b, l, h) · f = clip(c · (s · f) + b · f, l · f, h · f), where f is above 0
    clip(round(clip(x, l, h)) + z, 0, 255) = clip(round(x) + z, 0, 255), where l and h leave room for all bytes

The first is rounded fewer times than what it replaces, and only where sums were scaled anyway; the second is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Attrs, Graph, Node, ValueId, Weights
from tierup.ir.types import Array, DType, TensorType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Rule, Values

_STEPS = ("core.add", "core.max", "core.min")
_LENGTH = 8  # steps that are looked at


class _Readers(Struct, frozen=True):
    """Who makes and who reads the values of a graph, and its constants."""

    graph: Graph
    weights: Weights
    producers: Mapping[ValueId | None, Node]
    readers: Mapping[ValueId | None, list[Node]]

    def constant(self, value: ValueId | None) -> Array | None:
        digest = self.graph.digests.get(value) if value is not None else None
        return None if digest is None else np.asarray(self.weights[digest])

    def number(self, value: ValueId | None) -> float | None:
        """The one finite number that a constant of f32 holds."""
        array = self.constant(value)
        if array is None or array.size != 1 or array.dtype != np.float32 or not np.isfinite(array).all():
            return None
        return float(array.reshape(()))

    def is_inner(self, value: ValueId | None) -> bool:
        """Whether one node alone needs a value."""
        return value not in self.graph.outputs and len(self.readers.get(value, ())) == 1

    def beside(self, node: Node) -> tuple[ValueId | None, ValueId | None]:
        """The computed and the constant argument of a map of two."""
        first, second = node.inputs
        return (second, first) if self.constant(first) is not None else (first, second)


def _read(graph: Graph, weights: Weights) -> _Readers:
    readers: dict[ValueId | None, list[Node]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            readers.setdefault(value, []).append(node)
    producers: dict[ValueId | None, Node] = {
        value: node for node in graph.nodes for value in node.outputs if value is not None
    }
    return _Readers(graph, weights, producers, readers)


def joined_scales(graph: Graph, weights: Weights) -> Rule | None:
    """The rule for one graph that multiplies once; bodies of control nodes stay as they are. None where it would find
    nothing."""
    read = _read(graph, weights)
    lengths = {node.outputs[0]: _scaled_steps(read, node) for node in graph.nodes if node.op == "core.mul"}
    if all(steps is None for steps in lengths.values()):
        return None

    def rule(out: Rewriter, node: Node) -> Values | None:
        steps = lengths.get(node.outputs[0]) if out.source is graph else None
        return None if steps is None else _joined(out, node, steps)

    return rule


def _scaled_steps(read: _Readers, node: Node) -> int | None:
    """How many steps lie between a factor and the scales of sums in front of it; None where none lie there."""
    value, factor = read.beside(node)
    number = read.number(factor)
    if number is None or number <= 0:
        return None
    for steps in range(_LENGTH):
        before = read.producers.get(value)
        if before is None or not read.is_inner(value) or len(before.inputs) != 2:
            return None
        inner, constant = read.beside(before)
        if read.constant(constant) is None:
            return None
        if before.op == "core.mul":
            return steps if _is_sum(read, inner) else None
        if before.op not in _STEPS:
            return None
        value = inner
    return None


def _is_sum(read: _Readers, value: ValueId | None) -> bool:
    """Whether a value is f32 that was cast from i32, the sum of a product."""
    node = read.producers.get(value)
    types = [None if v is None else read.graph.type(v) for v in (value, node.inputs[0] if node else None)]
    kinds = [type.dtype for type in types if isinstance(type, TensorType)]
    return node is not None and node.op == "core.cast" and kinds == [DType.F32, DType.I32]


def _joined(out: Rewriter, node: Node, steps: int) -> Values | None:
    value, factor = _beside(out, node)
    chain: list[tuple[Node, Array]] = []
    for _ in range(steps + 1):
        step = out.producer(value)
        if step is None or factor is None or len(step.inputs) != 2:
            return None
        value, constant = _beside(out, step)
        if constant is None:
            return None
        with np.errstate(all="ignore"):
            chain.append((step, (constant.astype(np.float64) * float(factor.reshape(()))).astype(np.float32)))
    if value is None or not all(np.isfinite(scaled).all() for _, scaled in chain):
        return None
    if (np.abs(chain[-1][1][chain[-1][1] != 0]) < np.finfo(np.float32).tiny).any():
        return None
    b = Core(out)
    for step, scaled in reversed(chain):
        (value,) = out.node(step.op, (value, b.weight(scaled)), Attrs())
    return [value]


def _beside(out: Rewriter, node: Node) -> tuple[ValueId | None, Array | None]:
    first, second = node.inputs
    constants = [None if value is None else out.constant(value) for value in (first, second)]
    return (second, constants[0]) if constants[0] is not None else (first, constants[1])


def clipped_once(graph: Graph, weights: Weights) -> Rule | None:
    """The rule for one graph that leaves out limits in front of tighter ones. None where it would find nothing."""
    read = _read(graph, weights)
    found: dict[ValueId | None, int] = {}
    for node in graph.nodes:
        limits = _limits(read, node)
        if limits is not None:
            rounded, low, high = limits
            found[rounded.outputs[0]] = _looser(read, rounded.inputs[0], low, high)
    if not any(found.values()):
        return None

    def rule(out: Rewriter, node: Node) -> Values | None:
        steps = found.get(node.outputs[0], 0) if out.source is graph else 0
        if not steps:
            return None
        value = node.inputs[0]
        for _ in range(steps):
            limit = out.producer(value)
            if limit is None or limit.op not in ("core.max", "core.min"):
                return None
            value, _constant = _beside(out, limit)
        return out.node(node.op, (value,), node.attrs)

    return rule


def _limits(read: _Readers, node: Node) -> tuple[Node, float, float] | None:
    """Of min(select(low < w, w, low), high), where w is a rounded number and perhaps a constant more: the rounding, and
    the limits less that constant."""
    if node.op != "core.min":
        return None
    kept, high = read.beside(node)
    chosen = read.producers.get(kept)
    if chosen is None or chosen.op != "core.select" or not read.is_inner(kept):
        return None
    condition, value, other = chosen.inputs
    less = read.producers.get(condition)
    if less is None or less.op != "core.lt" or tuple(less.inputs) != (other, value) or not read.is_inner(condition):
        return None
    if value in read.graph.outputs or len(read.readers.get(value, ())) != 2:
        return None
    low, top, moved = read.number(other), read.number(high), 0.0
    before = read.producers.get(value)
    if before is not None and before.op == "core.add":
        inner, constant = read.beside(before)
        number = read.number(constant)
        if number is None or not read.is_inner(inner):
            return None
        before, moved = read.producers.get(inner), number
    if before is None or before.op != "core.round" or low is None or top is None:
        return None
    return before, low - moved, top - moved


def _looser(read: _Readers, value: ValueId | None, low: float, high: float) -> int:
    """How many limits in front of a rounding leave room for all that lies within these."""
    for steps in range(_LENGTH):
        node = read.producers.get(value)
        if node is None or node.op not in ("core.max", "core.min") or not read.is_inner(value):
            return steps
        inner, constant = read.beside(node)
        limit = read.number(constant)
        if limit is None or (np.round(limit) < high if node.op == "core.min" else np.round(limit) > low):
            return steps
        value = inner
    return _LENGTH
