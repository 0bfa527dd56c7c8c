"""ONNX Runtime's quantised ops: made real, computed, and quantised again; integer products stay integer products.

Packed weights stay packed: bytes are taken apart with shifts where they are read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, DType
from tierup.reference.ms_quant import _BNB4
from tierup.rewrite.decompose.core import Core, Decomposition
from tierup.rewrite.decompose.elementwise import leaky, sigmoid
from tierup.rewrite.decompose.matrix import matmul
from tierup.rewrite.decompose.microsoft import as_op, channels_first, channels_last, embed_layer_norm
from tierup.rewrite.decompose.nn import average
from tierup.rewrite.decompose.quant import (
    accumulate,
    blocks,
    dequantize_linear,
    dynamic_quantize,
    flat,
    qlinear_conv,
    quantised,
    quantize_linear,
    real,
    spread,
)  # fmt: skip
from tierup.rewrite.decompose.reduce import softmax
from tierup.rewrite.decompose.select import from_front


def real_of(b: Core, n: Node, x: ValueId, scale: int) -> ValueId:
    """x as real numbers, under the scale that is input `scale` and the zero point behind it."""
    return real(b, x, b.input(n, scale), b.given(n, scale + 1))


def _again(b: Core, n: Node, y: ValueId, scale: int, dtype: DType) -> ValueId:
    """Real numbers under the scale that is input `scale` and the zero point behind it."""
    zero = b.given(n, scale + 1)
    over = b.div(y, b.cast(b.wide(b.reshape(b.input(n, scale), ())), b.dtype(y)))
    return quantised(b, over, None if zero is None else b.reshape(zero, ()), dtype)


def _binary(name: str) -> Decomposition:
    def decomposition(b: Core, n: Node) -> ValueId:
        x, y = real_of(b, n, b.input(n), 1), real_of(b, n, b.input(n, 3), 4)
        return _again(b, n, b.op(name, x, y), 6, b.dtype(b.input(n)))

    return decomposition


def _unary(function: Callable[[Core, Node, ValueId], ValueId]) -> Decomposition:
    """Inputs: x, its scale and zero point, those of the result."""

    def decomposition(b: Core, n: Node) -> ValueId:
        x = b.input(n)
        return _again(b, n, function(b, n, real_of(b, n, x, 1)), 3, b.dtype(x))

    return decomposition


def _leaky(b: Core, n: Node, x: ValueId) -> ValueId:
    return leaky(b, x, b.like(n.attrs["alpha"], x))


def _softmax(b: Core, n: Node, x: ValueId) -> ValueId:
    """Over one axis, or before opset 13 over all axes from it on."""
    rank = b.rank(x)
    axis = b.axis(n.attrs["axis"], rank)
    return softmax(b, x, range(axis, rank) if n.attrs["opset"] < 13 else (axis,))


def _average_pool(b: Core, n: Node, x: ValueId) -> ValueId:
    if not n.attrs["channels_last"]:
        return average(b, x, n.attrs)
    return channels_last(b, average(b, channels_first(b, x), n.attrs))


def _global_average_pool(b: Core, n: Node, x: ValueId) -> ValueId:
    return b.mean(x, range(1, b.rank(x) - 1) if n.attrs["channels_last"] else range(2, b.rank(x)))


def _concat(b: Core, n: Node) -> ValueId:
    """Scale and zero point of the result, then threes: tensor, scale, zero point."""
    parts = [real_of(b, n, b.input(n, i), i + 1) for i in range(2, len(n.inputs), 3)]
    return _again(b, n, b.concat(parts, b.axis(n.attrs["axis"], b.rank(parts[0]))), 0, b.dtype(b.input(n, 1)))


def _where(b: Core, n: Node) -> ValueId:
    x, y = real_of(b, n, b.input(n, 1), 2), real_of(b, n, b.input(n, 4), 5)
    return _again(b, n, b.select(b.input(n), x, y), 7, b.dtype(b.input(n, 1)))


def _nhwc_qlinear_conv(b: Core, n: Node) -> ValueId:
    if not n.attrs["channels_last"]:
        return qlinear_conv(b, n, b.input(n))
    return channels_last(b, qlinear_conv(b, n, channels_first(b, b.input(n))))


def _qgemm(b: Core, n: Node) -> ValueId:
    """alpha · scales · (A' · B' + C); the result stays real where it has no scale."""
    x, x_scale, x_zero, y, y_scale, y_zero = (b.input(n, i) for i in range(6))
    addend, zero = b.given(n, 6), b.given(n, 8)
    x = b.transpose(x, (1, 0)) if n.attrs["transA"] else x
    y = b.transpose(y, (1, 0)) if n.attrs["transB"] else y
    total = accumulate(b, x, x_zero, y, y_zero)
    if addend is not None:
        total = b.add(total, addend)
    scales = b.mul(b.wide(b.reshape(x_scale, ())), b.wide(flat(b, y_scale)))
    factor = b.mul(scales, b.like(n.attrs["alpha"], scales))
    result = b.mul(b.cast(total, b.dtype(scales)), factor)
    if b.given(n, 7) is None:
        return b.cast(result, b.dtype(x_scale))
    return _again(b, n, result, 7, DType.U8 if zero is None else b.dtype(zero))


def _scaled_product(
    b: Core, x: ValueId, x_scale: ValueId, x_zero: ValueId | None, y: ValueId, rest: tuple[ValueId | None, ...]
) -> ValueId:
    """The product of 8-bit matrices in real numbers; `rest`: scale and zero point of y, bias."""
    y_scale, y_zero, bias = rest
    assert y_scale is not None
    scales = b.mul(b.wide(flat(b, x_scale)), b.wide(flat(b, y_scale)))
    result = b.mul(b.cast(accumulate(b, x, x_zero, y, y_zero), b.dtype(scales)), scales)
    return result if bias is None else b.add(result, b.wide(bias))


def _matmul_integer_to_float(b: Core, n: Node) -> ValueId:
    x, y, x_scale, y_scale = (b.input(n, i) for i in range(4))
    rest = (y_scale, b.given(n, 5), b.given(n, 6))
    return b.cast(_scaled_product(b, x, x_scale, b.given(n, 4), y, rest), b.dtype(x_scale))


def _dynamic_quantize_matmul(b: Core, n: Node) -> ValueId:
    x, y, y_scale = (b.input(n, i) for i in range(3))
    small, scale, zero = dynamic_quantize(b, x)
    return b.cast(_scaled_product(b, small, scale, zero, y, (y_scale, b.given(n, 3), b.given(n, 4))), b.dtype(x))


def unpack(b: Core, packed: ValueId, bits: int) -> ValueId:
    """Bytes as the 2-, 4- or 8-bit numbers that they hold, the lowest bits first, along the last axis."""
    if bits == 8:
        return packed
    shape, each = b.shape(packed), 8 // bits
    shifts = b.weight(np.arange(0, 8, bits, dtype=np.uint8))
    parts = b.both(b.op("shr", b.unsqueeze(packed, len(shape)), shifts), b.like(2**bits - 1, packed))
    return b.reshape(parts, (*shape[:-1], b.dims.mul(shape[-1], each)))


def _rows(b: Core, value: ValueId, count: int) -> ValueId:
    """A tensor as a matrix of `count` rows."""
    return b.reshape(value, (count, b.dims.floordiv(b.dims.product(b.shape(value)), count)))


def _matmul_nbits(b: Core, n: Node) -> ValueId:
    """a · Wᵀ, where W is kept as small integers in blocks along its columns, each block with scale and zero point."""
    x, zero_points, groups, bias = b.input(n), b.given(n, 3), b.given(n, 4), b.given(n, 5)
    rows, size, bits, block = (int(n.attrs[name]) for name in ("N", "K", "bits", "block_size"))
    wide = b.wide(x)
    known = _known_blocks(b, n) if groups is None else None
    if known is not None and b.rank(wide) > 1:
        result = b.op("matmul_blocks", wide, *known, block=block)
        return b.cast(result if bias is None else b.add(result, b.wide(bias)), b.dtype(x))
    work, count = b.dtype(wide), -(-size // block)

    def of_column(table: ValueId) -> ValueId:
        """What belongs to each block or group, for each of its columns."""
        table = b.cast(b.part(table, 1, 0, count), work)
        if groups is None:
            return blocks(b, table, 1, block, size)
        return b.gather(table, b.part(groups, 0, 0, size), 1)

    values = b.cast(b.part(unpack(b, _rows(b, b.input(n, 1), rows), bits), 1, 0, size), work)
    offset = b.number(2 ** (bits - 1), work)
    if zero_points is not None:
        packed = b.dtype(zero_points) is DType.U8
        offset = of_column(unpack(b, _rows(b, zero_points, rows), bits if packed else 8))
    weight = b.mul(b.sub(values, offset), of_column(_rows(b, b.input(n, 2), rows)))
    result = matmul(b, wide, b.transpose(weight, (1, 0)))
    return b.cast(result if bias is None else b.add(result, b.wide(bias)), b.dtype(x))


def _known_blocks(b: Core, n: Node) -> tuple[ValueId, ValueId] | None:
    """Wᵀ of MatMulNBits as a constant of bytes, less its zero points, and the scales of its blocks; None where one of
    them is known only in the call, or blocks are not whole."""
    rows, size, bits, block = (int(n.attrs[name]) for name in ("N", "K", "bits", "block_size"))
    packed, scales = (b.out.constant(b.input(n, index)) for index in (1, 2))
    given = b.given(n, 3)
    zeros = None if given is None else b.out.constant(given)
    count = size // block
    if packed is None or scales is None or size % block or (given is not None and zeros is None):
        return None
    if scales.dtype != np.float32 or b.dtype(b.wide(b.input(n))) is not DType.F32:
        return None
    if zeros is not None and zeros.dtype != np.uint8:
        return None
    whole = _numbers(packed.reshape(rows, -1), bits)[:, :size].astype(np.int16)
    if zeros is None:
        whole -= 2 ** (bits - 1)
    else:
        whole -= np.repeat(_numbers(zeros.reshape(rows, -1), bits)[:, :count].astype(np.int16), block, axis=1)
    fits = whole.min(initial=0) >= -128 and whole.max(initial=0) <= 127
    weight = b.weight(np.ascontiguousarray(whole.T.astype(np.int8 if fits else np.int16)))
    return weight, b.weight(np.ascontiguousarray(scales.reshape(rows, count).T))


def _numbers(packed: Array, bits: int) -> Array:
    """What `unpack` makes of a constant."""
    if bits == 8:
        return packed
    parts = packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & (2**bits - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], -1))


def _matmul_bnb4(b: Core, n: Node) -> ValueId:
    """a · W, where W (N, K) is kept flat as 4-bit codes, two a byte, the first in the high half."""
    x, packed, scales = (b.input(n, i) for i in range(3))
    rows, columns, block = (int(n.attrs[name]) for name in ("N", "K", "block_size"))
    wide = b.wide(x)
    pairs = b.unsqueeze(b.reshape(packed, [b.dims.product(b.shape(packed))]), 1)
    codes = b.both(b.op("shr", pairs, b.weight(np.array([4, 0], np.uint8))), b.like(15, packed))
    flat_codes = b.part(b.reshape(codes, [b.dims.product(b.shape(codes))]), 0, 0, rows * columns)
    table = b.weight(np.array(_BNB4[n.attrs["quant_type"]], b.dtype(wide).numpy))
    values = b.gather(table, b.cast(flat_codes, DType.I32), 0)
    largest = b.cast(b.reshape(scales, [b.dims.product(b.shape(scales))]), b.dtype(wide))
    weight = b.reshape(b.mul(values, blocks(b, largest, 0, block, rows * columns)), (rows, columns))
    turned = b.transpose(weight, (1, 0)) if n.attrs["transB"] else weight
    return b.cast(matmul(b, wide, turned), b.dtype(x))


def _gather_block_quantized(b: Core, n: Node) -> ValueId:
    """Gather from a table of small integers in blocks, made real after the rows were taken."""
    data, indices, scales, zeros = b.input(n), b.input(n, 1), b.input(n, 2), b.given(n, 3)
    rank, packed = b.rank(data), b.dtype(data) is DType.U8
    gather, axis = b.axis(n.attrs["gather_axis"], rank), b.axis(n.attrs["quantize_axis"], rank)
    bits, block = n.attrs["bits"] if packed else 8, n.attrs["block_size"]
    places = from_front(b, indices, b.shape(data)[gather])
    values, factor = unpack(b, b.gather(data, places, gather), bits), b.wide(b.gather(scales, places, gather))
    axis += b.rank(indices) - 1 if axis > gather else 0
    shape, work = b.shape(values), b.dtype(factor)
    difference = b.cast(values, work)
    if zeros is not None:
        offset = unpack(b, b.gather(zeros, places, gather), bits)
        offset = b.part(offset, b.rank(offset) - 1, 0, b.shape(factor)[-1]) if bits < 8 else offset
        difference = b.sub(difference, b.cast(spread(b, offset, shape, axis, block), work))
    elif packed:
        difference = b.sub(difference, b.number(2 ** (n.attrs["bits"] - 1), work))
    return b.cast(b.mul(difference, spread(b, factor, shape, axis, block)), b.dtype(scales))


def _qembed(b: Core, n: Node) -> list[ValueId | None]:
    """EmbedLayerNormalization on quantised tables: five scales from input 8 on, then five zero points."""

    def made_real(index: int, x: ValueId) -> ValueId:
        return real(b, x, b.input(n, index + 6), b.input(n, index + 11))

    return embed_layer_norm(b, n, made_real, b.dtype(b.input(n, 8)), None)


def _linear(function: Callable[[Core, Node], ValueId]) -> Decomposition:
    """ONNX's op with the attributes of version 19."""
    return lambda b, n: function(b, as_op(n, f"onnx.{n.op.removeprefix('ms.')}", 19, n.inputs))


MICROSOFT_QUANT: dict[str, Decomposition] = {
    "ms.DequantizeLinear": _linear(dequantize_linear),
    "ms.DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "ms.GatherBlockQuantized": _gather_block_quantized,
    "ms.MatMulBnb4": _matmul_bnb4,
    "ms.MatMulIntegerToFloat": _matmul_integer_to_float,
    "ms.MatMulNBits": _matmul_nbits,
    "ms.QEmbedLayerNormalization": _qembed,
    "ms.QGemm": _qgemm,
    "ms.QLinearAdd": _binary("add"),
    "ms.QLinearAveragePool": _unary(_average_pool),
    "ms.QLinearConcat": _concat,
    "ms.QLinearConv": _nhwc_qlinear_conv,
    "ms.QLinearGlobalAveragePool": _unary(_global_average_pool),
    "ms.QLinearLeakyRelu": _unary(_leaky),
    "ms.QLinearMul": _binary("mul"),
    "ms.QLinearSigmoid": _unary(lambda b, n, x: sigmoid(b, x)),
    "ms.QLinearSoftmax": _unary(_softmax),
    "ms.QLinearWhere": _where,
    "ms.QuantizeLinear": _linear(quantize_linear),
}
