"""Conversion between any two dtypes, strings and types under a byte among them.

Float to integer truncates. What does not fit is undefined in ONNX; here it is what NumPy and ONNX Runtime give on
x86: types under 32 bits take the low bits of an i32; a float outside i32 or i64 (and NaN) becomes their least value;
u32 and u64 convert x, or x less half their range with the top bit flipped, the same way. Integer to integer keeps the
low bits. Numbers become the shortest text that reads back the same; "NaN", "INF", "-INF"; bools become "1" and "0".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array, DType, dtype_from_code, dtype_from_numpy
from tierup.reference.precision import is_narrow, up

SATURATING = {DType.F8E4M3FN: 448.0, DType.F8E4M3FNUZ: 240.0, DType.F8E5M2: 57344.0, DType.F8E5M2FNUZ: 57344.0}
_SMALL_INTS = frozenset((DType.U4, DType.I4, DType.U2, DType.I2))
_LEAST_NORMAL = 2.0**-126  # of f32 and bf16
_CARRIERS = {DType.I64: DType.I64, DType.U64: DType.I64}  # i32 for all other integers


def cast(node: Node, x: Array) -> Array:
    to = dtype_from_code(node.attrs["to"])
    if to is None:
        raise ValueError(f"there is no dtype with number {node.attrs['to']}")
    x = flushed(x) if node.attrs.get("flush", 0) else x
    return convert(x, to, bool(node.attrs.get("saturate", 1)), node.attrs.get("round_mode", "up"))


def flushed(x: Array) -> Array:
    """Floats whose denormals, as f32 has them, are zero."""
    return np.where(np.abs(x) < _LEAST_NORMAL, np.copysign(x.dtype.type(0), x), x)


def cast_like(node: Node, x: Array, like: Array) -> Array:
    return convert(x, dtype_of(like), bool(node.attrs.get("saturate", 1)), node.attrs.get("round_mode", "up"))


def dtype_of(x: Array) -> DType:
    """The dtype of an array, which must be one of ours."""
    dtype = dtype_from_numpy(x.dtype)
    if dtype is None:
        raise ValueError(f"NumPy dtype {x.dtype} is none of Tierup's")
    return dtype


def convert(x: Array, to: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """`x` as `to`; `saturate` and `round_mode` matter to 8-bit floats only, as ONNX's Cast says."""
    if dtype_of(x) is DType.STR:
        return _parse(x, to)
    if to is DType.STR:
        return _format(x)
    x = x.astype(np.int8) if _is_small_int(x) else up(x)
    if to is DType.BOOL:
        return np.asarray(x != 0)
    if to.is_integer:
        return float_to_int(x, to) if x.dtype.kind == "f" else _low_bits(x, to)
    if to is DType.F8E8M0:
        return _to_e8m0(x, saturate, round_mode)
    if is_narrow(to.numpy) and x.dtype.kind != "f":
        x = x.astype(np.float64)
    if saturate and to in SATURATING:
        x = np.clip(x, -SATURATING[to], SATURATING[to])
    return np.asarray(x).astype(to.numpy)


def float_to_int(x: Array, to: DType) -> Array:
    """An f32 or f64 array truncated to integers; the module's docstring says what becomes of the rest."""
    carrier = _CARRIERS.get(to, DType.I32).numpy
    half = 2.0 ** (carrier.itemsize * 8 - 1)
    truncated = np.trunc(x)
    if to not in (DType.U32, DType.U64):
        return _low_bits(_signed(truncated, half, carrier), to)
    upper = truncated >= half
    signed = _signed(np.where(upper, truncated - half, truncated), half, carrier)
    return np.asarray(np.where(upper, signed ^ carrier.type(-int(half)), signed)).view(to.numpy)


def _signed(truncated: Any, half: float, carrier: np.dtype[Any]) -> Array:
    fits = (truncated >= -half) & (truncated < half)
    return np.asarray(np.where(fits, truncated, -half)).astype(carrier)


def _low_bits(x: Array, to: DType) -> Array:
    return x.astype(np.int8).astype(to.numpy) if to in _SMALL_INTS else x.astype(to.numpy)


def _to_e8m0(x: Array, saturate: bool, round_mode: str) -> Array:
    """The power of two near |x|; ONNX leaves negative numbers open."""
    size = np.abs(x.astype(np.float64))
    mantissa, exponent = np.frexp(size)  # size = mantissa · 2^exponent, mantissa in [0.5, 1)
    if round_mode == "up":
        raised = mantissa > 0.5
    elif round_mode == "nearest":
        raised = mantissa >= 0.75
    elif round_mode == "down":
        raised = np.zeros(np.shape(size), bool)
    else:
        raise ValueError(f"round_mode must be up, down or nearest, but is '{round_mode}'")
    code = np.where(size == 0, -1, exponent + 126 + raised)
    code = np.where(np.isinf(size), 255, code)
    code = np.clip(code, 0, 254) if saturate else np.where((code < 0) | (code > 254), 255, code)
    code = np.where(np.isnan(size), 255, code)
    return np.asarray(code.astype(np.uint8)).view(DType.F8E8M0.numpy)


def _parse(x: Array, to: DType) -> Array:
    texts = [str(item) for item in x.reshape(-1)]
    if to is DType.STR:
        return _strings(texts, x.shape)
    if to.is_integer:
        bits = np.array([_integer(text) % (1 << 64) for text in texts], np.uint64)
        return convert(bits.reshape(x.shape), to)
    return convert(np.array([float(text) for text in texts], np.float64).reshape(x.shape), to)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _is_small_int(x: Array) -> bool:
    return dtype_from_numpy(x.dtype) in _SMALL_INTS


def _format(x: Array) -> Array:
    if x.dtype == np.bool_ or _is_small_int(x):
        x = x.astype(np.int8)
    elif is_narrow(x.dtype) and x.dtype != np.float16:
        x = x.astype(np.float32)
    texts = [_SPECIAL.get(text, text) for text in x.reshape(-1).astype(np.str_).tolist()]
    return _strings(texts, x.shape)


_SPECIAL = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}


def _strings(texts: list[str], shape: tuple[int, ...]) -> Array:
    result = np.empty(len(texts), object)
    result[:] = texts
    return result.reshape(shape)


def bit_cast(node: Node, x: Array) -> Array:
    to = dtype_from_code(node.attrs["to"])
    source = dtype_of(x)
    if to is None or DType.STR in (to, source):
        raise ValueError(f"bits of {source!r} cannot be read as dtype number {node.attrs['to']}")
    if to is DType.BOOL:
        return np.asarray(np.ascontiguousarray(x).view(np.uint8).reshape(x.shape) != 0)
    # where the oracle runs everything in f64, the value or the target stands for an f32
    if source is DType.F64 and to.bits == 32:
        return bit_view(x.astype(np.float32), to)
    if to is DType.F64 and source.bits == 32:
        return bit_view(x, DType.F32).astype(np.float64)
    if to.bits != source.bits:
        raise ValueError(f"{source!r} has {source.bits} bits, but {to!r} has {to.bits}")
    return bit_view(x, to)


def bit_view(x: Array, to: DType) -> Array:
    """The same bytes as `to`, of the same width."""
    return np.ascontiguousarray(x).view(to.numpy).reshape(x.shape)
