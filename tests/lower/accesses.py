"""Draws axes, sizes, buffers, and loads and stores of every kind: what the sections of `strategies.py` stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from tests.lower.case import bound

from tierup.ir.types import DType
from tierup.lower.tile import Arg, Buffer, Check, Fill, Index, Load, Size, Statement, Store, Tile

DTYPES = (
    DType.F32, DType.F64, DType.I32, DType.I64, DType.BOOL, DType.I8, DType.U8, DType.I16, DType.U16, DType.U32,
    DType.U64,
)  # fmt: skip
# Of the vector axis, and of the others.
_VECTOR_EXTENTS = (1, 3, 8, 16, 17, 33, 40, 50, 0)
_EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 0)
_WILD = 2**40  # times any stride an address that nothing is mapped at
_Item = TypeVar("_Item")


class Axis(Struct, frozen=True):
    name: str
    step: int
    extent: int  # in this call
    size: Size  # in the program
    begin: int = 0

    def rounds(self) -> Iterable[tuple[int, int]]:
        """(position, elements before the edge) of each step."""
        return ((p, min(self.step, self.extent - p)) for p in range(self.begin, self.extent, self.step))


class Value(Struct, frozen=True):
    """`error`: how far executors may differ; `plain`: straight from memory; not `signed`: a zero's sign is open."""

    name: str
    type: Tile
    error: float = 0.0
    plain: bool = False
    signed: bool = True


class Accesses:
    """Draws what all sections need; the body that is being written is `body`."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], dtypes: tuple[DType, ...], failing: bool) -> None:
        self.draw, self.dtypes, self.may_fail = draw, dtypes, failing
        self.vector: str | None = None
        self.order: list[str] = []
        self.sizes: list[int] = []
        self.buffers: list[Buffer] = []
        self.lengths: dict[str, int] = {}
        self.errors: dict[str, float] = {}
        self.counts: dict[str, int | str] = {}
        self.steps: dict[str, int] = {}
        self.around: list[Axis] = []
        self.body: list[Statement] = []
        self.visible: list[Value] = []
        self.count = 0

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

    def axis(self, name: str, rounds_limit: int = 8) -> Axis:
        step = self.steps[name]
        options = [e for e in (_VECTOR_EXTENTS if name == self.vector else _EXTENTS) if -(-e // step) <= rounds_limit]
        extent = self.pick(options)
        return Axis(name, step, extent, self.size(extent))

    def ordered(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(axes), key=self.order.index))

    def some_axes(self, percent: int = 65) -> tuple[str, ...]:
        return self.ordered(axis.name for axis in self.around if self.chance(percent))

    def emit(self, statement: Statement, value: Value | None = None) -> None:
        self.body.append(statement)
        if value is not None:
            self.visible.append(value)

    def fill(self, dtype: DType, axes: tuple[str, ...]) -> Value:
        if dtype is not DType.BOOL and self.sizes and self.chance(10):
            number: float | Arg = Arg(self.pick(range(len(self.sizes))))
        else:
            number = self.literal(dtype)
        value = Value(self.name(), Tile(dtype, axes), plain=True)
        self.emit(Fill(value.name, value.type, number), value)
        return value

    def literal(self, dtype: DType) -> float:
        if dtype is DType.BOOL:
            return self.pick((False, True))
        if dtype.is_float:
            return self.pick((0.0, 1.0, -1.0, 0.5, 2.0, -3.25, float("inf"), float("-inf")))
        return self.pick((0, 1, 2, 3, 100) if not dtype.is_signed else (0, 1, 2, -1, -2, 100))

    def load(self, dtype: DType, axes: tuple[str, ...] | None = None) -> Value:
        """A new input, laid out at random."""
        axes = self.some_axes() if axes is None else axes
        at: tuple[tuple[str, Size], ...] = ()
        added, beyond = set[str](), 0
        if self.chance(20):
            at, added, beyond = self.gathered(axes)
        stored = dtype if self.chance(60) else self.pick((*DTYPES, DType.F16, DType.BF16))
        counted = self.ordered([*(axis for axis in axes if axis not in added), *self.some_axes(30)])
        innermost = [axis for axis in axes if axis != self.vector and self.steps[axis] % 4 == 0 and axis not in added]
        side_by_side = self.pick(innermost) if innermost and self.vector in counted and self.chance(60) else None
        index, length = self.layout(counted, axes, apart=False, side_by_side=side_by_side)
        buffer = self.buffer("x", stored, length + beyond)
        value = Value(self.name(), Tile(dtype, axes), plain=stored.is_float)
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

    def counted(self, axes: tuple[str, ...], count: int | str) -> Value:
        """Integers from an input for addresses to add; none of them is seen by anything else."""
        dtype = self.pick((DType.I32, DType.I64))
        index, length = self.layout(axes, axes, apart=count == "distinct")
        name = self.buffer("n", self.pick((dtype, DType.I64)), length)
        self.counts[name] = count
        value = Value(self.name(), Tile(dtype, axes))
        wild = _WILD if dtype is DType.I64 else 2**30
        self.emit(Load(value.name, value.type, name, index, self.pick((wild, -wild))))
        return value

    def layout(
        self, counted: Sequence[str], axes: Sequence[str], apart: bool, side_by_side: str | None = None
    ) -> tuple[Index, int]:
        """Strides for `counted` axes, and how long a buffer must be; `apart`: each element has a place of its own.

        Elements along `side_by_side` lie so.
        """
        around = {axis.name: axis for axis in self.around}
        stride, strides = self.pick((1, 1, 1, 2)), dict[str, int]()
        if side_by_side:
            strides[side_by_side], stride = 1, max(1, around[side_by_side].extent)
        others = [name for name in counted if name != side_by_side]
        for name in reversed(others if self.chance(60) else self.draw(st.permutations(others))):
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
            tuple((name, 1 if name == side_by_side else self.stride(strides[name])) for name in counted),
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
        self.errors[buffer] = max(value.error, bound(stored)) if value.error else 0.0
        self.emit(Store(buffer, index, value.name, at))
        if self.chance(10):
            again = replace(value, name=self.name(), plain=False, error=self.errors[buffer])
            self.emit(Load(again.name, again.type, buffer, index, at=at), again)


def _span(axis: Axis, stride: int, start: int | None, spread: bool) -> tuple[int, int]:
    """Least and largest distance from the offset along one axis."""
    ends = [0]
    for position, inside in axis.rounds():
        first = position * (stride if start is None else start)
        ends += [first, first + (inside - 1) * stride if spread else first]
    return min(ends), max(ends)
