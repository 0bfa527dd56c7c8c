"""Quantised arithmetic. Products stay in 8 bits: zero points are taken off the sums afterwards, modulo 2^32 as in the
reference, so that no operand has to be widened first.

    Σ (a - p)(b - q) = Σ a·b - p · Σ b - q · Σ a + n · p · q
"""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Attrs, Node, ValueId
from tierup.ir.types import Dim, DType, Shape, dtype_from_code
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.matrix import matmul
from tierup.rewrite.decompose.nn import by_channel, conv_pads, pads_value, steps

_BYTES = frozenset((DType.I8, DType.U8))


def unless_zero(b: Core, zero: ValueId | None) -> ValueId | None:
    """A zero point, or None where it is absent or known to be 0."""
    constant = None if zero is None else b.out.constant(zero)
    return None if constant is not None and not constant.astype(np.float32).any() else zero


def flat(b: Core, value: ValueId) -> ValueId:
    """A tensor that surely has one element, without its axes; anything else as it is."""
    return b.reshape(value, ()) if all(dim == 1 for dim in b.shape(value)) else value


def spread(b: Core, parameter: ValueId, shape: Shape, axis: int, block: int) -> ValueId:
    """A scale or zero point, made to broadcast to `shape`: one number, one for each slice, or one for each block."""
    parameter = flat(b, parameter)
    have = b.shape(parameter)
    if not have:
        return parameter
    axis = 0 if len(shape) == 1 else b.axis(axis, len(shape))
    if len(have) != (len(shape) if block else 1):
        raise Declined(f"scales of rank {len(have)} do not fit a tensor of rank {len(shape)} in blocks of {block}")
    if block:
        return blocks(b, parameter, axis, block, shape[axis])
    return b.reshape(parameter, [have[0] if i == axis else 1 for i in range(len(shape))])


def blocks(b: Core, parameter: ValueId, axis: int, block: int, size: Dim) -> ValueId:
    """Every element of an axis `block` times, cut to `size`."""
    have = b.shape(parameter)
    repeated = b.broadcast(b.unsqueeze(parameter, axis + 1), (*have[: axis + 1], block, *have[axis + 1 :]))
    long = (*have[:axis], b.dims.mul(have[axis], block), *have[axis + 1 :])
    return b.part(b.reshape(repeated, long), axis, 0, size)


def _limits(dtype: DType) -> tuple[int, int]:
    low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
    return low, low + (1 << dtype.bits) - 1


def quantised(b: Core, real: ValueId, zero: ValueId | None, dtype: DType, saturate: int = 1) -> ValueId:
    """Real numbers, already over their scale, as `dtype`: rounded half to even, moved by the zero point, saturated."""
    wide, zero = b.wide(real), unless_zero(b, zero)
    if dtype.is_integer:
        wide = b.op("round", wide)
    if zero is not None:
        wide = b.add(wide, b.cast(zero, b.dtype(wide)))
    if dtype is DType.F8E8M0 or (dtype.is_integer and dtype.bits > 16):
        raise Declined(f"{dtype!r} does not saturate as the small types do")
    if not dtype.is_integer:
        return b.cast(wide, dtype, saturate=saturate)
    low, high = (b.like(limit, wide) for limit in _limits(dtype))
    clipped = b.min(b.select(b.lt(low, wide), wide, low), high)  # NaN is not above the least, and becomes it
    return b.cast(clipped, dtype)


def _centred(b: Core, x: ValueId, zero: ValueId | None) -> ValueId:
    """Integers minus their zero point, in a type that cannot overflow."""
    zero = unless_zero(b, zero)
    if zero is None:
        return x
    work = DType.I64 if b.dtype(x).bits > 16 else DType.I32
    return b.sub(b.cast(x, work), b.cast(zero, work))


def real(b: Core, x: ValueId, scale: ValueId, zero: ValueId | None) -> ValueId:
    """(x - zero) · scale in f32 or better; scale and zero point are one number each, or broadcast."""
    wide = b.wide(flat(b, scale))
    offset = None if zero is None else flat(b, zero)
    return b.mul(b.cast(_centred(b, x, offset), b.dtype(wide)), wide)


def _stated(n: Node, name: str) -> DType | None:
    return dtype_from_code(n.attrs.get(name, 0))


def quantize_linear(b: Core, n: Node) -> ValueId:
    x, scale, zero = b.input(n), b.input(n, 1), b.given(n, 2)
    axis, block, shape = n.attrs.get("axis", 1), n.attrs.get("block_size", 0), b.shape(x)
    dtype = b.dtype(zero) if zero is not None else _stated(n, "output_dtype") or DType.U8
    division = _division_dtype(b, n, x, scale)
    work = DType.F64 if division is DType.F64 else DType.F32
    quotient = b.div(b.cast(x, work), b.cast(spread(b, scale, shape, axis, block), work))
    offset = None if zero is None else spread(b, zero, shape, axis, block)
    # The quotient is a number of the division's type: a narrow one is rounded twice on purpose.
    return quantised(b, b.cast(quotient, division), offset, dtype, int(n.attrs.get("saturate", 1)))


def _division_dtype(b: Core, n: Node, x: ValueId, scale: ValueId) -> DType:
    """`precision` if given, else the scale's type; f64 where either side is, and never a mere exponent."""
    if DType.F64 in (b.dtype(x), b.dtype(scale)):
        return DType.F64
    stated = _stated(n, "precision")
    if stated is not None:
        return stated
    if b.dtype(scale).is_integer:
        return DType.F64  # i32 over i32: f32 could not hold the operands
    return b.dtype(x) if b.dtype(scale) is DType.F8E8M0 else b.dtype(scale)


def dequantize_linear(b: Core, n: Node) -> ValueId:
    x, scale, zero = b.input(n), b.input(n, 1), unless_zero(b, b.given(n, 2))
    axis, block, shape = n.attrs.get("axis", 1), n.attrs.get("block_size", 0), b.shape(x)
    dtype = _stated(n, "output_dtype") or b.dtype(scale)
    work = DType.F64 if DType.F64 in (dtype, b.dtype(scale)) else DType.F32
    offset = None if zero is None else spread(b, zero, shape, axis, block)
    if b.dtype(x).is_integer:
        difference = b.cast(_centred(b, x, offset), work)
    else:
        difference = b.cast(x, work)
        difference = difference if offset is None else b.sub(difference, b.cast(offset, work))
    return b.cast(b.mul(difference, b.cast(spread(b, scale, shape, axis, block), work)), dtype)


def dynamic_quantize(b: Core, x: ValueId) -> tuple[ValueId, ValueId, ValueId]:
    """x as u8, and the scale and zero point that make 0..255 span all of x and 0."""
    axes, zero, one = range(b.rank(x)), b.like(0, x), b.like(1, x)
    low = b.min(b.reduce("min", x, axes, keepdims=False), zero)
    high = b.max(b.reduce("max", x, axes, keepdims=False), zero)
    scale = b.select(b.eq(low, high), one, b.div(b.sub(high, low), b.like(255, x)))
    offset = quantised(b, b.div(b.neg(low), scale), None, DType.U8)
    return quantised(b, b.div(x, scale), offset, DType.U8), scale, offset


def _by_row(b: Core, parameter: ValueId, matrix: ValueId) -> ValueId:
    """A parameter of the left matrix, made to broadcast: a vector holds one number for each row."""
    parameter = flat(b, parameter)
    if b.rank(parameter) and b.rank(matrix) == 1:
        raise Declined("a vector with a parameter for each element")
    return b.unsqueeze(parameter, 1) if b.rank(parameter) == 1 else parameter


def accumulate(b: Core, x: ValueId, x_zero: ValueId | None, y: ValueId, y_zero: ValueId | None) -> ValueId:
    """(x - x_zero) · (y - y_zero) as i32."""
    y, y_zero = _centred_bytes(b, y, y_zero)
    x_zero, y_zero = unless_zero(b, x_zero), unless_zero(b, y_zero)
    p = None if x_zero is None else b.cast(_by_row(b, x_zero, x), DType.I32)
    q = None if y_zero is None else b.cast(flat(b, y_zero), DType.I32)
    if not {b.dtype(x), b.dtype(y)} <= _BYTES:
        x, y = b.cast(x, DType.I32), b.cast(y, DType.I32)
    row, column = b.rank(x) == 1, b.rank(y) == 1
    if column and q is not None and b.rank(q):
        raise Declined("a vector with a parameter for each element")
    x, y = b.unsqueeze(x, 0) if row else x, b.unsqueeze(y, 1) if column else y
    total = _less_zeros(b, b.matmul(x, y), x, p, y, q)
    *batch, height, width = b.shape(total)
    return b.reshape(total, [*batch, *([] if row else [height]), *([] if column else [width])])


def _centred_bytes(b: Core, y: ValueId, y_zero: ValueId | None) -> tuple[ValueId, ValueId | None]:
    """Constant weights less their zero points, where that still fits bytes: then no sums of the data are needed."""
    whole, zero = b.out.constant(y), None if y_zero is None else b.out.constant(y_zero)
    if whole is None or zero is None or whole.ndim < 2 or whole.dtype not in (np.int8, np.uint8) or not zero.any():
        return y, y_zero
    if zero.size > 1 and whole.ndim > 2:  # of a convolution: one for each result
        zero = zero.reshape(-1, *(1,) * (whole.ndim - 1))
    difference = whole.astype(np.int16) - zero.astype(np.int16)
    if difference.min(initial=0) < -128 or difference.max(initial=0) > 127:
        return y, y_zero
    return b.weight(difference.astype(np.int8)), None


def _less_zeros(b: Core, total: ValueId, x: ValueId, p: ValueId | None, y: ValueId, q: ValueId | None) -> ValueId:
    """Σ x·y as if the zero points p and q had been taken off x and y."""
    if p is not None:
        total = b.sub(total, b.mul(p, _sum(b, y, b.rank(y) - 2)))
    if q is not None:
        total = b.sub(total, b.mul(q, _sum(b, x, b.rank(x) - 1)))
    if p is not None and q is not None:
        total = b.add(total, b.mul(b.mul(p, q), b.scalar(b.shape(x)[-1], DType.I32)))
    return total


def _sum(b: Core, x: ValueId, axis: int) -> ValueId:
    return b.reduce("sum", b.cast(x, DType.I32), (axis,))


def _dynamic_quantize_linear(b: Core, n: Node) -> tuple[ValueId, ValueId, ValueId]:
    return dynamic_quantize(b, b.input(n))


def _matmul_integer(b: Core, n: Node) -> ValueId:
    return accumulate(b, b.input(n), b.given(n, 2), b.input(n, 1), b.given(n, 3))


def _qlinear_matmul(b: Core, n: Node) -> ValueId:
    x, x_scale, x_zero, y, y_scale, y_zero, scale, zero = (b.input(n, i) for i in range(8))
    rows = b.wide(_by_row(b, x_scale, x))
    work = b.dtype(rows)
    if b.dtype(x).is_integer:
        total = b.cast(accumulate(b, x, x_zero, y, y_zero), work)
    else:
        left = b.sub(b.cast(x, work), b.cast(_by_row(b, x_zero, x), work))
        total = matmul(b, left, b.sub(b.cast(y, work), b.cast(y_zero, work)))
    factor = b.div(b.mul(rows, b.cast(flat(b, y_scale), work)), b.cast(flat(b, scale), work))
    return quantised(b, b.mul(total, factor), flat(b, zero), b.dtype(zero))


def _conv_accumulate(
    b: Core, attrs: Attrs, x: ValueId, x_zero: ValueId | None, w: ValueId, w_zero: ValueId | None
) -> ValueId:
    """The convolution of x - x_zero by w - w_zero as i32; padding stands for real zeros, and so for x_zero."""
    w, w_zero = _centred_bytes(b, w, w_zero)
    x_zero, w_zero = unless_zero(b, x_zero), unless_zero(b, w_zero)
    rank, group = b.rank(x), int(attrs.get("group", 1))
    pads = conv_pads(b, attrs, b.shape(x)[2:], b.shape(w)[2:])
    options = {"group": group, **steps(attrs, rank - 2)}
    around = None if x_zero is None else b.out.constant(x_zero)
    if around is not None and around.size == 1 and {b.dtype(x), b.dtype(w)} <= _BYTES:
        options["fill"] = int(around.reshape(()))
    elif x_zero is not None and any(pad != (0, 0) for pad in pads):
        x = b.op("pad", x, pads_value(b, [(0, 0), (0, 0), *pads]), b.reshape(x_zero, ()), mode="constant")
        pads = [(0, 0)] * len(pads)
    total = b.op("conv", x, w, pads_value(b, pads), **options)
    p = None if x_zero is None else b.cast(b.reshape(x_zero, ()), DType.I32)
    if p is not None:
        sums = b.reduce("sum", b.cast(w, DType.I32), range(1, rank), keepdims=False)
        total = b.sub(total, b.mul(p, by_channel(b, sums, rank)))
    if w_zero is not None:
        ones = b.broadcast(b.like(1, w), (group, *b.shape(w)[1:]))
        windows = b.op("conv", x, ones, pads_value(b, pads), **options)
        if p is not None:
            count = b.scalar(b.dims.product(b.shape(w)[1:]), DType.I32)
            windows = b.sub(windows, b.mul(p, count))
        zeros = by_channel(b, b.cast(w_zero, DType.I32), rank)
        total = b.sub(total, b.mul(_for_channels(b, windows, b.shape(total)[1]), zeros))
    return total


def _for_channels(b: Core, windows: ValueId, channels: Dim) -> ValueId:
    """One number for each group, repeated for each channel of the group."""
    batch, groups, *places = b.shape(windows)
    if groups in (1, channels):
        return windows
    repeated = b.broadcast(b.unsqueeze(windows, 2), (batch, groups, b.dims.floordiv(channels, groups), *places))
    return b.reshape(repeated, (batch, channels, *places))


def _conv_integer(b: Core, n: Node) -> ValueId:
    return _conv_accumulate(b, n.attrs, b.input(n), b.given(n, 2), b.input(n, 1), b.given(n, 3))


def qlinear_conv(b: Core, n: Node, x: ValueId) -> ValueId:
    """QLinearConv of x, which may be another form of the node's first input."""
    x_scale, x_zero, w, w_scale, w_zero, scale, zero = (b.input(n, i) for i in range(1, 8))
    bias, rank = b.given(n, 8), b.rank(x)
    total = _conv_accumulate(b, n.attrs, x, x_zero, w, w_zero)
    if bias is not None:
        total = b.add(total, by_channel(b, bias, rank))
    left = b.wide(b.reshape(x_scale, ()))
    work = b.dtype(left)
    scales = b.div(b.mul(left, b.cast(w_scale, work)), b.cast(b.reshape(scale, ()), work))
    result = b.mul(b.cast(total, work), by_channel(b, scales, rank))
    return quantised(b, result, b.reshape(zero, ()), b.dtype(zero))


QUANT: dict[str, Decomposition] = {
    "onnx.ConvInteger": _conv_integer,
    "onnx.DequantizeLinear": dequantize_linear,
    "onnx.DynamicQuantizeLinear": _dynamic_quantize_linear,
    "onnx.MatMulInteger": _matmul_integer,
    "onnx.QLinearConv": lambda b, n: qlinear_conv(b, n, b.input(n)),
    "onnx.QLinearMatMul": _qlinear_matmul,
    "onnx.QuantizeLinear": quantize_linear,
}
