"""One rule for each core op: its operands with their error bounds -> its result with its bound.

`bounds.py` says what a bound is. A rule gets its step, which computes the op in float64, and the operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tierup.ir.graph import Attrs
from tierup.ir.types import Array, DType
from tierup.reference.bounded import FORMATS, Bounded, Step, size_of
from tierup.reference.cast import flushed
from tierup.reference.winograd import summed_sizes

_EXACT_INTEGERS = 2.0**24  # f32 holds all integers up to here

Rule = Callable[..., Bounded]


def _any_free(given: Sequence[Bounded]) -> Array | bool:
    free: Array | bool = False
    for x in given:
        free = free | x.free
    return free


def _all_exact(given: Sequence[Bounded]) -> bool:
    return all(x.bound is None for x in given)


def _integers(step: Step, *given: Bounded) -> Bounded:
    """Integer and bool arithmetic is exact; it is free where an operand is."""
    return step.whole(step(*(x.value for x in given)), _any_free(given))


def _on_floats(rule: Rule) -> Rule:
    """The same op on integers is exact."""

    def either(step: Step, *given: Bounded) -> Bounded:
        return rule(step, *given) if given[-1].is_float else _integers(step, *given)

    return either


def _sum(step: Step, a: Bounded, b: Bounded) -> Bounded:
    return _counted(step, step.rounded(step(a.value, b.value), a.magnitude + b.magnitude), a, b)


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
    if _all_exact((a, b)):
        bound = least
    result = step.rounded(value, np.maximum(bound, least))
    unsure = (np.isinf(a.value) & _may_vanish(b, unit)) | (np.isinf(b.value) & _may_vanish(a, unit))
    return _freed(result, unsure)


def _may_vanish(x: Bounded, unit: float) -> Array | bool:
    """Where a value that was rounded may be zero, or of the other sign."""
    return False if x.bound is None else (np.abs(x.value) <= unit * x.bound) & (x.bound > 0)


def _freed(x: Bounded, unsure: Array | bool) -> Bounded:
    return replace(x, bound=np.where(unsure, np.inf, x.own)) if np.any(unsure) else x


def _function(step: Step, *given: Bounded) -> Bounded:
    """|f'| · B + |f|, by evaluating f at the ends of each operand's interval; monotonous between them."""
    return _probed(step, given, _spread)


Spread = Callable[[Step, list[Array], int, Array, Array], tuple[Array, Array | bool]]


def _probed(step: Step, given: Sequence[Bounded], spread: Spread) -> Bounded:
    arrays = [x.value for x in given]
    exact = step(*arrays)
    value = _in_range(exact, step.format.largest * (1 + step.unit))
    bound = step.format.relative * size_of(value)
    free = _any_free(given) | (np.isfinite(value) & (np.abs(value) > step.format.largest * (1 - step.unit)))
    for position, x in enumerate(given):
        reach = np.where(np.isinf(x.magnitude), 0.0, step.unit * x.magnitude)
        change, jumps = spread(step, arrays, position, reach, value)
        bound = bound + change / step.unit
        free = free | (jumps & (x.own > 0))
    return _freed(step.rounded(value, bound), free)


def _in_range(x: Array, largest: float) -> Array:
    """What is larger than any number of the dtype is infinite."""
    return np.where(np.abs(x) > largest, np.copysign(np.inf, x), x)


def _spread(step: Step, arrays: list[Array], position: int, reach: Array, value: Array) -> tuple[Array, Array]:
    """How far a function moves when one operand does, and where its result becomes one of another kind."""
    change, jumps = np.zeros(value.shape), np.zeros(value.shape, bool)
    for moved in (arrays[position] - reach, arrays[position] + reach):
        there = _in_range(step(*arrays[:position], moved, *arrays[position + 1 :]), step.format.largest)
        distance = np.abs(there - value)
        finite = np.isfinite(distance)
        same = (there == value) | (np.isnan(there) & np.isnan(value))
        change = np.maximum(change, np.where(finite, distance, 0.0))
        jumps |= ~finite & ~same
    return change, jumps


def _quotient(step: Step, a: Bounded, b: Bounded) -> Bounded:
    return _freed(_function(step, a, b), _may_vanish(b, step.unit))


def _power(step: Step, a: Bounded, b: Bounded) -> Bounded:
    """A negative base needs a whole exponent, and one that was rounded may be whole or not."""
    exponents = np.broadcast_to(b.value, np.broadcast_shapes(a.value.shape, b.value.shape)).copy()
    result = _function(step, a, replace(b, value=exponents))  # of a single 0.5 NumPy makes a root: NaN for -inf
    if b.bound is None:
        return result
    reach = b.error(step.unit)
    whole = np.floor(b.value + reach) >= np.ceil(b.value - reach)
    return _freed(result, whole & (a.value - a.error(step.unit) <= 0))


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
    if _all_exact((a, b)):
        return step.exact(step(a.value, b.value))
    result = _function(step, a, b)
    reach = a.error(step.unit) + np.abs(a.value / b.value) * b.error(step.unit)
    return _freed(result, reach >= np.abs(b.value) / 2)


def _steps(step: Step, x: Bounded) -> Bounded:
    """floor, ceil, round: whole numbers, exact but for a whole step where one lies within the bound."""
    value = step(x.value)
    if x.bound is None:
        return replace(step.exact(value), counts=True)
    reach = np.where(np.isinf(x.bound), 0.0, step.unit * x.bound)
    change, jumps = _spread(step, [x.value], 0, reach, value)
    return replace(_freed(step.passed(value, change / step.unit), jumps | x.free), counts=True)


def _signed(step: Step, x: Bounded) -> Bounded:
    """neg, abs"""
    value = step(x.value)
    return step.exact(value) if x.bound is None else step.passed(value, x.bound)


def _chosen(step: Step, a: Bounded, b: Bounded) -> Bounded:
    """min, max: the bound of the one that it is; where it may be either, the larger."""
    value = step(a.value, b.value)
    if _all_exact((a, b)):
        return step.exact(value)
    near = np.abs(a.value - b.value) <= step.unit * (a.own + b.own)
    bound = np.where(near, np.maximum(a.own, b.own), np.where(a.value == value, a.own, b.own))
    return step.passed(value, np.where(a.free | b.free, np.inf, bound))


def _comparison(step: Step, a: Bounded, b: Bounded) -> Bounded:
    value = step(a.value, b.value)
    if a is b:  # how models look for NaN: whatever the error, it is the same on both sides
        return step.whole(value, a.free)
    if _all_exact((a, b)):
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
    if _all_exact((condition, a, b)):
        return step.exact(value)
    bound = np.where(condition.value, a.own, b.own)
    if condition.bound is not None:
        apart = np.abs(a.value - b.value) / step.unit
        same = (a.value == b.value) | (np.isnan(a.value) & np.isnan(b.value))
        either = np.maximum(a.own, b.own) + np.where(same, 0.0, apart)
        bound = np.where(condition.free, either, bound)
    return step.passed(value, bound)


def _cast(step: Step, x: Bounded) -> Bounded:
    value = step(x.value)
    if not x.is_float:
        if not step.dtype.is_float:
            return step.whole(value, x.free)
        large = np.abs(value) > _EXACT_INTEGERS / step.format.relative
        bound = np.where(large, step.format.relative * np.abs(value), 0.0)
        exact = step.exact(value) if not large.any() and x.bound is None else _freed(step.rounded(value, bound), x.free)
        return replace(exact, counts=True)
    if step.dtype.is_float:
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
    near = (ends[0] != value) | (ends[1] != value)
    if step.dtype is DType.BOOL:
        near |= _may_vanish(x, step.unit)
    return step.whole(value, near | x.free)


def _reduced(step: Step, function: Callable[..., Any], x: Array, **extra: Any) -> Array:
    axes, keep = step.node.attrs["axes"], bool(step.node.attrs["keepdims"])
    return np.asarray(function(x, axis=axes, keepdims=keep, **extra))


def _reduce_sum(step: Step, x: Bounded) -> Bounded:
    value = step(x.value)
    if not x.is_float:
        return step.whole(value, _reduced(step, np.any, np.asarray(x.free)) if x.bound is not None else False)
    return step.summed(value, _reduced(step, np.sum, x.magnitude), _count(x.value, value))


def _count(x: Array, reduced: Array) -> int:
    return x.size // max(reduced.size, 1)


def _reduce_prod(step: Step, x: Bounded) -> Bounded:
    """Π (|x| + error) - Π |x|; free where the large factors alone, or the small ones, leave the dtype's range."""
    value = step(x.value)
    if not x.is_float:
        return step.whole(value, _reduced(step, np.any, np.asarray(x.free)) if x.bound is not None else False)
    size = size_of(x.value)
    bound = (_reduced(step, np.prod, size + step.unit * x.magnitude) - _reduced(step, np.prod, size)) / step.unit
    large = _reduced(step, np.prod, np.maximum(size, 1.0)) > step.format.largest
    small = _reduced(step, np.prod, np.where(size > 0, np.minimum(size, 1.0), 1.0)) < step.format.normal
    return _freed(step.rounded(value, bound), large | small)


def _extreme(least: bool) -> Rule:
    """The bound of a largest element is the largest of those that may be it."""

    def rule(step: Step, x: Bounded) -> Bounded:
        value = step(x.value)
        if not x.is_float:
            return step.whole(value, _reduced(step, np.any, np.asarray(x.free)) if x.bound is not None else False)
        if x.bound is None:
            return step.exact(value)
        candidate = _candidates(x, step.unit, tuple(step.node.attrs["axes"]), least) | np.isinf(x.bound)
        return step.passed(value, _reduced(step, np.max, np.where(candidate, x.bound, 0.0), initial=0.0))

    return rule


def _candidates(x: Bounded, unit: float, axes: tuple[int, ...], least: bool) -> Array:
    """The elements that may be the largest, or the least, along `axes`."""
    values = -x.value if least else x.value
    reach = np.asarray(x.error(unit))
    floor = np.max(values - reach, axis=axes, keepdims=True, initial=-np.inf)
    return np.asarray(values + reach >= floor)


def _index(least: bool) -> Rule:
    """argmax, argmin: free where several may be it."""

    def rule(step: Step, x: Bounded) -> Bounded:
        value, axis = step(x.value), step.node.attrs["axis"]
        if x.bound is None or not x.is_float:
            return step.whole(value, np.any(x.free, axis=axis) if x.bound is not None else False)
        keep = bool(step.node.attrs["keepdims"])
        several = np.sum(_candidates(x, step.unit, (axis,), least), axis=axis, keepdims=keep) != 1
        return step.whole(value, several | np.any(np.isinf(x.bound), axis=axis, keepdims=keep))

    return rule


def _places(step: Step, x: Bounded) -> Bounded:
    """Exact where the elements are; else any two may change places."""
    return step.whole(step(x.value), x.bound is not None)


def _running_sum(step: Step, x: Bounded) -> Bounded:
    value = step(x.value)
    if not x.is_float:
        return step.whole(value, bool(np.any(x.free)))
    return step.summed(value, step(x.magnitude), x.value.shape[step.node.attrs["axis"]])


def _running_product(step: Step, x: Bounded) -> Bounded:
    value = step(x.value)
    if not x.is_float:
        return step.whole(value, bool(np.any(x.free)))
    size = size_of(x.value)
    bound = (step(size + step.unit * x.magnitude) - step(size)) / step.unit
    large = step(np.maximum(size, 1.0)) > step.format.largest
    small = step(np.where(size > 0, np.minimum(size, 1.0), 1.0)) < step.format.normal
    return _freed(step.rounded(value, bound), large | small)


def _window_sum(step: Step, x: Bounded, pads: Bounded) -> Bounded:
    value = step(x.value, pads.value)
    if not x.is_float:
        return step.whole(value, bool(np.any(x.free)))
    return step.summed(value, step(x.magnitude, pads.value), math.prod(step.node.attrs["kernel_shape"]))


def _window_max(step: Step, x: Bounded, pads: Bounded) -> Bounded:
    value = step(x.value, pads.value)
    if not x.is_float or x.bound is None:
        return step.whole(value, bool(np.any(x.free)))
    return step.passed(value, step(x.bound, pads.value))


def _scattered(step: Step, data: Bounded, indices: Bounded, updates: Bounded) -> Bounded:
    """What is put has its own bound, or that of what it is combined with."""
    value = step(data.value, indices.value, updates.value)
    if indices.bound is not None:
        return step.whole(value, True)
    if _all_exact((data, updates)) and step.node.attrs["reduction"] in ("none", "min", "max"):
        return step.exact(value)
    if not data.is_float:
        return step.whole(value, bool(np.any(data.free)) or bool(np.any(updates.free)))
    match step.node.attrs["reduction"]:
        case "add":
            bound = step(data.magnitude, indices.value, updates.magnitude)
            return step.summed(value, bound, 1 + updates.value.size)
        case "mul":
            sizes = [size_of(x.value) for x in (data, updates)]
            grown = [size + step.unit * x.magnitude for size, x in zip(sizes, (data, updates), strict=True)]
            spread = step(grown[0], indices.value, grown[1]) - step(sizes[0], indices.value, sizes[1])
            large = step(np.maximum(sizes[0], 1.0), indices.value, np.maximum(sizes[1], 1.0)) > step.format.largest
            return _freed(step.rounded(value, spread / step.unit), large)
        case "none":
            return step.passed(value, step(data.own, indices.value, updates.own))
        case _:
            largest = Step(
                replace(step.node, attrs=Attrs({**step.node.attrs, "reduction": "max"})), step.dtype, step.unit
            )
            return step.passed(value, largest(data.own, indices.value, updates.own))


def _bilinear(step: Step, a: Bounded, b: Bounded, *rest: Bounded) -> Bounded:
    """matmul, conv, conv_last: the same on absolute values, with bounds in place of one side's."""
    more = [x.value for x in rest]
    value = step(a.value, b.value, *more)
    if not a.is_float:
        return step.whole(value, bool(np.any(a.free)) or bool(np.any(b.free)))
    relative, terms = step.format.relative, _terms(step, a, b)
    if relative < FORMATS[a.dtype].relative and _all_exact((a, b)):
        return _narrow_product(step, a, b, more, value, terms)
    sizes = partial(summed_sizes, step.node) if step.node.attrs.get("algorithm") == "winograd" else step
    if a.bound is None:
        bound = sizes(size_of(a.value), b.magnitude, *more)
    elif b.bound is None:
        bound = sizes(a.magnitude, size_of(b.value), *more)
    else:
        sides = (sizes(a.magnitude, size_of(b.value), *more), sizes(size_of(a.value), b.magnitude, *more))
        both = sizes(a.magnitude, b.magnitude, *more)
        bound = sides[0] + sides[1] + step.unit * both - relative * sizes(size_of(a.value), size_of(b.value), *more)
    return _freed(step.summed(value, bound, terms), _unsure_terms(step, a, b, more))


def _scaled_product(step: Step, a: Bounded, w: Bounded, scales: Bounded) -> Bounded:
    """As a product, on absolute values of the scales, too, which are one rounding more. What is not finite times a sum
    that may be of either sign is free."""
    sizes = [
        size_of(a.value) if a.bound is None else a.magnitude,
        np.abs(w.value.astype(np.float64)),
        size_of(scales.value),
    ]
    bound = 2 * step(*sizes)
    result = step.summed(step(a.value, w.value, scales.value), bound, a.value.shape[-1])
    unsure = ~np.isfinite(scales.value).all(0) | np.any(scales.free) | np.any(w.free)
    return _freed(result, np.asarray(unsure))


def _terms(step: Step, a: Bounded, b: Bounded) -> int:
    return math.prod(b.value.shape[1:]) if step.node.op == "core.conv" else b.value.shape[-2]


def _narrow_product(step: Step, a: Bounded, b: Bounded, more: list[Array], value: Array, terms: int) -> Bounded:
    """Exact bf16 factors, summed up in f32: B is Σ |a| · |b|. Dot instructions take denormals, of factors and of sums,
    as zero: each factor may lose what is below the least normal number, each sum as much once a term."""
    sizes = [size_of(x.value) for x in (a, b)]
    tiny = [np.where(size < step.format.normal, size, 0.0) for size in sizes]
    lost = step(tiny[0], sizes[1], *more) + step(sizes[0], tiny[1], *more)
    bound = step(*sizes, *more)
    flushed = np.where(bound > 0, terms * step.format.normal, 0.0)
    result = step.summed(value, bound + (lost + flushed) / step.unit, terms)
    infinite = [(~np.isfinite(x.value)).astype(np.float64) for x in (a, b)]
    there = [(size > 0).astype(np.float64) for size in tiny]
    return _freed(result, step(infinite[0], there[1], *more) + step(there[0], infinite[1], *more) > 0)


def _unsure_terms(step: Step, a: Bounded, b: Bounded, more: list[Array]) -> Array | bool:
    """Where something that is not finite meets a factor that may be zero or of either sign."""
    unsure: Array | bool = False
    for x, y, swapped in ((a, b, False), (b, a, True)):
        vanishing = _may_vanish(y, step.unit)
        if np.any(vanishing) and not np.isfinite(x.value).all():
            sides = [(~np.isfinite(x.value)).astype(np.float64), np.asarray(vanishing).astype(np.float64)]
            unsure = unsure | (step(*(reversed(sides) if swapped else sides), *more) > 0)
    return unsure


def _moved(*data: int) -> Rule:
    """Elements in other places; `data` are the inputs that hold them, all if none are named."""

    def rule(step: Step, *given: Bounded) -> Bounded:
        value = step(*(x.value for x in given))
        places = data or range(len(given))
        others = [x for position, x in enumerate(given) if position not in places]
        if not _all_exact(others):
            return Bounded(value, step.dtype, np.full(value.shape, np.inf))
        if all(given[position].bound is None for position in places):
            return step.exact(value)
        bounds = [x.own if position in places else x.value for position, x in enumerate(given)]
        return Bounded(value, step.dtype, step(*bounds))

    return rule


def _looked_up(step: Step, data: Bounded, indices: Bounded) -> Bounded:
    """gather: elements in other places, free where an index is."""
    value = step(data.value, indices.value)
    if _all_exact((data, indices)):
        return step.exact(value)
    result = Bounded(value, step.dtype, step(data.own, indices.value))
    if indices.bound is None:
        return result
    free, behind = np.isinf(indices.bound), 0
    if step.node.op == "core.gather_nd":
        free = np.asarray(free.any(axis=-1))
        behind = value.ndim - free.ndim
    elif step.node.op == "core.gather":
        behind = data.value.ndim - step.node.attrs["axis"] - 1
    return _freed(result, free.reshape(free.shape + (1,) * behind))


def _known(step: Step, *given: Bounded) -> Bounded:
    """iota, shape: no element is read."""
    return step.exact(step(*(x.value for x in given)))


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
    **dict.fromkeys(("reshape", "transpose", "broadcast", "slice"), _moved(0)),
    **dict.fromkeys(("gather", "gather_elements", "gather_nd"), _looked_up),
    **dict.fromkeys(("matmul", "conv", "conv_last"), _bilinear),
    "matmul_blocks": _scaled_product,
    **dict.fromkeys(("iota", "shape"), _known),
    "mul": _on_floats(_product),
    "div": _on_floats(_quotient),
    "pow": _on_floats(_power),
    "fmod": _on_floats(_remainder),
    "tan": _tangent,
    "select": _select,
    "cast": _cast,
    "reduce_sum": _reduce_sum,
    "reduce_prod": _reduce_prod,
    "reduce_max": _extreme(False),
    "reduce_min": _extreme(True),
    "argmax": _index(False),
    "argmin": _index(True),
    "top_places": _places,
    "cumsum": _running_sum,
    "cumprod": _running_product,
    "pool_sum": _window_sum,
    "pool_max": _window_max,
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scattered),
    "concat": _moved(),
    "pad": _moved(0, 2),
}
RULES = {f"core.{name}": rule for name, rule in _BY_NAME.items()}
