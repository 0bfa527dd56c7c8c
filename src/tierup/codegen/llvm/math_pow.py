"""pow and fmod.

f32 goes through double lanes, where neither denormals nor the size of y · log₂ x are a difficulty. f64 carries the
logarithm as a sum of two doubles, with about 64 good bits.
"""

from __future__ import annotations

import math

from tierup.codegen.llvm.math_exp import HIGH, LN2, LOW, double_bias, exp_of_r, scaled
from tierup.codegen.llvm.math_log import exponent, exponent_base, split, split_any
from tierup.codegen.llvm.math_value import F32, F64, Value, fast_two_sum, fma, polynomial, two_product

# log₂(1 + f) / f on [√½ - 1, √2 - 1]; relative error 1.7e-11.
LOG2 = (
    1.442695040868707, -0.7213475208688364, 0.48089836139505915, -0.36067367482059703, 0.28853729348795765,
    -0.24045316583640255, 0.20617535906798817, -0.1803005969137827, 0.15876980624995135, -0.14315650778962608,
    0.1447484491424208, -0.14283910851995865, 0.07737014463276723,
)  # fmt: skip
# 2ʳ on |r| ≤ ½; relative error 1.9e-9.
EXP2 = (
    1.0000000005542222, 0.6931472057371089, 0.24022646890405355, 0.05550328777509786, 0.009618488985280236,
    0.0013399931049639334, 0.00015345804192248,
)  # fmt: skip
# (2 artanh(s)/s - 2 - ⅔ s²) / s⁴ in s² on s² ≤ 0.02945; relative error of the logarithm: 1.3e-20.
ARTANH = (
    0.4000000000000226, 0.2857142857009656, 0.22222222520482157, 0.18181784316490193, 0.1538675973742943,
    0.1325676009251971, 0.13196878068546464,
)  # fmt: skip
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
LN2_SHORT = (0.6931471805598903, 5.497923018708371e-14)  # the first part has 42 bits: times e it is exact


def _power_f32(a: Value, y: Value) -> Value:
    """aʸ for finite a > 0, through 2^(y · log₂ a)."""
    a, y = a.convert("fpext", "double"), y.convert("fpext", "double")
    biased, m = split(a)
    f = m - 1.0
    power = y * fma(f, polynomial(f, LOG2), exponent(biased, exponent_base(F64)))
    shifter = F64.shifter + F64.bias
    power = power.at_most(130.0).at_least(-160.0)
    shifted = power + shifter
    r = power - (shifted - shifter)
    return (polynomial(r, EXP2) * (shifted.bits() << F64.digits).number()).convert("fptrunc", "float")


def _log_f64(a: Value) -> tuple[Value, Value]:
    """log a as a sum of two, for finite a > 0: e · ln 2 + 2 artanh s with s = (m - 1) / (m + 1)."""
    e, m = split_any(a)
    f = m - 1.0
    bottom = m + 1.0
    bottom_low = m - (bottom - 1.0)
    inverse = 1.0 / bottom
    s = f * inverse
    s_low = (fma(-s, bottom, f) - s * bottom_low) * inverse
    z, z_low = two_product(s, s)
    z_low = fma(s + s, s_low, z_low)
    third, third_low = two_product(z, TWO_THIRDS[0])
    third_low = third_low + fma(z, TWO_THIRDS[1], z_low * TWO_THIRDS[0]) + z * z * polynomial(z, ARTANH)
    cubic, cubic_low = two_product(s, third)
    cubic_low = cubic_low + fma(s, third_low, s_low * third)
    log_m, log_m_low = fast_two_sum(s + s, cubic)
    log_m_low = log_m_low + ((s_low + s_low) + cubic_low)
    log_a, log_a_low = fast_two_sum(e * LN2_SHORT[0], log_m)
    return fast_two_sum(log_a, log_a_low + fma(e, LN2_SHORT[1], log_m_low))


def _power_f64(a: Value, y: Value) -> Value:
    """aʸ for finite a > 0, through e^(y · log a)."""
    log_a, log_a_low = _log_f64(a)
    power, lost = two_product(y, log_a)
    low = (power.abs() < 800.0).select(fma(y, log_a_low, lost), 0.0)
    power = power.at_most(HIGH[F64]).at_least(LOW[F64])
    shifter = double_bias(F64)
    shifted = fma(power, 1 / math.log(2), shifter)
    n = shifted - shifter
    r = fma(n, -LN2[F64][0], power) + fma(n, -LN2[F64][1], low)
    return scaled(exp_of_r(r), shifted)


def power(x: Value, y: Value) -> Value:
    """C's pow, with all its special cases."""
    form = x.format
    a, size = x.abs(), y.abs()
    result = (_power_f32 if form is F32 else _power_f64)(a, y)
    extreme = a.equals(0.0) | a.equals(math.inf) | size.equals(math.inf)
    result = extreme.select(((a < 1.0) ^ (y < 0.0)).choose(0.0, math.inf, x.kind), result)
    half = y * 0.5
    whole = y.call("rint").equals(y)
    odd = whole & half.call("rint").compare("one", half)
    result = (result.bits() ^ odd.select(x.bits() & form.bits(-0.0), 0)).number()
    undefined = x.compare("uno", y) | ((x < 0.0) & (a < math.inf) & ~whole)
    result = undefined.select(math.nan, result)
    one = y.equals(0.0) | x.equals(1.0) | (x.equals(-1.0) & size.equals(math.inf))
    return one.select(1.0, result)


def fmod(x: Value, y: Value) -> Value:
    """C's fmod, exactly. A loop: one round takes 52 bits off the quotient, so it is nearly always one round."""
    writer = x.writer
    wide_x, wide_y = (v if v.format is F64 else v.convert("fpext", "double") for v in (x, y))
    dividend, divisor = wide_x.abs(), wide_y.abs()
    finite = (dividend < math.inf) & (divisor < math.inf) & (divisor > 0.0)
    start, size = finite.select(dividend, 0.0), finite.select(divisor, 1.0)
    denormal = size < F64.least
    exponent_y = (denormal.select(size * 2.0**54, size).bits() >> 52) - denormal.choose(54, 0, "i64")
    before, again, done = writer.label, writer.fresh_label("fmod"), writer.fresh_label("rest")
    writer.jump(again)
    writer.start(again)
    rest_name = writer.name()
    rest = Value(writer, x.lanes, "double", rest_name)
    at = len(writer.lines)  # the phi goes here once the value that comes round has a name
    shift = (rest.bits() >> 52) - exponent_y - 52
    shift = shift.compare("sgt", 0).select(shift, 0)
    half = shift >> 1
    multiple = size * ((half + F64.bias) << 52).number() * (((shift - half) + F64.bias) << 52).number()
    left = fma(-(rest / multiple).call("trunc"), multiple, rest)
    left = (left < 0.0).select(left + multiple, left)  # the rounded quotient may be one too many
    phi = f"  {rest_name} = phi {rest.type} [ {start.text}, %{before} ], [ {left.text}, %{again} ]"
    writer.lines.insert(at, phi)
    writer.branch((left >= size).any(), again, done)
    writer.start(done)
    by_infinity = divisor.equals(math.inf) & (dividend < math.inf)
    result = finite.select(left, by_infinity.select(dividend, math.nan))
    return (result if x.format is F64 else result.convert("fptrunc", "float")).signed(x)
