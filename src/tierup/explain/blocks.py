"""A compiled function -> blocks with edges, laid out in rows: the picture of a plan.

A block is a kernel's region or a node that runs alone. Movement that kernels read through is in no block; edges go
through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tierup.ir.graph import Graph, ValueId
from tierup.runtime.steps import Placed


class Block(msgspec.Struct, frozen=True):
    """A block: `region` is its number among the kernels, `node` that of a node that runs alone; one of them is None.

    `row` counts from the top, `column` from the left.
    """

    region: int | None
    node: int | None
    sources: tuple[int, ...]
    row: int
    column: int


def blocks_of(graph: Graph, kernels: Sequence[Placed], alone: Iterable[int]) -> tuple[Block, ...]:
    """The blocks in an order in which they run; `sources` are positions in it."""
    members = [(number, None, tuple(placed.region.nodes)) for number, placed in enumerate(kernels)]
    units: list[tuple[int | None, int | None, tuple[int, ...]]] = [*members, *((None, node, (node,)) for node in alone)]
    units.sort(key=lambda unit: max(unit[2], default=0))
    owner = {node: position for position, (_, _, nodes) in enumerate(units) for node in nodes}
    producer = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs if value is not None}
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
    for position, (region, alone_node, nodes) in enumerate(units):
        read = (value for index in nodes for value in graph.nodes[index].inputs if value is not None)
        sources = sorted({maker for value in read for maker in makers(value) if maker < position})
        row = 1 + max((found[source].row for source in sources), default=-1)
        column = filled.get(row, 0)
        filled[row] = column + 1
        found.append(Block(region, alone_node, tuple(sources), row, column))
    return tuple(found)
