"""A conv region -> one tile program: a row of results at a time, all columns of a panel, maps behind it in registers.

The data has its channels last, so a row of windows is a matrix whose rows overlap, and the inner loop is that of a
product: places and channels of one row of the kernel lie side by side, and are multiplied by a panel of weights. Where
the data is padded, or its channels lie apart, the rows under the windows are first copied to scratch, with zeros
around them: of n columns in a panel, that is one copy for n products.

Where the machine multiplies pairs of bf16 or fours of bytes in a word (`lower/words.py`), channels are read as words.

Threads divide panels and rows of results: panels first, so that a panel stays in cache, but where all panels do. With
one spatial axis they divide that axis, tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import prod

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim, DType
from tierup.lower.convolution import Step, convolution_kernel
from tierup.lower.copied import Copied
from tierup.lower.depthwise import lower_depthwise
from tierup.lower.depthwise_bytes import lower_depthwise_bytes
from tierup.lower.epilogue import Epilogue
from tierup.lower.few import lower_few, suits
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
    Size,
    Statement,
    Tile,
)
from tierup.lower.tiling import CACHED_BYTES, MANY_ROWS, divides, tiling
from tierup.lower.views import Views
from tierup.lower.windows import Integers, Windows
from tierup.lower.winograd import lower_winograd
from tierup.lower.words import Words, words_for
from tierup.plan.regions import Region

_BLOCK = 1024  # steps of a sum before it is added to the total, as in matmul.py
_WRITTEN_OUT = 4  # steps of a sum that are no loop: of few channels that lie apart
_WORK_FLOPS = 60_000  # less is not worth a thread's while

_Loop = tuple[str, int, Dim, int]  # of a sum: axis, extent, step in the data, rows of the matrix


def lower_conv(
    graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int, dots: Set[str] = frozenset()
) -> Kernel:
    """The kernel of a conv region; `dots` are the maps of words that the machine has instructions for."""
    windows = Windows(graph, weights, region, dims)
    if windows.channels == windows.columns == 1 and windows.group > 1:
        if windows.sum is DType.I32:
            return lower_depthwise_bytes(graph, weights, region, windows, lanes, _words(windows, dots))
        return lower_depthwise(graph, weights, region, dims, lanes)
    if windows.transformed:
        return lower_winograd(graph, weights, region, windows, lanes)
    words = _words(windows, dots)
    if words is not None and _is_of_words(windows, words, lanes):
        return _Conv(graph, weights, region, windows.in_words(words.group), lanes, words).kernel()
    if suits(windows, graph, lanes):
        return lower_few(graph, weights, region, windows, lanes)
    return _Conv(graph, weights, region, windows, lanes).kernel()


def _words(windows: Windows, dots: Set[str]) -> Words | None:
    """How the machine multiplies words of such data and weights, if it does."""
    return words_for(windows.dtype(windows.data), windows.dtype(windows.matrix), windows.sum, dots)


def _is_of_words(windows: Windows, words: Words, lanes: int) -> bool:
    """Whether channels fill words, the weights can be packed, and a panel has columns of one group alone."""
    if windows.constant is None or windows.channels % words.group:
        return False
    return windows.group == 1 or divides(windows.columns, lanes)


class _Conv:
    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        region: Region,
        windows: Windows,
        lanes: int,
        words: Words | None = None,
    ) -> None:
        self._words = words
        self._graph, self._windows, self._dims = graph, windows, windows.dims
        self._lanes = max(1, lanes * 4 // max(4, windows.sum.numpy.itemsize))
        self._names, self._sizes = Names(), Sizes()
        self._epilogue = Epilogue(graph, weights, region.nodes, self._names)
        *self._outer, self._last = windows.axes
        constant = windows.matrix in graph.digests
        whole = windows.group > 1 and (words is not None or (constant and divides(windows.columns, self._lanes)))
        self._width, self._tiles = tiling(self._last.count, windows.columns, self._lanes, whole=whole)
        self._flat = not self._outer  # one spatial axis: the grid goes over its tiles
        self._terms = windows.channels * prod(axis.kernel for axis in windows.axes)
        dense = windows.view.strides[-1] == 1
        padded = any(axis.padded for axis in windows.axes)
        planar = not dense and not self._flat and self._last.step == 1  # to interleave them costs more than to read so
        copied = Copied(
            windows, self._outer, self._last, self._span(), self._lanes, self._names, self._sizes, self._flat, planar
        )
        self._copied = copied if padded or not dense else None
        # Rows of weights of all groups may lie a power of two apart, where few of them stay in the first cache.
        self._packed = words is not None or whole or (windows.group == 1 and constant)
        self._right = Views(graph, weights, self._dims).of(windows.matrix)

    def kernel(self) -> Kernel:
        windows = self._windows
        data, matrix, copied = windows.view.base, windows.matrix, self._copied
        kinds = [DType.I32 if self._words is not None else windows.dtype(side) for side in (data, matrix)]
        return convolution_kernel(
            "conv", windows, self._epilogue, self._sizes,
            sides=(("x", data, kinds[0]), ("w", self._matrix(), kinds[1])),
            body=(*(copied.statements() if copied else ()), *self._rows()), steps=list(self._steps()),
            vector=(*(copied.vectors if copied else ()), "j"), grain=self._grain(),
            scratch=(windows.kind, copied.elems) if copied else None,
        )  # fmt: skip

    def _matrix(self) -> int | Panels:
        if self._words is not None and self._windows.constant is not None:
            return Panels(self._windows.constant, self._width, self._words.form)
        return Panels(self._windows.matrix, self._width) if self._packed else self._right.base

    def _steps(self) -> Iterator[Step]:
        """The axes of the grid: panels outside, so that one is used for all rows before the next; or rows, where all
        panels stay in the second cache."""
        yield "n", self._windows.domain[0], 1
        if self._windows.group > 1:
            yield "g", self._windows.group, 1
        rows = [(f"o{a}", axis.count, 1) for a, axis in enumerate(self._outer)]
        rows.reverse()  # along an axis that lies before, windows meet the same rows again, which are still in cache
        if self._flat:
            rows = [("i", self._last.count, self._tiles[0])]
        panels = ("j", self._windows.columns, self._width)
        yield from (*rows, panels) if self._by_rows() else (panels, *rows)

    def _by_rows(self) -> bool:
        """Whether threads divide rows, as those of products: so that a thread reads what it wrote itself."""
        bytes = self._terms * self._windows.columns * self._windows.kind.numpy.itemsize
        counts = [axis.count if isinstance(axis.count, int) else MANY_ROWS for axis in self._windows.axes]
        return bytes <= CACHED_BYTES and prod(counts) >= MANY_ROWS

    def _grain(self) -> Dim:
        rows = self._tiles[0] if self._flat else self._last.count
        flops = self._dims.product([2 * self._width, self._terms, rows])
        return self._dims.floordiv(_WORK_FLOPS, self._dims.max(flops, 1))

    def _span(self) -> Dim:
        """Places of the last axis that windows of one piece reach."""
        count = self._tiles[0] if self._flat else self._last.count
        starts = self._windows.scaled(self._dims.sub(count, 1), self._last.stride)
        return self._dims.add(starts, (self._last.kernel - 1) * self._last.dilation + 1)

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
        body += self._epilogue.stores(spot.index, result)
        yield from body

    def _loops(self) -> Iterator[_Loop]:
        """The loops of a sum from the outside: rows of the kernel, its places, channels; those two as one if side by
        side."""
        windows, last, channels = self._windows, self._last, self._windows.channels
        kernels = [axis.kernel for axis in windows.axes]
        steps = dict(self._copied.row_steps()) if self._copied else {}
        for a, axis in enumerate(self._outer):
            step = steps.get(f"t{a}", windows.scaled(axis.step, axis.dilation))
            if axis.kernel > 1:
                yield f"t{a}", axis.kernel, step, prod(kernels[a + 1 :]) * channels
        place = self._copied.place_step if self._copied else last.step
        within = self._copied.channel_step if self._copied else windows.view.strides[-1]
        alone = prod(kernels[:-1]) == 1
        if last.dilation == 1 and place == channels and within == 1 and not (alone and self._terms > _BLOCK):
            yield "k", last.kernel * channels, 1, 1
        else:
            if last.kernel > 1:
                yield "u", last.kernel, windows.scaled(place, last.dilation), channels
            yield "k", channels, within, 1

    def _sum(self, body: list[Statement], row: str, loops: list[_Loop]) -> str:
        zero = self._names.new("zero")
        body.append(Fill(zero, self._sums(row), 0))
        sums = self._level(body, row, loops, loops, zero)
        if self._words is None:
            return sums
        total = self._names.new("total")
        body.append(Reduce(total, Tile(self._windows.sum, (row, "j")), "sum", sums, "k"))
        return self._plus_sums(body, row, total) if self._words.moved else total

    def _sums(self, row: str) -> Tile:
        """The tile that a sum is carried in: on words, a step of a map, not of the loop, adds to it."""
        return Tile(self._windows.sum, (row, "j") if self._words is None else (row, "k", "j"))

    def _plus_sums(self, body: list[Statement], row: str, total: str) -> str:
        """What the sums lack because the data was moved."""
        sums, whole = self._names.new("sums"), self._names.new("total")
        panels = (("j", self._terms + 1),)
        body.append(Load(sums, Tile(DType.I32, ("j",)), "w", Index((("j", 1), *self._group_panels()), 0, panels)))
        body.append(Map(whole, Tile(self._windows.sum, (row, "j")), "add", (total, sums)))
        return whole

    def _level(
        self, body: list[Statement], row: str, loops: list[_Loop], left: list[_Loop], start: str, when: str = ""
    ) -> str:
        """One loop of a sum, not run unless `when`. The innermost begins anew and is added to the total if the whole
        sum is long."""
        (axis, extent, _, _), *rest = left
        tile = self._sums(row)
        old, total = self._names.new("old"), self._names.new("sum")
        inner: list[Statement] = []
        within = self._meets_data(inner, row, axis) if rest else ""
        if not rest:
            new = self._step(inner, row, loops, old)
        elif len(rest) == 1 and self._terms > _BLOCK and self._windows.sum.is_float:
            zero, new = self._names.new("zero"), self._names.new("sum")
            inner.append(Fill(zero, tile, 0))
            inner.append(Map(new, tile, "add", (old, self._level(inner, row, loops, rest, zero, within))))
        else:
            new = self._level(inner, row, loops, rest, old, within)
        step = extent if not rest and self._words is None and extent <= _WRITTEN_OUT else 1
        exact = bool(when)  # a step is one or all
        body.append(Loop(axis, extent, step, tuple(inner), ((old, start),), (new,), (total,), exact=exact, when=when))
        return total

    def _meets_data(self, body: list[Statement], row: str, axis: str) -> str:
        """Whether a row of the kernel, or a place of it under some of the results, lies on the data and not beyond it,
        where it would add zeros; "" where that is not asked: rows of bytes beyond the data are not zero."""
        if self._words is not None or self._windows.fill or not self._windows.sum.is_float:
            return ""
        if axis == "u":
            return self._place_meets_data(body, row)
        window, integers = self._outer[int(axis[1:])], Integers(body, self._names, self._sizes)
        if not window.padded:
            return ""
        _, inside, _ = integers.place(window, integers.start(f"o{axis[1:]}"), integers.start(axis))
        return inside

    def _place_meets_data(self, body: list[Statement], row: str) -> str:
        """The same for the place u of the kernel under a tile of results, all of which may be beyond the data only
        where the kernel reaches that far."""
        last, rows = self._last, self._tiles[0] if self._flat else int(row[1:])
        if not any(isinstance(pad, int) and pad >= rows * last.stride for pad in (last.before, last.after)):
            return ""
        integers = Integers(body, self._names, self._sizes)
        (first, _), (tap, _) = integers.start(row), integers.start("u")
        start = integers.map("mul", (), first, integers.number(last.stride))
        reach = integers.map("mul", (), tap, integers.number(last.dilation))
        place = integers.map("sub", (), integers.map("add", (), start, reach), integers.number(last.before))
        end = integers.map("add", (), place, integers.number((rows - 1) * last.stride))
        low = integers.map("le", (), integers.number(0), end, dtype=DType.BOOL)
        high = integers.map("lt", (), place, integers.number(last.size), dtype=DType.BOOL)
        return integers.map("and", (), low, high, dtype=DType.BOOL)

    def _step(self, body: list[Statement], row: str, loops: list[_Loop], old: str) -> str:
        left, right, new = self._names.new("a"), self._names.new("b"), self._names.new("sum")
        kind = self._windows.kind
        factors = Load(right, Tile(kind, ("k", "j")), "w", self._weights_at(loops))
        data = Load(left, Tile(kind, (row, "k")), "scratch" if self._copied else "x", self._data_at(row, loops))
        body += [factors, data]
        if self._words is None:
            body.append(Dot(new, self._sums(row), left, right, old, "k"))
        else:
            body += self._words.dot(self._names, new, self._sums(row), data, factors, old)
        return new

    def _weights_at(self, loops: list[_Loop]) -> Index:
        if self._packed:
            panel = (("j", 1), *((axis, rows * self._width) for axis, _, _, rows in loops), *self._group_panels())
            ahead = 0 if self._words is None else self._words.ahead
            return Index(panel, ahead * self._width, (("j", self._terms + ahead),))
        down, along = self._right.strides
        entries: list[tuple[str, Dim]] = [("j", along)]
        entries += [(axis, self._windows.scaled(down, rows)) for axis, _, _, rows in loops]
        if self._windows.group > 1:
            entries.append(("g", self._windows.scaled(along, self._windows.columns)))
        return self._index(entries, self._right.offset)

    def _group_panels(self) -> tuple[tuple[str, int], ...]:
        """How far apart the panels of groups lie."""
        ahead = 0 if self._words is None else self._words.ahead
        return (("g", self._windows.columns * (self._terms + ahead)),) if self._windows.group > 1 else ()

    def _data_at(self, row: str, loops: list[_Loop]) -> Index:
        windows, taps = self._windows, [(axis, step) for axis, _, step, _ in loops]
        if not self._copied:
            entries = [("n", windows.view.strides[0]), *taps]
            if windows.group > 1:
                entries.append(("g", windows.scaled(windows.view.strides[-1], windows.channels)))
            entries += [(f"o{a}", windows.scaled(axis.step, axis.stride)) for a, axis in enumerate(self._outer)]
            entries.append((row, windows.scaled(self._last.step, self._last.stride)))
            return self._index(entries, windows.view.offset)
        copied = self._sized([*taps, (row, self._last.stride * self._copied.place_step)])
        return Index(copied, 0, ((row, 0),) if self._flat else ())
