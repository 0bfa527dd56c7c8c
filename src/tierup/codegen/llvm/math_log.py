"""log and what is made of it: log1p, asinh, acosh, atanh.

All take u = 2ᵉ · (1 + f) with √½ ≤ 1 + f < √2, then log u = e · ln 2 + log(1 + f).
"""

from __future__ import annotations

import math

from tierup.codegen.llvm.math_exp import LN2, TINY
from tierup.codegen.llvm.math_value import F32, F64, Format, Operand, Value, fma, polynomial

# (log(1 + f) - f + f²/2) / f³ on [√½ - 1, √2 - 1]; error relative to f: 6.3e-9.
LOG_F32 = (
    0.33333316445350647, -0.25000810623168945, 0.2000228613615036, -0.16624554991722107, 0.14181193709373474,
    -0.13128747045993805, 0.12881632149219513, -0.0785960927605629,
)  # fmt: skip
# (2 artanh(s)/s - 2) / s² in s² on s² ≤ 0.02945; relative error of the logarithm: 2e-18.
LOG_F64 = (
    0.6666666666666735, 0.39999999999413144, 0.2857142874276374, 0.22222198531285994, 0.18183566664329234,
    0.15313986841157318, 0.14796624259407948,
)  # fmt: skip
SQRT_HALF = {F32: 0.7071067690849304, F64: 0.7071067811865476}
# From here on asinh x and acosh x are log 2x, and x² is still finite.
LARGE = {F32: 2.0**30, F64: 2.0**60}


def split(u: Value) -> tuple[Value, Value]:
    """For positive, normal u: e + bias as an integer, and 1 + f."""
    form = u.format
    half = form.bits(SQRT_HALF[form])
    moved = u.bits() + (form.bits(1.0) - half)
    return moved >> form.digits, ((moved & ((1 << form.digits) - 1)) + half).number()


def exponent_base(form: Format) -> float:
    return 2.0**form.digits + form.bias


def exponent(biased: Value, base: Operand) -> Value:
    """The integer e + bias, as the float e when `base` is `exponent_base`: or-ing it into 2^digits makes it a float."""
    return (biased | biased.format.bits(2.0**biased.format.digits)).number() - base


def split_any(x: Value) -> tuple[Value, Value]:
    """For positive x, denormal or not: e as a float, and 1 + f."""
    form = x.format
    shift = form.digits + 2.0
    denormal = x < form.least
    biased, m = split(denormal.select(x * 2.0**shift, x))
    base = exponent_base(form)
    return exponent(biased, denormal.choose(base + shift, base, form.kind)), m


def _log_of_parts(e: Value, f: Value) -> Value:
    """e · ln 2 + log(1 + f)."""
    high, low = LN2[f.format]
    square = f * f
    if f.format is F32:
        tail = fma(square, -0.5, fma(square * f, polynomial(f, LOG_F32), e * low))
    else:
        s = f / (f + 2.0)
        z = s * s
        half_square = square * 0.5
        tail = fma(s, fma(z, polynomial(z, LOG_F64), half_square), e * low) - half_square
    return fma(e, high, f + tail)


def _with_edges(u: Value, result: Value) -> Value:
    """-inf at 0, NaN left of it and at NaN, inf at inf."""
    edge = u.equals(0.0).choose(-math.inf, math.nan, u.kind)
    return (u > 0.0).select((u < math.inf).select(result, u), edge)


def log(x: Value) -> Value:
    e, m = split_any(x)
    return _with_edges(x, _log_of_parts(e, m - 1.0))


def _log1p(x: Value, doubled: Value | None = None) -> Value:
    """log(1 + x), plus log 2 where `doubled`. e comes from the rounded 1 + x, f = 2⁻ᵉ · x + (2⁻ᵉ - 1) from x itself.

    2²⁻ᵉ is used in place of 2⁻ᵉ, which would be denormal for the largest x.
    """
    form = x.format
    u = x + 1.0
    biased, _ = split(u)
    power = ((2 * form.bias + 2 - biased) << form.digits).number()
    f = fma(x * 0.25, power, fma(power, 0.25, -1.0))
    base = exponent_base(form)
    e = exponent(biased, base if doubled is None else doubled.choose(base - 1.0, base, form.kind))
    return (x.abs() < TINY[form]).select(x, _with_edges(u, _log_of_parts(e, f)))


def log1p(x: Value) -> Value:
    return _log1p(x)


def asinh(x: Value) -> Value:
    """log1p(a + a² / (1 + √(1 + a²))) with a = |x|; log 2a where a² would overflow."""
    a = x.abs()
    large = a > LARGE[x.format]
    root = fma(a, a, 1.0).sqrt()
    return _log1p(large.select(a, fma(a, a / (root + 1.0), a)), large).signed(x)


def acosh(x: Value) -> Value:
    """log1p(t + √(t · (t + 2))) with t = x - 1; log 2x where t² would overflow."""
    large = x > LARGE[x.format]
    t = x - 1.0
    argument = t + (t * (t + 2.0)).sqrt()
    return (x >= 1.0).select(_log1p(large.select(x, argument), large), math.nan)


def atanh(x: Value) -> Value:
    """log1p(2a / (1 - a)) / 2 with a = |x|."""
    a = x.abs()
    return (_log1p((a + a) / (1.0 - a)) * 0.5).signed(x)
