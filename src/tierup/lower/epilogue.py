"""The maps behind a product or a convolution, on one tile of its results while that is in registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import DType, Shape, TensorType
from tierup.lower.names import Names
from tierup.lower.rows import flushes, map_statement
from tierup.lower.sources import constant_scalar
from tierup.lower.tile import Buffer, Fill, Index, Load, Size, Statement, Store, Tile
from tierup.plan.products import leaving, operand_reach
from tierup.plan.regions import NARROW

_OUTS = ("out", "rounded")


class Place(Protocol):
    """Where the results of a tile lie."""

    @property
    def axes(self) -> tuple[str, str]:
        """The tile's axes: rows, columns."""

    @property
    def index(self) -> Index:
        """Of an element in memory of the whole shape."""

    @property
    def columns(self) -> Index:
        """Of a column in a vector of as many as the result has."""

    @property
    def at(self) -> tuple[tuple[str, Size], ...]:
        """What addresses of the whole shape add to `index`, as in `Load`."""

    @property
    def rows(self) -> Index | None:
        """Of a row in a vector of as many as the result has; None where no operand has one for each row."""


class Epilogue:
    """Writes the maps of a region. `operands` are the values that they read beside the product, named as buffers."""

    def __init__(self, graph: Graph, weights: Weights, nodes: Sequence[int], names: Names) -> None:
        self._graph, self._weights, self._names = graph, weights, names
        self._product, *self._maps = (graph.nodes[index] for index in nodes)
        self._last = (self._maps or [self._product])[-1]
        self.operands: dict[ValueId, str] = {}
        self.results = leaving(graph, nodes)  # and then, maybe, the first of them rounded

    def outs(self) -> list[Buffer]:
        """The buffers of the results."""
        return [Buffer(name, self._type(value).dtype, "out") for name, value in zip(_OUTS, self.results, strict=False)]

    def stores(self, index: Index, result: str, at: tuple[tuple[str, Size], ...] = ()) -> Iterator[Store]:
        """Of what `write` gave, to the buffers of the results."""
        for name, value in zip(_OUTS, self.results, strict=False):
            yield Store(name, index, result, at, flushes(self._last) and value == _output(self._last))

    def write(self, body: list[Statement], total: str, dtype: DType, place: Place) -> str:
        """The maps on a tile of sums; returns the name of what they give."""
        values: dict[ValueId, tuple[str, Tile]] = {_output(self._product): (total, Tile(dtype, place.axes))}
        for node in self._maps:
            arguments = [self._argument(body, values, value, place) for value in node.inputs]
            made = self._type(_output(node)).dtype
            if made in NARROW:  # the last of them: it is rounded where it is written
                values[_output(node)] = arguments[0]
            else:
                values[_output(node)] = map_statement(body, self._names, node, arguments, made)
        return values[_output(self._last)][0]

    def _argument(
        self, body: list[Statement], values: dict[ValueId, tuple[str, Tile]], value: ValueId | None, place: Place
    ) -> tuple[str, Tile]:
        assert value is not None
        if value not in values:
            values[value] = self._loaded(body, value, place)
        return values[value]

    def _loaded(self, body: list[Statement], value: ValueId, place: Place) -> tuple[str, Tile]:
        type, number = self._type(value), constant_scalar(self._graph, self._weights, value)
        name = self._names.new("c")
        if number is not None:
            body.append(Fill(name, Tile(type.dtype), number))
            return name, Tile(type.dtype)
        assert type.shape is not None
        domain = self._type(_output(self._product)).shape
        assert domain is not None
        index, axes = _operand(type.shape, domain, place)
        buffer = self.operands.setdefault(value, f"e{len(self.operands)}")
        at = place.at if axes == place.axes else ()
        body.append(Load(name, Tile(type.dtype, axes), buffer, index, at=at))
        return name, Tile(type.dtype, axes)

    def _type(self, value: ValueId) -> TensorType:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type


def _operand(shape: Shape, domain: Shape, place: Place) -> tuple[Index, tuple[str, ...]]:
    """Where an operand lies: a single element, one for each row or column, or the whole shape."""
    reach = operand_reach(shape, domain)
    if reach == (True, True):
        return place.index, place.axes
    if reach == (True, False):
        assert place.rows is not None
        return place.rows, place.axes[:1]
    return (place.columns, place.axes[1:]) if reach == (False, True) else (Index(), ())


def _output(node: Node) -> ValueId:
    value = node.outputs[0]
    assert value is not None
    return value
