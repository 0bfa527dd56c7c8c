"""Resize as lookups: axis by axis, where each element comes from and with which weight.

Both depend on sizes alone. Where the sizes are numbers they are tables, made now as the reference makes them. Where a
size is known only in the call they are computed in the call from positions, by the same steps in the same precision:
f32 for nearest neighbours, f64 for filters.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Attrs, Node, ValueId
from tierup.ir.types import Array, Dim, DType
from tierup.reference.resize import Axis, coordinates, nearest_index, outside, taps
from tierup.rewrite.decompose.core import Core, Declined
from tierup.rewrite.walk import Rewriter, Values

_MOST_TAPS = 8  # of a filter on one axis, each a lookup and a product for every element; more are a sum along an axis
_FILTERED = frozenset({
    DType.F32, DType.F64, DType.F16, DType.BF16, DType.I8, DType.I16, DType.I32, DType.U8, DType.U16, DType.U32,
})  # fmt: skip  # f64 holds all their integers


class _Open(Struct, frozen=True):
    """One axis of which something is known only in the call; `scale`, `start` and `end` are f64 without axes.

    `factor` is the scale where it is known now.
    """

    index: int
    before: Dim
    after: Dim
    scale: ValueId
    start: ValueId
    end: ValueId
    factor: float | None


def by_lookups(out: Rewriter, node: Node) -> Values | None:
    """The rule."""
    x, nearest = node.inputs[0], node.attrs["mode"] == "nearest"
    if x is None or out.shape(x) is None or (not nearest and out.dtype(x) not in _FILTERED):
        return None
    b = Core(out)
    try:
        axes = _axes(b, node)
        y = x if nearest else _wide(b, x)
        for axis in axes:
            if isinstance(axis, Axis):
                y = _by_table(b, node.attrs, y, axis)
            else:
                y = _OpenLookup(b, node.attrs, axis).of(y)
    except Declined:
        return None
    return [y if nearest else _narrow(b, y, b.dtype(x))]


def _wide(b: Core, x: ValueId) -> ValueId:
    return b.wide(x) if b.dtype(x).is_float else b.cast(x, DType.F64)


def _narrow(b: Core, y: ValueId, dtype: DType) -> ValueId:
    """Integers are rounded and clipped to their range."""
    if dtype.is_float:
        return b.cast(y, dtype)
    limits = np.iinfo(dtype.numpy)
    whole = b.clamp(b.op("round", y), b.like(int(limits.min), y), b.like(int(limits.max), y))
    return b.cast(whole, dtype)


def _axes(b: Core, node: Node) -> list[Axis | _Open]:
    """The axes that change, or may change in a call."""
    x, sizes, scales, roi = (b.input(node, i) for i in range(4))
    shape, after = b.shape(x), b.elems(sizes, "the sizes")
    factors, crop = b.out.constant(scales), b.out.constant(roi)
    crops = node.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
    ratios = _are_ratios(b, scales, sizes, shape)
    axes: list[Axis | _Open] = []
    for index, (old, new) in enumerate(zip(shape, after, strict=True)):
        factor = None if factors is None else float(factors[index])
        ends: tuple[float, float] | None = (0.0, 1.0)
        if crops:
            ends = None if crop is None else (float(crop[index]), float(crop[len(shape) + index]))
        if old == new and ends == (0.0, 1.0) and (ratios or factor == 1):
            continue
        if isinstance(old, int) and isinstance(new, int) and factor is not None and ends is not None:
            if 0 in (old, new):
                raise Declined("an axis is empty")
            axes.append(Axis(index, old, new, factor, *ends))
        else:
            scale, start, end = (_element(b, scales, index), *(_element(b, roi, i + index) for i in (0, len(shape))))
            axes.append(_Open(index, old, new, scale, start, end, factor))
    return axes


def _element(b: Core, vector: ValueId, index: int) -> ValueId:
    return b.reshape(b.part(vector, 0, index, index + 1), ())


def _are_ratios(b: Core, scales: ValueId, sizes: ValueId, shape: tuple[Dim, ...]) -> bool:
    """Whether the scales are sizes after over sizes before, so that equal sizes have a scale of 1."""
    ratio = b.out.producer(scales)
    if ratio is None or ratio.op != "core.div":
        return False
    casts = [b.out.producer(value) for value in ratio.inputs]
    given = [None if cast is None or cast.op != "core.cast" else cast.inputs[0] for cast in casts]
    contents = [None if value is None else b.out.content(value) for value in given]
    return contents == [b.out.content(sizes), shape] and contents[0] is not None


def _by_table(b: Core, attrs: Attrs, x: ValueId, axis: Axis) -> ValueId:
    nearest = attrs["mode"] == "nearest"
    if nearest:
        y = b.gather(x, b.weight(nearest_index(attrs, axis)), axis.index)
    else:
        index, weights = taps(attrs, coordinates(attrs, axis, np.dtype(np.float64)), axis)
        y = _by_taps(b, x, axis.index, index, weights)
    bad = outside(attrs, coordinates(attrs, axis, np.dtype(np.float32 if nearest else np.float64)), axis)
    return y if bad is None or not bad.any() else _extrapolated(b, attrs, y, axis.index, b.weight(bad))


def _by_taps(b: Core, x: ValueId, axis: int, index: Array, weights: Array) -> ValueId:
    """The filter of tables with a column for each tap."""
    if weights.shape[1] > _MOST_TAPS:
        return _summed(b, x, axis, b.weight(index), b.weight(weights))
    columns = [(b.weight(np.ascontiguousarray(i)), b.weight(w)) for i, w in zip(index.T, weights.T, strict=True)]
    return _filtered(b, x, axis, columns)


def _summed(b: Core, x: ValueId, axis: int, index: ValueId, weights: ValueId) -> ValueId:
    """Σ over taps of x[index[·, tap]] · weights[·, tap], as a sum along an axis."""
    found = b.gather(x, index, axis)
    line = b.reshape(b.cast(weights, b.dtype(x)), [*b.shape(index), *(1,) * (b.rank(x) - axis - 1)])
    return b.reduce("sum", b.mul(found, line), (axis + 1,), keepdims=False)


def _filtered(b: Core, x: ValueId, index: int, columns: list[tuple[ValueId, ValueId]]) -> ValueId:
    """Σ over taps of x[index[tap]] · weight[tap]."""
    parts = (b.mul(b.gather(x, at, index), _along(b, b.cast(w, b.dtype(x)), x, index)) for at, w in columns)
    total = next(parts)
    for part in parts:
        total = b.add(total, part)
    return total


def _along(b: Core, line: ValueId, x: ValueId, index: int) -> ValueId:
    """A vector as one of x's axes."""
    return b.reshape(line, [b.shape(line)[0], *(1,) * (b.rank(x) - index - 1)])


def _extrapolated(b: Core, attrs: Attrs, y: ValueId, index: int, bad: ValueId) -> ValueId:
    """The extrapolation value where a crop reaches outside the data."""
    value = b.like(float(attrs.get("extrapolation_value", 0.0)), y)
    return b.select(_along(b, bad, y, index), value, y)


class _OpenLookup:
    """The lookups of one open axis: what reference/resize.py computes in NumPy, as core ops in the call."""

    def __init__(self, b: Core, attrs: Attrs, axis: _Open) -> None:
        self._b, self._attrs, self._axis = b, attrs, axis
        self._mode = attrs["coordinate_transformation_mode"]
        self._dtype = DType.F32 if attrs["mode"] == "nearest" else DType.F64
        self._place = b.iota([axis.after], 0, self._dtype)
        self._before, self._after = (b.scalar(size, DType.F64) for size in (axis.before, axis.after))

    def of(self, x: ValueId) -> ValueId:
        b, at = self._b, self._coordinates()
        if self._attrs["mode"] == "nearest":
            y = b.gather(x, self._nearest(at), self._axis.index)
        elif self._taps_are_many():
            y = _summed(b, x, self._axis.index, *self._many_taps(at))
        else:
            y = _filtered(b, x, self._axis.index, self._taps(at))
        if self._mode != "tf_crop_and_resize":
            return y
        bad = b.either(b.lt(at, b.like(0, at)), b.lt(self._rounded(self._less(self._before)), at))
        return _extrapolated(b, self._attrs, y, self._axis.index, b.both(bad, b.inverse(self._unchanged())))

    def _rounded(self, number: ValueId) -> ValueId:
        """A number in the precision of coordinates."""
        return self._b.cast(number, self._dtype)

    def _less(self, number: ValueId) -> ValueId:
        return self._b.sub(number, self._b.like(1, number))

    def _unchanged(self) -> ValueId:
        """Whether the axis turns out to stay as it is; coordinates do not always say so."""
        b, axis = self._b, self._axis
        same = b.both(b.eq(self._before, self._after), b.eq(axis.scale, b.like(1, axis.scale)))
        if self._mode != "tf_crop_and_resize":
            return same
        return b.both(same, b.both(b.eq(axis.start, b.like(0, axis.start)), b.eq(axis.end, b.like(1, axis.end))))

    def _coordinates(self) -> ValueId:
        """Where in the data each element of the result lies."""
        b = self._b
        modes: dict[str, Callable[[], ValueId]] = {
            "half_pixel": self._half_pixel,
            "half_pixel_symmetric": self._symmetric,
            "pytorch_half_pixel": lambda: self._unless_one(self._half_pixel(), b.number(0, self._dtype)),
            "align_corners": self._align_corners,
            "asymmetric": lambda: b.div(self._place, self._rounded(self._axis.scale)),
            "tf_half_pixel_for_nn": lambda: b.div(self._middle(), self._rounded(self._axis.scale)),
            "tf_crop_and_resize": self._crop,
        }
        if self._mode not in modes:
            raise Declined(f"there is no coordinate mode {self._mode}")
        return modes[self._mode]()

    def _middle(self) -> ValueId:
        return self._b.add(self._place, self._b.like(0.5, self._place))

    def _half_pixel(self) -> ValueId:
        ratio = self._b.div(self._middle(), self._rounded(self._axis.scale))
        return self._b.sub(ratio, self._b.like(0.5, ratio))

    def _symmetric(self) -> ValueId:
        b = self._b
        adjustment = b.div(self._after, b.mul(self._axis.scale, self._before))
        half, one = b.div(self._before, b.like(2, self._before)), b.like(1, adjustment)
        return b.add(self._half_pixel(), self._rounded(b.mul(half, b.sub(one, adjustment))))

    def _align_corners(self) -> ValueId:
        b = self._b
        width = b.mul(self._axis.scale, self._before)
        # it is never negative: `max` keeps the product and the 1 from being rounded in one step
        last = self._less(b.max(width, b.like(0, width)))
        at = b.div(b.mul(self._place, self._rounded(self._less(self._before))), self._rounded(last))
        return self._unless_one(at, b.number(0, self._dtype))

    def _crop(self) -> ValueId:
        b, axis = self._b, self._axis
        last = self._less(self._before)
        scaled = b.mul(self._place, self._rounded(b.sub(axis.end, axis.start)))
        scaled = b.div(b.mul(scaled, self._rounded(last)), self._rounded(self._less(self._after)))
        middle = b.mul(b.mul(b.like(0.5, axis.start), b.add(axis.start, axis.end)), last)
        return self._unless_one(b.add(self._rounded(b.mul(axis.start, last)), scaled), self._rounded(middle))

    def _unless_one(self, at: ValueId, single: ValueId) -> ValueId:
        """Coordinates of a result with one element are an own case."""
        b = self._b
        return b.select(b.eq(self._after, b.like(1, self._after)), single, at)

    def _inside(self, index: ValueId) -> ValueId:
        b = self._b
        last = b.dims.sub(self._axis.before, 1)
        return b.clamp(index, b.like(0, index), b.scalar(last, DType.I64))

    def _nearest(self, at: ValueId) -> ValueId:
        b = self._b
        half = b.like(0.5, at)
        match self._attrs["nearest_mode"]:
            case "round_prefer_floor":
                whole = b.op("ceil", b.sub(at, half))
            case "round_prefer_ceil":
                whole = b.op("floor", b.add(at, half))
            case rounding:
                whole = b.op(rounding, at)
        index = b.select(self._unchanged(), self._place, whole)
        return self._inside(b.cast(index, DType.I64))

    def _taps(self, at: ValueId) -> list[tuple[ValueId, ValueId]]:
        """For each coordinate, the elements around it and their weights."""
        b, attrs = self._b, self._attrs
        kernel = self._linear if attrs["mode"] == "linear" else self._cubic
        squeeze = self._squeeze()
        side = int(np.ceil(self._reach / squeeze))
        base = b.op("floor", at)
        indices = [b.add(base, b.like(tap, base)) for tap in range(1 - side, side + 1)]
        distances = [b.mul(b.abs(b.sub(index, at)), b.like(squeeze, at)) for index in indices]
        weights = [kernel(distance) for distance in distances]
        if attrs.get("exclude_outside", 0):
            weights = list(starmap(self._where_inside, zip(indices, weights, strict=True)))
        if squeeze < 1 or attrs.get("exclude_outside", 0):
            weights = self._normalised(weights)
        same, zero = self._unchanged(), b.like(0, at)
        return [
            (
                self._inside(b.cast(b.select(same, self._place, index), DType.I64)),
                b.select(same, b.like(int(tap == side - 1), zero), weight),
            )
            for tap, (index, weight) in enumerate(zip(indices, weights, strict=True))
        ]

    def _squeeze(self) -> float:
        """How much wider the filter is where the axis shrinks."""
        return 1.0 if self._axis.factor is None or not self._attrs.get("antialias", 0) else min(self._axis.factor, 1.0)

    def _taps_are_many(self) -> bool:
        """Whether the taps are an axis: there are many, or how many there are is known only in the call."""
        if not self._attrs.get("antialias", 0):
            return False
        return self._axis.factor is None or 2 * int(np.ceil(self._reach / self._squeeze())) > _MOST_TAPS

    @property
    def _reach(self) -> int:
        """How far from a coordinate the filter reaches where the axis grows."""
        return 1 if self._attrs["mode"] == "linear" else 2

    def _many_taps(self, at: ValueId) -> tuple[ValueId, ValueId]:
        """Indices and weights with an axis of taps, for an axis that may shrink."""
        b, axis = self._b, self._axis
        one = b.like(1, axis.scale)
        squeeze = b.min(axis.scale, one)
        wide = b.cast(b.op("ceil", b.div(b.like(self._reach, squeeze), squeeze)), DType.I64)
        (side,) = b.elems(wide, "the width of a filter")
        tap = b.iota([1, b.dims.mul(2, side)], 1, DType.F64)
        before = self._less(b.cast(wide, DType.F64))  # taps in front of the coordinate's own
        at, place = (b.unsqueeze(line, 1) for line in (at, self._place))
        index = b.add(b.op("floor", at), b.sub(tap, before))
        distance = b.mul(b.abs(b.sub(index, at)), squeeze)
        weights = self._linear(distance) if self._attrs["mode"] == "linear" else self._cubic(distance)
        excludes = bool(self._attrs.get("exclude_outside", 0))
        weights = self._where_inside(index, weights) if excludes else weights
        total = b.reduce("sum", weights, (1,))
        normal = b.div(weights, b.select(b.eq(total, b.like(0, total)), b.like(1, total), total))
        weights = normal if excludes else b.select(b.lt(squeeze, one), normal, weights)
        same = self._unchanged()
        only = b.cast(b.eq(tap, before), DType.F64)
        return self._inside(b.cast(b.select(same, place, index), DType.I64)), b.select(same, only, weights)

    def _where_inside(self, index: ValueId, weight: ValueId) -> ValueId:
        b = self._b
        inside = b.both(b.le(b.like(0, index), index), b.lt(index, self._before))
        return b.select(inside, weight, b.like(0, weight))

    def _normalised(self, weights: list[ValueId]) -> list[ValueId]:
        b, total = self._b, weights[0]
        for weight in weights[1:]:
            total = b.add(total, weight)
        divisor = b.select(b.eq(total, b.like(0, total)), b.like(1, total), total)
        return [b.div(weight, divisor) for weight in weights]

    def _linear(self, distance: ValueId) -> ValueId:
        b = self._b
        return b.max(b.sub(b.like(1, distance), distance), b.like(0, distance))

    def _cubic(self, distance: ValueId) -> ValueId:
        b, a = self._b, float(self._attrs.get("cubic_coeff_a", -0.75))

        def number(value: float) -> ValueId:
            return b.like(value, distance)

        near = b.mul(b.mul(b.sub(b.mul(number(a + 2), distance), number(a + 3)), distance), distance)
        far = b.add(b.mul(b.sub(b.mul(number(a), distance), number(5 * a)), distance), number(8 * a))
        far = b.sub(b.mul(far, distance), number(4 * a))
        beyond = b.select(b.lt(distance, number(2)), far, number(0))
        return b.select(b.le(distance, number(1)), b.add(near, number(1)), beyond)
