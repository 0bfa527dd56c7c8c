"""A convolution of every channel by itself -> one tile program: channels in vectors, a row of results at a time.

Windows that lie inside the data along the last axis are taken in tiles, and read memory in order; those that reach
beyond it are taken one by one, each place brought inside, and its product left out. So are those of rows of the
kernel that lie outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim
from tierup.lower.epilogue import Epilogue
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import Buffer, Fill, Grid, Index, Load, Loop, Map, Statement, Store, Tile, TileProgram
from tierup.lower.views import Views
from tierup.lower.windows import Bounded, Integers, Windows
from tierup.plan.regions import Region

_VECTORS = 2  # of channels in a tile
_ROWS = (6, 3, 1)  # of a tile: with two vectors twelve sums, and as many elements on their way
_WORK_ELEMS = 4096  # products; less is not worth a thread's while


def lower_depthwise(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a conv region with as many groups as channels and results."""
    return _Depthwise(graph, weights, region, Windows(graph, weights, region, dims), lanes).kernel()


class _Depthwise:
    def __init__(self, graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int) -> None:
        self._windows, self._dims = windows, windows.dims
        self._names, self._sizes = Names(), Sizes()
        self._epilogue = Epilogue(graph, weights, region.nodes, self._names)
        *self._outer, self._last = windows.axes
        self._channels = windows.group
        lanes = max(1, lanes * 4 // max(4, windows.sum.numpy.itemsize))
        self._width = lanes * min(_VECTORS, -(-self._channels // lanes))
        self._right = Views(graph, weights, self._dims).of(windows.matrix)

    def kernel(self) -> Kernel:
        windows = self._windows
        body = tuple(self._rows())
        buffers = [Buffer("x", windows.dtype(windows.view.base)), Buffer("w", windows.dtype(windows.matrix))]
        buffers += [Buffer(name, windows.dtype(value)) for value, name in self._epilogue.operands.items()]
        buffers.append(Buffer("out", windows.dtype(self._epilogue.result), "out"))
        steps = [("n", windows.domain[0], 1), *((f"o{a}", axis.count, 1) for a, axis in enumerate(self._outer))]
        steps.append(("j", self._channels, self._width))
        grid = tuple(Grid(axis, self._sizes.of(extent), step) for axis, extent, step in steps)
        program = TileProgram("depthwise", tuple(buffers), len(self._sizes.dims), grid, body, ("j",))
        return Kernel(
            program,
            (windows.view.base, self._right.base, *self._epilogue.operands, self._epilogue.result),
            tuple(self._sizes.dims),
            tuple((extent, step) for _, extent, step in steps),
            self._grain(),
        )

    def _grain(self) -> Dim:
        taps = prod(axis.kernel for axis in self._windows.axes)
        work = self._dims.product([self._width, taps, self._last.count])
        return self._dims.floordiv(_WORK_ELEMS, self._dims.max(work, 1))

    def _rows(self) -> Iterator[Loop]:
        first, behind = self._inside()
        if first != 0:
            yield self._tiles("l", 1, 0, first, border=True)
        begin = first
        for rows in _ROWS:
            whole = self._dims.mul(self._dims.floordiv(self._dims.sub(behind, begin), rows), rows)
            end = behind if rows == 1 else self._dims.add(begin, whole)
            if begin != end:
                yield self._tiles(f"i{rows}", rows, begin, end, border=False)
            begin = end
        if behind != self._last.count:
            yield self._tiles("l", 1, behind, self._last.count, border=True)

    def _inside(self) -> tuple[Dim, Dim]:
        """The first window that lies inside the data along the last axis, and the first behind those."""
        dims, axis = self._dims, self._last
        if not axis.padded:
            return 0, axis.count
        first = dims.min(dims.ceildiv(axis.before, axis.stride), axis.count)
        room = dims.sub(dims.add(axis.size, axis.before), (axis.kernel - 1) * axis.dilation + 1)
        fitting = dims.add(dims.floordiv(room, axis.stride), 1)
        return first, dims.max(first, dims.min(fitting, axis.count))

    def _tiles(self, row: str, rows: int, begin: Dim, end: Dim, *, border: bool) -> Loop:
        body: list[Statement] = []
        tile, zero = Tile(self._windows.sum, (row, "j")), self._names.new("zero")
        body.append(Fill(zero, tile, 0))
        total = self._level(body, row, 0, zero, border)
        spot = self._windows.spot(self._sizes, row, grouped=False)
        result = self._epilogue.write(body, total, self._windows.sum, spot)
        body.append(Store("out", spot.index, result))
        begin_size, end_size = self._sizes.of(begin), self._sizes.of(end)
        return Loop(row, end_size, rows, tuple(body), begin=begin_size, exact=True)

    def _level(self, body: list[Statement], row: str, a: int, start: str, border: bool) -> str:
        """The loops over rows of the kernel; its last axis is written out."""
        if a == len(self._outer):
            return self._taps(body, row, start, border)
        old, total = self._names.new("old"), self._names.new("sum")
        inner: list[Statement] = []
        new = self._level(inner, row, a + 1, old, border)
        body.append(Loop(f"t{a}", self._outer[a].kernel, 1, tuple(inner), ((old, start),), (new,), (total,)))
        return total

    def _taps(self, body: list[Statement], row: str, total: str, border: bool) -> str:
        integers = Integers(body, self._names, self._sizes)
        rows: list[tuple[Bounded, Dim]] = []
        for a, axis in enumerate(self._outer):
            if axis.padded:
                place = integers.place(axis, integers.start(f"o{a}"), integers.start(f"t{a}"))
                rows.append((place, axis.step))
        for tap in range(self._last.kernel):
            total = self._tap(body, row, total, rows, tap, border)
        return total

    def _tap(
        self, body: list[Statement], row: str, total: str, rows: list[tuple[Bounded, Dim]], tap: int, border: bool
    ) -> str:
        windows, last, dtype = self._windows, self._last, self._windows.sum
        integers = Integers(body, self._names, self._sizes)
        entries: list[tuple[str, Dim]] = [("n", windows.view.strides[0]), ("j", windows.view.strides[-1])]
        for a, axis in enumerate(self._outer):
            if not axis.padded:
                entries.append((f"o{a}", windows.scaled(axis.step, axis.stride)))
                entries.append((f"t{a}", windows.scaled(axis.step, axis.dilation)))
        places, offset = list(rows), windows.view.offset
        if border:
            place = integers.place(last, integers.start(row), (integers.number(tap), ()))
            places.append((place, last.step))
            entries.append((row, 0))
        else:
            ahead = self._dims.sub(tap * last.dilation, last.before)
            offset = self._dims.add(offset, self._dims.mul(ahead, last.step))
            entries.append((row, windows.scaled(last.step, last.stride)))
        value, factor, new = self._names.new("v"), self._names.new("w"), self._names.new("sum")
        tile = Tile(dtype, (row, "j"))
        index = Index(tuple((name, self._sizes.of(step)) for name, step in entries), self._sizes.of(offset))
        at = tuple((name, self._sizes.of(step)) for (name, _, _), step in places)
        body.append(Load(value, tile, "x", index, at=at))
        body.append(Load(factor, Tile(dtype, ("j",)), "w", self._weights_at(tap)))
        body.append(Map(new, tile, "fma", (value, factor, total)))
        for _, inside, _ in (place for place, _ in places):
            kept = self._names.new("sum")
            body.append(Map(kept, tile, "select", (inside, new, total)))
            new = kept
        return new

    def _weights_at(self, tap: int) -> Index:
        """The weights of a place in the kernel: one row of the matrix for each, in order."""
        down, along = self._right.strides
        entries: list[tuple[str, Dim]] = [("j", along)]
        kernels = [axis.kernel for axis in self._windows.axes]
        for a in range(len(self._outer)):
            entries.append((f"t{a}", self._windows.scaled(down, prod(kernels[a + 1 :]))))
        offset = self._dims.add(self._right.offset, self._dims.mul(down, tap))
        return Index(tuple((name, self._sizes.of(step)) for name, step in entries), self._sizes.of(offset))
