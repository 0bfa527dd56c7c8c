"""The loops of a rows region: its domain folded to few axes, the one that lies along the lanes, and what is a loop.

Neighbouring axes are one where every address steps over the inner one as a whole: most regions over any number of axes
have one or two in the end. Lanes lie along the axis on which most elements are neighbours in memory. Where what is read
lies side by side along another axis, tiles have that axis too: they are read along it and turned over in registers. Of
a few elements side by side, tiles have as many rows, with lanes along the other axis, and are woven together instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.types import Dim
from tierup.lower.names import Sizes
from tierup.lower.tile import Grid, Index, Size
from tierup.plan.sources import Linear
from tierup.plan.strides import Strides

LANE = "j"
ROWS = "i"
_VECTORS = 2  # a step is two vectors: latency is hidden, and long bodies do not spill
_STORE_WEIGHT = 16  # a scatter costs far more than a load that is turned over
_TYPICAL = 64  # an open size, to weigh work by
_STEP_ELEMS = 4096  # a step of the grid costs some divisions: what is shorter takes in the next axis
_LEAST_STEPS = 4  # of the grid, so that threads have something to divide
_IDLE = 4  # elements side by side that fill one in so many lanes, or less, are better rows than lanes
_FEW = 4  # rows that are read at once and taken apart: three, the channels of a picture, in a 70th of the time
MOST_APART = 8  # elements, of lanes that are written with rows in between
_LIGHT = 4  # maps on a tile of 16 rows; of more maps, it has 8 rows, which leaves registers for them


class Axis(Struct, frozen=True):
    """A loop: the domain's axes that it runs over, outermost first, how far, and by how many at a time."""

    name: str
    parts: tuple[int, ...]
    extent: Dim
    step: int = 1


class Nest(Struct, frozen=True):
    """Parallel dimensions, then serial loops in each step of them; `lane` is the innermost loop, or in the grid.

    `tiled` are the axes that tiles have, lanes last.
    """

    grid: tuple[Axis, ...]
    loops: tuple[Axis, ...]
    lane: Axis | None
    tiled: tuple[Axis, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.grid, *self.loops)

    @property
    def lane_in_grid(self) -> bool:
        return self.lane is not None and self.lane in self.grid

    def index(self, linear: Linear, sizes: Sizes) -> Index:
        """A linear form over the domain as an address."""
        entries: list[tuple[str, Size]] = []
        for axis in self.along(linear):
            entries.append((axis.name, sizes.of(linear.strides[axis.parts[-1]])))
        return Index(tuple(entries), sizes.of(linear.offset))

    def along(self, linear: Linear) -> list[Axis]:
        """The axes on which a linear form depends."""
        return [axis for axis in self.axes if linear.strides[axis.parts[-1]] != 0]

    def tile_axes(self, linear: Linear) -> tuple[str, ...]:
        """The axes of a tile that is read or written at a linear address."""
        along = self.along(linear)
        return tuple(axis.name for axis in self.tiled if axis in along)

    def ordered(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Axes of tiles in the order that all tiles have them."""
        return tuple(axis.name for axis in self.tiled if axis.name in axes)

    def level(self, linear: Linear) -> int:
        """How many of the loops are around what depends on a linear form."""
        along = self.along(linear)
        return max((number + 1 for number, axis in enumerate(self.loops) if axis in along), default=0)

    def grids(self, sizes: Sizes) -> tuple[Grid, ...]:
        """The grid of a program; without axes it has one step."""
        if not self.grid:
            return (Grid("g0", 1, 1),)
        return tuple(Grid(axis.name, sizes.of(axis.extent), axis.step) for axis in self.grid)

    def steps(self) -> tuple[tuple[Dim, int], ...]:
        return tuple((axis.extent, axis.step) for axis in self.grid) or ((1, 1),)


class Forms(Struct, frozen=True):
    """Everything linear in a region: addresses that are read and written, and positions; and how many maps it has.

    `looked_up` are for each load the domain's axes along which an index from the data moves it.
    """

    loads: Sequence[Linear]
    stores: Sequence[Linear]
    counts: Sequence[Linear]
    maps: int
    looked_up: Sequence[frozenset[int]]

    def all(self) -> tuple[Linear, ...]:
        return (*self.loads, *self.stores, *self.counts)


def nest(domain: Sequence[Dim], reduced: Sequence[int], forms: Forms, strides: Strides, lanes: int) -> Nest:
    """Choose the loops for a domain and what is linear over it."""
    kept = _folded([axis for axis in range(len(domain)) if axis not in reduced], domain, forms, strides)
    serial = _folded(sorted(reduced), domain, forms, strides)
    chosen = _lane([*kept, *serial], forms, reduced)
    if chosen is None:
        return Nest((), (), None, ())

    def axis(name: str, parts: tuple[int, ...], step: int = 1) -> Axis:
        return Axis(name, parts, strides.dims.product([domain[part] for part in parts]), step)

    if serial:
        across = _beside(kept, serial, axis(LANE, chosen), lanes // _IDLE, forms)
        return _reducing(kept, serial, chosen if across is None else across, axis, lanes)
    others = [parts for parts in kept if parts != chosen]
    turned = _turned(others, chosen, forms)
    pairs = [(chosen, parts, lanes // _IDLE) for parts in reversed(others)]
    for one, many, most in [*pairs, *([(turned, chosen, _FEW)] if turned else [])]:
        few = axis(ROWS, one)
        if _in_between(few, most, many, forms):
            few, lane = replace(few, step=few.extent), axis(LANE, many)
            lane = replace(lane, step=_step(lane.extent, lanes))
            grid = [axis(f"g{number}", parts) for number, parts in enumerate(kept) if parts not in (one, many)]
            return Nest((*grid, lane), (few,), lane, (few, lane))
    rows = lanes if forms.maps <= _LIGHT else max(lanes // 2, 1)
    grid = [
        axis(ROWS, parts, _few(axis(ROWS, parts).extent, rows)) if parts == turned else axis(f"g{number}", parts)
        for number, parts in enumerate(kept)
        if parts != chosen
    ]
    lane = axis(LANE, chosen)
    lane = axis(LANE, chosen, lanes if turned else _step(lane.extent, lanes))
    if not grid:
        return Nest((lane,), (), lane, (lane,))
    tail = _serial_tail(grid, lane)
    tiled = (*(a for a in grid if a.name == ROWS), lane)
    return Nest(tuple(grid[: len(grid) - tail]), (*grid[len(grid) - tail :], lane), lane, tiled)


def _reducing(
    kept: list[tuple[int, ...]],
    serial: list[tuple[int, ...]],
    chosen: tuple[int, ...],
    axis: Callable[..., Axis],
    lanes: int,
) -> Nest:
    """What is kept in the grid, what is reduced in loops; lanes are the last of their kind."""
    grid = [axis(f"g{number}", parts) for number, parts in enumerate(kept) if parts != chosen]
    loops = [axis(f"r{number}", parts) for number, parts in enumerate(serial) if parts != chosen]
    lane = axis(LANE, chosen)
    lane = axis(LANE, chosen, _step(lane.extent, lanes))
    if chosen in serial:
        return Nest(tuple(grid), (*loops, lane), lane, (lane,))
    return Nest((*grid, lane), tuple(loops), lane, (lane,))


def _beside(
    kept: list[tuple[int, ...]], serial: list[tuple[int, ...]], lane: Axis, most: int, forms: Forms
) -> tuple[int, ...] | None:
    """Instead of a few elements side by side, `most` at most, that are reduced and leave lanes idle: an axis that is
    kept, along which everything lies side by side or a few elements apart. Of 20,000 rows of 2, a sum takes 0.15 ns a
    row instead of 1.4, a softmax 1.6 instead of 12.6; of 4, 0.5 and 3.6."""
    if lane.parts not in serial or not isinstance(lane.extent, int) or not 2 <= lane.extent <= most:
        return None

    def near(group: tuple[int, ...]) -> bool:
        # What is looked up along the few is read element by element either way.
        reads = zip(forms.loads, forms.looked_up, strict=True)
        along = [linear for linear, jumps in reads if jumps.isdisjoint(lane.parts)]
        steps = [linear.strides[group[-1]] for linear in (*along, *forms.stores)]
        looked_up = any(not jumps.isdisjoint(group) for jumps in forms.looked_up)
        return not looked_up and all(isinstance(step, int) and 0 <= step <= most for step in steps) and any(steps)

    return next((group for group in reversed(kept) if near(group)), None)


def _folded(axes: Sequence[int], domain: Sequence[Dim], forms: Forms, strides: Strides) -> list[tuple[int, ...]]:
    groups: list[tuple[int, ...]] = []
    for axis in axes:
        before = groups[-1][-1] if groups else None
        if before is not None and all(
            form.strides[before] == strides.times(form.strides[axis], domain[axis]) for form in forms.all()
        ):
            groups[-1] = (*groups[-1], axis)
        else:
            groups.append((axis,))
    return groups


def _lane(groups: Sequence[tuple[int, ...]], forms: Forms, reduced: Sequence[int]) -> tuple[int, ...] | None:
    """The axes along which lanes lie: where most accesses are side by side, and the last of equals.

    Where something is reduced, only what is read or written in each round counts.
    """

    loads = [(linear, jumps, 1) for linear, jumps in zip(forms.loads, forms.looked_up, strict=True)]
    accesses = [*loads, *((linear, frozenset[int](), _STORE_WEIGHT) for linear in forms.stores)]

    def worth(group: tuple[int, ...]) -> tuple[int, int]:
        found = 0
        for linear, jumps, weight in accesses:
            if not reduced or any(linear.strides[axis] != 0 or axis in jumps for axis in reduced):
                stride, apart = linear.strides[group[-1]], not jumps.isdisjoint(group)
                found += -weight if apart or stride not in (0, 1) else weight * (stride == 1)
        return found, group[-1]

    return max(groups, key=worth, default=None)


def _turned(groups: Sequence[tuple[int, ...]], lane: tuple[int, ...], forms: Forms) -> tuple[int, ...] | None:
    """The axes along which something lies side by side that lies apart along the lanes."""
    apart = [linear for linear in forms.loads if linear.strides[lane[-1]] not in (0, 1)]
    counts = {group: sum(linear.strides[group[-1]] == 1 for linear in apart) for group in groups}
    best = max(groups, key=lambda group: counts[group], default=None)
    return best if best is not None and counts[best] else None


def _in_between(few: Axis, most: int, many: tuple[int, ...], forms: Forms) -> bool:
    """Whether a few elements side by side, `most` at most, which would leave lanes idle, can be rows of tiles instead,
    with lanes along `many`: there all elements lie side by side, or a few apart with those rows in between, as the
    channels of a picture do, or real and imaginary parts."""
    if not isinstance(few.extent, int) or not 2 <= few.extent <= most:
        return False
    least, one, apart = few.extent, few.parts[-1], many[-1]

    def near(linear: Linear) -> bool:
        woven = linear.strides[one] == 1 and linear.strides[apart] in range(least, MOST_APART + 1)
        return woven or linear.strides[apart] == 1

    read = zip(forms.loads, forms.looked_up, strict=True)
    return all(map(near, forms.stores)) and all(
        (near(linear) or linear.strides[apart] == 0) and jumps.isdisjoint(many) for linear, jumps in read
    )


def _serial_tail(grid: Sequence[Axis], lane: Axis) -> int:
    """How many of the grid's last axes become loops, so that a step is worth what it costs to find its place."""
    work, tail = _typical(lane), 0
    while tail < len(grid) - 1 and work < _STEP_ELEMS:
        left = 1
        for axis in grid[: len(grid) - tail - 1]:
            left *= -(-_typical(axis) // axis.step)
        if left < _LEAST_STEPS:
            break
        work *= _typical(grid[len(grid) - tail - 1])
        tail += 1
    return tail


def _typical(axis: Axis) -> int:
    return axis.extent if isinstance(axis.extent, int) else _TYPICAL


def _few(extent: Dim, rows: int) -> int:
    """Rows of a tile: where there are fewer, the power of two that takes them all."""
    return min(rows, 1 << (extent - 1).bit_length()) if isinstance(extent, int) and extent else rows


def _step(extent: Dim, lanes: int) -> int:
    return lanes if isinstance(extent, int) and extent <= lanes else _VECTORS * lanes
