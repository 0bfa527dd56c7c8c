"""Ops on f16 and bf16 -> the same ops on f32: no machine of ours computes in them, and every kernel would round what it
writes and widen what it reads.

What follows another widened op reads what that computed, not what it rounded: fewer roundings than the model has, as
in other run times. Casts that the model itself has stay. So do results of the model, loops and branches, and what only
moves elements some of which nobody has widened: rows are looked up in a narrow table, and keys put beside narrow ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.infer import Out
from tierup.ir.ops import Kind, lookup
from tierup.ir.types import DType, TensorType, Type
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Rule, Values

_NARROW = frozenset({DType.F16, DType.BF16})
# What only moves elements: narrow ones stay so, for whoever reads them to widen.
_MOVES = frozenset({
    "onnx.Identity", "onnx.Reshape", "onnx.Flatten", "onnx.Squeeze", "onnx.Unsqueeze", "onnx.Transpose", "onnx.Slice",
    "onnx.Split", "onnx.Concat", "onnx.Expand", "onnx.Tile", "onnx.Gather", "onnx.GatherElements", "onnx.GatherND",
    "onnx.DepthToSpace", "onnx.SpaceToDepth", "onnx.Compress", "onnx.ReverseSequence",
})  # fmt: skip
# Whose weights have to be constants. Those of others are cast: products widen them when they are packed, lookups what
# they find, maps what they read; small ones are folded.
_WEIGHTED = frozenset({
    "onnx.Conv", "onnx.ConvTranspose", "onnx.DeformConv", "onnx.LSTM", "onnx.GRU", "onnx.RNN", "ms.FusedConv",
    "ms.NhwcFusedConv",
})  # fmt: skip


def widening(graph: Graph) -> Rule | None:
    """The rule; None where a graph has no such types."""
    types = {type.dtype for values in _values(graph) for type in values if isinstance(type, TensorType)}
    return None if types.isdisjoint(_NARROW) else _Widening().rule


def _values(graph: Graph) -> Sequence[Sequence[Type]]:
    bodies = [body for _, node in graph.walk() for _, body in node.graphs]
    return [[value.type for value in each.values] for each in (graph, *bodies)]


class _Widening:
    """Knows the f32 that a rounded value was made of, in each graph that is being written."""

    def __init__(self) -> None:
        self._wide: WeakKeyDictionary[Rewriter, dict[ValueId, ValueId]] = WeakKeyDictionary()

    def rule(self, out: Rewriter, node: Node) -> Values | None:
        """The node on f32, its results rounded for whoever needs them so; None where it stays."""
        row, known = lookup(node.op), self._wide.setdefault(out, {})
        narrow = [value for value in node.inputs if value is not None and out.dtype(value) in _NARROW]
        if not narrow or node.graphs or row is None or row.kind is Kind.CONTROL or node.op == "onnx.CastLike":
            return None
        moved = [value for value in narrow if out.constant(value) is None]
        if node.op in _MOVES and not (moved and known.keys() >= set(moved)):
            return None
        before = out.types(node)
        folded = node.op in _WEIGHTED
        given = [value if value not in narrow else self._widened(out, value, folded) for value in node.inputs]
        wide = replace(node, inputs=tuple(given))
        after = out.types(wide)
        if before is None or after is None or not all(map(_becomes, before, after)):
            return None
        results = out.add(wide)
        return [
            self._rounded(out, result, old) if result is not None else None
            for result, old in zip(results, before, strict=False)
        ]

    def _widened(self, out: Rewriter, value: ValueId | None, folded: bool) -> ValueId:
        """An input in f32. With `folded`, a constant is one in f32, too."""
        assert value is not None
        known, array = self._wide[out], out.constant(value)
        if folded and array is not None:
            return out.weight(array.astype(DType.F32.numpy))
        return known[value] if value in known else Core(out).cast(value, DType.F32)

    def _rounded(self, out: Rewriter, value: ValueId, before: Out | Type) -> ValueId:
        """A result as the model has it."""
        assert isinstance(before, Out | TensorType)
        if out.dtype(value) is before.dtype:
            return value
        rounded = Core(out).cast(value, before.dtype)
        self._wide[out][rounded] = value
        return rounded


def _becomes(before: Out | Type, after: Out | Type) -> bool:
    """Whether a result is what it was, or f32 instead of something narrow."""
    if not isinstance(before, Out | TensorType) or not isinstance(after, Out | TensorType):
        return False
    return after.dtype is before.dtype or (before.dtype in _NARROW and after.dtype is DType.F32)
