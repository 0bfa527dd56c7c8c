"""Attention in NumPy: the softmax kind with masks and caches, the recurrent kind, and rotary positions.

Types narrower than f32 are computed in f32 and rounded where the operator's text names a result of that type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tierup.ir.graph import Graph, Node
from tierup.ir.types import Array, dtype_from_code
from tierup.reference.bind import RunGraph
from tierup.reference.matrix import matmul, work_dtype


def split_heads(x: Array, heads: int) -> Array:
    """(batch, sequence, heads · size) -> (batch, heads, sequence, size)."""
    batch, length, hidden = x.shape
    return x.reshape(batch, length, heads, hidden // heads).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """(batch, heads, sequence, size) -> (batch, sequence, heads · size)."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def softmax(x: Array, *, masked_rows_zero: bool = True) -> Array:
    """Softmax over the last axis; a row of nothing but -inf becomes zeros, or NaN if asked.

    In a narrow type every step rounds, as ONNX's own implementation does; only the sum is taken in f32.
    """
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    if masked_rows_zero:
        top = np.where(np.isneginf(top), np.zeros_like(top), top)
    powers = np.exp(x - top)
    total = powers.sum(axis=-1, keepdims=True, dtype=work_dtype(x.dtype)).astype(x.dtype)
    if masked_rows_zero:
        total = np.where(total == 0, np.ones_like(total), total)
    return np.asarray(powers / total)


def repeat_heads(x: Array, heads: int) -> Array:
    """Each of the key or value heads as often as query heads share it."""
    if x.shape[1] == heads:
        return x
    if x.shape[1] == 0 or heads % x.shape[1]:
        raise ValueError(f"{heads} query heads cannot share {x.shape[1]} key and value heads")
    return np.repeat(x, heads // x.shape[1], axis=1)


def scores_of(q: Array, k: Array, scale: float | None) -> Array:
    """q · kᵀ · scale. The scale goes half to each side, so that narrow types do not overflow."""
    factor = 1.0 / np.sqrt(q.shape[-1]) if scale is None else scale
    half = q.dtype.type(np.sqrt(abs(factor)))
    signed = q.dtype.type(np.copysign(half, factor))
    return matmul(q * signed, np.swapaxes(k * half, -1, -2))


def attention(
    node: Node,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    valid: Array | None = None,
) -> tuple[Array, ...]:
    attrs = node.attrs
    folded = q.ndim == 3
    if folded:
        q = split_heads(q, attrs["q_num_heads"])
        k, v = (split_heads(x, attrs["kv_num_heads"]) for x in (k, v))
    if (past_key is None) != (past_value is None):
        raise ValueError("the past key and the past value must be given together")
    if past_key is not None and past_value is not None:
        k, v = np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)
    bias = _bias(node, q, k, mask, 0 if past_key is None else past_key.shape[2], valid)
    raw = scores_of(q, repeat_heads(k, q.shape[1]), attrs.get("scale"))
    capped = softcap(raw, attrs.get("softcap", 0.0))
    biased = (capped + bias).astype(q.dtype, copy=False)
    probabilities = softmax(biased.astype(_precision(attrs.get("softmax_precision"), biased)))
    # A row without any key is decided on the bias: its scores may be NaN.
    empty = np.isneginf(bias.astype(work_dtype(bias.dtype)).max(axis=-1, keepdims=True, initial=-np.inf))
    probabilities = np.where(empty, np.zeros_like(probabilities), probabilities).astype(q.dtype, copy=False)
    y = matmul(probabilities, repeat_heads(v, q.shape[1]))
    shown = (raw, capped, biased, probabilities)[attrs.get("qk_matmul_output_mode", 0)]
    return join_heads(y) if folded else y, k, v, shown


def softcap(scores: Array, cap: float) -> Array:
    """cap · tanh(scores / cap), or the scores as they are where the cap is not positive."""
    if cap <= 0:
        return scores
    wide = scores.astype(work_dtype(scores.dtype), copy=False)
    factor = wide.dtype.type(cap)
    return np.asarray(np.tanh(wide / factor) * factor).astype(scores.dtype, copy=False)


def _precision(code: int | None, scores: Array) -> np.dtype[Any]:
    dtype = None if code is None else dtype_from_code(code)
    return scores.dtype if dtype is None else dtype.numpy


def _bias(node: Node, q: Array, k: Array, mask: Array | None, past: int, valid: Array | None) -> Array:
    """What is added to the scores: the mask, and -inf where causality, window or padding forbid a key."""
    queries, keys = q.shape[2], k.shape[2]
    bias = np.zeros((queries, keys), q.dtype)
    if mask is not None:
        bias = np.asarray(bias + _additive(mask, keys, q.dtype, pad=node.version >= 24 or mask.shape[-1:] != (1,)))
    offset: Any = past
    if valid is not None:
        offset = (valid.reshape(-1) - queries).reshape(-1, 1, 1, 1)
    allowed = visible(queries, keys, offset, bool(node.attrs.get("is_causal", 0)), _window(node))
    if valid is not None:
        allowed = allowed & (np.arange(keys) < valid.reshape(-1, 1, 1, 1))
    return np.where(allowed, bias, np.array(-np.inf, bias.dtype))


def _additive(mask: Array, keys: int, dtype: np.dtype[Any], pad: bool) -> Array:
    if mask.dtype == np.bool_:
        mask = np.where(mask, np.array(0, dtype), np.array(-np.inf, dtype))
    mask = mask.astype(dtype, copy=False)
    missing = keys - mask.shape[-1] if mask.ndim and pad else 0
    if missing > 0:
        filler = np.full((*mask.shape[:-1], missing), -np.inf, dtype)
        mask = np.concatenate((mask, filler), axis=-1)
    return mask


def _window(node: Node) -> tuple[int, int]:
    left, right = node.attrs.get("left_window_size", -1), node.attrs.get("right_window_size", -1)
    if min(left, right) < -1:
        raise ValueError(f"window sizes must be -1 or more, but are {left} and {right}")
    return left, right


def visible(queries: int, keys: int, offset: Any, causal: bool, window: tuple[int, int]) -> Array:
    """Which key each query may see; query i stands at position i + offset, and a window side below 0 is open."""
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + offset)
    allowed = np.ones(ahead.shape, np.bool_)
    left, right = window
    if causal:
        allowed &= ahead <= 0
    if left >= 0:
        allowed &= -ahead <= left
    if right >= 0:
        allowed &= ahead <= right
    return allowed


def flex_attention(node: Node, q: Array, k: Array, v: Array, *captures: Any, run: RunGraph | None = None) -> Array:
    """Attention whose scores and probabilities pass through the node's bodies; these take the captures last."""
    scores = scores_of(q, repeat_heads(k, q.shape[1]), node.attrs.get("scale"))
    code = node.attrs.get("softmax_precision")
    dtype = work_dtype(q.dtype) if code is None else _precision(code, scores)
    scores = _modified(node.graph("score_mod"), scores.astype(dtype, copy=False), captures, run)
    probabilities = softmax(scores, masked_rows_zero=False)
    probabilities = _modified(node.graph("prob_mod"), probabilities, captures, run)
    return matmul(probabilities, repeat_heads(v, q.shape[1]).astype(dtype)).astype(q.dtype, copy=False)


def _modified(body: Graph | None, value: Array, captures: Sequence[Any], run: RunGraph | None) -> Array:
    if body is None or run is None:
        return value
    (result,) = run(body, [value, *captures])
    if result.shape != value.shape:
        raise ValueError(f"a body must keep the shape {value.shape}, but returned {result.shape}")
    return np.asarray(result).astype(value.dtype, copy=False)


def linear_attention(
    node: Node,
    q: Array,
    k: Array,
    v: Array,
    past: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
) -> tuple[Array, Array]:
    """The recurrence, one step of time after the other: the state decays, is corrected, written and read."""
    dtype, work = q.dtype, work_dtype(q.dtype)
    heads, groups = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
    key_size = q.shape[-1] // heads
    scale = node.attrs.get("scale") or 1.0 / np.sqrt(key_size)
    queries = split_heads(q.astype(work), heads)
    keys, values = (split_heads(x.astype(work), groups) for x in (k, v))
    gates = None if decay is None else np.exp(split_heads(decay.astype(work), groups))
    rates = None if beta is None else np.swapaxes(beta.astype(work), 1, 2)[..., None]
    batch, _, steps, value_size = values.shape
    shape = (batch, groups, key_size, value_size)
    state = np.zeros(shape, work) if past is None else past.astype(work)
    if state.shape != shape:
        raise ValueError(f"the past state must have the shape {shape}, but has {state.shape}")
    outputs = np.zeros((batch, heads, steps, value_size), work)
    for step in range(steps):
        if gates is not None:
            state = state * gates[:, :, step, :, None]
        key, value = keys[:, :, step, :, None], values[:, :, step]
        if rates is not None:
            value = rates[:, :, step] * (value - (np.swapaxes(state, -1, -2) @ key)[..., 0])
        state = state + key * value[..., None, :]
        outputs[:, :, step] = (queries[:, :, step, None, :] @ np.repeat(state, heads // groups, axis=1))[..., 0, :]
    result = join_heads(outputs * work.type(scale)).astype(dtype)
    return result, state.astype(dtype if past is None else past.dtype)


def rotary_embedding(node: Node, x: Array, cos_cache: Array, sin_cache: Array, positions: Array | None = None) -> Array:
    folded = x.ndim == 3
    heads = split_heads(x, node.attrs["num_heads"]) if folded else x
    cos, sin = (cache if positions is None else take_rows(cache, positions) for cache in (cos_cache, sin_cache))
    size = node.attrs.get("rotary_embedding_dim", 0) or heads.shape[-1]
    result = rotate(heads, cos[:, None], sin[:, None], size, bool(node.attrs.get("interleaved", 0)))
    return join_heads(result) if folded else result


def take_rows(cache: Array, positions: Array) -> Array:
    """The rows of a cache at `positions`, which must lie inside it."""
    if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < cache.shape[0]:
        raise ValueError(f"a position lies outside the {cache.shape[0]} rows of the rotary cache")
    return cache[positions]


def rotate(x: Array, cos: Array, sin: Array, size: int, interleaved: bool) -> Array:
    """Rotate the first `size` channels of x (batch, heads, sequence, channels) in pairs; cos and sin broadcast."""
    if cos.shape[-1] * 2 != size or sin.shape[-1] * 2 != size or size > x.shape[-1]:
        raise ValueError(f"a rotary cache of width {cos.shape[-1]} does not fit {size} of {x.shape[-1]} channels")
    work = work_dtype(x.dtype)
    wide = x.astype(work)
    cos, sin = cos.astype(work), sin.astype(work)
    first = np.s_[..., 0:size:2] if interleaved else np.s_[..., : size // 2]
    second = np.s_[..., 1:size:2] if interleaved else np.s_[..., size // 2 : size]
    result = wide.copy()
    result[first] = cos * wide[first] - sin * wide[second]
    result[second] = sin * wide[first] + cos * wide[second]
    return result.astype(x.dtype, copy=False)
