"""Statements that compute on registers alone: fill, position, map, convert, reduce, dot, check."""

from __future__ import annotations

from msgspec.structs import replace

from tierup.codegen.llvm.bounds import ANYTHING, fits
from tierup.codegen.llvm.elements import convert, literal, register_type, vector
from tierup.codegen.llvm.frame import Frame, Place, Scope, Value
from tierup.codegen.llvm.maps import emit_map
from tierup.codegen.llvm.reduce import IDENTITY, emit_reduce, emit_reduce_rows
from tierup.codegen.llvm.words import emit_word_dot
from tierup.ir.types import DType
from tierup.lower.tile import WORD_DOTS, Arg, Check, Convert, Dot, Fill, Map, Position, Reduce


def emit_fill(frame: Frame, fill: Fill) -> Value:
    dtype, number = fill.type.dtype, fill.value
    if isinstance(number, Arg):
        scalar = convert(frame.writer, frame.size(number), DType.I64, dtype, 1)
        return frame.value(fill.type, lambda place, chunk, lanes: frame.splat(dtype, scalar, lanes))
    return frame.value(fill.type, lambda place, chunk, lanes: literal(dtype, number, lanes))


def emit_position(frame: Frame, position: Position, scope: Scope) -> Value:
    dtype, w = position.type.dtype, frame.writer
    kind, start = register_type(dtype, 1), scope.positions[position.axis]
    if dtype is not DType.I64:
        start = w.value(f"trunc i64 {start} to {kind}")

    def make(place: Place, chunk: int, lanes: int) -> str:
        first = place[0] if place else chunk * lanes
        numbers = ", ".join(f"{kind} {first + lane}" for lane in range(lanes))
        offsets = f"<{numbers}>" if lanes > 1 else str(first)
        return w.value(f"add {register_type(dtype, lanes)} {frame.splat(dtype, start, lanes)}, {offsets}")

    return frame.value(position.type, make)


def emit_map_tile(frame: Frame, map: Map, scope: Scope) -> Value:
    args, layout = [scope.values[name] for name in map.args], frame.layout(map.type)
    dtype = args[-1].type.dtype  # of what is computed with: comparisons give bool, select chooses the last two
    numbers = tuple(frame.bounds.get(name, ANYTHING).number for name in map.args)

    def make(place: Place, chunk: int, lanes: int) -> str:
        picked = [frame.pick(arg, layout, place, chunk) for arg in args]
        if map.op in WORD_DOTS:
            return emit_word_dot(frame.writer, map.op, lanes, picked, frame.target)
        return emit_map(frame.writer, map.op, dtype, lanes, picked, numbers)

    return frame.value(map.type, make)


def emit_convert(frame: Frame, statement: Convert, scope: Scope) -> Value:
    arg, wanted = scope.values[statement.arg], statement.type.dtype
    inside = fits(frame.bounds.get(statement.arg), DType.I32)

    def make(place: Place, chunk: int, lanes: int) -> str:
        return convert(frame.writer, arg.parts[place][chunk], arg.type.dtype, wanted, lanes, fits=inside)

    return frame.value(statement.type, make)


def emit_reduce_tile(frame: Frame, reduce: Reduce, scope: Scope) -> Value:
    arg, dtype, axis = scope.values[reduce.arg], reduce.type.dtype, reduce.axis
    from_layout, layout = frame.layout(arg.type), frame.layout(reduce.type)

    along_lanes = axis == from_layout.lane

    def combined(at: dict[str, int], chunk: int, *, to_scalar: bool) -> str:
        """All elements along the axis at one place of the result, or at one vector of it."""
        registers = []
        for number in range(from_layout.chunks if along_lanes else frame.steps[axis]):
            where = {**at, axis: number}
            register = arg.parts[tuple(where[row] for row in from_layout.rows)][number if along_lanes else chunk]
            mask = frame.mask(scope, axis, number, from_layout.lanes, along_lanes=along_lanes)
            nothing = literal(dtype, IDENTITY[reduce.op](dtype), from_layout.lanes)
            registers.append(_where(frame, dtype, from_layout.lanes, mask, register, nothing))
        return emit_reduce(frame.writer, reduce.op, dtype, from_layout.lanes, registers, to_scalar=to_scalar)

    def make(place: Place, chunk: int, lanes: int) -> str:
        at = dict(zip(layout.rows, place, strict=True))
        if layout.lane == from_layout.lane or layout.lane is None:
            return combined(at, chunk, to_scalar=along_lanes)
        # the lanes are summed up, and another vector axis gives those of the result
        each = [{**at, layout.lane: chunk * lanes + i} for i in range(lanes)]
        if _is_power(lanes) and _is_power(from_layout.lanes) and 1 < lanes <= from_layout.lanes:
            rows = [combined(row, 0, to_scalar=False) for row in each]
            return emit_reduce_rows(frame.writer, reduce.op, dtype, from_layout.lanes, rows)
        return frame.assemble(dtype, [combined(row, 0, to_scalar=True) for row in each])

    return frame.value(reduce.type, make)


def _is_power(number: int) -> bool:
    """Of two."""
    return number & (number - 1) == 0


def _where(frame: Frame, dtype: DType, lanes: int, mask: str | None, yes: str, no: str) -> str:
    if mask is None:
        return yes
    kind = register_type(dtype, lanes)
    return frame.writer.value(f"select {vector('i1', lanes)} {mask}, {kind} {yes}, {kind} {no}")


def emit_dot(frame: Frame, dot: Dot, scope: Scope) -> Value:
    a, b, acc = (scope.values[name] for name in (dot.a, dot.b, dot.acc))
    dtype, axis, layout = dot.type.dtype, dot.axis, frame.layout(dot.type)
    wide = replace(layout, rows=(*layout.rows, axis))  # the same registers, of tiles that have the axis too

    def make(place: Place, chunk: int, lanes: int) -> str:
        total = acc.parts[place][chunk]
        for step in range(frame.steps[axis]):
            x, y = (
                convert(frame.writer, frame.pick(side, wide, (*place, step), chunk), side.type.dtype, dtype, lanes)
                for side in (a, b)
            )
            mask = frame.mask(scope, axis, step, lanes, along_lanes=False)
            total = _where(frame, dtype, lanes, mask, _multiply_add(frame, dtype, lanes, x, y, total), total)
        return total

    return frame.value(dot.type, make)


def _multiply_add(frame: Frame, dtype: DType, lanes: int, x: str, y: str, total: str) -> str:
    if dtype.is_float:
        return emit_map(frame.writer, "fma", dtype, lanes, [x, y, total])
    product = emit_map(frame.writer, "mul", dtype, lanes, [x, y])
    return emit_map(frame.writer, "add", dtype, lanes, [product, total])


def emit_check(frame: Frame, check: Check, scope: Scope) -> None:
    """Leave the function with 1 unless all elements are in range: as unsigned numbers, below the extent."""
    w, value = frame.writer, scope.values[check.arg]
    dtype, layout = value.type.dtype, frame.layout(value.type)
    lanes, limit = layout.lanes, _limit(frame, check, dtype)
    kind, truth = register_type(dtype, lanes), vector("i1", lanes)
    bad: str | None = None
    for place, registers in value.parts.items():
        for chunk, register in enumerate(registers):
            outside = w.value(f"icmp uge {kind} {register}, {frame.splat(dtype, limit, lanes)}")
            for axis, number in (*zip(layout.rows, place, strict=True), (layout.lane or "", chunk)):
                mask = frame.mask(scope, axis, number, lanes, along_lanes=axis == layout.lane)
                if mask is not None:
                    outside = w.value(f"and {truth} {outside}, {mask}")
            bad = outside if bad is None else w.value(f"or {truth} {bad}, {outside}")
    assert bad is not None
    if lanes > 1:
        bad = w.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", (truth, bad))
    frame.failure = frame.failure or w.fresh_label("failed")
    fine = w.fresh_label("fine")
    w.branch(bad, frame.failure, fine)
    w.start(fine)


def _limit(frame: Frame, check: Check, dtype: DType) -> str:
    """The extent as an unsigned number of `dtype`: at least 0, and at most what no index of this dtype reaches."""
    most = 2 ** (dtype.bits - 1)
    if not isinstance(check.extent, Arg):
        return literal(dtype, min(max(check.extent, 0), most), 1)
    w = frame.writer
    limit = w.call("i64", "llvm.smax.i64", ("i64", frame.size(check.extent)), ("i64", "0"))
    if dtype is DType.I64:
        return limit
    limit = w.call("i64", "llvm.smin.i64", ("i64", limit), ("i64", str(most)))
    return w.value(f"trunc i64 {limit} to {register_type(dtype, 1)}")
