"""Text -> TileProgram: reads what `text.print_program` writes, and whatever a person writes in the same form.

One line is one statement. Every error is a ValueError that names its line. The text is not trusted: nothing is
allocated by a number in it, and nesting is bounded. Whether the program means anything, `verify` says.
"""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec import Struct, field

from tierup.ir.line import END, Line
from tierup.ir.types import DType
from tierup.lower.tile import (
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

DEPTH_LIMIT = 100  # nesting of loops that the parser follows; the verifier allows far less
ARG = re.compile(r"s[0-9]+", re.ASCII)  # how size arguments are written
KEYWORDS = frozenset(("fill", "load", "position", "convert", "reduce", "dot"))  # maps go by the names of their ops

_DTYPES = {dtype.value: dtype for dtype in DType}
_Item = TypeVar("_Item")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<float>-?(?:[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+|(?:inf|nan)(?![A-Za-z0-9_])))
    | (?P<int>-?[0-9]+)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign>->|[\[\](){}=:,*+<%])
    )""",
    re.VERBOSE | re.ASCII,
)


class _Line(Line):
    """One line of a program's text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text, _TOKEN)

    def word(self) -> str:
        """A name, quoted or not."""
        text = self.take("word", "text")
        return self.json(text) if text.startswith('"') else text

    def value(self) -> str:
        """`%name`."""
        self.expect("%")
        return self.take("int") if self.next[0] == "int" else self.word()

    def values(self) -> tuple[str, ...]:
        return self.separated(self.value)

    def integer(self) -> int:
        return self.number_of(self.take("int"))

    def size(self) -> Size:
        if self.next[0] == "int":
            return self.integer()
        if not (self.next[0] == "word" and ARG.fullmatch(self.next[1])):
            self.expected("a size")
        return Arg(self.arg_index(self.take("word")))

    def arg_index(self, word: str) -> int:
        try:
            return int(word[1:])
        except ValueError:  # as above
            self.fail(f"'{word[:20]}' is no size")

    def literal(self) -> float | Arg:
        kind, text = self.next
        if kind == "float":
            self.at += 1
            return float(text)
        if text in ("true", "false") and kind == "word":
            self.at += 1
            return text == "true"
        return self.size()

    def plain_literal(self) -> float:
        value = self.literal()
        return self.fail("expected a number, not a size") if isinstance(value, Arg) else value

    def dtype(self) -> DType:
        word = self.take("word")
        return _DTYPES[word] if word in _DTYPES else self.fail(f"'{word[:40]}' is no dtype")

    def tile(self) -> Tile:
        dtype = self.dtype()
        self.expect("[")
        return Tile(dtype, self.until("]", self.word))

    def buffer(self) -> Buffer:
        name = self.word()
        self.expect(":")
        return Buffer(name, self.dtype(), self.word())

    def range(self) -> tuple[str, Size, int]:
        """`i < s0 step 4`."""
        axis = self.word()
        self.expect("<")
        extent = self.size()
        self.expect("step")
        return axis, extent, self.integer()

    def address(self) -> tuple[str, Index, tuple[tuple[str, Size], ...]]:
        """`x[i * s1 + j + 7]`, `x[%r * s1 + j]`, `x[i + j * 8 starts i * s1]`."""
        buffer, axes, at, offset = self.word(), list[tuple[str, Size]](), list[tuple[str, Size]](), None
        self.expect("[")
        while True:
            added = self.next == ("sign", "%")
            term = self.term()
            if isinstance(term, tuple):
                (at if added else axes).append(term)
            elif offset is None:
                offset = term
            else:
                self.fail("an address has one offset")
            if not self.accept("+"):
                break
        starts = self.separated(self.start) if self.accept("starts") else ()
        self.expect("]")
        return buffer, Index(tuple(axes), 0 if offset is None else offset, starts), tuple(at)

    def start(self) -> tuple[str, Size]:
        axis = self.word()
        self.expect("*")
        return axis, self.size()

    def term(self) -> tuple[str, Size] | Size:
        kind, text = self.next
        starred = self.tokens[self.at + 1 : self.at + 2] == [("sign", "*")]
        if kind == "int" or (kind == "word" and ARG.fullmatch(text) and not starred):
            return self.size()
        name = self.value() if text == "%" else self.word()
        return name, self.size() if self.accept("*") else 1

    def statement(self) -> Statement:
        """Any statement but a loop."""
        if self.accept("store"):
            buffer, index, at = self.address()
            self.expect(",")
            return Store(buffer, index, self.value(), at, self.accept("flush"))
        if self.accept("check"):
            arg = self.value()
            self.expect("<")
            return Check(arg, self.size())
        out = self.value()
        self.expect(":")
        type = self.tile()
        self.expect("=")
        keyword = self.next[1] if self.next[0] == "word" else ""
        op = self.word()
        if keyword in KEYWORDS:
            return self.operation(keyword, out, type)
        return Map(out, type, op, () if self.next is END else self.values())

    def operation(self, keyword: str, out: str, type: Tile) -> Statement:
        match keyword:
            case "fill":
                return Fill(out, type, self.literal())
            case "load":
                buffer, index, at = self.address()
                return Load(out, type, buffer, index, self.plain_literal() if self.accept("else") else 0.0, at)
            case "position":
                return Position(out, type, self.word())
            case "convert":
                return Convert(out, type, self.value())
            case "reduce":
                op, arg = self.word(), self.value()
                self.expect("over")
                return Reduce(out, type, op, arg, self.word())
        args = self.values()
        if len(args) != 3:
            self.fail(f"dot takes three values, not {len(args)}")
        self.expect("over")
        return Dot(out, type, *args, self.word())


class _OpenLoop(Struct):
    """A loop whose closing brace is still to come."""

    axis: str
    extent: Size
    step: int
    begin: Size
    exact: bool
    when: str
    carried: tuple[tuple[str, str], ...]
    sums: tuple[str, ...] = ()
    block: int = 0
    body: list[Statement] = field(default_factory=list)
    yields: tuple[str, ...] | None = None

    def close(self, results: tuple[str, ...]) -> Loop:
        return Loop(
            self.axis,
            self.extent,
            self.step,
            tuple(self.body),
            self.carried,
            self.yields or (),
            results,
            self.begin,
            self.exact,
            self.when,
            self.sums,
            self.block,
        )


class _OpenProgram(Struct):
    """What has been read of a program; `loops` are those that are still open, innermost last."""

    name: str
    buffers: tuple[Buffer, ...]
    n_sizes: int
    vector: tuple[str, ...]
    grid: list[Grid] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    loops: list[_OpenLoop] = field(default_factory=list)

    def read(self, line: _Line) -> TileProgram | None:
        """Take in one line; the last one gives the program."""
        if line.accept("}"):
            return self.close(line)
        if self.loops and self.loops[-1].yields is not None:
            line.fail("'yield' is the last line of its loop")
        if line.accept("grid"):
            if self.body or self.loops:
                line.fail("the grid comes before the statements")
            self.grid.append(Grid(*line.range()))
        elif line.accept("for"):
            self.open(line)
        elif line.accept("yield"):
            if not self.loops:
                line.fail("only loops yield")
            self.loops[-1].yields = line.values()
        else:
            self.innermost.append(line.statement())
        line.end()
        return None

    @property
    def innermost(self) -> list[Statement]:
        return self.loops[-1].body if self.loops else self.body

    def open(self, line: _Line) -> None:
        axis, extent, step = line.range()
        begin = line.size() if line.accept("from") else 0
        exact = line.accept("exact")
        when = line.value() if line.accept("when") else ""
        carried = line.separated(lambda: _carried(line)) if line.accept("carry") else ()
        sums, block = _sums(line) if line.accept("sums") else ((), 0)
        line.expect("{")
        self.loops.append(_OpenLoop(axis, extent, step, begin, exact, when, carried, sums, block))
        if len(self.loops) > DEPTH_LIMIT:
            line.fail(f"loops are nested more than {DEPTH_LIMIT} deep")

    def close(self, line: _Line) -> TileProgram | None:
        if self.loops:
            results = line.values() if line.accept("->") else ()
            line.end()
            loop = self.loops.pop().close(results)
            self.innermost.append(loop)
            return None
        line.end()
        return TileProgram(self.name, self.buffers, self.n_sizes, tuple(self.grid), tuple(self.body), self.vector)


def _carried(line: _Line) -> tuple[str, str]:
    inside = line.value()
    line.expect("=")
    return inside, line.value()


def _sums(line: _Line) -> tuple[tuple[str, ...], int]:
    names = line.values()
    line.expect("by")
    return names, line.integer()


def _opened(line: _Line) -> _OpenProgram:
    line.expect("program")
    name = line.word()
    line.expect("(")
    buffers = line.until(")", line.buffer)
    n_sizes = line.integer() if line.accept("sizes") else 0
    vector = line.separated(line.word) if line.accept("vector") else ()
    line.expect("{")
    line.end()
    return _OpenProgram(name, buffers, n_sizes, vector)


def parse_program(text: str) -> TileProgram:
    """The program that `text` shows. Raises ValueError that names the line."""
    pending: _OpenProgram | None = None
    program: TileProgram | None = None
    line = _Line(1, "")
    for number, content in enumerate(text.split("\n"), start=1):
        line = _Line(number, content)
        if line.next is END:
            continue
        if program is not None:
            line.fail("there is more after the program")
        if pending is None:
            pending = _opened(line)
        else:
            program = pending.read(line)
    if program is None:
        line.fail("the text ends before its program does")
    return program
