"""Ops on images and boxes: their type rules and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tierup.ir.infer import CONTENT_LIMIT, Infer, InferError, Out, PartialShape
from tierup.ir.ops.nn import same_dim, spatial_shape
from tierup.ir.ops.resizing import aspect_sizes, scaled
from tierup.ir.ops.row import Op
from tierup.ir.types import Dim, DType, Shape

_RESIZE_MODES = {
    "mode": ("nearest", "linear", "cubic"),
    "coordinate_transformation_mode": (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_half_pixel_for_nn", "tf_crop_and_resize",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
}  # fmt: skip
_UPSAMPLE_MODES = {"mode": ("nearest", "linear", "bilinear")}
_GRID_MODES = {
    "mode": ("nearest", "linear", "cubic", "bilinear", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),
}
_ROI_ALIGN_MODES = {
    "mode": ("avg", "max"),
    "coordinate_transformation_mode": ("half_pixel", "output_half_pixel"),
}


def _one_of(ctx: Infer, allowed: Mapping[str, tuple[str, ...]]) -> None:
    for name, values in allowed.items():
        value = ctx.attrs.get(name, values[0])
        if value not in values:
            raise InferError(f"{name} is '{value}', expected one of {', '.join(values)}")


def _of_rank(ctx: Infer, index: int, rank: int) -> PartialShape:
    """The shape of input `index`, which must have `rank` axes; unknown sizes are None."""
    shape = ctx.shape(index)
    if shape is None:
        return (None,) * rank
    if len(shape) != rank:
        raise InferError(f"input {index} has {len(shape)} axes, expected {rank}")
    return shape


def _check_dim(what: str, dim: Dim | None, expected: int) -> None:
    if dim is not None:
        same_dim(what, dim, expected)


def _affine_grid(ctx: Infer) -> list[Out]:
    batch, rows, columns = _of_rank(ctx, 0, 3)
    (count,) = _of_rank(ctx, 1, 1)
    axes = rows if isinstance(rows, int) else count - 2 if isinstance(count, int) else None
    if axes is None:
        return [Out(ctx.dtype(0), None)]
    if axes not in (2, 3):
        raise InferError(f"a grid has 2 or 3 axes, not {axes}")
    _check_dim("the columns of theta", columns, axes + 1)
    _check_dim("the entries of size", count, axes + 2)
    size = ctx.elems(1)
    spatial: PartialShape = (None,) * axes if size is None else size[2:]
    return [Out(ctx.dtype(0), (batch, *spatial, axes))]


def _grid_sample(ctx: Infer) -> list[Out]:
    _one_of(ctx, _GRID_MODES)
    x, grid = spatial_shape(ctx, 0), spatial_shape(ctx, 1)
    if x is not None and grid is not None:
        if len(x) != len(grid):
            raise InferError(f"the data has {len(x)} axes, but the grid {len(grid)}")
        same_dim("the batches of data and grid", x[0], grid[0])
        same_dim("the coordinates of the grid and the data's spatial axes", grid[-1], len(x) - 2)
    known = x if x is not None else grid
    if known is None:
        return [Out(ctx.dtype(0), None)]
    channels = None if x is None else x[1]
    spatial: PartialShape = (None,) * (len(known) - 2) if grid is None else grid[1:-1]
    return [Out(ctx.dtype(0), (known[0], channels, *spatial))]


def _max_roi_pool(ctx: Infer) -> list[Out]:
    _, channels, *_ = _of_rank(ctx, 0, 4)
    rois, entries = _of_rank(ctx, 1, 2)
    _check_dim("the entries of a region", entries, 5)
    pooled = ctx.attrs["pooled_shape"]
    if len(pooled) != 2 or min(pooled) < 1:
        raise InferError(f"pooled_shape is {list(pooled)}, expected two sizes of at least 1")
    return [Out(ctx.dtype(0), (rois, channels, *pooled))]


def _roi_align(ctx: Infer) -> list[Out]:
    _one_of(ctx, _ROI_ALIGN_MODES)
    _, channels, *_ = _of_rank(ctx, 0, 4)
    rois, entries = _of_rank(ctx, 1, 2)
    (indices,) = _of_rank(ctx, 2, 1)
    _check_dim("the entries of a region", entries, 4)
    pooled = (ctx.attrs.get("output_height", 1), ctx.attrs.get("output_width", 1))
    if min(pooled) < 1:
        raise InferError(f"a pooled size is {min(pooled)}, expected at least 1")
    if ctx.attrs.get("sampling_ratio", 0) < 0:
        raise InferError(f"sampling_ratio is {ctx.attrs['sampling_ratio']}, expected at least 0")
    return [Out(ctx.dtype(0), (indices if rois is None else rois, channels, *pooled))]


def _non_max_suppression(ctx: Infer) -> list[Out]:
    batch, boxes, entries = _of_rank(ctx, 0, 3)
    scores = _of_rank(ctx, 1, 3)
    _check_dim("the entries of a box", entries, 4)
    for what, a, b in (("batches", batch, scores[0]), ("boxes", boxes, scores[2])):
        if a is not None and b is not None:
            same_dim(f"the {what} of boxes and scores", a, b)
    return [Out(DType.I64, (None, 3))]


def _scales(ctx: Infer, index: int) -> tuple[float, ...] | None:
    """Scales that are known now, from the attribute of early versions or from a constant input."""
    stated = ctx.attrs.get("scales")
    if stated is not None:
        return tuple(stated)
    array = ctx.constant(index)
    if array is None:
        return None
    if array.size > CONTENT_LIMIT:
        raise InferError(f"there are {array.size} scales, which is more than any tensor has axes")
    return tuple(float(scale) for scale in array.reshape(-1))


def _is_given(ctx: Infer, index: int) -> bool:
    """Whether an input is there and not the empty tensor that stands for "none" in version 11."""
    return ctx.has(index) and ctx.shape(index) != (0,)


def _upsample(ctx: Infer) -> list[Out]:
    _one_of(ctx, _UPSAMPLE_MODES)
    return [Out(ctx.dtype(0), _by_scales(ctx, 1))]


def _resize(ctx: Infer) -> list[Out]:
    _one_of(ctx, _UPSAMPLE_MODES if ctx.version < 11 else _RESIZE_MODES)
    if ctx.version >= 11 and _is_given(ctx, 3):
        return [Out(ctx.dtype(0), _by_sizes(ctx))]
    if not _is_given(ctx, 1 if ctx.version < 11 else 2):
        raise InferError("neither scales nor sizes are given")
    return [Out(ctx.dtype(0), _by_scales(ctx, 1 if ctx.version < 11 else 2))]


def _axes(ctx: Infer, rank: int) -> tuple[int, ...]:
    stated = ctx.attrs.get("axes")
    return tuple(range(rank)) if stated is None else ctx.axes(stated, rank)


def _by_scales(ctx: Infer, index: int) -> PartialShape | None:
    shape = ctx.shape(0)
    if shape is None:
        return None
    axes, scales = _axes(ctx, len(shape)), _scales(ctx, index)
    if scales is None:
        return _replaced(shape, axes, (None,) * len(axes))
    if len(scales) != len(axes):
        raise InferError(f"there are {len(scales)} scales, expected {len(axes)}")
    return _replaced(shape, axes, [scaled(ctx.dims, shape[a], s) for a, s in zip(axes, scales, strict=True)])


def _by_sizes(ctx: Infer) -> PartialShape | None:
    shape, wanted = ctx.shape(0), ctx.elems(3)
    if shape is None:
        whole = ctx.attrs.get("axes") is None and wanted is not None
        return (None,) * len(wanted) if whole and wanted is not None else None
    axes = _axes(ctx, len(shape))
    if wanted is None:
        return _replaced(shape, axes, (None,) * len(axes))
    if len(wanted) != len(axes):
        raise InferError(f"there are {len(wanted)} sizes, expected {len(axes)}")
    policy = ctx.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return _replaced(shape, axes, wanted)
    before = [size for size in (shape[a] for a in axes) if isinstance(size, int)]
    after = [size for size in wanted if isinstance(size, int)]
    if len(before) < len(axes) or len(after) < len(axes):
        return _replaced(shape, axes, (None,) * len(axes))
    return _replaced(shape, axes, aspect_sizes(before, after, policy))


def _replaced(shape: Shape, axes: Sequence[int], sizes: Sequence[Dim | None]) -> PartialShape:
    result: list[Dim | None] = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    return tuple(result)


OPS: tuple[Op, ...] = (
    Op("onnx.AffineGrid", "The sampling grid of a batch of affine maps.", _affine_grid, "vision.affine_grid"),
    Op("onnx.GridSample", "Interpolates an image at the points of a grid.", _grid_sample, "vision.grid_sample"),
    Op("onnx.MaxRoiPool", "The maximum over each cell of regions of interest.", _max_roi_pool, "vision.max_roi_pool"),
    Op(
        "onnx.NonMaxSuppression",
        "Picks boxes by score and drops those that overlap a picked one too much.",
        _non_max_suppression,
        "vision.non_max_suppression",
    ),
    Op("onnx.Resize", "Interpolates to other sizes, axis by axis.", _resize, "resize.resize"),
    Op(
        "onnx.RoiAlign",
        "Pools interpolated samples over each cell of regions of interest.",
        _roi_align,
        "vision.roi_align",
    ),
    Op("onnx.Upsample", "Interpolates by given scales; Resize's predecessor.", _upsample, "resize.upsample"),
)
