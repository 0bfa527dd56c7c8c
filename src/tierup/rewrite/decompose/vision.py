"""Resize in all its versions, and grids of affine maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.infer import Out
from tierup.ir.ops.resizing import aspect_scale
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition

_RESIZE_DEFAULTS = {
    "antialias": 0, "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75, "exclude_outside": 0,
    "extrapolation_value": 0.0, "mode": "nearest", "nearest_mode": "round_prefer_floor",
}  # fmt: skip


def _resize(b: Core, n: Node) -> ValueId:
    if n.version < 11:
        return _upsample(b, n)
    x, scales, wanted = b.input(n), _present(b, n, 2), _present(b, n, 3)
    rank = b.rank(x)
    stated = n.attrs.get("axes")
    axes = list(range(rank)) if stated is None else [b.axis(axis, rank) for axis in stated]
    if wanted is not None:
        sizes, factors = _by_sizes(b, n, x, axes)
    elif scales is not None:
        factors = _everywhere(b, b.cast(scales, DType.F64), axes, rank, [1.0])
        sizes = _by_scales(b, n, x, scales, axes)
    else:
        raise Declined("neither scales nor sizes are given")
    attrs = {name: n.attrs.get(name, default) for name, default in _RESIZE_DEFAULTS.items()}
    return b.op("resize", x, sizes, factors, _roi(b, n, axes, rank), **attrs)


def _present(b: Core, n: Node, index: int) -> ValueId | None:
    """An input that is there and not the empty tensor that stands for "none" in version 11."""
    value = b.given(n, index)
    if value is not None and b.rank(value) == 1 and not isinstance(b.shape(value)[0], int):
        raise Declined("whether sizes or scales are given is known only in the call")
    return None if value is None or b.shape(value) == (0,) else value


def _everywhere(b: Core, values: ValueId, axes: Sequence[int], rank: int, others: Sequence[float]) -> ValueId:
    """Numbers for `axes` (one after another for each of `others`) as numbers for all axes, with `others` elsewhere."""
    count = len(axes)
    places = [
        axes.index(axis) + kind * count if axis in axes else count * len(others) + kind
        for kind in range(len(others))
        for axis in range(rank)
    ]
    if places == list(range(count * len(others))):
        return values
    extended = b.concat([values, b.weight(np.array(others, b.dtype(values).numpy))], 0)
    return b.gather(extended, b.integers(places), 0)


def _by_sizes(b: Core, n: Node, x: ValueId, axes: Sequence[int]) -> tuple[ValueId, ValueId]:
    """Sizes, and their ratio to those of x: in f64, since f32 would move coordinates off whole numbers."""
    shape, given = b.shape(x), b.input(n, 3)
    policy = n.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        sizes = b.sizes(b.result_shape(n))
        return sizes, b.div(b.cast(sizes, DType.F64), b.cast(b.sizes(shape), DType.F64))
    before = [dim for dim in (shape[axis] for axis in axes) if isinstance(dim, int)]
    if len(before) < len(axes) or not b.is_known(given):
        return _by_aspect(b, x, given, axes, policy)
    scale = aspect_scale(before, b.numbers(given, "the sizes of a Resize"), policy)
    sizes = b.sizes(b.result_shape(n))
    return sizes, b.weight(np.array([scale if i in axes else 1.0 for i in range(len(shape))]))


def _by_aspect(b: Core, x: ValueId, given: ValueId, axes: Sequence[int], policy: str) -> tuple[ValueId, ValueId]:
    """One scale for all `axes`, the smallest or largest that is wanted; halves are rounded up."""
    shape, rank = b.shape(x), b.rank(x)
    before = b.cast(b.sizes([shape[axis] for axis in axes]), DType.F64)
    ratios = b.div(b.cast(given, DType.F64), before)
    scale = b.reduce("min" if policy == "not_larger" else "max", ratios, (0,))
    after = b.cast(b.op("floor", b.add(b.mul(scale, before), b.like(0.5, before))), DType.I64)
    places = [axes.index(axis) if axis in axes else len(axes) + axis for axis in range(rank)]
    sizes = b.gather(b.concat([after, b.sizes(shape)], 0), b.integers(places), 0)
    return sizes, _everywhere(b, b.broadcast(scale, (len(axes),)), axes, rank, [1.0])


def _by_scales(b: Core, n: Node, x: ValueId, scales: ValueId, axes: Sequence[int]) -> ValueId:
    """floor(size · scale), as a dim program where the scales are short fractions, else in f32."""
    results = b.out.types(n)
    shape = results[0].shape if results and isinstance(results[0], Out) else None
    if shape is not None and all(dim is not None for dim in shape):
        return b.sizes([dim for dim in shape if dim is not None])
    before = b.shape(x)
    factors = _everywhere(b, b.cast(scales, DType.F32), axes, len(before), [1.0])
    return b.cast(b.op("floor", b.mul(b.cast(b.sizes(before), DType.F32), factors)), DType.I64)


def _roi(b: Core, n: Node, axes: Sequence[int], rank: int) -> ValueId:
    """Starts and ends of the crop on every axis; without a crop, all of it."""
    roi = b.given(n, 1)
    if n.attrs["coordinate_transformation_mode"] != "tf_crop_and_resize":
        return b.weight(np.array([0.0] * rank + [1.0] * rank))
    if roi is None or b.shape(roi) != (2 * len(axes),):
        raise Declined("the crop has no known number of entries")
    return _everywhere(b, b.cast(roi, DType.F64), axes, rank, [0.0, 1.0])


def _upsample(b: Core, n: Node) -> ValueId:
    """Coordinates are x / scale; a nearest neighbour is the one before, or behind where the axis shrinks."""
    x, stated = b.input(n), n.attrs.get("scales")
    given = b.given(n, 1) if stated is None else b.weight(np.array(stated, np.float32))
    constant = None if given is None else b.out.constant(given)
    mode = "linear" if n.attrs["mode"] == "bilinear" else n.attrs["mode"]
    if given is None:
        raise Declined("no scales are given")
    sizes, rank = _by_scales(b, n, x, given, range(b.rank(x))), b.rank(x)
    whole = b.weight(np.array([0.0] * rank + [1.0] * rank))
    attrs = {**_RESIZE_DEFAULTS, "mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode != "nearest" or (constant is not None and (constant >= 1).all()):
        return b.op("resize", x, sizes, b.cast(given, DType.F64), whole, **attrs | {"nearest_mode": "floor"})
    shrinks = b.lt(given, b.like(1, given))
    for rounding, moved in (("ceil", shrinks), ("floor", b.inverse(shrinks))):
        target = b.select(moved, sizes, b.sizes(b.shape(x)))
        factors = b.select(moved, b.cast(given, DType.F64), b.number(1, DType.F64))
        x = b.op("resize", x, target, factors, whole, **attrs | {"nearest_mode": rounding})
    return x


def _affine_grid(b: Core, n: Node) -> ValueId:
    """Every point (x, y, …, 1) of the image, times the transposed map"""
    theta, result = b.input(n), b.result_shape(n)
    wide = b.wide(theta)
    batch, spatial = result[0], result[1:-1]
    corners = bool(n.attrs.get("align_corners", 0))
    centres = [_centres(b, count, b.dtype(wide), corners) for count in spatial]
    points = []
    for axis in reversed(range(len(spatial))):
        line = b.reshape(centres[axis], [dim if i == axis else 1 for i, dim in enumerate(spatial)])
        points.append(b.unsqueeze(b.broadcast(line, spatial), len(spatial)))
    points.append(b.broadcast(b.like(1, wide), (*spatial, 1)))
    rows = b.reshape(b.concat(points, len(spatial)), (b.dims.product(spatial), len(spatial) + 1))
    grid = b.matmul(rows, b.transpose(wide, (0, 2, 1)))
    return b.cast(b.reshape(grid, (batch, *spatial, len(spatial))), b.dtype(theta))


def _centres(b: Core, count: Dim, dtype: DType, corners: bool) -> ValueId:
    """Positions of `count` pixels in -1 … 1: of the corners' centres, or of the image's edges."""
    place = b.iota([count], 0, DType.F64)
    one, two = b.like(1, place), b.like(2, place)
    if corners:
        last = b.scalar(b.dims.max(b.dims.sub(count, 1), 1), DType.F64)
        single = b.eq(b.scalar(count, DType.I64), b.number(1, DType.I64))
        line = b.sub(b.div(b.mul(two, place), last), one)
        return b.cast(b.select(single, b.like(0, place), line), dtype)
    whole = b.scalar(b.dims.max(count, 1), DType.F64)
    return b.cast(b.sub(b.div(b.add(b.mul(two, place), one), whole), one), dtype)


VISION: dict[str, Decomposition] = {
    "onnx.AffineGrid": _affine_grid,
    "onnx.Resize": _resize,
    "onnx.Upsample": _upsample,
}
