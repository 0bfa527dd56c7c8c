"""Tile program -> LLVM IR text.

Every tile is kept in registers: a tile over (i, j) with j a vector axis is, for each i, as many vectors as j's step
holds. Loops run over full steps without masks; a ragged last step is written a second time, with masks. Addresses are
sums of products position · stride; each product is computed where its loop's position is made, since no pass will move
it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd

from tierup.codegen.llvm.elements import (
    convert,
    element_bytes,
    from_memory,
    literal,
    mangled,
    memory_type,
    register_type,
    to_memory,
    vector,
)
from tierup.codegen.llvm.maps import emit_map
from tierup.codegen.llvm.reduce import IDENTITY, emit_reduce
from tierup.codegen.llvm.writer import Writer
from tierup.codegen.target import Target
from tierup.ir.types import DType
from tierup.lower.tile import (
    Arg,
    Convert,
    Dot,
    Fill,
    Grid,
    Index,
    Load,
    Loop,
    Map,
    Position,
    Reduce,
    Size,
    Statement,
    Store,
    Tile,
    TileProgram,
)

SIGNATURE = "i32 @{name}(ptr %buffers, ptr %sizes, ptr %scratch, i64 %begin, i64 %end)"
Place = tuple[int, ...]  # position along the axes of a tile that are no lanes
Make = Callable[[Place, int, int], str]  # place, chunk, lanes -> register


@dataclass(frozen=True)
class Value:
    """A tile in registers: for each place, its vectors along the lane axis, or one scalar."""

    type: Tile
    lane: str | None
    parts: dict[Place, list[str]]


@dataclass(frozen=True)
class Scope:
    """What a statement sees: positions and valid counts of the loops around it, and values by name."""

    positions: dict[str, str] = field(default_factory=dict)
    valid: dict[str, str | None] = field(default_factory=dict)  # None: the whole step lies inside
    products: dict[tuple[str, Arg | int], str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)

    def inside(self, axis: str, position: str, valid: str | None) -> Scope:
        return replace(
            self,
            positions={**self.positions, axis: position},
            valid={**self.valid, axis: valid},
            products=dict(self.products),
            values=dict(self.values),
        )


def emit_llvm(program: TileProgram, target: Target) -> str:
    """A module with one function, `program.name`, and no undefined symbols."""
    emitter = _Emitter(program, target)
    emitter.function()
    writer = emitter.writer
    head = f'target triple = "{target.triple}"\n'
    body = "\n".join(writer.lines)
    signature = SIGNATURE.format(name=program.name)
    declarations = "\n".join(sorted(writer.declarations))
    return f"{head}{declarations}\ndefine {signature} nounwind {{\nentry:\n{body}\n}}\n"


class _Emitter:
    """Writes one function."""

    def __init__(self, program: TileProgram, target: Target) -> None:
        self.program = program
        self.lanes = target.lanes
        self.writer = Writer()
        self._buffers = {buffer.name: buffer for buffer in program.buffers}
        self._pointers: dict[str, str] = {}
        self._sizes: list[str] = []
        self._multiples: dict[tuple[Arg, int], str] = {}
        self._steps = {grid.axis: grid.step for grid in program.grid}  # all loops over one axis have one step
        self._steps.update({s.axis: s.step for s in _walk(program.body) if isinstance(s, Loop)})

    def function(self) -> None:
        w = self.writer
        passed = [buffer for buffer in self.program.buffers if buffer.mode != "scratch"]
        for position, buffer in enumerate(passed):
            slot = w.value(f"getelementptr ptr, ptr %buffers, i64 {position}")
            self._pointers[buffer.name] = w.value(f"load ptr, ptr {slot}, align 8", "p")
        for buffer in self.program.buffers:
            if buffer.mode == "scratch":
                self._pointers[buffer.name] = "%scratch"
        for index in range(self.program.n_sizes):
            slot = w.value(f"getelementptr i64, ptr %sizes, i64 {index}")
            self._sizes.append(w.value(f"load i64, ptr {slot}, align 8", "s"))
        self._prepare_multiples()
        self._grid()
        w.do("ret i32 0")

    def size(self, size: Size) -> str:
        return self._sizes[size.index] if isinstance(size, Arg) else str(size)

    def _prepare_multiples(self) -> None:
        """r · stride for the rows of every tile whose stride is known only in the call."""
        for statement in _walk(self.program.body):
            index = _index(statement)
            for axis, stride in index.axes if index else ():
                if isinstance(stride, Arg) and axis not in self.program.vector:
                    for row in range(2, self._steps[axis]):
                        if (stride, row) not in self._multiples:
                            text = f"mul i64 {self.size(stride)}, {row}"
                            self._multiples[stride, row] = self.writer.value(text)

    def _grid(self) -> None:
        """for p in [begin, end): decode the position along each dimension, then the body."""
        w, grids = self.writer, self.program.grid
        counts = []
        for grid in grids:
            up = (
                w.value(f"add i64 {self.size(grid.extent)}, {grid.step - 1}")
                if grid.step > 1
                else self.size(grid.extent)
            )
            counts.append(w.value(f"udiv i64 {up}, {grid.step}") if grid.step > 1 else up)
        before, top, done = w.label, w.fresh_label("grid"), w.fresh_label("done")
        w.branch(w.value("icmp slt i64 %begin, %end"), top, done)
        w.start(top)
        piece, phi = self._phi("i64", "%begin", before)
        rest, positions = piece, []
        for grid, count in reversed(list(zip(grids, counts, strict=True))):
            at = rest
            if grid is not grids[0]:
                at = w.value(f"urem i64 {rest}, {count}")
                rest = w.value(f"udiv i64 {rest}, {count}")
            positions.append(w.value(f"mul i64 {at}, {grid.step}") if grid.step > 1 else at)
        self._inside_grid(list(zip(grids, reversed(positions), strict=True)), Scope())
        following = w.value(f"add i64 {piece}, 1")
        self._close(phi, following, w.label)
        w.branch(w.value(f"icmp slt i64 {following}, %end"), top, done)
        w.start(done)

    def _inside_grid(self, pending: list[tuple[Grid, str]], scope: Scope) -> None:
        """Enter the grid's dimensions one by one; each that may be ragged splits the code in two."""
        if not pending:
            self._statements(self.program.body, scope)
            return
        (grid, position), *others = pending
        w = self.writer
        if _divides(grid.extent, grid.step):
            self._inside_grid(others, self._entered(scope, grid.axis, position, None, self.program.body))
            return
        left = w.value(f"sub i64 {self.size(grid.extent)}, {position}")
        whole, ragged, after = w.fresh_label("whole"), w.fresh_label("ragged"), w.fresh_label("after")
        w.branch(w.value(f"icmp sge i64 {left}, {grid.step}"), whole, ragged)
        for label, valid in ((whole, None), (ragged, left)):
            w.start(label)
            self._inside_grid(others, self._entered(scope, grid.axis, position, valid, self.program.body))
            w.jump(after)
        w.start(after)

    def _entered(self, scope: Scope, axis: str, position: str, valid: str | None, body: Sequence[Statement]) -> Scope:
        """The scope inside a loop, with the products of its position that addresses in `body` need."""
        inner = scope.inside(axis, position, valid)
        for statement in _walk(body):
            index = _index(statement)
            for name, stride in (*index.axes, *index.starts) if index else ():
                if name == axis and stride not in (0, 1) and (axis, stride) not in inner.products:
                    text = f"mul i64 {position}, {self.size(stride)}"
                    inner.products[axis, stride] = self.writer.value(text)
        return inner

    def _phi(self, kind: str, initial: str, before: str) -> tuple[str, int]:
        """A phi whose second entry is written by `_close`, and where it stands."""
        name = self.writer.name()
        self.writer.lines.append(f"  {name} = phi {kind} [{initial}, %{before}]")
        return name, len(self.writer.lines) - 1

    def _close(self, phi: int, value: str, label: str) -> None:
        self.writer.lines[phi] += f", [{value}, %{label}]"

    def _statements(self, body: Sequence[Statement], scope: Scope) -> None:
        for statement in body:
            match statement:
                case Loop():
                    self._loop(statement, scope)
                case Store():
                    self._store(statement, scope)
                case Fill():
                    scope.values[statement.out] = self._fill(statement, scope)
                case Load():
                    scope.values[statement.out] = self._load(statement, scope)
                case Position():
                    scope.values[statement.out] = self._position(statement, scope)
                case Map():
                    scope.values[statement.out] = self._map(statement, scope)
                case Convert():
                    scope.values[statement.out] = self._convert(statement, scope)
                case Reduce():
                    scope.values[statement.out] = self._reduce(statement, scope)
                case Dot():
                    scope.values[statement.out] = self._dot(statement, scope)

    def _shape(self, type: Tile) -> tuple[str | None, int, int, list[Place]]:
        """Lane axis, lanes of a vector, vectors, and all places of a tile."""
        lane = next((axis for axis in reversed(type.axes) if axis in self.program.vector), None)
        step = self._steps[lane] if lane else 1
        lanes = self._lanes_of(step)
        outer = [range(self._steps[axis]) for axis in type.axes if axis != lane]
        return lane, lanes, max(1, step // lanes), list(product(*outer))

    def _value(self, type: Tile, make: Make) -> Value:
        """A tile from `make(place, chunk, lanes)` for each of its registers."""
        lane, lanes, chunks, places = self._shape(type)
        return Value(type, lane, {place: [make(place, chunk, lanes) for chunk in range(chunks)] for place in places})

    def _pick(self, value: Value, axes: Sequence[str], lane: str | None, place: Place, chunk: int, lanes: int) -> str:
        """The register of `value` that meets one of a tile over `axes`; repeated where it has no lanes."""
        at = dict(zip([axis for axis in axes if axis != lane], place, strict=True))
        own = tuple(at[axis] for axis in value.type.axes if axis != value.lane)
        if value.lane is not None:
            return value.parts[own][chunk]
        scalar = value.parts[own][0]
        return scalar if lanes == 1 else self._splat(value.type.dtype, scalar, lanes)

    def _splat(self, dtype: DType, scalar: str, lanes: int) -> str:
        kind = register_type(dtype, lanes)
        first = self.writer.value(f"insertelement {kind} poison, {register_type(dtype, 1)} {scalar}, i64 0")
        return self.writer.value(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def _fill(self, statement: Fill, scope: Scope) -> Value:
        dtype, value = statement.type.dtype, statement.value
        if isinstance(value, Arg):
            number = convert(self.writer, self.size(value), DType.I64, dtype, 1)
            scalar = Value(Tile(dtype), None, {(): [number]})
            lane, axes = self._shape(statement.type)[0], statement.type.axes
            return self._value(statement.type, lambda *at: self._pick(scalar, axes, lane, *at))
        return self._value(statement.type, lambda place, chunk, lanes: literal(dtype, value, lanes))

    def _position(self, statement: Position, scope: Scope) -> Value:
        dtype, axis = statement.type.dtype, statement.axis
        w, kind = self.writer, register_type(statement.type.dtype, 1)
        start = scope.positions[axis]
        if dtype.bits != 64:
            start = w.value(f"trunc i64 {start} to {kind}")

        def make(place: Place, chunk: int, lanes: int) -> str:
            wide = register_type(dtype, lanes)
            if axis in self.program.vector:
                offsets = ", ".join(f"{kind} {chunk * lanes + i}" for i in range(lanes))
                text = f"<{offsets}>" if lanes > 1 else str(chunk)
                return w.value(f"add {wide} {self._splat(dtype, start, lanes) if lanes > 1 else start}, {text}")
            return w.value(f"add {wide} {start}, {place[statement.type.axes.index(axis)]}")

        return self._value(statement.type, make)

    def _map(self, statement: Map, scope: Scope) -> Value:
        args = [scope.values[name] for name in statement.args]
        dtype = args[-1].type.dtype  # of what is computed with: comparisons give bool, select chooses the last two
        lane, axes = self._shape(statement.type)[0], statement.type.axes

        def make(place: Place, chunk: int, lanes: int) -> str:
            picked = [self._pick(arg, axes, lane, place, chunk, lanes) for arg in args]
            return emit_map(self.writer, statement.op, dtype, lanes, picked)

        return self._value(statement.type, make)

    def _convert(self, statement: Convert, scope: Scope) -> Value:
        arg = scope.values[statement.arg]

        def make(place: Place, chunk: int, lanes: int) -> str:
            return convert(self.writer, arg.parts[place][chunk], arg.type.dtype, statement.type.dtype, lanes)

        return self._value(statement.type, make)

    def _reduce(self, statement: Reduce, scope: Scope) -> Value:
        arg, dtype, axis = scope.values[statement.arg], statement.type.dtype, statement.axis
        identity = IDENTITY[statement.op](dtype)
        _, lanes, chunks, _ = self._shape(arg.type)
        outer = [name for name in arg.type.axes if name != arg.lane]

        def counted(place: Place, chunk: int) -> str:
            """A register with the elements beyond a ragged edge replaced by what changes nothing."""
            register = arg.parts[place][chunk]
            number = chunk if axis == arg.lane else place[outer.index(axis)]
            mask = self._mask((axis, number), scope, lanes, axis == arg.lane)
            if mask is None:
                return register
            kind = register_type(dtype, lanes)
            nothing = literal(dtype, identity, lanes)
            return self.writer.value(f"select {vector('i1', lanes)} {mask}, {kind} {register}, {kind} {nothing}")

        if axis == arg.lane:

            def across(place: Place, chunk: int, width: int) -> str:
                registers = [counted(place, each) for each in range(chunks)]
                return emit_reduce(self.writer, statement.op, dtype, lanes, registers, to_scalar=True)

            return self._value(statement.type, across)
        position = outer.index(axis)

        def along(place: Place, chunk: int, width: int) -> str:
            rows = [(*place[:position], row, *place[position:]) for row in range(self._steps[axis])]
            registers = [counted(row, chunk) for row in rows]
            return emit_reduce(self.writer, statement.op, dtype, lanes, registers, to_scalar=False)

        return self._value(statement.type, along)

    def _dot(self, statement: Dot, scope: Scope) -> Value:
        a, b, acc = (scope.values[name] for name in (statement.a, statement.b, statement.acc))
        axes, dtype, axis = statement.type.axes, statement.type.dtype, statement.axis
        lane = self._shape(statement.type)[0]
        wide_axes = (*axes, axis)

        def make(place: Place, chunk: int, lanes: int) -> str:
            total = acc.parts[place][chunk]
            for step in range(self._steps[axis]):
                at = (*place, step)
                x, y = (
                    convert(self.writer, self._pick(v, wide_axes, lane, at, chunk, lanes), v.type.dtype, dtype, lanes)
                    for v in (a, b)
                )
                new = self._multiply_add(dtype, lanes, x, y, total)
                mask = self._mask((axis, step), scope, lanes, False)
                if mask is not None:
                    kind = register_type(dtype, lanes)
                    new = self.writer.value(f"select {vector('i1', lanes)} {mask}, {kind} {new}, {kind} {total}")
                total = new
            return total

        return self._value(statement.type, make)

    def _multiply_add(self, dtype: DType, lanes: int, x: str, y: str, total: str) -> str:
        if dtype.is_float:
            return emit_map(self.writer, "fma", dtype, lanes, [x, y, total])
        return emit_map(self.writer, "add", dtype, lanes, [emit_map(self.writer, "mul", dtype, lanes, [x, y]), total])

    def _mask(self, at: tuple[str, int], scope: Scope, lanes: int, along_lanes: bool) -> str | None:
        """Which lanes lie inside, for a row or a chunk of lanes of an axis; None where all do."""
        axis, number = at
        valid = scope.valid.get(axis)
        if valid is None:
            return None
        w = self.writer
        if not along_lanes:
            inside = w.value(f"icmp ugt i64 {valid}, {number}")
            return inside if lanes == 1 else self._splat(DType.BOOL, inside, lanes)
        if lanes == 1:
            return w.value(f"icmp ugt i64 {valid}, {number}")
        count = self._splat(DType.I64, valid, lanes)
        lane_numbers = ", ".join(f"i64 {number * lanes + i}" for i in range(lanes))
        return w.value(f"icmp ugt <{lanes} x i64> {count}, <{lane_numbers}>")

    def _access(
        self, type: Tile, index: Index, buffer: str, place: Place, chunk: int, lanes: int, scope: Scope
    ) -> tuple[str, Size, str | None]:
        """Pointer to the first element, stride along the lanes, and the mask, of one register of an access."""
        w, dtype = self.writer, self._buffers[buffer].dtype
        lane = self._shape(type)[0]
        rows = dict(zip([axis for axis in type.axes if axis != lane], place, strict=True))
        terms = [self.size(index.offset)] if index.offset != 0 else []
        stride: Size = 0
        constant, masks = 0, list[str]()
        mask: str | None = None
        starts = dict(index.starts)
        for axis, step in index.axes:
            start = starts.get(axis, step)
            if start != 0:
                terms.append(scope.positions[axis] if start == 1 else scope.products[axis, start])
            if axis == lane:
                stride = step
                within = self._mask((axis, chunk), scope, lanes, True)
            elif axis in rows:
                within = self._mask((axis, rows[axis]), scope, lanes, False)
                if rows[axis] and step != 0:
                    row = rows[axis]
                    if isinstance(step, int):
                        constant += row * step
                    else:
                        terms.append(self.size(step) if row == 1 else self._multiples[step, row])
            else:
                within = None
            if within is not None:
                masks.append(within)
        if chunk and stride != 0:
            if isinstance(stride, int):
                constant += chunk * lanes * stride
            else:
                terms.append(w.value(f"mul i64 {self.size(stride)}, {chunk * lanes}"))
        for other in masks:
            mask = other if mask is None else w.value(f"and {vector('i1', lanes)} {mask}, {other}")
        if constant:
            terms.append(str(constant))
        return self._pointer(buffer, dtype, terms), stride, mask

    def _pointer(self, buffer: str, dtype: DType, terms: list[str]) -> str:
        """Terms are added in the order of their loops, so that what an inner loop does not change comes first."""
        w, element = self.writer, memory_type(dtype, 1)
        pointer = self._pointers[buffer]
        for term in terms:
            pointer = w.value(f"getelementptr {element}, ptr {pointer}, i64 {term}", "a")
        return pointer

    def _load(self, statement: Load, scope: Scope) -> Value:
        stored, wanted = self._buffers[statement.buffer].dtype, statement.type.dtype

        def make(place: Place, chunk: int, lanes: int) -> str:
            pointer, stride, mask = self._access(
                statement.type, statement.index, statement.buffer, place, chunk, lanes, scope
            )
            value = self._read(stored, lanes, pointer, stride, mask)
            value = from_memory(self.writer, value, stored, wanted, lanes)
            if mask is None:
                return value
            kind, other = register_type(wanted, lanes), literal(wanted, statement.other, lanes)
            return self.writer.value(f"select {vector('i1', lanes)} {mask}, {kind} {value}, {kind} {other}")

        return self._value(statement.type, make)

    def _read(self, stored: DType, lanes: int, pointer: str, stride: Size, mask: str | None) -> str:
        """Elements at a pointer, `stride` apart. What the mask leaves out is not touched."""
        w, kind, align = self.writer, memory_type(stored, lanes), element_bytes(stored)
        if lanes == 1 or stride == 0:
            scalar = self._read_one(stored, pointer, mask, lanes)
            if lanes == 1:
                return scalar
            first = w.value(f"insertelement {kind} poison, {memory_type(stored, 1)} {scalar}, i64 0")
            return w.value(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")
        if stride == 1 and mask is None:
            return w.value(f"load {kind}, ptr {pointer}, align {align}")
        truth = vector("i1", lanes)
        if stride == 1:
            name = f"llvm.masked.load.{mangled(kind)}.p0"
            return w.call(
                kind, name, ("ptr", pointer), ("i32", str(align)), (truth, mask or ""), (kind, "zeroinitializer")
            )
        return self._gather(stored, lanes, pointer, stride, mask)

    def _read_one(self, stored: DType, pointer: str, mask: str | None, lanes: int) -> str:
        """One element; where the mask (of a row, the same in all lanes) is off, a zero of our own is read instead."""
        w, kind = self.writer, memory_type(stored, 1)
        if mask is not None:
            inside = mask if lanes == 1 else w.value(f"extractelement <{lanes} x i1> {mask}, i64 0")
            pointer = w.value(f"select i1 {inside}, ptr {pointer}, ptr %sizes")
        return w.value(f"load {kind}, ptr {pointer}, align {element_bytes(stored)}")

    def _spread(self, stored: DType, lanes: int, pointer: str, stride: Size) -> str:
        """Pointers to elements `stride` apart."""
        w = self.writer
        apart = self._splat(DType.I64, self.size(stride), lanes)
        numbers = ", ".join(f"i64 {i}" for i in range(lanes))
        offsets = w.value(f"mul <{lanes} x i64> {apart}, <{numbers}>")
        return w.value(f"getelementptr {memory_type(stored, 1)}, ptr {pointer}, <{lanes} x i64> {offsets}")

    def _gather(self, stored: DType, lanes: int, pointer: str, stride: Size, mask: str | None) -> str:
        kind, truth = memory_type(stored, lanes), vector("i1", lanes)
        pointers = self._spread(stored, lanes, pointer, stride)
        everywhere = mask or literal(DType.BOOL, True, lanes)
        return self.writer.call(
            kind,
            f"llvm.masked.gather.{mangled(kind)}.v{lanes}p0",
            (f"<{lanes} x ptr>", pointers),
            ("i32", str(element_bytes(stored))),
            (truth, everywhere),
            (kind, "zeroinitializer"),
        )

    def _store(self, statement: Store, scope: Scope) -> None:
        value = scope.values[statement.arg]
        stored = self._buffers[statement.buffer].dtype
        _, lanes, chunks, places = self._shape(value.type)
        for place in places:
            for chunk in range(chunks):
                pointer, stride, mask = self._access(
                    value.type, statement.index, statement.buffer, place, chunk, lanes, scope
                )
                register = to_memory(self.writer, value.parts[place][chunk], value.type.dtype, stored, lanes)
                self._write(stored, lanes, register, pointer, stride, mask)

    def _write(self, stored: DType, lanes: int, value: str, pointer: str, stride: Size, mask: str | None) -> None:
        w, kind, align = self.writer, memory_type(stored, lanes), element_bytes(stored)
        if lanes == 1 and mask is not None:
            there, after = w.fresh_label("store"), w.fresh_label("stored")
            w.branch(mask, there, after)
            w.start(there)
            w.do(f"store {kind} {value}, ptr {pointer}, align {align}")
            w.jump(after)
            w.start(after)
        elif lanes == 1 or (stride == 1 and mask is None):
            w.do(f"store {kind} {value}, ptr {pointer}, align {align}")
        else:
            self._write_masked(stored, lanes, value, pointer, stride, mask or literal(DType.BOOL, True, lanes))

    def _write_masked(self, stored: DType, lanes: int, value: str, pointer: str, stride: Size, mask: str) -> None:
        w, kind, align = self.writer, memory_type(stored, lanes), element_bytes(stored)
        truth = vector("i1", lanes)
        where, kinds = (
            (pointer, "ptr") if stride == 1 else (self._spread(stored, lanes, pointer, stride), f"<{lanes} x ptr>")
        )
        name = (
            f"llvm.masked.store.{mangled(kind)}.p0"
            if stride == 1
            else f"llvm.masked.scatter.{mangled(kind)}.v{lanes}p0"
        )
        w.declarations.add(f"declare void @{name}({kind}, {kinds}, i32, {truth})")
        w.do(f"call void @{name}({kind} {value}, {kinds} {where}, i32 {align}, {truth} {mask})")

    def _loop(self, loop: Loop, scope: Scope) -> None:
        """Full steps in a loop without masks, then the ragged one, if there is one."""
        carried = {name: scope.values[initial] for name, initial in loop.carried}
        full = self._full_extent(loop)
        results = self._full_steps(loop, scope, carried, full)
        if not _never_ragged(loop):
            results = self._ragged_step(loop, scope, results, full, self.size(loop.extent))
        scope.values.update(zip(loop.results, results, strict=True))

    def _full_extent(self, loop: Loop) -> str:
        """Where the last full step ends."""
        extent = self.size(loop.extent)
        if _never_ragged(loop):
            return extent
        if isinstance(loop.extent, int) and isinstance(loop.begin, int):
            return str(loop.extent - (loop.extent - loop.begin) % loop.step)
        w = self.writer
        length = w.value(f"sub i64 {extent}, {self.size(loop.begin)}") if loop.begin != 0 else extent
        rest = w.value(f"urem i64 {length}, {loop.step}")
        return w.value(f"sub i64 {extent}, {rest}")

    def _full_steps(self, loop: Loop, scope: Scope, carried: dict[str, Value], full: str) -> list[Value]:
        w = self.writer
        before, top, after = w.label, w.fresh_label("loop"), w.fresh_label("after")
        begin = self.size(loop.begin)
        w.branch(w.value(f"icmp sgt i64 {full}, {begin}"), top, after)
        w.start(top)
        position, phi = self._phi("i64", begin, before)
        inner_phis, inside = [], {}
        for name, value in carried.items():
            phis: dict[Place, list[int]] = {}
            parts: dict[Place, list[str]] = {}
            for place, registers in value.parts.items():
                made = [self._phi(self._kind(value), register, before) for register in registers]
                parts[place], phis[place] = [m[0] for m in made], [m[1] for m in made]
            inside[name] = Value(value.type, value.lane, parts)
            inner_phis.append(phis)
        inner = self._entered(scope, loop.axis, position, None, loop.body)
        inner.values.update(inside)
        self._statements(loop.body, inner)
        following = w.value(f"add i64 {position}, {loop.step}")
        yielded = [inner.values[name] for name in loop.yields]
        latch = w.label
        self._close(phi, following, latch)
        for phis, value in zip(inner_phis, yielded, strict=True):
            for place, registers in value.parts.items():
                for line, register in zip(phis[place], registers, strict=True):
                    self._close(line, register, latch)
        w.branch(w.value(f"icmp slt i64 {following}, {full}"), top, after)
        w.start(after)
        return [
            self._merge(initial, before, last, latch) for initial, last in zip(carried.values(), yielded, strict=True)
        ]

    def _ragged_step(self, loop: Loop, scope: Scope, values: list[Value], full: str, extent: str) -> list[Value]:
        w = self.writer
        left = w.value(f"sub i64 {extent}, {full}")
        before, ragged, after = w.label, w.fresh_label("ragged"), w.fresh_label("whole")
        w.branch(w.value(f"icmp sgt i64 {left}, 0"), ragged, after)
        w.start(ragged)
        inner = self._entered(scope, loop.axis, full, left, loop.body)
        inner.values.update({name: value for (name, _), value in zip(loop.carried, values, strict=True)})
        self._statements(loop.body, inner)
        kept = [
            self._keep_outside(inner, old, inner.values[name], loop.axis)
            for old, name in zip(values, loop.yields, strict=True)
        ]
        end = w.label
        w.jump(after)
        w.start(after)
        return [self._merge(old, before, new, end) for old, new in zip(values, kept, strict=True)]

    def _keep_outside(self, scope: Scope, old: Value, new: Value, axis: str) -> Value:
        """What was carried stays beyond the edge of the axis that ends here."""
        if axis not in new.type.axes:
            return new
        _, lanes, _, _ = self._shape(new.type)
        outer = [name for name in new.type.axes if name != new.lane]
        kind = register_type(new.type.dtype, lanes)
        parts: dict[Place, list[str]] = {}
        for place, registers in new.parts.items():
            parts[place] = []
            for chunk, register in enumerate(registers):
                at = (axis, chunk) if axis == new.lane else (axis, place[outer.index(axis)])
                mask = self._mask(at, scope, lanes, axis == new.lane)
                before = old.parts[place][chunk]
                text = f"select {vector('i1', lanes)} {mask}, {kind} {register}, {kind} {before}"
                parts[place].append(self.writer.value(text))
        return Value(new.type, new.lane, parts)

    def _kind(self, value: Value) -> str:
        return register_type(value.type.dtype, self._width(value))

    def _width(self, value: Value) -> int:
        return self._lanes_of(self._steps[value.lane]) if value.lane else 1

    def _lanes_of(self, step: int) -> int:
        """How wide the vectors are that make up a step: full ones where that comes out even."""
        return step if step < self.lanes else gcd(step, self.lanes)

    def _merge(self, first: Value, one: str, second: Value, other: str) -> Value:
        """A value that comes from either of two blocks."""
        kind = self._kind(first)
        parts = {
            place: [
                self.writer.value(f"phi {kind} [{a}, %{one}], [{b}, %{other}]")
                for a, b in zip(registers, second.parts[place], strict=True)
            ]
            for place, registers in first.parts.items()
        }
        return Value(first.type, first.lane, parts)


def _divides(extent: Size, step: int) -> bool:
    return step == 1 or (isinstance(extent, int) and extent % step == 0)


def _never_ragged(loop: Loop) -> bool:
    return loop.exact or loop.step == 1 or (loop.begin == 0 and _divides(loop.extent, loop.step))


def _index(statement: Statement) -> Index | None:
    return statement.index if isinstance(statement, Load | Store) else None


def _walk(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, those in loops after their loop."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _walk(statement.body)
