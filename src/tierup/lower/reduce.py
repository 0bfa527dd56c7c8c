"""Reductions inside a nest of loops: what is carried from round to round, and what is left of it afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from tierup.ir.types import Dim, DType
from tierup.lower.axes import Axis, Nest
from tierup.lower.names import Names, Sizes
from tierup.lower.sources import Block, Value
from tierup.lower.tile import Check, Fill, Loop, Map, Reduce, Statement, Tile

_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
_BLOCK = 64  # terms that are added up one after another: more blocks cost time, longer ones an error of their root
_SOME = 8  # blocks of a loop whose extent is open, where it matters to the loops around it


def identity(op: str, dtype: DType) -> float:
    """What changes nothing."""
    if op in ("sum", "prod"):
        return float(op == "prod")
    if dtype is DType.BOOL:
        return op == "min"
    if dtype.is_float:
        return float("-inf") if op == "max" else float("inf")
    ends = np.iinfo(dtype.numpy)
    return int(ends.min if op == "max" else ends.max)


class Carried(Struct):
    """What a nest of loops carries: names inside, initial values, and what the rounds make of them."""

    inside: list[str] = field(default_factory=list)
    initial: list[str] = field(default_factory=list)
    yields: list[str] = field(default_factory=list)
    sums: set[int] = field(default_factory=set)

    def add(self, inside: str, initial: str, made: str, *, is_sum: bool = False) -> None:
        """`is_sum`: floats are added up, so that they lose less in blocks."""
        if is_sum:
            self.sums.add(len(self.inside))
        self.inside.append(inside)
        self.initial.append(initial)
        self.yields.append(made)


def looped(
    axes: Sequence[Axis], bodies: Sequence[Sequence[Statement]], carried: Carried, names: Names, sizes: Sizes
) -> tuple[Statement, list[str]]:
    """Loops inside each other, each with what it does before the next, and the names of what they carried out."""
    inside, yields = carried.inside, carried.yields
    inner, results, terms = list[Statement](), list[str](), 1
    for axis, body in zip(reversed(axes), reversed(bodies), strict=True):
        block, terms = _block(axis, terms)
        sums = tuple(inside[number] for number in sorted(carried.sums)) if block else ()
        outermost = axis is axes[0]
        initial = carried.initial if outermost else [names.new("old") for _ in inside]
        results = [names.new("total") for _ in inside]
        loop = Loop(
            axis.name,
            sizes.of(axis.extent),
            axis.step,
            (*body, *inner),
            tuple(zip(inside, initial, strict=True)),
            tuple(yields),
            tuple(results),
            sums=sums,
            block=block if sums else 0,
        )
        inner, inside, yields = [loop], initial, results
    return inner[0], results


def _block(axis: Axis, terms: int) -> tuple[int, int]:
    """After how many rounds of a loop sums begin anew, 0: not at all; and how many terms are then added to one sum.

    `terms` are those of one round. With as many blocks as there are rounds in each, the longest of both is shortest.
    """
    if not isinstance(axis.extent, int):
        return max(_BLOCK // terms, 1), _SOME
    rounds = -(-axis.extent // axis.step)
    if rounds * terms <= _BLOCK:
        return 0, max(rounds * terms, 1)
    block = max(_BLOCK // terms, math.isqrt(rounds), 1)
    return block, -(-rounds // block)


class Folds:
    """The reductions of one pass: `add` each inside the loops, then `finish` each with what came out of them."""

    def __init__(self, nest: Nest, names: Names, sizes: Sizes, outer: Block, inner: Block) -> None:
        self._nest, self._names, self._sizes = nest, names, sizes
        self._outer, self._inner = outer, inner
        self.carried = Carried()
        self._lane = "" if nest.lane is None or nest.lane_in_grid else nest.lane.name

    def add(self, op: str, value: Value) -> None:
        """sum, prod, max, min: one element for each lane is carried."""
        name, tile = value
        wide = self._wide(tile)
        old, start, new = (self._names.new(hint) for hint in ("old", "start", "new"))
        self._outer.statements.append(Fill(start, wide, identity(op, tile.dtype)))
        self._inner.statements.append(Map(new, wide, _COMBINE[op], (old, name)))
        self.carried.add(old, start, new, is_sum=op == "sum" and tile.dtype.is_float)

    def finish(self, op: str, tile: Tile, totals: list[str]) -> Value:
        """The result of `add`, whose argument was `tile`; takes what it carried off the front of `totals`."""
        total = totals.pop(0)
        return self._across(op, total, self._wide(tile))

    def _wide(self, tile: Tile) -> Tile:
        """Where lanes are reduced, each carries its own."""
        return Tile(tile.dtype, (self._lane,)) if self._lane else tile

    def _across(self, op: str, name: str, tile: Tile) -> Value:
        if not self._lane:
            return name, tile
        result = self._names.new("r")
        self._outer.statements.append(Reduce(result, Tile(tile.dtype), op, name, self._lane))
        return result, Tile(tile.dtype)

    def add_place(self, op: str, value: Value, place: Value, *, last: bool) -> None:
        """argmax and argmin: the best so far and where it was, -1 before the first."""
        block, axes = self._inner, self._wide(value[1]).axes or place[1].axes
        (name, wide), (there, where) = (spread(block, self._names, v, axes) for v in (value, place))
        best, start, spot, nowhere = (self._names.new(hint) for hint in ("best", "start", "spot", "nowhere"))
        self._outer.statements.append(Fill(start, wide, identity(op, wide.dtype)))
        self._outer.statements.append(Fill(nowhere, where, -1))
        truth, nought = Tile(DType.BOOL, axes), self._names.new("zero")
        block.statements.append(Fill(nought, where, 0))
        better = self._map(block, "lt", truth, spot, nought)
        better = self._map(block, "or", truth, better, self._better(op, best, name, wide, last=last))
        new = self._map(block, "select", wide, better, name, best)
        self.carried.add(best, start, new)
        self.carried.add(spot, nowhere, self._map(block, "select", where, better, there, spot))

    def _better(self, op: str, best: str, name: str, wide: Tile, *, last: bool) -> str:
        """Whether an element wins over the best before it. The first NaN wins over all, or with `last` the last one."""
        block, truth = self._inner, Tile(DType.BOOL, wide.axes)
        sides = (best, name) if op == "max" else (name, best)
        won = self._map(block, "le" if last else "lt", truth, *sides)
        if not wide.dtype.is_float:
            return won
        number_before = self._map(block, "eq", truth, best, best)
        is_nan = self._map(block, "not", truth, self._map(block, "eq", truth, name, name))
        if last:
            return self._map(block, "or", truth, is_nan, self._map(block, "and", truth, number_before, won))
        return self._map(block, "and", truth, number_before, self._map(block, "or", truth, is_nan, won))

    def finish_place(self, op: str, tile: Tile, totals: list[str], extent: Dim, *, last: bool) -> Value:
        """The result of `add_place`; of nothing there is none, and the call ends."""
        block, best, spot = self._outer, totals.pop(0), totals.pop(0)
        result, where = spot, Tile(DType.I64, self._wide(tile).axes)
        if self._lane:
            truth = Tile(DType.BOOL, where.axes)
            top, _ = self._across(op, best, Tile(tile.dtype, where.axes))
            wins = self._map(block, "eq", truth, best, top)
            if tile.dtype.is_float:
                is_nan = self._map(block, "not", truth, self._map(block, "eq", truth, best, best))
                wins = self._map(block, "or", truth, wins, is_nan)
            nought, nowhere = self._names.new("zero"), self._names.new("nowhere")
            block.statements.append(Fill(nought, where, 0))
            block.statements.append(Fill(nowhere, where, -1 if last else 2**63 - 1))
            wins = self._map(block, "and", truth, wins, self._map(block, "le", truth, nought, spot))
            chosen = self._map(block, "select", where, wins, spot, nowhere)
            result, where = self._across("max" if last else "min", chosen, where)
        if not isinstance(extent, int) or extent == 0:
            block.statements.append(Check(result, self._sizes.of(extent)))
        return result, where

    def _map(self, block: Block, op: str, tile: Tile, *arguments: str) -> str:
        name = self._names.new("t")
        block.statements.append(Map(name, tile, op, arguments))
        return name


def spread(block: Block, names: Names, value: Value, axes: tuple[str, ...]) -> Value:
    """A tile repeated along those of `axes` that it does not have."""
    name, tile = value
    if set(axes) <= set(tile.axes):
        return value
    everywhere, wide = names.new("all"), names.new("wide")
    block.statements.append(Fill(everywhere, Tile(DType.BOOL, axes), True))
    block.statements.append(Map(wide, Tile(tile.dtype, axes), "select", (everywhere, name, name)))
    return wide, Tile(tile.dtype, axes)
