"""The largest of each window and where it stands: place by place of the window, the better of two at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.rules.layout import window
from tierup.rewrite.walk import Rewriter, Values

_MOST_PLACES = 32  # in a window: each is a handful of maps


def with_places(out: Rewriter, node: Node) -> Values | None:
    """The rule: applies to maxima whose places are needed, of windows that are not large."""
    x, pads = node.inputs
    kernel = tuple(node.attrs["kernel_shape"])
    widths = None if pads is None else out.content(pads)
    if x is None or widths is None or len(node.outputs) < 2 or node.outputs[1] is None or prod(kernel) > _MOST_PLACES:
        return None
    b, rank = Core(out), len(kernel)
    counts = b.result_shape(node)[2:]
    if any(isinstance(count, int) and count < 1 for count in counts):
        return None
    best, index = _least(b, x), b.number(-1, DType.I64)
    wide, first = _surrounded(b, x, widths), _before(b, x)
    for place in product(*map(range, kernel)):
        met = b.slice(wide, {2 + a: window(b, node, a, place[a], counts[a]) for a in range(rank)})
        inside, at = _at(b, node, x, place, counts, widths)
        better = b.lt(best, met)
        if b.dtype(x).is_float:  # the first NaN wins over all
            better = b.both(b.eq(best, best), b.inverse(b.le(met, best)))
        better = b.both(b.either(better, b.lt(index, b.like(0, index))), inside)
        best, index = b.select(better, met, best), b.select(better, b.add(first, at), index)
    return [best, index]


def _least(b: Core, x: ValueId) -> ValueId:
    dtype = b.dtype(x)
    return b.number(-np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min), dtype)


def _surrounded(b: Core, x: ValueId, widths: Sequence[Dim]) -> ValueId:
    if not any(widths):
        return x
    spatial = len(widths) // 2
    around = [0, 0, *widths[:spatial], 0, 0, *widths[spatial:]]
    return b.op("pad", x, b.sizes(around), _least(b, x), mode="constant")


def _before(b: Core, x: ValueId) -> ValueId:
    """How many elements lie before each plane, [N, C, 1, …]."""
    images, channels, *sizes = b.shape(x)
    ones = [1] * len(sizes)
    plane = b.dims.product(sizes)
    image = b.mul(b.iota([images, 1, *ones], 0), b.scalar(b.dims.mul(channels, plane), DType.I64))
    return b.add(image, b.mul(b.iota([1, channels, *ones], 1), b.scalar(plane, DType.I64)))


def _at(
    b: Core, node: Node, x: ValueId, place: Sequence[int], counts: Sequence[Dim], widths: Sequence[Dim]
) -> tuple[ValueId, ValueId]:
    """Whether windows have this place inside x, and where it lies in its plane."""
    sizes = b.shape(x)[2:]
    inside: ValueId | None = None
    total: ValueId | None = None
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        behind = len(sizes) - 1 - axis
        step, offset = node.attrs["strides"][axis], place[axis] * node.attrs["dilations"][axis]
        along = b.iota([count, *(1,) * behind], 0)
        start = b.scalar(b.dims.sub(offset, widths[axis]), DType.I64)
        at = b.add(b.mul(along, b.like(step, along)), start)
        there = b.both(b.le(b.like(0, at), at), b.lt(at, b.scalar(size, DType.I64)))
        scaled = b.mul(at, b.scalar(b.dims.product(sizes[axis + 1 :]), DType.I64))
        inside = there if inside is None else b.both(inside, there)
        total = scaled if total is None else b.add(total, scaled)
    assert inside is not None
    assert total is not None
    return inside, total
