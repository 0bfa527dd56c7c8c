"""Tile program -> LLVM IR text.

Every tile is kept in registers (`frame.py` says how). `loops.py` writes the grid and serial loops, `access.py` loads
and stores, `operations.py` everything else. No IR passes run afterwards, so what an inner loop does not change is
computed outside it here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierup.codegen.llvm.access import emit_load, emit_store
from tierup.codegen.llvm.ahead import fetch_ahead
from tierup.codegen.llvm.frame import Frame, Scope, Value
from tierup.codegen.llvm.interleave import emit_interleaved_store, emit_spaced_load, interleaved_by, spaced_by
from tierup.codegen.llvm.loops import emit_grid, emit_loop
from tierup.codegen.llvm.operations import (
    emit_check,
    emit_convert,
    emit_dot,
    emit_fill,
    emit_map_tile,
    emit_position,
    emit_reduce_tile,
)
from tierup.codegen.llvm.transpose import emit_turned_load, turned_axis
from tierup.codegen.target import Target
from tierup.lower.tile import (
    Check,
    Convert,
    Dot,
    Fill,
    Load,
    Loop,
    Map,
    Position,
    Reduce,
    Statement,
    Store,
    TileProgram,
)

SIGNATURE = "i32 @{name}(ptr %buffers, ptr %sizes, ptr %scratch, i64 %begin, i64 %end)"


def emit_llvm(program: TileProgram, target: Target) -> str:
    """A module with one function, `program.name`, and no undefined symbols."""
    frame = Frame(program, target)
    frame.arguments()
    emit_grid(frame, lambda body, scope: _statements(frame, body, scope))
    frame.writer.do("ret i32 0")
    head = f'target triple = "{target.triple}"\n'
    declarations, body = "\n".join(sorted(frame.writer.declarations)), "\n".join(frame.lines())
    return f"{head}{declarations}\ndefine {SIGNATURE.format(name=program.name)} nounwind {{\nentry:\n{body}\n}}\n"


def _statements(frame: Frame, body: Sequence[Statement], scope: Scope) -> None:
    for statement in body:
        match statement:
            case Loop():
                emit_loop(frame, statement, scope, lambda inner, inside: _statements(frame, inner, inside))
            case Store():
                apart = interleaved_by(frame, statement, scope)
                if apart is None:
                    emit_store(frame, statement, scope)
                else:
                    emit_interleaved_store(frame, statement, scope, apart)
            case Check():
                emit_check(frame, statement, scope)
            case _:
                frame.define(scope, statement.out, _result(frame, statement, scope))


def _result(frame: Frame, statement: Fill | Load | Position | Map | Convert | Reduce | Dot, scope: Scope) -> Value:
    match statement:
        case Fill():
            return emit_fill(frame, statement)
        case Load():
            fetch_ahead(frame, statement, scope)
            if (spaced := spaced_by(frame, statement, scope)) is not None:
                return emit_spaced_load(frame, statement, scope, spaced)
            turned = turned_axis(frame, statement, scope)
            return emit_turned_load(frame, statement, scope, *turned) if turned else emit_load(frame, statement, scope)
        case Position():
            return emit_position(frame, statement, scope)
        case Map():
            return emit_map_tile(frame, statement, scope)
        case Convert():
            return emit_convert(frame, statement, scope)
        case Reduce():
            return emit_reduce_tile(frame, statement, scope)
        case Dot():
            return emit_dot(frame, statement, scope)
