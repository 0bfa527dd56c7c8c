"""Text -> Graph: reads what `text.print_graph` writes, and whatever a person writes in the same form.

One line is one statement. Every error is a ValueError that names its line. The text is not trusted: nothing is
allocated by a number in it, and nesting is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from tierup.ir.dims import ARITY, READS, DimOp
from tierup.ir.graph import Attr, Attrs, Const, Graph, Node, Value, ValueId
from tierup.ir.line import END, Line
from tierup.ir.types import Array, Dim, DType, MapType, OptionalType, SequenceType, Sym, TensorType, Type

DEPTH_LIMIT = 100  # nesting of types, attributes and bodies; models nest a few deep

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<hex>'[0-9a-f]*')
    | (?P<value>%[0-9]+)
    | (?P<at>@-?[0-9A-Za-z_]+)
    | (?P<float>-?(?:[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+|(?:inf|nan)(?![A-Za-z0-9_.])))
    | (?P<int>-?[0-9]+)
    | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
    | (?P<sign>[\[\](){}=:,@*])
    )""",
    re.VERBOSE | re.ASCII,
)
_DTYPES = {dtype.value: dtype for dtype in DType}
_WORDS: dict[str, Attr] = {"true": True, "false": False}


class _Line(Line):
    """One line of a graph's text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text, _TOKEN)

    def value(self) -> ValueId:
        return self.number_of(self.take("value")[1:])

    def maybe_value(self) -> ValueId | None:
        return None if self.accept("_") else self.value()

    def string(self) -> str:
        return self.json(self.take("text"))

    def name(self) -> str:
        """A quoted name, if one comes next."""
        return self.string() if self.next[0] == "text" else ""

    def word(self) -> str:
        return self.string() if self.next[0] == "text" else self.take("word")

    def digest(self) -> str:
        return self.string() if self.accept("@") else self.take("at")[1:]

    def dim(self) -> Dim:
        kind, text = self.next
        if kind == "int":
            self.at += 1
            return self.number_of(text)
        word = self.take("word")
        if not re.fullmatch(r"d[0-9]+", word, re.ASCII):
            self.fail(f"'{word}' is no dim")
        return Sym(self.number_of(word[1:]))

    def type(self, depth: int = 0) -> Type:
        if depth > DEPTH_LIMIT:
            self.fail(f"a type is nested more than {DEPTH_LIMIT} deep")
        word = self.take("word")
        if word in _DTYPES:
            return self.tensor(_DTYPES[word])
        self.expect("(")
        key = self.dtype() if word == "map" else None
        if key is not None:
            self.expect(",")
        elem = self.type(depth + 1)
        self.expect(")")
        if key is not None:
            return MapType(key, elem)
        if word not in ("seq", "optional"):
            self.fail(f"'{word}' is no type")
        return SequenceType(elem) if word == "seq" else OptionalType(elem)

    def dtype(self) -> DType:
        word = self.take("word")
        return _DTYPES[word] if word in _DTYPES else self.fail(f"'{word}' is no dtype")

    def tensor(self, dtype: DType) -> TensorType:
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return TensorType(dtype, None)
        return TensorType(dtype, tuple(self.until("]", self.dim)))

    def attr(self, depth: int = 0) -> Attr:
        if depth > DEPTH_LIMIT:
            self.fail(f"an attribute is nested more than {DEPTH_LIMIT} deep")
        kind, text = self.next
        if kind == "text":
            return self.string()
        if kind == "word" and text not in _WORDS:
            return self.type_or_const()
        self.at += 1
        if text == "[":
            return tuple(self.until("]", lambda: self.attr(depth + 1)))
        if kind == "int":
            return self.number_of(text)
        if kind == "float":
            return float(text)
        return _WORDS[text] if text in _WORDS else self.fail(f"'{text}' is no attribute")

    def type_or_const(self) -> Attr:
        """`f32[2]` is a type, `f32[2]'...'` and `str[2]["a", "b"]` are tensors."""
        type = self.type()
        if not isinstance(type, TensorType) or (self.next[0] != "hex" and self.next[1] != "["):
            return type
        if self.next[0] == "hex":
            data: Any = self.take("hex")[1:-1]
        else:
            self.expect("[")
            data = self.until("]", self.string)
        try:
            return Const(_elements(type, data))
        except (ValueError, OverflowError) as error:
            self.fail(f"a tensor does not fit its type {type!r}: {error}")


def _elements(type: TensorType, data: str | tuple[str, ...]) -> Array:
    shape = tuple(dim for dim in type.shape or () if isinstance(dim, int))
    if isinstance(data, tuple) != (type.dtype is DType.STR):
        raise ValueError("its elements are of another kind")
    if type.shape is None or len(shape) < len(type.shape):
        raise ValueError("its shape is open")
    if isinstance(data, tuple):
        flat: Array = np.array(data, object)
    else:
        flat = np.frombuffer(bytearray.fromhex(data), type.dtype.numpy) if data else np.empty(0, type.dtype.numpy)
    return flat.reshape(shape)


class _Partial(Struct):
    """A graph whose closing brace is still to come. `body` is its name in the node that it belongs to."""

    name: str
    body: str
    inputs: list[ValueId] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    values: dict[ValueId, Value] = field(default_factory=dict)
    dims: list[DimOp] = field(default_factory=list)
    weights: list[tuple[ValueId, str]] = field(default_factory=list)
    defaults: list[tuple[ValueId, str]] = field(default_factory=list)
    dim_names: list[tuple[int, str]] = field(default_factory=list)
    outputs: tuple[ValueId, ...] | None = None

    def declare(self, line: _Line) -> ValueId:
        """`%3 "name" : type`."""
        value, name = line.value(), line.name()
        line.expect(":")
        if value in self.values:
            line.fail(f"%{value} has a type already")
        self.values[value] = Value(line.type(), name)
        return value

    def statement(self, line: _Line) -> None:
        """Read one line; names of statements are words, results of nodes are not."""
        kind, word = line.next
        if kind == "word" and word in _STATEMENTS:
            line.at += 1
            _STATEMENTS[word](self, line)
        else:
            self.node(line)
        line.end()

    def input(self, line: _Line) -> None:
        self.inputs.append(self.declare(line))

    def weight(self, line: _Line) -> None:
        self.weights.append((self.declare(line), line.digest()))

    def default(self, line: _Line) -> None:
        self.defaults.append((line.value(), line.digest()))

    def value(self, line: _Line) -> None:
        self.declare(line)

    def dim(self, line: _Line) -> None:
        if line.dim() != Sym(len(self.dims)):
            line.fail(f"dims come in order; the next one is d{len(self.dims)}")
        line.expect("=")
        op = line.take("word")
        if op not in ARITY:
            line.fail(f"'{op}' is no dim instruction")
        first = line.value() if op in READS else line.dim()
        self.dims.append(DimOp(op, (first, *(line.dim() for _ in range(ARITY[op] - 1)))))
        if line.next[0] == "text":
            self.dim_names.append((len(self.dims) - 1, line.string()))

    def node(self, line: _Line) -> None:
        results = self.results(line)
        op = line.word()
        version = line.number_of(line.take("at")[1:])
        line.expect("(")
        inputs = line.until(")", line.maybe_value)
        attrs: tuple[tuple[str, Attr], ...] = line.until("}", lambda: _pair(line)) if line.accept("{") else ()
        if len(dict(attrs)) != len(attrs):
            line.fail("an attribute is given twice")
        self.nodes.append(Node(op, version, inputs, results, Attrs(attrs), name=line.name()))

    def results(self, line: _Line) -> tuple[ValueId | None, ...]:
        if line.accept("("):
            line.expect(")")
            line.expect("=")
            return ()
        return line.until("=", lambda: None if line.accept("_") else self.declare(line))

    def returned(self, line: _Line) -> None:
        if self.outputs is not None:
            line.fail("a graph returns once")
        values: list[ValueId] = []
        while line.next is not END:
            values.append(line.value())
            if line.next is not END:
                line.expect(",")
        self.outputs = tuple(values)

    def attach(self, body: str, graph: Graph, line: _Line) -> None:
        if not self.nodes:
            line.fail("a body needs a node before it")
        self.nodes[-1] = replace(self.nodes[-1], graphs=(*self.nodes[-1].graphs, (body, graph)))

    def finish(self, line: _Line) -> Graph:
        if self.outputs is None:
            line.fail("a graph ends without 'return'")
        self.check(line)
        return Graph(
            inputs=tuple(self.inputs),
            outputs=self.outputs,
            nodes=tuple(self.nodes),
            values=tuple(self.values[value] for value in range(len(self.values))),
            dims=tuple(self.dims),
            weights=tuple(self.weights),
            defaults=tuple(self.defaults),
            dim_names=tuple(self.dim_names),
            name=self.name,
        )

    def check(self, line: _Line) -> None:
        """Values are numbered without gaps, and whatever is referred to exists."""
        count = len(self.values)
        if any(value >= count for value in self.values):
            line.fail(f"the graph has {count} values, but their numbers are not 0 to {count - 1}")
        used = [*(self.outputs or ()), *(value for value, _ in self.defaults)]
        used.extend(value for node in self.nodes for value in node.inputs if value is not None)
        used.extend(op.args[0] for op in self.dims if op.op in READS if isinstance(op.args[0], int))
        for value in used:
            if value not in self.values:
                line.fail(f"%{value} is used in this graph, but has no type")
        if max((sym.id for sym in self.syms()), default=-1) >= len(self.dims):
            line.fail("a dim is used in this graph, but not defined")

    def syms(self) -> Iterator[Sym]:
        for op in self.dims:
            yield from (arg for arg in op.args if isinstance(arg, Sym))
        for value in self.values.values():
            yield from _syms(value.type)


def _syms(type: Type) -> Sequence[Sym]:
    while not isinstance(type, TensorType):
        type = type.value if isinstance(type, MapType) else type.elem
    return [dim for dim in type.shape or () if isinstance(dim, Sym)]


def _pair(line: _Line) -> tuple[str, Attr]:
    name = line.word()
    line.expect("=")
    return name, line.attr()


_STATEMENTS = {
    "input": _Partial.input,
    "weight": _Partial.weight,
    "default": _Partial.default,
    "value": _Partial.value,
    "dim": _Partial.dim,
    "return": _Partial.returned,
}


def parse_graph(text: str) -> Graph:
    """The graph that `text` shows. Raises ValueError that names the line."""
    pending: list[_Partial] = []
    finished: Graph | None = None
    line = _Line(1, "")
    for number, content in enumerate(text.split("\n"), start=1):
        line = _Line(number, content)
        if line.next is END:
            continue
        if finished is not None:
            line.fail("there is more after the graph")
        if line.accept("}"):
            line.end()
            if not pending:
                line.fail("there is no graph to close")
            done = pending.pop()
            finished = _closed(done, pending, line)
        elif not pending or line.next == ("word", "body"):
            pending.append(_opened(line, bool(pending)))
            if len(pending) > DEPTH_LIMIT:
                line.fail(f"bodies are nested more than {DEPTH_LIMIT} deep")
        else:
            pending[-1].statement(line)
    if finished is None:
        line.fail("the text ends before its graph does")
    return finished


def _opened(line: _Line, inside: bool) -> _Partial:
    """`graph "name" {`, or inside a graph `body then_branch = graph "name" {`."""
    body = ""
    if inside:
        line.expect("body")
        body = line.word()
        line.expect("=")
    line.expect("graph")
    partial = _Partial(line.name(), body)
    line.expect("{")
    line.end()
    return partial


def _closed(done: _Partial, pending: list[_Partial], line: _Line) -> Graph | None:
    """Hand a finished body to its node; the outermost graph is the answer."""
    graph = done.finish(line)
    if not pending:
        return graph
    pending[-1].attach(done.body, graph, line)
    return None
