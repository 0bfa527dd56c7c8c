"""How much a tile program with closed sizes does, roughly: elements that statements touch, dear maps counted for more.

It only serves to compare a program with a simpler form of itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tierup.lower.rows import DEAR
from tierup.lower.tile import Arg, Check, Fill, Grid, Load, Loop, Map, Size, Statement, Store, TileProgram

_LOOKUP = 4  # elements that lie in a row take as long as one that is looked up


def work(program: TileProgram) -> float:
    """Of all grid steps; sizes that are open count as 1."""
    steps = {loop.axis: loop.step for loop in program.grid}
    return math.prod(_rounds(loop) for loop in program.grid) * _block(program.body, steps)


def _rounds(loop: Grid | Loop) -> int:
    begin = _number(loop.begin) if isinstance(loop, Loop) else 0
    return max(0, -(-(_number(loop.extent) - begin) // loop.step))


def _number(size: Size) -> int:
    return 1 if isinstance(size, Arg) else size


def _block(body: Sequence[Statement], steps: dict[str, int]) -> float:
    total, types = 0.0, dict[str, tuple[str, ...]]()
    for statement in body:
        match statement:
            case Loop():
                total += _rounds(statement) * _block(statement.body, {**steps, statement.axis: statement.step})
            case Store() | Check():
                total += _elems(types.get(statement.arg, ()), steps)
            case Fill():
                types[statement.out] = statement.type.axes
            case _:
                types[statement.out] = statement.type.axes
                total += _cost(statement) * _elems(statement.type.axes, steps)
    return total


def _cost(statement: Statement) -> float:
    if isinstance(statement, Map):
        return DEAR.get(statement.op, 1)
    return 1 + _LOOKUP * len(statement.at) if isinstance(statement, Load) else 1


def _elems(axes: Sequence[str], steps: dict[str, int]) -> int:
    return math.prod(steps.get(axis, 1) for axis in axes)
