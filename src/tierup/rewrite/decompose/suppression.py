"""NonMaxSuppression: which boxes may stay is counted, then a Loop takes the best of all classes at once, step by step.

Of every class in every image (a *row*), boxes with a score above the threshold are brought together, so that steps look
at as many as the fullest row has. A step keeps the best box of each row, and drops those that overlap it; it is the
last when nothing is left in any row. Scores of -inf and NaN count as the least number that there is.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Attrs, Graph, Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core, Decomposition
from tierup.rewrite.walk import Rewriter

_LOOP_VERSION = 13
_LEAST = float(np.finfo(np.float32).min)


class _Candidates(Struct, frozen=True):
    """What steps look at, each (rows, as many as the fullest has): places among all boxes, scores, of which those that
    are none have -inf, and the low and high corners along both axes."""

    places: ValueId
    scores: ValueId
    corners: tuple[ValueId, ...]
    rows: Dim
    most: Dim


def _corners(b: Core, n: Node, boxes: ValueId) -> tuple[ValueId, ...]:
    """(images, boxes) four times: the low and the high corner along one axis, then along the other."""
    shape = b.shape(boxes)[:2]
    first, second, third, fourth = (b.reshape(b.part(boxes, 2, i, i + 1), shape) for i in range(4))
    if n.attrs.get("center_point_box", 0):
        halves = [b.div(size, b.like(2, size)) for size in (third, fourth)]
        centres = list(zip((first, second), halves, strict=True))
        return tuple(op(centre, half) for centre, half in centres for op in (b.sub, b.add))
    return b.min(first, third), b.max(first, third), b.min(second, fourth), b.max(second, fourth)


def _candidates(b: Core, n: Node) -> _Candidates:
    boxes, scores = b.cast(b.input(n), DType.F32), b.cast(b.input(n, 1), DType.F32)
    images, classes, count = b.shape(scores)
    rows = b.dims.mul(images, classes)
    values = b.reshape(scores, (rows, count))
    numbers = b.select(b.lt(b.like(_LEAST, values), values), values, b.like(_LEAST, values))
    corners = [_for_rows(b, part, (images, classes, count), rows) for part in _corners(b, n, boxes)]
    threshold = b.given(n, 4)
    if threshold is None or b.shape(threshold) == (0,):
        return _Candidates(b.broadcast(b.iota((1, count), 1), (rows, count)), numbers, tuple(corners), rows, count)
    above = b.lt(b.cast(b.reshape(threshold, ()), DType.F32), values)
    places, most = _together(b, above, rows, count)
    inside = b.lt(places, b.scalar(count, DType.I64))
    safe = b.min(places, b.max(b.sub(b.scalar(count, DType.I64), b.number(1, DType.I64)), b.number(0, DType.I64)))
    picked = [b.op("gather_elements", part, safe, axis=1) for part in (numbers, *corners)]
    alive = b.select(inside, picked[0], b.like(-np.inf, numbers))
    return _Candidates(safe, alive, tuple(picked[1:]), rows, most)


def _for_rows(b: Core, part: ValueId, shape: tuple[Dim, Dim, Dim], rows: Dim) -> ValueId:
    """(images, boxes) as (rows, boxes): every class has the boxes of its image."""
    return b.reshape(b.broadcast(b.unsqueeze(part, 1), shape), (rows, shape[2]))


def _together(b: Core, flags: ValueId, rows: Dim, count: Dim) -> tuple[ValueId, Dim]:
    """The places of flags in each row, in order, with `count` behind the last of them; and how many the fullest has."""
    ones = b.cast(flags, DType.I64)
    totals = b.reduce("sum", ones, (1,), keepdims=False)
    largest = b.max(b.reduce("max", totals, (0,), keepdims=False), b.number(0, DType.I64))
    (most,) = b.elems(largest, "how many boxes are above the threshold")
    before = b.sub(b.op("cumsum", ones, axis=1, exclusive=0, reverse=0), b.number(1, DType.I64))
    targets = b.select(flags, before, largest)
    room = b.broadcast(b.scalar(count, DType.I64), (rows, b.dims.add(most, 1)))
    all_places = b.broadcast(b.iota((1, count), 1), (rows, count))
    written = b.op("scatter_elements", room, targets, all_places, axis=1, reduction="none")
    return b.part(written, 1, 0, most), most


def _body(b: Core, found: _Candidates) -> Graph:
    """One step: its number, whether to go on, scores that are left, corners and the most overlap in; whether anything
    is left, the scores and the place of the best in each row, or -1, out."""
    out = Rewriter(b.out.weights, b.out.source)
    c, shape = Core(out), (found.rows, found.most)  # of the graph around; in here they are those of the inputs
    out.open_input(DType.I64, ())
    out.open_input(DType.BOOL, ())
    scores = out.open_input(DType.F32, shape)
    sides = [out.open_input(DType.F32, shape) for _ in range(4)]
    limit = out.open_input(DType.F32, ())
    best = c.op("argmax", scores, axis=1, keepdims=1, last=0)
    dead = c.like(-np.inf, scores)
    there = c.lt(dead, c.reduce("max", scores, (1,)))
    low_a, high_a, low_b, high_b = sides
    own = [c.op("gather_elements", side, best, axis=1) for side in sides]
    first = c.sub(c.min(own[1], high_a), c.max(own[0], low_a))
    second = c.sub(c.min(own[3], high_b), c.max(own[2], low_b))
    zero = c.like(0, first)
    shared = c.select(c.both(c.lt(zero, first), c.lt(zero, second)), c.mul(first, second), zero)
    areas = c.mul(c.sub(high_a, low_a), c.sub(high_b, low_b))
    area = c.mul(c.sub(own[1], own[0]), c.sub(own[3], own[2]))
    ratio = c.select(c.lt(zero, shared), c.div(shared, c.sub(c.add(area, areas), shared)), zero)
    rows, most = c.shape(scores)
    chosen = c.eq(c.iota((1, most), 1), best)
    left = c.select(c.either(chosen, c.lt(limit, ratio)), dead, scores)
    more = c.lt(c.reshape(dead, ()), c.reduce("max", left, (0, 1), keepdims=False))
    picked = c.select(there, best, c.number(-1, DType.I64))
    return out.finish([more, left, c.reshape(picked, (rows,))])


def _non_max_suppression(b: Core, n: Node) -> ValueId:
    most = b.given(n, 2)
    if most is None or b.shape(most) == (0,):
        return b.weight(np.zeros((0, 3), np.int64))
    found, zero = _candidates(b, n), b.number(0, DType.F32)
    overlap = b.given(n, 3)
    given = overlap is not None and b.shape(overlap) != (0,)
    limit = b.cast(b.reshape(overlap, ()), DType.F32) if given and overlap is not None else zero
    trips = b.min(b.reshape(most, ()), b.scalar(found.most, DType.I64))
    some = b.lt(b.number(0, DType.I64), b.scalar(b.dims.mul(found.rows, found.most), DType.I64))
    results = b.out.node(
        "onnx.Loop", (trips, some, found.scores, *found.corners, limit), Attrs({"captures": 5}),
        version=_LOOP_VERSION, outputs=(False, True), graphs=(("body", _body(b, found)),),
    )  # fmt: skip
    picked = results[1]
    assert picked is not None
    steps = b.shape(picked)[0]
    by_row = b.transpose(b.reshape(picked, (steps, found.rows)), (1, 0))
    return _written(b, n, found, by_row)


def _written(b: Core, n: Node, found: _Candidates, picked: ValueId) -> ValueId:
    """Image, class and box of everything that was picked, row by row, best first."""
    classes = b.scalar(b.shape(b.input(n, 1))[1], DType.I64)
    where = b.op("nonzero", b.le(b.number(0, DType.I64), picked))
    count = b.shape(where)[1]
    row = b.reshape(b.part(where, 0, 0, 1), (count,))
    at = b.op("gather_nd", picked, b.transpose(where, (1, 0)), batch_dims=0)
    pairs = b.concat([b.unsqueeze(row, 1), b.unsqueeze(at, 1)], 1)
    box = b.op("gather_nd", found.places, pairs, batch_dims=0)
    columns = (b.div(row, classes), b.op("mod", row, classes), box)
    return b.concat([b.unsqueeze(column, 1) for column in columns], 1)


SUPPRESSION: dict[str, Decomposition] = {"onnx.NonMaxSuppression": _non_max_suppression}
