"""One rule for each core op: its operands with their error bounds -> its result with its bound.

`bounds.py` says what a bound is. A rule gets its step, which computes the op in float64, and the operands. Those of
maps are here, with the table of all; `bound_sums.py` and `bound_moves.py` have the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from tierup.ir.types import Array, DType
from tierup.reference.bind import widen
from tierup.reference.bound_moves import known, looked_up, moved, scattered
from tierup.reference.bound_sums import (
    bilinear,
    extreme,
    index,
    places,
    product_with_factors,
    reduce_prod,
    reduce_sum,
    running_product,
    running_sum,
    scaled_product,
    window_max,
    window_sum,
)
from tierup.reference.bounded import (
    FORMATS,
    Bounded,
    Rule,
    Step,
    all_exact,
    any_free,
    freed,
    may_vanish,
    size_of,
)
from tierup.reference.cast import bit_view, flushed

_EXACT_INTEGERS = 2.0**24  # f32 holds all integers up to here


def _integers(step: Step, *given: Bounded) -> Bounded:
    """Integer and bool arithmetic is exact; it is free where an operand is."""
    return step.whole(step(*(x.value for x in given)), any_free(given))


def _on_floats(rule: Rule) -> Rule:
    """The same op on integers is exact."""

    def either(step: Step, *given: Bounded) -> Bounded:
        return rule(step, *given) if given[-1].is_float else _integers(step, *given)

    return either


def _sum(step: Step, a: Bounded, b: Bounded) -> Bounded:
    result = step.rounded(step(a.value, b.value), a.magnitude + b.magnitude)
    return _counted(step, _absorbed(step, result, a, b), a, b)


def _absorbed(step: Step, result: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """The same, but exact where an operand is about the largest number there is, and the other one less than half a
    step of it: scores that a mask has put at the end of the range stay there, less the largest of their row."""
    ends, half_step = (1 - step.unit) * step.format.largest, 2.0**-26 * step.format.relative
    at_end = np.abs(result.value) >= ends
    if not at_end.any():
        return result
    for one, other in ((a, b), (b, a)):
        size = np.abs(one.value)
        little = np.abs(other.value) + step.unit * other.magnitude < half_step * size
        alone = at_end & (one.own == 0) & little & np.isfinite(size)
        value = np.where(alone, np.copysign(size, result.value), result.value)
        result = replace(result, value=value, bound=np.where(alone, 0.0, result.own))
    return result


def _counted(step: Step, result: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """Models count in floats: sums of exact whole numbers, some of which were integers or rounded to one, are exact."""
    if not (a.counts or b.counts):
        return result
    whole = (np.floor(a.value) == a.value) & (np.floor(b.value) == b.value) & (a.own == 0) & (b.own == 0)
    exact = whole & (np.abs(result.value) <= _EXACT_INTEGERS / step.format.relative)
    return replace(result, bound=np.where(exact, 0.0, result.own), counts=True)


def _product(step: Step, a: Bounded, b: Bounded) -> Bounded:
    """|a| · |b| of what is exact; beyond that the factors' bounds grow by each other's size."""
    value, unit = step(a.value, b.value), step.unit
    least = step.format.relative * size_of(a.value) * size_of(b.value)
    bound = a.magnitude * size_of(b.value) + size_of(a.value) * b.magnitude + unit * a.magnitude * b.magnitude - least
    if all_exact((a, b)):
        bound = least
    result = step.rounded(value, np.maximum(bound, least))
    unsure = (np.isinf(a.value) & may_vanish(b, unit)) | (np.isinf(b.value) & may_vanish(a, unit))
    return freed(result, unsure)


def _function(step: Step, *given: Bounded) -> Bounded:
    """|f'| · B + |f|, by evaluating f at the ends of each operand's interval; monotonous between them."""
    return _probed(step, given, _spread)


Spread = Callable[[Step, list[Array], int, Array, Array], tuple[Array, Array | bool]]


def _probed(step: Step, given: Sequence[Bounded], spread: Spread) -> Bounded:
    arrays = [x.value for x in given]
    exact = step(*arrays)
    value = _in_range(exact, step.format.largest * (1 + step.unit))
    bound = step.format.relative * size_of(value)
    free = any_free(given) | (np.isfinite(value) & (np.abs(value) > step.format.largest * (1 - step.unit)))
    for position, x in enumerate(given):
        reach = np.where(np.isinf(x.magnitude), 0.0, step.unit * x.magnitude)
        change, jumps = spread(step, arrays, position, reach, value)
        bound = bound + change / step.unit
        free = free | (jumps & (x.own > 0))
    return freed(step.rounded(value, bound), free)


def _in_range(x: Array, largest: float) -> Array:
    """What is larger than any number of the dtype is infinite."""
    return np.where(np.abs(x) > largest, np.copysign(np.inf, x), x)


def _spread(step: Step, arrays: list[Array], position: int, reach: Array, value: Array) -> tuple[Array, Array]:
    """How far a function moves when one operand does, and where its result becomes one of another kind."""
    change, jumps = np.zeros(value.shape), np.zeros(value.shape, bool)
    for beside in (arrays[position] - reach, arrays[position] + reach):
        there = _in_range(step(*arrays[:position], beside, *arrays[position + 1 :]), step.format.largest)
        distance = np.abs(there - value)
        finite = np.isfinite(distance)
        same = (there == value) | (np.isnan(there) & np.isnan(value))
        change = np.maximum(change, np.where(finite, distance, 0.0))
        jumps |= ~finite & ~same
    return change, jumps


def _quotient(step: Step, a: Bounded, b: Bounded) -> Bounded:
    return freed(_function(step, a, b), may_vanish(b, step.unit))


def _power(step: Step, a: Bounded, b: Bounded) -> Bounded:
    """A negative base needs a whole exponent, and one that was rounded may be whole or not."""
    exponents = np.broadcast_to(b.value, np.broadcast_shapes(a.value.shape, b.value.shape)).copy()
    result = _function(step, a, replace(b, value=exponents))  # of a single 0.5 NumPy makes a root: NaN for -inf
    if b.bound is None:
        return result
    reach = b.error(step.unit)
    whole = np.floor(b.value + reach) >= np.ceil(b.value - reach)
    return freed(result, whole & (a.value - a.error(step.unit) <= 0))


def _wave(step: Step, x: Bounded) -> Bounded:
    """Sine and cosine change no more than their argument does, and never by more than 2."""
    return _probed(step, (x,), lambda step, arrays, position, reach, value: (np.minimum(reach, 2.0), False))


def _tangent(step: Step, x: Bounded) -> Bounded:
    """f' = 1 + f²; there is a pole about 1 / |f| away."""

    def spread(
        step: Step, arrays: list[Array], position: int, reach: Array, value: Array
    ) -> tuple[Array, Array | bool]:
        return (1 + size_of(value) ** 2) * reach, reach * (1 + size_of(value)) > 0.5

    return _probed(step, (x,), spread)


def _remainder(step: Step, a: Bounded, b: Bounded) -> Bounded:
    """fmod is exact; of what is not, it may be anything where the bounds reach over half a divisor."""
    if all_exact((a, b)):
        return step.exact(step(a.value, b.value))
    result = _function(step, a, b)
    reach = a.error(step.unit) + np.abs(a.value / b.value) * b.error(step.unit)
    return freed(result, reach >= np.abs(b.value) / 2)


def _steps(step: Step, x: Bounded) -> Bounded:
    """floor, ceil, round: whole numbers, exact but for a whole step where one lies within the bound."""
    value = step(x.value)
    if x.bound is None:
        return replace(step.exact(value), counts=True)
    reach = np.where(np.isinf(x.bound), 0.0, step.unit * x.bound)
    change, jumps = _spread(step, [x.value], 0, reach, value)
    return replace(freed(step.passed(value, change / step.unit), jumps | x.free), counts=True)


def _signed(step: Step, x: Bounded) -> Bounded:
    """neg, abs"""
    value = step(x.value)
    return step.exact(value) if x.bound is None else step.passed(value, x.bound)


def _chosen(step: Step, a: Bounded, b: Bounded) -> Bounded:
    """min, max: the bound of the one that it is; where it may be either, the larger."""
    value = step(a.value, b.value)
    if all_exact((a, b)):
        return step.exact(value)
    near = np.abs(a.value - b.value) <= step.unit * (a.own + b.own)
    bound = np.where(near, np.maximum(a.own, b.own), np.where(a.value == value, a.own, b.own))
    return step.passed(value, np.where(a.free | b.free, np.inf, bound))


def _comparison(step: Step, a: Bounded, b: Bounded) -> Bounded:
    value = step(a.value, b.value)
    if a is b:  # how models look for NaN: whatever the error, it is the same on both sides
        return step.whole(value, a.free)
    if all_exact((a, b)):
        return step.exact(value)
    reach = a.error(step.unit) + b.error(step.unit)
    near = (np.abs(a.value - b.value) <= reach) & (reach > 0)  # equal infinities are no distance apart: NaN, not near
    return step.whole(value, near | np.isinf(reach))


def _select(step: Step, condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """Where the condition is free, either may come out."""
    value = step(condition.value, a.value, b.value)
    if not a.is_float:
        other = condition.free & (a.value != b.value)
        return step.whole(value, np.where(condition.value, a.free, b.free) | other)
    if all_exact((condition, a, b)):
        return step.exact(value)
    bound = np.where(condition.value, a.own, b.own)
    if condition.bound is not None:
        apart = np.abs(a.value - b.value) / step.unit
        same = (a.value == b.value) | (np.isnan(a.value) & np.isnan(b.value))
        either = np.maximum(a.own, b.own) + np.where(same, 0.0, apart)
        bound = np.where(condition.free, either, bound)
    return step.passed(value, bound)


def _differ(a: Array, b: Array) -> Array:
    """Where two arrays of integers, or of floats that are only moved, are not the same."""
    return np.asarray((a != b) & ~(np.isnan(a) & np.isnan(b)) if a.dtype.kind not in "iub" else a != b)


def _cast(step: Step, x: Bounded) -> Bounded:
    value = step(x.value)
    if not x.is_float:
        if step.dtype not in FORMATS:
            return step.whole(value, x.free)
        if x.dtype.is_float:  # of one byte or less: all of its numbers are exact in f16 and bf16
            return freed(step.exact(value), x.free)
        large = np.abs(value) > _EXACT_INTEGERS / step.format.relative
        bound = np.where(large, step.format.relative * np.abs(value), 0.0)
        exact = step.exact(value) if not large.any() and x.bound is None else freed(step.rounded(value, bound), x.free)
        return replace(exact, counts=True)
    if step.dtype in FORMATS:
        narrower = step.format.relative > FORMATS[x.dtype].relative
        if not narrower:
            return step.exact(value) if x.bound is None else step.passed(value, x.bound)
        if x.bound is None and x.dtype is DType.F32:  # one rounding, of a number that is known
            known = x.value.astype(np.float32)
            known = flushed(known) if step.node.attrs.get("flush", 0) else known
            return step.exact(known.astype(step.dtype.numpy).astype(np.float64))
        return _probed(step, (x,), _spread)
    if x.bound is None:
        return step.exact(value)
    reach = np.where(np.isinf(x.bound), 0.0, step.unit * x.bound)
    ends = [step(x.value - reach), step(x.value + reach)]
    near = _differ(ends[0], value) | _differ(ends[1], value)
    if step.dtype is DType.BOOL:
        near |= may_vanish(x, step.unit)
    return step.whole(value, near | x.free)


def _bits(step: Step, x: Bounded) -> Bounded:
    """Of numbers as memory holds them. Those of a number that was rounded may be any near it."""
    held = x.value.astype(x.dtype.numpy) if x.is_float else x.value
    value = widen(bit_view(held, step.dtype))
    free = x.free if x.bound is None else x.bound > 0
    return freed(step.exact(value), free) if step.dtype in FORMATS else step.whole(value, free)


_FUNCTIONS = (
    "sqrt", "exp", "expm1", "log", "log1p", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf",
)  # fmt: skip

_BY_NAME: dict[str, Rule] = {
    **dict.fromkeys(_FUNCTIONS, _function),
    **dict.fromkeys(("add", "sub"), _on_floats(_sum)),
    **dict.fromkeys(("neg", "abs"), _on_floats(_signed)),
    **dict.fromkeys(("min", "max"), _on_floats(_chosen)),
    **dict.fromkeys(("eq", "lt", "le"), _on_floats(_comparison)),
    **dict.fromkeys(("floor", "ceil", "round"), _steps),
    **dict.fromkeys(("sin", "cos"), _wave),
    **dict.fromkeys(("and", "or", "xor", "not", "shl", "shr", "mod"), _integers),
    **dict.fromkeys(("reshape", "transpose", "broadcast", "slice"), moved(0)),
    **dict.fromkeys(("gather", "gather_elements", "gather_nd"), looked_up),
    **dict.fromkeys(("matmul", "conv", "conv_last"), bilinear),
    "matmul_blocks": scaled_product,
    "matmul_scaled": product_with_factors,
    **dict.fromkeys(("iota", "shape"), known),
    "mul": _on_floats(_product),
    "div": _on_floats(_quotient),
    "pow": _on_floats(_power),
    "fmod": _on_floats(_remainder),
    "tan": _tangent,
    "select": _select,
    "cast": _cast,
    "bitcast": _bits,
    "reduce_sum": reduce_sum,
    "reduce_prod": reduce_prod,
    "reduce_max": extreme(False),
    "reduce_min": extreme(True),
    "argmax": index(False),
    "argmin": index(True),
    "top_places": places,
    "cumsum": running_sum,
    "cumprod": running_product,
    "pool_sum": window_sum,
    "pool_max": window_max,
    **dict.fromkeys(("scatter_elements", "scatter_nd"), scattered),
    "concat": moved(),
    "pad": moved(0, 2),
}
RULES = {f"core.{name}": rule for name, rule in _BY_NAME.items()}
