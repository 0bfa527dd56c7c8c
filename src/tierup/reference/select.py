"""Ops that pick or place elements by index or condition, in NumPy. Every index is checked against its axis."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference.movement import adds_in, axis_of


def _in_range(indices: Array, size: int, axis: int) -> Array:
    """`indices` counted from the front; one outside -size .. size-1 is an error."""
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -size or high >= size:
            bad = low if low < -size else high
            raise IndexError(f"index {bad} is outside axis {axis}, which has size {size}")
        if low < 0:
            return np.where(indices < 0, indices + size, indices)
    return indices


def compress(node: Node, data: Array, condition: Array) -> Array:
    axis = node.attrs.get("axis")
    rows = data.reshape(-1) if axis is None else data
    axis = axis_of(axis or 0, rows.ndim)
    if condition.size > rows.shape[axis]:
        raise ValueError(f"a condition of {condition.size} is longer than the axis, which has {rows.shape[axis]}")
    return np.compress(condition, rows, axis)


def gather(node: Node, data: Array, indices: Array) -> Array:
    axis = axis_of(node.attrs.get("axis", 0), data.ndim)
    places = _in_range(indices, data.shape[axis], axis)
    if data.flags.aligned:
        return np.take(data, places, axis)
    found: Array = data[(slice(None),) * axis + (places,)]  # `take` would copy the whole table first
    return found


def _elementwise(data: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """Index arrays that name, for each element of `indices`, its own place with `axis` replaced."""
    if indices.ndim != data.ndim:
        raise ValueError(f"indices must have rank {data.ndim}, but have {indices.ndim}")
    for at, (size, limit) in enumerate(zip(indices.shape, data.shape, strict=True)):
        if at != axis and size > limit:
            raise IndexError(f"indices have {size} elements in axis {at}, where the data has {limit}")
    places = list(np.ix_(*map(np.arange, indices.shape)))
    places[axis] = _in_range(indices, data.shape[axis], axis)
    return tuple(places)


def gather_elements(node: Node, data: Array, indices: Array) -> Array:
    axis = axis_of(node.attrs.get("axis", 0), data.ndim)
    result: Array = data[_elementwise(data, indices, axis)]
    return result


def _flat_places(data: Array, indices: Array, batch: int) -> tuple[Array, int]:
    """Index tuples as places among the slices that they name, and the number of those slices in a batch."""
    depth = indices.shape[-1]
    if batch + depth > data.ndim or data.shape[:batch] != indices.shape[:batch]:
        raise ValueError(f"indices of shape {list(indices.shape)} do not fit data of shape {list(data.shape)}")
    places = np.zeros(indices.shape[:-1], np.int64)
    for at in range(depth):
        size = data.shape[batch + at]
        places = places * size + _in_range(indices[..., at], size, batch + at)
    return places, prod(data.shape[batch : batch + depth])


def gather_nd(node: Node, data: Array, indices: Array) -> Array:
    batch = node.attrs.get("batch_dims", 0)
    places, count = _flat_places(data, indices, batch)
    batches, rest = prod(data.shape[:batch]), data.shape[batch + indices.shape[-1] :]
    per_batch = prod(places.shape[batch:])
    flat = places.reshape(batches, per_batch) + count * np.arange(batches)[:, None]
    result = data.reshape(batches * count, prod(rest))[flat.reshape(-1)]
    return result.reshape(*places.shape, *rest)


_REDUCE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _place(data: Array, places: Any, updates: Array, reduction: str) -> Array:
    """A copy of `data` with `updates` stored or reduced into `places`; of equal places the last one stays."""
    if reduction == "none":
        result = data.copy()
        result[places] = updates
        return result
    result = data.astype(adds_in(data.dtype))
    _REDUCE[reduction].at(result, places, updates.astype(result.dtype, copy=False))
    return result.astype(data.dtype, copy=False)


def scatter_elements(node: Node, data: Array, indices: Array, updates: Array) -> Array:
    axis = axis_of(node.attrs.get("axis", 0), data.ndim)
    if indices.shape != updates.shape:
        raise ValueError(f"indices {list(indices.shape)} and updates {list(updates.shape)} must have one shape")
    return _place(data, _elementwise(data, indices, axis), updates, node.attrs.get("reduction", "none"))


def scatter_nd(node: Node, data: Array, indices: Array, updates: Array) -> Array:
    places, count = _flat_places(data, indices, 0)
    rest = data.shape[indices.shape[-1] :]
    if updates.shape != places.shape + rest:
        raise ValueError(f"updates must have the shape {[*places.shape, *rest]}, but have {list(updates.shape)}")
    slices = updates.reshape(places.size, prod(rest))
    result = _place(data.reshape(count, prod(rest)), places.reshape(-1), slices, node.attrs.get("reduction", "none"))
    return result.reshape(data.shape)


def tensor_scatter(node: Node, cache: Array, update: Array, starts: Array | None = None) -> Array:
    axis = axis_of(node.attrs.get("axis", -2), cache.ndim)
    result = cache.copy()
    rows, steps = np.moveaxis(result, axis, 1), np.moveaxis(update, axis, 1)
    limit, count = rows.shape[1], steps.shape[1]
    first = np.zeros(cache.shape[0], np.int64) if starts is None else np.asarray(starts).reshape(-1)
    if first.size != cache.shape[0] or count > limit or steps.shape[2:] != rows.shape[2:]:
        raise ValueError(f"an update of shape {list(update.shape)} does not fit a cache of {list(cache.shape)}")
    places = first[:, None] + np.arange(count)
    if node.attrs.get("mode", "linear") == "circular":
        places = places % limit if limit else places
    elif places.size and not 0 <= places.min() <= places.max() < limit:
        raise IndexError(f"steps {int(places.min())} to {int(places.max())} are outside a cache of {limit} steps")
    rows[np.arange(cache.shape[0])[:, None], places] = steps
    return result


def non_zero(node: Node, data: Array) -> Array:
    if data.ndim == 0:  # unlike NumPy, a scalar has no axes to name
        return np.zeros((0, int(bool(data))), np.int64)
    return np.stack(np.nonzero(data)).astype(np.int64, copy=False)


def one_hot(node: Node, indices: Array, depth: Array, values: Array) -> Array:
    size = int(np.asarray(depth).reshape(-1)[0])
    if size < 0:
        raise ValueError(f"depth must be 0 or more, but is {size}")
    places = np.asarray(indices).astype(np.int64)
    axis = axis_of(node.attrs.get("axis", -1), places.ndim + 1)
    places = np.where(places < 0, places + size, places)  # what is still outside meets no class
    classes = np.arange(size).reshape([-1 if at == axis else 1 for at in range(places.ndim + 1)])
    off, on = values.reshape(-1)
    return np.where(np.expand_dims(places, axis) == classes, _scalar(on, values), _scalar(off, values))


def _scalar(value: Any, like: Array) -> Array:
    return np.full((), value, like.dtype)


def _sortable(data: Array) -> Array:
    """The same order in a dtype that NumPy sorts; every narrow float fits f32."""
    return data.astype(np.float32) if adds_in(data.dtype) != data.dtype else data


def top_k(node: Node, data: Array, k: Array | None = None) -> tuple[Array, Array]:
    axis = axis_of(node.attrs.get("axis", -1), data.ndim)
    count = node.attrs["k"] if k is None else int(np.asarray(k).reshape(-1)[0])
    size = data.shape[axis]
    if not 0 <= count <= size:
        raise ValueError(f"the top {count} cannot be taken of an axis of size {size}")
    keys = _sortable(data)
    if node.attrs.get("largest", 1):
        # sorted back to front, so that a stable sort leaves the lower index of two equals first
        order = size - 1 - np.flip(np.argsort(np.flip(keys, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis, kind="stable")
    places = np.take(order, np.arange(count), axis).astype(np.int64, copy=False)
    return np.take_along_axis(data, places, axis), places


def unique(node: Node, data: Array) -> tuple[Array, Array, Array, Array]:
    axis = node.attrs.get("axis")
    rows = data.reshape(-1) if axis is None else data
    axis = axis_of(axis or 0, rows.ndim)
    _, first, inverse, counts = np.unique(
        _codes(rows, axis), return_index=True, return_inverse=True, return_counts=True
    )
    if not node.attrs.get("sorted", 1):
        order = np.argsort(first)
        first, inverse, counts = first[order], np.argsort(order)[inverse], counts[order]
    return np.take(rows, first, axis), _as_i64(first), _as_i64(inverse.reshape(-1)), _as_i64(counts)


def _as_i64(array: Array) -> Array:
    return array.astype(np.int64, copy=False)


def _codes(rows: Array, axis: int) -> Array:
    """For each slice along `axis` one key that sorts as the slices do."""
    keys = _sortable(rows)
    if rows.ndim == 1:
        return keys
    count = rows.shape[axis]
    width = prod(rows.shape) // count if count else 0
    if width == 0:
        return np.zeros(count, np.int64)
    ranks = np.unique(keys, return_inverse=True)[1].reshape(rows.shape)
    # big-endian ranks side by side: bytes compare as the slices do, element by element
    packed = np.ascontiguousarray(np.moveaxis(ranks, axis, 0).reshape(count, width), dtype=">i8")
    return packed.view(np.dtype((np.void, 8 * width))).reshape(count)
