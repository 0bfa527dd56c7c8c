"""ONNX Runtime's quantised ops in NumPy.

An op that takes and gives quantised tensors is computed in real numbers between `real` and `round_to`; products of
integers are summed exactly first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference.attention import softmax
from tierup.reference.elementwise import sigmoid
from tierup.reference.matrix import matmul
from tierup.reference.microsoft import as_op, channels_first, channels_last, embed_layer_norm
from tierup.reference.precision import down, up
from tierup.reference.quant import (
    accumulate,
    by_column,
    centred,
    dynamic_range,
    qlinear_conv,
    round_to,
    spread,
)
from tierup.reference.recurrent import Direction, State, lstm_step, run_layer


class Quantised(NamedTuple):
    """A tensor of small numbers that stand for (numbers - zero) · scale."""

    numbers: Array
    scale: Array
    zero: Array | None


def real(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """Quantised numbers as real ones; scale and zero point are one number, or broadcast."""
    wide = up(by_column(scale))
    return centred(x, None if zero_point is None else by_column(zero_point)).astype(wide.dtype) * wide


def quantised(y: Array, scale: Array, zero_point: Array | None, dtype: np.dtype[Any]) -> Array:
    """Real numbers as `dtype` under a scale and zero point of one number each."""
    return round_to(y / up(scale).reshape(()), None if zero_point is None else zero_point.reshape(()), dtype)


def qlinear_binary(node: Node, *inputs: Any) -> Array:
    """Inputs are A and B, each with its scale and zero point, and those of the result."""
    left, right = real(*inputs[:3]), real(*inputs[3:6])
    result = left + right if node.op == "ms.QLinearAdd" else left * right
    return quantised(result, inputs[6], inputs[7] if len(inputs) > 7 else None, inputs[0].dtype)


def qlinear_leaky_relu(
    node: Node, x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None
) -> Array:
    value = real(x, x_scale, x_zero)
    result = np.where(value < 0, value * value.dtype.type(node.attrs["alpha"]), value)
    return quantised(result, y_scale, y_zero, x.dtype)


def qlinear_sigmoid(
    node: Node, x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None
) -> Array:
    return quantised(sigmoid(real(x, x_scale, x_zero)), y_scale, y_zero, x.dtype)


def qlinear_softmax(node: Node, x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array) -> Array:
    """Over one axis, or before opset 13 over all axes from it on."""
    value = real(x, x_scale, x_zero)
    axis = node.attrs["axis"] % x.ndim
    if node.attrs["opset"] < 13:
        rows = int(np.prod(x.shape[:axis], dtype=np.int64))
        result = softmax(value.reshape(rows, x.size // rows if rows else 0)).reshape(x.shape)
    else:
        result = np.moveaxis(softmax(np.moveaxis(value, axis, -1)), -1, axis)
    return quantised(result, y_scale, y_zero, x.dtype)


def qlinear_average_pool(
    node: Node, x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None
) -> Array:
    last = bool(node.attrs["channels_last"])
    value = real(channels_first(x) if last else x, x_scale, x_zero)
    result = quantised(as_op(node, "onnx.AveragePool", 11, value), y_scale, y_zero, x.dtype)
    return channels_last(result) if last else result


def qlinear_global_average_pool(
    node: Node, x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array
) -> Array:
    axes = tuple(range(1, x.ndim - 1)) if node.attrs["channels_last"] else tuple(range(2, x.ndim))
    return quantised(real(x, x_scale, x_zero).mean(axis=axes, keepdims=True), y_scale, y_zero, x.dtype)


def qlinear_concat(node: Node, y_scale: Array, y_zero: Array, *inputs: Array) -> Array:
    """Inputs come in threes: tensor, scale, zero point."""
    parts = [real(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return quantised(np.concatenate(parts, axis=node.attrs["axis"]), y_scale, y_zero, y_zero.dtype)


def qlinear_where(
    node: Node,
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    y: Array,
    y_scale: Array,
    y_zero: Array,
    z_scale: Array,
    z_zero: Array,
) -> Array:
    result = np.where(condition, real(x, x_scale, x_zero), real(y, y_scale, y_zero))
    return quantised(result, z_scale, z_zero, x.dtype)


def nhwc_qlinear_conv(node: Node, x: Array, *rest: Array) -> Array:
    """QLinearConv whose data may have the channels last; the weight keeps ONNX's order."""
    if not node.attrs["channels_last"]:
        return qlinear_conv(node, x, *rest)
    return channels_last(qlinear_conv(node, channels_first(x), *rest))


def quantize_linear(node: Node, x: Array, scale: Array, zero_point: Array | None = None) -> Any:
    return as_op(node, "onnx.QuantizeLinear", 19, x, scale, zero_point)


def dequantize_linear(node: Node, x: Array, scale: Array, zero_point: Array | None = None) -> Any:
    return as_op(node, "onnx.DequantizeLinear", 19, x, scale, zero_point)


def qgemm(node: Node, *inputs: Any) -> Array:
    """alpha · scales · (A' · B' + C); the result stays real where it has no scale.

    Inputs are A and B, each with its scale and zero point, then C, and the scale and zero point of the result.
    """
    (a, a_scale, a_zero), (b, b_scale, b_zero) = inputs[:3], inputs[3:6]
    c, y_scale, y_zero = (*inputs[6:], None, None, None)[:3]
    total = accumulate(a.T if node.attrs["transA"] else a, a_zero, b.T if node.attrs["transB"] else b, b_zero)
    if c is not None:
        total = total + c
    scales = up(a_scale).reshape(()) * up(by_column(b_scale))
    result = total.astype(scales.dtype) * (scales * scales.dtype.type(node.attrs["alpha"]))
    if y_scale is None:
        return down(result, a_scale.dtype)
    return quantised(result, y_scale, y_zero, np.dtype(np.uint8) if y_zero is None else y_zero.dtype)


def matmul_integer_to_float(
    node: Node,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    return down(_scaled_product(Quantised(a, a_scale, a_zero), Quantised(b, b_scale, b_zero), bias), a_scale.dtype)


def _scaled_product(a: Quantised, b: Quantised, bias: Array | None) -> Array:
    scales = up(by_column(a.scale)) * up(by_column(b.scale))
    result = accumulate(a.numbers, a.zero, b.numbers, b.zero).astype(scales.dtype) * scales
    return np.asarray(result if bias is None else result + up(bias))


def dynamic_quantize_matmul(
    node: Node, a: Array, b: Array, b_scale: Array, b_zero: Array | None = None, bias: Array | None = None
) -> Array:
    scale, zero_point = dynamic_range(a)
    small = Quantised(round_to(a / scale, zero_point, np.dtype(np.uint8)), scale, zero_point)
    return down(_scaled_product(small, Quantised(b, b_scale, b_zero), bias), a.dtype)


def unpack(packed: Array, bits: int) -> Array:
    """Bytes as the 2-, 4- or 8-bit numbers that they hold, the lowest bits first, along the last axis."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = np.asarray((packed[..., None] >> shifts) & np.uint8(2**bits - 1))
    return parts.reshape(*packed.shape[:-1], packed.shape[-1] * (8 // bits))


def matmul_nbits(
    node: Node,
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    groups: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """a · Wᵀ, where W is kept as small integers in blocks along its columns, each block with scale and zero point."""
    n, k, bits, block = (node.attrs[name] for name in ("N", "K", "bits", "block_size"))
    blocks = -(-k // block)
    values = unpack(b.reshape(n, -1), bits)[:, :k]
    work = up(a)
    group = np.arange(k) // block if groups is None else groups[:k]
    factor = up(scales).reshape(n, blocks)[:, group].astype(work.dtype)
    offset: Any = 2 ** (bits - 1)
    if zero_points is not None:
        packed = zero_points.dtype == np.uint8
        table = unpack(zero_points.reshape(n, -1), bits) if packed else up(zero_points).reshape(n, -1)
        offset = table[:, :blocks][:, group].astype(work.dtype)
    weight = (values.astype(work.dtype) - offset) * factor
    result = matmul(work, weight.T)
    return down(result if bias is None else result + up(bias), a.dtype)


# The sixteen values of bitsandbytes' 4-bit types, by code: FP4 (sign, two exponent bits, one of mantissa), NF4
# (quantiles of the normal distribution).
_FP4_HALF = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_BNB4 = (
    (*_FP4_HALF, *(-value for value in _FP4_HALF)),
    (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
)  # fmt: skip


def matmul_bnb4(node: Node, a: Array, b: Array, absmax: Array) -> Array:
    """a · W, where W (N, K) is kept flat as 4-bit codes, two a byte, the first in the high half."""
    n, k, block = (node.attrs[name] for name in ("N", "K", "block_size"))
    codes = np.stack((b >> 4, b & 15), axis=-1).reshape(-1)[: n * k]
    work = up(a)
    values = np.array(_BNB4[node.attrs["quant_type"]], np.float32).astype(work.dtype)[codes]
    weight = (values * up(absmax).reshape(-1)[np.arange(n * k) // block]).reshape(n, k)
    return down(matmul(work, weight.T if node.attrs["transB"] else weight), a.dtype)


def gather_block_quantized(
    node: Node, data: Array, indices: Array, scales: Array, zero_points: Array | None = None
) -> Array:
    """Gather from a table of small integers in blocks, made real after the rows were taken."""
    attrs = node.attrs
    gather, axis = attrs["gather_axis"] % data.ndim, attrs["quantize_axis"] % data.ndim
    size = data.shape[gather]
    if indices.size and not -size <= int(indices.min()) <= int(indices.max()) < size:
        raise ValueError(f"an index lies outside an axis of {size}")
    parts = [None if t is None else np.take(t, indices, gather) for t in (data, scales, zero_points)]
    values, factor, offset = parts
    assert values is not None
    assert factor is not None
    bits = attrs["bits"] if data.dtype == np.uint8 else 8
    if bits < 8:
        values = unpack(values, bits)
        offset = None if offset is None else unpack(offset, bits)[..., : factor.shape[-1]]
    if offset is None and data.dtype == np.uint8:
        offset = np.full(factor.shape, 2 ** (attrs["bits"] - 1), np.uint8)
    axis += indices.ndim - 1 if axis > gather else 0
    difference = values.astype(np.float32)
    if offset is not None:
        difference = difference - spread(offset, values.shape, axis, attrs["block_size"]).astype(np.float32)
    wide = up(spread(factor, values.shape, axis, attrs["block_size"]))
    return down(difference.astype(wide.dtype) * wide, scales.dtype)


def qembed_layer_norm(node: Node, ids: Array, segment_ids: Array | None, *rest: Any) -> tuple[Array, Array]:
    """EmbedLayerNormalization on five quantised tables; the mask, their scales and their zero points follow them."""
    mask = rest[5]
    rows = zip(rest[:5], rest[6:11], rest[11:], strict=True)
    wide = [None if table is None else real(table, scale, zero) for table, scale, zero in rows]
    y, counts, _ = embed_layer_norm(node, ids, segment_ids, *wide, mask)  # type: ignore[call-arg,arg-type]  # five tables
    return y, counts


def dynamic_quantize_lstm(
    node: Node,
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None,
    lengths: Array | None,
    h: Array | None,
    c: Array | None,
    peepholes: Array | None,
    w_scale: Array,
    w_zero: Array,
    r_scale: Array,
    r_zero: Array,
) -> tuple[Array, ...]:
    """An LSTM on 8-bit weights: its inputs are rounded to 8 bits at once, its hidden state at every step."""
    weight, recurrence = _gate_weights(w, w_scale, w_zero), _gate_weights(r, r_scale, r_zero)
    rest = (bias, lengths, h, c, peepholes)
    return run_layer(replace(node, op="onnx.LSTM"), _rounded_step, _eight_bits(x), weight, recurrence, rest)


def _rounded_step(layer: Direction, inputs: Array, state: State) -> State:
    h, c = state
    return lstm_step(layer, inputs, (_eight_bits(h), c))


def _eight_bits(x: Array) -> Array:
    """The nearest numbers to x that u8 has under the range of x."""
    scale, zero_point = dynamic_range(x)
    return real(round_to(x / scale, zero_point, np.dtype(np.uint8)), scale, zero_point)


def _gate_weights(w: Array, scale: Array, zero_point: Array) -> Array:
    """(directions, inputs, gates) in 8 bits -> (directions, gates, inputs) in real numbers."""
    columns = [p.reshape(p.shape[0], 1, -1) for p in (scale, zero_point)]
    return real(w, *columns).swapaxes(1, 2)
