"""A convolution of every channel by itself -> one tile program: channels in vectors, a row of results at a time.

Places along the last axis are taken in tiles. Where its sizes are known, so is for every window which of its places
lie inside the data: those at the edges are tiles of one, beside the one next to them, and leave out what lies outside.
Where they are open, windows inside the data are taken in tiles; others one by one, each place brought inside, and its
product left out. Rows of the kernel that lie outside the data are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim, DType
from tierup.lower.channels import Channels
from tierup.lower.convolution import Step, convolution_kernel
from tierup.lower.epilogue import Epilogue
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import Fill, Index, Load, Loop, Map, Statement, Tile
from tierup.lower.tiling import MANY_ROWS
from tierup.lower.views import Views
from tierup.lower.windows import Bounded, Integers, Spot, Windows
from tierup.plan.regions import Region

_OPEN_VECTORS = 2  # of channels in a tile of a row whose length is open
_OPEN_ROWS = (6, 3, 1)  # of such a tile: with two vectors twelve sums, and as many elements on their way
_REGISTERS = 30  # for sums, and for the places under their windows, which several of them read; the rest for weights
_MOST_ROWS = 12
_LONG = 8  # places of a kernel that are in registers together
_BLOCK_VECTORS = 8  # at most of one step of the grid, whose own cost is that of some tens of products
_WORK_ELEMS = 4096  # products; less is not worth a thread's while


def lower_depthwise(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a conv region with as many groups as channels and results."""
    return _Depthwise(graph, weights, region, Windows(graph, weights, region, dims), lanes).kernel()


class _Part(Struct, frozen=True):
    """Windows of a row that are computed at a time: from `begin` to `end`, `rows` in a tile over the axis `row`.

    `taps` are the places of the kernel along the row that may lie inside the data. Those of a `border` may still not,
    and are looked at one by one.
    """

    row: str
    rows: int
    begin: Dim
    end: Dim
    taps: tuple[int, ...]
    border: bool = False


class _Depthwise:
    def __init__(self, graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int) -> None:
        self._windows, self._dims = windows, windows.dims
        self._names, self._sizes = Names(), Sizes()
        self._epilogue = Epilogue(graph, weights, region.nodes, self._names)
        *self._outer, self._last = windows.axes
        lanes = max(1, lanes * 4 // max(4, windows.sum.numpy.itemsize))
        self._pieces = self._closed_pieces() or [[part] for part in self._open_parts()]
        vectors = _OPEN_VECTORS if any(part.border for parts in self._pieces for part in parts) else 1
        width = lanes * min(vectors, -(-windows.group // lanes))
        self._channels = Channels.divided(windows.group, width, _BLOCK_VECTORS)
        self._right = Views(graph, weights, self._dims).of(windows.matrix)
        self._half = self._rows_of_a_half()

    def kernel(self) -> Kernel:
        windows = self._windows
        data, kernel = windows.view.base, self._right.base
        return convolution_kernel(
            "depthwise", windows, self._epilogue, self._sizes,
            sides=(("x", data, windows.dtype(data)), ("w", kernel, windows.dtype(windows.matrix))),
            body=[self._piece(parts) for parts in self._pieces], steps=list(self._steps()), vector=("j",),
            grain=self._grain(),
        )  # fmt: skip

    def _steps(self) -> Iterator[Step]:
        """The axes of the grid. Threads divide the first: rows, or channels where there are few places, as products of
        images do; then they find in their caches what they wrote. Rows of many channels are divided in two halves, and
        channels inside: the rows of some channels stay in the first cache."""
        rows = [(f"o{a}", axis.count, 1) for a, axis in enumerate(self._outer)]
        rows.reverse()  # along an axis that lies before, windows meet the same rows again, which are still in cache
        channels = self._channels.step
        yield ("n", self._windows.domain[0], 1)
        if self._half:
            yield from (("h", 2, 1), channels, ("o0", self._half, 1), *rows[1:])
        else:
            yield from (*rows, channels) if self._places() >= MANY_ROWS else (channels, *rows)

    def _places(self) -> int:
        """Of the result; where their number is open, many."""
        many = max(MANY_ROWS, self._channels.count)
        return prod(count if isinstance(count, int) else many for count in self._windows.domain[:-1])

    def _rows_of_a_half(self) -> int:
        """Of the first axis; 0 where it is not halved."""
        count = self._outer[0].count if self._outer else 0
        halved = MANY_ROWS <= self._places() < self._channels.count and isinstance(count, int) and count % 2 == 0
        return count // 2 if halved and isinstance(count, int) else 0

    def _grain(self) -> Dim:
        taps = prod(axis.kernel for axis in self._windows.axes)
        work = self._dims.product([self._channels.at_once, taps, self._last.count])
        return self._dims.floordiv(_WORK_ELEMS, self._dims.max(work, 1))

    # Which windows are taken together.

    def _closed_pieces(self) -> list[list[_Part]]:
        """The windows of a row whose sizes are known; nothing where they are not, or most of them reach outside."""
        axis, most = self._last, self._most_rows()
        if not (isinstance(axis.count, int) and isinstance(axis.size, int) and isinstance(axis.before, int)):
            return []
        taps = [self._taps_inside(window) for window in range(axis.count)]
        whole = [window for window, inside in enumerate(taps) if len(inside) == axis.kernel]
        first, behind = (whole[0], whole[-1] + 1) if whole else (axis.count, axis.count)
        if not all(taps) or max(first, axis.count - behind) > most:
            return []
        rows = -(-axis.count // -(-axis.count // most))
        pieces = [[_Part(f"l{window}", 1, window, window + 1, taps[window]) for window in range(first)]]
        pieces[0] += self._inner(first, min(behind, max(first, rows)))
        begin = min(behind, max(first, rows))
        end = behind - (behind - begin) % rows
        pieces += [[part] for part in self._inner(begin, end, rows)]
        pieces.append(self._inner(end, behind))
        pieces[-1] += [_Part(f"r{window}", 1, window, window + 1, taps[window]) for window in range(behind, axis.count)]
        return [parts for parts in pieces if parts]

    def _inner(self, begin: int, end: int, rows: int = 0) -> list[_Part]:
        """Windows that lie inside the data."""
        rows = rows or end - begin
        return [_Part(f"i{rows}", rows, begin, end, tuple(range(self._last.kernel)))] if begin < end else []

    def _taps_inside(self, window: int) -> tuple[int, ...]:
        axis = self._last
        assert isinstance(axis.size, int)
        assert isinstance(axis.before, int)
        places = [window * axis.stride + tap * axis.dilation - axis.before for tap in range(axis.kernel)]
        return tuple(tap for tap, place in enumerate(places) if 0 <= place < axis.size)

    def _most_rows(self) -> int:
        """As many windows as have their sums and the places under them in registers: all that the kernel meets, or of a
        long one those under the window's place that is being added, which the next ones meet again."""
        axis = self._last
        gaps = axis.dilation if axis.stride == 1 else 1
        around = min((axis.kernel - 1) * gaps + 1 - axis.stride, _LONG + gaps)
        return max(2, min(_MOST_ROWS, (_REGISTERS - around) // (1 + axis.stride)))

    def _open_parts(self) -> Iterator[_Part]:
        (first, behind), taps = self._inside(), tuple(range(self._last.kernel))
        if first != 0:
            yield _Part("l", 1, 0, first, taps, border=True)
        begin = first
        for rows in _OPEN_ROWS:
            whole = self._dims.mul(self._dims.floordiv(self._dims.sub(behind, begin), rows), rows)
            end = behind if rows == 1 else self._dims.add(begin, whole)
            if begin != end:
                yield _Part(f"i{rows}", rows, begin, end, taps)
            begin = end
        if behind != self._last.count:
            yield _Part("l", 1, behind, self._last.count, taps, border=True)

    def _inside(self) -> tuple[Dim, Dim]:
        """The first window that lies inside the data along the last axis, and the first behind those."""
        dims, axis = self._dims, self._last
        if not axis.padded:
            return 0, axis.count
        first = dims.min(dims.ceildiv(axis.before, axis.stride), axis.count)
        room = dims.sub(dims.add(axis.size, axis.before), (axis.kernel - 1) * axis.dilation + 1)
        fitting = dims.add(dims.floordiv(room, axis.stride), 1)
        return first, dims.max(first, dims.min(fitting, axis.count))

    # What is computed for them.

    def _piece(self, parts: Sequence[_Part]) -> Statement:
        body: list[Statement] = []
        zeros = [self._names.new("zero") for _ in parts]
        body += [Fill(zero, self._tile(part), 0) for zero, part in zip(zeros, parts, strict=True)]
        for part, total in zip(parts, self._level(body, parts, 0, zeros), strict=True):
            spot = self._spot(part.row)
            result = self._epilogue.write(body, total, self._windows.sum, spot)
            body += self._epilogue.stores(spot.index, result)
        body = self._channels.each(body)  # inside the row: memory is read in order
        for part in reversed(parts):
            begin, end = self._sizes.of(part.begin), self._sizes.of(part.end)
            body = [Loop(part.row, end, part.rows, tuple(body), begin=begin, exact=True)]
        return body[0]

    def _tile(self, part: _Part) -> Tile:
        return Tile(self._windows.sum, (part.row, "j"))

    def _spot(self, row: str) -> Spot:
        spot = self._windows.spot(self._sizes, row, grouped=False)
        if self._half:
            half = self._sizes.of(self._dims.product([self._half, *self._windows.domain[2:]]))
            spot = replace(spot, index=replace(spot.index, axes=(*spot.index.axes, ("h", half))))
        return self._channels.inside(spot)

    def _level(self, body: list[Statement], parts: Sequence[_Part], a: int, starts: list[str]) -> list[str]:
        """The loops over rows of the kernel; its last axis is written out."""
        if a == len(self._outer):
            return self._row(body, parts, starts)
        inner: list[Statement] = []
        olds = [self._names.new("old") for _ in parts]
        news = self._level(inner, parts, a + 1, olds)
        return self._carrying(body, f"t{a}", self._outer[a].kernel, inner, olds, starts, news)

    def _carrying(
        self, body: list[Statement], axis: str, extent: int, inner: list[Statement], olds: list[str],
        starts: list[str], news: list[str], when: str = "",
    ) -> list[str]:  # fmt: skip
        """A loop that carries sums; returns what they are behind it."""
        totals = [self._names.new("sum") for _ in olds]
        carried = tuple(zip(olds, starts, strict=True))
        body.append(Loop(axis, extent, 1, tuple(inner), carried, tuple(news), tuple(totals), when=when))
        return totals

    def _row(self, body: list[Statement], parts: Sequence[_Part], starts: list[str]) -> list[str]:
        """One row of the kernel, unless it lies outside the data."""
        integers = Integers(body, self._names, self._sizes)
        rows: list[tuple[Bounded, Dim]] = []
        inside = ""
        for a, axis in enumerate(self._outer):
            if axis.padded:
                output = integers.start(f"o{a}")
                if a == 0 and self._half:
                    above = integers.map("mul", (), integers.start("h")[0], integers.number(self._half))
                    output = integers.map("add", (), above, output[0]), ()
                place = integers.place(axis, output, integers.start(f"t{a}"))
                rows.append((place, axis.step))
                inside = integers.map("and", (), inside, place[1], dtype=DType.BOOL) if inside else place[1]
        if not rows:
            return self._taps(body, parts, rows, starts)
        inner: list[Statement] = []
        olds = [self._names.new("old") for _ in parts]
        news = self._taps(inner, parts, rows, olds)
        return self._carrying(body, "u", 1, inner, olds, starts, news, inside)

    def _taps(
        self, body: list[Statement], parts: Sequence[_Part], rows: list[tuple[Bounded, Dim]], totals: list[str]
    ) -> list[str]:
        totals = list(totals)
        for tap in range(self._last.kernel):
            factor = self._names.new("w")
            body.append(Load(factor, Tile(self._windows.sum, ("j",)), "w", self._weights_at(tap)))
            for number, part in enumerate(parts):
                if tap in part.taps:
                    totals[number] = self._tap(body, part, totals[number], factor, rows, tap)
        return totals

    def _tap(
        self, body: list[Statement], part: _Part, total: str, factor: str, rows: list[tuple[Bounded, Dim]], tap: int
    ) -> str:
        windows, last = self._windows, self._last
        entries = self._fixed()
        places, offset = list(rows), windows.view.offset
        inside = ""
        if part.border:
            integers = Integers(body, self._names, self._sizes)
            place = integers.place(last, integers.start(part.row), (integers.number(tap), ()))
            places.append((place, last.step))
            entries.append((part.row, 0))
            inside = place[1]
        else:
            ahead = self._dims.sub(tap * last.dilation, last.before)
            offset = self._dims.add(offset, self._dims.mul(ahead, last.step))
            entries.append((part.row, windows.scaled(last.step, last.stride)))
        value, new, tile = self._names.new("v"), self._names.new("sum"), self._tile(part)
        index = Index(tuple((name, self._sizes.of(step)) for name, step in entries), self._sizes.of(offset))
        at = tuple((name, self._sizes.of(step)) for (name, _, _), step in places)
        body.append(Load(value, tile, "x", index, at=at))
        body.append(Map(new, tile, "fma", (value, factor, total)))
        if not inside:
            return new
        kept = self._names.new("sum")
        body.append(Map(kept, tile, "select", (inside, new, total)))
        return kept

    def _fixed(self) -> list[tuple[str, Dim]]:
        """What addresses in the data add beside the row's position and the places that are looked up."""
        windows = self._windows
        entries = [("n", windows.view.strides[0]), *self._channels.apart(windows.view.strides[-1])]
        for a, axis in enumerate(self._outer):
            if not axis.padded:
                entries.append((f"o{a}", windows.scaled(axis.step, axis.stride)))
                if a == 0 and self._half:
                    entries.append(("h", windows.scaled(axis.step, axis.stride * self._half)))
                entries.append((f"t{a}", windows.scaled(axis.step, axis.dilation)))
        return entries

    def _weights_at(self, tap: int) -> Index:
        """The weights of a place in the kernel: one row of the matrix for each, in order."""
        down, along = self._right.strides
        entries = self._channels.apart(along)
        kernels = [axis.kernel for axis in self._windows.axes]
        for a in range(len(self._outer)):
            entries.append((f"t{a}", self._windows.scaled(down, prod(kernels[a + 1 :]))))
        offset = self._dims.add(self._right.offset, self._dims.mul(down, tap))
        return Index(tuple((name, self._sizes.of(step)) for name, step in entries), self._sizes.of(offset))
