"""Rows of the data in scratch, with zeros around them: what windows that reach beyond the data read instead of it.

Around bytes lies what stands for zero there (`Windows.fill`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.types import Dim, DType
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import Fill, Index, Load, Loop, Map, Size, Statement, Store, Tile
from tierup.lower.windows import Bounded, Integers, Window, Windows

_COPIED_VECTORS = 4  # at a time


class Copied(Struct, frozen=True):
    """The rows under one piece of the results: of each of the `outer` axes, as many as its kernel has, from that of
    the loop o0, o1, ...; of the last axis `span` places, from the first window of the loop i if it is `flat`.

    Element [t0, t1, ..., place, channel] lies in scratch in that order, from `offset` on; `planar`: place behind
    channel, for data whose channels lie apart. All inside the loops n and, with several groups, g.
    """

    windows: Windows
    outer: Sequence[Window]
    last: Window
    span: Dim
    lanes: int
    names: Names
    sizes: Sizes
    flat: bool = False
    planar: bool = False

    @property
    def place_step(self) -> int:
        """How far apart places of a row lie in scratch."""
        return 1 if self.planar else self.windows.channels

    @property
    def channel_step(self) -> Dim:
        return self.span if self.planar else 1

    @property
    def row_elems(self) -> Dim:
        return self.windows.dims.mul(self.span, self.windows.channels)

    @property
    def elems(self) -> Dim:
        """What it takes of scratch."""
        return self.windows.scaled(self.row_elems, self._rows)

    @property
    def vectors(self) -> tuple[str, ...]:
        """The axes of its loops whose elements lie side by side in registers."""
        if self.windows.view.strides[-1] != 1:
            zeroed = not self.flat and self.last.step == 1 and self.last.padded
            return ("q", "p") if zeroed else ("p",)
        if self._is_whole():
            return ("q",)
        return ("c",) if self.flat or not any(self._around()) else ("q", "c")

    @property
    def _rows(self) -> int:
        return prod(axis.kernel for axis in self.outer)

    def row_steps(self) -> list[tuple[str, Dim]]:
        """How far apart rows lie in scratch."""
        kernels = [axis.kernel for axis in self.outer]
        return [(f"t{a}", self.windows.scaled(self.row_elems, prod(kernels[a + 1 :]))) for a in range(len(kernels))]

    def statements(self) -> Iterator[Statement]:
        """The copy."""
        if not self._is_closed():  # where there is nothing to copy, all is padding
            empty = self.windows.dims.sub(1, self._filled())
            yield self._zeros("z", 0, self.windows.dims.product([empty, self.row_elems, self._rows]), ())
        body: list[Statement] = []
        rows = list(self._row_places(body))
        if self._is_whole():
            self._copy_whole(body, rows)
        elif not self.flat and self.windows.view.strides[-1] == 1:
            self._copy_row(body, rows)
        elif not self.flat and self.last.step == 1:
            self._copy_channels(body, rows)
        else:
            self._copy_places(body, rows)
        statements = tuple(body)
        for a in reversed(range(len(self.outer))):
            statements = (Loop(f"t{a}", self.outer[a].kernel, 1, statements),)
        yield from statements

    def _row_places(self, body: list[Statement]) -> Iterator[tuple[Bounded, Dim]]:
        """For each outer axis that is padded: where this row lies, and how far apart rows are."""
        integers = Integers(body, self.names, self.sizes)
        for a, axis in enumerate(self.outer):
            if axis.padded:
                place = integers.place(axis, integers.start(f"o{a}"), integers.start(f"t{a}"))
                yield place, axis.step

    def _is_whole(self) -> bool:
        """Whether a row of the data is one stretch of memory."""
        windows = self.windows
        return windows.group == 1 and not self.flat and self.last.step == windows.channels == windows.view.shape[-1]

    def _fixed(self) -> list[tuple[str, Dim]]:
        """What addresses in the data add beside the places that are looked up."""
        windows = self.windows
        entries: list[tuple[str, Dim]] = [("n", windows.view.strides[0])]
        if windows.group > 1:
            entries.append(("g", windows.scaled(windows.view.strides[-1], windows.channels)))
        for a, axis in enumerate(self.outer):
            if not axis.padded:
                entries.append((f"o{a}", windows.scaled(axis.step, axis.stride)))
        return entries

    def _unpadded_taps(self) -> list[tuple[str, Dim]]:
        rows = enumerate(self.outer)
        return [(f"t{a}", self.windows.scaled(axis.step, axis.dilation)) for a, axis in rows if not axis.padded]

    def _copy_whole(self, body: list[Statement], rows: list[tuple[Bounded, Dim]]) -> None:
        """Zeros, a stretch of the data, zeros."""
        channels, dims = self.windows.channels, self.windows.dims
        first, end = dims.mul(self.last.before, channels), dims.mul(self._last_place(), channels)
        offset = dims.sub(self.windows.view.offset, first)
        index = self._index([*self._fixed(), *self._unpadded_taps(), ("q", 1)], offset)
        copied: list[Statement] = []
        self._moved(copied, ("q",), index, rows, Index((*self._sized(self.row_steps()), ("q", 1))))
        step = _COPIED_VECTORS * self.lanes
        self._between_zeros(body, Loop("q", self.sizes.of(end), step, tuple(copied), begin=self.sizes.of(first)))

    def _copy_row(self, body: list[Statement], rows: list[tuple[Bounded, Dim]]) -> None:
        """Zeros, the channels of one group place by place, zeros."""
        windows, dims = self.windows, self.windows.dims
        offset = dims.sub(windows.view.offset, dims.mul(self.last.before, self.last.step))
        index = self._index([*self._fixed(), *self._unpadded_taps(), ("p", self.last.step), ("c", 1)], offset)
        target = Index((*self._sized(self.row_steps()), ("p", windows.channels), ("c", 1)))
        copied: list[Statement] = []
        self._moved(copied, ("p", "c"), index, rows, target)
        channels = Loop("c", self._channels(), self._channel_lanes(), tuple(copied))
        begin, end = self.sizes.of(self.last.before), self.sizes.of(self._last_place())
        self._between_zeros(body, Loop("p", end, 1, (channels,), begin=begin))

    def _channel_lanes(self) -> int:
        """How many channels are copied at a time: of few no more than there are, where that is a vector."""
        channels = self.windows.channels
        return channels if channels < self.lanes and channels & (channels - 1) == 0 else self.lanes

    def _last_place(self) -> Dim:
        """Where the data of a row ends in scratch."""
        dims = self.windows.dims
        places = self.last.size if self._is_closed() else dims.mul(self.last.size, self._filled())
        return dims.min(self.span, dims.add(self.last.before, places))

    def _between_zeros(self, body: list[Statement], loop: Loop) -> None:
        """A loop that copies a row, and what stands around the row."""
        channels, dims = self.windows.channels, self.windows.dims
        before, after = self._around()
        if before:
            body.append(self._zeros("q", 0, dims.mul(self.last.before, channels), self.row_steps()))
        body.append(loop)
        if after:
            end = dims.mul(self._last_place(), channels)
            body.append(self._zeros("q", end, self.row_elems, self.row_steps()))

    def _around(self) -> tuple[bool, bool]:
        """Whether zeros stand before a row that is copied as a stretch, and behind it."""
        end = self.windows.dims.mul(self._last_place(), self.windows.channels)
        return self.last.before != 0, end != self.row_elems

    def _copy_channels(self, body: list[Statement], rows: list[tuple[Bounded, Dim]]) -> None:
        """Channel by channel, of which each row is one stretch: zeros, and what lies inside over them."""
        windows, dims = self.windows, self.windows.dims
        end = self._last_place()
        if self.last.padded:
            body.append(self._zeros("q", 0, self.row_elems, self.row_steps()))
        offset = dims.sub(windows.view.offset, self.last.before)
        entries = [*self._fixed(), *self._unpadded_taps(), ("c", windows.view.strides[-1]), ("p", 1)]
        copied: list[Statement] = []
        steps = [*self.row_steps(), ("p", self.place_step), ("c", self.channel_step)]
        self._moved(copied, ("c", "p"), self._index(entries, offset), rows, Index(self._sized(steps)))
        channels = Loop("c", self._channels(), 1, tuple(copied))
        body.append(Loop("p", self.sizes.of(end), self.lanes, (channels,), begin=self.sizes.of(self.last.before)))

    def _zeros(self, axis: str, begin: Dim, end: Dim, around: Sequence[tuple[str, Dim]]) -> Loop:
        name = self.names.new("zero")
        tile = Tile(self.windows.kind, (axis,))
        store = Store("scratch", Index((*self._sized(around), (axis, 1))), name)
        step = _COPIED_VECTORS * self.lanes
        statements = (Fill(name, tile, self.windows.fill), store)
        return Loop(axis, self.sizes.of(end), step, statements, begin=self.sizes.of(begin))

    def _copy_places(self, body: list[Statement], rows: list[tuple[Bounded, Dim]]) -> None:
        """Place by place, each looked up: channels side by side, or channel by channel if places are so in the data."""
        windows, span = self.windows, self.sizes.of(self.span)
        apart = windows.view.strides[-1] != 1
        inner: list[Statement] = []
        integers = Integers(inner, self.names, self.sizes)
        start = integers.start("i") if self.flat else (integers.number(0), ())
        each = replace(self.last, dilation=1)  # every place under the windows, not only those that kernels meet
        places = [*rows, (integers.place(each, start, integers.position("p")), self.last.step)]
        axes = ("c", "p") if apart else ("p", "c")
        index = self._index(
            [*self._fixed(), *self._unpadded_taps(), ("c", windows.view.strides[-1])], windows.view.offset
        )
        target = Index((*self._sized(self.row_steps()), ("p", windows.channels), ("c", 1)))
        copied: list[Statement] = []
        self._moved(copied, axes, index, places, target)
        channels = Loop("c", self._channels(), 1 if apart else self.lanes, tuple(copied))
        body.append(Loop("p", span, self.lanes if apart else 1, (*inner, channels)))

    def _channels(self) -> Size:
        channels = self.windows.channels
        return channels if self._is_closed() else self.sizes.of(self.windows.scaled(self._filled(), channels))

    def _is_closed(self) -> bool:
        return all(isinstance(size, int) for size in self.windows.view.shape)

    def _filled(self) -> Dim:
        """1 where there is data to read, else 0."""
        return self.windows.dims.min(self.windows.dims.product(self.windows.view.shape), 1)

    def _moved(
        self, body: list[Statement], axes: tuple[str, ...], index: Index, places: list[tuple[Bounded, Dim]], to: Index
    ) -> None:
        """A tile of the data, and what is around it where a place is not inside, into scratch."""
        tile = Tile(self.windows.kind, axes)
        value, kept, zero = self.names.new("v"), self.names.new("v"), self.names.new("zero")
        at = tuple((name, self.sizes.of(step)) for (name, _, _), step in places)
        body.append(Load(value, tile, "x", index, at=at))
        if places:
            inside = self._all_inside(body, places)
            fill = Fill(zero, Tile(self.windows.kind), self.windows.fill)
            body += [fill, Map(kept, tile, "select", (inside, value, zero))]
        body.append(Store("scratch", to, kept if places else value))

    def _all_inside(self, body: list[Statement], places: list[tuple[Bounded, Dim]]) -> str:
        integers = Integers(body, self.names, self.sizes)
        (_, inside, axes), *rest = (place for place, _ in places)
        for _, other, own in rest:
            axes = tuple(dict.fromkeys((*axes, *own)))
            inside = integers.map("and", axes, inside, other, dtype=DType.BOOL)
        return inside

    def _index(self, entries: Sequence[tuple[str, Dim]], offset: Dim) -> Index:
        return Index(self._sized(entries), self.sizes.of(offset))

    def _sized(self, entries: Sequence[tuple[str, Dim]]) -> tuple[tuple[str, Size], ...]:
        return tuple((name, self.sizes.of(step)) for name, step in entries)
