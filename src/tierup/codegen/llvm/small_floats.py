"""Floats of eight and four bits: what one byte of memory stands for in f32, and the byte that is nearest to an f32.

They have a sign, an exponent and a significand like f32, so that a shift and another bias turn one into the other;
below the least normal number they are a whole multiple of the least of all.
"""

from __future__ import annotations

from msgspec import Struct

from tierup.codegen.llvm.math_value import Value
from tierup.codegen.llvm.writer import Writer
from tierup.ir.types import DType


class Format(Struct, frozen=True):
    """The layout of a small float; codes are without their sign.

    Above `largest` lies the code `beyond`. `nan` is the code that a NaN becomes. With `unsigned_zero` the code that
    would be -0 is the only NaN. `infinity` is the least code whose exponent is that of infinities and NaN.
    """

    bits: int
    digits: int  # explicit bits of the significand
    bias: int
    largest: int
    beyond: int
    nan: int
    unsigned_zero: bool = False
    infinity: int | None = None


FORMATS = {
    DType.F8E4M3FN: Format(8, 3, 7, 0x7E, 0x7F, 0x7F),
    DType.F8E4M3FNUZ: Format(8, 3, 8, 0x7F, 0x80, 0x80, unsigned_zero=True),
    DType.F8E5M2: Format(8, 2, 15, 0x7B, 0x7C, 0x7E, infinity=0x7C),
    DType.F8E5M2FNUZ: Format(8, 2, 16, 0x7F, 0x80, 0x80, unsigned_zero=True),
    DType.F4E2M1: Format(4, 1, 1, 0x7, 0x7, 0x0),
}
_NAN = 0x7FC00000
_SIGN = -0x80000000
_DIGITS, _BIAS = 23, 127  # of f32


def decode(writer: Writer, byte: str, dtype: DType, lanes: int) -> str:
    """The number that bytes stand for, as f32."""
    form = FORMATS[dtype]
    word = _vector(writer, "i8", byte, lanes).convert("zext", "i32")
    code = word & ((1 << form.bits - 1) - 1)
    normal = ((code << (_DIGITS - form.digits)) + ((_BIAS - form.bias) << _DIGITS)).number()
    tiny = code.convert("sitofp", "float") * 2.0 ** (1 - form.bias - form.digits)
    size = code.compare("slt", 1 << form.digits).select(tiny, normal).bits()
    if form.infinity is not None:
        size = code.compare("sge", form.infinity).select(size | 0x7F800000, size)
    elif dtype is DType.F8E4M3FN:
        size = code.compare("eq", form.nan).select(_NAN, size)
    result = size | ((word >> (form.bits - 1)) << 31)
    if form.unsigned_zero:
        result = word.compare("eq", form.nan).select(_NAN, result)
    return _plain(writer, result.number(), lanes)


def encode(writer: Writer, number: str, dtype: DType, lanes: int) -> str:
    """The nearest byte to f32, of two the even one. What is too large becomes infinite or NaN where the type has one,
    and else the largest number."""
    form = FORMATS[dtype]
    value = _vector(writer, "float", number, lanes)
    bits, size = value.bits(), value.abs()
    shift, moved = _DIGITS - form.digits, (_BIAS - form.bias) << form.digits
    magnitude = size.bits()
    odd = (magnitude >> shift) & 1
    normal = ((magnitude + odd + ((1 << shift - 1) - 1)) >> shift) - moved
    least = 2.0 ** (1 - form.bias)  # normal one
    inside = size < least
    tiny = inside.select(size, 0.0) * 2.0 ** (form.bias - 1 + form.digits)
    code = inside.select(tiny.call("roundeven").convert("fptosi", "i32"), normal)
    code = code.compare("sgt", form.largest).select(form.beyond, code)
    code = value.compare("uno", value).select(form.nan, code)
    sign = (bits & _SIGN) >> (32 - form.bits)
    if form.unsigned_zero:
        code = (code & 0x7F).compare("eq", 0).select(code, code | sign)
    else:
        code = code | sign
    return _plain(writer, code.convert("trunc", "i8"), lanes)


def _vector(writer: Writer, kind: str, name: str, lanes: int) -> Value:
    if lanes == 1:
        name = writer.value(f"insertelement <1 x {kind}> poison, {kind} {name}, i64 0")
    return Value(writer, lanes, kind, name)


def _plain(writer: Writer, value: Value, lanes: int) -> str:
    """The name of a vector; one lane is a scalar."""
    return value.text if lanes > 1 else writer.value(f"extractelement {value.type} {value.text}, i64 0")
