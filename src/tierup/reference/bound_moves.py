"""Error bounds of elements in other places: movement, lookups and scatters."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tierup.ir.graph import Attrs
from tierup.reference.bounded import Bounded, Rule, Step, all_exact, freed, size_of


def scattered(step: Step, data: Bounded, indices: Bounded, updates: Bounded) -> Bounded:
    """What is put has its own bound, or that of what it is combined with."""
    value = step(data.value, indices.value, updates.value)
    if indices.bound is not None:
        return step.whole(value, True)
    if all_exact((data, updates)) and step.node.attrs["reduction"] in ("none", "min", "max"):
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
            return freed(step.rounded(value, spread / step.unit), large)
        case "none":
            return step.passed(value, step(data.own, indices.value, updates.own))
        case _:
            largest = Step(
                replace(step.node, attrs=Attrs({**step.node.attrs, "reduction": "max"})), step.dtype, step.unit
            )
            return step.passed(value, largest(data.own, indices.value, updates.own))


def moved(*data: int) -> Rule:
    """Elements in other places; `data` are the inputs that hold them, all if none are named."""

    def rule(step: Step, *given: Bounded) -> Bounded:
        value = step(*(x.value for x in given))
        places = data or range(len(given))
        others = [x for position, x in enumerate(given) if position not in places]
        if not all_exact(others):
            return Bounded(value, step.dtype, np.full(value.shape, np.inf))
        if all(given[position].bound is None for position in places):
            return step.exact(value)
        bounds = [x.own if position in places else x.value for position, x in enumerate(given)]
        return Bounded(value, step.dtype, step(*bounds))

    return rule


def looked_up(step: Step, data: Bounded, indices: Bounded) -> Bounded:
    """gather: elements in other places, free where an index is."""
    value = step(data.value, indices.value)
    if all_exact((data, indices)):
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
    return freed(result, free.reshape(free.shape + (1,) * behind))


def known(step: Step, *given: Bounded) -> Bounded:
    """iota, shape: no element is read."""
    return step.exact(step(*(x.value for x in given)))
