"""A convolution of bytes, of every channel by itself -> one tile program: four rows of the kernel in one word.

What lies under a row of results is first written to scratch as words, each of the bytes at one place and channel in up
to four rows, with what stands for zero around them (`Windows.fill`). Then every place of the kernel along the row is
one product of words (`lower/words.py`) for a vector of channels, whatever was padding.

Bytes are multiplied unsigned by signed: where both sides are of one kind, the data is moved by 128 as it is copied, and
sums begin with what that adds too much, taken off. Where the machine has no such product, words hold one row each, and
are multiplied as integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim, DType
from tierup.lower.channels import Channels
from tierup.lower.convolution import Step, convolution_kernel
from tierup.lower.epilogue import Epilogue
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import Fill, Index, Load, Loop, Map, Size, Statement, Store, Tile
from tierup.lower.tiling import divided
from tierup.lower.views import Views
from tierup.lower.windows import Bounded, Integers, Windows
from tierup.lower.words import Words
from tierup.plan.regions import Region

_MOST_ROWS = 8  # sums of a tile: with the words under their windows, and those of the kernel, they fill the registers
_OPEN_ROWS = (_MOST_ROWS, 4, 1)  # of a row of results whose length is open
_BLOCK_VECTORS = 4  # at most of one step of the grid: 64 bytes of each place, a line of the cache
_WORK_ELEMS = 16384  # products; less is not worth a thread's while

_Row = tuple[int, ...]  # a row of the kernel: a position along each axis but the last


def lower_depthwise_bytes(
    graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int, words: Words | None
) -> Kernel:
    """The kernel of a conv region of bytes with as many groups as channels and results; `words` says how the machine
    multiplies them, if it does."""
    return _Depthwise(graph, weights, region, windows, lanes, words).kernel()


class _Depthwise:
    def __init__(
        self, graph: Graph, weights: Weights, region: Region, windows: Windows, lanes: int, words: Words | None
    ) -> None:
        self._windows, self._dims, self._words = windows, windows.dims, words
        self._names, self._sizes = Names(), Sizes()
        self._epilogue = Epilogue(graph, weights, region.nodes, self._names)
        *self._outer, self._last = windows.axes
        rows = list(product(*(range(axis.kernel) for axis in self._outer)))
        slots = 1 if words is None else words.group
        self._words_of = [rows[first : first + slots] for first in range(0, len(rows), slots)]
        self._moved = words is not None and words.moved
        self._channels = Channels.divided(windows.group, lanes, _BLOCK_VECTORS)
        self._width = self._channels.at_once  # in scratch
        self._right = Views(graph, weights, self._dims).of(windows.matrix)
        starts = windows.scaled(self._dims.sub(self._last.count, 1), self._last.stride)
        self._span = self._dims.add(starts, (self._last.kernel - 1) * self._last.dilation + 1)
        self._plane = windows.scaled(self._span, self._width)  # words of scratch that the rows of one word take

    def kernel(self) -> Kernel:
        windows = self._windows
        sides = (windows.data, windows.matrix)  # in words they are bytes, whatever those stand for
        kinds = [windows.dtype(side) if self._words is None else DType.U8 for side in sides]
        return convolution_kernel(
            "depthwise_bytes", windows, self._epilogue, self._sizes,
            sides=(("x", windows.view.base, kinds[0]), ("w", self._right.base, kinds[1])),
            body=list(self._statements()), steps=list(self._steps()), vector=("j",), grain=self._grain(),
            scratch=(DType.I32, windows.scaled(self._plane, len(self._words_of))),
        )  # fmt: skip

    def _steps(self) -> Iterator[Step]:
        """The axes of the grid; threads divide rows, or channels where there are more of those, as in depthwise.py."""
        rows = [(f"o{a}", axis.count, 1) for a, axis in enumerate(self._outer)]
        channels, count = self._channels.step, self._channels.count
        places = prod(each if isinstance(each, int) else count for each in self._windows.domain[:-1])
        yield ("n", self._windows.domain[0], 1)
        yield from (*rows, channels) if places >= count else (channels, *rows)

    def _grain(self) -> Dim:
        taps = prod(axis.kernel for axis in self._windows.axes)
        work = self._dims.product([self._width, taps, self._last.count])
        return self._dims.floordiv(_WORK_ELEMS, self._dims.max(work, 1))

    def _statements(self) -> Iterator[Statement]:
        yield from self._copy()
        body: list[Statement] = []
        factors = self._factors(body)
        start = self._start(body, factors)
        begin: Dim = 0
        count = self._last.count
        tiles = divided(count, _MOST_ROWS) if isinstance(count, int) else _OPEN_ROWS
        for rows in tiles:
            whole = self._dims.mul(self._dims.floordiv(self._dims.sub(count, begin), rows), rows)
            end = count if rows == tiles[-1] else self._dims.add(begin, whole)
            if begin != end:
                extent, first = self._sizes.of(end), self._sizes.of(begin)
                inner = tuple(self._tile(f"i{rows}", factors, start))
                body.append(Loop(f"i{rows}", extent, rows, inner, begin=first, exact=True))
            begin = end
        yield from self._channels.each(body)

    # Words of the data.

    def _copy(self) -> Iterator[Statement]:
        """What stands for zero, the rows under the windows, and again what stands for zero."""
        dims, last = self._dims, self._last
        body: list[Statement] = []
        places = self._row_places(body)
        masks = [self._mask(body, rows, places) for rows in self._words_of]
        yield from body
        shape = self._windows.view.shape
        size: Dim = last.size
        if not all(isinstance(each, int) for each in shape):  # nothing is read of data without elements
            size = dims.mul(size, dims.min(dims.product(shape), 1))
        first = dims.min(last.before, self._span)
        end = dims.min(self._span, dims.add(last.before, size))
        if first != 0:
            yield self._around(0, first)
        yield self._copied(first, end, places, masks)
        if end != self._span:
            yield self._around(end, self._span)

    def _row_places(self, body: list[Statement]) -> dict[tuple[int, int], Bounded]:
        """For each padded axis and position in the kernel: where that lies in the data."""
        integers = Integers(body, self._names, self._sizes)
        return {
            (a, tap): integers.place(axis, integers.start(f"o{a}"), (integers.number(tap), ()))
            for a, axis in enumerate(self._outer)
            if axis.padded
            for tap in range(axis.kernel)
        }

    def _mask(
        self, body: list[Statement], rows: Sequence[_Row], places: dict[tuple[int, int], Bounded]
    ) -> tuple[str, str] | None:
        """The bits of a word that are read from the data, and what the others are; None where all are read."""
        if not places:
            return None
        kept, others = "", ""
        for slot, row in enumerate(rows):
            inside = ""
            for found in (places[a, tap] for a, tap in enumerate(row) if (a, tap) in places):
                inside = self._map(body, "and", inside, found[1], dtype=DType.BOOL) if inside else found[1]
            none, byte = self._word(body, 0), self._word(body, (0xFF if self._words else -1) << 8 * slot)
            kept = self._joined(body, kept, self._map(body, "select", inside, byte, none))
            fill = self._word(body, self._fill() << 8 * slot)
            others = self._joined(body, others, self._map(body, "select", inside, none, fill))
        return kept, others

    def _joined(self, body: list[Statement], left: str, right: str, axes: tuple[str, ...] = ()) -> str:
        return self._map(body, "or", left, right, axes=axes) if left else right

    def _fill(self) -> int:
        """What stands for zero, as it lies in scratch."""
        fill = self._windows.fill
        return fill if self._words is None else (fill % 256) ^ (0x80 if self._moved else 0)

    def _around(self, begin: Dim, end: Dim) -> Statement:
        body: list[Statement] = []
        for number, rows in enumerate(self._words_of):
            word = sum(self._fill() << 8 * slot for slot in range(len(rows)))
            body.append(Store("scratch", self._scratch_at(number), self._word(body, word, ("j",))))
        inner = tuple(self._channels.each(body))
        return Loop("p", self._sizes.of(end), 1, inner, begin=self._sizes.of(begin))

    def _copied(
        self, begin: Dim, end: Dim, places: dict[tuple[int, int], Bounded], masks: Sequence[tuple[str, str] | None]
    ) -> Statement:
        body: list[Statement] = []
        for number, (rows, mask) in enumerate(zip(self._words_of, masks, strict=True)):
            word = self._packed(body, [self._data(row, places) for row in rows])
            if self._moved:
                word = self._map(body, "xor", word, self._word(body, 0x80808080), axes=("j",))
            if mask is not None:
                word = self._map(body, "and", word, mask[0], axes=("j",))
                word = self._map(body, "or", word, mask[1], axes=("j",))
            body.append(Store("scratch", self._scratch_at(number), word))
        inner = tuple(self._channels.each(body))
        return Loop("p", self._sizes.of(end), 1, inner, begin=self._sizes.of(begin))

    def _packed(self, body: list[Statement], bytes_of: Sequence[Load]) -> str:
        """Bytes side by side in words."""
        word = ""
        for slot, load in enumerate(bytes_of):
            body.append(load)
            part = load.out
            if slot:
                part = self._map(body, "shl", part, self._word(body, 8 * slot), axes=("j",))
            word = self._joined(body, word, part, ("j",))
        return word

    def _data(self, row: _Row, places: dict[tuple[int, int], Bounded]) -> Load:
        """The bytes of one row at the place p, which counts from the first that any window covers."""
        windows, dims = self._windows, self._dims
        entries = [("n", windows.view.strides[0]), *self._channels.apart(windows.view.strides[-1])]
        entries.append(("p", self._last.step))
        offset = dims.sub(windows.view.offset, dims.mul(self._last.before, self._last.step))
        at: list[tuple[str, Size]] = []
        for a, (axis, tap) in enumerate(zip(self._outer, row, strict=True)):
            if axis.padded:
                at.append((places[a, tap][0], self._sizes.of(axis.step)))
            else:
                entries.append((f"o{a}", windows.scaled(axis.step, axis.stride)))
                offset = dims.add(offset, dims.mul(axis.step, tap * axis.dilation))
        tile = Tile(DType.I32, ("j",))
        return Load(self._names.new("v"), tile, "x", self._index(entries, offset), at=tuple(at))

    def _scratch_at(self, number: int) -> Index:
        offset = self._windows.scaled(self._plane, number) if number else 0
        return Index((("p", self._width), ("j", 1)), self._sizes.of(offset), self._from_the_vector())

    def _from_the_vector(self) -> tuple[tuple[str, Size], ...]:
        """Scratch has a block of channels; without blocks, those of the vector of the grid."""
        return () if self._channels.block else (("j", 0),)

    # Words of the kernel, and sums.

    def _factors(self, body: list[Statement]) -> dict[tuple[int, int], str]:
        """For each word of rows and each place along the row: the kernel's bytes."""
        down, along = self._right.strides
        kernels = [axis.kernel for axis in self._outer]
        found = {}
        for number, rows in enumerate(self._words_of):
            for tap in range(self._last.kernel):
                loads = []
                for row in rows:
                    flat = sum(each * prod(kernels[a + 1 :]) for a, each in enumerate(row)) * self._last.kernel + tap
                    offset = self._dims.add(self._right.offset, self._dims.mul(down, flat))
                    index = self._index(self._channels.apart(along), offset)
                    loads.append(Load(self._names.new("w"), Tile(DType.I32, ("j",)), "w", index))
                found[number, tap] = self._packed(body, loads)
        return found

    def _start(self, body: list[Statement], factors: dict[tuple[int, int], str]) -> str:
        """What sums begin with: less all the 128s, where the data was moved by them."""
        zero = self._word(body, 0, ("j",))
        if not self._moved:
            return zero
        moved, total = self._word(body, 0x80808080, ("j",)), zero
        for factor in factors.values():
            total = self._dot(body, moved, factor, total, ("j",))
        return self._map(body, "sub", zero, total, axes=("j",))

    def _tile(self, row: str, factors: dict[tuple[int, int], str], start: str) -> Iterator[Statement]:
        body: list[Statement] = []
        total = start
        for (number, tap), factor in factors.items():
            ahead = self._dims.add(
                self._windows.scaled(self._plane, number) if number else 0, tap * self._last.dilation * self._width
            )
            entries: tuple[tuple[str, Size], ...] = ((row, self._last.stride * self._width), ("j", 1))
            index = Index(entries, self._sizes.of(ahead), self._from_the_vector())
            value = self._names.new("v")
            body.append(Load(value, Tile(DType.I32, (row, "j")), "scratch", index))
            total = self._dot(body, value, factor, total, (row, "j"))
        spot = self._channels.inside(self._windows.spot(self._sizes, row, grouped=False))
        result = self._epilogue.write(body, total, DType.I32, spot)
        body += self._epilogue.stores(spot.index, result)
        yield from body

    def _dot(self, body: list[Statement], data: str, factor: str, total: str, axes: tuple[str, ...]) -> str:
        if self._words is None:
            return self._map(body, "add", total, self._map(body, "mul", data, factor, axes=axes), axes=axes)
        sides = (factor, data) if self._words.swapped else (data, factor)
        return self._map(body, self._words.op, *sides, total, axes=axes)

    # Small statements.

    def _map(
        self, body: list[Statement], op: str, *args: str, axes: tuple[str, ...] = (), dtype: DType = DType.I32
    ) -> str:
        name = self._names.new("m")
        body.append(Map(name, Tile(dtype, axes), op, args))
        return name

    def _word(self, body: list[Statement], bits: int, axes: tuple[str, ...] = ()) -> str:
        name = self._names.new("c")
        body.append(Fill(name, Tile(DType.I32, axes), bits - (1 << 32) if bits >= 1 << 31 else bits))
        return name

    def _index(self, entries: Sequence[tuple[str, Dim]], offset: Dim) -> Index:
        return Index(tuple((name, self._sizes.of(step)) for name, step in entries), self._sizes.of(offset))
