"""How a region was compiled: what its tile program shows of the choices that were made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tierup.explain.probe import Passed
from tierup.ir.graph import Graph
from tierup.ir.types import Dim, Sym
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.tile import Arg, Dot, Loop, Map, Size, Statement, TileProgram
from tierup.runtime.standins import results_of

_PIECES_PER_THREAD = 16  # as the thread pool cuts a range


class Axis(msgspec.Struct, frozen=True):
    """A dimension of the grid, or a loop in it: how far it runs in this call (None: not known), and by what step."""

    axis: str
    extent: int | None
    step: int


class Argument(msgspec.Struct, frozen=True):
    """A size that the kernel takes as an argument: its name in the model, if it has one; its number in this call."""

    name: str
    number: int | None


class Packed(msgspec.Struct, frozen=True):
    """A constant that lies in panels of so many columns."""

    value: str
    width: int
    form: str = ""


class Recipe(msgspec.Struct, frozen=True):
    """The choices in one kernel, and what they come to in this call.

    `tiles` are the elements that each product is summed up in at a time, `may_replace` the values that a result may be
    written over. Figures of the call are None where it never came to the kernel.
    """

    grid: tuple[Axis, ...]
    loops: tuple[Axis, ...]
    tiles: tuple[tuple[int, ...], ...]
    vector: tuple[str, ...]
    panels: tuple[Packed, ...]
    may_replace: tuple[str, ...]
    open_sizes: tuple[Argument, ...]
    scratch_bytes: int | None
    steps: int | None
    grain: int | None
    pieces: int | None
    threads: int | None


def recipe_of(graph: Graph, kernel: Kernel, passed: Passed | None, threads: int) -> Recipe:
    """What was chosen for a kernel. `threads` are those of the pool."""
    program = kernel.program
    loops = list(_loops(program.body))
    pieces = None if passed is None else _pieces(passed, threads)
    return Recipe(
        grid=tuple(Axis(g.axis, _number(g.extent, passed), g.step) for g in program.grid),
        loops=tuple(dict.fromkeys(Axis(loop.axis, _number(loop.extent, passed), loop.step) for loop in loops)),
        tiles=tuple(dict.fromkeys(_tiles(program, loops))),
        vector=program.vector,
        panels=tuple(
            Packed(graph.value_name(buffer.value), buffer.width, buffer.form)
            for buffer in kernel.buffers
            if isinstance(buffer, Panels)
        ),
        may_replace=tuple(graph.value_name(v) for result in results_of(kernel) for v in kernel.replaces(result)),
        open_sizes=tuple(
            Argument(_name(graph, dim), passed.sizes[index] if passed else None)
            for index, dim in enumerate(kernel.sizes)
        ),
        scratch_bytes=passed.scratch_bytes if passed else None,
        steps=passed.steps if passed else None,
        grain=passed.grain if passed else None,
        pieces=pieces,
        threads=min(pieces, threads) if pieces else None,
    )


def _pieces(passed: Passed, threads: int) -> int:
    """Into how many pieces the pool cuts the range."""
    most = 1 if threads == 1 else threads * _PIECES_PER_THREAD
    return min(max(passed.steps // max(passed.grain, 1), 1), most)  # 0: a step alone is worth a thread


def _loops(body: Sequence[Statement]) -> Iterator[Loop]:
    for statement in body:
        if isinstance(statement, Loop):
            yield statement
            yield from _loops(statement.body)


def _tiles(program: TileProgram, loops: Sequence[Loop]) -> Iterator[tuple[int, ...]]:
    """The sizes of the tiles that products are summed up in."""
    steps = {**{grid.axis: grid.step for grid in program.grid}, **{loop.axis: loop.step for loop in loops}}
    for loop in loops:
        for statement in loop.body:
            if isinstance(statement, Dot) or (isinstance(statement, Map) and statement.op == "fma"):
                yield tuple(steps[axis] for axis in statement.type.axes)


def _number(size: Size, passed: Passed | None) -> int | None:
    if not isinstance(size, Arg):
        return size
    sizes = () if passed is None else passed.sizes
    return sizes[size.index] if size.index < len(sizes) else None  # the number of a round is no size of the call


def _name(graph: Graph, dim: Dim) -> str:
    return dict(graph.dim_names).get(dim.id, "") if isinstance(dim, Sym) else ""
