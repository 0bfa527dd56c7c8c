"""Which signatures are worth functions of their own: those that many calls come with.

A function with closed sizes takes a worker some tenths of a second to build, and a comparison in every call from then
on, so only what stays gets one.
"""

from __future__ import annotations

from collections.abc import Sequence

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
