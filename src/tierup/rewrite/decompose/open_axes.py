"""Axes that only the call knows: which they are becomes sizes, and a number for each axis a choice among those given.

A tensor has few axes, so each of them is compared with every number that is given for one. Where something does not
fit, a size becomes one that cannot be, which ends the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from tierup.ir.dims import DimBuilder
from tierup.ir.types import Dim


class OpenAxes:
    """Numbers of axes of a tensor with this rank; those below 0 count from the end."""

    def __init__(self, dims: DimBuilder, axes: Sequence[Dim], rank: int) -> None:
        self._dims, self._rank = dims, rank
        self._hits = [
            [dims.max(dims.emit("eq", axis, place), dims.emit("eq", axis, place - rank)) for axis in axes]
            for place in range(rank)
        ]
        self.chosen: list[Dim] = [reduce(dims.max, hits) if hits else 0 for hits in self._hits]
        """For each axis 1 if it is among them, else 0."""
        self._count = len(axes)

    def checked(self, size: Dim, otherwise: Dim = 0) -> Dim:
        """A size, or `otherwise` unless all of them are axes of the tensor, and no two the same."""
        dims = self._dims
        return dims.select(dims.emit("eq", dims.sum(self.chosen), self._count), size, otherwise)

    def pick(self, place: int, numbers: Sequence[Dim], otherwise: Dim) -> Dim:
        """Of numbers that are given for the axes in turn the one for the axis at this place."""
        found = otherwise
        for hit, number in zip(self._hits[place], numbers, strict=True):
            found = self._dims.select(hit, number, found)
        return found

    def left(self, shape: Sequence[Dim]) -> Iterator[Dim]:
        """The sizes of the axes that are not chosen, in order."""
        dims, before = self._dims, self._others_before()
        for place in range(self._rank - self._count):
            here = [dims.emit("eq", at, place) for at in before]
            own = [dims.mul(dims.sub(1, one), one_here) for one, one_here in zip(self.chosen, here, strict=True)]
            yield dims.sum([dims.mul(one, size) for one, size in zip(own, shape, strict=True)])

    def joined(self, shape: Sequence[Dim]) -> Iterator[Dim]:
        """The sizes of a tensor whose axes that are not chosen have these sizes, in order, and the chosen ones 1."""
        dims = self._dims
        for one, before in zip(self.chosen, self._others_before(), strict=True):
            own = [dims.mul(size, dims.emit("eq", before, number)) for number, size in enumerate(shape)]
            yield dims.select(one, 1, dims.sum(own))

    def _others_before(self) -> list[Dim]:
        """How many axes before each are not chosen."""
        dims = self._dims
        return [dims.sum([dims.sub(1, one) for one in self.chosen[:place]]) for place in range(self._rank)]
