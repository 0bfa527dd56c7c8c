"""Error bounds of what is made of many elements: reductions, running sums, windows and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tierup.ir.types import Array
from tierup.reference.bounded import FORMATS, Bounded, Rule, Step, all_exact, freed, may_vanish, size_of
from tierup.reference.winograd import summed_sizes


def _reduced(step: Step, function: Callable[..., Any], x: Array, **extra: Any) -> Array:
    axes, keep = step.node.attrs["axes"], bool(step.node.attrs["keepdims"])
    return np.asarray(function(x, axis=axes, keepdims=keep, **extra))


def reduce_sum(step: Step, x: Bounded) -> Bounded:
    value = step(x.value)
    if not x.is_float:
        return step.whole(value, _reduced(step, np.any, np.asarray(x.free)) if x.bound is not None else False)
    return step.summed(value, _reduced(step, np.sum, x.magnitude), _count(x.value, value))


def _count(x: Array, reduced: Array) -> int:
    return x.size // max(reduced.size, 1)


def reduce_prod(step: Step, x: Bounded) -> Bounded:
    """Π (|x| + error) - Π |x|; free where the large factors alone, or the small ones, leave the dtype's range."""
    value = step(x.value)
    if not x.is_float:
        return step.whole(value, _reduced(step, np.any, np.asarray(x.free)) if x.bound is not None else False)
    size = size_of(x.value)
    bound = (_reduced(step, np.prod, size + step.unit * x.magnitude) - _reduced(step, np.prod, size)) / step.unit
    large = _reduced(step, np.prod, np.maximum(size, 1.0)) > step.format.largest
    small = _reduced(step, np.prod, np.where(size > 0, np.minimum(size, 1.0), 1.0)) < step.format.normal
    return freed(step.rounded(value, bound), large | small)


def extreme(least: bool) -> Rule:
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


def index(least: bool) -> Rule:
    """argmax, argmin: free where several may be it."""

    def rule(step: Step, x: Bounded) -> Bounded:
        value, axis = step(x.value), step.node.attrs["axis"]
        if x.bound is None or not x.is_float:
            return step.whole(value, np.any(x.free, axis=axis) if x.bound is not None else False)
        keep = bool(step.node.attrs["keepdims"])
        several = np.sum(_candidates(x, step.unit, (axis,), least), axis=axis, keepdims=keep) != 1
        return step.whole(value, several | np.any(np.isinf(x.bound), axis=axis, keepdims=keep))

    return rule


def places(step: Step, x: Bounded) -> Bounded:
    """Exact where the elements are; else any two may change places."""
    return step.whole(step(x.value), x.bound is not None)


def running_sum(step: Step, x: Bounded) -> Bounded:
    value = step(x.value)
    if not x.is_float:
        return step.whole(value, bool(np.any(x.free)))
    return step.summed(value, step(x.magnitude), x.value.shape[step.node.attrs["axis"]])


def running_product(step: Step, x: Bounded) -> Bounded:
    value = step(x.value)
    if not x.is_float:
        return step.whole(value, bool(np.any(x.free)))
    size = size_of(x.value)
    bound = (step(size + step.unit * x.magnitude) - step(size)) / step.unit
    large = step(np.maximum(size, 1.0)) > step.format.largest
    small = step(np.where(size > 0, np.minimum(size, 1.0), 1.0)) < step.format.normal
    return freed(step.rounded(value, bound), large | small)


def window_sum(step: Step, x: Bounded, pads: Bounded) -> Bounded:
    value = step(x.value, pads.value)
    if not x.is_float:
        return step.whole(value, bool(np.any(x.free)))
    return step.summed(value, step(x.magnitude, pads.value), math.prod(step.node.attrs["kernel_shape"]))


def window_max(step: Step, x: Bounded, pads: Bounded) -> Bounded:
    value = step(x.value, pads.value)
    if not x.is_float or x.bound is None:
        return step.whole(value, bool(np.any(x.free)))
    return step.passed(value, step(x.bound, pads.value))


def bilinear(step: Step, a: Bounded, b: Bounded, *rest: Bounded) -> Bounded:
    """matmul, conv, conv_last: the same on absolute values, with bounds in place of one side's."""
    more = [x.value for x in rest]
    value = step(a.value, b.value, *more)
    if not a.is_float:
        return step.whole(value, bool(np.any(a.free)) or bool(np.any(b.free)))
    relative, terms = step.format.relative, _terms(step, a, b)
    if relative < FORMATS[a.dtype].relative and all_exact((a, b)):
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
    unsure = _unsure_terms(step, a, b, more) | _beyond(step, a, b, more)
    return freed(step.summed(value, bound, terms), unsure)


def _beyond(step: Step, x: Bounded, w: Bounded, more: list[Array]) -> Array | bool:
    """Where weights that are not finite lie beyond the data of a convolution: zeros stand there, but a kernel may pass
    over them, and then no product makes a NaN."""
    if not step.node.op.startswith("core.conv") or not np.any(more[0]) or np.isfinite(w.value).all():
        return False
    wild = (~np.isfinite(w.value)).astype(np.float64)
    met = step(np.ones_like(x.value, np.float64), wild, *more)
    if step.node.op == "core.conv":
        return np.asarray(met < wild.sum(tuple(range(1, wild.ndim))).reshape(-1, *(1,) * (met.ndim - 2)))
    return np.asarray(met < wild.sum(0))


def scaled_product(step: Step, a: Bounded, w: Bounded, scales: Bounded) -> Bounded:
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
    return freed(result, np.asarray(unsure))


def product_with_factors(step: Step, a: Bounded, w: Bounded, factors: Bounded) -> Bounded:
    """As a product, with one rounding more of each term: of the factor times the weight, or times the left side. What
    one of these loses where it is too large or too small is free, and so is what is not finite."""
    sizes = [size_of(x.value) if x.bound is None else x.magnitude for x in (a, w, factors)]
    result = step.summed(step(a.value, w.value, factors.value), 2 * step(*sizes), a.value.shape[-1])
    rows, odd = sizes[2][:, None] * sizes[1], [~np.isfinite(x.value) for x in (a, w, factors)]
    lost = (rows > step.format.largest) | ((rows > 0) & (rows < step.format.normal)) | odd[1] | odd[2][:, None]
    unsure = lost.any(0) | odd[0].any(-1, keepdims=True) | np.any(w.free) | np.any(factors.free)
    return freed(result, np.asarray(unsure))


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
    return freed(result, step(infinite[0], there[1], *more) + step(there[0], infinite[1], *more) > 0)


def _unsure_terms(step: Step, a: Bounded, b: Bounded, more: list[Array]) -> Array | bool:
    """Where something that is not finite meets a factor that may be zero or of either sign."""
    unsure: Array | bool = False
    for x, y, swapped in ((a, b, False), (b, a, True)):
        vanishing = may_vanish(y, step.unit)
        if np.any(vanishing) and not np.isfinite(x.value).all():
            sides = [(~np.isfinite(x.value)).astype(np.float64), np.asarray(vanishing).astype(np.float64)]
            unsure = unsure | (step(*(reversed(sides) if swapped else sides), *more) > 0)
    return unsure
