"""The function that is being written: its text, its arguments, and how tiles lie in registers.

A tile over (i, j) with j a vector axis is, for each i, as many vectors as j's step holds; the last of a tile's axes
that is a vector axis gives its lanes. A tile without one is a scalar for each of its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import gcd

from msgspec import Struct, field
from msgspec.structs import replace

from tierup.codegen.llvm.bounds import float_bounds
from tierup.codegen.llvm.elements import convert, register_type
from tierup.codegen.llvm.writer import Writer
from tierup.codegen.target import Target
from tierup.ir.types import DType
from tierup.lower.tile import Arg, Check, Load, Loop, Size, Statement, Store, Tile, TileProgram

Place = tuple[int, ...]  # position along the axes of a tile that are no lanes
Make = Callable[[Place, int, int], str]  # place, chunk, lanes -> register


class Value(Struct, frozen=True):
    """A tile in registers: for each place, its vectors along the lane axis, or one scalar."""

    type: Tile
    lane: str | None
    parts: dict[Place, list[str]]


class Layout(Struct, frozen=True):
    """How a tile lies in registers: its lane axis, lanes of a vector, vectors of a row, and its other axes."""

    lane: str | None
    lanes: int
    chunks: int
    rows: tuple[str, ...]
    places: list[Place]


class Scope(Struct, frozen=True):
    """What a statement sees: positions and valid counts of the loops around it, and values by name.

    `products` are positions times strides, `scaled` the values that addresses add, times their strides, as i64.
    """

    positions: dict[str, str] = field(default_factory=dict)
    valid: dict[str, str | None] = field(default_factory=dict)  # None: the whole step lies inside
    products: dict[tuple[str, Size], str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    scaled: dict[tuple[str, Size], Value] = field(default_factory=dict)

    def inside(self, axis: str, position: str, valid: str | None) -> Scope:
        return replace(
            self,
            positions={**self.positions, axis: position},
            valid={**self.valid, axis: valid},
            products=dict(self.products),
            values=dict(self.values),
            scaled=dict(self.scaled),
        )


class Frame:
    """One function on its way to text."""

    def __init__(self, program: TileProgram, target: Target) -> None:
        self.program = program
        self.target = target
        self.writer = Writer(avx512=target.avx512, second_of_nan=target.x86)
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.steps = {grid.axis: grid.step for grid in program.grid}  # all loops over one axis have one step
        self.steps.update({s.axis: s.step for s in walk(program.body) if isinstance(s, Loop)})
        self.pointers: dict[str, str] = {}
        self.failure: str | None = None  # the label of the block that ends a call as failed
        self._wide = target.lanes
        self._sizes: list[str] = []
        self._multiples: dict[tuple[Arg, int], str] = {}
        self.bounds = float_bounds(walk(program.body))
        self._added = _added(program.body)
        self._spare: str | None = None

    def arguments(self) -> None:
        """Write what fetches buffers and sizes, and what every step needs of them."""
        w = self.writer
        passed = [buffer for buffer in self.program.buffers if buffer.mode != "scratch"]
        for position, buffer in enumerate(passed):
            slot = w.value(f"getelementptr ptr, ptr %buffers, i64 {position}")
            self.pointers[buffer.name] = w.value(f"load ptr, ptr {slot}, align 8", "p")
        for buffer in self.program.buffers:
            if buffer.mode == "scratch":
                self.pointers[buffer.name] = "%scratch"
        for index in range(self.program.n_sizes):
            slot = w.value(f"getelementptr i64, ptr %sizes, i64 {index}")
            self._sizes.append(w.value(f"load i64, ptr {slot}, align 8", "s"))
        self._prepare_multiples()

    def _prepare_multiples(self) -> None:
        """r · stride for the rows and chunks of every tile whose stride is known only in the call."""
        for access, tile in _accesses(self.program.body, {}):
            lane, lanes = self.layout(tile).lane, self.layout(tile).lanes
            for axis, stride in access.index.axes:
                if isinstance(stride, Arg) and axis in tile.axes:
                    for row in range(0, self.steps[axis], lanes if axis == lane else 1):
                        if row > 1 and (stride, row) not in self._multiples:
                            text = f"mul i64 {self.size(stride)}, {row}"
                            self._multiples[stride, row] = self.writer.value(text)

    def lines(self) -> list[str]:
        """The function's body."""
        spare = [f"  {self._spare} = alloca i64, align 8", f"  store i64 0, ptr {self._spare}, align 8"]
        failed = [f"{self.failure}:", "  ret i32 1"]
        return [*(spare if self._spare else ()), *self.writer.lines, *(failed if self.failure else ())]

    def spare(self) -> str:
        """The address of a zero of our own, for what must be read although nothing is there."""
        self._spare = self._spare or self.writer.name("spare")
        return self._spare

    def size(self, size: Size) -> str:
        return self._sizes[size.index] if isinstance(size, Arg) else str(size)

    def multiple(self, stride: Arg, row: int) -> str:
        """row · stride, from 1 on."""
        return self.size(stride) if row == 1 else self._multiples[stride, row]

    def define(self, scope: Scope, name: str, value: Value) -> None:
        """Give a value its name. What addresses add of it is scaled here: no pass will move that out of loops."""
        scope.values[name] = value
        for stride in self._added.get(name, ()):
            scope.scaled[name, stride] = self._scaled(value, stride)

    def _scaled(self, value: Value, stride: Size) -> Value:
        w, tile = self.writer, replace(value.type, dtype=DType.I64)

        def make(place: Place, chunk: int, lanes: int) -> str:
            wide = convert(w, value.parts[place][chunk], value.type.dtype, DType.I64, lanes)
            if stride == 1:
                return wide
            return w.value(f"mul {register_type(DType.I64, lanes)} {wide}, {self.splat_size(stride, lanes)}")

        return self.value(tile, make)

    def layout(self, tile: Tile) -> Layout:
        lane = next((axis for axis in reversed(tile.axes) if axis in self.program.vector), None)
        step = self.steps[lane] if lane else 1
        lanes = self._lanes_of(step)
        rows = tuple(axis for axis in tile.axes if axis != lane)
        places = list(product(*(range(self.steps[axis]) for axis in rows)))
        return Layout(lane, lanes, step // lanes, rows, places)

    def _lanes_of(self, step: int) -> int:
        """How wide the vectors are that make up a step: full ones where that comes out even."""
        return step if step < self._wide else gcd(step, self._wide)

    def width(self, value: Value) -> int:
        """Lanes of a value's registers."""
        return self._lanes_of(self.steps[value.lane]) if value.lane else 1

    def kind(self, value: Value) -> str:
        """LLVM's type of a value's registers."""
        return register_type(value.type.dtype, self.width(value))

    def value(self, tile: Tile, make: Make) -> Value:
        """A tile from `make(place, chunk, lanes)` for each of its registers."""
        layout = self.layout(tile)
        parts = {place: [make(place, chunk, layout.lanes) for chunk in range(layout.chunks)] for place in layout.places}
        return Value(tile, layout.lane, parts)

    def pick(self, value: Value, layout: Layout, place: Place, chunk: int) -> str:
        """The register of `value` that meets one of a tile laid out like this; repeated along axes it has not."""
        at, lanes = dict(zip(layout.rows, place, strict=True)), layout.lanes
        if value.lane is not None and value.lane == layout.lane:
            return value.parts[_place(value, at)][chunk]
        if layout.lane is None or layout.lane not in value.type.axes:
            return self.splat(value.type.dtype, self.element(value, at), lanes)
        lane = layout.lane
        each = [self.element(value, {**at, lane: chunk * lanes + number}) for number in range(lanes)]
        return self.assemble(value.type.dtype, each)

    def element(self, value: Value, at: Mapping[str, int]) -> str:
        """One element, which `at` gives a position along each axis of the value."""
        registers = value.parts[_place(value, at)]
        width = self.width(value)
        if value.lane is None or width == 1:
            return registers[0 if value.lane is None else at[value.lane]]
        chunk, number = divmod(at[value.lane], width)
        return self.writer.value(f"extractelement {self.kind(value)} {registers[chunk]}, i64 {number}")

    def assemble(self, dtype: DType, elements: Sequence[str]) -> str:
        """One register of these elements."""
        if len(elements) == 1:
            return elements[0]
        kind, register = register_type(dtype, len(elements)), "poison"
        for number, element in enumerate(elements):
            text = f"insertelement {kind} {register}, {register_type(dtype, 1)} {element}, i64 {number}"
            register = self.writer.value(text)
        return register

    def splat(self, dtype: DType, scalar: str, lanes: int) -> str:
        if lanes == 1:
            return scalar
        kind = register_type(dtype, lanes)
        first = self.writer.value(f"insertelement {kind} poison, {register_type(dtype, 1)} {scalar}, i64 0")
        return self.writer.value(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def splat_size(self, size: Size, lanes: int) -> str:
        return self.splat(DType.I64, self.size(size), lanes)

    def mask(self, scope: Scope, axis: str, number: int, lanes: int, *, along_lanes: bool) -> str | None:
        """Which lanes lie inside, for one row of an axis or one chunk of its lanes; None where all do."""
        valid = scope.valid.get(axis)
        if valid is None:
            return None
        w = self.writer
        if not along_lanes or lanes == 1:
            return self.splat(DType.BOOL, w.value(f"icmp ugt i64 {valid}, {number}"), lanes)
        # a ragged step is shorter than the step, so its count fits; 32-bit lanes need half the comparisons
        count = self.splat(DType.I32, w.value(f"trunc i64 {valid} to i32"), lanes)
        numbers = ", ".join(f"i32 {number * lanes + i}" for i in range(lanes))
        return w.value(f"icmp ugt <{lanes} x i32> {count}, <{numbers}>")


def _place(value: Value, at: Mapping[str, int]) -> Place:
    return tuple(at[axis] for axis in value.type.axes if axis != value.lane)


def walk(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, those in loops after their loop."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from walk(statement.body)


def _added(body: Sequence[Statement]) -> dict[str, dict[Size, None]]:
    """The strides with which addresses add each value."""
    found: dict[str, dict[Size, None]] = {}
    for statement in walk(body):
        if isinstance(statement, Load | Store):
            for name, stride in statement.at:
                found.setdefault(name, {})[stride] = None
    return found


def _accesses(body: Sequence[Statement], types: dict[str, Tile]) -> Iterator[tuple[Load | Store, Tile]]:
    """Every access and the type of its tile. `types` takes in those of all values that are defined."""
    for statement in body:
        match statement:
            case Loop(carried=carried, results=results):
                for (inside, initial), result in zip(carried, results, strict=True):
                    types[inside] = types[result] = types[initial]
                yield from _accesses(statement.body, types)
            case Store(arg=arg):
                yield statement, types[arg]
            case Check():
                pass
            case _:
                types[statement.out] = statement.type
                if isinstance(statement, Load):
                    yield statement, statement.type
