"""ONNX Runtime's attention ops, out of the same pieces as ONNX's own; in f32 or better, rounded once."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.attention import (
    join_heads,
    masked_softmax,
    repeat_heads,
    rotate,
    scores,
    softcap,
    split_heads,
)  # fmt: skip
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.quant import accumulate, flat

Heads = tuple[ValueId, ValueId, ValueId]  # queries, keys, values: (batch, heads, sequence, size)


def _attention(b: Core, n: Node) -> list[ValueId | None]:
    x, bias = b.input(n), b.given(n, 2)
    projected = b.matmul(b.wide(x), b.wide(b.input(n, 1)))
    if bias is not None:
        projected = b.add(projected, b.wide(bias))
    return _self_attention(b, n, projected, b.given(n, 3), b.given(n, 4), b.given(n, 5), b.dtype(x))


def _quantised_attention(b: Core, n: Node) -> list[ValueId | None]:
    x, w, bias, x_scale, w_scale = (b.input(n, i) for i in range(5))
    scales = b.mul(b.wide(b.reshape(x_scale, ())), b.wide(flat(b, w_scale)))
    total = b.cast(accumulate(b, x, b.given(n, 6), w, b.given(n, 7)), b.dtype(scales))
    projected = b.add(b.mul(total, scales), b.wide(bias))
    return _self_attention(b, n, projected, b.given(n, 5), b.given(n, 8), None, b.dtype(bias))


def _self_attention(
    b: Core,
    n: Node,
    projected: ValueId,
    mask: ValueId | None,
    past: ValueId | None,
    attention_bias: ValueId | None,
    dtype: DType,
) -> list[ValueId | None]:
    """Attention over queries, keys and values that stand side by side in `projected`."""
    third = b.dims.floordiv(b.shape(projected)[2], 3)
    sizes = n.attrs.get("qkv_hidden_sizes") or (third, third, third)
    q, k, v = (split_heads(b, part, n.attrs["num_heads"]) for part in _side_by_side(b, projected, 2, sizes))
    before: Dim = 0
    if past is not None:
        before, shape = b.shape(past)[3], b.shape(past)[1:]
        old = [b.wide(b.reshape(b.part(past, 0, i, i + 1), shape)) for i in range(2)]
        k, v = b.concat([old[0], k], 2), b.concat([old[1], v], 2)
    y, _ = _attend(b, n, (q, k, v), mask, before, attention_bias)
    present = None
    if sizes[1] == sizes[2]:
        present = b.cast(b.concat([b.unsqueeze(part, 0) for part in (k, v)], 0), dtype)
    return [b.cast(join_heads(b, y), dtype), present]


def _side_by_side(b: Core, x: ValueId, axis: int, sizes: tuple[Dim, ...]) -> list[ValueId]:
    """Parts of these sizes, one after another; the last one is what is left."""
    ends = [b.dims.sum(sizes[:i]) for i in range(len(sizes))]
    return [b.part(x, axis, start, end) for start, end in zip(ends, [*ends[1:], b.shape(x)[axis]], strict=True)]


def _attend(
    b: Core, n: Node, heads: Heads, mask: ValueId | None, past: Dim, attention_bias: ValueId | None
) -> tuple[ValueId, ValueId]:
    """The result, and the scores with everything added that softmax sees."""
    q, k, v = heads
    total = scores(b, q, k, n.attrs.get("scale") or None)
    if attention_bias is not None:
        total = b.add(total, b.wide(attention_bias))
    queries, keys = b.shape(q)[2], b.shape(k)[2]
    added = _padding(b, n, mask, b.shape(q)[0], keys, b.dtype(total))
    if n.attrs.get("unidirectional", 0):
        row, column = b.iota((queries, 1), 0), b.iota((1, keys), 1)
        seen = b.le(column, b.add(row, b.scalar(past, DType.I64)))
        last = b.eq(row, b.scalar(b.dims.sub(queries, 1), DType.I64))  # that one sees every key, as in the kernels
        least = b.like(float(np.finfo(b.dtype(total).numpy).min), total)
        added = b.select(b.either(seen, last), b.like(0, total) if added is None else added, least)
    total = total if added is None else b.add(total, added)
    return b.matmul(masked_softmax(b, total), v), total


def _padding(b: Core, n: Node, mask: ValueId | None, batch: Dim, keys: Dim, dtype: DType) -> ValueId | None:
    """0 where a key counts, the filter value where the mask leaves it out; broadcasts to heads and queries."""
    keep = None if mask is None else _kept(b, mask, batch, keys)
    if keep is None:
        return None
    filler = n.attrs.get("mask_filter_value", -10000.0)
    return b.select(keep, b.number(0, dtype), b.number(filler, dtype))


def _kept(b: Core, mask: ValueId, batch: Dim, keys: Dim) -> ValueId | None:
    shape = b.shape(mask)
    if len(shape) == 1:
        return _between(b, mask, batch, keys)
    if len(shape) not in (2, 3):
        raise Declined(f"a mask of rank {len(shape)}")
    keep = b.unsqueeze(b.lt(b.like(0, mask), mask), *((1, 2) if len(shape) == 2 else (1,)))
    if len(shape) == 3 or shape[1] == keys:
        return keep
    # (batch, 1) is a stand-in for no mask, unless there is one key
    single, alone = (b.eq(b.scalar(dim, DType.I64), b.number(1, DType.I64)) for dim in (shape[1], keys))
    if isinstance(shape[1], int) and isinstance(keys, int):
        return None if shape[1] == 1 else keep
    return b.either(keep, b.both(single, b.inverse(alone)))


def _between(b: Core, mask: ValueId, batch: Dim, keys: Dim) -> ValueId:
    """Keys before each row's end and, where the mask has them, not before its start: ends come first."""
    (count,) = b.shape(mask)
    twice = b.dims.mul(2, batch)
    if count not in (batch, twice):
        raise Declined("whether the mask holds ends alone, or starts too, is known only in the call")
    places = b.iota((1, 1, 1, keys), 3)
    ends, *starts = (
        b.reshape(b.cast(b.part(mask, 0, start, end), DType.I64), (batch, 1, 1, 1))
        for start, end in [(0, batch), (batch, twice)][: 1 if count == batch else 2]
    )
    keep = b.lt(places, ends)
    return b.both(keep, b.le(starts[0], places)) if starts else keep


def _multi_head_attention(b: Core, n: Node) -> list[ValueId | None]:
    dtype = b.dtype(b.input(n))
    q, k, v = _heads_of(b, n)
    past_key, past_value = b.given(n, 6), b.given(n, 7)
    before: Dim = 0
    if past_key is not None and past_value is not None:
        before = b.shape(past_key)[2]
        k, v = b.concat([b.wide(past_key), k], 2), b.concat([b.wide(past_value), v], 2)
    y, total = _attend(b, n, (q, k, v), b.given(n, 4), before, b.given(n, 5))
    return [b.cast(value, dtype) for value in (join_heads(b, y), k, v, total)]


def _heads_of(b: Core, n: Node) -> Heads:
    """Queries, keys and values in heads, from any of the forms in which they come."""
    query, key, value, bias = b.wide(b.input(n)), b.given(n, 1), b.given(n, 2), b.given(n, 3)
    heads = n.attrs["num_heads"]
    if b.rank(query) == 5:  # all three packed: (batch, sequence, heads, 3, size)
        q, k, v = (_unpacked(b, query, i) for i in range(3))
        return q, k, v
    width = b.shape(query)[2]
    biases: list[ValueId | None] = [None] * 3
    if bias is not None:
        rest = b.dims.sub(b.shape(bias)[0], b.dims.mul(2, width))
        biases = list(_side_by_side(b, b.wide(bias), 0, (width, width, rest)))

    def split(x: ValueId, addend: ValueId | None) -> ValueId:
        wide = b.wide(x)
        return split_heads(b, wide if addend is None else b.add(wide, addend), heads)

    q = split(query, biases[0])
    if key is not None and b.rank(key) == 5:  # keys and values packed: (batch, sequence, heads, 2, size)
        return q, _unpacked(b, b.wide(key), 0), _unpacked(b, b.wide(key), 1)
    if key is None or value is None:
        raise Declined("keys or values are missing")
    if b.rank(key) == 4:  # already in heads, bias included
        return q, b.wide(key), b.wide(value)
    return q, split(key, biases[1]), split(value, biases[2])


def _unpacked(b: Core, x: ValueId, index: int) -> ValueId:
    """(batch, sequence, heads, several, size) -> one of them as (batch, heads, sequence, size)"""
    batch, length, heads, _, size = b.shape(x)
    return b.transpose(b.reshape(b.part(x, 3, index, index + 1), (batch, length, heads, size)), (0, 2, 1, 3))


class Cached(Struct, frozen=True):
    """Where the new tokens of each row stand: behind `begins` that are there already."""

    begins: ValueId  # (batch, 1)
    ends: ValueId  # (batch, 1): past and new together
    first: ValueId  # whether this is a first prompt, for which the cache counts as empty
    length: Dim  # new tokens
    longest: Dim  # of all rows, past and new together


def _cached(b: Core, n: Node, batch: Dim, length: Dim) -> Cached:
    (longest,) = b.elems(b.input(n, 6), "the longest sequence")
    ends = b.reshape(b.cast(b.input(n, 5), DType.I64), (batch, 1))
    ends = b.add(ends, b.like(1, ends))
    fresh = b.number(1, DType.BOOL)
    if b.given(n, 3) is not None and length != longest:
        fresh = b.eq(b.scalar(length, DType.I64), b.scalar(longest, DType.I64))
    begins = b.select(fresh, b.like(0, ends), b.sub(ends, b.scalar(length, DType.I64)))
    return Cached(begins, ends, fresh, length, longest)


def _group_query_attention(b: Core, n: Node) -> list[ValueId | None]:
    """Causal attention with shared heads and a cache."""
    q, k, v = _grouped_heads(b, n)
    batch, heads, length, _ = b.shape(q)
    cached = _cached(b, n, batch, length)
    if n.attrs.get("do_rotary", 0):
        places = _places(b, cached, b.given(n, 9), batch)
        q, k = (_rotated(b, n, x, places) for x in (q, k))
    keys, values = (_appended(b, b.given(n, 3 + i), new, cached) for i, new in enumerate((k, v)))
    seen_keys, seen_values = (b.part(cache, 2, 0, cached.longest) for cache in (keys, values))
    probabilities, shown = _grouped_scores(b, n, q, seen_keys, cached)
    y = join_heads(b, b.matmul(probabilities, repeat_heads(b, seen_values, heads)))
    return [b.cast(value, b.dtype(b.input(n))) for value in (y, keys, values, shown)]


def _grouped_heads(b: Core, n: Node) -> Heads:
    query, key, value = b.wide(b.input(n)), b.given(n, 1), b.given(n, 2)
    heads, groups = n.attrs["num_heads"], n.attrs["kv_num_heads"]
    if key is None or value is None:
        packed = split_heads(b, query, heads + 2 * groups)
        q, k, v = _side_by_side(b, packed, 1, (heads, groups, groups))
        return q, k, v
    return split_heads(b, query, heads), split_heads(b, b.wide(key), groups), split_heads(b, b.wide(value), groups)


def _places(b: Core, cached: Cached, positions: ValueId | None, batch: Dim) -> ValueId:
    """The position of each new token; a first prompt counts on from one given number for all rows."""
    shape = (batch, cached.length)
    steps = b.iota((1, cached.length), 1)
    if positions is None:
        return b.broadcast(b.add(cached.begins, steps), shape)
    given = b.cast(positions, DType.I64)
    first = b.part(b.reshape(given, (b.dims.product(b.shape(given)),)), 0, 0, 1)
    counted = b.broadcast(b.add(first, steps), shape)
    known = b.out.constant(cached.first)
    if known is not None:
        return counted
    if b.rank(given) != 2:
        raise Declined("positions for each token are known to be there only in the call")
    return b.select(cached.first, counted, given)


def _rotated(b: Core, n: Node, x: ValueId, places: ValueId) -> ValueId:
    cos, sin = (b.unsqueeze(b.gather(b.wide(b.input(n, i)), places, 0), 1) for i in (7, 8))
    size = b.dims.mul(2, b.shape(cos)[3])
    return rotate(b, x, cos, sin, size, bool(n.attrs.get("rotary_interleaved", 0)))


def _appended(b: Core, past: ValueId | None, new: ValueId, cached: Cached) -> ValueId:
    """A cache with the new rows written behind each row's past; zeros where nothing is."""
    batch, groups, length, size = b.shape(new)
    zero = b.like(0, new)
    if past is None:
        return _longer(b, new, b.dims.sub(cached.longest, length))
    before = b.shape(past)[2]
    rows = b.dims.max(cached.longest, before)
    old = _longer(b, b.wide(past), b.dims.sub(rows, before))
    begins = b.reshape(cached.begins, (batch, 1, 1, 1))
    places = b.iota((1, 1, rows, 1), 2)
    own = b.sub(places, begins)
    count = b.scalar(length, DType.I64)
    inside = b.clamp(own, b.like(0, own), b.sub(count, b.like(1, own)))
    fresh = b.op("gather_elements", new, b.broadcast(inside, (batch, groups, rows, size)), axis=2)
    kept = b.select(b.lt(places, begins), old, zero)
    return b.select(b.both(b.le(b.like(0, own), own), b.lt(own, count)), fresh, kept)


def _longer(b: Core, x: ValueId, missing: Dim) -> ValueId:
    """Zeros behind axis 2 of 4."""
    if missing == 0:
        return x
    return b.op("pad", x, b.sizes([0, 0, 0, 0, 0, 0, missing, 0]), b.like(0, x), mode="constant")


def _grouped_scores(b: Core, n: Node, q: ValueId, k: ValueId, cached: Cached) -> tuple[ValueId, ValueId]:
    """The probabilities, and the scores that the op may show: before softmax (1) or after (2)."""
    attrs, attention_bias, sink = n.attrs, b.given(n, 10), b.given(n, 11)
    total = softcap(b, scores(b, q, k, attrs.get("scale") or None), attrs.get("softcap", 0.0))
    if attention_bias is not None:
        wide = b.wide(attention_bias)
        total = b.add(total, b.part(wide, b.rank(wide) - 1, 0, cached.longest))
    allowed = _allowed(b, n, cached)
    total = b.select(allowed, total, b.like(-math.inf, total))
    if sink is None and attrs["smooth_softmax"] != 1:
        probabilities = masked_softmax(b, total)
    else:
        extra = b.like(0, total) if sink is None else b.reshape(b.wide(sink), (1, *b.shape(sink), 1, 1))
        column = b.broadcast(extra, (*b.shape(total)[:3], 1))
        joined = masked_softmax(b, b.concat([total, column], 3))
        probabilities = b.part(joined, 3, 0, cached.longest)
    return probabilities, probabilities if attrs["qk_output"] == 2 else b.select(allowed, total, b.like(0, total))


def _allowed(b: Core, n: Node, cached: Cached) -> ValueId:
    """Which keys each query may see: (batch, 1, queries, keys)."""
    steps = b.iota((1, cached.length), 1)
    stop = b.broadcast(b.scalar(cached.longest, DType.I64), (1, cached.length))
    if n.attrs["causal"]:
        stop = b.add(b.add(cached.begins, steps), b.like(1, steps))
    stop = b.unsqueeze(b.min(stop, cached.ends), 1, 3)
    places = b.iota((1, 1, 1, cached.longest), 3)
    allowed = b.lt(places, stop)
    window = n.attrs["local_window_size"]
    if window < 0:
        return allowed
    return b.both(allowed, b.le(b.sub(stop, b.like(window, stop)), places))


def _rotary_embedding(b: Core, n: Node) -> ValueId:
    """As ONNX's, with the positions second; one number stands for the first of consecutive ones."""
    x, positions = b.input(n), b.input(n, 1)
    caches = [b.wide(b.input(n, i)) for i in (2, 3)]
    size: Dim = n.attrs.get("rotary_embedding_dim", 0) or b.dims.mul(2, b.shape(caches[0])[1])
    folded = b.rank(x) == 3
    count = n.attrs.get("num_heads", 0) or b.dims.floordiv(b.shape(x)[2], size)
    if folded and not isinstance(count, int):
        raise Declined("the number of heads is known only in the call")
    heads = split_heads(b, b.wide(x), int(count)) if folded else b.wide(x)  # type: ignore[arg-type]  # just checked
    if b.rank(positions) < 2:
        if b.shape(positions) not in ((), (1,)):
            raise Declined("positions of rank 1 must be one number")
        batch, _, length, _ = b.shape(heads)
        first = b.reshape(b.cast(positions, DType.I64), (1, 1))
        positions = b.broadcast(b.add(first, b.iota((1, length), 1)), (batch, length))
    cos, sin = (b.unsqueeze(b.gather(cache, positions, 0), 1) for cache in caches)
    turned = rotate(b, heads, cos, sin, size, bool(n.attrs.get("interleaved", 0)))
    return b.cast(b.reshape(join_heads(b, turned), b.shape(x)) if folded else turned, b.dtype(x))


MICROSOFT_ATTENTION: dict[str, Decomposition] = {
    "ms.Attention": _attention,
    "ms.GroupQueryAttention": _group_query_attention,
    "ms.MultiHeadAttention": _multi_head_attention,
    "ms.QAttention": _quantised_attention,
    "ms.RotaryEmbedding": _rotary_embedding,
}
