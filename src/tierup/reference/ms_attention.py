"""ONNX Runtime's attention ops in NumPy, as its CPU kernels compute them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference.attention import (
    join_heads,
    repeat_heads,
    rotate,
    softcap,
    softmax,
    split_heads,
    take_rows,
    visible,
)
from tierup.reference.matrix import matmul
from tierup.reference.precision import down, up
from tierup.reference.quant import accumulate, by_column


def attention(
    node: Node,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_length: Array | None = None,
) -> tuple[Array, Array]:
    projected = matmul(up(x), up(weights))
    return _self_attention(node, projected if bias is None else projected + up(bias), mask, past, attention_bias, x)


def quantised_attention(
    node: Node,
    x: Array,
    weights: Array,
    bias: Array,
    x_scale: Array,
    w_scale: Array,
    mask: Array | None = None,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    past: Array | None = None,
) -> tuple[Array, Array]:
    scales = up(x_scale).reshape(()) * up(by_column(w_scale))
    projected = accumulate(x, x_zero, weights, w_zero).astype(scales.dtype) * scales + up(bias)
    return _self_attention(node, projected, mask, past, None, bias)


def _self_attention(
    node: Node, projected: Array, mask: Array | None, past: Array | None, attention_bias: Array | None, like: Array
) -> tuple[Array, Array]:
    """Attention over queries, keys and values that stand side by side in `projected`."""
    sizes = node.attrs.get("qkv_hidden_sizes") or (projected.shape[-1] // 3,) * 3
    parts = np.split(projected, (sizes[0], sizes[0] + sizes[1]), axis=-1)
    q, k, v = (split_heads(part, node.attrs["num_heads"]) for part in parts)
    before = 0
    if past is not None:
        before = past.shape[3]
        k, v = (np.concatenate((up(old), new), axis=2) for old, new in zip(past, (k, v), strict=True))
    y, _ = _attend(node, q, k, v, mask, before, attention_bias)
    present = np.stack((k, v)) if k.shape == v.shape else np.empty(0, k.dtype)
    return down(join_heads(y), like.dtype), down(present, like.dtype)


def _attend(
    node: Node, q: Array, k: Array, v: Array, mask: Array | None, past: int, attention_bias: Array | None
) -> tuple[Array, Array]:
    """The result, and the scores with everything added that softmax sees."""
    queries, keys = q.shape[2], k.shape[2]
    scale = node.attrs.get("scale") or 1 / np.sqrt(q.shape[-1])
    scores = matmul(q * q.dtype.type(scale), np.swapaxes(k, -1, -2))
    if attention_bias is not None:
        scores = scores + up(attention_bias)
    added = _padding(node, mask, (q.shape[0], queries, keys), scores.dtype)
    if node.attrs.get("unidirectional", 0):
        allowed = visible(queries, keys, past, True, (-1, -1))
        allowed[-1:] = True  # the last query sees every key: so do the kernels, whatever the lengths
        added = np.where(allowed, added, np.finfo(scores.dtype).min)
    scores = scores + added
    return matmul(softmax(scores), v), scores


def _padding(node: Node, mask: Array | None, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    """0 where a key counts, the filter value where the mask leaves it out; broadcasts to heads and queries."""
    batch, _, keys = shape
    if mask is None or (mask.ndim == 2 and mask.shape[1] == 1 and keys != 1):  # (batch, 1) is a stand-in for no mask
        return np.zeros((1, 1, 1, 1), dtype)
    if mask.ndim == 1:
        keep = np.arange(keys) < mask[:batch, None]
        if mask.size == 2 * batch:
            keep &= np.arange(keys) >= mask[batch:, None]
        elif mask.size != batch:
            raise ValueError(f"a mask of {mask.size} numbers does not fit a batch of {batch}")
        keep = keep[:, None, None]
    elif mask.ndim == 2:
        keep = (mask > 0)[:, None, None]
    elif mask.ndim == 3:
        keep = (mask > 0)[:, None]
    else:
        raise ValueError(f"masks of rank {mask.ndim} are not known")
    filler = node.attrs.get("mask_filter_value", -10000.0)
    return np.asarray(np.where(keep, dtype.type(0), dtype.type(filler)))


def multi_head_attention(
    node: Node,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_length: Array | None = None,
    cache_indirection: Array | None = None,
) -> tuple[Array, ...]:
    q, k, v = _heads_of(node, query, key, value, bias)
    before = 0
    if past_key is not None and past_value is not None:
        before = past_key.shape[2]
        k, v = np.concatenate((up(past_key), k), axis=2), np.concatenate((up(past_value), v), axis=2)
    y, scores = _attend(node, q, k, v, mask, before, attention_bias)
    return tuple(down(result, query.dtype) for result in (join_heads(y), k, v, scores))


def _heads_of(
    node: Node, query: Array, key: Array | None, value: Array | None, bias: Array | None
) -> tuple[Array, Array, Array]:
    """Queries, keys and values as (batch, heads, sequence, size), from any of the forms in which they come."""
    heads = node.attrs["num_heads"]
    if query.ndim == 5:  # all three packed: (batch, sequence, heads, 3, size)
        q, k, v = np.moveaxis(up(query), 3, 0).swapaxes(2, 3)
        return q, k, v
    if key is None:
        raise ValueError("keys are missing")
    width = query.shape[-1]
    q_bias, k_bias, v_bias = (0, 0, 0) if bias is None else np.split(up(bias), (width, 2 * width))
    q = split_heads(up(query) + q_bias, heads)
    if key.ndim == 5:  # keys and values packed: (batch, sequence, heads, 2, size)
        k, v = np.moveaxis(up(key), 3, 0).swapaxes(2, 3)
        return q, k, v
    if value is None:
        raise ValueError("values are missing")
    if key.ndim == 4:  # already in heads, bias included
        return q, up(key), up(value)
    return q, split_heads(up(key) + k_bias, heads), split_heads(up(value) + v_bias, heads)


def group_query_attention(
    node: Node,
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    last: Array,
    total: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    positions: Array | None = None,
    attention_bias: Array | None = None,
    sink: Array | None = None,
    *_: Array | None,
) -> tuple[Array, ...]:
    """Causal attention with shared heads; `last` is where each row's sequence ends, past and new together."""
    attrs = node.attrs
    q, k, v = _grouped_heads(node, query, key, value)
    batch, _, length, _ = q.shape
    longest = int(total.reshape(-1)[0])
    ends = last.reshape(-1).astype(np.int64) + 1
    first = length == longest or past_key is None
    begins = np.zeros(batch, np.int64) if first else ends - length
    if attrs.get("do_rotary", 0):
        if cos_cache is None or sin_cache is None:
            raise ValueError("do_rotary needs the caches of cosines and sines")
        places = _places(begins, length, positions, first)
        q, k = (_rotated(node, x, cos_cache, sin_cache, places) for x in (q, k))
    keys, values = (_appended(old, new, begins, longest) for old, new in ((past_key, k), (past_value, v)))
    probabilities, shown = _grouped_scores(node, q, keys[:, :, :longest], begins, ends, attention_bias, sink)
    y = matmul(probabilities, repeat_heads(values[:, :, :longest], q.shape[1]))
    return tuple(down(result, query.dtype) for result in (join_heads(y), keys, values, shown))


def _grouped_heads(node: Node, query: Array, key: Array | None, value: Array | None) -> tuple[Array, Array, Array]:
    heads, groups = node.attrs["num_heads"], node.attrs["kv_num_heads"]
    if key is None or value is None:
        packed = split_heads(up(query), heads + 2 * groups)
        return packed[:, :heads], packed[:, heads : heads + groups], packed[:, heads + groups :]
    return split_heads(up(query), heads), split_heads(up(key), groups), split_heads(up(value), groups)


def _places(begins: Array, length: int, positions: Array | None, first: bool) -> Array:
    """The position of each new token; a first prompt counts on from one given number for all rows."""
    steps = np.arange(length)
    if positions is None:
        return begins[:, None] + steps
    return np.tile(positions.reshape(-1)[:1] + steps, (len(begins), 1)) if first else positions


def _rotated(node: Node, x: Array, cos_cache: Array, sin_cache: Array, places: Array) -> Array:
    cos, sin = (take_rows(up(cache), places)[:, None] for cache in (cos_cache, sin_cache))
    return rotate(x, cos, sin, 2 * cos.shape[-1], bool(node.attrs.get("rotary_interleaved", 0)))


def _appended(past: Array | None, new: Array, begins: Array, longest: int) -> Array:
    """A cache with the new rows written behind each row's past; zeros where nothing is."""
    batch, groups, length, size = new.shape
    rows = max(longest, 0 if past is None else past.shape[2])
    if length and not 0 <= int(begins.min()) <= int(begins.max()) <= rows - length:
        raise ValueError(f"{length} new tokens do not fit a cache of {rows}")
    result = np.zeros((batch, groups, rows, size), new.dtype)
    for b, begin in enumerate(begins):
        if past is not None:
            result[b, :, :begin] = past[b, :, :begin]
        result[b, :, begin : begin + length] = new[b]
    return result


def _grouped_scores(
    node: Node, q: Array, k: Array, begins: Array, ends: Array, attention_bias: Array | None, sink: Array | None
) -> tuple[Array, Array]:
    """The probabilities, and the scores that the op may show: before softmax (1) or after (2)."""
    attrs = node.attrs
    scale = attrs.get("scale") or 1 / np.sqrt(q.shape[-1])
    scores = matmul(q * q.dtype.type(scale), np.swapaxes(repeat_heads(k, q.shape[1]), -1, -2))
    scores = softcap(scores, attrs.get("softcap", 0.0))
    if attention_bias is not None:
        scores = scores + up(attention_bias)[..., : scores.shape[-1]]
    places = np.arange(k.shape[2])
    stop = begins[:, None] + np.arange(q.shape[2]) + 1 if attrs["causal"] else np.full((1, 1), k.shape[2])
    stop = np.minimum(stop, ends[:, None])[:, None, :, None]
    allowed = places < stop
    if attrs["local_window_size"] >= 0:
        allowed &= places >= stop - attrs["local_window_size"]
    scores = np.where(allowed, scores, scores.dtype.type(-np.inf))
    probabilities = softmax(scores)
    if sink is not None or attrs["smooth_softmax"] == 1:
        extra = np.zeros((1, 1, 1, 1), scores.dtype) if sink is None else up(sink).reshape(1, -1, 1, 1)
        column = np.broadcast_to(extra, (*scores.shape[:-1], 1))
        probabilities = softmax(np.concatenate((scores, column), axis=-1))[..., :-1]
    return probabilities, probabilities if attrs["qk_output"] == 2 else np.where(allowed, scores, 0)


def rotary_embedding(node: Node, x: Array, positions: Array, cos_cache: Array, sin_cache: Array) -> Array:
    """As ONNX's, with the positions second; one number stands for the first of consecutive ones."""
    size = node.attrs.get("rotary_embedding_dim", 0) or 2 * cos_cache.shape[1]
    folded = x.ndim == 3
    count = node.attrs.get("num_heads", 0) or (x.shape[-1] // size if folded else x.shape[1])
    heads = split_heads(up(x), count) if folded else up(x)
    if positions.size == 1 and positions.ndim < 2:
        positions = np.tile(positions.reshape(-1) + np.arange(heads.shape[2]), (heads.shape[0], 1))
    cos, sin = (take_rows(up(cache), positions)[:, None] for cache in (cos_cache, sin_cache))
    result = rotate(heads, cos, sin, size, bool(node.attrs.get("interleaved", 0)))
    return down(join_heads(result) if folded else result, x.dtype)
