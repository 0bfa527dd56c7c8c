"""What follows an If goes into its branches where only they know the rank of its results.

    r = if c then a else b; tail(r)   =   if c then tail(a) else tail(b)

Exporters write "if the last axis has one element, squeeze it". Behind such a node no rank is known, so nothing there
can be compiled. With a copy of what follows in each branch every rank is known, and further conditions on ranks are
decided before the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId, Weights
from tierup.ir.types import TensorType, Type, without_dims
from tierup.rewrite.walk import misfit

_MOST_NODES = 256  # in one tail, bodies included: it is written twice
_CONTROL = ("onnx.If", "onnx.Loop", "onnx.Scan")


def sink_tails(graph: Graph, weights: Weights) -> Graph:
    """Afterwards: the first results of If that have a rank only in its branches are used there, in bodies too.

    The types of the result are to be inferred anew. It is `graph` itself where there is nothing to do.
    """
    nodes = tuple(_inside(node, weights) for node in graph.nodes)
    if any(new is not old for new, old in zip(nodes, graph.nodes, strict=True)):
        graph = replace(graph, nodes=nodes)
    for node in graph.nodes:
        if node.op == "onnx.If" and _hides_ranks(graph, node):
            tail = list(_dependents(graph, node))
            if tail and sum(map(_size, tail)) <= _MOST_NODES:
                return _sunk(graph, node, tail)
    return graph


def _inside(node: Node, weights: Weights) -> Node:
    """A body that cannot be right is not worth more copies."""
    if node.op not in _CONTROL:
        return node
    graphs = tuple((name, body if misfit(body, weights) else sink_tails(body, weights)) for name, body in node.graphs)
    changed = any(new is not old for (_, new), (_, old) in zip(graphs, node.graphs, strict=True))
    return replace(node, graphs=graphs) if changed else node


def _hides_ranks(graph: Graph, node: Node) -> bool:
    """Whether a result's rank is known in both branches, and not outside."""
    bodies = [body for _, body in node.graphs]
    return any(
        value is not None
        and not _has_rank(graph.type(value))
        and all(_has_rank(body.type(body.outputs[place])) for body in bodies)
        for place, value in enumerate(node.outputs)
    )


def _has_rank(type: Type) -> bool:
    return isinstance(type, TensorType) and type.shape is not None


def _dependents(graph: Graph, node: Node) -> Iterator[Node]:
    """The nodes that need a result of `node`, directly or not."""
    reached = {value for value in node.outputs if value is not None}
    for other in graph.nodes:
        if reached.intersection(other.inputs):
            reached.update(value for value in other.outputs if value is not None)
            yield other


def _size(node: Node) -> int:
    return 1 + sum(1 for _, body in node.graphs for _ in body.walk())


def _sunk(graph: Graph, node: Node, tail: Sequence[Node]) -> Graph:
    """`graph` with `tail` in the branches of `node`, which now gives what is left of both outside: outputs."""
    made = {value for part in (node, *tail) for value in part.outputs}
    results = tuple(dict.fromkeys(value for value in graph.outputs if value in made))
    weights = dict(graph.weights)
    used = (value for part in (node, *tail) for value in part.inputs)
    given = tuple(dict.fromkeys(v for v in used if v is not None and v not in made and v not in weights))
    joined = replace(
        node,
        inputs=(node.inputs[0], *given),
        outputs=results,
        attrs=Attrs({**node.attrs, "captures": len(given)}),
        graphs=tuple((name, _Branch(graph, node, body, given).with_tail(tail, results)) for name, body in node.graphs),
    )
    others = tuple(other for other in graph.nodes if other is not node and other not in tail)
    return replace(graph, nodes=(*others, joined))


class _Branch:
    """Writes a branch of `node` that goes on with what follows the node; its inputs are `given`, without sizes."""

    def __init__(self, graph: Graph, node: Node, body: Graph, given: Sequence[ValueId]) -> None:
        self._graph, self._node, self._body = graph, node, body
        self._values: list[Value] = []
        self._weights: list[tuple[ValueId, str]] = []
        self._nodes: list[Node] = []
        self._inputs = {value: self._value(graph, value) for value in given}

    def with_tail(self, tail: Sequence[Node], results: Sequence[ValueId]) -> Graph:
        outside, inside = dict(self._inputs), dict[ValueId, ValueId]()
        for value, digest in self._graph.weights:
            if any(value in part.inputs for part in (self._node, *tail)):
                outside[value] = self._weight(self._graph, value, digest)
        for value, digest in self._body.weights:
            inside[value] = self._weight(self._body, value, digest)
        captured = zip(self._body.inputs, self._node.inputs[1:], strict=True)
        inside.update((inner, outside[outer]) for inner, outer in captured if outer is not None)
        for part in self._body.nodes:
            self._copy(self._body, part, inside)
        returned = zip(self._node.outputs, self._body.outputs, strict=False)
        outside.update((outer, inside[inner]) for outer, inner in returned if outer is not None)
        for part in tail:
            self._copy(self._graph, part, outside)
        return Graph(
            inputs=tuple(self._inputs.values()),
            outputs=tuple(outside[value] for value in results),
            nodes=tuple(self._nodes),
            values=tuple(self._values),
            weights=tuple(self._weights),
            name=self._body.name,
        )

    def _value(self, graph: Graph, value: ValueId) -> ValueId:
        self._values.append(Value(without_dims(graph.type(value)), graph.values[value].name))
        return len(self._values) - 1

    def _weight(self, graph: Graph, value: ValueId, digest: str) -> ValueId:
        number = self._value(graph, value)
        self._weights.append((number, digest))
        return number

    def _copy(self, graph: Graph, node: Node, numbers: dict[ValueId, ValueId]) -> None:
        inputs = tuple(None if value is None else numbers[value] for value in node.inputs)
        numbers.update((value, self._value(graph, value)) for value in node.outputs if value is not None)
        outputs = tuple(None if value is None else numbers[value] for value in node.outputs)
        self._nodes.append(replace(node, inputs=inputs, outputs=outputs))
