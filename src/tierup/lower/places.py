"""A places region -> one tile program: where the k best elements of a row are, best first, found one after another.

A row is divided into blocks, and the best of each is known with its place. Each round takes the best of the blocks'
best, and looks for the next one in its block alone: better ones come first, of equals the first, NaN as the largest.
What a block has left is what comes behind the last one that was taken from it. Rows are divided among threads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.lower.axes import LANE
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.reduce import identity
from tierup.lower.sources import stored_dtype, tile_dtype
from tierup.lower.tile import (
    Buffer,
    Check,
    Convert,
    Fill,
    Grid,
    Index,
    Load,
    Loop,
    Map,
    Position,
    Reduce,
    Statement,
    Store,
    Tile,
    TileProgram,
)
from tierup.lower.windows import Integers
from tierup.plan.regions import Region
from tierup.plan.strides import Strides

_GRAIN_ELEMS = 8192  # elements looked at that are worth a thread's while
_VECTORS = 2  # of a step
_NOWHERE = 2**31 - 1  # the place of what is not there
_LEAST_BLOCK, _MOST_BLOCK = 64, 1024  # elements; about as many as there are blocks is best
_OPEN_BLOCK = 128
_BLOCKS = "q"  # the axis of the blocks' best

_Found = tuple[str, str]  # a value and its place
_Reads = Callable[[list[Statement]], _Found]
_Counts = Callable[[list[Statement], str, str], str]  # which of values at places count


def lower_places(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a places region: one node over [rows, axis]."""
    node = graph.nodes[region.nodes[0]]
    (source,), (result,) = node.inputs, node.outputs
    assert source is not None
    assert result is not None
    type = graph.type(source)
    assert isinstance(type, TensorType)
    rows, extent = Strides(dims).times(*region.domain[:-1]), region.domain[-1]
    found = _Places(type.dtype, bool(node.attrs["largest"]), int(node.attrs["k"]), extent, dims, lanes)
    program = found.program(rows)
    grain = dims.floordiv(_GRAIN_ELEMS, dims.max(found.looked_at(), 1))
    return Kernel(
        program, (source, result), tuple(found.sizes.dims), ((rows, 1),), grain, scratch_bytes=found.scratch_bytes()
    )


class _Places:
    def __init__(self, dtype: DType, largest: bool, count: int, extent: Dim, dims: DimBuilder, lanes: int) -> None:
        self._stored, self._dtype, self._largest = stored_dtype(dtype), tile_dtype(dtype), largest
        self._op = "max" if largest else "min"
        self._count, self._extent, self._dims, self._lanes = count, extent, dims, lanes
        self._names, self.sizes = Names(), Sizes()
        self._block = _block(extent)
        self._blocks = dims.ceildiv(extent, self._block)

    def program(self, rows: Dim) -> TileProgram:
        body: list[Statement] = [self._first_bests()]
        body.append(Loop("r0", self._count, 1, tuple(self._round())))
        grid = Grid("g0", self.sizes.of(rows), 1)
        buffers = (
            Buffer("source", self._stored),
            Buffer("result", DType.I64, "out"),
            Buffer("spots", DType.I32, "scratch"),
            Buffer("values", self._dtype, "scratch"),
        )
        return TileProgram("places", buffers, len(self.sizes.dims), (grid,), tuple(body), (LANE, _BLOCKS))

    def looked_at(self) -> Dim:
        """Elements of a row, some of them again and again."""
        again = self._dims.mul(self._dims.add(self._blocks, self._block), self._count)
        return self._dims.add(self._extent, again)

    def scratch_bytes(self) -> Dim:
        """The places of the blocks' best, then their values."""
        values = self._dims.mul(self._blocks, self._dtype.numpy.itemsize)
        return self._dims.add(self._dims.mul(self._room(), DType.I32.numpy.itemsize), values)

    def _room(self) -> Dim:
        """For places: an even number of them, so that values of eight bytes lie where they may."""
        return self._dims.mul(self._dims.ceildiv(self._blocks, 2), 2)

    # The best of a block, and of all blocks.

    def _first_bests(self) -> Loop:
        body: list[Statement] = []
        block, _ = self._integers(body).start("b")
        self._keep(body, block, self._best_of_block(body, block))
        return Loop("b", self.sizes.of(self._blocks), 1, tuple(body))

    def _round(self) -> list[Statement]:
        body: list[Statement] = []
        top, place = self._best(body, _BLOCKS, self._blocks, self._lanes, self._bests, self._is_somewhere)
        body.append(Check(place, self.sizes.of(self._extent)))
        wide, integers = self._names.new("place"), self._integers(body)
        body.append(Convert(wide, Tile(DType.I64), place))
        body.append(Store("result", Index((("g0", self._count), ("r0", 1))), wide))
        block = integers.map("div", (), wide, integers.number(self._block))
        self._keep(body, block, self._best_of_block(body, block, (top, place)))
        return body

    def _bests(self, body: list[Statement]) -> _Found:
        value, spot = self._names.new("x"), self._names.new("here")
        offset = self._dims.floordiv(self._dims.mul(self._room(), 4), self._dtype.numpy.itemsize)
        values = Index(((_BLOCKS, 1),), self.sizes.of(offset))
        body.append(Load(value, Tile(self._dtype, (_BLOCKS,)), "values", values))
        body.append(Load(spot, Tile(DType.I32, (_BLOCKS,)), "spots", Index(((_BLOCKS, 1),))))
        return value, spot

    def _is_somewhere(self, body: list[Statement], _: str, here: str) -> str:
        return self._map(body, "lt", here, self._filled(body, _NOWHERE), axis=_BLOCKS)

    def _keep(self, body: list[Statement], block: str, found: _Found) -> None:
        top, place = found
        offset = self._dims.floordiv(self._dims.mul(self._room(), 4), self._dtype.numpy.itemsize)
        body.append(Store("values", Index((), self.sizes.of(offset)), top, at=((block, 1),)))
        body.append(Store("spots", Index(), place, at=((block, 1),)))

    def _best_of_block(self, body: list[Statement], block: str, last: _Found | None = None) -> _Found:
        """What comes first in a block; behind the last one that was taken from it. The last block begins sooner, where
        it would end beyond the row, and does not count what is another's."""
        integers, length = self._integers(body), self._dims.min(self._extent, self._block)
        base = integers.map("mul", (), block, integers.number(self._block))
        start = integers.map("min", (), base, integers.number(self._dims.sub(self._extent, length)))
        own, start_place = self._names.new("own"), self._names.new("start")
        body.append(Convert(own, Tile(DType.I32), base))
        body.append(Convert(start_place, Tile(DType.I32), start))
        wide = Tile(DType.I32, (LANE,))

        def read(inner: list[Statement]) -> _Found:
            value, offset, here = (self._names.new(name) for name in ("x", "offset", "here"))
            row = Index((("g0", self.sizes.of(self._extent)), (LANE, 1)))
            inner.append(Load(value, Tile(self._dtype, (LANE,)), "source", row, at=((start, 1),)))
            inner.append(Position(offset, wide, LANE))
            inner.append(Map(here, wide, "add", (offset, start_place)))
            return value, here

        def counts(inner: list[Statement], value: str, here: str) -> str:
            inside = self._map(inner, "le", own, here, axis=LANE)
            if last is None:
                return inside
            return self._map(inner, "and", inside, self._behind(inner, value, here, last), axis=LANE)

        return self._best(body, LANE, length, _VECTORS * self._lanes, read, counts)

    def _best(self, body: list[Statement], axis: str, extent: Dim, step: int, read: _Reads, counts: _Counts) -> _Found:
        """The first of the best of what counts, and its place; nowhere if nothing does."""
        wide, where = Tile(self._dtype, (axis,)), Tile(DType.I32, (axis,))
        none, nowhere, zeros = (self._names.new(name) for name in ("none", "nowhere", "zeros"))
        body += [Fill(none, wide, identity(self._op, self._dtype)), Fill(nowhere, where, -1), Fill(zeros, where, 0)]
        inner: list[Statement] = []
        best, spot, new_best, new_spot, bests, spots = (
            self._names.new(name) for name in ("best", "spot", "best", "spot", "bests", "spots")
        )
        value, here = read(inner)
        allowed = counts(inner, value, here)
        first = self._map(inner, "lt", spot, zeros, axis=axis)
        better = self._map(inner, "or", first, self._is_better(inner, axis, value, best), axis=axis)
        taken = self._map(inner, "and", allowed, better, axis=axis)
        inner.append(Map(new_best, wide, "select", (taken, value, best)))
        inner.append(Map(new_spot, where, "select", (taken, here, spot)))
        carried = ((best, none), (spot, nowhere))
        body.append(
            Loop(axis, self.sizes.of(extent), step, tuple(inner), carried, (new_best, new_spot), (bests, spots))
        )
        return self._first_of(body, axis, bests, spots, zeros, none)

    def _first_of(self, body: list[Statement], axis: str, bests: str, spots: str, zeros: str, none: str) -> _Found:
        """Of the lanes' best, the first of the best."""
        valid = self._map(body, "le", zeros, spots, axis=axis)
        far = self._names.new("far")
        body.append(Fill(far, Tile(DType.I32, (axis,)), _NOWHERE))
        top = self._names.new("top")
        if not self._dtype.is_float or self._largest:
            body.append(Reduce(top, Tile(self._dtype), self._op, bests, axis))
            wins = self._map(body, "eq", bests, top, axis=axis)
            if self._dtype.is_float:
                wins = self._map(body, "or", wins, self._is_nan(body, axis, bests), axis=axis)
            return top, self._first(body, axis, self._map(body, "and", valid, wins, axis=axis), spots, far)
        number = self._map(body, "eq", bests, bests, axis=axis)
        numbers, least, nan = (self._names.new(name) for name in ("numbers", "least", "nan"))
        body.append(Map(numbers, Tile(self._dtype, (axis,)), "select", (number, bests, none)))
        body.append(Reduce(least, Tile(self._dtype), "min", numbers, axis))
        wins = self._map(body, "eq", bests, least, axis=axis)
        number_place = self._first(body, axis, self._map(body, "and", valid, wins, axis=axis), spots, far)
        missing = self._map(body, "and", valid, self._is_nan(body, axis, bests), axis=axis)
        nan_place = self._first(body, axis, missing, spots, far)
        body.append(Fill(nan, Tile(self._dtype), float("nan")))
        some = self._map(body, "lt", number_place, self._filled(body, _NOWHERE))
        place = self._names.new("place")
        body.append(Map(place, Tile(DType.I32), "select", (some, number_place, nan_place)))
        body.append(Map(top, Tile(self._dtype), "select", (some, least, nan)))
        return top, place

    def _first(self, body: list[Statement], axis: str, wins: str, spots: str, far: str) -> str:
        chosen, place = self._names.new("chosen"), self._names.new("place")
        body.append(Map(chosen, Tile(DType.I32, (axis,)), "select", (wins, spots, far)))
        body.append(Reduce(place, Tile(DType.I32), "min", chosen, axis))
        return place

    # What comes before what.

    def _behind(self, body: list[Statement], value: str, here: str, last: _Found) -> str:
        """Worse than the last one found, or as good and further on."""
        top, place = last
        sides = (value, top) if self._largest else (top, value)
        further = self._map(body, "lt", place, here, axis=LANE)
        equal = self._map(body, "and", self._map(body, "eq", value, top, axis=LANE), further, axis=LANE)
        behind = self._map(body, "or", self._map(body, "lt", *sides, axis=LANE), equal, axis=LANE)
        if not self._dtype.is_float:
            return behind
        number, last_number = self._map(body, "eq", value, value, axis=LANE), self._map(body, "eq", top, top)
        if self._largest:  # NaN comes first
            later = self._map(body, "or", number, further, axis=LANE)
            after_nan = self._map(body, "and", later, self._map(body, "not", last_number), axis=LANE)
        else:  # NaN comes last
            later = self._map(body, "or", further, last_number, axis=LANE)
            after_nan = self._map(body, "and", later, self._map(body, "not", number, axis=LANE), axis=LANE)
        return self._map(body, "or", behind, after_nan, axis=LANE)

    def _is_better(self, body: list[Statement], axis: str, value: str, best: str) -> str:
        """Better than the best of its lane so far, which came before it."""
        if not self._dtype.is_float:
            return self._map(body, "lt", *((best, value) if self._largest else (value, best)), axis=axis)
        number = self._map(body, "eq", best, best, axis=axis)
        if self._largest:
            at_most = self._map(body, "le", value, best, axis=axis)
            return self._map(body, "and", number, self._map(body, "not", at_most, axis=axis), axis=axis)
        real = self._map(body, "eq", value, value, axis=axis)
        beats_nan = self._map(body, "and", self._map(body, "not", number, axis=axis), real, axis=axis)
        return self._map(body, "or", self._map(body, "lt", value, best, axis=axis), beats_nan, axis=axis)

    def _is_nan(self, body: list[Statement], axis: str, value: str) -> str:
        return self._map(body, "not", self._map(body, "eq", value, value, axis=axis), axis=axis)

    def _map(self, body: list[Statement], op: str, *arguments: str, axis: str = "") -> str:
        """A bool, or bools along an axis."""
        name = self._names.new("p")
        body.append(Map(name, Tile(DType.BOOL, (axis,) if axis else ()), op, arguments))
        return name

    def _filled(self, body: list[Statement], number: int) -> str:
        name = self._names.new("c")
        body.append(Fill(name, Tile(DType.I32), number))
        return name

    def _integers(self, body: list[Statement]) -> Integers:
        return Integers(body, self._names, self.sizes)


def _block(extent: Dim) -> int:
    """Elements of a block: a power of two near the root of all."""
    if not isinstance(extent, int):
        return _OPEN_BLOCK
    return max(_LEAST_BLOCK, min(_MOST_BLOCK, 1 << isqrt(max(extent, 1)).bit_length()))
