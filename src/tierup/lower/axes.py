"""The loops of a rows region: its domain folded to few axes, the one that lies along the lanes, and what is a loop.

Neighbouring axes are one where every address steps over the inner one as a whole: most regions over any number of axes
have one or two in the end. Lanes lie along the axis on which most elements are neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tierup.ir.types import Dim
from tierup.lower.names import Sizes
from tierup.lower.tile import Grid, Index, Size
from tierup.plan.forms import Linear
from tierup.plan.strides import Strides

LANE = "j"
_VECTORS = 2  # a step is two vectors: latency is hidden, and long bodies do not spill
_STORE_WEIGHT = 2  # a scatter costs more than a gather


@dataclass(frozen=True)
class Axis:
    """A loop: the domain's axes that it runs over, outermost first, how far, and by how many at a time."""

    name: str
    parts: tuple[int, ...]
    extent: Dim
    step: int


@dataclass(frozen=True)
class Nest:
    """Parallel dimensions, then serial loops in each step of them. `lane` is the innermost loop, or in the grid."""

    grid: tuple[Axis, ...]
    loops: tuple[Axis, ...]
    lane: Axis | None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.grid, *self.loops)

    @property
    def lane_in_grid(self) -> bool:
        return self.lane is not None and self.lane in self.grid

    def index(self, linear: Linear, sizes: Sizes) -> Index:
        """A linear form over the domain as an address."""
        entries: list[tuple[str, Size]] = []
        for axis in self.axes:
            stride = linear.strides[axis.parts[-1]]
            if stride != 0:
                entries.append((axis.name, sizes.of(stride)))
        return Index(tuple(entries), sizes.of(linear.offset))

    def along(self, linear: Linear) -> list[Axis]:
        """The axes on which a linear form depends."""
        return [axis for axis in self.axes if linear.strides[axis.parts[-1]] != 0]

    def grids(self, sizes: Sizes) -> tuple[Grid, ...]:
        """The grid of a program; without axes it has one step."""
        if not self.grid:
            return (Grid("g0", 1, 1),)
        return tuple(Grid(axis.name, sizes.of(axis.extent), axis.step) for axis in self.grid)

    def steps(self) -> tuple[tuple[Dim, int], ...]:
        return tuple((axis.extent, axis.step) for axis in self.grid) or ((1, 1),)


def nest(
    domain: Sequence[Dim],
    reduced: Sequence[int],
    loads: Sequence[Linear],
    stores: Sequence[Linear],
    counts: Sequence[Linear],
    strides: Strides,
    lanes: int,
) -> Nest:
    """Choose the loops for a domain and everything linear over it: addresses that are read and written, positions."""
    forms = (*loads, *stores, *counts)
    kept = _folded([axis for axis in range(len(domain)) if axis not in reduced], domain, forms, strides)
    serial = _folded(sorted(reduced), domain, forms, strides)
    chosen = _lane([*kept, *serial], domain, loads, stores)

    def axis(name: str, parts: tuple[int, ...]) -> Axis:
        extent = strides.dims.product([domain[part] for part in parts])
        return Axis(name, parts, extent, 1)

    grid = [axis(f"g{n}", parts) for n, parts in enumerate(p for p in kept if p != chosen)]
    loops = [axis(f"r{n}", parts) for n, parts in enumerate(p for p in serial if p != chosen)]
    if chosen is None:
        return Nest(tuple(grid), tuple(loops), None)
    plain = axis(LANE, chosen)
    lane = Axis(LANE, chosen, plain.extent, _step(plain.extent, lanes))
    if chosen in serial or (grid and not serial):
        return Nest(tuple(grid), (*loops, lane), lane)
    return Nest((*grid, lane), tuple(loops), lane)


def _folded(
    axes: Sequence[int], domain: Sequence[Dim], forms: Sequence[Linear], strides: Strides
) -> list[tuple[int, ...]]:
    groups: list[tuple[int, ...]] = []
    for axis in axes:
        before = groups[-1][-1] if groups else None
        if before is not None and all(
            form.strides[before] == strides.times(form.strides[axis], domain[axis]) for form in forms
        ):
            groups[-1] = (*groups[-1], axis)
        else:
            groups.append((axis,))
    return groups


def _lane(
    groups: Sequence[tuple[int, ...]], domain: Sequence[Dim], loads: Sequence[Linear], stores: Sequence[Linear]
) -> tuple[int, ...] | None:
    """The axes along which lanes lie: where most accesses are side by side, and the last of equals."""

    def worth(group: tuple[int, ...]) -> tuple[int, int]:
        found = 0
        for forms, weight in ((loads, 1), (stores, _STORE_WEIGHT)):
            for form in forms:
                stride = form.strides[group[-1]]
                found += weight if stride == 1 else -weight if stride != 0 else 0
        return found, group[-1]

    return max(groups, key=worth, default=None)


def _step(extent: Dim, lanes: int) -> int:
    return lanes if isinstance(extent, int) and extent <= lanes else _VECTORS * lanes
