"""Checks that a graph is what every pass may rely on. Raises VerifyError with the first thing that is not so.

Holds afterwards: every value has one producer that comes before its uses; every op has a row; every weight is in the
table and has its value's type; dims refer to earlier dims and to values of their graph; bodies hold the same.
"""

from __future__ import annotations

from tierup.errors import ModelError
from tierup.ir.dims import ARITY, READS
from tierup.ir.graph import Graph, Node, Weights, static_type
from tierup.ir.ops import lookup
from tierup.ir.types import Sym, TensorType, Type


class VerifyError(ModelError):
    """The graph breaks a rule that every pass relies on."""


def verify(graph: Graph, weights: Weights) -> None:
    """Check `graph` and all bodies inside it."""
    pending = [graph]
    while pending:
        part = pending.pop()
        _verify_one(part, weights)
        pending.extend(body for node in part.nodes for _, body in node.graphs)


def _verify_one(graph: Graph, weights: Weights) -> None:
    produced = _Produced(graph)
    for value in graph.inputs:
        produced.define(value, "an input")
    for value, digest in graph.weights:
        produced.define(value, "a weight")
        _check_weight(graph, value, digest, weights)
    for value, digest in graph.defaults:
        if value not in graph.inputs or digest not in weights:
            raise VerifyError(f"graph '{graph.name}': default of value %{value} is not one of an input")
    for node in graph.nodes:
        if lookup(node.op) is None:
            raise VerifyError(f"graph '{graph.name}': {node.label} has no row in the op table")
        for used in node.inputs:
            if used is not None:
                produced.use(used, node.label)
        for value_id in node.outputs:
            if value_id is not None:
                produced.define(value_id, node.label)
        _check_bodies(graph, node)
    for value in graph.outputs:
        produced.use(value, "the graph's outputs")
    _check_dims(graph)


class _Produced:
    """Which values exist so far."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._seen = [False] * len(graph.values)

    def define(self, value: int, by: str) -> None:
        if not 0 <= value < len(self._seen):
            raise VerifyError(f"graph '{self._graph.name}': {by} defines %{value}, which has no type")
        if self._seen[value]:
            raise VerifyError(f"graph '{self._graph.name}': %{value} is defined again by {by}")
        self._seen[value] = True

    def use(self, value: int, by: str) -> None:
        if not (0 <= value < len(self._seen) and self._seen[value]):
            raise VerifyError(f"graph '{self._graph.name}': {by} uses %{value} before it is defined")


def _check_weight(graph: Graph, value: int, digest: str, weights: Weights) -> None:
    if digest not in weights:
        raise VerifyError(f"graph '{graph.name}': weight %{value} is not in the table")
    if static_type(weights[digest]) != graph.type(value):
        raise VerifyError(
            f"graph '{graph.name}': weight %{value} is {static_type(weights[digest])!r}, not {graph.type(value)!r}"
        )


def _check_bodies(graph: Graph, node: Node) -> None:
    captures = node.attrs.get("captures", 0)
    if node.graphs and not 0 <= captures <= len(node.inputs):
        raise VerifyError(f"graph '{graph.name}': {node.label} captures {captures} of {len(node.inputs)} inputs")
    for name, body in node.graphs:
        if len(body.inputs) < captures:
            raise VerifyError(f"graph '{graph.name}': body {name} of {node.label} does not take what is captured")
        outer = node.inputs[len(node.inputs) - captures :]
        for inside, outside in zip(body.inputs[len(body.inputs) - captures :], outer, strict=True):
            if outside is None or _kind(body.type(inside)) != _kind(graph.type(outside)):
                raise VerifyError(f"graph '{graph.name}': body {name} of {node.label} captures another type")


def _kind(type: Type) -> object:
    return type.dtype if isinstance(type, TensorType) else type


def _check_dims(graph: Graph) -> None:
    for index, op in enumerate(graph.dims):
        if len(op.args) != ARITY.get(op.op, -1):
            raise VerifyError(f"graph '{graph.name}': dim d{index} is malformed: {op!r}")
        if op.op in READS:
            read = op.args[0]
            if not isinstance(read, int) or not 0 <= read < len(graph.values):
                raise VerifyError(f"graph '{graph.name}': dim d{index} reads a value that does not exist")
        elif any(isinstance(arg, Sym) and arg.id >= index for arg in op.args):
            raise VerifyError(f"graph '{graph.name}': dim d{index} uses a later dim")
    for value_id, value in enumerate(graph.values):
        if isinstance(value.type, TensorType):
            for dim in value.type.shape or ():
                if isinstance(dim, Sym) and not 0 <= dim.id < len(graph.dims):
                    raise VerifyError(f"graph '{graph.name}': %{value_id} has a dim that does not exist")
