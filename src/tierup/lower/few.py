"""A convolution with few results at a place -> one tile program: lanes along the sum, which are added up at its end.

With the channels last, the terms of a window lie side by side, row of the kernel by row. So do the weights of one
result, and both are multiplied a vector at a time; vectors of results would be empty but for a few lanes.

Windows that lie inside the data along the last axis read it where it is. Those that reach beyond read a copy of what
lies under them, with zeros around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from msgspec import Struct

from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim
from tierup.lower.convolution import Step, convolution_kernel
from tierup.lower.epilogue import Epilogue
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import (
    Fill,
    Index,
    Load,
    Loop,
    Map,
    Reduce,
    Size,
    Statement,
    Store,
    Tile,
)
from tierup.lower.windows import Bounded, Integers, Windows
from tierup.plan.regions import Region

# Results at a place -> places of a tile: with the weights and an element they fill up to 29 of 32 registers.
_ROWS = {1: 16, 2: 8, 3: 8, 4: 4, 5: 4, 7: 2}
_ADDING = 3  # instructions to add up the lanes of one result
_LONGEST = 1024  # terms of a sum in one lane
_COPIED_VECTORS = 4  # at a time
_WORK_FLOPS = 60_000  # less is not worth a thread's while


def suits(windows: Windows, graph: Graph, lanes: int) -> bool:
    """Whether lanes along the sum take fewer instructions than lanes along results, and data and weights allow it."""
    lanes = _lanes(windows, lanes)
    *outer, last = windows.axes
    dense = windows.channels == 1 or windows.view.strides[-1] == 1
    if not dense or windows.matrix not in graph.digests or not windows.sum.is_float:
        return False
    if last.padded and (not outer or last.step != windows.channels):
        return False
    runs = prod(axis.kernel for axis in outer) * (1 if _is_run(windows) else last.kernel)
    run = windows.channels * (last.kernel if _is_run(windows) else 1)
    vectors = runs * -(-run // lanes)
    along_sum = windows.columns * (vectors + _ADDING)
    along_results = -(-windows.columns // lanes) * runs * run
    return along_sum < along_results and vectors <= _LONGEST


def lower_few(graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int) -> Kernel:
    """The kernel of a conv region that `suits`."""
    return _Few(graph, weights, region, windows, lanes).kernel()


def _lanes(windows: Windows, lanes: int) -> int:
    return max(1, lanes * 4 // max(4, windows.sum.numpy.itemsize))


def _is_run(windows: Windows) -> bool:
    """Whether all that a row of the kernel meets lies side by side."""
    return windows.axes[-1].dilation == 1 and windows.axes[-1].step == windows.channels


class _Strip(Struct, frozen=True):
    """The windows from `begin` to `end` of a row; `copied`: what they meet is in scratch."""

    begin: Dim
    end: Dim
    copied: bool


class _Few:
    def __init__(self, graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int) -> None:
        self._windows, self._dims = windows, windows.dims
        self._lanes = _lanes(windows, lanes)
        self._names, self._sizes = Names(), Sizes()
        self._epilogue = Epilogue(graph, weights, region.nodes, self._names)
        *self._outer, self._last = windows.axes
        self._flat = not self._outer  # one spatial axis: the grid goes over its tiles
        self._width = max(width for width in _ROWS if windows.columns % width == 0)
        self._rows = _ROWS[self._width]
        self._terms = windows.channels * prod(axis.kernel for axis in windows.axes)
        self._strips = self._divided()
        self._copied = any(strip.copied for strip in self._strips)

    def kernel(self) -> Kernel:
        windows, data, matrix = self._windows, self._windows.view.base, self._windows.matrix
        body = tuple(self._tile("i", self._strips[0])) if self._flat else tuple(self._body())
        steps = list(self._steps())
        return convolution_kernel(
            "few", windows, self._epilogue, self._sizes,
            sides=(("x", data, windows.dtype(data)), ("w", Panels(matrix, 1), windows.dtype(matrix))),
            body=body, steps=steps, vector=_lane_axes(steps, body), grain=self._grain(),
            scratch=(windows.sum, self._scratch_elems()) if self._copied else None,
        )  # fmt: skip

    def _steps(self) -> Iterator[Step]:
        """The axes of the grid: results of a place inside, which all read the same data."""
        yield "n", self._windows.domain[0], 1
        if self._windows.group > 1:
            yield "g", self._windows.group, 1
        yield from ((f"o{a}", axis.count, 1) for a, axis in enumerate(self._outer))
        if self._flat:
            yield "i", self._last.count, self._rows
        yield "j", self._windows.columns, self._width

    def _grain(self) -> Dim:
        rows = self._rows if self._flat else self._last.count
        flops = self._dims.product([2 * self._width, self._terms, rows])
        return self._dims.floordiv(_WORK_FLOPS, self._dims.max(flops, 1))

    # Strips of a row.

    def _divided(self) -> list[_Strip]:
        """Windows that reach beyond the data at its start, those inside, those that reach beyond its end."""
        if not any(axis.padded for axis in self._windows.axes):
            return [_Strip(0, self._last.count, copied=False)]
        first, behind = self._inside()
        strips = [_Strip(0, first, True), _Strip(first, behind, False), _Strip(behind, self._last.count, True)]
        return [strip for strip in strips if strip.begin != strip.end]

    def _inside(self) -> tuple[Dim, Dim]:
        """The first window that lies inside the data along the last axis, and the first behind those.

        Where there is no data, no window does.
        """
        dims, axis = self._dims, self._last
        first = dims.min(dims.ceildiv(dims.max(axis.before, 0), axis.stride), axis.count) if axis.padded else 0
        room = dims.sub(dims.add(axis.size, axis.before), (axis.kernel - 1) * axis.dilation + 1)
        fitting = dims.min(dims.add(dims.floordiv(room, axis.stride), 1), axis.count) if axis.padded else axis.count
        return first, dims.max(first, dims.mul(fitting, self._filled()))

    def _filled(self) -> Dim:
        """0 where there is no data to read, else 1."""
        return self._dims.min(self._dims.product(self._windows.view.shape), 1)

    def _span(self, strip: _Strip) -> Dim:
        """Places that the windows of a strip reach; none, if there is no window."""
        count = self._dims.sub(strip.end, strip.begin)
        starts = self._windows.scaled(self._dims.sub(count, 1), self._last.stride)
        places = self._dims.add(starts, (self._last.kernel - 1) * self._last.dilation + 1)
        return self._dims.mul(self._dims.min(count, 1), places)

    def _row_elems(self, strip: _Strip) -> Dim:
        return self._dims.mul(self._span(strip), self._windows.channels)

    def _row_steps(self, strip: _Strip) -> list[tuple[str, Dim]]:
        """How far apart rows of the kernel lie in scratch."""
        kernels = [axis.kernel for axis in self._outer]
        row = self._row_elems(strip)
        return [(f"t{a}", self._windows.scaled(row, prod(kernels[a + 1 :]))) for a in range(len(kernels))]

    def _scratch_elems(self) -> Dim:
        most: Dim = 0
        for strip in self._strips:
            if strip.copied:
                most = self._dims.max(most, self._row_elems(strip))
        return self._dims.mul(most, prod(axis.kernel for axis in self._outer))

    def _body(self) -> Iterator[Statement]:
        for strip in self._strips:
            if strip.copied:
                yield self._copy(strip)
            yield from self._tiles(strip)

    def _copy(self, strip: _Strip) -> Statement:
        """For each row of the kernel: zeros, a stretch of the data, zeros."""
        dims, axis, channels = self._dims, self._last, self._windows.channels
        span, start = self._span(strip), dims.sub(axis.before, self._windows.scaled(strip.begin, axis.stride))
        first = dims.min(dims.max(start, 0), span)
        end = dims.max(first, dims.mul(dims.min(span, dims.add(start, axis.size)), self._filled()))
        marks = [dims.mul(place, channels) for place in (0, first, end, span)]
        body = [self._zeros(strip, marks[0], marks[1]), *self._moved(strip, start, marks[1], marks[2])]
        statements: tuple[Statement, ...] = (*body, self._zeros(strip, marks[2], marks[3]))
        statements = tuple(s for s in statements if not isinstance(s, Loop) or s.begin != s.extent)
        for a in reversed(range(len(self._outer))):
            statements = (Loop(f"t{a}", self._outer[a].kernel, 1, statements),)
        (loop,) = statements
        return loop

    def _zeros(self, strip: _Strip, begin: Dim, end: Dim) -> Loop:
        zero = self._names.new("zero")
        statements = (Fill(zero, Tile(self._windows.sum, ("q",)), 0), Store("scratch", self._target(strip), zero))
        return self._stretch(begin, end, statements)

    def _target(self, strip: _Strip) -> Index:
        return self._index([*self._row_steps(strip), ("q", 1)], 0)

    def _stretch(self, begin: Dim, end: Dim, body: Sequence[Statement]) -> Loop:
        step = _COPIED_VECTORS * self._lanes
        return Loop("q", self._sizes.of(end), step, tuple(body), begin=self._sizes.of(begin))

    def _moved(self, strip: _Strip, start: Dim, begin: Dim, end: Dim) -> list[Statement]:
        """The data into scratch, zero where a row lies outside."""
        body: list[Statement] = []
        rows = self._row_places(body)
        offset = self._dims.sub(self._windows.view.offset, self._dims.mul(start, self._windows.channels))
        index, inner = self._index([*self._fixed(), *self._unpadded_taps(), ("q", 1)], offset), list[Statement]()
        value = self._read(inner, ("q",), "x", index, rows)
        inner.append(Store("scratch", self._target(strip), value))
        return [*body, self._stretch(begin, end, inner)]

    def _row_places(self, body: list[Statement]) -> list[tuple[Bounded, Dim]]:
        """For each outer axis that is padded: where this row lies, and how far apart rows are."""
        integers, places = Integers(body, self._names, self._sizes), list[tuple[Bounded, Dim]]()
        for a, axis in enumerate(self._outer):
            if axis.padded:
                place = integers.place(axis, integers.start(f"o{a}"), integers.start(f"t{a}"))
                places.append((place, axis.step))
        return places

    def _read(
        self, body: list[Statement], axes: tuple[str, ...], buffer: str, index: Index, rows: list[tuple[Bounded, Dim]]
    ) -> str:
        """A tile of the data, zero where a row lies outside."""
        tile, value = Tile(self._windows.sum, axes), self._names.new("v")
        at = tuple((name, self._sizes.of(step)) for (name, _, _), step in rows)
        body.append(Load(value, tile, buffer, index, at=at))
        for (_, inside, _), _ in rows:
            zero, kept = self._names.new("zero"), self._names.new("v")
            body += [Fill(zero, Tile(self._windows.sum), 0), Map(kept, tile, "select", (inside, value, zero))]
            value = kept
        return value

    def _fixed(self) -> list[tuple[str, Dim]]:
        """What addresses in the data add beside the places that are looked up."""
        windows = self._windows
        entries: list[tuple[str, Dim]] = [("n", windows.view.strides[0])]
        if windows.group > 1:
            entries.append(("g", windows.scaled(windows.view.strides[-1], windows.channels)))
        rows = ((a, axis) for a, axis in enumerate(self._outer) if not axis.padded)
        return [*entries, *((f"o{a}", windows.scaled(axis.step, axis.stride)) for a, axis in rows)]

    def _unpadded_taps(self) -> list[tuple[str, Dim]]:
        rows = enumerate(self._outer)
        return [(f"t{a}", self._windows.scaled(axis.step, axis.dilation)) for a, axis in rows if not axis.padded]

    def _index(self, entries: Sequence[tuple[str, Dim]], offset: Dim) -> Index:
        return Index(tuple((name, self._sizes.of(step)) for name, step in entries), self._sizes.of(offset))

    # Tiles of results.

    def _tiles(self, strip: _Strip) -> Iterator[Statement]:
        """As many as fit of the most rows, then half as many, and so on."""
        begin, rows = strip.begin, self._rows
        while rows:
            left = self._dims.sub(strip.end, begin)
            whole = self._dims.mul(self._dims.floordiv(left, rows), rows)
            end = strip.end if rows == 1 else self._dims.add(begin, whole)
            if begin != end:
                axis, extent, start = f"i{rows}", self._sizes.of(end), self._sizes.of(begin)
                yield Loop(axis, extent, rows, tuple(self._tile(axis, strip)), begin=start, exact=True)
            begin, rows = end, rows // 2

    def _tile(self, row: str, strip: _Strip) -> Iterator[Statement]:
        body: list[Statement] = []
        zero, total, dtype = self._names.new("zero"), self._names.new("sum"), self._windows.sum
        body.append(Fill(zero, Tile(dtype, (row, "j", "k")), 0))
        each = self._level(body, row, strip, 0, zero)
        body.append(Reduce(total, Tile(dtype, (row, "j")), "sum", each, "k"))
        spot = self._windows.spot(self._sizes, row, grouped=self._windows.group > 1)
        result = self._epilogue.write(body, total, dtype, spot)
        body += self._epilogue.stores(spot.index, result)
        yield from body

    def _level(self, body: list[Statement], row: str, strip: _Strip, a: int, start: str) -> str:
        """The loops over rows of the kernel."""
        if a == len(self._outer):
            return self._runs(body, row, strip, start)
        old, total, inner = self._names.new("old"), self._names.new("sum"), list[Statement]()
        new = self._level(inner, row, strip, a + 1, old)
        body.append(Loop(f"t{a}", self._outer[a].kernel, 1, tuple(inner), ((old, start),), (new,), (total,)))
        return total

    def _runs(self, body: list[Statement], row: str, strip: _Strip, start: str) -> str:
        """The places of one row of the kernel: one run, or a run for each."""
        rows = [] if strip.copied else self._row_places(body)
        if _is_run(self._windows) or self._last.kernel == 1:
            return self._run(body, row, strip, rows, self._last.kernel * self._windows.channels, start)
        old, total, inner = self._names.new("old"), self._names.new("sum"), list[Statement]()
        new = self._run(inner, row, strip, rows, self._windows.channels, old)
        body.append(Loop("u", self._last.kernel, 1, tuple(inner), ((old, start),), (new,), (total,)))
        return total

    def _run(
        self, body: list[Statement], row: str, strip: _Strip, rows: list[tuple[Bounded, Dim]], length: int, start: str
    ) -> str:
        """Terms that lie side by side, a vector at a time."""
        dtype, inner = self._windows.sum, list[Statement]()
        old, factor, new, total = (self._names.new(hint) for hint in ("old", "w", "sum", "sum"))
        inner.append(Load(factor, Tile(dtype, ("j", "k")), "w", self._weights_at(length)))
        value = self._read(
            inner, (row, "k"), "scratch" if strip.copied else "x", self._data_at(row, strip, length), rows
        )
        inner.append(Map(new, Tile(dtype, (row, "j", "k")), "fma", (value, factor, old)))
        body.append(Loop("k", length, self._lanes, tuple(inner), ((old, start),), (new,), (total,)))
        return total

    def _weights_at(self, length: int) -> Index:
        """All terms of one result lie side by side, then those of the next."""
        kernels, channels = [axis.kernel for axis in self._windows.axes], self._windows.channels
        entries: list[tuple[str, Size]] = [("j", self._terms), ("k", 1)]
        entries += [(f"t{a}", prod(kernels[a + 1 :]) * channels) for a in range(len(self._outer))]
        if length < kernels[-1] * channels:
            entries.append(("u", channels))
        if self._windows.group > 1:
            entries.append(("g", self._windows.columns * self._terms))
        return Index(tuple(entries))

    def _data_at(self, row: str, strip: _Strip, length: int) -> Index:
        windows, last = self._windows, self._last
        place = windows.channels if strip.copied else last.step
        taps = [("u", windows.scaled(place, last.dilation))] if length < last.kernel * windows.channels else []
        along = windows.scaled(place, last.stride)
        if strip.copied:
            before = self._dims.sub(0, self._dims.mul(strip.begin, along))
            return self._index([*self._row_steps(strip), *taps, (row, along), ("k", 1)], before)
        ahead = self._dims.sub(windows.view.offset, self._dims.mul(last.before, last.step))
        return self._index([*self._fixed(), *self._unpadded_taps(), *taps, (row, along), ("k", 1)], ahead)


def _lane_axes(grid: Sequence[Step], body: Sequence[Statement]) -> tuple[str, ...]:
    """Rows of tiles; what is copied; and, where they meet, the sum's."""
    steps = {axis: step for axis, _, step in grid} | dict(_loops(body))
    rows = [axis for axis, step in steps.items() if axis.startswith("i") and step > 1]
    return (*(axis for axis in ("q",) if axis in steps), *rows, "k")


def _loops(body: Sequence[Statement]) -> Iterator[tuple[str, int]]:
    for statement in body:
        if isinstance(statement, Loop):
            yield statement.axis, statement.step
            yield from _loops(statement.body)
