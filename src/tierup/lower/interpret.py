"""Runs tile programs in NumPy, one grid step after the other: what the emitters' code must agree with.

Comes in: a program, an array for each buffer (flat, of the buffer's dtype; scratch too), the sizes. The outputs are
written. Meant for tests: every access is checked against its buffer, and a program that leaves it raises IndexError
before anything is read or written there. A `check` that fails raises CheckError, where compiled code returns 1.

Numbers are those of `reference/core.py`, exactly where IEEE 754 and the integers leave no choice. `fma`, and `dot`
along its axis in ascending order, round once for each element (f64: but for products near the ends of its range). The
order in which `reduce` combines elements is not part of its meaning: compare float sums and products with a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tierup.errors import InputError
from tierup.ir.graph import Node
from tierup.ir.types import Array, DType
from tierup.lower.text import line_text
from tierup.lower.tile import (
    MAPS,
    Arg,
    Buffer,
    Check,
    Convert,
    Dot,
    Fill,
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
from tierup.lower.verify import ROUNDED_DTYPES, TileError, verify
from tierup.reference import core
from tierup.reference.cast import convert, flushed

_NODE = Node("core.map", 1, (), ())  # the reference's maps take a node, and read nothing of it
_REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
    "or": np.bitwise_or,
}  # fmt: skip


class CheckError(InputError):
    """An integer from the data is not within the range that the program needs."""


def grid_steps(program: TileProgram, sizes: Sequence[int]) -> int:
    """How many steps the grid has at these sizes: what `begin` and `end` count, and threads divide."""
    total = 1
    for dim in program.grid:
        total *= _rounds(_size(dim.extent, sizes), dim.step)
    return total


def interpret(
    program: TileProgram,
    buffers: Mapping[str, Array],
    sizes: Sequence[int],
    begin: int | None = None,
    end: int | None = None,
) -> None:
    """Run the grid's steps from `begin` up to `end`, all by default; the last grid dimension runs fastest."""
    verify(program)
    if len(sizes) != program.n_sizes:
        raise TileError(f"tile program '{program.name}' takes {program.n_sizes} sizes, but {len(sizes)} were given")
    for buffer in program.buffers:
        _check(program, buffer, buffers)
    total = grid_steps(program, sizes)
    begin, end = 0 if begin is None else begin, total if end is None else end
    if not 0 <= begin <= end <= total:
        raise TileError(f"steps {begin} to {end} are not within the grid's {total} steps")
    run = _Run(program, buffers, sizes)
    with np.errstate(all="ignore"):
        for step in range(begin, end):
            run.grid_step(step)


def _check(program: TileProgram, buffer: Buffer, buffers: Mapping[str, Array]) -> None:
    given = buffers.get(buffer.name)
    if given is None or given.ndim != 1 or given.dtype != buffer.dtype.numpy:
        what = "nothing" if given is None else f"{given.ndim}-d {given.dtype}"
        raise TileError(
            f"buffer '{buffer.name}' of tile program '{program.name}' must be a flat array of {buffer.dtype!r}, "
            f"but {what} was given"
        )


def _size(size: Size, sizes: Sequence[int]) -> int:
    return int(sizes[size.index]) if isinstance(size, Arg) else size


def _rounds(extent: int, step: int) -> int:
    return max(0, -(-extent // step))


class _Place(NamedTuple):
    """Where a loop stands: its position, and how many elements of this step lie before the edge (at least one)."""

    position: int
    inside: int


class _Run:
    """One call. Names are unique, so one table holds all values; the verifier has seen to it that none is stale."""

    def __init__(self, program: TileProgram, buffers: Mapping[str, Array], sizes: Sequence[int]) -> None:
        self.program, self.buffers, self.sizes = program, buffers, sizes
        self.dtypes = {buffer.name: buffer.dtype for buffer in program.buffers}
        self.steps = {dim.axis: dim.step for dim in program.grid}
        self.types: dict[str, Tile] = {}
        self.places: dict[str, _Place] = {}
        self.values: dict[str, Array] = {}
        self.note(program.body)

    def note(self, body: Sequence[Statement]) -> None:
        """Collect steps and types."""
        for statement in body:
            if isinstance(statement, Loop):
                self.steps[statement.axis] = statement.step
                for (inside, initial), result in zip(statement.carried, statement.results, strict=True):
                    self.types[inside] = self.types[result] = self.types[initial]
                self.note(statement.body)
            elif not isinstance(statement, Store | Check):
                self.types[statement.out] = statement.type

    def size(self, size: Size) -> int:
        return _size(size, self.sizes)

    def enter(self, axis: str, position: int, extent: int) -> None:
        self.places[axis] = _Place(position, min(self.steps[axis], extent - position))

    def grid_step(self, step: int) -> None:
        for dim in reversed(self.program.grid):
            extent = self.size(dim.extent)
            step, round = divmod(step, _rounds(extent, dim.step))
            self.enter(dim.axis, round * dim.step, extent)
        self.block(self.program.body)

    def block(self, body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Store):
                self.store(statement)
            elif isinstance(statement, Check):
                self.check(statement)
            else:
                value = self.result(statement)
                self.values[statement.out] = np.broadcast_to(value, self.shape(statement.type.axes))

    def loop(self, loop: Loop) -> None:
        begin, extent = self.size(loop.begin), self.size(loop.extent)
        if loop.exact and extent > begin and (extent - begin) % loop.step:
            raise TileError(f"'{line_text(loop)}' in '{self.program.name}' is not exact from {begin} to {extent}")
        state = [self.values[initial] for _, initial in loop.carried]
        if loop.when and not self.values[loop.when]:
            extent = begin
        positions, whole = range(begin, extent, loop.step), max(extent - begin, 0) // loop.step
        for first in range(0, whole, loop.block) if loop.sums else ():
            state = self.added_up(loop, positions[first : min(first + loop.block, whole)], extent, state)
        state = self.rounds(loop, positions[whole:] if loop.sums else positions, extent, state)
        self.places.pop(loop.axis, None)
        self.values.update(zip(loop.results, state, strict=True))

    def added_up(self, loop: Loop, positions: range, extent: int, state: Sequence[Array]) -> list[Array]:
        """Rounds that begin sums anew and add them to what there was before."""
        summed = [inside in loop.sums for inside, _ in loop.carried]
        begun = [np.zeros_like(old) if anew else old for old, anew in zip(state, summed, strict=True)]
        ended = self.rounds(loop, positions, extent, begun)
        return [old + new if anew else new for old, new, anew in zip(state, ended, summed, strict=True)]

    def rounds(self, loop: Loop, positions: range, extent: int, state: Sequence[Array]) -> list[Array]:
        """What is carried out of rounds at these positions."""
        state = list(state)
        for position in positions:
            self.enter(loop.axis, position, extent)
            self.values.update(zip((inside for inside, _ in loop.carried), state, strict=True))
            self.block(loop.body)
            state = [
                self.kept(loop.axis, self.types[name], old, self.values[name])
                for name, old in zip(loop.yields, state, strict=True)
            ]
        return state

    def kept(self, axis: str, tile: Tile, old: Array, new: Array) -> Array:
        """`new` before the edge of this round, `old` beyond it."""
        if axis not in tile.axes:
            return new
        before = np.arange(self.steps[axis]) < self.places[axis].inside
        return np.where(_along(before, axis, tile.axes), new, old)

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.steps[axis] for axis in axes)

    def aligned(self, name: str, axes: Sequence[str]) -> Array:
        """A value with `axes`, which hold its own in their order; it has one element along the others."""
        own = self.types[name].axes
        return self.values[name].reshape([self.steps[axis] if axis in own else 1 for axis in axes])

    def result(self, statement: Fill | Load | Position | Map | Convert | Reduce | Dot) -> Array:
        match statement:
            case Fill(type=tile, value=value):
                if isinstance(value, Arg):
                    return convert(np.array(self.size(value), np.int64), tile.dtype)
                return element(value, tile.dtype)
            case Load():
                return self.load(statement)
            case Position(type=tile, axis=axis):
                return (self.places[axis].position + np.arange(self.steps[axis])).astype(tile.dtype.numpy)
            case Map(type=tile, op=op, args=args):
                return _MAPS[op](*(self.aligned(arg, tile.axes) for arg in args))
            case Convert(type=tile, arg=arg):
                return convert(self.values[arg], tile.dtype)
            case Reduce(op=op, arg=arg, axis=axis):
                along = self.along(arg, axis)
                return np.asarray(_REDUCTIONS[op].reduce(along, axis=-1, dtype=along.dtype))
            case Dot():
                return self.dot(statement)

    def dot(self, dot: Dot) -> Array:
        acc = self.values[dot.acc]
        a, b = (self.side(name, dot).astype(acc.dtype) for name in (dot.a, dot.b))  # bytes are multiplied in i32
        for k in range(a.shape[-1]):
            acc = fma(a[..., k], b[..., k], acc)
        return acc

    def side(self, name: str, dot: Dot) -> Array:
        """One side of a dot: the result's axes, then the axis to sum over."""
        own = self.types[name].axes
        return self.along(name, dot.axis).reshape([self.steps[a] if a in own else 1 for a in dot.type.axes] + [-1])

    def along(self, name: str, axis: str) -> Array:
        """A value with `axis` last, up to the edge where a loop over it is around."""
        last = np.moveaxis(self.values[name], self.types[name].axes.index(axis), -1)
        return last[..., : self.places[axis].inside] if axis in self.places else last

    def check(self, check: Check) -> None:
        axes, extent = self.types[check.arg].axes, self.size(check.extent)
        looked_at = self.values[check.arg][self.inside(axes)]
        bad = looked_at[(looked_at < 0) | (looked_at >= extent)]
        if bad.size:
            raise CheckError(
                f"tile program '{self.program.name}', '{line_text(check)}' at {self.where()}: {bad[0]} is not within "
                f"[0, {extent})"
            )

    def load(self, load: Load) -> Array:
        tile = np.full(self.shape(load.type.axes), element(load.other, load.type.dtype))
        source = self.buffers[load.buffer][self.addresses(load, load.type.axes)]
        if self.dtypes[load.buffer] in ROUNDED_DTYPES:
            source = convert(source, DType.F32)
        tile[self.inside(load.type.axes)] = convert(source, load.type.dtype)
        return tile

    def store(self, store: Store) -> None:
        axes, to = self.types[store.arg].axes, self.dtypes[store.buffer]
        value = self.values[store.arg][self.inside(axes)]
        if to in ROUNDED_DTYPES:
            value = convert(value, DType.F32)
        if store.flush:
            value = flushed(value)
        self.buffers[store.buffer][self.addresses(store, axes)] = convert(value, to, saturate=False)

    def inside(self, axes: Sequence[str]) -> tuple[slice, ...]:
        """The part of a tile that lies before all edges."""
        return tuple(slice(self.inside_of(axis)) for axis in axes)

    def inside_of(self, axis: str) -> int:
        """How many elements lie before the edge of the loop over `axis`; outside that loop, all."""
        return self.places[axis].inside if axis in self.places else self.steps[axis]

    def addresses(self, access: Load | Store, axes: Sequence[str]) -> Array:
        """Addresses of the elements before all edges."""
        index = access.index
        first, starts = self.size(index.offset), {axis: self.size(stride) for axis, stride in index.starts}
        terms = [(self.added(name, axes), self.size(stride)) for name, stride in access.at]
        for axis, stride in ((axis, self.size(stride)) for axis, stride in index.axes):
            position, inside = self.places[axis]
            first += position * starts.get(axis, stride)
            if axis in axes:
                terms.append((_along(np.arange(inside), axis, axes), stride))
        largest = abs(first) + sum(max(map(abs, (int(t.min()), int(t.max())))) * abs(stride) for t, stride in terms)
        kind = np.int64 if largest < 2**63 else object  # Python's integers do not wrap
        spread = np.full([self.inside_of(axis) for axis in axes], first, kind)
        for term, stride in terms:
            spread = spread + term.astype(kind) * stride
        least, most, length = spread.min(), spread.max(), len(self.buffers[access.buffer])
        if least < 0 or most >= length:
            raise IndexError(
                f"tile program '{self.program.name}', '{line_text(access)}' at {self.where()}: addresses "
                f"{least} to {most} are not all within '{access.buffer}', which has {length} elements"
            )
        return np.asarray(spread)

    def added(self, name: str, axes: Sequence[str]) -> Array:
        """The elements of a tile before all edges, laid out along `axes`."""
        own = self.types[name].axes
        value = self.values[name][self.inside(own)]
        ordered = np.transpose(value, [own.index(axis) for axis in axes if axis in own])
        return ordered.reshape([self.inside_of(axis) if axis in own else 1 for axis in axes])

    def where(self) -> str:
        return ", ".join(f"{axis} = {place.position}" for axis, place in self.places.items()) or "its only step"


def _along(values: Array, axis: str, axes: Sequence[str]) -> Array:
    return values.reshape([-1 if name == axis else 1 for name in axes])


def element(value: float, dtype: DType) -> Array:
    """A literal, which the verifier has found to be a value of `dtype`."""
    exact = float(value) if dtype.is_float else int(value)
    return np.array(exact, np.float64).astype(dtype.numpy) if dtype.is_float else np.array(exact, dtype.numpy)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a · b + c, rounded once; integers wrap."""
    if a.dtype.kind != "f":
        return np.asarray(a * b + c)
    if a.dtype == np.float64:
        return _fma64(a, b, c)
    # in f64 the product is exact; a sum that is rounded to odd can be rounded again without harm
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    return np.asarray(_to_odd(*_two_sum(product, addend))).astype(np.float32)


def dot_bf16(a: Array, b: Array, c: Array) -> Array:
    """c + Σ over both halves of the words, rounded after the upper and after the lower half."""
    for x, y in zip(_halves(a), _halves(b), strict=True):
        c = fma(x, y, c)
    return c


def _halves(words: Array) -> tuple[Array, Array]:
    """The upper and the lower half of each word as numbers; denormals are zero."""
    bits = words.view(np.uint32)
    parts = ((half.astype(np.uint32)).view(np.float32) for half in (bits & 0xFFFF0000, bits << 16))
    upper, lower = (np.where(np.abs(part) < np.finfo(np.float32).tiny, np.float32(0), part) for part in parts)
    return upper, lower


def dot_bytes(a: Array, b: Array, c: Array) -> Array:
    """c + Σ of unsigned bytes of a by signed bytes of b, modulo 2^32."""
    left, right = (np.ascontiguousarray(words)[..., None].view(kind) for words, kind in ((a, np.uint8), (b, np.int8)))
    return np.asarray(c + np.sum(left.astype(np.int32) * right.astype(np.int32), axis=-1, dtype=np.int32))


def _fma64(a: Array, b: Array, c: Array) -> Array:
    """Boldo and Melquiond, "Emulation of FMA and correctly rounded sums". Near the ends of the range, a · b + c."""
    product = a * b
    error = _product_error(a, b, product)
    upper, lower = _two_sum(c, error)
    total, rest = _two_sum(product, upper)
    result = total + _to_odd(*_two_sum(lower, rest))
    plain = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, product + c)
    return np.asarray(np.where(np.isfinite(result) & (result != 0), result, plain))


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """a · b - product, by Dekker."""
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    return np.asarray(((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low)


def _upper_half(x: Array) -> Array:
    scaled = x * (2.0**27 + 1)
    return np.asarray(scaled - (scaled - x))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum, and exactly what is missing from it."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _to_odd(total: Array, missing: Array) -> Array:
    """total + missing: exact where it can be, else the neighbour whose last bit is 1."""
    even = np.asarray(total).view(np.int64) % 2 == 0
    other = np.nextafter(total, np.copysign(np.inf, missing))
    return np.asarray(np.where(even & (missing != 0) & np.isfinite(missing), other, total))


def _reference(op: str) -> Callable[..., Array]:
    """The reference of a map; names that Python has taken end in an underscore there."""
    function: Any = getattr(core, op, None) or getattr(core, f"{op}_")
    return lambda *args: np.asarray(function(_NODE, *args))


def apply_map(op: str, *args: Array) -> Array:
    """A map of `MAPS` on numbers or arrays of one dtype."""
    with np.errstate(all="ignore"):
        return _MAPS[op](*args)


_OWN: dict[str, Callable[..., Array]] = {"fma": fma, "dot_bf16": dot_bf16, "dot_bytes": dot_bytes}
_MAPS = {op: _OWN.get(op) or _reference(op) for op in MAPS}
