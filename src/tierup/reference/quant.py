"""Quantised arithmetic in NumPy: integers are summed exactly, results round half to even and then saturate."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array, DType, dtype_from_code, dtype_from_numpy
from tierup.reference.conv import conv
from tierup.reference.matrix import integer_matmul, matmul, work_dtype

_SATURATING = (DType.F4E2M1, DType.F6E2M3, DType.F6E3M2)  # without infinity or NaN: overflow can only saturate


@cache
def _limits() -> dict[np.dtype[Any], tuple[int, int]]:
    """The least and the largest number of each integer type, by how NumPy holds it."""
    integers = [dtype for dtype in DType if dtype.is_integer]
    return {
        dtype.numpy: (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)
        if dtype.is_signed
        else (0, (1 << dtype.bits) - 1)
        for dtype in integers
    }


def is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype in _limits()


def spread(parameter: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """A scale or zero point, made to broadcast to `shape`: one number, one for each slice, or one for each block."""
    if parameter.size == 1:
        return parameter.reshape(())
    axis = 0 if len(shape) == 1 else axis
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} is outside a tensor of rank {len(shape)}")
    axis %= len(shape)
    if block:
        blocks = np.arange(shape[axis]) // block
        if parameter.ndim != len(shape) or (blocks.size and blocks[-1] >= parameter.shape[axis]):
            raise ValueError(f"scales of shape {parameter.shape} do not cover {shape} in blocks of {block}")
        return np.take(parameter, blocks, axis)
    if parameter.ndim != 1 or parameter.size != shape[axis]:
        raise ValueError(f"scales of shape {parameter.shape} do not fit axis {axis} of {shape}")
    return parameter.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def round_to(real: Array, zero_point: Array | None, dtype: np.dtype[Any], saturate: bool = True) -> Array:
    """Real numbers as `dtype`: rounded half to even, moved by the zero point, saturated. NaN becomes the least."""
    wide = real.astype(work_dtype(real.dtype), copy=False)
    if is_integer(dtype):
        low, high = _limits()[dtype]
        rounded = np.rint(wide)
        if zero_point is not None:
            rounded = rounded + zero_point.astype(wide.dtype)
        rounded = np.where(np.isnan(rounded), wide.dtype.type(low), rounded)
        return np.asarray(np.clip(rounded, low, high)).astype(dtype)
    if zero_point is not None:
        wide = wide + zero_point.astype(wide.dtype)
    if saturate and dtype_from_numpy(dtype) not in _SATURATING:
        limit = _largest(dtype)
        wide = np.clip(wide, -limit, limit)
    return wide.astype(dtype)


def quantize_linear(node: Node, x: Array, scale: Array, zero_point: Array | None = None) -> Array:
    axis, block = node.attrs.get("axis", 1), node.attrs.get("block_size", 0)
    code = node.attrs.get("output_dtype", 0)
    stated = dtype_from_code(code) if code else None
    dtype = zero_point.dtype if zero_point is not None else stated.numpy if stated else np.dtype(np.uint8)
    division = _division_dtype(node, x, scale)
    work = work_dtype(division)
    # The quotient is a number of the division's type: a narrow one is rounded twice on purpose.
    quotient = (x.astype(work) / spread(scale, x.shape, axis, block).astype(work)).astype(division)
    offset = None if zero_point is None else spread(zero_point, x.shape, axis, block)
    return round_to(quotient, offset, dtype, bool(node.attrs.get("saturate", 1)))


def _division_dtype(node: Node, x: Array, scale: Array) -> np.dtype[Any]:
    """`precision` if given, else the scale's type; f64 where either side was widened, and never a mere exponent."""
    if np.dtype(np.float64) in (x.dtype, scale.dtype):
        return np.dtype(np.float64)
    stated = dtype_from_code(node.attrs.get("precision", 0))
    if stated is not None:
        return stated.numpy
    if scale.dtype.kind == "i":
        return np.dtype(np.float64)  # int32 divided by int32: f32 could not hold the operands
    return x.dtype if scale.dtype == DType.F8E8M0.numpy else scale.dtype


def _largest(dtype: np.dtype[Any]) -> float:
    import ml_dtypes  # milliseconds, and most models have none of its types

    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # ml_dtypes ships no types


def dequantize_linear(node: Node, x: Array, scale: Array, zero_point: Array | None = None) -> Array:
    axis, block = node.attrs.get("axis", 1), node.attrs.get("block_size", 0)
    code = node.attrs.get("output_dtype", 0)
    stated = dtype_from_code(code) if code else None
    dtype = stated.numpy if stated else scale.dtype
    work = np.dtype(np.float64) if np.dtype(np.float64) in (dtype, scale.dtype) else np.dtype(np.float32)
    offset = None if zero_point is None else spread(zero_point, x.shape, axis, block)
    difference = centred(x, offset) if is_integer(x.dtype) else _shifted(x.astype(work), offset)
    factor: Array = spread(scale, x.shape, axis, block).astype(work)
    return np.asarray(np.multiply(difference.astype(work), factor)).astype(dtype, copy=False)


def centred(x: Array, zero_point: Array | None) -> Array:
    """Integers minus their zero point, without overflow."""
    wide = x.astype(np.int64 if x.dtype.itemsize > 2 else np.int32)
    return wide if zero_point is None else wide - zero_point.astype(wide.dtype)


def _shifted(x: Array, zero_point: Array | None) -> Array:
    return x if zero_point is None else x - zero_point.astype(x.dtype)


def dynamic_quantize_linear(node: Node, x: Array) -> tuple[Array, Array, Array]:
    scale, zero_point = dynamic_range(x)
    return round_to(x / scale, zero_point, np.dtype(np.uint8)), scale, zero_point


def dynamic_range(x: Array) -> tuple[Array, Array]:
    """The scale and the u8 zero point that make 0..255 span all of x and 0."""
    low, high = x.min(initial=0), x.max(initial=0)
    scale = np.asarray(x.dtype.type(1) if low == high else (high - low) / x.dtype.type(255))
    return scale, round_to(np.asarray(-low / scale), None, np.dtype(np.uint8))


def by_row(parameter: Array, matrix: Array) -> Array:
    """A parameter of the left matrix, made to broadcast: a vector holds one number for each row."""
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter[:, None] if parameter.ndim == 1 and matrix.ndim > 1 else parameter


def by_column(parameter: Array) -> Array:
    return parameter.reshape(()) if parameter.size == 1 else parameter


def accumulate(a: Array, a_zero: Array | None, b: Array, b_zero: Array | None) -> Array:
    """(a - a_zero) @ (b - b_zero) as int32: exact, and modulo 2^32 where even that overflows."""
    left = centred(a, None if a_zero is None else by_row(a_zero, a))
    right = centred(b, None if b_zero is None else by_column(b_zero))
    return integer_matmul(left, right).astype(np.int32)


def matmul_integer(node: Node, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    return accumulate(a, a_zero, b, b_zero)


def qlinear_matmul(node: Node, *inputs: Array) -> Array:
    """Inputs are A and B, each with its scale and zero point, and those of the result."""
    (a, a_scale, a_zero), (b, b_scale, b_zero), (y_scale, y_zero) = inputs[:3], inputs[3:6], inputs[6:]
    work = work_dtype(a_scale.dtype)
    rows, columns = by_row(a_scale, a).astype(work), by_column(b_scale).astype(work)
    if is_integer(a.dtype):
        total = accumulate(a, a_zero, b, b_zero).astype(work)
    else:
        total = matmul(a.astype(work) - by_row(a_zero, a).astype(work), b.astype(work) - b_zero.astype(work))
    factor = rows * columns / by_column(y_scale).astype(work)
    return round_to(total * factor, by_column(y_zero), y_zero.dtype)


def conv_accumulate(node: Node, x: Array, x_zero: Array | None, w: Array, w_zero: Array | None) -> Array:
    """The convolution of x - x_zero with w - w_zero as int32; padding stands for real zeros, so x_zero is taken first.

    It runs in f64, which holds every sum of 8-bit products that fits in memory exactly.
    """
    channels = None if w_zero is None else by_channel(w_zero, w.ndim)
    data = centred(x, None if x_zero is None else x_zero.reshape(()))
    result = conv(node, data.astype(np.float64), centred(w, channels).astype(np.float64))
    return result.astype(np.int64).astype(np.int32)


def by_channel(parameter: Array, rank: int) -> Array:
    """A parameter with one number for each output channel, along the first axis of a weight of this rank."""
    return parameter.reshape(() if parameter.size == 1 else (-1, *(1,) * (rank - 1)))


def conv_integer(node: Node, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
    return conv_accumulate(node, x, x_zero, w, w_zero)


def qlinear_conv(
    node: Node,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
) -> Array:
    total = conv_accumulate(node, x, x_zero, w, w_zero)
    if bias is not None:
        total = total + by_channel(bias, x.ndim - 1)
    work = work_dtype(x_scale.dtype)
    factor = by_channel(x_scale.astype(work).reshape(()) * w_scale.astype(work), x.ndim - 1)
    return round_to(total.astype(work) * (factor / y_scale.astype(work).reshape(())), y_zero.reshape(()), y_zero.dtype)
