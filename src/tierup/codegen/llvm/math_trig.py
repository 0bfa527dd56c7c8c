"""sin, cos, tan and their inverses.

|x| = n · π/2 + r with |r| ≤ π/4. Up to `FAST` three parts of π/2 and fma give r; beyond it, and only when a lane is
there, a block is entered that multiplies the significand by the right window of the bits of 1/2π in integers (Payne and
Hanek, 1983), so every finite argument is reduced to full precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tierup.codegen.llvm.math_value import (
    F32,
    F64,
    Operand,
    Value,
    fast_two_sum,
    fma,
    polynomial,
    two_product,
    two_sum,
)

PI_2 = {  # π/2 in three parts of full length: with fma, x - n · first is exact
    F32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    F64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
PI_4 = {F32: (0.7853981852531433, -2.1855694143368964e-08), F64: (0.7853981633974483, 3.061616997868383e-17)}
# (sin r / r - 1) / r² in r² on |r| ≤ π/4 (f32: 2% more); relative error of sin: 6e-9 and 6e-18.
SIN = {
    F32: (-0.16666653752326965, 0.008332083001732826, -0.00019504317606333643),
    F64: (
        -0.16666666666666632, 0.008333333333322413, -0.00019841269829807737, 2.755731369190013e-06,
        -2.505075811311524e-08, 1.5896795552811053e-10,
    ),
}  # fmt: skip
# (cos r - 1 + r²/2) / r⁴ in r² on the same interval; relative error of cos: 7e-10 and 1.1e-18.
COS = {
    F32: (0.04166664183139801, -0.0013887184904888272, 2.4418128305114806e-05),
    F64: (
        0.041666666666666595, -0.001388888888887304, 2.4801587288841367e-05, -2.7557314176233885e-07,
        2.08757004155839e-09, -1.1358513938599692e-11,
    ),
}  # fmt: skip
# (asin s / s - 1) / s² in s² on s ≤ ½; relative error of asin: 6e-9 and 1.7e-17.
ASIN = {
    F32: (
        0.16666753590106964, 0.07495241612195969, 0.04547710344195366, 0.024147571995854378, 0.04221861809492111,
    ),
    F64: (
        0.16666666666665383, 0.0750000000034304, 0.04464285682348952, 0.030381959330854445, 0.0223717535346882,
        0.0173597709172324, 0.013884600435679708, 0.01217326627178487, 0.006510909034109241, 0.01957375758693157,
        -0.016293848128788223, 0.03195881693712423,
    ),
}  # fmt: skip
# (atan t / t - 1) / t² in t²: f32 on t ≤ 1, f64 on t ≤ tan(π/8); relative error of atan: 2.7e-8 and 2.2e-18.
ATAN = {
    F32: (
        -0.33333152532577515, 0.19993773102760315, -0.14211052656173706, 0.10665995627641678, -0.07552195340394974,
        0.04321163892745972, -0.016367793083190918, 0.002920659026131034,
    ),
    F64: (
        -0.333333333333332, 0.19999999999954018, -0.1428571428024173, 0.11111110785780894, -0.09090897825736105,
        0.07692061439453646, -0.0666311806405103, 0.05847991549907407, -0.05039765232776257, 0.03807623324020261,
        -0.017919943579136996,
    ),
}  # fmt: skip
FAST = {F32: 2.0**16, F64: 2.0**28}
# The first 1192 bits of 1/2π after the point.
INVERSE_2PI_BITS = 1192
INVERSE_2PI = int(
    "28be60db9391054a7f09d5f47d4d377036d8a5664f10e4107f9458eaf7aef1586dc91b8e909374b801924bba827464873f877ac72c4a69cf"
    "ba208d7d4baed1213a671c09ad17df904e64758e60d4ce7d272117e2ef7e4a0ec7fe25fff7816603fbcbc462d6829b47db4d9fb3c9f2c26d"
    "d3d18fd9a797fa8b5d49eeb1faf97c5ecf41ce7de294a4ba9afed7ec47e357421580cc11bf",
    16,
)
LOW_32 = 0xFFFFFFFF


class Reduced(NamedTuple):
    """n modulo 4 in the low bits of `quadrant`; r = high + low, without `low` in f32."""

    quadrant: Value
    high: Value
    low: Value | None


def _reduce_fast(a: Value) -> Reduced:
    first, second, third = PI_2[a.format]
    shifted = fma(a, 2 / math.pi, a.format.shifter)
    n = shifted - a.format.shifter
    r = fma(n, -first, a)
    if a.format is F32:
        return Reduced(shifted.bits(), fma(n, -third, fma(n, -second, r)), None)
    product, lost = two_product(n, -second)
    high, low = two_sum(r, product)
    return Reduced(shifted.bits(), high, fma(n, -third, low + lost))


def _window(position: Value, words: int, count: int) -> list[Value]:
    """`words` words of the bits of 1/2π · FAST / 2^digits from a bit position on, out of `count` + `words`.

    The word index is resolved by halving, with selects between constants; then the words are shifted together.
    """
    form = position.format
    width = 8 * (4 if form is F32 else 8)
    total = count + words
    lead = form.digits - int(math.log2(FAST[form]))  # zeros in front, since FAST · significand / 2^digits comes first
    bits = INVERSE_2PI >> (INVERSE_2PI_BITS + lead - total * width)
    table: list[Operand] = [
        _as_signed(bits >> (width * (total - 1 - k)) & ((1 << width) - 1), width) for k in range(total)
    ]
    index = position >> int(math.log2(width))
    step = count // 2
    while step:
        there = (index & step).compare("ne", 0)
        table = [there.select(position.splat(table[k + step]), position.splat(table[k])) for k in range(words + step)]
        step //= 2
    shift = position & (width - 1)
    values = [position.splat(word) for word in table]
    return [values[k].call("fshl", values[k + 1], shift) for k in range(words)]


def _as_signed(word: int, width: int) -> int:
    return word - (1 << width) if word >> (width - 1) else word


def _small_number(word: Value) -> Value:
    """An integer below 2^32 in 64 bits, as a double."""
    return (word | F64.bits(2.0**52)).number() - 2.0**52


def _quarters(turns: Value) -> tuple[Value, list[Value]]:
    """A fraction of a turn in 64 bits: its nearest quarter, and the signed rest in quarters, as two doubles."""
    quadrant = (turns + (1 << 61)) >> 62
    rest = turns - (quadrant << 62)
    top = (rest >> 32).convert("trunc", "i32").convert("sitofp", "double")
    return quadrant, [top * 2.0**-30, _small_number(rest & LOW_32) * 2.0**-62]


def _reduce_exactly_f32(a: Value) -> Reduced:
    bits = a.bits()
    window = _window((bits >> 23) - F32.bits(FAST[F32]) // (1 << 23), 3, 4)
    first, second, third = (word.convert("zext", "i64") for word in window)
    significand = (bits & 0x7FFFFF | 0x800000).convert("zext", "i64")
    turns = ((significand * first) << 32) + significand * second + ((significand * third) >> 32)
    quadrant, (top, rest) = _quarters(turns)
    r = ((top + rest) * (math.pi / 2)).convert("fptrunc", "float")
    return Reduced(quadrant.convert("trunc", "i32"), r, None)


def _reduce_exactly_f64(a: Value) -> Reduced:
    bits = a.bits()
    window = _window((bits >> 52) - F64.bits(FAST[F64]) // (1 << 52), 3, 16)
    limbs = [limb for word in reversed(window) for limb in (word & LOW_32, word >> 32)]  # the lowest first
    significand = bits & ((1 << 52) - 1) | (1 << 52)
    low, high = significand & LOW_32, significand >> 32
    # Row k of the product: what falls on limb k. Row 0 is below 2⁻¹²⁸ of a turn and left out.
    rows = [[low * limbs[k], high * limbs[k - 1]] for k in range(1, 6)]
    carry = (rows[0][0] >> 32) + (rows[0][1] >> 32)
    columns = []
    for k in range(1, 5):
        column = carry + (rows[k][0] & LOW_32) + (rows[k][1] & LOW_32)
        columns.append(column)
        carry = (column >> 32) + (rows[k][0] >> 32) + (rows[k][1] >> 32)
    quadrant, parts = _quarters((columns[3] << 32) | (columns[2] & LOW_32))
    parts += [_small_number(columns[1] & LOW_32) * 2.0**-94, _small_number(columns[0] & LOW_32) * 2.0**-126]
    total, lost = fast_two_sum(parts[0], parts[1])
    quarters, rest = fast_two_sum(total, lost + (parts[2] + parts[3]))
    first, second, _ = PI_2[F64]
    product, error = two_product(quarters, first)
    return Reduced(quadrant, *fast_two_sum(product, fma(rest, first, fma(quarters, second, error))))


def _reduce(a: Value) -> Reduced:
    """For a = |x|. Infinity goes the fast way, which makes it NaN."""
    writer = a.writer
    fast = _reduce_fast(a)
    far = (a >= FAST[a.format]) & (a < math.inf)
    before, exact_label, after = writer.label, writer.fresh_label("exact"), writer.fresh_label("reduced")
    writer.branch(far.any(), exact_label, after)
    writer.start(exact_label)
    exact = (_reduce_exactly_f32 if a.format is F32 else _reduce_exactly_f64)(a)
    chosen = [None if e is None or f is None else far.select(e, f) for e, f in zip(exact, fast, strict=True)]
    last = writer.label
    writer.jump(after)
    writer.start(after)

    def merged(there: Value | None, here: Value | None) -> Value | None:
        if there is None or here is None:
            return None
        return here.named(here.kind, f"phi {here.type} [ {there.text}, %{last} ], [ {here.text}, %{before} ]")

    quadrant, high, low = map(merged, chosen, fast)
    assert quadrant is not None
    assert high is not None
    return Reduced(quadrant, high, low)


def _sin_and_cos(reduced: Reduced) -> tuple[Value, Value]:
    """Of r."""
    r, low = reduced.high, reduced.low
    form = r.format
    square = r * r
    sin_tail = polynomial(square, SIN[form])
    cos_tail = polynomial(square, COS[form])
    if low is None:
        return fma(square * r, sin_tail, r), fma(square, fma(square, cos_tail, -0.5), 1.0)
    half = square * 0.5
    rough = 1.0 - half
    sine = r + fma(square * r, sin_tail, fma(-half, low, low))
    lost = (1.0 - rough) - half
    return sine, rough + (fma(square * square, cos_tail, lost) - r * low)


def _flipped(value: Value, sign: Value) -> Value:
    """The sign bit of `value` turned over by that of the integer `sign`."""
    form = value.format
    return (value.bits() ^ (sign & form.bits(-0.0))).number()


def _sign_from_bit(integer: Value, bit: int) -> Value:
    """That bit, moved to where the sign is."""
    return integer << ((31 if integer.format is F32 else 63) - bit)


def sin(x: Value) -> Value:
    reduced = _reduce(x.abs())
    sine, cosine = _sin_and_cos(reduced)
    odd = (reduced.quadrant & 1).compare("ne", 0)
    return _flipped(odd.select(cosine, sine), _sign_from_bit(reduced.quadrant, 1) ^ x.bits())


def cos(x: Value) -> Value:
    reduced = _reduce(x.abs())
    sine, cosine = _sin_and_cos(reduced)
    odd = (reduced.quadrant & 1).compare("ne", 0)
    return _flipped(odd.select(sine, cosine), _sign_from_bit(reduced.quadrant + 1, 1))


def tan(x: Value) -> Value:
    reduced = _reduce(x.abs())
    sine, cosine = _sin_and_cos(reduced)
    odd = (reduced.quadrant & 1).compare("ne", 0)
    quotient = odd.select(cosine, sine) / odd.select(sine, cosine)
    return _flipped(quotient, _sign_from_bit(reduced.quadrant, 0) ^ x.bits())


def _asin_parts(a: Value) -> tuple[Value, Value]:
    """For a = |x|: whether a > ½, and asin a, or there asin √((1 - a) / 2), of which acos a is the double."""
    large = a > 0.5
    square = large.select(fma(a, -0.5, 0.5), a * a)
    s = large.select(square.sqrt(), a)
    return large, fma(s * square, polynomial(square, ASIN[a.format]), s)


def asin(x: Value) -> Value:
    high, low, _ = PI_2[x.format]
    large, angle = _asin_parts(x.abs())
    return large.select(fma(angle, -2.0, low) + high, angle).signed(x)


def acos(x: Value) -> Value:
    high, low, _ = PI_2[x.format]
    large, angle = _asin_parts(x.abs())
    near_end = (x < 0.0).select(fma(angle, -2.0, 2 * low) + 2 * high, angle + angle)
    return large.select(near_end, (low - angle.signed(x)) + high)


def _atan_of_small(t: Value) -> tuple[Value, Value]:
    """atan t as t and a small rest."""
    square = t * t
    return t, square * t * polynomial(square, ATAN[t.format])


def atan(x: Value) -> Value:
    """atan a = π/2 - atan(1/a) beyond 1; in f64 also π/4 + atan((a - 1) / (a + 1)) in the middle."""
    a = x.abs()
    high, low, _ = PI_2[x.format]
    if x.format is F32:
        large = a > 1.0
        t, rest = _atan_of_small(large.select(1.0 / a, a))
        angle = t + rest
        return large.select((low - angle) + high, angle).signed(x)
    large, middle = a > math.tan(3 * math.pi / 8), a > math.tan(math.pi / 8)
    top = large.select(-1.0, middle.select(a - 1.0, a))
    bottom = large.select(a, middle.select(a + 1.0, 1.0))
    t, rest = _atan_of_small(top / bottom)
    base = large.select(middle.splat(high, "double"), middle.choose(PI_4[F64][0], 0.0, "double"))
    base_low = large.select(middle.splat(low, "double"), middle.choose(PI_4[F64][1], 0.0, "double"))
    return (base + (t + (rest + base_low))).signed(x)


TRIGONOMETRY: dict[str, Callable[[Value], Value]] = {
    "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos, "atan": atan,
}  # fmt: skip
