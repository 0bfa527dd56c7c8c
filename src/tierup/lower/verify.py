"""Checks that a tile program is what interpreter and emitters may rely on. Raises TileError at the first thing wrong.

Holds afterwards: names are defined once and before they are used; what a loop's body defines is not used outside it;
types follow from the operations; every address counts by loops around it, and gives each element of its tile a place;
all loops over one axis have one step; sizes, statements, nesting and tiles are bounded. Outputs may be read back: what
a place holds that was not yet written is the caller's business. Whether addresses lie inside their buffers depends on
the sizes and data of a call, and is not checked: `check` statements before gathers are the program's business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from tierup.errors import TierupError
from tierup.ir.types import DType
from tierup.lower.parse import ARG
from tierup.lower.text import line_text
from tierup.lower.tile import (
    COMPARISONS,
    MAPS,
    WORD_DOTS,
    Arg,
    Buffer,
    Check,
    Convert,
    Dot,
    Fill,
    Grid,
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

STATEMENT_LIMIT = 10_000
TILE_LIMIT_ELEMS = 65_536
DEPTH_LIMIT = 16  # grid dimensions and loops around a statement
SIZE_LIMIT = 1024  # size arguments, and buffers

MODES = ("in", "out", "scratch")
REGISTER_DTYPES = frozenset(
    (
        DType.BOOL, DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.U64, DType.F32,
        DType.F64,
    )
)  # fmt: skip
ROUNDED_DTYPES = frozenset(
    (
        DType.F16, DType.BF16, DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F4E2M1,
    )
)  # fmt: skip  # in memory only: registers hold f32
MEMORY_DTYPES = REGISTER_DTYPES | ROUNDED_DTYPES

# What each op is defined for: f (floats), i (integers), b (bool). `core.py` in ir/ops has the same for the graph's.
MAP_KINDS = {
    **dict.fromkeys(MAPS, "f"),
    **dict.fromkeys(("neg", "abs", "add", "sub", "mul", "div", "fmod", "pow"), "fi"),
    **dict.fromkeys(("not", "and", "or", "xor"), "ib"),
    **dict.fromkeys(("shl", "shr", "mod", "dot_bytes"), "i"),
    **dict.fromkeys(("min", "max", "select", *COMPARISONS), "fib"),
}
REDUCE_KINDS = {"sum": "fi", "prod": "fi", "max": "fib", "min": "fib", "and": "ib", "or": "ib"}
_BYTES = (DType.I8, DType.U8)
_COUNTS = (DType.I32, DType.I64)  # of positions, and of what addresses have added
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_VALUE_NAME = re.compile(r"[A-Za-z0-9_]+", re.ASCII)


class TileError(TierupError, ValueError):
    """The tile program breaks a rule that its executors rely on."""


def verify(program: TileProgram) -> None:
    """Check `program`; TileError names the statement that is wrong."""
    _Verifier(program).run()


class _Verifier:
    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.at = ""  # the line that is being checked
        self.steps: dict[str, int] = {}  # of every axis in the program
        self.around: list[str] = []  # axes of the grid and of the loops that are open
        self.defined: set[str] = set()
        self.visible: dict[str, Tile] = {}
        self.buffers: dict[str, Buffer] = {}

    def fail(self, reason: str) -> NoReturn:
        where = f", '{self.at if len(self.at) <= 120 else self.at[:117] + '...'}'" if self.at else ""
        raise TileError(f"tile program '{self.program.name[:60]}'{where}: {reason}")

    def require(self, holds: bool, reason: str) -> None:
        if not holds:
            self.fail(reason)

    def run(self) -> None:
        program = self.program
        self.require(bool(_NAME.fullmatch(program.name)), "its name is no word")
        self.require(0 <= program.n_sizes <= SIZE_LIMIT, f"there can be 0 to {SIZE_LIMIT} sizes")
        self.require(len(program.buffers) <= SIZE_LIMIT, f"there can be at most {SIZE_LIMIT} buffers")
        for buffer in program.buffers:
            self.buffer(buffer)
        for dim in program.grid:
            self.axis(dim)
            self.enter(dim.axis)
        self.measure()
        for axis in program.vector:
            self.require(axis in self.steps, f"there is no axis '{axis}' to lay out as a vector")
        self.require(len(set(program.vector)) == len(program.vector), "a vector axis is named twice")
        self.block(program.body)

    def buffer(self, buffer: Buffer) -> None:
        self.require(bool(_NAME.fullmatch(buffer.name)), f"a buffer's name '{buffer.name[:60]}' is no word")
        self.require(buffer.name not in self.buffers, f"buffer '{buffer.name}' is declared twice")
        self.require(buffer.mode in MODES, f"buffer '{buffer.name}' is none of {', '.join(MODES)}")
        self.require(buffer.dtype in MEMORY_DTYPES, f"buffer '{buffer.name}' cannot hold {buffer.dtype!r}")
        self.buffers[buffer.name] = buffer

    def measure(self) -> None:
        """Bound the program before anything recurs over it, and note every axis: tiles leave their loops."""
        pending = [(statement, len(self.program.grid)) for statement in self.program.body]
        count = len(pending)
        while pending:
            statement, depth = pending.pop()
            if isinstance(statement, Loop):
                self.at = line_text(statement)
                self.require(depth < DEPTH_LIMIT, f"grid and loops nest more than {DEPTH_LIMIT} deep")
                self.axis(statement)
                pending.extend((inner, depth + 1) for inner in statement.body)
                count += len(statement.body)
            self.require(count <= STATEMENT_LIMIT, f"it has more than {STATEMENT_LIMIT} statements")
        self.at = ""

    def axis(self, loop: Grid | Loop) -> None:
        axis, step = loop.axis, loop.step
        self.require(bool(_NAME.fullmatch(axis)), f"the axis name '{axis[:60]}' is no word")
        self.require(not ARG.fullmatch(axis), f"the axis name '{axis}' reads like a size")
        self.require(type(step) is int and 1 <= step <= TILE_LIMIT_ELEMS, f"the step of '{axis}' is {step}")
        self.require(self.steps.setdefault(axis, step) == step, f"'{axis}' has the steps {self.steps[axis]} and {step}")
        for end in (loop.extent, loop.begin if isinstance(loop, Loop) else 0):
            self.size(end)
            self.require(isinstance(end, Arg) or end >= 0, f"'{axis}' begins or ends at {end}, below 0")

    def enter(self, axis: str) -> None:
        self.require(axis not in self.around, f"there is a loop over '{axis}' around it already")
        self.require(len(self.around) < DEPTH_LIMIT, f"grid and loops nest more than {DEPTH_LIMIT} deep")
        self.around.append(axis)

    def size(self, size: Size) -> None:
        if isinstance(size, Arg):
            self.require(0 <= size.index < self.program.n_sizes, f"there is no size {size!r}")
        else:
            self.require(type(size) is int and -(2**63) <= size < 2**63, f"{size!r} is no 64-bit integer")

    def block(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.at = line_text(statement)
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Loop():
                self.loop(statement)
            case Store(buffer=name, arg=arg):
                buffer = self.declared(name)
                self.require(buffer.mode != "in", f"'{name}' is an input, and not written")
                rounds = buffer.dtype is DType.BF16 or not statement.flush
                self.require(rounds, f"'{name}' is not of bf16: nothing is rounded there")
                self.address(statement, self.value(arg).axes)
                self.apart(statement, self.value(arg).axes)
            case Check(arg=arg, extent=extent):
                self.size(extent)
                self.require(self.value(arg).dtype in _COUNTS, f"%{arg} is neither i32 nor i64")
            case _:
                self.operation(statement)
                self.tile(statement.type)
                self.define(statement.out, statement.type)

    def operation(self, statement: Fill | Load | Position | Map | Convert | Reduce | Dot) -> None:
        match statement:
            case Fill(type=tile, value=value):
                if isinstance(value, Arg):
                    self.size(value)
                else:
                    self.literal(value, tile.dtype)
            case Load(type=tile, buffer=buffer, other=other):
                self.declared(buffer)
                self.address(statement, tile.axes)
                self.literal(other, tile.dtype)
            case Position(type=tile, axis=axis):
                self.require(axis in self.around, f"there is no loop over '{axis}' around it")
                self.require(tile.axes == (axis,), f"a position on '{axis}' has this axis alone")
                self.require(tile.dtype in _COUNTS, "a position is an i32 or an i64")
            case Map():
                self.map(statement)
            case Convert(type=tile, arg=arg):
                self.require(self.value(arg).axes == tile.axes, f"%{arg} is {self.value(arg)!r}")
            case Reduce():
                self.reduce(statement)
            case Dot():
                self.dot(statement)

    def map(self, statement: Map) -> None:
        op, args = statement.op, [self.value(arg) for arg in statement.args]
        self.require(op in MAPS, f"there is no operation '{op[:60]}'")
        self.require(len(args) == MAPS[op], f"{op} takes {MAPS[op]} values, not {len(args)}")
        self.meet(statement.type.axes, [arg.axes for arg in args])
        dtypes = [arg.dtype for arg in args]
        if op == "select":
            self.require(dtypes.pop(0) is DType.BOOL, "select takes a bool first")
        if op in WORD_DOTS:
            words, dtypes = dtypes[:2], dtypes[2:]
            self.require(words == [DType.I32, DType.I32], f"{op} takes two words of i32 first")
            self.require(dtypes[0] is WORD_DOTS[op], f"{op} adds to {WORD_DOTS[op]!r}")
        self.require(len(set(dtypes)) == 1, f"the dtypes differ: {', '.join(d.value for d in dtypes)}")
        self.kind(op, MAP_KINDS[op], dtypes[0])
        result = DType.BOOL if op in COMPARISONS else dtypes[0]
        self.require(statement.type.dtype is result, f"the result is {result!r}, not {statement.type.dtype!r}")

    def reduce(self, statement: Reduce) -> None:
        arg = self.value(statement.arg)
        self.require(statement.op in REDUCE_KINDS, f"there is no reduction '{statement.op[:60]}'")
        self.kind(statement.op, REDUCE_KINDS[statement.op], arg.dtype)
        expected = Tile(arg.dtype, self.without(arg, statement.axis))
        self.require(statement.type == expected, f"the result is {expected!r}")

    def dot(self, statement: Dot) -> None:
        a, b, acc = self.value(statement.a), self.value(statement.b), self.value(statement.acc)
        self.require(acc == statement.type, f"the result is what it adds to: {acc!r}")
        self.meet(acc.axes, [self.without(a, statement.axis), self.without(b, statement.axis)])
        if a.dtype in _BYTES and b.dtype in _BYTES:
            self.require(acc.dtype is DType.I32, "products of bytes add up in i32")
        else:
            self.require(a.dtype is b.dtype is acc.dtype, f"the dtypes differ: {a!r}, {b!r}, {acc!r}")
            self.kind("dot", "fi", a.dtype)

    def loop(self, loop: Loop) -> None:
        head, axis = self.at, loop.axis
        if loop.when:
            self.require(self.value(loop.when) == Tile(DType.BOOL), f"%{loop.when} is no bool without axes")
            self.require(loop.exact or loop.step == 1, "its last step may be ragged, and it depends on the data")
        self.enter(axis)
        outside = dict(self.visible)
        self.require(
            len(loop.carried) == len(loop.yields) == len(loop.results),
            f"it carries {len(loop.carried)} values, yields {len(loop.yields)} and has {len(loop.results)} results",
        )
        types = [self.value(initial) for _, initial in loop.carried]
        for (inside, _), tile in zip(loop.carried, types, strict=True):
            self.define(inside, tile)
        self.sums(loop)
        self.block(loop.body)
        self.at = head
        for name, tile in zip(loop.yields, types, strict=True):
            self.require(self.value(name) == tile, f"it carries {tile!r}, but yields %{name}: {self.value(name)!r}")
        self.around.pop()
        self.visible = outside
        for name, tile in zip(loop.results, types, strict=True):
            self.define(name, tile)

    def sums(self, loop: Loop) -> None:
        blocks = 1 <= loop.block < 2**31 if loop.sums else loop.block == 0
        self.require(type(loop.block) is int and blocks, f"its sums begin anew after {loop.block} rounds")
        carried = [inside for inside, _ in loop.carried]
        for name in loop.sums:
            self.require(name in carried, f"%{name[:60]} is no value that it carries")
            self.require(self.visible[name].dtype.is_float, f"%{name} is no float")

    def define(self, name: str, tile: Tile) -> None:
        self.require(bool(_VALUE_NAME.fullmatch(name)), f"the name '{name[:60]}' is no word")
        self.require(name not in self.defined, f"%{name} is defined already")
        self.defined.add(name)
        self.visible[name] = tile

    def value(self, name: str) -> Tile:
        if name not in self.visible:
            self.fail(f"%{name[:60]} is {'not visible here' if name in self.defined else 'not defined'}")
        return self.visible[name]

    def declared(self, name: str) -> Buffer:
        self.require(name in self.buffers, f"there is no buffer '{name[:60]}'")
        return self.buffers[name]

    def tile(self, tile: Tile) -> None:
        self.require(tile.dtype in REGISTER_DTYPES, f"a tile cannot hold {tile.dtype!r}")
        self.require(len(set(tile.axes)) == len(tile.axes), f"{tile!r} has an axis twice")
        for axis in tile.axes:
            self.require(axis in self.steps, f"there is no axis '{axis[:60]}'")
        elems = math.prod(self.steps[axis] for axis in tile.axes)
        self.require(elems <= TILE_LIMIT_ELEMS, f"{tile!r} has {elems} elements; {TILE_LIMIT_ELEMS} are the limit")

    def address(self, access: Load | Store, axes: tuple[str, ...]) -> None:
        index = access.index
        named = [axis for axis, _ in index.axes]
        self.require(len(set(named)) == len(named), "the address names an axis twice")
        for axis, stride in index.axes:
            self.require(axis in self.around, f"the address counts by '{axis[:60]}', but no such loop is around it")
            self.size(stride)
        placed = {*named, *self.added(access, axes)}
        for axis in axes:
            self.require(axis in placed, f"the address gives elements along '{axis[:60]}' no place")
            self.require(axis in self.around, f"it has elements along '{axis}', but no such loop is around it")
        self.size(index.offset)
        started = [axis for axis, _ in index.starts]
        self.require(len(set(started)) == len(started), "the address starts an axis twice")
        for axis, stride in index.starts:
            self.require(axis in named, f"the address starts '{axis[:60]}', which it does not count by")
            self.size(stride)

    def added(self, access: Load | Store, axes: tuple[str, ...]) -> set[str]:
        """The axes of the tiles that an address adds."""
        found: set[str] = set()
        for name, stride in access.at:
            tile = self.value(name)
            self.size(stride)
            self.require(tile.dtype in _COUNTS, f"%{name}, which the address adds, is neither i32 nor i64")
            self.require(set(tile.axes) <= set(axes), f"%{name} is {tile!r}, and has axes that the access has not")
            found.update(tile.axes)
        return found

    def apart(self, store: Store, axes: tuple[str, ...]) -> None:
        """A stride of 0 would write several elements to one place."""
        added = self.added(store, axes)
        for axis, stride in store.index.axes:
            several = axis in axes and axis not in added and self.steps[axis] > 1
            self.require(not (several and stride == 0), f"elements along '{axis}' are written to one place")

    def without(self, tile: Tile, axis: str) -> tuple[str, ...]:
        self.require(axis in tile.axes, f"{tile!r} has no axis '{axis[:60]}'")
        return tuple(name for name in tile.axes if name != axis)

    def meet(self, result: tuple[str, ...], args: Sequence[tuple[str, ...]]) -> None:
        """The result has all axes of its arguments and no others, and each argument has its axes in the same order."""
        union = {axis for axes in args for axis in axes}
        self.require(set(result) == union, f"the axes of the result are {_listed(sorted(union))}")
        for axes in args:
            kept = tuple(axis for axis in result if axis in axes)
            self.require(kept == axes, f"the result has the axes {_listed(axes)} in another order")

    def kind(self, op: str, kinds: str, dtype: DType) -> None:
        kind = "f" if dtype.is_float else "i" if dtype.is_integer else "b"
        self.require(kind in kinds, f"{op} is not defined for {dtype!r}")

    def literal(self, value: float, dtype: DType) -> None:
        self.require(_holds(dtype, value), f"{value!r} is no {dtype!r}")


def _listed(axes: Iterable[str]) -> str:
    return f"[{', '.join(axes)}]"


def _holds(dtype: DType, value: float) -> bool:
    """Whether a literal is a value of `dtype`. Integers may be written as floats: 0.0 is what loads have by default."""
    if dtype is DType.BOOL:
        return value in (0, 1)
    if isinstance(value, bool):
        return False
    if dtype.is_float:
        return type(value) is float or abs(value) < 2**64
    least, bits = (-(2 ** (dtype.bits - 1)), dtype.bits - 1) if dtype.is_signed else (0, dtype.bits)
    return least <= value < 2**bits and value == int(value)
