"""exp and what is made of it: exp2, expm1, sigmoid, sinh, cosh, tanh.

All take x = n · ln 2 + r with |r| ≤ ln 2 / 2, a polynomial in r, and powers of two that are put together from bits.
"""

from __future__ import annotations

import math

from tierup.codegen.llvm.math_value import F32, F64, Format, Value, fma, polynomial

LN2 = {  # ln 2 in two parts of full length: with fma, x - n · high is exact
    F32: (0.6931471824645996, -1.9046542121259336e-09),
    F64: (0.6931471805599453, 2.3190468138462996e-17),
}
# (eʳ - 1 - r) / r² on |r| ≤ 0.3466; error relative to r: 1.6e-8 and 1.9e-17.
EXP = {
    F32: (0.5, 0.1666654348373413, 0.04166628047823906, 0.008366583846509457, 0.0013946460094302893),
    F64: (
        0.5000000000000006, 0.16666666666666685, 0.041666666666573614, 0.008333333333314607, 0.001388888893238117,
        0.00019841269902994723, 2.4801504443605013e-05, 2.755722798701698e-06, 2.762632734061003e-07,
        2.511446221047778e-08,
    ),
}  # fmt: skip
# (cosh r - 1) / r² in r² on |r| ≤ 0.3466; relative error of cosh: 1.1e-9 and 4e-20.
COSH = {
    F32: (0.5, 0.041666265577077866, 0.0013946229591965675),
    F64: (
        0.5, 0.04166666666666671, 0.0013888888888863931, 2.4801587363405704e-05, 2.7557241816464654e-07,
        2.092442799288631e-09,
    ),
}  # fmt: skip
# (sinh r - r) / r³ in r² on |r| ≤ 0.3466; relative error of sinh: 1.4e-8 and 6e-19.
SINH = {
    F32: (0.1666654348373413, 0.008366585709154606),
    F64: (
        0.16666666666666677, 0.008333333333321615, 0.00019841269886160365, 2.7557244180058746e-06,
        2.510904553918393e-08,
    ),
}  # fmt: skip
# Beyond these eˣ is 0 or infinite.
LOW = {F32: -104.0, F64: -746.0}
HIGH = {F32: 89.0, F64: 710.0}
# Up to here sinh x, expm1 x, log1p x and x are the same number.
TINY = {F32: 2.0**-25, F64: 2.0**-54}


def _reduce(x: Value, shifter: float) -> tuple[Value, Value, Value]:
    """The shifted n, n and r. `shifter` is the format's, plus what the caller wants added to n in the bits."""
    high, low = LN2[x.format]
    shifted = fma(x, 1 / math.log(2), shifter)
    n = shifted - shifter
    return shifted, n, fma(n, -low, fma(n, -high, x))


def scaled(value: Value, shifted: Value) -> Value:
    """value · 2ⁿ in two factors, so that overflow and denormals are rounded once; the bits hold n + 2 · bias."""
    digits = value.format.digits
    bits = shifted.bits()
    half = bits >> 1
    return value * (half << digits).number() * ((bits - half) << digits).number()


def double_bias(form: Format) -> float:
    return form.shifter + 2 * form.bias


def exp_of_r(r: Value) -> Value:
    """1 + r · (1 + r · (...)): its last steps are not split over two chains, for the sake of the last bit."""
    return fma(fma(polynomial(r, EXP[r.format]), r, 1.0), r, 1.0)


def exp_of_clamped(x: Value) -> Value:
    """eˣ for LOW ≤ x ≤ HIGH."""
    if x.scales:
        _, n, r = _reduce(x, x.format.shifter)
        return exp_of_r(r).scaled(n)
    shifted, _, r = _reduce(x, double_bias(x.format))
    return scaled(exp_of_r(r), shifted)


def exp(x: Value) -> Value:
    form = x.format
    return exp_of_clamped(x.at_most(HIGH[form]).at_least(LOW[form]))


def exp2(x: Value) -> Value:
    form = x.format
    x = x.at_most(form.bias + 2.0).at_least(-form.bias - form.digits - 2.0)
    shifter = double_bias(form)
    shifted = x + shifter
    r = (x - (shifted - shifter)) * math.log(2)
    return scaled(exp_of_r(r), shifted)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e⁻ˣ), as e⁻ᵃ / (1 + e⁻ᵃ) on the left so that its small results keep their digits."""
    e = exp_of_clamped((-x.abs()).at_least(LOW[x.format]))
    return (x < 0.0).select(e, 1.0) / (e + 1.0)


def _expm1_of_r(r: Value) -> Value:
    return fma(r * r, polynomial(r, EXP[r.format]), r)


def expm1(x: Value) -> Value:
    """2 · (2ⁿ⁻¹ · (eʳ - 1) + 2ⁿ⁻¹ - ½): half of it never overflows before the whole does."""
    form = x.format
    clamped = x.at_most(HIGH[form]).at_least(-float(form.digits))
    shifted, _, r = _reduce(clamped, form.shifter + form.bias - 1)
    half_power = (shifted.bits() << form.digits).number()
    half = fma(half_power, _expm1_of_r(r), half_power - 0.5)
    return (x.abs() < TINY[form]).select(x, half + half)


def tanh(x: Value) -> Value:
    """t / (t + 2) with t = e²ᵃ - 1 and a = |x|; it is 1 from about 0.35 · (digits + 2) on."""
    form = x.format
    a = x.abs().at_most(0.4 * form.digits)
    shifted, _, r = _reduce(a + a, form.shifter + form.bias)
    power = (shifted.bits() << form.digits).number()
    t = fma(power, _expm1_of_r(r), power - 1.0)
    return (t / (t + 2.0)).signed(x)


def _hyperbolic_parts(a: Value) -> tuple[Value, Value, Value, Value]:
    """For a ≥ 0: cosh r - 1, sinh r, and a quarter of 2ⁿ + 2⁻ⁿ and of 2ⁿ - 2⁻ⁿ."""
    form = a.format
    shifter = form.shifter + form.bias - 2
    shifted, n, r = _reduce(a.at_most(HIGH[form] + 0.5), shifter)
    power = (shifted.bits() << form.digits).number()
    inverse = ((shifter - n.at_most(form.bias - 27.0)).bits() << form.digits).number()
    square = r * r
    coshm1_r = square * polynomial(square, COSH[form])
    sinh_r = fma(square * r, polynomial(square, SINH[form]), r)
    return coshm1_r, sinh_r, power + inverse, power - inverse


def sinh(x: Value) -> Value:
    """sinh(n ln 2 + r) = sinh r · cosh(n ln 2) + cosh r · sinh(n ln 2); the large terms are rounded once."""
    a = x.abs()
    coshm1_r, sinh_r, plus, minus = _hyperbolic_parts(a)
    half = fma(coshm1_r, minus, fma(sinh_r, plus, minus))
    return (a < TINY[x.format]).select(x, (half + half).signed(x))


def cosh(x: Value) -> Value:
    coshm1_r, sinh_r, plus, minus = _hyperbolic_parts(x.abs())
    half = fma(coshm1_r, plus, fma(sinh_r, minus, plus))
    return half + half
