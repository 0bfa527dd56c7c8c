"""How convolutions reach over their data.

Which kernels Winograd's scheme is for, and dilated ones that are taken apart so that it is; ends of kernels that lie
beyond the data, which are left out; and zeros that are written around data where windows reach far.
"""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import DType, Shape
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.fold import computed_constant
from tierup.rewrite.rules.row import numbers

Ints = tuple[int, ...]

FAR = 8  # places between the ends of a window that are worth writing zeros out, of at least so many channels, places
_WINOGRAD_CHANNELS = 16  # on both sides
_MOST_PLANES = 7  # that a kernel meets along an axis before the two; `plan/packing.py` has names for more
_MOST_RESULTS = 1.5  # times those that are wanted: Winograd's scheme has 16 products for 36, and transforms
_PADDED_CHANNELS, MANY_PLACES = 16, 512


def without_ends(b: Core, x: ValueId, w: ValueId, pads: ValueId, node: Node) -> tuple[ValueId, ValueId]:
    """Constant weights and pads without the ends of kernels that lie beyond the data wherever the kernel stands, and
    only add zeros: far dilated kernels on small pictures, kernels of three places over one."""
    widths, weights, attrs = numbers(b.out, pads), computed_constant(b.out, w), node.attrs
    if widths is None or weights is None or attrs.get("fill", 0):
        return w, pads
    before, after = (list(half) for half in np.reshape(widths, (2, -1)).tolist())
    kept = [slice(None)] * 2
    for axis, size in enumerate(b.shape(x)[2:]):
        kernel, step, dilation = weights.shape[2 + axis], attrs["strides"][axis], attrs["dilations"][axis]
        kept.append(slice(0, kernel))
        if not isinstance(size, int) or size < 1 or min(before[axis], after[axis]) < 0:
            continue
        count = (size + before[axis] + after[axis] - (kernel - 1) * dilation - 1) // step + 1
        met = [t for t in range(kernel) if _meets(t * dilation - before[axis], count, step, size)]
        first, last = (met[0], met[-1]) if met else (0, kernel - 1)
        fewer = before[axis] - first * dilation, after[axis] - (kernel - 1 - last) * dilation
        if min(fewer) >= 0:
            (before[axis], after[axis]), kept[-1] = fewer, slice(first, last + 1)
    found = weights[tuple(kept)]
    if found.shape == weights.shape or not np.isfinite(weights).all():  # 0 · ∞ is no zero
        return w, pads
    return b.weight(np.ascontiguousarray(found)), b.integers([*before, *after])


def _meets(start: int, count: int, step: int, size: int) -> bool:
    """Whether one of so many places from `start` on lies on the data."""
    skipped = max(0, -(start // step))  # places before the data
    return skipped < count and start + skipped * step < size


def with_zeros(b: Core, data: ValueId, pads: ValueId, least: int) -> tuple[ValueId, ValueId]:
    """Data of at least so many places with zeros around the last of its spatial axes, and what is left to pad. The
    kernel of a convolution copies what is padded for every tile of places, with all that its windows reach: a third of
    the time where that is far. That of every channel by itself has windows at the edges apart, one by one."""
    (*around, places, channels), widths = b.shape(data), numbers(b.out, pads)
    if widths is None or not any(widths) or not isinstance(channels, int) or channels < _PADDED_CHANNELS:
        return data, pads
    last = len(widths) // 2 - 1
    ends = widths[last], widths[-1]
    known = places if isinstance(places, int) else MANY_PLACES
    if known < least or min(ends) < 0 or sum(ends) > known:  # zeros take memory, and may be most of it
        return data, pads
    before, after = (b.broadcast(b.like(0, data), (*around, width, channels)) for width in ends)
    left = [0 if place % (last + 1) == last else width for place, width in enumerate(widths)]
    return b.concat([before, data, after], last + 1), b.integers(left)  # a pad would be filled before it is written


def is_for_winograd(b: Core, w: ValueId, kernel: Ints, strides: Ints, dilations: Ints, group: int) -> bool:
    """3×3 by single steps, with channels enough to pay for the transforms, and weights that are transformed once; there
    may be one axis before."""
    steps = (*strides[-2:], *dilations[-2:])
    if kernel[-2:] != (3, 3) or steps != (1, 1, 1, 1) or group > 1 or len(kernel) > 3 or kernel[0] > _MOST_PLANES:
        return False
    fits = computed_constant(b.out, w) is not None and b.dtype(w) is DType.F32
    return fits and all(isinstance(size, int) and size >= _WINOGRAD_CHANNELS for size in b.shape(w)[:2])


def is_for_residues(b: Core, w: ValueId, geometry: tuple[Ints, Ints, Ints, int], shape: Shape, pads: object) -> bool:
    """Whether a dilated 3×3 kernel over all of a plane is best taken apart: `by_residues`."""
    kernel, strides, dilations, group = geometry
    if len(dilations) != 2 or max(dilations) == 1 or pads != (*dilations, *dilations):
        return False
    if not is_for_winograd(b, w, kernel, strides, (1, 1), group):
        return False
    computed, wanted = 1, 1
    for size, dilation in zip(shape[1:3], dilations, strict=True):
        if not isinstance(size, int):
            return False
        computed, wanted = computed * 2 * dilation * -(-size // (2 * dilation)), wanted * size
    return computed <= _MOST_RESULTS * wanted


def by_residues(b: Core, data: ValueId, matrix: ValueId, dilations: Ints) -> ValueId:
    """Every d-th row and column is a picture of its own, that kernels without gaps go over: with them, Winograd's
    scheme saves more than putting the pictures together takes. x[N, H, W, C] becomes x[N · d², H / d, W / d, C]."""
    images, rows, columns, channels = b.shape(data)
    (down, along), dims = dilations, b.dims
    places = [-(-size // step) for size, step in ((rows, down), (columns, along)) if isinstance(size, int)]
    full = (images, places[0] * down, places[1] * along, channels)
    for axis in (1, 2):
        missing = dims.sub(full[axis], b.shape(data)[axis])
        if missing != 0:
            more = tuple(missing if a == axis else size for a, size in enumerate(b.shape(data)))
            data = b.concat([data, b.broadcast(b.like(0, data), more)], axis)
    apart = b.transpose(b.reshape(data, (images, places[0], down, places[1], along, channels)), (0, 2, 4, 1, 3, 5))
    pictures = b.reshape(apart, (dims.mul(images, down * along), *places, channels))
    attrs = {"group": 1, "strides": (1, 1), "dilations": (1, 1), "algorithm": "winograd", "kernel_shape": (3, 3)}
    results = b.op("conv_last", pictures, matrix, b.integers([1] * 4), **attrs)
    columned = b.shape(results)[-1]
    apart = b.reshape(results, (images, down, along, *places, columned))
    together = b.reshape(b.transpose(apart, (0, 3, 1, 4, 2, 5)), (*full[:3], columned))
    return b.part(b.part(together, 1, 0, rows), 2, 0, columns)
