"""Fetches the next packed panel while this one is used.

A step of the grid uses its panel many times, and only the first time waits for memory: then threads ask for more than
memory gives, and afterwards for nothing. The panel of the next step lies behind this one and is fetched bit by bit.
"""

from __future__ import annotations

from tierup.codegen.llvm.access import moved
from tierup.codegen.llvm.elements import element_bytes
from tierup.codegen.llvm.frame import Frame, Scope
from tierup.lower.tile import Load

_LINE_BYTES = 64  # of a cache


def fetch_ahead(frame: Frame, load: Load, scope: Scope) -> None:
    """Where `load` reads a row of a panel: with each row one line of the next panel, in the first rounds of the loop
    around. A round fetches a part of the panel, and there are as many parts as a row has lines."""
    around, layout = _loop_around(frame, load, scope), frame.layout(load.type)
    size = element_bytes(frame.buffers[load.buffer].dtype)
    parts = layout.chunks * layout.lanes * size // _LINE_BYTES
    if around is None or parts == 0 or len(layout.places) != 1:
        return
    w, line, ((axis, rows),) = frame.writer, _LINE_BYTES // size, load.index.starts
    part = w.value(f"udiv i64 {scope.positions[around]}, {frame.steps[around]}")
    early = w.value(f"icmp ult i64 {part}, {parts}")
    columns = w.value(f"mul i64 {part}, {line}")
    columns = w.value(f"add i64 {columns}, {frame.steps[axis]}")
    ahead = w.value(f"mul i64 {columns}, {frame.size(rows)}")
    # later rounds touch one line that is near
    ahead, by = (w.value(f"select i1 {early}, i64 {number}, i64 0") for number in (ahead, line))
    row, *others = (scope.positions[name] for name, _ in load.index.axes if name != axis)
    for other in others:
        row = w.value(f"add i64 {row}, {other}")
    row = w.value(f"mul i64 {row}, {by}")
    pointer = moved(frame, load, frame.pointers[load.buffer], scope.products[axis, rows], ahead, row)
    w.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    w.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")  # to read, into all caches, data


def _loop_around(frame: Frame, load: Load, scope: Scope) -> str | None:
    """The one loop in which a panel of the grid is used again and again. None where there is none, for what is no panel
    of constants, and at ragged edges, behind which there is nothing."""
    grid = {dimension.axis for dimension in frame.program.grid}
    named = {axis for axis, _ in load.index.axes}
    around = [axis for axis in scope.positions if axis not in grid | named]
    starts = load.index.starts
    panel = frame.buffers[load.buffer].mode == "in" and len(starts) == 1 and starts[0] in scope.products
    ragged = any(valid is not None for valid in scope.valid.values())
    fits = panel and starts[0][0] in grid and named > {starts[0][0]} and not named & grid - {starts[0][0]}
    return around[0] if fits and len(around) == 1 and not ragged else None
