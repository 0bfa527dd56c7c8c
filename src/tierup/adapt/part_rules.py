"""One rule for each op: a box of its result -> the boxes of its inputs that it is made of.

A rule may also replace inputs by constants (sizes, pads) and change attributes, so that the op on these boxes gives
just that box. It gives None where no such boxes exist: then the op is computed whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct, field

from tierup.ir.graph import Attr, Node, ValueId
from tierup.ir.types import Array
from tierup.lower.tile import MAPS

Range = tuple[int, int]
Box = tuple[Range, ...]


class Shapes(Struct, frozen=True):
    """What is known of values: their shapes, and what the small integer ones hold, where that is known."""

    shape: Callable[[ValueId], tuple[int, ...]]
    content: Callable[[ValueId], tuple[int, ...] | None]


class Restricted(Struct, frozen=True):
    """Boxes of the inputs, and what else is different. `constants` replace inputs, by position."""

    boxes: Sequence[Box]
    constants: dict[int, Array] = field(default_factory=dict)
    attrs: dict[str, Attr] = field(default_factory=dict)


def restrict(node: Node, box: Box, shapes: Shapes) -> Restricted | None:
    """What a node with one result needs for a box of it."""
    rule = _RULES.get(node.op)
    if rule is None or any(value is None for value in node.inputs):
        return None
    return rule(node, box, [shapes.shape(value) for value in node.inputs if value is not None], shapes)


def _full(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def _lengths(box: Box) -> Array:
    return np.array([end - begin for begin, end in box], np.int64)


def _met(shape: Sequence[int], box: Box) -> Box:
    """The box of what is repeated to a result."""
    behind = box[len(box) - len(shape) :]
    return tuple((0, min(e - b, 1)) if size == 1 else (b, e) for size, (b, e) in zip(shape, behind, strict=True))


def _map(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    return Restricted([_met(shape, box) for shape in given])


def _broadcast(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    return Restricted([_met(given[0], box), _full(given[1])], {1: _lengths(box)})


def _transpose(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    found = dict(zip(node.attrs["perm"], box, strict=True))
    return Restricted([tuple(found[axis] for axis in range(len(box)))])


def _reduce(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    """Whole along what is reduced."""
    axes = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
    left = iter(box)
    found = []
    for axis, size in enumerate(given[0]):
        if axis not in axes:
            found.append(next(left))
        else:
            found.append((0, size))
            if node.attrs["keepdims"] and next(left) != (0, 1):
                return None
    return Restricted([tuple(found)])


def _matmul(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    a, b = given
    if min(len(a), len(b)) < 2:
        return None
    *batch, rows, columns = box
    left = (*_met(a[:-2], tuple(batch)), rows, (0, a[-1]))
    right = (*_met(b[:-2], tuple(batch)), (0, b[-2]), columns)
    return Restricted([left, right])


def _matmul_scaled(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    *sides, factors = given
    found = _matmul(node, box, sides, shapes)
    return None if found is None else Restricted([*found.boxes, ((0, factors[0]),)])


def _windows(
    node: Node, ranges: Sequence[Range], sizes: Sequence[int], pads: tuple[int, ...] | None
) -> tuple[list[Range], Array] | None:
    """The places that windows meet, and how far they reach over the ends of those."""
    if pads is None or any(begin == end for begin, end in ranges):
        return None
    rank = len(sizes)
    found, before, behind = [], [], []
    rows = zip(ranges, sizes, node.attrs["kernel_shape"], node.attrs["strides"], node.attrs["dilations"], strict=True)
    for axis, ((begin, end), size, kernel, stride, dilation) in enumerate(rows):
        first = begin * stride - pads[axis]
        last = (end - 1) * stride - pads[axis] + (kernel - 1) * dilation + 1
        if last <= 0 or first >= size:  # nothing but padding
            return None
        found.append((max(first, 0), min(last, size)))
        before.append(max(-first, 0))
        behind.append(max(last - size, 0))
    return found, np.array([*before, *behind][: 2 * rank], np.int64)


def _conv_last(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    images, *places, columns = box
    pads = shapes.content(node.inputs[2] or 0)
    found = _windows(node, places, given[0][1:-1], pads)
    if found is None or (node.attrs["group"] > 1 and columns != (0, given[1][1])):
        return None
    met, reach = found
    data = (images, *met, (0, given[0][-1]))
    return Restricted([data, ((0, given[1][0]), columns), _full(given[2])], {2: reach})


def _pool(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    images, channels, *places = box
    found = _windows(node, places, given[0][2:], shapes.content(node.inputs[1] or 0))
    if found is None:
        return None
    return Restricted([(images, channels, *found[0]), _full(given[1])], {1: found[1]})


def _slice(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    starts = shapes.content(node.inputs[1] or 0)
    if starts is None or any(step != 1 for step in node.attrs["steps"]):
        return None
    moved = dict(zip(node.attrs["axes"], starts, strict=True))
    found = tuple((begin + moved.get(axis, 0), end + moved.get(axis, 0)) for axis, (begin, end) in enumerate(box))
    lengths = np.array([box[axis][1] - box[axis][0] for axis in node.attrs["axes"]], np.int64)
    return Restricted([found, _full(given[1]), _full(given[2])], {1: np.zeros_like(lengths), 2: lengths})


def _concat(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    """Of each piece what lies in the box; of some nothing."""
    axis, first = node.attrs["axis"], 0
    begin, end = box[axis]
    found = []
    for shape in given:
        inside = max(begin - first, 0), min(end - first, shape[axis])
        inside = inside if inside[0] < inside[1] else (0, 0)
        found.append((*box[:axis], inside, *box[axis + 1 :]))
        first += shape[axis]
    return Restricted(found)


def _gather(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    axis, depth = node.attrs["axis"], len(given[1])
    data = (*box[:axis], (0, given[0][axis]), *box[axis + depth :])
    return Restricted([data, box[axis : axis + depth]])


def _reshape(node: Node, box: Box, given: list[tuple[int, ...]], shapes: Shapes) -> Restricted | None:
    """Groups of axes that hold the same elements on both sides: in each, elements that lie one after another."""
    whole = shapes.shape(node.outputs[0] or 0)
    if 0 in whole:
        return None
    found: list[Range] = []
    for before, after in _groups(given[0], whole):
        part = _same(given[0][before], whole[after], box[after])
        if part is None:
            return None
        found.extend(part)
    return Restricted([tuple(found), _full(given[1])], {1: _lengths(box)})


def _groups(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Slices of both shapes with as many elements, as short as possible."""
    i = j = 0
    while i < len(a) or j < len(b):
        first, counts = (i, j), [1, 1]
        while counts[0] != counts[1] or (i, j) == first:
            if j == len(b) or (i < len(a) and counts[0] <= counts[1]):
                counts[0], i = counts[0] * a[i], i + 1
            else:
                counts[1], j = counts[1] * b[j], j + 1
        yield slice(first[0], i), slice(first[1], j)


def _same(before: Sequence[int], after: Sequence[int], box: Box) -> Box | None:
    """The box of a group of axes that holds the elements of a box of the same elements."""
    if box == _full(after):
        return _full(before)
    begin = end = 0
    inner = math.prod(after)
    for axis, (size, (low, high)) in enumerate(zip(after, box, strict=True)):
        inner //= size
        begin, end = begin + low * inner, begin + high * inner
        if high - low > 1:  # all axes behind it are whole, or its elements do not lie one after another
            if box[axis + 1 :] != _full(after[axis + 1 :]):
                return None
            break
    return _stretch(before, begin, end)


def _stretch(shape: Sequence[int], begin: int, end: int) -> Box | None:
    """The box of elements that lie one after another, if there is one."""
    found: list[Range] = []
    inner = math.prod(shape)
    for axis, size in enumerate(shape):
        inner //= size
        first, last = begin // inner, -(-end // inner)
        if last - first > 1 or (begin % inner == 0 and end % inner == 0):
            if begin % inner or end % inner:
                return None
            return (*found, (first, last), *_full(shape[axis + 1 :]))
        found.append((first, first + 1))
        begin, end = begin - first * inner, end - first * inner
    return tuple(found) if end - begin == 1 else None


_Rule = Callable[[Node, Box, list[tuple[int, ...]], Shapes], Restricted | None]
_RULES: dict[str, _Rule] = {
    **{f"core.{name}": _map for name in (*MAPS, "cast", "bitcast")},
    **{
        f"core.{name}": _reduce
        for name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "argmax", "argmin")
    },
    "core.broadcast": _broadcast,
    "core.transpose": _transpose,
    "core.reshape": _reshape,
    "core.slice": _slice,
    "core.concat": _concat,
    "core.gather": _gather,
    "core.matmul": _matmul,
    "core.matmul_scaled": _matmul_scaled,
    "core.conv_last": _conv_last,
    "core.pool_sum": _pool,
    "core.pool_max": _pool,
}
