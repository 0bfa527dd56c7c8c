"""Resize and Upsample: separable interpolation, one axis after the other.

Each axis has coordinates in the data for every element of the result. Nearest neighbours are looked up; linear and
cubic filters add up the elements around a coordinate, each times its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Attrs, Node
from tierup.ir.ops.resizing import aspect_scale, aspect_sizes, scaled
from tierup.ir.types import Array
from tierup.reference.precision import down, up


class Axis(Struct, frozen=True):
    """One axis to resize: the sizes before and after, their ratio, and the part of the data that is cropped to."""

    index: int
    before: int
    after: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def is_identity(self) -> bool:
        return self.scale == 1 and self.before == self.after and (self.start, self.end) == (0, 1)


def upsample(node: Node, x: Array, scales: Array | None = None) -> Array:
    """Coordinates are x / scale; in versions before Resize 11 a nearest neighbour is the one before, or behind where
    the axis shrinks."""
    factors = node.attrs["scales"] if scales is None else scales.tolist()
    axes = _scaled_axes(x, range(x.ndim), factors)
    mode = "linear" if node.attrs["mode"] == "bilinear" else node.attrs["mode"]
    for axis in axes:
        rounding = "ceil" if axis.scale < 1 else "floor"
        attrs = {"mode": mode, "nearest_mode": rounding, "coordinate_transformation_mode": "asymmetric"}
        x = interpolated(Attrs(attrs), x, [axis])
    return x


def resize(
    node: Node, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Array:
    if node.version < 11:
        return upsample(node, x, roi)
    attrs = node.attrs
    stated = attrs.get("axes")
    indices = list(range(x.ndim)) if stated is None else [axis % x.ndim for axis in stated]
    if sizes is not None and sizes.size:
        axes = _sized_axes(x, indices, sizes.tolist(), attrs.get("keep_aspect_ratio_policy", "stretch"))
    elif scales is not None and scales.size:
        axes = _scaled_axes(x, indices, scales.tolist())
    else:
        raise ValueError("neither scales nor sizes are given")
    if attrs["coordinate_transformation_mode"] == "tf_crop_and_resize":
        axes = _cropped(axes, roi)
    return interpolated(attrs, x, axes)


def _scaled_axes(x: Array, indices: Sequence[int], scales: Sequence[float]) -> list[Axis]:
    dims = DimBuilder()
    axes = []
    for index, scale in zip(indices, scales, strict=True):
        after = scaled(dims, x.shape[index], scale)
        assert isinstance(after, int)
        axes.append(Axis(index, x.shape[index], after, float(scale)))
    return axes


def _sized_axes(x: Array, indices: Sequence[int], wanted: Sequence[int], policy: str) -> list[Axis]:
    before = [x.shape[index] for index in indices]
    if policy == "stretch":
        # an empty axis has no ratio; nothing is read from it, or reading it is refused
        ratios = [want / size if size else 1.0 for size, want in zip(before, wanted, strict=True)]
        after = list(wanted)
    else:
        ratios = [aspect_scale(before, wanted, policy)] * len(before)
        after = aspect_sizes(before, wanted, policy)
    return [Axis(*row) for row in zip(indices, before, after, ratios, strict=True)]


def _cropped(axes: Sequence[Axis], roi: Array | None) -> list[Axis]:
    if roi is None or roi.size != 2 * len(axes):
        raise ValueError(f"roi must have {2 * len(axes)} entries for tf_crop_and_resize")
    starts, ends = roi[: len(axes)].tolist(), roi[len(axes) :].tolist()
    return [
        Axis(a.index, a.before, a.after, a.scale, start, end) for a, start, end in zip(axes, starts, ends, strict=True)
    ]


def interpolated(attrs: Attrs, x: Array, axes: Sequence[Axis]) -> Array:
    axes = [axis for axis in axes if not axis.is_identity]
    for axis in axes:
        if axis.before == 0 and axis.after > 0:
            raise ValueError(f"axis {axis.index} is empty and cannot be resized to {axis.after}")
        if axis.after < 0:
            raise ValueError(f"axis {axis.index} cannot be resized to {axis.after}")
    if any(axis.after == 0 for axis in axes):
        sizes = {axis.index: axis.after for axis in axes}
        return np.empty([sizes.get(index, size) for index, size in enumerate(x.shape)], x.dtype)
    if attrs["mode"] == "nearest":
        for axis in axes:
            x = _nearest(attrs, x, axis)
        return x
    y = x.astype(np.float64) if x.dtype.kind in "iub" else up(x)
    for axis in axes:
        y = _filtered(attrs, y, axis)
    return _cast(y, x.dtype)


def _cast(y: Array, dtype: np.dtype[Any]) -> Array:
    """Integers are rounded and clipped to their range."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        rounded = np.rint(y)
        low, high = rounded <= limits.min, rounded >= limits.max
        inside = np.where(low | high, 0, rounded).astype(dtype)
        return np.where(low, limits.min, np.where(high, limits.max, inside)).astype(dtype)
    return down(y, dtype)


def _same(like: Array, result: Array) -> Array:
    """`result`, which must not have been promoted."""
    assert result.dtype == like.dtype
    return result


def _half_pixel(x: Array, a: Axis) -> Array:
    return _same(x, (x + 0.5) / a.scale - 0.5)


def _symmetric(x: Array, a: Axis) -> Array:
    adjustment = a.after / (a.scale * a.before)
    return _same(x, _half_pixel(x, a) + a.before / 2 * (1 - adjustment))


def _align_corners(x: Array, a: Axis) -> Array:
    # the width is the one before rounding down, as the tests of ONNX have it
    return np.zeros_like(x) if a.after == 1 else _same(x, x * (a.before - 1) / (a.scale * a.before - 1))


def _crop(x: Array, a: Axis) -> Array:
    last = a.before - 1
    if a.after == 1:
        return np.full_like(x, 0.5 * (a.start + a.end) * last)
    return _same(x, a.start * last + x * (a.end - a.start) * last / (a.after - 1))


_COORDINATES: dict[str, Callable[[Array, Axis], Array]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda x, a: _half_pixel(x, a) if a.after > 1 else np.zeros_like(x),
    "align_corners": _align_corners,
    "asymmetric": lambda x, a: x / a.scale,
    "tf_half_pixel_for_nn": lambda x, a: (x + 0.5) / a.scale,
    "tf_crop_and_resize": _crop,
}
_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def coordinates(attrs: Attrs, axis: Axis, precision: np.dtype[Any]) -> Array:
    """Where in the data each element of the result lies."""
    return _COORDINATES[attrs["coordinate_transformation_mode"]](np.arange(axis.after, dtype=precision), axis)


def nearest_index(attrs: Attrs, axis: Axis) -> Array:
    """Coordinates are computed in f32, as in other runtimes: with a scale such as f32(1/3), f64 would end just below
    the whole numbers that were meant."""
    at = coordinates(attrs, axis, np.dtype(np.float32))
    return _ROUNDINGS[attrs["nearest_mode"]](at).astype(np.int64).clip(0, max(axis.before - 1, 0))


def _nearest(attrs: Attrs, x: Array, axis: Axis) -> Array:
    at = coordinates(attrs, axis, np.dtype(np.float32))
    return _extrapolated(attrs, np.take(x, nearest_index(attrs, axis), axis=axis.index), at, axis)


def _filtered(attrs: Attrs, x: Array, axis: Axis) -> Array:
    at = coordinates(attrs, axis, np.dtype(np.float64))
    index, weights = taps(attrs, at, axis)
    shape = (-1, *(1,) * (x.ndim - axis.index - 1))
    result = np.zeros((*x.shape[: axis.index], axis.after, *x.shape[axis.index + 1 :]), x.dtype)
    for tap in range(weights.shape[1]):
        weight = weights[:, tap].astype(x.real.dtype).reshape(shape)
        result += np.take(x, index[:, tap], axis=axis.index) * weight
    return _extrapolated(attrs, result, at, axis)


def taps(attrs: Attrs, at: Array, axis: Axis) -> tuple[Array, Array]:
    """For each coordinate, the elements around it and their weights."""
    reach, kernel = (1, _linear) if attrs["mode"] == "linear" else (2, _cubic)
    squeeze = min(axis.scale, 1.0) if attrs.get("antialias", 0) else 1.0
    side = int(np.ceil(reach / squeeze))
    index = np.floor(at).astype(np.int64)[:, None] + np.arange(1 - side, side + 1)
    weights = kernel(np.abs(index - at[:, None]) * squeeze, attrs.get("cubic_coeff_a", -0.75))
    if attrs.get("exclude_outside", 0):
        weights = np.where((index < 0) | (index >= axis.before), 0, weights)
    if squeeze < 1 or attrs.get("exclude_outside", 0):
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return index.clip(0, axis.before - 1), weights


def _linear(distance: Array, _: float) -> Array:
    return _same(distance, np.maximum(1 - distance, 0))


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def outside(attrs: Attrs, at: Array, axis: Axis) -> Array | None:
    """Which coordinates lie outside the data; None where that does not matter."""
    if attrs["coordinate_transformation_mode"] != "tf_crop_and_resize":
        return None
    return np.asarray((at < 0) | (at > axis.before - 1))


def _extrapolated(attrs: Attrs, y: Array, at: Array, axis: Axis) -> Array:
    """Where a crop reaches outside the data, the extrapolation value."""
    bad = outside(attrs, at, axis)
    if bad is None:
        return y
    value = np.asarray(attrs.get("extrapolation_value", 0.0)).astype(y.dtype)
    return np.where(bad.reshape(-1, *(1,) * (y.ndim - axis.index - 1)), value, y)
