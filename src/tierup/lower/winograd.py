"""A convolution by 3×3 single steps -> Winograd's F(2×2, 3×3): four results for sixteen products instead of 36.

    y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A        Bᵀ = 1  0 -1  0      Aᵀ = 1  1  1  0
                                              0  1  1  0           0  1 -1 -1
    d: 4×4 places of the data,                0 -1  1  0
    y: 2×2 results                            0  1  0 -1

For some rows of tiles: the data under them is copied to scratch with zeros around it, transformed there, place by
place; for each of the 16 places, tiles and channels are multiplied by a panel of transformed weights; and the 16 sums
become four results, which go through the maps behind them. Weights are transformed when they are packed.

Where an axis lies before these two (time, or the depth of a volume), the planes that a kernel meets along it are
transformed one by one, and the sums go on over them: planes beyond the data are passed over.

Differences of infinities, and sums that overflow only here, would be NaN where plain sums are not. Where a result of a
piece is not finite, all of the piece is computed once more, by plain sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim, DType
from tierup.lower.convolution import convolution_kernel
from tierup.lower.copied import Copied
from tierup.lower.epilogue import Epilogue
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import (
    Dot,
    Fill,
    Index,
    Load,
    Loop,
    Map,
    Reduce,
    Statement,
    Store,
    Tile,
)
from tierup.lower.tiling import tiling
from tierup.lower.windows import Integers, Spot, Windows
from tierup.plan.packing import transformed
from tierup.plan.regions import Region
from tierup.plan.strides import Strides

_PLACES = 16
_TILES = 7  # at least as many in a piece, if they divide the rows of tiles, so that a panel is read seldom enough
_ALIGNED = 16  # elements of a cache line
_WORK_FLOPS = 60_000  # less is not worth a thread's while


def lower_winograd(graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int) -> Kernel:
    """The kernel of a conv region that is marked for it."""
    return _Winograd(graph, weights, region, windows, lanes).kernel()


class _Winograd:
    def __init__(self, graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int) -> None:
        self._windows, self._dims, self._lanes = windows, windows.dims, lanes
        self._names, self._sizes = Names(), Sizes()
        self._epilogue = Epilogue(graph, weights, region.nodes, self._names)
        *leading, self._down, self._along = windows.axes
        self._depth = leading[0] if leading else None  # `rewrite/rules/layout.py` marks no others
        self._planes = self._depth.kernel if self._depth is not None else 1
        self._strips = "o0" if self._depth is None else "o1"  # the loop over rows of tiles
        self._across = self._dims.ceildiv(self._along.count, 2)  # tiles in a row of them
        height = self._dims.ceildiv(self._down.count, 2)
        self._strip = _strip(height, self._across)  # rows of tiles in a piece
        self._tiles = windows.scaled(self._across, self._strip)
        self._width, self._steps = tiling(self._tiles, windows.columns, lanes)
        strips = self._dims.floordiv(height, self._strip)
        rows = replace(self._down, kernel=2 * self._strip + 2, stride=2 * self._strip, dilation=1, count=strips)
        span = self._dims.add(windows.scaled(self._across, 2), 2)
        self._copied = Copied(windows, [*leading, rows], self._along, span, lanes, self._names, self._sizes)
        # In scratch: the copy, the transformed data [planes, 16, tiles, channels], sums [16, rows, columns]. Places lie
        # a line further apart than they must: a multiple of 4 KiB apart they would share cache sets.
        self._place = self._dims.add(self._aligned(windows.scaled(self._tiles, windows.channels)), _ALIGNED)
        self._data = self._aligned(self._copied.elems)
        self._plane = windows.scaled(self._place, _PLACES)
        self._sums = self._dims.add(self._data, windows.scaled(self._plane, self._planes))

    def kernel(self) -> Kernel:
        windows, data, matrix = self._windows, self._windows.view.base, self._windows.matrix
        kind, panels = windows.dtype(matrix), Panels(matrix, self._width, transformed(self._planes))
        pieces = [(f"o{a}", axis.count, 1) for a, axis in enumerate(self._copied.outer)]
        return convolution_kernel(
            "winograd", windows, self._epilogue, self._sizes,
            sides=(("x", data, windows.dtype(data)), ("w", panels, kind), ("g", matrix, kind)),
            body=(*self._copied.statements(), self._transform(), *self._tiled(), *self._again()),
            steps=(("n", windows.domain[0], 1), ("j", windows.columns, self._width), *pieces),
            vector=(*self._copied.vectors, "v", "j"), grain=self._grain(),
            scratch=(windows.sum, self._dims.add(self._sums, _PLACES * self._steps[0] * self._width)),
        )  # fmt: skip

    def _aligned(self, elems: Dim) -> Dim:
        return self._windows.scaled(self._dims.ceildiv(elems, _ALIGNED), _ALIGNED)

    def _grain(self) -> Dim:
        flops = self._dims.product([2 * self._width * _PLACES * self._planes, self._windows.channels, self._tiles])
        return self._dims.floordiv(_WORK_FLOPS, self._dims.max(flops, 1))

    def _index(self, offset: Dim, *entries: tuple[str, Dim]) -> Index:
        return Index(tuple((axis, self._sizes.of(step)) for axis, step in entries), self._sizes.of(offset))

    def _map(self, body: list[Statement], tile: Tile, op: str, a: str, b: str) -> str:
        name = self._names.new("m")
        body.append(Map(name, tile, op, (a, b)))
        return name

    # Bᵀ d B.

    def _over_planes(self, entries: Sequence[tuple[str, Dim]], step: Dim) -> tuple[tuple[str, Dim], ...]:
        """What addresses add, with planes so far apart."""
        return (*entries, ("t0", step)) if self._planes > 1 else tuple(entries)

    def _meets_data(self, body: list[Statement]) -> str:
        """Whether this plane lies on the data and not beyond it, where all is zero; "" if it always does."""
        if self._planes == 1 or self._depth is None or not self._depth.padded:
            return ""
        integers = Integers(body, self._names, self._sizes)
        _, inside, _ = integers.place(self._depth, integers.start("o0"), integers.start("t0"))
        return inside

    def _transform(self) -> Loop:
        """Tile by tile of each plane, some channels at a time."""
        channels, row, plane = self._windows.channels, self._copied.row_elems, dict(self._copied.row_steps())["t0"]
        body: list[Statement] = []
        tile = Tile(self._windows.sum, ("v",))
        columns = []
        for b in range(4):
            names = [self._names.new("d") for _ in range(4)]
            for a, name in enumerate(names):
                offset = self._dims.add(self._windows.scaled(row, a), b * channels)
                places = ("y", self._windows.scaled(row, 2)), ("x", 2 * channels), ("v", 1)
                body.append(Load(name, tile, "scratch", self._index(offset, *self._over_planes(places, plane))))
            columns.append(self._turned(body, tile, names))
        for a in range(4):
            for b, name in enumerate(self._turned(body, tile, [column[a] for column in columns])):
                offset = self._dims.add(self._data, self._windows.scaled(self._place, 4 * a + b))
                places = ("y", self._windows.scaled(self._across, channels)), ("x", channels), ("v", 1)
                body.append(Store("scratch", self._index(offset, *self._over_planes(places, self._plane)), name))
        inner = Loop("x", self._sizes.of(self._across), 1, (Loop("v", channels, self._lanes, tuple(body)),))
        around: list[Statement] = []
        met = self._meets_data(around)
        rows = Loop("y", self._strip, 1, (inner,), exact=bool(met), when=met)
        return Loop("t0", self._planes, 1, (*around, rows)) if self._planes > 1 else rows

    def _turned(self, body: list[Statement], tile: Tile, d: Sequence[str]) -> list[str]:
        """Bᵀ of four elements."""
        pairs = (("sub", d[0], d[2]), ("add", d[1], d[2]), ("sub", d[2], d[1]), ("sub", d[1], d[3]))
        return [self._map(body, tile, op, a, b) for op, a, b in pairs]

    # Products, and Aᵀ m A.

    def _tiled(self) -> Iterator[Statement]:
        """All tiles; `self._bad` then is not a number where a column has a result that is not finite."""
        self._bad = self._names.new("bad")
        yield Fill(self._bad, Tile(self._windows.sum, ("j",)), 0)
        begin: Dim = 0
        for rows in self._steps:
            whole = self._windows.scaled(self._dims.floordiv(self._dims.sub(self._tiles, begin), rows), rows)
            end = self._tiles if rows == self._steps[-1] else self._dims.add(begin, whole)
            if begin != end:
                axis, old, after = f"i{rows}", self._names.new("bad"), self._names.new("bad")
                results, new = self._results(axis, rows, old)
                steps, carried = (self._products(axis, rows), results), ((old, self._bad),)
                first, last = self._sizes.of(begin), self._sizes.of(end)
                yield Loop(axis, last, rows, steps, carried, (new,), (after,), begin=first, exact=True)
                self._bad = after
            begin = end

    def _products(self, axis: str, rows: int) -> Loop:
        """The sums of `rows` tiles at all places, into scratch."""
        channels, dtype = self._windows.channels, self._windows.sum
        zero, old, left, right, new, total = (self._names.new(n) for n in ("zero", "old", "a", "b", "sum", "total"))
        panel = self._over_planes(
            (("j", 1), ("e", channels * self._width), ("k", self._width)), _PLACES * channels * self._width
        )
        data = self._over_planes((("e", self._place), (axis, channels), ("k", 1)), self._plane)
        terms = self._planes * _PLACES * channels
        steps = (
            Load(right, Tile(dtype, ("k", "j")), "w", replace(self._index(0, *panel), starts=(("j", terms),))),
            Load(left, Tile(dtype, (axis, "k")), "scratch", self._index(self._data, *data)),
            Dot(new, Tile(dtype, (axis, "j")), left, right, old, "k"),
        )
        loop = self._summed(Loop("k", channels, 1, steps, ((old, zero),), (new,), (total,)))
        index = self._index(self._sums, ("e", rows * self._width), (axis, self._width), ("j", 1))
        store = Store("scratch", replace(index, starts=((axis, 0), ("j", 0))), loop.results[0])
        return Loop("e", _PLACES, 1, (Fill(zero, Tile(dtype, (axis, "j")), 0), loop, store))

    def _summed(self, loop: Loop, skips: bool = True) -> Loop:
        """A sum within a plane, and over all planes."""
        if self._planes == 1:
            return loop
        ((inner, start),), old, total = loop.carried, self._names.new("old"), self._names.new("total")
        body: list[Statement] = []
        met = self._meets_data(body) if skips else ""
        body.append(replace(loop, carried=((inner, old),), exact=bool(met), when=met))
        return Loop("t0", self._planes, 1, tuple(body), ((old, start),), loop.results, (total,))

    def _results(self, axis: str, rows: int, start: str) -> tuple[Loop, str]:
        """Tile by tile: sixteen sums become four results, which go through the maps and are written.

        What is carried becomes NaN if one of the results is not finite: x - x is 0 otherwise.
        """
        body: list[Statement] = []
        tile = Tile(self._windows.sum, ("r", "j"))
        columns = []
        for b in range(4):
            names = [self._names.new("m") for _ in range(4)]
            for a, name in enumerate(names):
                offset = self._dims.add(self._sums, (4 * a + b) * rows * self._width)
                index = replace(self._index(offset, ("r", self._width), ("j", 1)), starts=(("j", 0),))
                body.append(Load(name, tile, "scratch", index))
            columns.append(self._joined(body, tile, names))
        results = [self._joined(body, tile, [column[a] for column in columns]) for a in range(2)]
        old, new, after = (self._names.new("bad") for _ in range(3))
        sums = [self._map(body, tile, "add", *pair) for pair in results]
        total = self._map(body, tile, "add", *sums)
        each, column = self._map(body, tile, "sub", total, total), self._names.new("m")
        body.append(Reduce(column, Tile(self._windows.sum, ("j",)), "sum", each, "r"))
        body.append(Map(new, Tile(self._windows.sum, ("j",)), "add", (old, column)))
        place = self._tile_place(body, axis)
        # Beyond an edge a result is written over the one before it, which is written after it.
        for a, b in ((1, 1), (1, 0), (0, 1), (0, 0)):
            spot = self._spot(body, place, a, b)
            written = self._epilogue.write(body, results[a][b], self._windows.sum, spot)
            body += self._epilogue.stores(spot.index, written, spot.at)
        return Loop("r", rows, 1, tuple(body), ((old, start),), (new,), (after,)), after

    def _joined(self, body: list[Statement], tile: Tile, m: Sequence[str]) -> list[str]:
        """Aᵀ of four elements."""
        both, apart = self._map(body, tile, "add", m[1], m[2]), self._map(body, tile, "sub", m[1], m[2])
        return [self._map(body, tile, "add", m[0], both), self._map(body, tile, "sub", apart, m[3])]

    def _tile_place(self, body: list[Statement], axis: str) -> tuple[str, str]:
        """The row and column of the first result of a tile."""
        integers = Integers(body, self._names, self._sizes)
        (first, _), (more, _), (strip, _) = (integers.start(name) for name in (axis, "r", self._strips))
        number, across, two = integers.map("add", (), first, more), integers.number(self._across), integers.number(2)
        row, column = (integers.map(op, (), number, across) for op in ("div", "mod"))
        start = integers.map("mul", (), strip, integers.number(self._strip))
        down = integers.map("mul", (), integers.map("add", (), start, row), two)
        return down, integers.map("mul", (), column, two)

    def _spot(self, body: list[Statement], place: tuple[str, str], a: int, b: int) -> Spot:
        integers = Integers(body, self._names, self._sizes)
        around, rows, columns = self._strides()
        inside = []
        for start, more, window in ((place[0], a, self._down), (place[1], b, self._along)):
            last = integers.number(self._dims.sub(window.count, 1))
            moved = integers.map("add", (), start, integers.number(more)) if more else start
            inside.append(integers.map("min", (), moved, last))
        at = tuple((name, self._sizes.of(step)) for name, step in zip(inside, (rows, columns), strict=True))
        return Spot(("r", "j"), self._index(0, *around, ("r", 0), ("j", 1)), Index((("j", 1),)), at=at)

    def _strides(self) -> tuple[list[tuple[str, Dim]], Dim, Dim]:
        """How far apart results lie: of the loops around planes, and rows and columns of a plane."""
        *around, rows, columns, _ = Strides(self._dims).row_major(self._windows.domain)
        return list(zip(("n", "o0"), around, strict=False)), rows, columns

    # Plain sums.

    def _again(self) -> Iterator[Statement]:
        """Row by row and result by result, if something was not finite."""
        dtype = self._windows.sum
        total, finite, bad = self._names.new("bad"), self._names.new("c"), self._names.new("c")
        yield Reduce(total, Tile(dtype), "sum", self._bad, "j")
        yield Map(finite, Tile(DType.BOOL), "eq", (total, total))
        yield Map(bad, Tile(DType.BOOL), "not", (finite,))
        body: list[Statement] = []
        integers = Integers(body, self._names, self._sizes)
        (strip, _), (row, _) = (integers.start(name) for name in (self._strips, "b"))
        first = integers.map("mul", (), strip, integers.number(2 * self._strip))
        last = integers.map("sub", (), integers.number(self._dims.sub(self._down.count, 1)), first)
        local = integers.map("min", (), row, last)  # instead of a row beyond the last, the last once more
        place = integers.map("add", (), first, local)
        around, rows, columns = self._strides()
        index = self._index(0, *around, ("s", columns), ("j", 1))
        spot = Spot(("s", "j"), index, Index((("j", 1),)), at=((place, self._sizes.of(rows)),))
        inner: list[Statement] = []
        result = self._epilogue.write(inner, self._plain_sum(inner, local), dtype, spot)
        inner += self._epilogue.stores(spot.index, result, spot.at)
        body.append(Loop("s", self._sizes.of(self._along.count), 1, tuple(inner)))
        yield Loop("b", 2 * self._strip, 1, tuple(body), when=bad)

    def _plain_sum(self, body: list[Statement], down: str) -> str:
        """Over planes, rows, and places and channels, of the kernel, from the row `down` of the copy on."""
        windows, dtype, tile = self._windows, self._windows.sum, Tile(self._windows.sum, ("s", "j"))
        zero, outer, inner, left, right, new, part, total = (self._names.new("p") for _ in range(8))
        row, channels = self._copied.row_elems, windows.channels
        plane, down_by = dict(self._copied.row_steps())["t0"], 3 * channels * windows.columns
        data = self._index(0, *self._over_planes((("t", row), ("s", channels), ("k", 1)), plane))
        kernel = (("t", down_by), ("k", windows.columns), ("j", 1))
        weights = self._index(0, *self._over_planes(kernel, 3 * down_by))
        steps = (
            Load(right, Tile(dtype, ("k", "j")), "g", weights),
            Load(left, Tile(dtype, ("s", "k")), "scratch", data, at=((down, self._sizes.of(row)),)),
            Dot(new, tile, left, right, inner, "k"),
        )
        places = Loop("k", 3 * channels, 1, steps, ((inner, outer),), (new,), (part,))
        rows = Loop("t", 3, 1, (places,), ((outer, zero),), (part,), (total,))
        whole = self._summed(rows, skips=False)
        body += [Fill(zero, tile, 0), whole]
        return whole.results[0]


def _strip(height: Dim, across: Dim) -> int:
    """Rows of tiles in a piece: as few as make enough tiles, and divide the rows evenly."""
    if not isinstance(height, int) or not isinstance(across, int):
        return 1
    even = [rows for rows in range(1, height + 1) if height % rows == 0]
    return next((rows for rows in even if rows * across >= _TILES), max(even, default=1))
