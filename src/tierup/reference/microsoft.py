"""ONNX Runtime's own float ops in NumPy: fused products, activations, normalisations, and small odds and ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from tierup.ir.graph import Attr, Attrs, Node
from tierup.ir.types import Array
from tierup.reference import special
from tierup.reference.bind import resolve
from tierup.reference.conv import conv
from tierup.reference.core_recurrent import ACTIVATIONS, Activation
from tierup.reference.elementwise import sigmoid
from tierup.reference.matrix import affine, matmul, matmul_wide
from tierup.reference.precision import down, rounded, up

_FUSED: dict[str, Activation] = {
    **ACTIVATIONS,
    "Clip": np.clip,
    "HardSwish": lambda x, a, b: x * np.clip(x / 6 + 0.5, 0, 1),
}
_PARAMETERS = {"Elu": (1.0, 0.0), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, 0.0), "ThresholdedRelu": (1.0, 0.0)}


def as_op(node: Node, op: str, version: int, *inputs: Any, **attrs: Attr) -> Any:
    """What `op` of ONNX computes with this node's attributes and some more."""
    inner = replace(node, op=op, version=version, attrs=Attrs({**node.attrs, **attrs}))
    return resolve(op)(inner, *inputs)


def channels_first(x: Array) -> Array:
    return np.moveaxis(x, -1, 1)


def channels_last(x: Array) -> Array:
    return np.moveaxis(x, 1, -1)


def _activated(x: Array, name: str, given: list[float]) -> Array:
    if not name:
        return x
    alpha, beta = [*given, *_PARAMETERS.get(name, (0.0, 0.0))[len(given) :]]
    return np.asarray(_FUSED[name](x, alpha, beta)).astype(x.dtype, copy=False)


def fused_conv(node: Node, x: Array, w: Array, b: Array | None = None, z: Array | None = None) -> Array:
    y = conv(node, up(x), up(w), None if b is None else up(b))
    if z is not None:
        y = y + up(z)
    return down(_activated(y, node.attrs.get("activation", ""), list(node.attrs.get("activation_params", ()))), x.dtype)


def fused_gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    attrs = node.attrs
    left, right = (a.T if attrs["transA"] else a), (b.T if attrs["transB"] else b)
    y = affine(matmul_wide(left, right), c, attrs["alpha"], attrs["beta"], up(a).dtype)
    given = [attrs[f"activation_{name}"] for name in ("alpha", "beta") if f"activation_{name}" in attrs]
    return down(_activated(y, attrs.get("activation", ""), given), a.dtype)


def fused_matmul(node: Node, a: Array, b: Array) -> Array:
    left = _turned(a, node.attrs.get("transBatchA", 0), node.attrs["transA"])
    right = _turned(b, node.attrs.get("transBatchB", 0), node.attrs["transB"])
    return affine(matmul_wide(left, right), None, node.attrs["alpha"], 1.0, a.dtype)


def _turned(x: Array, batch: int, last: int) -> Array:
    if x.ndim < 2:
        return x
    if batch:
        x = np.moveaxis(x, 0, -2)
    return np.swapaxes(x, -1, -2) if last else x


def gelu(node: Node, x: Array) -> Array:
    return rounded(special.gelu, x)


def bias_gelu(node: Node, x: Array, bias: Array) -> Array:
    return rounded(lambda v, b: special.gelu(v + b), x, bias)


def fast_gelu(node: Node, x: Array, bias: Array | None = None) -> Array:
    """x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))"""

    def formula(v: Array) -> Array:
        inner = np.sqrt(2 / np.pi).astype(v.dtype) * (v + v.dtype.type(0.044715) * v * v * v)
        return np.asarray(v * (v.dtype.type(0.5) * (1 + np.tanh(inner))))

    return rounded(formula if bias is None else lambda v: formula(v + up(bias)), x)


def quick_gelu(node: Node, x: Array) -> Array:
    return rounded(lambda v: v * sigmoid(v.dtype.type(node.attrs["alpha"]) * v), x)


def normalise(x: Array, epsilon: float, centre: bool) -> tuple[Array, Array, Array]:
    """x over the root of its mean square along the last axis, after its mean is taken off; mean and 1/root too."""
    mean = x.mean(axis=-1, keepdims=True) if centre else np.zeros((*x.shape[:-1], 1), x.dtype)
    moved = x - mean
    inverse = 1 / np.sqrt(np.mean(moved * moved, axis=-1, keepdims=True) + x.dtype.type(epsilon))
    return moved * inverse, mean, inverse.astype(x.dtype, copy=False)


def skip_layer_norm(
    node: Node, x: Array, skip: Array, gamma: Array, beta: Array | None = None, bias: Array | None = None
) -> tuple[Array, ...]:
    return _skip_norm(node, x, skip, gamma, beta, bias, centre=True)


def skip_simplified_layer_norm(
    node: Node, x: Array, skip: Array, gamma: Array, bias: Array | None = None
) -> tuple[Array, ...]:
    return _skip_norm(node, x, skip, gamma, None, bias, centre=False)


def _skip_norm(
    node: Node, x: Array, skip: Array, gamma: Array, beta: Array | None, bias: Array | None, centre: bool
) -> tuple[Array, ...]:
    total = up(x) + up(skip)
    if bias is not None:
        total = total + up(bias)
    y, mean, inverse = normalise(total, node.attrs["epsilon"], centre)
    y = y * up(gamma)
    if beta is not None:
        y = y + up(beta)
    return down(y, x.dtype), down(mean, np.dtype(np.float32)), down(inverse, np.dtype(np.float32)), down(total, x.dtype)


def simplified_layer_norm(node: Node, x: Array, scale: Array) -> tuple[Array, Array]:
    axis = node.attrs["axis"] % x.ndim
    flat = up(x).reshape(*x.shape[:axis], -1)
    y, _, inverse = normalise(flat, node.attrs["epsilon"], centre=False)
    inverse = inverse.reshape(*x.shape[:axis], *(1,) * (x.ndim - axis))
    return down(y.reshape(x.shape) * up(scale), scale.dtype), down(inverse, np.dtype(np.float32))


def embed_layer_norm(
    node: Node,
    ids: Array,
    segment_ids: Array | None,
    words: Array,
    positions: Array,
    segments: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Looks up and adds word, position and segment vectors, and normalises the sum; also counts the mask's ones."""
    places = np.arange(ids.shape[1])[None] if position_ids is None else position_ids
    total = _rows(up(words), ids) + _rows(up(positions), places)
    if segments is not None:
        total = total + _rows(up(segments), np.zeros_like(ids) if segment_ids is None else segment_ids)
    y, _, _ = normalise(total, node.attrs["epsilon"], centre=True)
    counts = np.zeros(ids.shape[0], ids.dtype) if mask is None else (mask == 1).sum(axis=1, dtype=ids.dtype)
    return down(y * up(gamma) + up(beta), words.dtype), counts, down(total, words.dtype)


def _rows(table: Array, ids: Array) -> Array:
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < table.shape[0]:
        raise ValueError(f"an id lies outside an embedding of {table.shape[0]} rows")
    return table[ids]


def inverse(node: Node, x: Array) -> Array:
    return rounded(np.linalg.inv, x)


def cdist(node: Node, a: Array, b: Array) -> Array:
    squares = np.sum(a * a, axis=1)[:, None] - 2 * matmul(a, b.T) + np.sum(b * b, axis=1)
    squares = np.maximum(squares, 0)
    return np.asarray(np.sqrt(squares) if node.attrs["metric"] == "euclidean" else squares)


def expand_dims(node: Node, x: Array, axis: Array) -> Array:
    return np.expand_dims(x, int(axis.reshape(-1)[0]))


def trilu(node: Node, x: Array, k: Array | None = None) -> Any:
    return as_op(node, "onnx.Trilu", 14, x, k)


def gather_nd(node: Node, x: Array, indices: Array) -> Any:
    return as_op(node, "onnx.GatherND", 13, x, indices.astype(np.int64), batch_dims=0)


def pad(node: Node, x: Array, pads: Array, value: Array | None = None) -> Any:
    value = None if value is None else value.reshape(())
    return as_op(node, "onnx.Pad", 11, x, pads.reshape(-1), value)


def grid_sample(node: Node, x: Array, grid: Array) -> Any:
    return as_op(node, "onnx.GridSample", 16, x, grid)


def nhwc_max_pool(node: Node, x: Array) -> Array:
    result = as_op(node, "onnx.MaxPool", 12, channels_first(x), storage_order=0)
    return channels_last(result[0] if isinstance(result, tuple) else result)


def range_(node: Node, start: Array, limit: Array, delta: Array | None = None) -> Array:
    step = start.dtype.type(1) if delta is None else delta.reshape(-1)[0]
    return np.arange(start.reshape(-1)[0], limit.reshape(-1)[0], step).astype(start.dtype, copy=False)


def unique(node: Node, x: Array) -> tuple[Array, Array, Array]:
    """The values in the order in which they first occur, where each element's is among them, and their counts."""
    values, first, index, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    place = np.argsort(order)
    return values[order], place[index.reshape(-1)].astype(np.int64), counts[order].astype(np.int64)


def matmul_integer16(node: Node, a: Array, b: Array) -> Array:
    return matmul(a.astype(np.int32), b.astype(np.int32))


def ngram_repeat_block(node: Node, ids: Array, scores: Array) -> Array:
    """-inf for every token that would complete an n-gram which the row of ids already holds."""
    size, length = node.attrs["ngram_size"], ids.shape[1]
    result = scores.copy()
    if length < size:
        return result
    grams = np.lib.stride_tricks.sliding_window_view(ids, size, axis=1)
    repeats = (grams[:, :, : size - 1] == ids[:, None, length - size + 1 :]).all(axis=-1)
    rows, places = np.nonzero(repeats)
    banned = grams[rows, places, -1]
    if banned.size and not 0 <= int(banned.min()) <= int(banned.max()) < scores.shape[1]:
        raise ValueError(f"a token id lies outside the {scores.shape[1]} scores")
    result[rows, banned] = -np.inf
    return result
