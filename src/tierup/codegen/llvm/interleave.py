"""Lanes that are a few elements apart in memory, perhaps with the rows of the tile in between: all that lies there is
read or written at once, and put in order in registers.

A picture whose three or four channels are computed with places along the lanes is written with its channels side by
side; real and imaginary parts, or every other element of a row, are read from where they lie in turn. Measured on Zen
4: 224 x 224 x 3 rounded to bytes, 4 apart, two threads: 18 µs, 175 with channels along the lanes; every other f32 of
128 Ki: 0.13 ns an element, 0.35 with gathers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tierup.codegen.llvm.access import as_stored, chosen, joined, pointer_to, read_row, row_inside, write_row
from tierup.codegen.llvm.elements import element_bytes, memory_type, vector
from tierup.codegen.llvm.frame import Frame, Place, Scope, Value
from tierup.lower.axes import MOST_APART
from tierup.lower.tile import Load, Store

_MOST_SKIPPED = 4  # lanes of one row alone are so far apart at most: beyond, most of what is read is of no use


class Spaced(Struct, frozen=True):
    """How far apart lanes are read, and the axis of the tile whose rows lie in between, if there is one."""

    apart: int
    axis: str | None


def spaced_by(frame: Frame, load: Load, scope: Scope) -> Spaced | None:
    """How to read a tile whose lanes are a few elements apart; None where it is no such tile."""
    layout, strides = frame.layout(load.type), dict(load.index.axes)
    apart = strides.get(layout.lane or "", 0)
    if layout.lanes == 1 or not isinstance(apart, int) or not 2 <= apart <= MOST_APART:
        return None
    target, small = frame.target, element_bytes(frame.buffers[load.buffer].dtype) < 4
    if not (target.avx512 or (target.x86 and not small)):  # others have no masks for what lies behind the last lane
        return None
    added = {axis for key in load.at for axis in scope.scaled[key].type.axes}
    if layout.lane in added:
        return None
    for axis in layout.rows:
        if (
            strides.get(axis) == 1
            and frame.steps[axis] <= apart
            and axis not in added
            and scope.valid.get(axis) is None
        ):
            return Spaced(apart, axis)
    return Spaced(apart, None) if apart <= _MOST_SKIPPED else None


def emit_spaced_load(frame: Frame, load: Load, scope: Scope, spaced: Spaced) -> Value:
    """The tile, all rows that lie in between each other read at once."""
    layout, stored = frame.layout(load.type), frame.buffers[load.buffer].dtype
    assert layout.lane is not None
    lanes, apart = layout.lanes, spaced.apart
    number = None if spaced.axis is None else layout.rows.index(spaced.axis)
    count = 1 if spaced.axis is None else frame.steps[spaced.axis]
    element, parts = memory_type(stored, 1), dict[Place, list[str]]({place: [] for place in layout.places})
    for place in layout.places:
        if number is not None and place[number]:
            continue
        there = row_inside(frame, layout, place, scope)
        rows = zip(layout.rows, place, strict=True)
        around = [frame.mask(scope, axis, row, lanes, along_lanes=False) for axis, row in rows]
        for chunk in range(layout.chunks):
            mask = joined(frame, lanes, [*around, frame.mask(scope, layout.lane, chunk, lanes, along_lanes=True)])
            pointer = pointer_to(frame, load, layout, place, chunk, scope)
            if there is not None:
                first = pointer_to(frame, load, layout, (0,) * len(place), chunk, scope)
                pointer = frame.writer.value(f"select i1 {there}, ptr {pointer}, ptr {first}")
            read = read_row(frame, stored, apart * lanes, pointer, _read_mask(frame, mask, lanes, count, apart))
            for row in range(count):
                numbers = ", ".join(f"i32 {lane * apart + row}" for lane in range(lanes))
                kind = vector(element, apart * lanes)
                picked = frame.writer.value(f"shufflevector {kind} {read}, {kind} poison, <{lanes} x i32> <{numbers}>")
                where = place if number is None else (*place[:number], row, *place[number + 1 :])
                parts[where].append(chosen(frame, load, picked, mask, lanes, zeroed=True))
    return Value(load.type, layout.lane, parts)


def _read_mask(frame: Frame, inside: str | None, lanes: int, count: int, apart: int) -> str | None:
    """What is read: all up to the last row of the last lane, behind which there may be nothing."""
    if inside is not None:
        return _mask(frame, inside, lanes, count, apart)
    last = (lanes - 1) * apart + count
    if last == apart * lanes:
        return None
    return "<" + ", ".join(f"i1 {'true' if number < last else 'false'}" for number in range(apart * lanes)) + ">"


def interleaved_by(frame: Frame, store: Store, scope: Scope) -> int | None:
    """How far apart the lanes of a tile go whose rows go in between; None where it is no such tile, or where only some
    of what it covers would be written and the machine has no masks for that."""
    value = scope.values[store.arg]
    layout, strides = frame.layout(value.type), dict(store.index.axes)
    if layout.lane is None or layout.lanes == 1 or len(layout.rows) != 1 or store.at or store.index.starts:
        return None
    (row,), apart = layout.rows, strides.get(layout.lane, 0)
    if not isinstance(apart, int) or not 2 <= apart <= MOST_APART:
        return None
    if strides.get(row) != 1 or frame.steps[row] > apart or scope.valid.get(row) is not None:
        return None
    whole = frame.steps[row] == apart and scope.valid.get(layout.lane) is None
    return apart if whole or frame.target.avx512 else None


def emit_interleaved_store(frame: Frame, store: Store, scope: Scope, apart: int) -> None:
    value, stored = scope.values[store.arg], frame.buffers[store.buffer].dtype
    layout = frame.layout(value.type)
    assert layout.lane is not None
    lanes, count = layout.lanes, len(layout.places)
    for chunk in range(layout.chunks):
        rows = [as_stored(frame, store, value, place, chunk) for place in layout.places]
        woven = _woven(frame, memory_type(stored, 1), lanes, rows, apart)
        inside = frame.mask(scope, layout.lane, chunk, lanes, along_lanes=True)
        pointer = pointer_to(frame, store, layout, layout.places[0], chunk, scope)
        write_row(frame, stored, apart * lanes, woven, pointer, _mask(frame, inside, lanes, count, apart))


def _woven(frame: Frame, element: str, lanes: int, rows: Sequence[str], apart: int) -> str:
    """The first elements of all rows, then the second ones, and so on; what has no row is anything."""
    w, width = frame.writer, 1 << (apart - 1).bit_length()

    def weave(parts: Sequence[str], lanes: int) -> tuple[str, int]:
        """Parts, a power of two of them, as one, and how many lanes that has."""
        if len(parts) == 1:
            return parts[0], lanes
        (even, half), (odd, _) = weave(parts[::2], lanes), weave(parts[1::2], lanes)
        if even == odd == "poison":
            return "poison", 2 * half
        kind = vector(element, half)
        numbers = ", ".join(f"i32 {number}, i32 {number + half}" for number in range(half))
        return w.value(f"shufflevector {kind} {even}, {kind} {odd}, <{2 * half} x i32> <{numbers}>"), 2 * half

    woven, total = weave([*rows, *["poison"] * (width - len(rows))], lanes)
    if width == apart:
        return woven
    kind = vector(element, total)
    kept = ", ".join(f"i32 {lane * width + row}" for lane in range(lanes) for row in range(apart))
    return w.value(f"shufflevector {kind} {woven}, {kind} poison, <{apart * lanes} x i32> <{kept}>")


def _mask(frame: Frame, inside: str | None, lanes: int, count: int, apart: int) -> str | None:
    """What is written: where there is a row, of the lanes that lie inside. None: all."""
    w, total = frame.writer, vector("i1", apart * lanes)
    there = ", ".join(f"i1 {'true' if row < count else 'false'}" for _ in range(lanes) for row in range(apart))
    if inside is None:
        return None if count == apart else f"<{there}>"
    each = ", ".join(f"i32 {lane}" for lane in range(lanes) for _ in range(apart))
    kind = vector("i1", lanes)
    spread = w.value(f"shufflevector {kind} {inside}, {kind} poison, <{apart * lanes} x i32> <{each}>")
    return spread if count == apart else w.value(f"and {total} {spread}, <{there}>")
