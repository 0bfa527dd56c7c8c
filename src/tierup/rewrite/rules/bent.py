"""Pads that repeat what they surround: a long last axis is copied as it is, between the ends that a mode repeats.

As one piece, every element is looked up, which takes nine times as long.
"""

from __future__ import annotations

from tierup.ir.graph import Graph, Node, ValueId
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.rules.row import numbers
from tierup.rewrite.walk import Rewriter, Rule, Values

_LONG_ROW = 128  # elements; of fewer, three copies cost as much as they save


def bent_pads(graph: Graph) -> Rule | None:
    """The rule, if the graph has such pads: pad(x) = concat(an end, x, an end) on the last axis, where all widths are
    numbers."""
    return _pieces if any(_is_bent(node) for _, node in graph.walk()) else None


def _is_bent(node: Node) -> bool:
    return node.op == "core.pad" and node.attrs["mode"] != "constant"


def _pieces(out: Rewriter, node: Node) -> Values | None:
    if not _is_bent(node):
        return None
    x, pads, fill = node.inputs
    shape, widths = out.shape(x), numbers(out, pads)
    if x is None or fill is None or not shape or widths is None:
        return None
    size, before, after = shape[-1], widths[len(shape) - 1], widths[-1]
    if (
        not isinstance(size, int)
        or size < _LONG_ROW
        or min(before, after) < 0
        or not 0 < max(before, after) <= size - 2
    ):
        return None
    b, mode = Core(out), str(node.attrs["mode"])
    others = [0 if place % len(shape) == len(shape) - 1 else width for place, width in enumerate(widths)]
    inside = b.op("pad", x, b.integers(others), fill, mode=mode) if any(others) else x
    ends = _ends(b, inside, (before, size, after), mode)
    return [b.concat([end for end, width in zip(ends, (before, size, after), strict=True) if width], len(shape) - 1)]


def _ends(b: Core, x: ValueId, widths: tuple[int, int, int], mode: str) -> tuple[ValueId, ValueId, ValueId]:
    """What a mode has before x, x, and what it has behind."""
    (before, size, after), last = widths, b.rank(x) - 1
    if mode == "reflect":
        return b.slice(x, {last: (before, 0, -1)}), x, b.slice(x, {last: (size - 2, size - 2 - after, -1)})
    if mode == "wrap":
        return b.part(x, last, size - before, size), x, b.part(x, last, 0, after)
    around = b.shape(x)[:-1]
    first, behind = (b.part(x, last, place, place + 1) for place in (0, size - 1))
    return b.broadcast(first, (*around, before)), x, b.broadcast(behind, (*around, after))
