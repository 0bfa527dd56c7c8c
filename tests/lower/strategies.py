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

from collections.abc import Callable, Collection, Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace
from tests.lower.accesses import DTYPES, Accesses, Axis, Value
from tests.lower.case import Case, bound

from tierup.ir.types import DType
from tierup.lower.tile import (
    COMPARISONS,
    MAPS,
    WORD_DOTS,
    Buffer,
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
    Statement,
    Store,
    Tile,
    TileProgram,
)

__all__ = ["Case", "programs"]

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
    "pow", "eq", "lt", "le", "select",
)  # fmt: skip
_BOOL_MAPS = ("not", "and", "or", "xor", "min", "max", "eq", "lt", "le", "select")
# What keeps a relative error as small as it is; `mul` where the other factor has none.
_GENTLE = ("neg", "abs", "min", "max", "mul", "select")
_VECTOR_STEPS, _STEPS = (1, 2, 4, 8, 16, 17, 32, 48), (1, 1, 2, 3, 4, 4, 8)
_ROWS_LIMIT = 16  # elements of a tile along all axes but the vector's: they are unrolled
_GRID_LIMIT = 48  # grid steps: each takes the interpreter about a millisecond


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


class _Drawing(Accesses):
    """Draws one program, section by section."""

    def __init__(
        self,
        draw: Callable[[st.SearchStrategy[Any]], Any],
        maps: frozenset[str],
        dtypes: tuple[DType, ...],
        scratch: bool,
        failing: bool,
    ) -> None:
        super().__init__(draw, dtypes, failing)
        self.maps, self.may_scratch = maps, scratch

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

    def detour(self, value: Value) -> None:
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
            value = Value(self.name(), Tile(self.pick((DType.I32, DType.I64)), (axis,)))
            self.emit(Position(value.name, value.type, axis), value)

    def operand(self, dtype: DType | None = None, exact: bool = False, axes: Collection[str] | None = None) -> Value:
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
        options += tuple(op for op, total in WORD_DOTS.items() if total is dtype and DType.I32 in self.dtypes)
        options = tuple(op for op in options if op in self.maps)
        if first.error:
            options = tuple(op for op in options if op in _GENTLE)
        if not first.plain:
            options = tuple(op for op in options if op not in _SERIES)
        if options:
            self.apply(self.pick(options), first)

    def apply(self, op: str, first: Value) -> None:
        dtype = first.type.dtype
        if op == "select":
            args = [self.operand(DType.BOOL, exact=True), first, self.operand(dtype)]
        elif op in WORD_DOTS:
            args = [self.operand(DType.I32, exact=True), self.operand(DType.I32, exact=True), first]
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
            error = bound(dtype)
        signed = all(arg.signed for arg in args) and op not in ("min", "max") if op != "abs" else True
        result = Value(self.name(), Tile(DType.BOOL if op in COMPARISONS else dtype, axes), error, False, signed)
        self.emit(Map(result.name, result.type, op, tuple(arg.name for arg in args)), result)

    def convert(self, value: Value) -> None:
        targets = [d for d in self.dtypes if not value.error or d.is_float]
        to = self.pick(targets or (value.type.dtype,))
        error = max(value.error, bound(to)) if value.error else 0.0
        result = replace(value, name=self.name(), type=replace(value.type, dtype=to), error=error, plain=False)
        self.emit(Convert(result.name, result.type, value.name), result)

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

    def enclosed(self, axis: Axis, initials: list[Value]) -> None:
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
        exact = (axis.extent - axis.begin) % axis.step == 0 and self.chance(30)
        condition = self.condition() if self.chance(25) else ""
        sums = tuple(value.name for value in carried if value.type.dtype.is_float and self.chance(40))
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
                exact,
                condition if exact or axis.step == 1 else "",
                sums,
                self.pick((1, 2, 3, 5)) if sums else 0,
            )
        )
        self.visible += results
        for _ in results:
            if self.chance(80):
                self.reduce()
        if results and self.chance(70):
            self.map()
            self.store()

    def condition(self) -> str:
        """What a loop depends on."""
        name = self.name()
        self.body.append(Fill(name, Tile(DType.BOOL), self.chance(70)))
        return name

    def accumulate(self, acc: Value) -> Value:
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
        result = Value(self.name(), acc.type, signed=False)
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
        error = max(value.error, bound(dtype)) if op in ("sum", "prod") and dtype.is_float else value.error
        kept = tuple(name for name in value.type.axes if name != axis)
        result = Value(self.name(), Tile(dtype, kept), error, False, False)
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
        acc = Value(self.name(), total)
        a, b = (self.load(dtype, self.with_k(axes)) for dtype, axes in zip(sides, (left, right), strict=True))
        result, after = Value(self.name(), total, signed=False), Value(self.name(), total, signed=False)
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


def _has_loop(body: Sequence[Statement], axis: str) -> bool:
    return any(isinstance(s, Loop) and (s.axis == axis or _has_loop(s.body, axis)) for s in body)
