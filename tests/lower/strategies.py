"""Random valid tile programs, with a call for each: `programs()` gives `Case`s.

    @given(programs())
    def test(case):
        want, got = case.arrays(), case.arrays()
        interpret(case.program, want, case.sizes)
        run_compiled(case.program, got, case.sizes)
        case.assert_same(got, want)

A program is a row of sections over one grid: maps of broadcast loads, loops with carried tiles, reductions inside and
after their loops, dots, a detour through scratch, gathers and scatters by integers from inputs. Extents may be 0, 1 or
ragged, strides 0, negative or strided, all of them numbers or size arguments. Every buffer ends where its last element
does. Integers that addresses add are wild beyond ragged edges.

Results that may differ between executors (the series functions, float sums and products) are kept apart from all that
would blow a small difference up: no jumps, no sums with cancellation. So `assert_same` can ask for equality where only
exact operations took part, and else for a small relative error. Zero divisors whose sign is open do not occur.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from tierup.ir.types import Array, DType
from tierup.lower.tile import (
    COMPARISONS,
    MAPS,
    Arg,
    Buffer,
    Check,
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

DTYPES = (
    DType.F32, DType.F64, DType.I32, DType.I64, DType.BOOL, DType.I8, DType.U8, DType.I16, DType.U16, DType.U32,
    DType.U64,
)  # fmt: skip
_SERIES = (
    "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "erf",
)  # fmt: skip
_FLOAT_MAPS = (
    "neg", "abs", "floor", "ceil", "round", "sqrt", "add", "sub", "mul", "div", "min", "max", "fmod", "pow", "eq", "lt",
    "le", "select", "fma", *_SERIES,
)  # fmt: skip
_INTEGER_MAPS = (
    "neg", "abs", "not", "add", "sub", "mul", "div", "min", "max", "and", "or", "xor", "shl", "shr", "mod", "fmod",
    "eq", "lt", "le", "select",
)  # fmt: skip
_BOOL_MAPS = ("not", "and", "or", "xor", "min", "max", "eq", "lt", "le", "select")
# What keeps a relative error as small as it is; `mul` where the other factor has none.
_GENTLE = ("neg", "abs", "min", "max", "mul", "select")

# Series functions of two executors, a few roundings after them, and sums of a few hundred elements in another order.
_TOLERANCE_EPS = 64
_VECTOR_STEPS, _VECTOR_EXTENTS = (1, 2, 4, 8, 16, 32, 48), (1, 3, 8, 16, 17, 33, 40, 50, 0)
_STEPS, _EXTENTS = (1, 1, 2, 3, 4, 4, 8), (1, 2, 3, 4, 5, 6, 7, 8, 11, 0)
_ROWS_LIMIT = 16  # elements of a tile along all axes but the vector's: they are unrolled
_GRID_LIMIT = 48  # grid steps: each takes the interpreter about a millisecond
_WILD = 2**40  # times any stride an address that nothing is mapped at
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Case:
    """A program and one call of it. `errors` says how far each output may be off, relatively; 0 for not at all.

    `counts` are inputs that addresses add: integers from 0 up to the number given, or each of them once ("distinct").
    """

    program: TileProgram
    sizes: tuple[int, ...]
    lengths: Mapping[str, int]
    errors: Mapping[str, float]
    counts: Mapping[str, int | str]
    seed: int

    def arrays(self) -> dict[str, Array]:
        """Fresh arrays for all buffers, the same ones each time: inputs random, the others full of sevens."""
        random = np.random.default_rng(self.seed)
        return {
            buffer.name: self._input(random, buffer)
            if buffer.mode == "in"
            else np.full(self.lengths[buffer.name], 7).astype(buffer.dtype.numpy)
            for buffer in self.program.buffers
        }

    def _input(self, random: np.random.Generator, buffer: Buffer) -> Array:
        length, count = self.lengths[buffer.name], self.counts.get(buffer.name)
        if count is None:
            return _random(random, buffer.dtype, length)
        numbers = random.permutation(length) if count == "distinct" else random.integers(0, count, length)
        return numbers.astype(buffer.dtype.numpy)

    def assert_same(self, got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
        """Compare all outputs, and see that the inputs are untouched."""
        for buffer in self.program.buffers:
            if buffer.mode == "scratch":
                continue
            a, b = (_comparable(arrays[buffer.name]) for arrays in (got, want))
            error = self.errors.get(buffer.name, 0.0)
            message = f"{buffer.name}, {self.sizes}\n{self.program!r}"
            if error:
                np.testing.assert_allclose(a, b, rtol=error, atol=error / _TOLERANCE_EPS, err_msg=message)
            else:
                np.testing.assert_array_equal(a, b, err_msg=message)


def _comparable(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype in (DType.F16.numpy, DType.BF16.numpy) else x


def _random(random: np.random.Generator, dtype: DType, length: int) -> Array:
    """Floats are small multiples of 1/8, integers small, and some of each are special."""
    if dtype is DType.BOOL:
        return random.random(length) < 0.5
    if dtype.is_float:
        values: Array = np.clip(np.rint(random.standard_normal(length) * 16) / 8, -8, 8)
        special: Array = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0])
    else:
        bounds = np.iinfo(dtype.numpy)
        values = random.integers(max(-99, int(bounds.min)), 99, length)
        special = np.array([0, 1, bounds.min, bounds.max, bounds.max], dtype.numpy)
        values = values.astype(dtype.numpy)
    return np.where(random.random(length) < 0.06, random.choice(special, length), values).astype(dtype.numpy)


@dataclass(frozen=True)
class _Axis:
    name: str
    step: int
    extent: int  # in this call
    size: Size  # in the program
    begin: int = 0

    def rounds(self) -> Iterable[tuple[int, int]]:
        """(position, elements before the edge) of each step."""
        return ((p, min(self.step, self.extent - p)) for p in range(self.begin, self.extent, self.step))


@dataclass(frozen=True)
class _Value:
    """`error`: how far executors may differ; `plain`: straight from memory; not `signed`: a zero's sign is open."""

    name: str
    type: Tile
    error: float = 0.0
    plain: bool = False
    signed: bool = True


def programs(
    maps: Collection[str] = tuple(MAPS), dtypes: Sequence[DType] = DTYPES, scratch: bool = True, failing: bool = False
) -> st.SearchStrategy[Case]:
    """Cases whose programs use only these maps (`convert` and comparisons for `select` apart) and tile dtypes.

    With `failing`, some check what does not hold.
    """

    @st.composite
    def case(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
        return _Drawing(draw, frozenset(maps), tuple(dtypes), scratch, failing).case()

    return case()


class _Drawing:
    """Draws one program, section by section."""

    def __init__(
        self,
        draw: Callable[[st.SearchStrategy[Any]], Any],
        maps: frozenset[str],
        dtypes: tuple[DType, ...],
        scratch: bool,
        failing: bool,
    ) -> None:
        self.draw, self.maps, self.dtypes, self.may_scratch, self.may_fail = draw, maps, dtypes, scratch, failing
        self.sizes: list[int] = []
        self.buffers: list[Buffer] = []
        self.lengths: dict[str, int] = {}
        self.errors: dict[str, float] = {}
        self.counts: dict[str, int | str] = {}
        self.steps: dict[str, int] = {}
        self.around: list[_Axis] = []
        self.body: list[Statement] = []
        self.visible: list[_Value] = []
        self.count = 0

    def case(self) -> Case:
        names = ["a", "b", "c"][: self.pick((0, 1, 1, 2, 2, 3))]
        axes = [*names, "q", "r", "k"]
        self.vector = self.pick((*axes, None))
        self.order = self.draw(st.permutations(axes))
        rows = 1
        for axis in axes:
            step = self.pick(_VECTOR_STEPS if axis == self.vector else _STEPS)
            if axis != self.vector:
                step = step if rows * step <= _ROWS_LIMIT else 1
                rows *= step
            self.steps[axis] = step
        total = 1
        for name in names:
            axis = self.axis(name, _GRID_LIMIT // max(1, total))
            total *= len(list(axis.rounds()))
            self.around.append(axis)
        grid = tuple(Grid(axis.name, axis.size, axis.step) for axis in self.around)
        for _ in range(self.pick((1, 1, 2, 3))):
            self.pick((self.elementwise, self.loop, self.loop, self.dot))()
        if not self.errors:
            self.store()
        more = [axis for axis in axes if axis != self.vector and self.chance(15)]
        vector = tuple(axis for axis in (self.vector, *more) if axis is not None and self.uses(axis))
        program = TileProgram("case", tuple(self.buffers), len(self.sizes), grid, tuple(self.body), vector)
        seed = self.draw(st.integers(0, 2**16))
        return Case(program, tuple(self.sizes), self.lengths, self.errors, self.counts, seed)

    def uses(self, axis: str) -> bool:
        return any(a.name == axis for a in self.around) or _has_loop(self.body, axis)

    # numbers, names, axes

    def pick(self, options: Sequence[_Item]) -> _Item:
        return self.draw(st.sampled_from(options))  # type: ignore[no-any-return]

    def chance(self, percent: int) -> bool:
        return bool(self.draw(st.integers(0, 99)) >= 100 - percent)

    def dtype(self) -> DType:
        """One of those that are asked for; every other time a float."""
        floats = [dtype for dtype in self.dtypes if dtype.is_float]
        return self.pick(floats if floats and self.chance(50) else self.dtypes)

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def size(self, value: int, arg_percent: int = 60) -> Size:
        """A number, or a size argument that has its value in this call."""
        if not self.chance(arg_percent):
            return value
        if value not in self.sizes or self.chance(30):
            self.sizes.append(value)
            return Arg(len(self.sizes) - 1)
        return Arg(self.sizes.index(value))

    def axis(self, name: str, rounds_limit: int = 8) -> _Axis:
        step = self.steps[name]
        options = [e for e in (_VECTOR_EXTENTS if name == self.vector else _EXTENTS) if -(-e // step) <= rounds_limit]
        extent = self.pick(options)
        return _Axis(name, step, extent, self.size(extent))

    def ordered(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(axes), key=self.order.index))

    def some_axes(self, percent: int = 65) -> tuple[str, ...]:
        return self.ordered(axis.name for axis in self.around if self.chance(percent))

    # statements

    def emit(self, statement: Statement, value: _Value | None = None) -> None:
        self.body.append(statement)
        if value is not None:
            self.visible.append(value)

    def fill(self, dtype: DType, axes: tuple[str, ...]) -> _Value:
        if dtype is not DType.BOOL and self.sizes and self.chance(10):
            number: float | Arg = Arg(self.pick(range(len(self.sizes))))
        else:
            number = self.literal(dtype)
        value = _Value(self.name(), Tile(dtype, axes), plain=True)
        self.emit(Fill(value.name, value.type, number), value)
        return value

    def literal(self, dtype: DType) -> float:
        if dtype is DType.BOOL:
            return self.pick((False, True))
        if dtype.is_float:
            return self.pick((0.0, 1.0, -1.0, 0.5, 2.0, -3.25, float("inf"), float("-inf")))
        return self.pick((0, 1, 2, 3, 100) if not dtype.is_signed else (0, 1, 2, -1, -2, 100))

    def load(self, dtype: DType, axes: tuple[str, ...] | None = None) -> _Value:
        """A new input, laid out at random."""
        axes = self.some_axes() if axes is None else axes
        at: tuple[tuple[str, Size], ...] = ()
        added, beyond = set[str](), 0
        if self.chance(20):
            at, added, beyond = self.gathered(axes)
        stored = dtype if self.chance(60) else self.pick((*DTYPES, DType.F16, DType.BF16))
        counted = self.ordered([*(axis for axis in axes if axis not in added), *self.some_axes(30)])
        index, length = self.layout(counted, axes, apart=False)
        buffer = self.buffer("x", stored, length + beyond)
        value = _Value(self.name(), Tile(dtype, axes), plain=stored.is_float)
        other = self.literal(dtype) if self.chance(50) else 0.0
        self.emit(Load(value.name, value.type, buffer, index, other, at), value)
        return value

    def buffer(self, prefix: str, dtype: DType, length: int, mode: str = "in") -> str:
        name = f"{prefix}{len(self.buffers)}"
        self.buffers.append(Buffer(name, dtype, mode))
        self.lengths[name] = length
        return name

    def gathered(self, axes: tuple[str, ...]) -> tuple[tuple[tuple[str, Size], ...], set[str], int]:
        """What the address of a tile over `axes` adds, the axes of that, and how much further the buffer must go."""
        at, added, beyond = list[tuple[str, Size]](), set[str](), 0
        for _ in range(self.pick((1, 1, 2))):
            count, stride = self.pick((1, 2, 5, 9)), self.pick((0, 1, 1, 3, 10))
            value = self.counted(tuple(axis for axis in axes if self.chance(60)), count)
            if self.chance(40):
                extent = self.pick((0, -1, count - 1)) if self.may_fail and self.chance(20) else count
                self.emit(Check(value.name, self.size(extent + self.pick((0, 2**33)) if extent == count else extent)))
            at.append((value.name, self.stride(stride)))
            added.update(value.type.axes)
            beyond += (count - 1) * stride
        return tuple(at), added, beyond

    def counted(self, axes: tuple[str, ...], count: int | str) -> _Value:
        """Integers from an input for addresses to add; none of them is seen by anything else."""
        dtype = self.pick((DType.I32, DType.I64))
        index, length = self.layout(axes, axes, apart=count == "distinct")
        name = self.buffer("n", self.pick((dtype, DType.I64)), length)
        self.counts[name] = count
        value = _Value(self.name(), Tile(dtype, axes))
        wild = _WILD if dtype is DType.I64 else 2**30
        self.emit(Load(value.name, value.type, name, index, self.pick((wild, -wild))))
        return value

    def layout(self, counted: Sequence[str], axes: Sequence[str], apart: bool) -> tuple[Index, int]:
        """Strides for `counted` axes, and how long a buffer must be; `apart`: each element has a place of its own."""
        around = {axis.name: axis for axis in self.around}
        stride, strides = self.pick((1, 1, 1, 2)), dict[str, int]()
        for name in reversed(counted if self.chance(60) else self.draw(st.permutations(list(counted)))):
            repeated = not apart and self.chance(20)
            strides[name] = 0 if repeated else -stride if self.chance(15) else stride
            stride *= 1 if repeated else max(1, around[name].extent)
        starts: dict[str, int] = {}
        if not apart and counted and self.chance(15):
            starts[self.pick(counted)] = self.pick((0, 1, 2, 5, -3))
        ends = [_span(around[name], strides[name], starts.get(name), name in axes) for name in counted]
        least, most = sum(low for low, _ in ends), sum(high for _, high in ends)
        offset = self.pick((0, 0, 0, 1, 5)) - least
        index = Index(
            tuple((name, self.stride(strides[name])) for name in counted),
            self.size(offset, 50),
            tuple((name, self.stride(start)) for name, start in starts.items()),
        )
        return index, offset + most + 1

    def stride(self, stride: int) -> Size:
        return self.size(stride, 20 if stride in (0, 1) else 70)

    def store(self) -> None:
        """Write a value that can be written here to a new output."""
        inside = {axis.name for axis in self.around}
        options = [value for value in self.visible if set(value.type.axes) <= inside]
        if not options:
            options = [self.load(self.dtype())]
        value = options[-1] if self.chance(70) else self.pick(options)
        stored = value.type.dtype
        if stored is DType.F32 and self.chance(25):
            stored = self.pick((DType.F16, DType.BF16))
        at: tuple[tuple[str, Size], ...] = ()
        scattered = self.ordered(axis for axis in value.type.axes if self.chance(60)) if self.chance(15) else ()
        rest = [axis for axis in inside if axis not in scattered]
        index, length = self.layout(self.ordered(rest), value.type.axes, apart=True)
        if scattered:
            places = self.counted(scattered, "distinct")
            at = ((places.name, self.stride(length)),)
            length *= self.lengths[self.buffers[-1].name]
        buffer = self.buffer("y", stored, length, "out")
        self.errors[buffer] = max(value.error, _bound(stored)) if value.error else 0.0
        self.emit(Store(buffer, index, value.name, at))
        if self.chance(10):
            again = replace(value, name=self.name(), plain=False, error=self.errors[buffer])
            self.emit(Load(again.name, again.type, buffer, index, at=at), again)

    def detour(self, value: _Value) -> None:
        """Through scratch and back; elements lie by their places in the tile alone."""
        if any(buffer.mode == "scratch" and buffer.dtype is not value.type.dtype for buffer in self.buffers):
            return
        if not any(buffer.mode == "scratch" for buffer in self.buffers):
            self.buffers.append(Buffer("t", value.type.dtype, "scratch"))
        stride, strides = 1, dict[str, int]()
        for name in reversed(value.type.axes):
            strides[name] = stride
            stride *= self.steps[name]
        index = Index(tuple(strides.items()), 0, tuple((name, 0) for name in strides))
        self.lengths["t"] = max(self.lengths.get("t", 0), stride)
        back = replace(value, name=self.name(), plain=False)
        self.emit(Store("t", index, value.name))
        self.emit(Load(back.name, back.type, "t", index), back)

    def position(self) -> None:
        if self.around:
            axis = self.pick(self.around).name
            value = _Value(self.name(), Tile(self.pick((DType.I32, DType.I64)), (axis,)))
            self.emit(Position(value.name, value.type, axis), value)

    def operand(self, dtype: DType | None = None, exact: bool = False, axes: Collection[str] | None = None) -> _Value:
        """A visible value of this kind, or a new one."""
        options = [
            value
            for value in self.visible
            if (dtype is None or value.type.dtype is dtype)
            and not (exact and value.error)
            and (axes is None or set(value.type.axes) <= set(axes))
        ]
        if options and self.chance(75):
            return options[-1] if self.chance(50) else self.pick(options)
        dtype = self.dtype() if dtype is None else dtype
        if self.chance(20):
            return self.fill(dtype, self.some_axes(30) if axes is None else ())
        inside = {axis.name for axis in self.around}
        return self.load(dtype, None if axes is None else self.ordered(a for a in axes if a in inside))

    def map(self) -> None:
        """One map or conversion of a visible value."""
        first = self.operand()
        dtype = first.type.dtype
        if self.chance(15):
            self.convert(first)
            return
        options = _FLOAT_MAPS if dtype.is_float else _BOOL_MAPS if dtype is DType.BOOL else _INTEGER_MAPS
        options = tuple(op for op in options if op in self.maps)
        if first.error:
            options = tuple(op for op in options if op in _GENTLE)
        if not first.plain:
            options = tuple(op for op in options if op not in _SERIES)
        if options:
            self.apply(self.pick(options), first)

    def apply(self, op: str, first: _Value) -> None:
        dtype = first.type.dtype
        if op == "select":
            args = [self.operand(DType.BOOL, exact=True), first, self.operand(dtype)]
        else:
            exact = op not in ("min", "max")
            args = [first, *(self.operand(dtype, exact) for _ in range(MAPS[op] - 1))]
        if dtype.is_float and op == "div" and not args[1].signed:
            return
        if dtype.is_float and op == "pow" and not (first.plain and args[1].plain):
            return
        axes = self.ordered(axis for arg in args for axis in arg.type.axes)
        error = max(arg.error for arg in args)
        if op in _SERIES or (op == "pow" and dtype.is_float):
            error = _bound(dtype)
        signed = all(arg.signed for arg in args) and op not in ("min", "max") if op != "abs" else True
        result = _Value(self.name(), Tile(DType.BOOL if op in COMPARISONS else dtype, axes), error, False, signed)
        self.emit(Map(result.name, result.type, op, tuple(arg.name for arg in args)), result)

    def convert(self, value: _Value) -> None:
        targets = [d for d in self.dtypes if not value.error or d.is_float]
        to = self.pick(targets or (value.type.dtype,))
        error = max(value.error, _bound(to)) if value.error else 0.0
        result = replace(value, name=self.name(), type=replace(value.type, dtype=to), error=error, plain=False)
        self.emit(Convert(result.name, result.type, value.name), result)

    # sections

    def elementwise(self) -> None:
        for _ in range(self.pick((1, 2, 3))):
            self.load(self.dtype())
        if self.chance(25):
            self.position()
        for _ in range(self.pick((0, 1, 2, 3, 5))):
            self.map()
        if self.may_scratch and self.chance(15):
            inside = {axis.name for axis in self.around}
            values = [value for value in self.visible if set(value.type.axes) <= inside]
            if values:
                self.detour(self.pick(values))
                self.map()
        self.store()

    def loop(self) -> None:
        """Elementwise work and accumulators, in one loop or in one within another."""
        free = [name for name in ("q", "r") if all(axis.name != name for axis in self.around)]
        if not free:
            self.elementwise()
            return
        axis = self.axis(self.pick(free))
        if self.chance(15):
            axis = replace(axis, begin=self.pick(range(axis.extent + 1)))
        inside_names = [*(a.name for a in self.around), axis.name]
        initials = []
        for _ in range(self.pick((0, 1, 1, 2))):
            axes = self.ordered(name for name in inside_names if self.chance(65))
            initials.append(self.fill(self.dtype(), axes))
        self.enclosed(axis, initials)

    def enclosed(self, axis: _Axis, initials: list[_Value]) -> None:
        outer, visible = self.body, list(self.visible)
        self.body = []
        self.around.append(axis)
        carried = [replace(initial, name=self.name(), plain=False, signed=False) for initial in initials]
        self.visible += carried
        self.pick((self.elementwise, self.elementwise, self.loop, self.map, self.reduce))()
        yielded = [self.accumulate(value) for value in carried]
        self.around.pop()
        body, self.body, self.visible = self.body, outer, visible
        results = [replace(value, name=self.name(), plain=False) for value in yielded]
        self.emit(
            Loop(
                axis.name,
                axis.size,
                axis.step,
                tuple(body),
                tuple((inside.name, initial.name) for inside, initial in zip(carried, initials, strict=True)),
                tuple(value.name for value in yielded),
                tuple(value.name for value in results),
                self.size(axis.begin, 50),
                (axis.extent - axis.begin) % axis.step == 0 and self.chance(30),
            )
        )
        self.visible += results
        for _ in results:
            if self.chance(80):
                self.reduce()
        if results and self.chance(70):
            self.map()
            self.store()

    def accumulate(self, acc: _Value) -> _Value:
        """acc op v, over the axes of acc; elements meet in a fixed order, so this is exact."""
        dtype, axes = acc.type.dtype, acc.type.axes
        value = self.operand(dtype, exact=True, axes=axes)
        if dtype.is_float:
            ops = ("add", "sub", "min", "max", "mul")
        elif dtype is DType.BOOL:
            ops = ("and", "or", "xor", "min", "max")
        else:
            ops = ("add", "sub", "mul", "min", "max", "xor", "or")
        ops = tuple(op for op in ops if op in self.maps)
        if not ops:
            return acc
        result = _Value(self.name(), acc.type, signed=False)
        self.emit(Map(result.name, result.type, self.pick(ops), (acc.name, value.name)), result)
        return result

    def reduce(self) -> None:
        """One visible tile over one of its axes. Float sums are of absolute values, products of inputs."""
        options = [value for value in self.visible if value.type.axes]
        if not options:
            return
        value = options[-1] if self.chance(60) else self.pick(options)
        dtype, axis = value.type.dtype, self.pick(value.type.axes)
        if dtype is DType.BOOL:
            ops = ["max", "min", "and", "or"]
        elif dtype.is_float:
            ops = ["max", "min", *(["sum"] if "abs" in self.maps else []), *(["prod"] if value.plain else [])]
        else:
            ops = ["sum", "prod", "max", "min", "and", "or"]
        op = self.pick(ops)
        if op == "sum" and dtype.is_float:
            self.apply("abs", value)
            value = self.visible[-1]
        error = max(value.error, _bound(dtype)) if op in ("sum", "prod") and dtype.is_float else value.error
        kept = tuple(name for name in value.type.axes if name != axis)
        result = _Value(self.name(), Tile(dtype, kept), error, False, False)
        self.emit(Reduce(result.name, result.type, op, value.name, axis), result)

    def dot(self) -> None:
        """A small matrix product with the sum over a loop, maps behind it, and a store."""
        kinds = [dtype for dtype in self.dtypes if dtype is not DType.BOOL and dtype.bits > 8]
        small = [dtype for dtype in self.dtypes if dtype in (DType.I8, DType.U8)]
        if not kinds:
            self.elementwise()
            return
        sides = (self.pick(kinds),) * 2
        if small and DType.I32 in kinds and self.chance(20):
            sides = (self.pick(small), self.pick(small))
        left, right = self.some_axes(60), self.some_axes(60)
        total = Tile(sides[0] if sides[0] in kinds else DType.I32, self.ordered([*left, *right]))
        initial = self.fill(total.dtype, total.axes)
        axis = self.axis("k")
        outer, visible = self.body, list(self.visible)
        self.body = []
        self.around.append(axis)
        acc = _Value(self.name(), total)
        a, b = (self.load(dtype, self.with_k(axes)) for dtype, axes in zip(sides, (left, right), strict=True))
        result, after = _Value(self.name(), total, signed=False), _Value(self.name(), total, signed=False)
        self.emit(Dot(result.name, total, a.name, b.name, acc.name, "k"))
        self.around.pop()
        body, self.body, self.visible = self.body, outer, visible
        carried = ((acc.name, initial.name),)
        self.emit(Loop("k", axis.size, axis.step, tuple(body), carried, (result.name,), (after.name,)), after)
        for _ in range(self.pick((0, 1, 2))):
            self.map()
        self.store()

    def with_k(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        place = self.pick(range(len(axes) + 1))
        return (*axes[:place], "k", *axes[place:])


def _span(axis: _Axis, stride: int, start: int | None, spread: bool) -> tuple[int, int]:
    """Least and largest distance from the offset along one axis."""
    ends = [0]
    for position, inside in axis.rounds():
        first = position * (stride if start is None else start)
        ends += [first, first + (inside - 1) * stride if spread else first]
    return min(ends), max(ends)


def _bound(dtype: DType) -> float:
    eps = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F64: 2.0**-52}
    return _TOLERANCE_EPS * eps.get(dtype, 2.0**-23)


def _has_loop(body: Sequence[Statement], axis: str) -> bool:
    return any(isinstance(s, Loop) and (s.axis == axis or _has_loop(s.body, axis)) for s in body)
