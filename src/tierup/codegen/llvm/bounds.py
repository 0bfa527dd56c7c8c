"""What floats in a tile program surely are: between two numbers, and no NaN, as far as its constants tell.

A float that was clipped needs no check before it becomes an integer: quantised layers end so, on every element. The
larger of a float and a number is one instruction, and not three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, floor, inf, isfinite, isinf, isnan

from msgspec import Struct

from tierup.ir.types import DType
from tierup.lower.tile import Arg, Fill, Map, Statement


class Bounds(Struct, frozen=True):
    """Not below `low`, not above `high`; `number`: no NaN."""

    low: float = -inf
    high: float = inf
    number: bool = False


ANYTHING = Bounds()


def float_bounds(body: Iterable[Statement]) -> dict[str, Bounds]:
    """The bounds of values by name, of those that have any. `body` has every statement, also those in loops."""
    found: dict[str, Bounds] = {}
    less: dict[str, tuple[str, ...]] = {}  # the arguments of comparisons
    for statement in body:
        if isinstance(statement, Fill) and statement.type.dtype.is_float and not isinstance(statement.value, Arg):
            value = float(statement.value)
            found[statement.out] = ANYTHING if isnan(value) else Bounds(value, value, True)
        elif isinstance(statement, Map) and statement.op == "lt":
            less[statement.out] = statement.args
        elif isinstance(statement, Map) and statement.type.dtype.is_float:
            bounds = _mapped(statement, found, less)
            if bounds != ANYTHING:
                found[statement.out] = bounds
    return found


def _mapped(map: Map, found: Mapping[str, Bounds], less: Mapping[str, tuple[str, ...]]) -> Bounds:
    given = [found.get(name, ANYTHING) for name in map.args]
    match map.op:
        case "min":
            a, b = given
            return Bounds(min(a.low, b.low), min(a.high, b.high), a.number and b.number)
        case "max":
            a, b = given
            return Bounds(max(a.low, b.low), max(a.high, b.high), a.number and b.number)
        case "round":
            (a,) = given
            low, high = (edge if isinf(edge) else way(edge) for edge, way in ((a.low, floor), (a.high, ceil)))
            return Bounds(low, high, a.number)
        case "add":
            a, b = given
            if all(isfinite(edge) for bounds in given for edge in (bounds.low, bounds.high)):
                return Bounds(a.low + b.low, a.high + b.high, a.number and b.number)
            return ANYTHING
        case "select":
            return _chosen(map.args, given, found, less)
    return ANYTHING


def _chosen(
    args: tuple[str, ...], given: list[Bounds], found: Mapping[str, Bounds], less: Mapping[str, tuple[str, ...]]
) -> Bounds:
    """Where a comparison with what is chosen holds, that is a number on its side of the other."""
    condition, yes, _ = args
    _, a, b = given
    if condition in less:
        smaller, larger = less[condition]
        if larger == yes:
            a = Bounds(max(a.low, found.get(smaller, ANYTHING).low), a.high, True)
        elif smaller == yes:
            a = Bounds(a.low, min(a.high, found.get(larger, ANYTHING).high), True)
    return Bounds(min(a.low, b.low), max(a.high, b.high), a.number and b.number)


def fits(bounds: Bounds | None, carrier: DType) -> bool:
    """Whether such floats, less their fractions, surely are integers of a signed type: with room for what rounding may
    add to a bound."""
    limit = 2.0 ** (carrier.bits - 2)
    return bounds is not None and bounds.number and -limit <= bounds.low and bounds.high <= limit
