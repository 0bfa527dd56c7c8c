"""Tile programs as text and back: `parse_program(print_program(program)) == program`.

    program scale(x: f32 in, y: f16 out, t: f32 scratch) sizes 2 vector j {
      grid i < s0 step 4
      %n : f32[] = fill s1
      for j < s1 step 64 from 64 exact carry %m = %m0, %l = %l0 {
        %v : f32[i, j] = load x[i * s1 + j + 7] else -inf
        %p : i64[j] = position j
        %q : f32[j] = convert %p
        %w : f32[i, j] = fma %v, %q, %m
        check %p < s1
        %g : f32[i, j] = load x[%p * 4 + i]
        store y[i + j * 4 starts i * s1], %w
        yield %w, %l
      } -> %ms, %ls
      %s : f32[i] = reduce sum %ms over j
      %d : f32[i] = dot %ms, %ls, %s over j
    }

One statement is one line. `s0` is a size argument. In an address, `j` alone means `j * 1`, `%p * 4` adds the elements
of a tile, and what has no name is the offset; after `starts` stand the strides by which the positions of loops count
instead. Names that are no plain words are JSON strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache

from tierup.lower.parse import ARG, KEYWORDS, parse_program
from tierup.lower.tile import (
    Arg,
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
    TileProgram,
)

__all__ = ["line_text", "parse_program", "print_program"]

_WORD = re.compile(r"(?!(?:inf|nan)$)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_KEPT = 1024  # names: the programs of a model have much the same
_VALUE = re.compile(r"(?!(?:inf|nan)$)[A-Za-z_][A-Za-z0-9_]*|[0-9]+", re.ASCII)


def print_program(program: TileProgram) -> str:
    """The text of `program`."""
    buffers = ", ".join(f"{_word(b.name)}: {b.dtype.value} {_word(b.mode)}" for b in program.buffers)
    sizes = f" sizes {program.n_sizes}" if program.n_sizes else ""
    vector = f" vector {', '.join(map(_word, program.vector))}" if program.vector else ""
    lines = [f"program {_word(program.name)}({buffers}){sizes}{vector} {{"]
    lines.extend(f"  grid {_range(g.axis, g.extent, g.step)}" for g in program.grid)
    lines.extend(f"  {line}" for statement in program.body for line in _lines(statement))
    return "\n".join([*lines, "}"]) + "\n"


def line_text(statement: Statement) -> str:
    """The line of one statement; of a loop, its first."""
    return next(_lines(statement))


def _lines(statement: Statement) -> Iterator[str]:
    if not isinstance(statement, Loop):
        yield _simple(statement)
        return
    carried = ", ".join(f"{_value(inside)} = {_value(initial)}" for inside, initial in statement.carried)
    head = f"for {_range(statement.axis, statement.extent, statement.step)}"
    if _number(statement.begin) != "0":
        head += f" from {_number(statement.begin)}"
    if statement.exact:
        head += " exact"
    if statement.when:
        head += f" when {_value(statement.when)}"
    if carried:
        head += f" carry {carried}"
    if statement.sums:
        head += f" sums {_values(statement.sums)} by {statement.block}"
    yield f"{head} {{"
    for part in statement.body:
        yield from (f"  {line}" for line in _lines(part))
    if statement.yields:
        yield f"  yield {_values(statement.yields)}"
    yield f"}} -> {_values(statement.results)}" if statement.results else "}"


def _simple(statement: Fill | Load | Position | Map | Convert | Reduce | Dot | Store | Check) -> str:
    if isinstance(statement, Store):
        return f"store {_address(statement)}, {_value(statement.arg)}" + " flush" * statement.flush
    if isinstance(statement, Check):
        return f"check {_value(statement.arg)} < {_number(statement.extent)}"
    axes = ", ".join(map(_word, statement.type.axes))
    return f"{_value(statement.out)} : {statement.type.dtype.value}[{axes}] = {_operation(statement)}"


def _operation(statement: Fill | Load | Position | Map | Convert | Reduce | Dot) -> str:
    match statement:
        case Fill(value=value):
            return f"fill {_number(value)}"
        case Load(other=other):
            beyond = _number(other)
            return f"load {_address(statement)}" + (f" else {beyond}" if beyond != "0.0" else "")
        case Position(axis=axis):
            return f"position {_word(axis)}"
        case Map(op=op, args=args):
            return f"{json.dumps(op) if op in KEYWORDS else _word(op)} {_values(args)}".rstrip()
        case Convert(arg=arg):
            return f"convert {_value(arg)}"
        case Reduce(op=op, arg=arg, axis=axis):
            return f"reduce {_word(op)} {_value(arg)} over {_word(axis)}"
        case Dot(a=a, b=b, acc=acc, axis=axis):
            return f"dot {_values((a, b, acc))} over {_word(axis)}"


def _address(access: Load | Store) -> str:
    index = access.index
    terms = [_term(_value(name), stride) for name, stride in access.at]
    terms += [
        f"{axis} * {_number(stride)}" if ARG.fullmatch(axis) else _term(_word(axis), stride)
        for axis, stride in index.axes
    ]
    if not terms or _number(index.offset) != "0":
        terms.append(_number(index.offset))
    starts = ", ".join(f"{_word(axis)} * {_number(stride)}" for axis, stride in index.starts)
    return f"{_word(access.buffer)}[{' + '.join(terms)}{' starts ' if starts else ''}{starts}]"


def _term(name: str, stride: Size) -> str:
    return name if _number(stride) == "1" else f"{name} * {_number(stride)}"


def _range(axis: str, extent: Size, step: int) -> str:
    return f"{_word(axis)} < {_number(extent)} step {step}"


@lru_cache(_KEPT)
def _word(word: str) -> str:
    return word if _WORD.fullmatch(word) else json.dumps(word)


@lru_cache(_KEPT)
def _value(name: str) -> str:
    return f"%{name if _VALUE.fullmatch(name) else json.dumps(name)}"


def _values(names: tuple[str, ...]) -> str:
    return ", ".join(map(_value, names))


def _number(value: float | Arg) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return float.__repr__(value) if isinstance(value, float) else repr(value)
