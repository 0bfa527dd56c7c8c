"""Compiled functions -> blocks with edges, laid out in rows: the picture of a plan.

A block is a kernel's region, a node that runs alone, or a control node, whose bodies have pictures of their own.
Movement that kernels read through is in no block; edges go through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from tierup.ir.graph import Graph, ValueId
from tierup.runtime.compiled import Function

Kind = Literal["kernel", "alone", "control"]
Unit = tuple[Kind, int, tuple[int, ...]]  # what a block is, its number, and its nodes


class Block(msgspec.Struct, frozen=True):
    """A block. `number` is that of a region or of a node alone in the explanation, of a control node in its graph.

    `sources` are blocks before this one, by position; `row` counts from the top, `column` from the left.
    """

    kind: Kind
    number: int
    name: str
    sources: tuple[int, ...]
    row: int
    column: int


class Picture(msgspec.Struct, frozen=True):
    """The blocks of one function, in an order in which they run; `body` is its name, None for the model itself."""

    body: str | None
    blocks: tuple[Block, ...]


def pictures_of(functions: Sequence[Function], alone: Iterable[tuple[int, int]]) -> tuple[Picture, ...]:
    """A picture of each function; `alone` are nodes that call out, by function and node."""
    places, pictures = sorted(alone), list[Picture]()
    region, single = 0, 0
    for function in functions:
        nodes = [node for number, node in places if number == function.number]
        units: list[Unit] = [
            *(("kernel", region + at, tuple(placed.region.nodes)) for at, placed in enumerate(function.kernels)),
            *(("alone", single + at, (node,)) for at, node in enumerate(nodes)),
            *(("control", at, (at,)) for at, node in enumerate(function.graph.nodes) if node.graphs),
        ]
        region += len(function.kernels)
        single += len(nodes)
        body = (function.graph.name or "body") if function.number else None
        pictures.append(Picture(body, _blocks(function.graph, units)))
    return tuple(pictures)


def _blocks(graph: Graph, units: list[Unit]) -> tuple[Block, ...]:
    units.sort(key=lambda unit: max(unit[2], default=0))
    owner = {node: position for position, (_, _, nodes) in enumerate(units) for node in nodes}
    producer = graph.producers
    reached: dict[ValueId, frozenset[int]] = {}

    def makers(value: ValueId) -> frozenset[int]:
        """The blocks that a value comes from, through nodes that are in none."""
        if value not in reached:
            node = producer.get(value)
            if node is None:
                reached[value] = frozenset()
            elif node in owner:
                reached[value] = frozenset((owner[node],))
            else:
                reached[value] = frozenset().union(*(makers(v) for v in graph.nodes[node].inputs if v is not None))
        return reached[value]

    for node in graph.nodes:  # in order, so that nothing above goes deep
        for value in node.outputs:
            if value is not None:
                makers(value)
    found: list[Block] = []
    filled: dict[int, int] = {}
    for position, (kind, number, nodes) in enumerate(units):
        read = (value for index in nodes for value in graph.nodes[index].inputs if value is not None)
        sources = sorted({maker for value in read for maker in makers(value) if maker < position})
        row = 1 + max((found[source].row for source in sources), default=-1)
        column = filled.get(row, 0)
        filled[row] = column + 1
        name = " ".join(dict.fromkeys(graph.nodes[index].op.partition(".")[2] for index in nodes))
        found.append(Block(kind, number, name, tuple(sources), row, column))
    return tuple(found)
