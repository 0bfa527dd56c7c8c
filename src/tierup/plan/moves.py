"""Movement as arithmetic on strides: what addresses become when axes are exchanged, cut, joined and divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tierup.ir.types import Dim, Shape
from tierup.plan.sources import Linear
from tierup.plan.strides import Strides


def transposed(at: Linear, order: Sequence[int]) -> Linear:
    return Linear(at.offset, tuple(at.strides[axis] for axis in order))


def sliced(at: Linear, cuts: Mapping[int, tuple[Dim, int]], strides: Strides) -> Linear:
    """From a start on, by a step, along some axes."""
    offset, steps = at.offset, list(at.strides)
    for axis, (start, step) in cuts.items():
        offset = strides.dims.add(offset, strides.times(start, steps[axis]))
        steps[axis] = strides.times(steps[axis], step)
    return Linear(offset, tuple(steps))


def reshaped(at: Linear, old: Shape, new: Shape, strides: Strides) -> Linear | None:
    """Axes are joined where they lie without gaps between them, and divided anew; None where they do not."""
    sources = [axis for axis, size in enumerate(old) if size != 1]
    results = [axis for axis, size in enumerate(new) if size != 1]
    groups = strides.groups(tuple(old[a] for a in sources), tuple(new[a] for a in results))
    if groups is None:
        return None
    found: list[Dim] = [0] * len(new)
    for before, after in groups:
        joined = [sources[i] for i in before]
        for outer, inner in pairwise(joined):
            if at.strides[outer] != strides.times(at.strides[inner], old[inner]):
                return None
        stride = at.strides[joined[-1]] if joined else 0
        for j in reversed(after):
            found[results[j]] = stride
            stride = strides.times(stride, new[results[j]])
    return Linear(at.offset, tuple(found))
