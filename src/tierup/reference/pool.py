"""Poolings. Sums and maxima over a window are taken axis by axis, kernel offset by kernel offset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tierup.ir.graph import Attrs, Node
from tierup.ir.types import Array
from tierup.reference.windows import Slide, in_compute_dtype, slides, taps, transposed_slides


def average_pool(node: Node, x: Array) -> Array:
    return in_compute_dtype(partial(_average, node.attrs), x)


def _average(attrs: Attrs, x: Array) -> Array:
    axes = slides(attrs, x.shape[2:], attrs["kernel_shape"])
    y = _reduce(x, axes, np.add, 0)
    for axis, slide in enumerate(axes, start=2):
        count = _counts(slide, bool(attrs.get("count_include_pad", 0)))
        y /= count.astype(y.dtype).reshape(-1, *(1,) * (x.ndim - axis - 1))
    return y


def _counts(slide: Slide, with_padding: bool) -> Array:
    """How many elements each window divides by; what lies behind even the padding never counts."""
    before, after = (slide.before, slide.after) if with_padding else (0, 0)
    start = np.arange(slide.count)[:, None] * slide.stride - slide.before
    # only offsets that some window has inside the counted range; a kernel may be far longer than the data
    reach = min(slide.kernel, (slide.before + slide.size + after) // slide.dilation + 1)
    at = start + np.arange(reach) * slide.dilation
    counts: Array = ((at >= -before) & (at < slide.size + after)).sum(axis=1)
    return counts


def lp_pool(node: Node, x: Array) -> Array:
    return in_compute_dtype(partial(_lp, node.attrs), x)


def _lp(attrs: Attrs, x: Array) -> Array:
    axes = slides(attrs, x.shape[2:], attrs["kernel_shape"])
    p = attrs["p"]
    return _root(_reduce(_power(x, p), axes, np.add, 0), p)


def _power(x: Array, p: int) -> Array:
    size = np.abs(x)
    return size if p == 1 else size * size if p == 2 else size**p


def _root(total: Array, p: int) -> Array:
    result: Array = total if p == 1 else np.sqrt(total) if p == 2 else total ** (1 / p)
    return result


def max_pool(node: Node, x: Array) -> Array | tuple[Array, Array]:
    axes = slides(node.attrs, x.shape[2:], node.attrs["kernel_shape"])
    if len(node.outputs) > 1 and node.outputs[1] is not None:
        return _max_with_indices(x, axes, column_major=node.attrs.get("storage_order", 0) == 1)
    return in_compute_dtype(lambda v: _reduce(v, axes, np.maximum, _lowest(v.dtype)), x)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _reduce(x: Array, axes: Sequence[Slide], combine: Callable[..., Any], start: Any) -> Array:
    """`combine` over every window, one axis after the other."""
    for axis, slide in enumerate(axes, start=2):
        y = np.full((*x.shape[:axis], slide.count, *x.shape[axis + 1 :]), start, x.dtype)
        front = (slice(None),) * axis
        for _, windows, elements in taps(slide):
            target = y[(*front, windows)]
            combine(target, x[(*front, elements)], out=target)
        x = y
    return x


def _max_with_indices(x: Array, axes: Sequence[Slide], column_major: bool) -> tuple[Array, Array]:
    """Maxima and their flat positions in `x`. From the last axis to the first, so that the first of equals wins."""
    best, index = x, np.zeros(x.shape, np.int64)
    for axis in reversed(range(2, x.ndim)):
        slide = axes[axis - 2]
        step = prod(x.shape[2:axis]) if column_major else prod(x.shape[axis + 1 :])
        shape = (*best.shape[:axis], slide.count, *best.shape[axis + 1 :])
        y, at = np.full(shape, _lowest(x.dtype), x.dtype), np.full(shape, -1, np.int64)
        front = (slice(None),) * axis
        for _, windows, elements in taps(slide):
            place = np.arange(elements.start, elements.stop, elements.step).reshape(-1, *(1,) * (x.ndim - axis - 1))
            values, found = best[(*front, elements)], index[(*front, elements)]
            old, where = y[(*front, windows)], at[(*front, windows)]
            better = ((values > old) | (where < 0) | ((values != values) & (old == old))) & (found >= 0)
            np.copyto(old, values, where=better)
            np.copyto(where, found + place * step, where=better)
        best, index = y, at
    plane = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * (x.ndim - 2)) * prod(x.shape[2:])
    return best, np.where(index < 0, index, index + plane)


def global_average_pool(node: Node, x: Array) -> Array:
    return in_compute_dtype(lambda v: v.sum(axis=_spatial(v), keepdims=True) / v.dtype.type(prod(v.shape[2:])), x)


def global_lp_pool(node: Node, x: Array) -> Array:
    p = node.attrs["p"]
    return in_compute_dtype(lambda v: _root(_power(v, p).sum(axis=_spatial(v), keepdims=True), p), x)


def global_max_pool(node: Node, x: Array) -> Array:
    return in_compute_dtype(lambda v: np.max(v, axis=_spatial(v), keepdims=True, initial=-np.inf), x)


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def max_unpool(node: Node, x: Array, indices: Array, output_shape: Array | None = None) -> Array:
    """The indices count in the shape that the attributes give; a larger wanted shape gets zeros behind."""
    kernel = node.attrs["kernel_shape"]
    shape = (*x.shape[:2], *(a.size for a in transposed_slides(node.attrs, x.shape[2:], kernel)))
    if x.shape != indices.shape:
        raise ValueError(f"the indices have the shape {list(indices.shape)}, the data {list(x.shape)}")
    if indices.size and not 0 <= indices.min() <= indices.max() < prod(shape):
        raise IndexError(f"an index is outside the {prod(shape)} elements of the result")
    y = np.zeros(prod(shape), x.dtype)
    y[indices.reshape(-1)] = x.reshape(-1)
    y = y.reshape(shape)
    if output_shape is None or tuple(output_shape) == shape:
        return y
    wanted = tuple(int(size) for size in output_shape)
    if len(wanted) != len(shape) or any(w < s for w, s in zip(wanted, shape, strict=True)):
        raise ValueError(f"output_shape is {list(wanted)}, expected at least {list(shape)}")
    result = np.zeros(wanted, x.dtype)
    result[tuple(map(slice, shape))] = y
    return result
