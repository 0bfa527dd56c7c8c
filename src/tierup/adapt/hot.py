"""Which signatures are worth kernels of their own: those that many calls come with.

Kernels with closed sizes take a worker some tenths of a second to build, and a comparison in every call from then on,
so only what stays gets them. The same goes for functions for calls that stray from what was assumed of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tierup.ir.facts import Kind, kind_of

Shapes = tuple[tuple[int, ...], ...]
Seen = Sequence[tuple[tuple[tuple[int, ...] | None, ...], int]]  # as `Runner.signatures` gives it

MOST = 4  # signatures with functions of their own, at one time
_LEAST_CALLS = 32  # times as many for each job that waits already
_LEAST_SHARE = 0.1  # of the calls that were counted


def hot_signatures(seen: Seen, *, everything: bool = False, queued: int = 0) -> tuple[Shapes, ...]:
    """The signatures to close, the most frequent first; with `everything`, rare ones count as well. The more jobs are
    queued, the more calls it takes."""
    least = _LEAST_CALLS * (1 + queued)
    total = sum(calls for _, calls in seen)
    counted: list[tuple[int, Shapes]] = []
    for shapes, calls in seen:
        frequent = everything or (calls >= least and calls >= _LEAST_SHARE * total)
        closed = tuple(shape for shape in shapes if shape is not None)
        if frequent and len(closed) == len(shapes):
            counted.append((calls, closed))
    return tuple(shapes for _, shapes in sorted(counted, key=lambda entry: (-entry[0], entry[1]))[:MOST])


def hot_strays(seen: Mapping[Shapes, int], calls: int, *, everything: bool = False, queued: int = 0) -> list[Shapes]:
    """Of the calls that the baseline had to answer, out of so many, one of each kind that comes often: the most
    frequent signature of that kind, the most frequent kind first. Lengths may differ from call to call, so what counts
    is how often a kind comes."""
    least = _LEAST_CALLS * (1 + queued)
    kinds: dict[Kind, dict[Shapes, int]] = {}
    for shapes, count in seen.items():
        kinds.setdefault(kind_of(shapes), {})[shapes] = count
    totals = {kind: sum(found.values()) for kind, found in kinds.items()}
    frequent = [kind for kind, count in totals.items() if everything or count >= max(least, _LEAST_SHARE * calls)]
    ordered = sorted(frequent, key=lambda kind: -totals[kind])
    return [max(kinds[kind], key=lambda shapes: (kinds[kind][shapes], shapes)) for kind in ordered]
