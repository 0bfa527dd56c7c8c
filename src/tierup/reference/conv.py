"""Convolutions as matrix products: windows laid out as columns, some output rows at a time.

1×1 kernels multiply the data as it lies; depthwise kernels add up shifted slices instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tierup.ir.graph import Attrs, Node
from tierup.ir.types import Array
from tierup.reference.products import multiply_matrices
from tierup.reference.windows import Index, Slide, in_compute_dtype, slides, taps, transposed_slides

_COLUMN_BYTES = 4 << 20  # columns made at once: large enough for the matrix product, small enough for a cache
_SLICE_BYTES = 256 << 10  # what one step of a depthwise convolution touches


def conv(node: Node, x: Array, w: Array, b: Array | None = None) -> Array:
    return in_compute_dtype(partial(convolve, node.attrs), x, w, b)


def convolve(attrs: Attrs, x: Array, w: Array, b: Array | None = None) -> Array:
    """The convolution of arrays that are as wide as they are to be summed up."""
    group = attrs.get("group", 1)
    _check_channels(x.shape[1], w.shape[1] * group)
    axes = slides(attrs, x.shape[2:], w.shape[2:])
    if w.shape[1] == 1 and group > 1:
        y = _depthwise(x, w, axes)
    elif prod(w.shape[2:]) == 1 and not any(a.before or a.after for a in axes):
        y = _pointwise(x, w, axes, group)
    else:
        y = _by_columns(x, w, axes, group)
    return _add_bias(y, b)


def _check_channels(data: int, weight: int) -> None:
    if data != weight:
        raise ValueError(f"the data has {data} channels, the weight wants {weight}")


def _add_bias(y: Array, b: Array | None) -> Array:
    if b is not None:
        y += b.reshape(-1, *(1,) * (y.ndim - 2))
    return y


def _pointwise(x: Array, w: Array, axes: Sequence[Slide], group: int) -> Array:
    out = tuple(a.count for a in axes)
    every: Index = (..., *(slice(None, None, a.stride) for a in axes))
    x = x[every]
    x = x.reshape(x.shape[0], group, w.shape[1], prod(out))
    y: Array = multiply_matrices(w.reshape(group, w.shape[0] // group, w.shape[1]), x)
    return y.reshape(x.shape[0], w.shape[0], *out)


def _depthwise(x: Array, w: Array, axes: Sequence[Slide]) -> Array:
    """Each channel by itself: kernel offset by offset, over as many channels as a cache holds."""
    batch, channels = x.shape[:2]
    out = tuple(a.count for a in axes)
    times = w.shape[0] // channels
    kernel = w.reshape(channels, times, *w.shape[2:])
    y = np.zeros((batch, channels, times, *out), x.dtype)
    step = max(1, _SLICE_BYTES // max(1, times * prod(out) * x.itemsize))
    offsets = list(product(*(list(taps(a)) for a in axes)))
    for image, start in product(range(batch), range(0, channels, step)):
        part = slice(start, start + step)
        data, result, weight = x[image, part], y[image, part], kernel[part]
        scratch = np.empty_like(result)
        for offset in offsets:
            target: Index = (..., *(o for _, o, _ in offset))
            source: Index = (slice(None), None, *(i for _, _, i in offset))
            tap: Index = (..., *(t for t, _, _ in offset))
            factor = weight[tap].reshape(-1, times, *(1,) * len(out))
            np.multiply(data[source], factor, out=scratch[target])
            result[target] += scratch[target]
    return y.reshape(batch, w.shape[0], *out)


def _by_columns(x: Array, w: Array, axes: Sequence[Slide], group: int) -> Array:
    out = tuple(a.count for a in axes)
    row = prod(out[1:])
    weight = w.reshape(group, w.shape[0] // group, w.shape[1] * prod(w.shape[2:]))
    y = np.empty((x.shape[0], *weight.shape[:2], prod(out)), x.dtype)
    step = max(1, _COLUMN_BYTES // max(1, group * weight.shape[2] * row * x.itemsize))
    for image, result in zip(x, y, strict=True):
        patches = np.moveaxis(_patches(_padded(image, axes), axes), w.ndim - 1, 0)
        for start in range(0, out[0], step):
            stop = min(start + step, out[0])
            columns = np.moveaxis(patches[start:stop], 0, w.ndim - 1).reshape(
                group, weight.shape[2], (stop - start) * row
            )
            multiply_matrices(weight, columns, out=result[..., start * row : stop * row])
    return y.reshape(x.shape[0], w.shape[0], *out)


def _padded(image: Array, axes: Sequence[Slide]) -> Array:
    """One image with zeros around it."""
    if not any(a.before or a.after for a in axes):
        return image
    padded = np.zeros((image.shape[0], *(a.before + a.size + a.after for a in axes)), image.dtype)
    middle: Index = (..., *(slice(a.before, a.before + a.size) for a in axes))
    padded[middle] = image
    return padded


def _patches(padded: Array, axes: Sequence[Slide]) -> Array:
    """A view of all windows: channels, kernel offsets, windows. The geometry keeps every one inside the data."""
    strides = padded.strides[1:]
    return as_strided(
        padded,
        (padded.shape[0], *(a.kernel for a in axes), *(a.count for a in axes)),
        (
            padded.strides[0],
            *(s * a.dilation for s, a in zip(strides, axes, strict=True)),
            *(s * a.stride for s, a in zip(strides, axes, strict=True)),
        ),
        writeable=False,
    )


def conv_transpose(node: Node, x: Array, w: Array, b: Array | None = None) -> Array:
    return in_compute_dtype(partial(_conv_transpose, node.attrs), x, w, b)


def _conv_transpose(attrs: Attrs, x: Array, w: Array, b: Array | None) -> Array:
    """Every input element times the whole kernel, added up where the copies of the kernel overlap."""
    group = attrs.get("group", 1)
    _check_channels(x.shape[1], w.shape[0])
    axes = transposed_slides(attrs, x.shape[2:], w.shape[2:])
    weight = w.reshape(group, w.shape[0] // group, w.shape[1] * prod(w.shape[2:])).swapaxes(1, 2)
    y = np.zeros((x.shape[0], group * w.shape[1], *(a.size for a in axes)), x.dtype)
    offsets = list(product(*(list(taps(a)) for a in axes)))
    for image, result in zip(x, y, strict=True):
        parts = multiply_matrices(weight, image.reshape(group, weight.shape[2], prod(x.shape[2:])))
        parts = parts.reshape(group * w.shape[1], *w.shape[2:], *x.shape[2:])
        for offset in offsets:
            source: Index = (slice(None), *(t for t, _, _ in offset), *(i for _, i, _ in offset))
            result[(slice(None), *(o for _, _, o in offset))] += parts[source]
    return _add_bias(y, b)


def causal_conv_with_state(
    node: Node, x: Array, w: Array, b: Array | None = None, past: Array | None = None
) -> tuple[Array, Array]:
    batch, channels, _ = x.shape
    _check_channels(channels, w.shape[0])
    if past is None:
        past = np.zeros((batch, channels, w.shape[2] - 1), x.dtype)
    sequence = np.concatenate([past, x], axis=2)
    y = in_compute_dtype(partial(convolve, Attrs({"group": channels})), sequence, w, b)
    if node.attrs.get("activation", "none") != "none":
        y = in_compute_dtype(lambda v: v / (1 + np.exp(-v)), y)
    return y, sequence[:, :, sequence.shape[2] - (w.shape[2] - 1) :]


def deform_conv(
    node: Node, x: Array, w: Array, offset: Array, b: Array | None = None, mask: Array | None = None
) -> Array:
    return in_compute_dtype(partial(_deform_conv, node.attrs), x, w, offset, b, mask)


def _deform_conv(attrs: Attrs, x: Array, w: Array, offset: Array, b: Array | None, mask: Array | None) -> Array:
    group, parts = attrs.get("group", 1), attrs.get("offset_group", 1)
    _check_channels(x.shape[1], w.shape[1] * group)
    axes = slides(attrs, x.shape[2:], w.shape[2:])
    out = tuple(a.count for a in axes)
    points = prod(w.shape[2:])
    moves = offset.reshape(x.shape[0], parts, points, len(axes), prod(out))
    factors = None if mask is None else mask.reshape(x.shape[0], parts, 1, points * prod(out))
    weight = w.reshape(group, w.shape[0] // group, w.shape[1] * points)
    y = np.empty((x.shape[0], *weight.shape[:2], prod(out)), x.dtype)
    rest = _resting(axes).astype(x.dtype)
    for n, image in enumerate(x):
        places = np.moveaxis(rest + moves[n], 2, 0).reshape(len(axes), parts, points * prod(out))
        columns = _sampled(image.reshape(parts, x.shape[1] // parts, prod(x.shape[2:])), places, axes)
        if factors is not None:
            columns *= factors[n]
        multiply_matrices(weight, columns.reshape(group, weight.shape[2], prod(out)), out=y[n])
    return _add_bias(y.reshape(x.shape[0], w.shape[0], *out), b)


def _resting(axes: Sequence[Slide]) -> Array:
    """Where each kernel point of each window lies before it is moved: points, axes, windows."""
    offsets = np.meshgrid(*(np.arange(a.kernel) * a.dilation - a.before for a in axes), indexing="ij")
    starts = np.meshgrid(*(np.arange(a.count) * a.stride for a in axes), indexing="ij")
    return np.stack([np.add.outer(o.reshape(-1), s.reshape(-1)) for o, s in zip(offsets, starts, strict=True)], axis=1)


def _sampled(image: Array, places: Array, axes: Sequence[Slide]) -> Array:
    """Linear interpolation of `image` (parts, channels, elements) at `places` (axes, parts, points); zero outside."""
    result = np.zeros((*image.shape[:2], places.shape[2]), image.dtype)
    low = np.floor(places)
    near = places - low
    for corner in product((0, 1), repeat=len(axes)):
        weight = np.ones(places.shape[1:], image.dtype)
        index = np.zeros(places.shape[1:], np.int64)
        for a, (slide, up) in enumerate(zip(axes, corner, strict=True)):
            at = low[a] + up
            inside = (at >= 0) & (at < slide.size)
            weight *= np.where(inside, near[a] if up else 1 - near[a], 0)
            index = index * slide.size + np.where(inside, at, 0).astype(np.int64)
        values = np.take_along_axis(image, index[:, None], axis=2)
        result += np.where(weight[:, None] != 0, values * weight[:, None], 0)
    return result
