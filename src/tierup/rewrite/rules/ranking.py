"""The k best of an axis. Of short axes by counting: an element's rank is how many others come before it.

That is a comparison of every two elements and a sum, without a sort: for short axes less work than a sort's branches.
Of longer ones, some are found one after another.
"""

from __future__ import annotations

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.rules.row import numbers
from tierup.rewrite.walk import Rewriter, Values

_MOST_FOUND = 8192  # one after another, each for about the root of all; a sort takes the time of some thousand
_MOST_ELEMS = 64  # on the axis; beyond that, sorting is less work than comparing every two


def by_ranks(out: Rewriter, node: Node) -> Values | None:
    """The rule: applies where the axis is short."""
    x, k = node.inputs
    shape, axis = out.shape(x), node.attrs["axis"]
    size = None if shape is None else shape[axis]
    if x is None or k is None or shape is None or not isinstance(size, int) or not 0 < size <= _MOST_ELEMS:
        return None
    b, rank = Core(out), len(shape)
    (count,) = b.elems(k, "k")
    if isinstance(count, int) and not 0 < count <= size:
        return None
    order = [*(other for other in range(rank) if other != axis), axis]
    ranks = _ranks(b, b.transpose(x, order), bool(node.attrs["largest"]))
    found = _at_ranks(b, ranks, size, count)
    back = [order.index(other) for other in range(rank)]
    indices = b.transpose(found, back)
    return [b.op("gather_elements", x, indices, axis=axis), indices][: len(node.outputs)]


def one_by_one(out: Rewriter, node: Node) -> Values | None:
    """The rule for longer axes: applies where k is a number, and not large."""
    x, k = node.inputs
    shape, axis = out.shape(x), node.attrs["axis"]
    count = numbers(out, k)
    if x is None or shape is None or count is None or not 0 < count[0] <= _MOST_FOUND:
        return None
    b, rank = Core(out), len(shape)
    order = [*(other for other in range(rank) if other != axis), axis]
    found = b.op("top_places", b.transpose(x, order), k=count[0], largest=node.attrs["largest"])
    indices = b.transpose(found, [order.index(other) for other in range(rank)])
    return [b.op("gather_elements", x, indices, axis=axis), indices][: len(node.outputs)]


def _ranks(b: Core, x: ValueId, largest: bool) -> ValueId:
    """How many elements of the last axis come before each: better ones, and equal ones in front of it. NaN counts as
    the largest there is."""
    last = b.rank(x)
    size = b.shape(x)[-1]
    own, other = b.unsqueeze(x, last), b.unsqueeze(x, last - 1)
    in_front = b.lt(b.iota([1, size], 1), b.iota([size, 1], 0))
    if not b.dtype(x).is_float:
        better = b.lt(own, other) if largest else b.lt(other, own)
        before = b.either(better, b.both(b.eq(own, other), in_front))
    else:
        missing, number = b.inverse(b.eq(own, own)), b.eq(other, other)
        among_missing = b.both(b.inverse(number), in_front)
        if largest:  # not at most as large: larger, or NaN
            better = b.inverse(b.le(other, own))
        else:
            better, among_missing = b.lt(other, own), b.either(number, among_missing)
        before = b.select(missing, among_missing, b.either(better, b.both(b.eq(own, other), in_front)))
    return b.reduce("sum", b.cast(before, DType.I32), (last,), keepdims=False)


def _at_ranks(b: Core, ranks: ValueId, size: int, count: Dim) -> ValueId:
    """Which element has each of the first ranks: exactly one has, and where k is open and more than there are, one
    beyond the axis, which no lookup takes."""
    last = b.rank(ranks) - 1
    wanted, place = b.iota([count, 1], 0, DType.I32), b.iota([1, size], 1)
    nothing, has_it = b.like(0, place), b.eq(b.unsqueeze(ranks, last), wanted)
    if isinstance(count, int):
        # The largest of one place. It lies on the axis whatever the ranks are, so that a kernel that reads them as any
        # numbers can be proved on any.
        return b.reduce("max", b.select(has_it, place, nothing), (last + 1,), keepdims=False)
    beyond = b.like(size, place)
    here = b.select(has_it, b.sub(place, beyond), nothing)
    return b.add(b.reduce("sum", here, (last + 1,), keepdims=False), beyond)
