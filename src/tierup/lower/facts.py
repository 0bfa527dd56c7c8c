"""A tile program under the assumption that all elements of some buffers are one number -> the same program with less
to do.

Loads of such a buffer become literals; maps of literals are computed here, lookups at a literal place become plain
loads, checks that hold are left out, and so is what nobody uses then. What is left is exactly what the program computes
where the assumption holds: only maps that leave every number as it is are dropped. Buffers stay declared, so that calls
pass what they passed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from tierup.ir.types import Array, DType
from tierup.lower.interpret import apply_map, element
from tierup.lower.kernel import Kernel
from tierup.lower.tile import (
    MAPS,
    WORD_DOTS,
    Arg,
    Check,
    Convert,
    Dot,
    Fill,
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
from tierup.reference.cast import convert

# (op, which argument, number): the other argument as it is, for every number and NaN. x + 0 is not among them: of -0 it
# makes 0.
_IDENTITIES = {
    "add": ((0, -0.0), (1, -0.0)),
    "sub": ((1, 0.0),),
    "mul": ((0, 1.0), (1, 1.0)),
    "div": ((1, 1.0),),
    "shl": ((1, 0.0),),
    "shr": ((1, 0.0),),
}
_IDEMPOTENT = ("max", "min", "and", "or")  # reductions of one number that are this number


def with_facts(kernel: Kernel, uniform: Mapping[int, float], dtypes: Mapping[int, DType]) -> Kernel:
    """The kernel where all elements of these values are one number. `dtypes` are the values' own: a buffer that the
    kernel takes for something else is left alone."""
    passed = [buffer for buffer in kernel.program.buffers if buffer.mode != "scratch"]
    known = {
        buffer.name: uniform[value]
        for buffer, value in zip(passed, kernel.buffers, strict=True)
        if isinstance(value, int) and value in uniform and buffer.mode == "in" and buffer.dtype is dtypes[value]
    }
    return replace(kernel, program=fold(kernel.program, known)) if known else kernel


def fold(program: TileProgram, known: Mapping[str, float]) -> TileProgram:
    """The program where all elements of these buffers are these numbers."""
    body = _Folding(program, known).block(program.body)
    return replace(program, body=tuple(_needed(body, set())))


def unread(program: TileProgram) -> set[str]:
    """The inputs that a program does not look at."""
    loaded, pending = set(), list(program.body)
    while pending:
        statement = pending.pop()
        if isinstance(statement, Loop):
            pending.extend(statement.body)
        elif isinstance(statement, Load):
            loaded.add(statement.buffer)
    return {buffer.name for buffer in program.buffers if buffer.mode == "in"} - loaded


class _Folding:
    """One program. `numbers` are the values that are literals, `same` those that are another value."""

    def __init__(self, program: TileProgram, known: Mapping[str, float]) -> None:
        self._known = known
        self._stored = {buffer.name: buffer.dtype for buffer in program.buffers}
        self._numbers: dict[str, Array] = {}
        self._types: dict[str, Tile] = {}
        self._same: dict[str, str] = {}

    def block(self, body: Sequence[Statement]) -> list[Statement]:
        return [made for statement in body if (made := self._statement(statement)) is not None]

    def _name(self, name: str) -> str:
        return self._same.get(name, name)

    def _statement(self, statement: Statement) -> Statement | None:
        """What becomes of a statement; None if nothing is left of it."""
        match statement:
            case Loop():
                return self._loop(statement)
            case Store():
                return replace(statement, arg=self._name(statement.arg), at=self._at(statement.at))
            case Check():
                return self._check(replace(statement, arg=self._name(statement.arg)))
        self._types[statement.out] = statement.type
        number = self._number(statement)
        if number is not None:
            return self._literal(statement.out, statement.type, number)
        match statement:
            case Load():
                return self._load(statement)
            case Map():
                return self._map(replace(statement, args=tuple(map(self._name, statement.args))))
            case Convert() | Reduce():
                return replace(statement, arg=self._name(statement.arg))
            case Dot():
                a, b, acc = map(self._name, (statement.a, statement.b, statement.acc))
                return replace(statement, a=a, b=b, acc=acc)
        return statement

    def _at(self, at: tuple[tuple[str, int | Arg], ...]) -> tuple[tuple[str, int | Arg], ...]:
        return tuple((self._name(name), stride) for name, stride in at)

    def _number(self, statement: Fill | Load | Position | Map | Convert | Reduce | Dot) -> Array | None:
        """What every element of a statement's result is, if that is one number."""
        match statement:
            case Fill(value=value, type=tile):
                return None if isinstance(value, Arg) else element(value, tile.dtype)
            case Load(buffer=buffer, type=tile) if buffer in self._known:
                return convert(element(self._known[buffer], self._stored[buffer]), tile.dtype)
            case Map(op=op, args=args) if op not in WORD_DOTS:
                found = [self._numbers[name] for name in map(self._name, args) if name in self._numbers]
                return apply_map(op, *found) if len(found) == MAPS[op] else None
            case Convert(arg=arg, type=tile) if self._name(arg) in self._numbers:
                return convert(self._numbers[self._name(arg)], tile.dtype)
            case Reduce(arg=arg, op=op) if self._name(arg) in self._numbers and op in _IDEMPOTENT:
                return self._numbers[self._name(arg)]
        return None

    def _literal(self, out: str, tile: Tile, number: Array) -> Fill:
        self._numbers[out] = np.asarray(number)
        return Fill(out, tile, bool(number) if tile.dtype is DType.BOOL else number.item())

    def _check(self, check: Check) -> Check | None:
        number = self._numbers.get(check.arg)
        if number is not None and isinstance(check.extent, int) and 0 <= int(number) < check.extent:
            return None
        return check

    def _load(self, load: Load) -> Load:
        """Places that are one number go into the offset; elements along their axes are then the same one."""
        index, left, axes = load.index, list[tuple[str, int | Arg]](), set[str]()
        for name, stride in self._at(load.at):
            number = self._numbers.get(name)
            if number is None or isinstance(stride, Arg) or isinstance(index.offset, Arg):
                left.append((name, stride))
                axes.update(self._types[name].axes)
            else:
                index = replace(index, offset=index.offset + int(number) * stride)
        axes.update(axis for axis, _ in index.axes)
        repeated = tuple((axis, 0) for axis in load.type.axes if axis not in axes)
        return replace(load, index=Index((*index.axes, *repeated), index.offset, index.starts), at=tuple(left))

    def _map(self, statement: Map) -> Map | None:
        """A map, unless it gives one of its arguments back."""
        given = self._given_back(statement)
        if given is not None and self._types.get(given) == statement.type:
            self._same[statement.out] = given
            return None
        return statement

    def _given_back(self, statement: Map) -> str | None:
        numbers = [self._numbers.get(arg) for arg in statement.args]
        if statement.op == "select" and numbers[0] is not None:
            return statement.args[1 if bool(numbers[0]) else 2]
        for place, neutral in _IDENTITIES.get(statement.op, ()):
            number = numbers[place]
            if number is not None and _is(number, neutral):
                return statement.args[1 - place]
        return None

    def _loop(self, loop: Loop) -> Loop:
        for (inside, initial), result in zip(loop.carried, loop.results, strict=True):
            if (tile := self._types.get(self._name(initial))) is not None:
                self._types[inside] = self._types[result] = tile
        body = tuple(self.block(loop.body))
        return replace(
            loop,
            body=body,
            carried=tuple((inside, self._name(initial)) for inside, initial in loop.carried),
            yields=tuple(map(self._name, loop.yields)),
            when=self._name(loop.when),
        )


def _is(number: Array, neutral: float) -> bool:
    """Whether a number is this one, zeros of floats by their sign."""
    if number.dtype.kind != "f":
        return bool(number == neutral)
    return bool(number == neutral) and bool(np.signbit(number)) == bool(np.signbit(neutral))


def _needed(body: Sequence[Statement], used: set[str]) -> list[Statement]:
    """Without statements whose results nobody uses; `used` grows by what the others use."""
    kept: list[Statement] = []
    for statement in reversed(body):
        match statement:
            case Loop():
                inner = _needed(statement.body, used | {*statement.yields})
                if not used.intersection(statement.results) and not _acts(inner):
                    continue
                used.update(_uses(inner), statement.yields, (initial for _, initial in statement.carried))
                used.add(statement.when)
                statement = replace(statement, body=tuple(inner))
            case Store() | Check():
                used.update(_uses([statement]))
            case _:
                if statement.out not in used:
                    continue
                used.update(_uses([statement]))
        kept.append(statement)
    return kept[::-1]


def _acts(body: Sequence[Statement]) -> bool:
    """Whether something is written, or may end the call."""
    return any(
        isinstance(statement, Store | Check) or (isinstance(statement, Loop) and _acts(statement.body))
        for statement in body
    )


def _uses(body: Sequence[Statement]) -> set[str]:
    """The names that statements read."""
    found: set[str] = set()
    for statement in body:
        match statement:
            case Load(at=at):
                found.update(name for name, _ in at)
            case Store(arg=arg, at=at):
                found.update([arg, *(name for name, _ in at)])
            case Map(args=args):
                found.update(args)
            case Convert(arg=arg) | Reduce(arg=arg) | Check(arg=arg):
                found.add(arg)
            case Dot(a=a, b=b, acc=acc):
                found.update((a, b, acc))
            case Loop():
                initials = (initial for _, initial in statement.carried)
                found.update(_uses(statement.body), statement.yields, initials, [statement.when])
    return found
