"""Core convolution, pools and resize: loops over the places in a window, everything else in one array operation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tierup.ir.graph import Attrs, Node
from tierup.ir.types import Array
from tierup.reference.conv import convolve
from tierup.reference.precision import down, up
from tierup.reference.resize import Axis, interpolated

Places = Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]


def _bytes(x: Array) -> bool:
    return x.dtype.itemsize == 1 and x.dtype.kind in "iu"


def _wide(x: Array) -> Array:
    """Sums of bytes are exact in f64, and its products many times as fast as NumPy's of integers."""
    return x.astype(np.float64) if _bytes(x) else up(x)


def _back(result: Array, x: Array) -> Array:
    return result.astype(np.int64).astype(np.int32) if _bytes(x) else down(result, x.dtype)


def _padded(x: Array, pads: Array, value: Any) -> Array:
    spatial = x.ndim - 2
    begins, ends = pads[:spatial].tolist(), pads[spatial:].tolist()
    if min([*begins, *ends], default=0) < 0:
        raise ValueError(f"pads must not be negative: {pads.tolist()}")
    return np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)], constant_values=value)


def _sizes(sizes: tuple[int, ...], kernel: tuple[int, ...], attrs: Attrs) -> tuple[int, ...]:
    """How many places the window has on each padded axis."""
    rows = zip(sizes, kernel, attrs["strides"], attrs["dilations"], strict=True)
    result = tuple((size - (k - 1) * d - 1) // s + 1 for size, k, s, d in rows)
    if min(result, default=0) < 0:
        raise ValueError(f"a window of {list(kernel)} does not fit sizes {list(sizes)}")
    return result


def _places(kernel: tuple[int, ...], counts: tuple[int, ...], attrs: Attrs) -> Places:
    """Each offset in the window, with the slices of the padded axes that it meets."""
    for offset in product(*map(range, kernel)):
        rows = zip(offset, counts, attrs["strides"], attrs["dilations"], strict=True)
        yield offset, tuple(slice(o * d, o * d + n * s, s) for o, n, s, d in rows)


def _at(weights: Array, offset: tuple[int, ...]) -> Array:
    """The matrices of one place in the kernel, whose axes come last."""
    where: Any = (..., *offset)
    return np.asarray(weights[where])


def conv(node: Node, x: Array, w: Array, pads: Array) -> Array:
    """As `onnx.Conv` computes it: call-outs of compiled plans spend most of their time here."""
    if pads.min(initial=0) < 0:
        raise ValueError(f"pads must not be negative: {pads.tolist()}")
    if node.attrs.get("fill", 0):
        x, pads = _padded(x, pads, node.attrs["fill"]), np.zeros_like(pads)
    attrs = Attrs({**node.attrs, "pads": tuple(pads.tolist())})
    result = convolve(attrs, _wide(x), _wide(w))
    return result if "to" in node.attrs else _back(result, x)


def conv_last(node: Node, x: Array, w: Array, pads: Array) -> Array:
    """The same with the channels last, and the weights as a matrix: places · channels by results."""
    kernel, rank = tuple(node.attrs["kernel_shape"]), x.ndim
    channels = x.shape[-1] // node.attrs["group"]
    weights = np.moveaxis(w.reshape(*kernel, channels, w.shape[1]), (-1, -2), (0, 1))
    first = conv(node, np.moveaxis(x, -1, 1), weights, pads)
    return np.ascontiguousarray(first.transpose(0, *range(2, rank), 1))


def conv_transpose(node: Node, x: Array, w: Array, pads: Array) -> Array:
    """For each offset in the kernel: the channels times its weights, added where the convolution would read them."""
    group, kernel, sizes = node.attrs["group"], w.shape[2:], x.shape[2:]
    values, outputs = _wide(x).reshape(len(x), group, w.shape[0] // group, int(np.prod(sizes))), w.shape[1] * group
    grouped = np.swapaxes(_wide(w).reshape(group, w.shape[0] // group, w.shape[1], *kernel), 1, 2)
    rows = zip(sizes, kernel, node.attrs["strides"], node.attrs["dilations"], node.attrs["output_padding"], strict=True)
    whole = [max((n - 1) * s, 0) + (k - 1) * d + 1 + extra for n, k, s, d, extra in rows]
    result = np.zeros((len(x), outputs, *whole), values.dtype)
    for offset, where in _places(kernel, sizes, node.attrs):
        result[(slice(None), slice(None), *where)] += (_at(grouped, offset) @ values).reshape(len(x), outputs, *sizes)
    spatial = len(sizes)
    cut = [slice(int(pads[i]), whole[i] - int(pads[spatial + i])) for i in range(spatial)]
    return _back(result[(slice(None), slice(None), *cut)], x)


def pool_max(node: Node, x: Array, pads: Array) -> tuple[Array, Array]:
    """The largest, and with equals the first, in each window; NaN wins."""
    values, kernel = up(x), node.attrs["kernel_shape"]
    least = -np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).min
    padded = _padded(values, pads, least)
    flat = _padded(np.arange(x.size).reshape(x.shape), pads, -1)
    counts = _sizes(padded.shape[2:], kernel, node.attrs)
    best = np.full((*x.shape[:2], *counts), least, values.dtype)
    index = np.full(best.shape, -1, np.int64)
    for _, where in _places(kernel, counts, node.attrs):
        met, at = padded[(slice(None), slice(None), *where)], flat[(slice(None), slice(None), *where)]
        better = ((met > best) | (np.isnan(met) & ~np.isnan(best)) | (index < 0)) & (at >= 0)
        best, index = np.where(better, met, best), np.where(better, at, index)
    return down(best, x.dtype), index


def pool_sum(node: Node, x: Array, pads: Array) -> Array:
    values, kernel = up(x), node.attrs["kernel_shape"]
    padded = _padded(values, pads, 0)
    counts = _sizes(padded.shape[2:], kernel, node.attrs)
    result = np.zeros((*x.shape[:2], *counts), values.dtype)
    for _, where in _places(kernel, counts, node.attrs):
        result += padded[(slice(None), slice(None), *where)]
    return down(result, x.dtype)


def resize(node: Node, x: Array, sizes: Array, scales: Array, roi: Array) -> Array:
    """`sizes` say how large the result is, `scales` how its coordinates map to those of `x`."""
    crops = node.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
    axes = [
        Axis(i, size, int(sizes[i]), float(scales[i]), *((float(roi[i]), float(roi[x.ndim + i])) if crops else ()))
        for i, size in enumerate(x.shape)
    ]
    return interpolated(node.attrs, x, axes)
