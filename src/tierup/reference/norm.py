"""Normalisations and Dropout in NumPy. Statistics and affine steps run in f32 or better; results are rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array, dtype_from_code
from tierup.reference.generate import random_state
from tierup.reference.precision import down, up
from tierup.reference.reduce import mean


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """The mean over `axes`, x less it, and the population variance."""
    middle = np.asarray(mean(x, axes))
    centered = np.asarray(x - middle)
    return middle, centered, np.asarray(mean(centered * centered, axes))


def _per_channel(parameter: Array, rank: int) -> Array:
    """A tensor over channels (and, without `spatial`, all axes after) that broadcasts against a batch."""
    missing = max(rank - 1 - parameter.ndim, 0)
    return up(parameter).reshape(parameter.shape + (1,) * missing)


def batch_normalization(
    node: Node, x: Array, scale: Array, bias: Array, old_mean: Array, old_variance: Array
) -> tuple[Array, ...]:
    """Before opset 14 training is asked for by asking for more outputs: running and batch statistics."""
    training = (
        node.attrs.get("training_mode", 0) if node.version >= 14 else any(v is not None for v in node.outputs[1:])
    )
    wide = up(x)
    used: tuple[Array, ...] = (old_mean, old_variance)
    running = used
    if training:
        axes = (0,) if not node.attrs.get("spatial", 1) else (0, *range(2, x.ndim))
        batch_mean, _, batch_variance = _moments(wide, axes)
        used = (batch_mean.reshape(old_mean.shape), batch_variance.reshape(old_variance.shape))
        keep = node.attrs["momentum"]
        running = tuple(
            down(up(old) * keep + new * (1 - keep), old.dtype) for old, new in zip(running, used, strict=True)
        )
    factor = _per_channel(scale, x.ndim) / np.sqrt(_per_channel(used[1], x.ndim) + node.attrs["epsilon"])
    result = (wide - _per_channel(used[0], x.ndim)) * factor + _per_channel(bias, x.ndim)
    saved = () if node.version >= 14 else tuple(down(s, old_mean.dtype) for s in used)
    return (down(result, x.dtype), *running, *saved)


def instance_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    _, centered, variance = _moments(up(x), tuple(range(2, x.ndim)))
    normal = centered / np.sqrt(variance + node.attrs["epsilon"])
    return down(normal * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim), x.dtype)


def group_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    """Scale and bias are one number a group until opset 21, then one a channel."""
    groups = node.attrs["num_groups"]
    samples, channels = x.shape[:2]
    if channels % groups:
        raise ValueError(f"{channels} channels do not divide into {groups} groups")
    wide = _stashed(node, x).reshape(samples, groups, channels // groups, *x.shape[2:])
    _, centered, variance = _moments(wide, tuple(range(2, wide.ndim)))
    normal = (centered / np.sqrt(variance + node.attrs["epsilon"])).reshape(x.shape)
    if node.version < 21:
        scale, bias = (np.repeat(p, channels // groups) for p in (scale, bias))
    return down(normal * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim), x.dtype)


def _stashed(node: Node, x: Array) -> Array:
    """x in the type that attribute `stash_type` asks for, or in its own where that is wider."""
    stash = dtype_from_code(node.attrs.get("stash_type", 1))
    return x.astype(np.float64) if stash is not None and stash.numpy == np.float64 else up(x)


def layer_normalization(node: Node, x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, ...]:
    axes = tuple(range(node.attrs["axis"] % x.ndim, x.ndim))
    middle, centered, variance = _moments(_stashed(node, x), axes)
    inverse = 1.0 / np.sqrt(variance + node.attrs["epsilon"])
    result = centered * inverse * up(scale)
    if bias is not None:
        result = result + up(bias)
    stash = dtype_from_code(node.attrs["stash_type"])
    assert stash is not None  # the type rule has checked it
    return down(result, x.dtype), down(middle, stash.numpy), down(inverse, stash.numpy)


def rms_normalization(node: Node, x: Array, scale: Array) -> Array:
    wide = _stashed(node, x)
    axes = tuple(range(node.attrs["axis"] % x.ndim, x.ndim))
    mean_square = mean(wide * wide, axes)
    return down(wide / np.sqrt(mean_square + node.attrs["epsilon"]) * up(scale), scale.dtype)


def mean_variance_normalization(node: Node, x: Array) -> Array:
    """ONNX's function body adds 1e-9 to the deviation, so that constant data gives 0."""
    _, centered, variance = _moments(up(x), tuple(node.attrs["axes"]))
    return down(centered / (np.sqrt(variance) + 1e-9), x.dtype)


def lp_normalization(node: Node, x: Array) -> Array:
    wide, axis = up(x), node.attrs["axis"]
    if node.attrs["p"] == 1:
        norm = np.sum(np.abs(wide), axis=axis, keepdims=True)
    else:
        norm = np.sqrt(np.sum(wide * wide, axis=axis, keepdims=True))
    return down(np.where(norm == 0, 0, wide / norm), x.dtype)


def lrn(node: Node, x: Array) -> Array:
    """Squares summed over a window of channels, one shifted addition for each place in the window."""
    size, channels = node.attrs["size"], x.shape[1]
    wide = up(x)
    squares, total = wide * wide, np.zeros_like(wide)
    before, after = (size - 1) // 2, size // 2
    for shift in range(max(-before, 1 - channels), min(after, channels - 1) + 1):
        total[:, max(-shift, 0) : channels - max(shift, 0)] += squares[:, max(shift, 0) : channels - max(-shift, 0)]
    scale: Any = (node.attrs["bias"] + node.attrs["alpha"] / size * total) ** node.attrs["beta"]
    return down(wide / scale, x.dtype)


def dropout(node: Node, x: Array, ratio: Array | None = None, training: Array | None = None) -> tuple[Array, Array]:
    """A copy, unless input `training` is true; before opset 10 the mask has the data's type."""
    mask_dtype = x.dtype if node.version < 10 else np.dtype(np.bool_)
    share = 0.5 if ratio is None else float(up(ratio).item())
    if training is None or not training.item() or share == 0:
        return x, np.ones(x.shape, mask_dtype)
    mask = random_state(node).uniform(0, 1.0, x.shape) >= share
    return down(mask * up(x) * (1.0 / (1.0 - share)), x.dtype), mask.astype(mask_dtype)
