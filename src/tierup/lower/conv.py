"""A conv region -> one tile program: a row of results at a time, all columns of a panel, maps behind it in registers.

The data has its channels last, so a row of windows is a matrix whose rows overlap, and the inner loop is that of a
product: places and channels of one row of the kernel lie side by side, and are multiplied by a panel of weights. Where
the data is padded, or its channels lie apart, the rows under the windows are first copied to scratch, with zeros
around them: of n columns in a panel, that is one copy for n products.

Threads divide panels and rows of results, panels first, so that a panel stays in cache. With one spatial axis they
divide that axis, tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim, DType
from tierup.lower.depthwise import lower_depthwise
from tierup.lower.epilogue import Epilogue
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import Buffer, Dot, Fill, Grid, Index, Load, Loop, Map, Size, Statement, Store, Tile, TileProgram
from tierup.lower.views import Views
from tierup.lower.windows import Bounded, Integers, Windows
from tierup.plan.regions import Region

# Vectors in a panel -> the most rows of a tile: with the panel and a broadcast they fill the 32 registers.
_ROWS = {3: 8, 4: 6, 2: 12, 1: 16}
_LEFT_ROWS = (4, 2, 1)  # of a row of results whose length is open
_BLOCK = 1024  # steps of a sum before it is added to the total, as in matmul.py
_COPIED_VECTORS = 4  # at a time
_WORK_FLOPS = 60_000  # less is not worth a thread's while
_LATENCY = 4  # cycles until a sum can be added to again

_Loop = tuple[str, int, Dim, int]  # of a sum: axis, extent, step in the data, rows of the matrix


def lower_conv(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a conv region."""
    windows = Windows(graph, weights, region, dims)
    if windows.channels == windows.columns == 1 and windows.group > 1:
        return lower_depthwise(graph, weights, region, dims, lanes)
    return _Conv(graph, weights, region, windows, lanes).kernel()


class _Conv:
    def __init__(self, graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int) -> None:
        self._graph, self._windows, self._dims = graph, windows, windows.dims
        self._lanes = max(1, lanes * 4 // max(4, windows.sum.numpy.itemsize))
        self._names, self._sizes = Names(), Sizes()
        self._epilogue = Epilogue(graph, weights, region.nodes, self._names)
        *self._outer, self._last = windows.axes
        self._vectors, self._tiles = _tiling(self._last.count, windows.columns, self._lanes)
        self._width = self._vectors * self._lanes
        self._flat = not self._outer  # one spatial axis: the grid goes over its tiles
        self._terms = windows.channels * prod(axis.kernel for axis in windows.axes)
        dense = windows.view.strides[-1] == 1
        self._copied = not dense or any(axis.padded for axis in windows.axes)
        self._packed = windows.group == 1 and windows.matrix in dict(graph.weights)
        self._right = Views(graph, weights, self._dims).of(windows.matrix)

    def kernel(self) -> Kernel:
        windows = self._windows
        body = (*self._copy(), *self._rows()) if self._copied else tuple(self._rows())
        buffers = [Buffer("x", windows.dtype(windows.view.base)), Buffer("w", windows.dtype(windows.matrix))]
        buffers += [Buffer(name, windows.dtype(value)) for value, name in self._epilogue.operands.items()]
        buffers.append(Buffer("out", windows.dtype(self._epilogue.result), "out"))
        if self._copied:
            buffers.append(Buffer("scratch", windows.sum, "scratch"))
        grid = tuple(self._grid())
        vectors = ("p", "j") if windows.view.strides[-1] != 1 else ("q", "c", "j")
        program = TileProgram("conv", tuple(buffers), len(self._sizes.dims), grid, body, self._used(vectors, body))
        return Kernel(
            program,
            (windows.view.base, self._matrix(), *self._epilogue.operands, self._epilogue.result),
            tuple(self._sizes.dims),
            tuple((self._extent(axis), step) for axis, step in self._steps()),
            self._grain(),
            self._scratch_bytes() if self._copied else 0,
        )

    def _used(self, vectors: tuple[str, ...], body: tuple[Statement, ...]) -> tuple[str, ...]:
        """Those that are axes of loops."""
        axes = {"j", *(axis for axis, _ in self._steps()), *_axes(body)}
        return tuple(axis for axis in vectors if axis in axes)

    def _matrix(self) -> int | Panels:
        return Panels(self._windows.matrix, self._width) if self._packed else self._right.base

    def _steps(self) -> Iterator[tuple[str, int]]:
        """The axes of the grid: panels outside, so that one is used for all rows before the next."""
        yield "n", 1
        if self._windows.group > 1:
            yield "g", 1
        yield "j", self._width
        yield from ((f"o{a}", 1) for a in range(len(self._outer)))
        if self._flat:
            yield "i", self._tiles[0]

    def _extent(self, axis: str) -> Dim:
        if axis == "n":
            return self._windows.domain[0]
        if axis in ("g", "j"):
            return self._windows.group if axis == "g" else self._windows.columns
        return self._last.count if axis == "i" else self._outer[int(axis[1:])].count

    def _grid(self) -> Iterator[Grid]:
        yield from (Grid(axis, self._sizes.of(self._extent(axis)), step) for axis, step in self._steps())

    def _grain(self) -> Dim:
        rows = self._tiles[0] if self._flat else self._last.count
        flops = self._dims.product([2 * self._width, self._terms, rows])
        return self._dims.floordiv(_WORK_FLOPS, self._dims.max(flops, 1))

    # Rows under the windows, with zeros around them.

    def _span(self) -> Dim:
        """Places of the last axis that windows of one piece reach."""
        count = self._tiles[0] if self._flat else self._last.count
        starts = self._windows.scaled(self._dims.sub(count, 1), self._last.stride)
        return self._dims.add(starts, (self._last.kernel - 1) * self._last.dilation + 1)

    def _row_elems(self) -> Dim:
        return self._dims.mul(self._span(), self._windows.channels)

    def _copied_rows(self) -> int:
        return prod(axis.kernel for axis in self._outer)

    def _scratch_bytes(self) -> Dim:
        size = self._windows.sum.numpy.itemsize
        return self._dims.mul(self._row_elems(), self._copied_rows() * size)

    def _row_steps(self) -> list[tuple[str, Dim]]:
        """How far apart rows of the kernel lie in scratch."""
        kernels = [axis.kernel for axis in self._outer]
        return [(f"t{a}", self._windows.scaled(self._row_elems(), prod(kernels[a + 1 :]))) for a in range(len(kernels))]

    def _copy(self) -> Iterator[Statement]:
        windows = self._windows
        if any(not isinstance(size, int) for size in windows.view.shape):  # nothing to copy: all is padding
            elems = self._dims.product([windows.is_empty(), self._row_elems(), self._copied_rows()])
            yield self._zeros("z", 0, elems, ())
        body: list[Statement] = []
        rows = list(self._row_places(body))
        if self._is_whole():
            self._copy_whole(body, rows)
        else:
            self._copy_places(body, rows)
        statements = tuple(body)
        for a in reversed(range(len(self._outer))):
            statements = (Loop(f"t{a}", self._outer[a].kernel, 1, statements),)
        yield from statements

    def _row_places(self, body: list[Statement]) -> Iterator[tuple[Bounded, Dim]]:
        """For each outer axis that is padded: where this row lies, and how far apart rows are."""
        integers = Integers(body, self._names, self._sizes)
        for a, axis in enumerate(self._outer):
            if axis.padded:
                place = integers.place(axis, integers.start(f"o{a}"), integers.start(f"t{a}"))
                yield place, axis.step

    def _is_whole(self) -> bool:
        """Whether a row of the data is one stretch of memory."""
        windows = self._windows
        return windows.group == 1 and not self._flat and self._last.step == windows.channels == windows.view.shape[-1]

    def _fixed(self) -> list[tuple[str, Dim]]:
        """What addresses in the data add beside the places that are looked up."""
        windows = self._windows
        entries: list[tuple[str, Dim]] = [("n", windows.view.strides[0])]
        if windows.group > 1:
            entries.append(("g", windows.scaled(windows.view.strides[-1], windows.channels)))
        for a, axis in enumerate(self._outer):
            if not axis.padded or not self._copied:
                entries.append((f"o{a}", windows.scaled(axis.step, axis.stride)))
        return entries

    def _unpadded_taps(self) -> list[tuple[str, Dim]]:
        rows = enumerate(self._outer)
        return [(f"t{a}", self._windows.scaled(axis.step, axis.dilation)) for a, axis in rows if not axis.padded]

    def _copy_whole(self, body: list[Statement], rows: list[tuple[Bounded, Dim]]) -> None:
        """Zeros, a stretch of the data, zeros."""
        channels, span = self._windows.channels, self._span()
        first = self._dims.mul(self._last.before, channels)
        end = self._dims.mul(self._dims.min(span, self._dims.add(self._last.before, self._last.size)), channels)
        whole = self._row_elems()
        if first != 0:
            body.append(self._zeros("q", 0, first, self._row_steps()))
        offset = self._dims.sub(self._windows.view.offset, first)
        index = self._index([*self._fixed(), *self._unpadded_taps(), ("q", 1)], offset)
        copied: list[Statement] = []
        self._moved(copied, ("q",), index, rows, Index((*self._sized(self._row_steps()), ("q", 1))))
        step = _COPIED_VECTORS * self._lanes
        body.append(Loop("q", self._sizes.of(end), step, tuple(copied), begin=self._sizes.of(first)))
        if end != whole:
            body.append(self._zeros("q", end, whole, self._row_steps()))

    def _zeros(self, axis: str, begin: Dim, end: Dim, around: Sequence[tuple[str, Dim]]) -> Loop:
        name = self._names.new("zero")
        tile = Tile(self._windows.sum, (axis,))
        store = Store("scratch", Index((*self._sized(around), (axis, 1))), name)
        step = _COPIED_VECTORS * self._lanes
        statements = (Fill(name, tile, 0), store)
        return Loop(axis, self._sizes.of(end), step, statements, begin=self._sizes.of(begin))

    def _copy_places(self, body: list[Statement], rows: list[tuple[Bounded, Dim]]) -> None:
        """Place by place, channels side by side; or channel by channel, if places lie side by side in the data."""
        windows, span = self._windows, self._sizes.of(self._span())
        apart = windows.view.strides[-1] != 1
        inner: list[Statement] = []
        integers = Integers(inner, self._names, self._sizes)
        start = integers.start("i") if self._flat else (integers.number(0), ())
        each = replace(self._last, dilation=1)  # every place under the windows, not only those that kernels meet
        places = [*rows, (integers.place(each, start, integers.position("p")), self._last.step)]
        axes = ("c", "p") if apart else ("p", "c")
        index = self._index(
            [*self._fixed(), *self._unpadded_taps(), ("c", windows.view.strides[-1])], windows.view.offset
        )
        target = Index((*self._sized(self._row_steps()), ("p", windows.channels), ("c", 1)))
        copied: list[Statement] = []
        self._moved(copied, axes, index, places, target)
        channels = Loop("c", self._channels(), 1 if apart else self._lanes, tuple(copied))
        body.append(Loop("p", span, self._lanes if apart else 1, (*inner, channels)))

    def _channels(self) -> Size:
        windows = self._windows
        if all(isinstance(size, int) for size in windows.view.shape):
            return windows.channels
        filled = self._dims.sub(1, windows.is_empty())
        return self._sizes.of(self._dims.mul(filled, windows.channels))

    def _moved(
        self, body: list[Statement], axes: tuple[str, ...], index: Index, places: list[tuple[Bounded, Dim]], to: Index
    ) -> None:
        """A tile of the data, zero where a place is not inside, into scratch."""
        tile = Tile(self._windows.sum, axes)
        value, kept, zero = self._names.new("v"), self._names.new("v"), self._names.new("zero")
        at = tuple((name, self._sizes.of(step)) for (name, _, _), step in places)
        body.append(Load(value, tile, "x", index, at=at))
        if places:
            inside = self._all_inside(body, places)
            body += [Fill(zero, Tile(self._windows.sum), 0), Map(kept, tile, "select", (inside, value, zero))]
        body.append(Store("scratch", to, kept if places else value))

    def _all_inside(self, body: list[Statement], places: list[tuple[Bounded, Dim]]) -> str:
        integers = Integers(body, self._names, self._sizes)
        (_, inside, axes), *rest = (place for place, _ in places)
        for _, other, own in rest:
            axes = tuple(dict.fromkeys((*axes, *own)))
            inside = integers.map("and", axes, inside, other, dtype=DType.BOOL)
        return inside

    def _index(self, entries: Sequence[tuple[str, Dim]], offset: Dim) -> Index:
        return Index(self._sized(entries), self._sizes.of(offset))

    def _sized(self, entries: Sequence[tuple[str, Dim]]) -> tuple[tuple[str, Size], ...]:
        return tuple((name, self._sizes.of(step)) for name, step in entries)

    # Tiles of results.

    def _rows(self) -> Iterator[Statement]:
        if self._flat:
            yield from self._tile("i")
            return
        begin: Dim = 0
        for rows in self._tiles:
            left = self._dims.sub(self._last.count, begin)
            whole = self._dims.mul(self._dims.floordiv(left, rows), rows)
            end = self._last.count if rows == self._tiles[-1] else self._dims.add(begin, whole)
            if begin != end:
                axis = f"i{rows}"
                extent, start = self._sizes.of(end), self._sizes.of(begin)
                yield Loop(axis, extent, rows, tuple(self._tile(axis)), begin=start, exact=True)
            begin = end

    def _tile(self, row: str) -> Iterator[Statement]:
        body: list[Statement] = []
        spot = self._windows.spot(self._sizes, row, grouped=self._windows.group > 1)
        total = self._sum(body, row, list(self._loops()))
        result = self._epilogue.write(body, total, self._windows.sum, spot)
        body.append(Store("out", spot.index, result))
        yield from body

    def _loops(self) -> Iterator[_Loop]:
        """The loops of a sum from the outside: rows of the kernel, its places, channels; those two as one if side by
        side."""
        windows, last, channels = self._windows, self._last, self._windows.channels
        kernels = [axis.kernel for axis in windows.axes]
        steps = dict(self._row_steps()) if self._copied else {}
        for a, axis in enumerate(self._outer):
            step = steps.get(f"t{a}", windows.scaled(axis.step, axis.dilation))
            if axis.kernel > 1:
                yield f"t{a}", axis.kernel, step, prod(kernels[a + 1 :]) * channels
        place = channels if self._copied else last.step
        within = 1 if self._copied else windows.view.strides[-1]
        alone = prod(kernels[:-1]) == 1
        if last.dilation == 1 and place == channels and within == 1 and not (alone and self._terms > _BLOCK):
            yield "k", last.kernel * channels, 1, 1
        else:
            if last.kernel > 1:
                yield "u", last.kernel, windows.scaled(place, last.dilation), channels
            yield "k", channels, within, 1

    def _sum(self, body: list[Statement], row: str, loops: list[_Loop]) -> str:
        zero = self._names.new("zero")
        body.append(Fill(zero, Tile(self._windows.sum, (row, "j")), 0))
        return self._level(body, row, loops, loops, zero)

    def _level(self, body: list[Statement], row: str, loops: list[_Loop], left: list[_Loop], start: str) -> str:
        """One loop of a sum. The innermost begins anew and is added to the total if the whole sum is long."""
        (axis, extent, _, _), *rest = left
        tile = Tile(self._windows.sum, (row, "j"))
        old, total = self._names.new("old"), self._names.new("sum")
        inner: list[Statement] = []
        if not rest:
            new = self._step(inner, row, loops, old)
        elif len(rest) == 1 and self._terms > _BLOCK and self._windows.sum.is_float:
            zero, new = self._names.new("zero"), self._names.new("sum")
            inner.append(Fill(zero, tile, 0))
            inner.append(Map(new, tile, "add", (old, self._level(inner, row, loops, rest, zero))))
        else:
            new = self._level(inner, row, loops, rest, old)
        body.append(Loop(axis, extent, 1, tuple(inner), ((old, start),), (new,), (total,)))
        return total

    def _step(self, body: list[Statement], row: str, loops: list[_Loop], old: str) -> str:
        left, right, new = self._names.new("a"), self._names.new("b"), self._names.new("sum")
        dtype = self._windows.sum
        body.append(Load(right, Tile(dtype, ("k", "j")), "w", self._weights_at(loops)))
        buffer = "scratch" if self._copied else "x"
        body.append(Load(left, Tile(dtype, (row, "k")), buffer, self._data_at(row, loops)))
        body.append(Dot(new, Tile(dtype, (row, "j")), left, right, old, "k"))
        return new

    def _weights_at(self, loops: list[_Loop]) -> Index:
        if self._packed:
            panel = (("j", 1), *((axis, rows * self._width) for axis, _, _, rows in loops))
            return Index(panel, 0, (("j", self._terms),))
        down, along = self._right.strides
        entries: list[tuple[str, Dim]] = [("j", along)]
        entries += [(axis, self._windows.scaled(down, rows)) for axis, _, _, rows in loops]
        if self._windows.group > 1:
            entries.append(("g", self._windows.scaled(along, self._windows.columns)))
        return self._index(entries, self._right.offset)

    def _data_at(self, row: str, loops: list[_Loop]) -> Index:
        windows, taps = self._windows, [(axis, step) for axis, _, step, _ in loops]
        if not self._copied:
            return self._index(
                [*self._fixed(), *taps, (row, windows.scaled(self._last.step, self._last.stride))], windows.view.offset
            )
        entries = self._sized([*taps, (row, self._last.stride * windows.channels)])
        return Index(entries, 0, ((row, 0),) if self._flat else ())


def _axes(body: tuple[Statement, ...]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Loop):
            yield statement.axis
            yield from _axes(statement.body)


def _tiling(count: Dim, columns: int, lanes: int) -> tuple[int, tuple[int, ...]]:
    """Vectors of a panel, and rows of the tiles that a row of results is divided into: what takes the least time.

    Tiles are as equal as can be: of 14 rows two of 7, not 8, 4 and 2.
    """
    options = []
    for vectors, most in _ROWS.items():
        panels = -(-columns // (vectors * lanes))
        tiles = _divided(count, most) if isinstance(count, int) else (most, *(r for r in _LEFT_ROWS if r < most))
        full = isinstance(count, int) and count // tiles[0]
        cycles = _cycles(tiles[0], vectors) * full if full else _cycles(most, vectors) / most
        if full and len(tiles) > 1:
            cycles += _cycles(tiles[-1], vectors)
        options.append((panels * cycles, vectors, tiles))
    _, vectors, tiles = min(options, key=lambda option: option[0])
    return vectors, tiles


def _divided(count: int, most: int) -> tuple[int, ...]:
    """Rows of tiles: as many as fit of the first, then one of what is left."""
    rows = -(-count // -(-count // most)) if count else 1
    return (rows, count % rows) if count % rows else (rows,)


def _cycles(rows: int, vectors: int) -> float:
    """Of one step of a sum: multiplying, waiting for the sums before, loading the panel from the second cache."""
    return max(rows * vectors, _LATENCY, 2 * vectors, vectors + rows / 2)
