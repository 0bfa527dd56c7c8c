"""Attention and rotary positions, out of matmuls, selects and a softmax; everything in f32 or better, rounded once."""

from __future__ import annotations

import math

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Dim, DType, dtype_from_code
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.reduce import softmax
from tierup.rewrite.walk import splice


def split_heads(b: Core, x: ValueId, heads: int) -> ValueId:
    """(batch, sequence, heads · size) -> (batch, heads, sequence, size)"""
    batch, length, hidden = b.shape(x)
    apart = b.reshape(x, (batch, length, heads, b.dims.floordiv(hidden, heads)))
    return b.transpose(apart, (0, 2, 1, 3))


def join_heads(b: Core, x: ValueId) -> ValueId:
    """(batch, heads, sequence, size) -> (batch, sequence, heads · size)"""
    batch, heads, length, size = b.shape(x)
    return b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, length, b.dims.mul(heads, size)))


def repeat_heads(b: Core, x: ValueId, heads: Dim) -> ValueId:
    """Each key or value head as often as query heads share it"""
    batch, groups, length, size = b.shape(x)
    if groups == heads:
        return x
    shared = b.dims.floordiv(heads, groups)
    spread = b.broadcast(b.reshape(x, (batch, groups, 1, length, size)), (batch, groups, shared, length, size))
    return b.reshape(spread, (batch, heads, length, size))


def scores(b: Core, q: ValueId, k: ValueId, scale: float | None) -> ValueId:
    """(q · scale) · kᵀ, with 1/√size where no scale is given"""
    shape = b.shape(q)
    size = shape[-1]
    if scale is not None:
        factor = b.like(scale, q)
    elif isinstance(size, int):
        factor = b.like(1 / math.sqrt(size) if size else math.inf, q)
    else:
        factor = b.div(b.like(1, q), b.sqrt(b.scalar(size, b.dtype(q))))
    keys = b.transpose(repeat_heads(b, k, shape[1]), (0, 1, 3, 2))
    return b.matmul(b.mul(q, factor), keys)


def masked_softmax(b: Core, x: ValueId) -> ValueId:
    """Softmax over the last axis; a row of nothing but -inf becomes zeros"""
    axis = b.rank(x) - 1
    top = b.reduce("max", x, (axis,))
    top = b.select(b.eq(top, b.like(-math.inf, x)), b.like(0, x), top)
    powers = b.exp(b.sub(x, top))
    total = b.reduce("sum", powers, (axis,))
    return b.div(powers, b.select(b.eq(total, b.like(0, x)), b.like(1, x), total))


def softcap(b: Core, x: ValueId, cap: float) -> ValueId:
    """cap · tanh(x / cap)"""
    return x if cap <= 0 else b.mul(b.op("tanh", b.div(x, b.like(cap, x))), b.like(cap, x))


def visible(b: Core, queries: Dim, keys: Dim, offset: ValueId, causal: bool, window: tuple[int, int]) -> ValueId | None:
    """Which key each query may see: query i stands at i + offset; None where all are seen"""
    left, right = window
    row, column = b.iota((queries, 1), 0), b.iota((1, keys), 1)
    ahead = b.sub(column, b.add(row, offset))
    seen: list[ValueId] = []
    if causal:
        seen.append(b.le(ahead, b.like(0, ahead)))
    if left >= 0:
        seen.append(b.le(b.like(-left, ahead), ahead))
    if right >= 0:
        seen.append(b.le(ahead, b.like(right, ahead)))
    return _all(b, seen)


def _all(b: Core, conditions: list[ValueId]) -> ValueId | None:
    if not conditions:
        return None
    result = conditions[0]
    for condition in conditions[1:]:
        result = b.both(result, condition)
    return result


def additive_mask(b: Core, mask: ValueId, keys: Dim, dtype: DType, version: int) -> ValueId:
    """0 or -inf for truth values; keys that a short mask leaves out are masked"""
    if b.dtype(mask) is DType.BOOL:
        mask = b.select(mask, b.number(0, dtype), b.number(-math.inf, dtype))
    mask = b.cast(mask, dtype)
    shape = b.shape(mask)
    if not shape or shape[-1] == keys or (version < 24 and shape[-1] == 1):
        return mask
    missing = b.dims.max(b.dims.sub(keys, shape[-1]), 0)
    if version < 24:  # there, a mask of one column is for all keys
        missing = b.dims.select(b.dims.emit("eq", shape[-1], 1), 0, missing)
    pads: list[Dim] = [0] * (2 * len(shape) - 1)
    return b.op("pad", mask, b.sizes([*pads, missing]), b.number(-math.inf, dtype), mode="constant")


def _bias(b: Core, n: Node, q: ValueId, keys: Dim, past: Dim) -> ValueId | None:
    """What is added to the scores: the mask, and -inf where causality, window or padding forbid a key"""
    mask, valid = b.given(n, 3), b.given(n, 6)
    queries = b.shape(q)[2]
    offset = b.scalar(past, DType.I64)
    seen: list[ValueId] = []
    if valid is not None:
        ends = b.reshape(b.cast(valid, DType.I64), (b.dims.product(b.shape(valid)), 1, 1, 1))
        offset = b.sub(ends, b.scalar(queries, DType.I64))
        seen.append(b.lt(b.iota((1, keys), 1), ends))
    window = (n.attrs.get("left_window_size", -1), n.attrs.get("right_window_size", -1))
    reach = visible(b, queries, keys, offset, bool(n.attrs.get("is_causal", 0)), window)
    allowed = _all(b, seen if reach is None else [*seen, reach])
    bias = None if mask is None else additive_mask(b, mask, keys, b.dtype(q), n.version)
    if allowed is None:
        return bias
    return b.select(allowed, b.like(0, q) if bias is None else bias, b.like(-math.inf, q))


def _attention(b: Core, n: Node) -> list[ValueId | None]:
    q, k, v = (b.input(n, i) for i in range(3))
    dtype, folded = b.dtype(q), b.rank(q) == 3
    if folded:
        q = split_heads(b, q, n.attrs["q_num_heads"])
        k, v = (split_heads(b, x, n.attrs["kv_num_heads"]) for x in (k, v))
    past_key, past_value = b.given(n, 4), b.given(n, 5)
    past: Dim = 0
    if past_key is not None and past_value is not None:
        past = b.shape(past_key)[2]
        k, v = b.concat((past_key, k), 2), b.concat((past_value, v), 2)
    wide, keys = b.wide(q), b.shape(k)[2]
    raw = scores(b, wide, b.wide(k), n.attrs.get("scale"))
    capped = softcap(b, raw, n.attrs.get("softcap", 0.0))
    bias = _bias(b, n, wide, keys, past)
    biased = capped if bias is None else b.add(capped, bias)
    weighed = biased
    if bias is not None:  # a row without any key is decided on the bias: its scores may be NaN
        top = b.reduce("max", bias, (b.rank(bias) - 1,))
        weighed = b.select(b.eq(top, b.like(-math.inf, top)), b.like(-math.inf, biased), biased)
    probabilities = b.cast(masked_softmax(b, b.cast(weighed, _precision(b, n, biased))), b.dtype(wide))
    y = b.cast(b.matmul(probabilities, repeat_heads(b, b.wide(v), b.shape(wide)[1])), dtype)
    shown = (raw, capped, biased, probabilities)[n.attrs.get("qk_matmul_output_mode", 0)]
    return [join_heads(b, y) if folded else y, k, v, b.cast(shown, dtype)]


def _precision(b: Core, n: Node, x: ValueId) -> DType:
    """f64 where that is asked for; everything else is computed in f32 or better anyway."""
    code = n.attrs.get("softmax_precision")
    asked = None if code is None else dtype_from_code(code)
    return DType.F64 if asked is DType.F64 else b.dtype(x)


def _flex_attention(b: Core, n: Node) -> ValueId:
    """Attention whose scores and probabilities pass through the node's bodies"""
    q, k, v = (b.wide(b.input(n, i)) for i in range(3))
    heads = b.shape(q)[1]
    dtype = _precision(b, n, q)
    x = _modified(b, n, "score_mod", b.cast(scores(b, q, k, n.attrs.get("scale")), dtype))
    x = _modified(b, n, "prob_mod", softmax(b, x, (b.rank(x) - 1,)))
    return b.cast(b.matmul(x, b.cast(repeat_heads(b, v, heads), dtype)), b.dtype(b.input(n)))


def _modified(b: Core, n: Node, name: str, x: ValueId) -> ValueId:
    body = n.graph(name)
    if body is None:
        return x
    captures = n.inputs[len(n.inputs) - n.attrs.get("captures", 0) :]
    if b.out.dtype(x) is not _dtype(body.type(body.inputs[0])):
        raise Declined("a body takes the scores in another dtype")
    (result,) = splice(b.out, body, [x, *captures])
    return b.cast(result, b.dtype(x))


def _dtype(type: object) -> object:
    return getattr(type, "dtype", None)


def rotate(b: Core, x: ValueId, cos: ValueId, sin: ValueId, size: Dim, interleaved: bool) -> ValueId:
    """The first `size` channels in pairs (p, q): cos · p - sin · q, sin · p + cos · q; the rest as it is"""
    shape = b.shape(x)
    axis, half = len(shape) - 1, b.dims.floordiv(size, 2)
    if interleaved:
        p, q = (b.slice(x, {axis: (start, size, 2)}) for start in (0, 1))
    else:
        p, q = b.part(x, axis, 0, half), b.part(x, axis, half, size)
    turned = [b.sub(b.mul(cos, p), b.mul(sin, q)), b.add(b.mul(sin, p), b.mul(cos, q))]
    if interleaved:
        pairs = b.concat([b.unsqueeze(part, axis + 1) for part in turned], axis + 1)
        joined = b.reshape(pairs, (*b.shape(pairs)[:axis], size))
    else:
        joined = b.concat(turned, axis)
    if size == shape[axis]:
        return joined
    return b.concat([joined, b.part(x, axis, size, shape[axis])], axis)


def _rotary_embedding(b: Core, n: Node) -> ValueId:
    x, positions = b.input(n), b.given(n, 3)
    folded = b.rank(x) == 3
    heads = split_heads(b, x, n.attrs["num_heads"]) if folded else x
    caches = [b.wide(b.input(n, i)) for i in (1, 2)]
    if positions is not None:
        caches = [b.gather(cache, positions, 0) for cache in caches]
    cos, sin = (b.unsqueeze(cache, 1) for cache in caches)
    size: Dim = n.attrs.get("rotary_embedding_dim", 0) or b.shape(heads)[-1]
    turned = rotate(b, b.wide(heads), cos, sin, size, bool(n.attrs.get("interleaved", 0)))
    result = b.cast(turned, b.dtype(x))
    return b.reshape(join_heads(b, result), b.shape(x)) if folded else result


ATTENTION: dict[str, Decomposition] = {
    "onnx.Attention": _attention,
    "onnx.RotaryEmbedding": _rotary_embedding,
    "preview.FlexAttention": _flex_attention,
}
