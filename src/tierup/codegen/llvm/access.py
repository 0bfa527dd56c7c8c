"""Loads and stores of tiles: addresses, masks, gathers and scatters.

An address is a sum of products position · stride; each product was computed where its loop's position is made. What
lies beyond a ragged edge is neither read nor written. What is read may begin at any byte: tables in a file do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import copysign

from msgspec import Struct
from msgspec.structs import replace

from tierup.codegen.llvm.elements import (
    element_bytes,
    from_memory,
    literal,
    mangled,
    memory_type,
    register_type,
    to_memory,
    vector,
)
from tierup.codegen.llvm.frame import Frame, Layout, Place, Scope, Value
from tierup.ir.types import DType
from tierup.lower.tile import Load, Size, Store


class _Spot(Struct, frozen=True):
    """Where the elements of one register lie: from `pointer` on, `stride` apart, and by `offsets`, if each has its own.

    `mask` says which of them lie inside; None: all.
    """

    pointer: str
    stride: Size
    offsets: str | None
    mask: str | None


def emit_load(frame: Frame, load: Load, scope: Scope) -> Value:
    layout, stored = frame.layout(load.type), frame.buffers[load.buffer].dtype

    def make(place: Place, chunk: int, lanes: int) -> str:
        spot = _spot(frame, load, layout, place, chunk, scope)
        repeated = lanes > 1 and spot.stride == 0 and spot.offsets is None
        inside = row_inside(frame, layout, place, scope)
        if inside is not None:
            first = pointer_to(frame, load, layout, (0,) * len(place), chunk, scope)
            spot = replace(spot, pointer=frame.writer.value(f"select i1 {inside}, ptr {spot.pointer}, ptr {first}"))
        return chosen(frame, load, _read(frame, stored, lanes, spot), spot.mask, lanes, zeroed=not repeated)

    return frame.value(load.type, make)


def emit_store(frame: Frame, store: Store, scope: Scope) -> None:
    value, stored = scope.values[store.arg], frame.buffers[store.buffer].dtype
    layout = frame.layout(value.type)
    for place in layout.places:
        with _only_if(frame, row_inside(frame, layout, place, scope)):
            for chunk in range(layout.chunks):
                spot = _spot(frame, store, layout, place, chunk, scope)
                _write(frame, stored, layout.lanes, as_stored(frame, store, value, place, chunk), spot)


def as_stored(frame: Frame, store: Store, value: Value, place: Place, chunk: int) -> str:
    """A register as what lies in the buffer."""
    buffer, lanes = frame.buffers[store.buffer], frame.layout(value.type).lanes
    at_once = "dot_bf16" in frame.target.dots and (buffer.mode == "scratch" or store.flush)
    register, dtype = value.parts[place][chunk], value.type.dtype
    return to_memory(frame.writer, register, dtype, buffer.dtype, lanes, flush=store.flush, at_once=at_once)


@contextmanager
def _only_if(frame: Frame, condition: str | None) -> Iterator[None]:
    """What is written inside runs only where the condition holds; None: always."""
    if condition is None:
        yield
        return
    w = frame.writer
    there, after = w.fresh_label("inside"), w.fresh_label("behind")
    w.branch(condition, there, after)
    w.start(there)
    yield
    w.jump(after)
    w.start(after)


def chosen(frame: Frame, load: Load, read: str, mask: str | None, lanes: int, *, zeroed: bool) -> str:
    """What was read as the tile's dtype, and `other` where the mask is off; `zeroed`: there it is zero already."""
    stored, wanted = frame.buffers[load.buffer].dtype, load.type.dtype
    value = from_memory(frame.writer, read, stored, wanted, lanes)
    if mask is None or (zeroed and load.other == 0 and copysign(1, load.other) > 0):
        return value
    kind, other = register_type(wanted, lanes), literal(wanted, load.other, lanes)
    return frame.writer.value(f"select {vector('i1', lanes)} {mask}, {kind} {value}, {kind} {other}")


def _spot(frame: Frame, access: Load | Store, layout: Layout, place: Place, chunk: int, scope: Scope) -> _Spot:
    """The spot of one register of an access."""
    stride = dict(access.index.axes).get(layout.lane or "", 0)
    inside = [
        frame.mask(scope, axis, row, layout.lanes, along_lanes=False)
        for axis, row in zip(layout.rows, place, strict=True)
    ]
    if layout.lane is not None:
        inside.append(frame.mask(scope, layout.lane, chunk, layout.lanes, along_lanes=True))
    pointer = pointer_to(frame, access, layout, place, chunk, scope)
    offsets = _offsets(frame, access, layout, place, chunk, scope)
    return _Spot(pointer, stride, offsets, joined(frame, layout.lanes, inside))


def row_inside(frame: Frame, layout: Layout, place: Place, scope: Scope) -> str | None:
    """Whether anything of a row of a tile lies inside, the first of which always does; None: it does.

    Processors take hundreds of cycles to access memory that nobody has, even if a mask leaves out every lane.
    """
    rows = zip(layout.rows, place, strict=True)
    return joined(frame, 1, [frame.mask(scope, axis, row, 1, along_lanes=False) for axis, row in rows if row])


def joined(frame: Frame, lanes: int, masks: list[str | None]) -> str | None:
    """The lanes that are in all masks; None where nothing is masked."""
    result: str | None = None
    for mask in masks:
        if result is not None and mask is not None:
            result = frame.writer.value(f"and {vector('i1', lanes)} {result}, {mask}")
        else:
            result = mask if result is None else result
    return result


def _offsets(frame: Frame, access: Load | Store, layout: Layout, place: Place, chunk: int, scope: Scope) -> str | None:
    """What each lane adds to the address: the sum of the added tiles that have the lane axis."""
    total: str | None = None
    for key in access.at:
        scaled = scope.scaled[key]
        if layout.lanes > 1 and layout.lane in scaled.type.axes:
            register = frame.pick(scaled, layout, place, chunk)
            kind = vector("i64", layout.lanes)
            total = register if total is None else frame.writer.value(f"add {kind} {total}, {register}")
    return total


def pointer_to(frame: Frame, access: Load | Store, layout: Layout, place: Place, chunk: int, scope: Scope) -> str:
    """A pointer to the first element of a register, but for what its lanes add each for itself.

    Terms are added in the order of their loops, so that what an inner loop does not change comes first.
    """
    index, lanes = access.index, layout.lanes
    rows = dict(zip(layout.rows, place, strict=True))
    if layout.lane is not None:
        rows[layout.lane] = chunk * lanes
    terms, last = [frame.size(index.offset)] if index.offset != 0 else [], list[str]()
    for key in access.at:
        scaled = scope.scaled[key]
        if lanes == 1 or layout.lane not in scaled.type.axes:
            (last if scaled.type.axes else terms).append(frame.element(scaled, rows))
    starts, constant = dict(index.starts), 0
    for axis, stride in index.axes:
        start = starts.get(axis, stride)
        if start != 0:
            terms.append(scope.positions[axis] if start == 1 else scope.products[axis, start])
        row = rows.get(axis, 0)
        if isinstance(stride, int):
            constant += row * stride
        elif row:
            terms.append(frame.multiple(stride, row))
    if constant:
        terms.append(str(constant))
    return moved(frame, access, frame.pointers[access.buffer], *terms, *last)


def moved(frame: Frame, access: Load | Store, pointer: str, *terms: str) -> str:
    """The pointer so many elements of the accessed buffer further on."""
    element = memory_type(frame.buffers[access.buffer].dtype, 1)
    for term in terms:
        pointer = frame.writer.value(f"getelementptr {element}, ptr {pointer}, i64 {term}", "a")
    return pointer


def _read(frame: Frame, stored: DType, lanes: int, spot: _Spot) -> str:
    """The elements at a spot. What the mask leaves out is not touched."""
    if lanes == 1 or (spot.stride == 0 and spot.offsets is None):
        return _read_one(frame, stored, lanes, spot)
    if spot.stride == 1 and spot.offsets is None:
        return read_row(frame, stored, lanes, spot.pointer, spot.mask)
    kind = memory_type(stored, lanes)
    return frame.writer.call(
        kind,
        f"llvm.masked.gather.{mangled(kind)}.v{lanes}p0",
        (f"<{lanes} x ptr>", _spread(frame, stored, lanes, spot)),
        ("i32", "1"),
        (vector("i1", lanes), spot.mask or literal(DType.BOOL, True, lanes)),
        (kind, "zeroinitializer"),
    )


def _read_one(frame: Frame, stored: DType, lanes: int, spot: _Spot) -> str:
    """One element, repeated in all lanes. Where the mask is off for the first lane, a zero is read instead."""
    w, kind, pointer = frame.writer, memory_type(stored, 1), spot.pointer
    if spot.mask is not None:
        inside = spot.mask if lanes == 1 else w.value(f"extractelement <{lanes} x i1> {spot.mask}, i64 0")
        pointer = w.value(f"select i1 {inside}, ptr {pointer}, ptr {frame.spare()}")
    scalar = w.value(f"load {kind}, ptr {pointer}, align 1")
    if lanes == 1:
        return scalar
    wide = memory_type(stored, lanes)
    first = w.value(f"insertelement {wide} poison, {kind} {scalar}, i64 0")
    return w.value(f"shufflevector {wide} {first}, {wide} poison, <{lanes} x i32> zeroinitializer")


def read_row(frame: Frame, stored: DType, lanes: int, pointer: str, mask: str | None) -> str:
    """Elements that lie side by side."""
    w, kind = frame.writer, memory_type(stored, lanes)
    if mask is None:
        return w.value(f"load {kind}, ptr {pointer}, align 1")
    name, truth = f"llvm.masked.load.{mangled(kind)}.p0", vector("i1", lanes)
    return w.call(kind, name, ("ptr", pointer), ("i32", "1"), (truth, mask), (kind, "zeroinitializer"))


def _spread(frame: Frame, stored: DType, lanes: int, spot: _Spot) -> str:
    """A pointer for each lane."""
    w, offsets = frame.writer, spot.offsets
    if spot.stride != 0:
        kind, numbers = vector("i64", lanes), ", ".join(f"i64 {i}" for i in range(lanes))
        apart = w.value(f"mul {kind} {frame.splat_size(spot.stride, lanes)}, <{numbers}>")
        offsets = apart if offsets is None else w.value(f"add {kind} {offsets}, {apart}")
    return w.value(f"getelementptr {memory_type(stored, 1)}, ptr {spot.pointer}, <{lanes} x i64> {offsets}")


def _write(frame: Frame, stored: DType, lanes: int, value: str, spot: _Spot) -> None:
    w, kind, align = frame.writer, memory_type(stored, lanes), element_bytes(stored)
    side_by_side = lanes == 1 or (spot.stride == 1 and spot.offsets is None)
    if lanes == 1 and spot.mask is not None:
        there, after = w.fresh_label("store"), w.fresh_label("stored")
        w.branch(spot.mask, there, after)
        w.start(there)
        w.do(f"store {kind} {value}, ptr {spot.pointer}, align {align}")
        w.jump(after)
        w.start(after)
    elif side_by_side:
        write_row(frame, stored, lanes, value, spot.pointer, spot.mask)
    else:
        spread, mask = _spread(frame, stored, lanes, spot), spot.mask or literal(DType.BOOL, True, lanes)
        _write_masked(frame, stored, lanes, value, mask, "scatter", f"<{lanes} x ptr>", spread)


def write_row(frame: Frame, stored: DType, lanes: int, value: str, pointer: str, mask: str | None) -> None:
    """Elements that lie side by side."""
    if mask is None:
        kind, align = memory_type(stored, lanes), element_bytes(stored)
        frame.writer.do(f"store {kind} {value}, ptr {pointer}, align {align}")
    else:
        _write_masked(frame, stored, lanes, value, mask, "store", "ptr", pointer)


def _write_masked(
    frame: Frame, stored: DType, lanes: int, value: str, mask: str, word: str, pointers: str, where: str
) -> None:
    """LLVM's masked.store or masked.scatter."""
    w, kind, truth = frame.writer, memory_type(stored, lanes), vector("i1", lanes)
    align = element_bytes(stored)
    name = f"llvm.masked.{word}.{mangled(kind)}.{'p0' if pointers == 'ptr' else f'v{lanes}p0'}"
    w.declarations.add(f"declare void @{name}({kind}, {pointers}, i32, {truth})")
    w.do(f"call void @{name}({kind} {value}, {pointers} {where}, i32 {align}, {truth} {mask})")
