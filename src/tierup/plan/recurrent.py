"""Recurrent layers as regions: one core recurrence each, and which of its values is what."""

from __future__ import annotations

from msgspec import Struct

from tierup.ir.graph import Graph, Node, ValueId
from tierup.plan.regions import RECURRENCES, Region, legality, shape_of, tensor


class Roles(Struct, frozen=True):
    """The values of a recurrence. `extra` is what its cell needs beside the gates, `lengths` None where all rows have
    every step; `first` and `last` are the states before and after, the hidden one first."""

    gates: ValueId  # time, batch, gates · hidden
    weights: ValueId  # hidden, gates · hidden
    extra: ValueId | None  # an LSTM's peepholes, a GRU's recurrent bias of the hidden part
    first: tuple[ValueId, ...]  # batch, hidden
    lengths: ValueId | None  # batch
    y: ValueId  # time, batch, hidden
    last: tuple[ValueId, ...]  # batch, hidden


def recurrences(graph: Graph) -> list[Region]:
    """A region over (time, batch, hidden) for every recurrence that can be compiled."""
    return [
        Region("recurrent", (index,), shape_of(tensor(graph, node.outputs[0])))
        for index, node in enumerate(graph.nodes)
        if node.op in RECURRENCES and legality(graph, node) is None
    ]


def roles(graph: Graph, node: Node) -> Roles:
    """What the values of a recurrence are."""
    inputs, (y, *last) = _present(node.inputs), _present(node.outputs)
    gates, weights, *between, lengths = inputs
    states = len(between) - len(last)
    extra = between[0] if states and shape_of(tensor(graph, between[0])) != (0,) else None
    rows = None if shape_of(tensor(graph, lengths)) == (0,) else lengths
    return Roles(gates, weights, extra, tuple(between[states:]), rows, y, tuple(last))


def _present(values: tuple[ValueId | None, ...]) -> list[ValueId]:
    return [value for value in values if value is not None]
