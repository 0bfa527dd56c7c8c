"""Grids, regions of interest and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np

from tierup.ir.graph import Attrs, Node
from tierup.ir.types import Array
from tierup.reference.precision import down, up
from tierup.reference.windows import in_compute_dtype

_SAMPLE_LIMIT = 1 << 24  # samples of one region: coordinates come from data, and must not decide what is allocated
_FAR = float(1 << 40)  # coordinates beyond this are outside any image, and still convert to integers


def affine_grid(node: Node, theta: Array, size: Array) -> Array:
    spatial = [int(count) for count in size[2:]]
    if theta.shape[1:] != (len(spatial), len(spatial) + 1):
        raise ValueError(f"theta has the shape {list(theta.shape)}, which does not fit {len(spatial)} axes")
    if int(size[0]) != theta.shape[0]:
        raise ValueError(f"size has the batch {int(size[0])}, theta {theta.shape[0]}")
    corners = bool(node.attrs.get("align_corners", 0))
    steps = np.meshgrid(*(_centres(count, corners) for count in spatial), indexing="ij")
    points = np.stack([*reversed(steps), np.ones(spatial)], axis=-1).reshape(-1, len(spatial) + 1)
    grid = in_compute_dtype(lambda t: np.matmul(points.astype(t.dtype), t.swapaxes(1, 2)), theta)
    return grid.reshape(theta.shape[0], *spatial, len(spatial))


def _centres(count: int, corners: bool) -> Array:
    """Positions of `count` pixels in −1 … 1: of the corners' centres, or of the image's edges."""
    if corners:
        return np.linspace(-1, 1, count) if count > 1 else np.zeros(count)
    return (2 * np.arange(count) + 1) / max(count, 1) - 1


_FILTERS = {"bilinear": "linear", "bicubic": "cubic"}  # the names in version 16


def grid_sample(node: Node, x: Array, grid: Array) -> Array:
    mode = _FILTERS.get(node.attrs["mode"], node.attrs["mode"])
    sampler = _Sampler(x.shape[2:], node.attrs["padding_mode"], bool(node.attrs.get("align_corners", 0)))
    if grid.shape[-1] != x.ndim - 2 or grid.shape[0] != x.shape[0]:
        raise ValueError(f"a grid of the shape {list(grid.shape)} does not fit data of {list(x.shape)}")
    data = x if mode == "nearest" else up(x)
    if data.dtype.kind in "iub" and mode != "nearest":
        data = data.astype(np.float64)
    data = data.reshape(*x.shape[:2], prod(x.shape[2:]))
    points = up(grid).reshape(x.shape[0], -1, grid.shape[-1])[..., ::-1]  # x comes first, which is the last axis
    y = np.zeros((*x.shape[:2], points.shape[1]), data.dtype)
    if data.size and y.size:
        for image, places, result in zip(data, points, y, strict=True):
            sampler.sample(mode, image, np.moveaxis(places, -1, 0), result)
    return down(y.reshape(*x.shape[:2], *grid.shape[1:-1]), x.dtype)


class _Sampler:
    """Reads images of one size at coordinates that may lie outside."""

    def __init__(self, sizes: Sequence[int], padding: str, corners: bool) -> None:
        self.sizes, self.padding, self.corners = tuple(sizes), padding, corners

    def sample(self, mode: str, image: Array, places: Array, result: Array) -> None:
        """Fill `result` (channels, points) from `image` (channels, elements) at normalised `places` (axes, points)."""
        at = [self._pixels(place, axis, mode) for axis, place in enumerate(places)]
        if mode == "nearest":
            index, inside = self._index([place.astype(np.int64) for place in at])
            np.copyto(result, image[:, index], where=inside)
            return
        taps, kernel = ((0, 1), _linear_weights) if mode == "linear" else ((-1, 0, 1, 2), _cubic_weights)
        low = [np.floor(place) for place in at]
        weights = [kernel(place - floor) for place, floor in zip(at, low, strict=True)]
        real = result.real.dtype
        for offset in product(range(len(taps)), repeat=len(at)):
            index, inside = self._index([f.astype(np.int64) + taps[o] for f, o in zip(low, offset, strict=True)])
            weight = np.prod([w[o] for w, o in zip(weights, offset, strict=True)], axis=0).astype(real)
            result += np.where(inside, image[:, index] * weight, 0)

    def _borders(self, axis: int) -> tuple[float, float]:
        return (0.0, self.sizes[axis] - 1.0) if self.corners else (-0.5, self.sizes[axis] - 0.5)

    def _pixels(self, place: Array, axis: int, mode: str) -> Array:
        """Coordinates in pixels, brought inside where the padding says so."""
        size = self.sizes[axis]
        pixels = (place + 1) / 2 * (size - 1) if self.corners else ((place + 1) * size - 1) / 2
        at: Array = np.nan_to_num(pixels, nan=-_FAR, posinf=_FAR, neginf=-_FAR).clip(-_FAR, _FAR)
        if mode == "cubic":
            return at  # as in PyTorch and ONNX Runtime, only the pixels around are brought inside
        if mode == "nearest":
            at = np.rint(at)  # halves to even, as in PyTorch
        low, high = self._borders(axis)
        if self.padding == "border":
            at = np.where((at < low) | (at > high), at.clip(0, size - 1), at)
        elif self.padding == "reflection":
            at = _reflected(at, low, high)
        return at

    def _index(self, at: Sequence[Array]) -> tuple[Array, Array]:
        """Flat indices of pixels, and which of them are inside; all can be read."""
        index = np.zeros(at[0].shape, np.int64)
        inside = np.ones(at[0].shape, np.bool_)
        for axis, (place, size) in enumerate(zip(at, self.sizes, strict=True)):
            if self.padding == "zeros":
                inside &= (place >= 0) & (place < size)
            elif self.padding == "reflection":
                place = _reflected(place.astype(np.float64), *self._borders(axis)).astype(np.int64)
            index = index * size + place.clip(0, size - 1)
        return index, inside


def _reflected(at: Array, low: float, high: float) -> Array:
    """`at` mirrored at the borders until it lies between them."""
    span = high - low
    if span <= 0:
        return np.full_like(at, low)
    out = np.where(at < low, low - at, at - high)
    turns = np.floor(out / span)
    rest = out - turns * span
    # from below, the first mirror image runs forward from `low`; from above, backward from `high`
    forward = (turns % 2 == 0) == (at < low)
    mirrored = np.where(forward, low + rest, high - rest).astype(at.dtype)
    return np.where((at < low) | (at > high), mirrored, at)


def _linear_weights(near: Array) -> list[Array]:
    return [1 - near, near]


def _cubic_weights(near: Array, a: float = -0.75) -> list[Array]:
    def inner(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def outer(d: Array) -> Array:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [outer(near + 1), inner(near), inner(1 - near), outer(2 - near)]


def max_roi_pool(node: Node, x: Array, rois: Array) -> Array:
    return in_compute_dtype(partial(_max_roi_pool, node.attrs), x, rois)


def _max_roi_pool(attrs: Attrs, x: Array, rois: Array) -> Array:
    """Regions are whole pixels, both ends included; cells may overlap, and empty ones are 0."""
    height, width = attrs["pooled_shape"]
    y = np.zeros((rois.shape[0], x.shape[1], height, width), x.dtype)
    for roi, result in zip(rois, y, strict=True):
        image = x[_batch_index(roi[0], x.shape[0])]
        x1, y1, x2, y2 = _round(roi[1:] * rois.dtype.type(attrs["spatial_scale"]))
        rows = _cells(y1, y2, height, x.shape[2])
        columns = _cells(x1, x2, width, x.shape[3])
        for (row, (top, bottom)), (column, (left, right)) in product(enumerate(rows), enumerate(columns)):
            if top < bottom and left < right:
                result[:, row, column] = image[:, top:bottom, left:right].max(axis=(1, 2))
    return y


def _batch_index(value: Array, batch: int) -> int:
    index = int(value)
    if not 0 <= index < batch:
        raise IndexError(f"a region names image {index} of a batch of {batch}")
    return index


def _round(values: Array) -> Array:
    """Halves away from zero."""
    result: Array = np.trunc(values + np.copysign(0.5, values).astype(values.dtype))
    return result


def _cells(start: Array, end: Array, count: int, size: int) -> list[tuple[int, int]]:
    cell = np.maximum(end - start + 1, 1) / count
    steps = np.arange(count, dtype=cell.dtype)
    first = (np.floor(steps * cell) + start).clip(0, size).astype(np.int64)
    last = (np.ceil((steps + 1) * cell) + start).clip(0, size).astype(np.int64)
    return list(zip(first.tolist(), last.tolist(), strict=True))


def roi_align(node: Node, x: Array, rois: Array, batch_indices: Array) -> Array:
    return in_compute_dtype(lambda data, regions: _roi_align(node, data, regions, batch_indices), x, rois)


def _roi_align(node: Node, x: Array, rois: Array, batch_indices: Array) -> Array:
    attrs, kind = node.attrs, rois.dtype.type
    # before version 16 nothing was shifted by half a pixel
    aligned = node.version >= 16 and attrs["coordinate_transformation_mode"] == "half_pixel"
    pooled = (attrs["output_height"], attrs["output_width"])
    corners = rois * kind(attrs["spatial_scale"]) - kind(0.5 if aligned else 0)
    y = np.zeros((rois.shape[0], x.shape[1], *pooled), x.dtype)
    if x.size == 0:
        return y
    for result, (x1, y1, x2, y2), batch in zip(y, corners, batch_indices, strict=True):
        image = x[_batch_index(batch, x.shape[0])]
        extents = [y2 - y1, x2 - x1] if aligned else [max(y2 - y1, kind(1)), max(x2 - x1, kind(1))]
        ratio = attrs["sampling_ratio"]
        samples = [ratio or _sample_count(e / count) for e, count in zip(extents, pooled, strict=True)]
        if min(samples) < 1:
            continue
        if prod(samples) * prod(pooled) > _SAMPLE_LIMIT:
            raise ValueError(f"a region of {extents[0]} × {extents[1]} takes more than {_SAMPLE_LIMIT} samples")
        rows = _line(y1, extents[0], pooled[0], samples[0], x.shape[2])
        columns = _line(x1, extents[1], pooled[1], samples[1], x.shape[3])
        values = _corner_values(image, rows, columns)
        cells = (x.shape[1], pooled[0], samples[0], pooled[1], samples[1])
        if attrs["mode"] == "avg":
            result[:] = sum(values).reshape(cells).sum(axis=(2, 4)) / kind(prod(samples))  # type: ignore[union-attr]
        else:
            result[:] = np.maximum.reduce(values).reshape(cells).max(axis=(2, 4))
    return y


def _sample_count(size: Array) -> int:
    return int(np.ceil(size)) if np.isfinite(size) else 0


Line = tuple[tuple[Array, Array], tuple[Array, Array]]


def _line(start: Array, length: Array, cells: int, samples: int, size: int) -> Line:
    """Along one axis, the two pixels around each sample and their weights; 0 outside the image."""
    cell = length / cells
    steps = ((np.arange(samples) + 0.5).astype(cell.dtype) * cell) / cell.dtype.type(samples)
    at = (start + np.arange(cells, dtype=cell.dtype)[:, None] * cell + steps).reshape(-1)
    inside = (at >= -1) & (at <= size)
    at = np.where(inside, at, 0).clip(0, size - 1)
    low = np.floor(at).astype(np.int64)
    near = at - low
    return (low, np.where(inside, 1 - near, 0)), (np.minimum(low + 1, size - 1), np.where(inside, near, 0))


def _corner_values(image: Array, rows: Line, columns: Line) -> list[Array]:
    """The four weighed neighbours of every sample."""
    return [
        image[:, row[:, None], column] * (row_weight[:, None] * column_weight).astype(image.dtype)
        for (row, row_weight), (column, column_weight) in product(rows, columns)
    ]


def non_max_suppression(
    node: Node,
    boxes: Array,
    scores: Array,
    max_boxes: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
) -> Array:
    """Rows of batch, class and box, by falling score within each class; of equal scores the first box comes first."""
    limit = int(max_boxes.reshape(-1)[0]) if max_boxes is not None and max_boxes.size else 0
    overlap = iou_threshold.reshape(-1)[0] if iou_threshold is not None and iou_threshold.size else 0
    if boxes.shape[0] != scores.shape[0] or boxes.shape[1] != scores.shape[2]:
        raise ValueError(f"boxes of the shape {list(boxes.shape)} do not fit scores of {list(scores.shape)}")
    corners = _corners(boxes, bool(node.attrs.get("center_point_box", 0)))
    picked = [np.empty((0, 3), np.int64)]
    for batch, label in product(range(scores.shape[0]), range(scores.shape[1]) if limit > 0 else ()):
        row = scores[batch, label]
        order = np.argsort(-row, kind="stable")
        if score_threshold is not None and score_threshold.size:
            order = order[row[order] > score_threshold.reshape(-1)[0]]
        kept = _suppressed(corners[batch], order, limit, overlap)
        picked.append(np.stack([np.full_like(kept, batch), np.full_like(kept, label), kept], axis=1))
    return np.concatenate(picked)


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as low and high corners: x and y in any order, as long as it is the same one."""
    if centred:
        half = boxes[..., 2:] / 2
        return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _suppressed(boxes: Array, order: Array, limit: int, overlap: Array | int) -> Array:
    """The boxes that stay: best first, each drops those behind it that overlap it by more than `overlap`."""
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[~(_iou(boxes[best], boxes[order]) > overlap)]
    return np.array(kept, np.int64)


def _iou(box: Array, others: Array) -> Array:
    """Intersection over union of `box` with each of `others`; 0 where nothing is shared."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], 0)
    area = (box[2:] - box[:2]).prod()
    union = area + (others[:, 2:] - others[:, :2]).prod(axis=1) - shared
    return np.where(shared > 0, shared / union, 0).astype(box.dtype)
