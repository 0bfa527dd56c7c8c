"""Loads whose lanes are far apart, but whose rows lie side by side: read along the rows and turned over in registers.

Measured on Zen 4, f32, a 272 x 272 matrix: 0.41 ns an element with gathers, 0.12 ns this way.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tierup.codegen.llvm.access import chosen, joined, moved, pointer_to, read_row, row_inside
from tierup.codegen.llvm.elements import register_type, vector
from tierup.codegen.llvm.frame import Frame, Layout, Place, Scope, Value
from tierup.codegen.llvm.writer import Writer
from tierup.ir.types import DType
from tierup.lower.tile import Load

_BLOCK_BITS = 128  # shuffles within blocks of this size, and of whole ones, are single instructions
_ZMM_LANES = 16  # of 32 bits in a register of AVX-512
_LEAST_WIDTH = 4  # elements to read at a time: fewer are not worth it


def turned_axis(frame: Frame, load: Load, scope: Scope) -> tuple[str, int] | None:
    """The axis to read along, and how many elements at a time; None where reading along the lanes is as good."""
    layout, strides = frame.layout(load.type), dict(load.index.axes)
    lanes = layout.lanes
    if layout.lane is None or lanes & (lanes - 1) or strides.get(layout.lane, 0) in (0, 1):
        return None
    added = {axis for key in load.at for axis in scope.scaled[key].type.axes}
    for axis in layout.rows:
        width = min(frame.steps[axis] & -frame.steps[axis], lanes)  # the largest power of two in the step
        if strides.get(axis) == 1 and width >= _LEAST_WIDTH and not added & {axis, layout.lane}:
            return axis, width
    return None


def emit_turned_load(frame: Frame, load: Load, scope: Scope, axis: str, width: int) -> Value:
    """The tile, read along `axis` by `width` elements at a time."""
    layout = frame.layout(load.type)
    number = layout.rows.index(axis)
    parts: dict[Place, list[str]] = {place: [] for place in layout.places}
    for place in layout.places:
        if place[number] % width == 0:
            for chunk in range(layout.chunks):
                rows = _read_rows(frame, load, scope, layout, axis, width, place, chunk)
                for column, register in enumerate(_turned(frame.writer, load.type.dtype, layout.lanes, width, rows)):
                    parts[(*place[:number], place[number] + column, *place[number + 1 :])].append(register)
    return Value(load.type, layout.lane, parts)


def _read_rows(
    frame: Frame, load: Load, scope: Scope, layout: Layout, axis: str, width: int, place: Place, chunk: int
) -> list[str]:
    """For each lane of one register, `width` elements along `axis` from the place on."""
    assert layout.lane is not None
    stored, stride = frame.buffers[load.buffer].dtype, dict(load.index.axes)[layout.lane]
    masks = [
        frame.mask(scope, row_axis, row // width if row_axis == axis else row, width, along_lanes=row_axis == axis)
        for row_axis, row in zip(layout.rows, place, strict=True)
    ]
    inside_all = joined(frame, width, masks)
    beginning = pointer_to(frame, load, layout, (0,) * len(place), 0, scope)  # which lies inside
    rows, at = [], pointer_to(frame, load, layout, place, chunk, scope)
    row_there = row_inside(frame, layout, place, scope)
    for lane in range(layout.lanes):
        number = chunk * layout.lanes + lane
        within = frame.mask(scope, layout.lane, number, width, along_lanes=False)
        inside = joined(frame, width, [inside_all, within])
        at = moved(frame, load, at, frame.size(stride)) if lane else at
        lane_there = frame.mask(scope, layout.lane, number, 1, along_lanes=False) if number else None
        there = joined(frame, 1, [row_there, lane_there])
        pointer = at if there is None else frame.writer.value(f"select i1 {there}, ptr {at}, ptr {beginning}")
        rows.append(chosen(frame, load, read_row(frame, stored, width, pointer, inside), inside, width, zeroed=True))
    return rows


def _turned(writer: Writer, dtype: DType, lanes: int, width: int, rows: Sequence[str]) -> list[str]:
    """`lanes` rows of `width` elements as columns: the first has the first element of every row, and so on."""
    narrow = dtype.bits < 32  # as 32-bit integers, then
    element = "i32" if narrow else register_type(dtype, 1)
    if narrow:
        kind = register_type(dtype, width)
        rows = [writer.value(f"zext {kind} {row} to {vector(element, width)}") for row in rows]
    # rows a width apart go side by side: what is left to turn over are squares
    squares = _Squares(writer, element, lanes, width, max(2, _BLOCK_BITS // max(32, dtype.bits)))
    columns = squares.turned([squares.beside(rows[first::width]) for first in range(width)])
    if narrow:
        kind = register_type(dtype, lanes)
        columns = [writer.value(f"trunc {vector(element, lanes)} {column} to {kind}") for column in columns]
    return columns


class _Squares(Struct, frozen=True):
    """Registers of `lanes` elements, `width` of which hold `width` x `width` squares side by side.

    `block` elements make a block of 128 bits. Squares of blocks are turned over by interleaving elements within blocks,
    log₂(block) times; then blocks find their places, by halves.
    """

    writer: Writer
    element: str
    lanes: int
    width: int
    block: int

    def beside(self, parts: Sequence[str]) -> str:
        """One register of narrower ones."""
        width = self.width
        while len(parts) > 1:
            numbers = range(2 * width)
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts, width = [self.shuffled(a, b, numbers, width) for a, b in pairs], 2 * width
        return parts[0]

    def turned(self, rows: Sequence[str]) -> list[str]:
        groups = [self.blocks_turned(rows[first : first + self.block]) for first in range(0, self.width, self.block)]
        places = [self.blocks_placed([group[column] for group in groups]) for column in range(self.block)]
        return [place[number] for number in range(len(groups)) for place in places]

    def blocks_turned(self, rows: Sequence[str]) -> list[str]:
        """Column c has, in each block, element c of that block of every row: rows meet rows half their number away."""
        half = self.block // 2
        low = [
            first + i // 2 + i % 2 * self.lanes for first in range(0, self.lanes, self.block) for i in range(self.block)
        ]
        high = [number + half for number in low]
        rows = list(rows)
        for _ in range(half.bit_length()):
            pairs = list(zip(rows[:half], rows[half:], strict=True))
            rows = [self.shuffled(a, b, numbers, self.lanes) for a, b in pairs for numbers in (low, high)]
        return [self.writer.settled(vector(self.element, self.lanes), row) for row in rows] if self.is_zmm else rows

    @property
    def is_zmm(self) -> bool:
        return self.writer.avx512 and self.lanes == _ZMM_LANES and self.element in ("float", "i32")

    def blocks_placed(self, groups: Sequence[str]) -> list[str]:
        """Result n has, in each square, block n of every group: even blocks and odd ones are put together apart."""
        if len(groups) == 1:
            return list(groups)
        pairs = list(zip(groups[::2], groups[1::2], strict=True))
        even, odd = (
            self.blocks_placed([self.shuffled(a, b, self.every_other_block(start), self.lanes) for a, b in pairs])
            for start in (0, 1)
        )
        return [register for both in zip(even, odd, strict=True) for register in both]

    def every_other_block(self, start: int) -> list[int]:
        """Of each square, every other block from `start` of the first register, then those of the second."""
        half = self.width // self.block // 2
        return [
            source + square + (start + 2 * number) * self.block + i
            for square in range(0, self.lanes, self.width)
            for source in (0, self.lanes)
            for number in range(half)
            for i in range(self.block)
        ]

    def shuffled(self, a: str, b: str, numbers: Sequence[int], lanes: int) -> str:
        """Elements of two registers by their numbers; those of the second count on from the first."""
        kind, listed = vector(self.element, lanes), ", ".join(f"i32 {number}" for number in numbers)
        return self.writer.value(f"shufflevector {kind} {a}, {kind} {b}, <{len(numbers)} x i32> <{listed}>")
