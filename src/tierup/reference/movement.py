"""Ops that move elements without computing, in NumPy: reshapes, slices, joins, pads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.ops.movement import clamped_slice
from tierup.ir.types import Array

_ROUNDED = frozenset({"float16", "bfloat16"})  # floats whose sums are taken in f32


def _ints(values: Array | None) -> list[int]:
    return [] if values is None else [int(value) for value in np.asarray(values).reshape(-1)]


def _given(node: Node, name: str, values: Array | None) -> list[int] | None:
    """Integers that were an attribute in early opsets and are an input since; None where absent."""
    attribute = node.attrs.get(name)
    if attribute is not None:
        return list(attribute)
    return None if values is None else _ints(values)


def axis_of(axis: int, rank: int) -> int:
    """`axis` counted from the front."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def _axes_of(axes: Iterable[int], rank: int) -> list[int]:
    result = [axis_of(axis, rank) for axis in axes]
    if len(set(result)) != len(result):
        raise ValueError(f"axes {result} name one axis twice")
    return result


def zero_of(dtype: np.dtype[Any]) -> Any:
    """The element that stands for nothing: 0, False or the empty string."""
    return "" if dtype.kind in "OU" else dtype.type(0)


def adds_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which elements of `dtype` are summed."""
    return np.dtype(np.float32) if dtype.name in _ROUNDED or dtype.name.startswith("float8") else dtype


def concat(node: Node, *parts: Array) -> Array:
    return np.concatenate(parts, axis=node.attrs.get("axis", 1))


def shape(node: Node, data: Array) -> Array:
    return np.array(data.shape[node.attrs.get("start", 0) : node.attrs.get("end")], np.int64)


def size(node: Node, data: Array) -> Array:
    return np.array(data.size, np.int64)


def reshape(node: Node, data: Array, target: Array) -> Array:
    return data.reshape(_new_shape(data.shape, _ints(target), bool(node.attrs.get("allowzero", 0))))


def _new_shape(data: Sequence[int], target: list[int], keep_zero: bool) -> list[int]:
    copied = [axis for axis, size in enumerate(target) if size == 0 and not keep_zero]
    if copied and copied[-1] >= len(data):
        raise ValueError(f"size 0 at axis {copied[-1]} copies an axis that a tensor of rank {len(data)} has not")
    result = [data[axis] if axis in copied else size for axis, size in enumerate(target)]
    if target.count(-1) > 1 or min(target, default=0) < -1 or (keep_zero and 0 in target and -1 in target):
        raise ValueError(f"{target} is no shape")
    if -1 in target:
        # copied axes stand on both sides, so the size is clear even if they are empty
        above = prod(size for axis, size in enumerate(data) if axis not in copied)
        below = prod(size for size in target if size > 0)
        if above % below:
            raise ValueError(f"a tensor of shape {list(data)} cannot be reshaped to {target}")
        result[target.index(-1)] = above // below
    if prod(result) != prod(data):
        raise ValueError(f"a tensor of shape {list(data)} cannot be reshaped to {target}")
    return result


def flatten(node: Node, data: Array) -> Array:
    axis = node.attrs.get("axis", 1)
    axis += data.ndim if axis < 0 else 0
    return data.reshape(prod(data.shape[:axis]), prod(data.shape[axis:]))


def squeeze(node: Node, data: Array, axes: Array | None = None) -> Array:
    given = _given(node, "axes", axes)
    if given is None:
        return np.squeeze(data)
    dropped = _axes_of(given, data.ndim)
    for axis in dropped:
        if data.shape[axis] != 1:
            raise ValueError(f"axis {axis} has size {data.shape[axis]}; only axes of size 1 can be squeezed out")
    return np.squeeze(data, tuple(dropped))


def unsqueeze(node: Node, data: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(data, tuple(_given(node, "axes", axes) or ()))


def transpose(node: Node, data: Array) -> Array:
    return np.transpose(data, node.attrs.get("perm"))


def expand(node: Node, data: Array, target: Array) -> Array:
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(_ints(target))))


def tile(node: Node, data: Array, repeats: Array) -> Array:
    times = _ints(repeats)
    if len(times) != data.ndim or min(times, default=0) < 0:
        raise ValueError(f"repeats {times} do not fit a tensor of rank {data.ndim}")
    return np.tile(data, times)


def pad(
    node: Node, data: Array, pads: Array | None = None, value: Array | None = None, axes: Array | None = None
) -> Array:
    widths = _given(node, "pads", pads) or []
    padded = list(range(data.ndim)) if axes is None else _axes_of(_ints(axes), data.ndim)
    if len(widths) != 2 * len(padded):
        raise ValueError(f"{len(padded)} axes need {2 * len(padded)} pads, but there are {len(widths)}")
    pairs = list(zip(padded, widths[: len(padded)], widths[len(padded) :], strict=True))
    mode = node.attrs.get("mode", "constant")
    if mode == "constant":
        return _pad_constant(data, pairs, _fill(node, data, value))
    data = _crop(data, pairs)
    for axis, before, after in pairs:
        if before > 0 or after > 0:
            places = np.arange(-max(before, 0), data.shape[axis] + max(after, 0))
            data = np.take(data, _FOLD[mode](places, data.shape[axis]), axis)
    return data


def _fill(node: Node, data: Array, value: Array | None) -> Any:
    if value is not None:
        return np.asarray(value).reshape(-1)[0]
    return node.attrs.get("value", zero_of(data.dtype))


def _crop(data: Array, pairs: Sequence[tuple[int, int, int]]) -> Array:
    """Negative pads take elements away; this comes first, so that modes repeat only what is kept."""
    window = [slice(None)] * data.ndim
    for axis, before, after in pairs:
        first, last = max(-before, 0), data.shape[axis] + min(after, 0)
        if first > last:
            raise ValueError(f"pads {before} and {after} take more than axis {axis} of size {data.shape[axis]} has")
        window[axis] = slice(first, last)
    return data[tuple(window)]


def _pad_constant(data: Array, pairs: Sequence[tuple[int, int, int]], fill: Any) -> Array:
    kept = _crop(data, pairs)
    total, window = list(kept.shape), [slice(0, size) for size in kept.shape]
    for axis, before, after in pairs:
        first = max(before, 0)
        total[axis] = first + kept.shape[axis] + max(after, 0)
        window[axis] = slice(first, first + kept.shape[axis])
    result = np.full(total, fill, data.dtype)
    result[tuple(window)] = kept
    return result


def _reflect(places: Array, size: int) -> Array:
    """... 2 1 0 1 2 ...: back and forth between the first and the last element."""
    _not_empty(size)
    period = max(2 * (size - 1), 1)
    places = places % period
    return np.minimum(places, period - places) if size > 1 else np.zeros_like(places)


def _edge(places: Array, size: int) -> Array:
    _not_empty(size)
    return np.clip(places, 0, size - 1)


def _wrap(places: Array, size: int) -> Array:
    _not_empty(size)
    return places % size


def _not_empty(size: int) -> None:
    if size == 0:
        raise ValueError("an empty axis has no elements to pad with")


_FOLD = {"reflect": _reflect, "edge": _edge, "wrap": _wrap}


def center_crop_pad(node: Node, data: Array, target: Array) -> Array:
    axes = _axes_of(node.attrs.get("axes", range(data.ndim)), data.ndim)
    sizes = _ints(target)
    if len(sizes) != len(axes) or min(sizes, default=0) < 0:
        raise ValueError(f"sizes {sizes} do not fit {len(axes)} axes")
    return _pad_constant(
        data,
        [(axis, *_centered(data.shape[axis], size)) for axis, size in zip(axes, sizes, strict=True)],
        zero_of(data.dtype),
    )


def _centered(size: int, target: int) -> tuple[int, int]:
    """Pads (negative: crops) before and after; of an odd one, the smaller half comes first."""
    half = abs(target - size) // 2
    before = half if target > size else -half
    return before, target - size - before


def slice_(
    node: Node,
    data: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    first, last = _given(node, "starts", starts) or [], _given(node, "ends", ends) or []
    given = _given(node, "axes", axes)
    sliced = _axes_of(range(len(first)) if given is None else given, data.ndim)
    strides = [1] * len(first) if steps is None else _ints(steps)
    window = [slice(None)] * data.ndim
    for axis, start, end, step in zip(sliced, first, last, strides, strict=True):
        if step == 0:
            raise ValueError("a slice cannot have step 0")
        window[axis] = clamped_slice(data.shape[axis], start, end, step)
    return data[tuple(window)]


def split(node: Node, data: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis = axis_of(node.attrs.get("axis", 0), data.ndim)
    total, count = data.shape[axis], len(node.outputs)
    parts = _given(node, "split", sizes) or _equal_parts(node, total, count)
    if sum(parts) != total or min(parts) < 0 or len(parts) != count:
        raise ValueError(f"the parts {parts} do not fit an axis of size {total} and {count} outputs")
    return tuple(np.split(data, np.cumsum(parts)[:-1], axis))


def _equal_parts(node: Node, total: int, count: int) -> list[int]:
    if node.version < 18 and total % count:
        raise ValueError(f"an axis of size {total} cannot be split into {count} equal parts")
    chunk = -(-total // count)
    return [chunk] * (count - 1) + [total - chunk * (count - 1)]


def depth_to_space(node: Node, data: Array) -> Array:
    batch, depth, height, width = data.shape
    block = node.attrs["blocksize"]
    _divisible(depth, block * block)
    depth //= block * block
    if node.attrs.get("mode", "DCR") == "DCR":
        order, split_depth = (0, 3, 4, 1, 5, 2), (block, block, depth)
    else:
        order, split_depth = (0, 1, 4, 2, 5, 3), (depth, block, block)
    blocks = data.reshape(batch, *split_depth, height, width).transpose(order)
    return blocks.reshape(batch, depth, height * block, width * block)


def space_to_depth(node: Node, data: Array) -> Array:
    batch, depth, height, width = data.shape
    block = node.attrs["blocksize"]
    _divisible(height, block)
    _divisible(width, block)
    blocks = data.reshape(batch, depth, height // block, block, width // block, block)
    order = (0, 3, 5, 1, 2, 4) if node.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(batch, depth * block * block, height // block, width // block)


def _divisible(size: int, by: int) -> None:
    if size % by:
        raise ValueError(f"a size of {size} is not a multiple of {by}")


def col2im(node: Node, data: Array, image_shape: Array, block_shape: Array) -> Array:
    image, block = _ints(image_shape), _ints(block_shape)
    rank = len(image)
    strides = node.attrs.get("strides", (1,) * rank)
    dilations = node.attrs.get("dilations", (1,) * rank)
    pads = node.attrs.get("pads", (0,) * (2 * rank))
    padded = [size + before + after for size, before, after in zip(image, pads[:rank], pads[rank:], strict=True)]
    counts = [
        (size - dilation * (width - 1) - 1) // stride + 1
        for size, dilation, width, stride in zip(padded, dilations, block, strides, strict=True)
    ]
    batch, depth, places = data.shape
    if min(block, default=1) < 1 or min(counts, default=1) < 0 or places != prod(counts) or depth % prod(block):
        raise ValueError(f"blocks of {block} in a picture of {image} do not fit columns of shape {list(data.shape)}")
    channels = depth // prod(block)
    columns = data.astype(adds_in(data.dtype), copy=False).reshape(batch, channels, *block, *counts)
    result = np.zeros((batch, channels, *padded), columns.dtype)
    every: tuple[Any, ...] = (slice(None), slice(None))
    for at in np.ndindex(*block) if data.size else ():
        window = tuple(
            slice(place * dilation, place * dilation + stride * (count - 1) + 1, stride)
            for place, dilation, stride, count in zip(at, dilations, strides, counts, strict=True)
        )
        result[every + window] += columns[every + at]
    inside = tuple(slice(before, before + size) for before, size in zip(pads[:rank], image, strict=True))
    return result[every + inside].astype(data.dtype, copy=False)


def reverse_sequence(node: Node, data: Array, lengths: Array) -> Array:
    batch_axis, time_axis = node.attrs.get("batch_axis", 1), node.attrs.get("time_axis", 0)
    rows = np.moveaxis(data, (batch_axis, time_axis), (0, 1))
    ends = np.asarray(lengths).reshape(-1, 1)
    if ends.size != rows.shape[0] or (ends.size and not 0 <= ends.min() <= ends.max() <= rows.shape[1]):
        raise ValueError(f"sequence_lens must hold {rows.shape[0]} lengths from 0 to {rows.shape[1]}")
    time = np.arange(rows.shape[1])
    places = np.where(time < ends, ends - 1 - time, time)
    return np.moveaxis(rows[np.arange(rows.shape[0])[:, None], places], (0, 1), (batch_axis, time_axis))


def trilu(node: Node, data: Array, k: Array | None = None) -> Array:
    rows, columns = data.shape[-2:]
    offset = 0 if k is None else int(np.asarray(k).reshape(-1)[0])
    offset = max(-rows - 1, min(offset, columns + 1))
    distance = np.arange(columns) - np.arange(rows)[:, None]
    keep = distance >= offset if node.attrs.get("upper", 1) else distance <= offset
    return np.where(keep, data, np.full((), zero_of(data.dtype), data.dtype))
