"""Single numbers that loops carry, and whose rank changes from step to step, become ones without axes.

    flag = flag + [0]   gives a vector of one element where `flag` had no axes, and nothing behind it has a rank then

Exporters write so where their framework has flags of either kind. The rank of such a number may be chosen where nobody
sees it: where maps alone read it, up to one that has axes of its own, whose result is the same; conditions; and the
next step. By induction over the steps it is always one element with at most one axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
from msgspec.structs import replace

from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId, Weights, static_type
from tierup.ir.types import Shape, TensorType
from tierup.rewrite.walk import live

_CONTROL = ("onnx.If", "onnx.Loop", "onnx.Scan")
_MAPS = frozenset(f"onnx.{name}" for name in ("Add", "And", "Cast", "Identity", "Mul", "Not", "Or", "Sub", "Xor"))


class _Seen(Exception):
    """Something depends on the rank of the number."""


def settle_scalars(graph: Graph, weights: Weights) -> Graph:
    """Afterwards: such numbers have no axes, in bodies too. The types of the result are to be inferred anew; it is
    `graph` itself where there is nothing to do."""
    used = live(graph)
    nodes = tuple(_settled(graph, node, weights, used) for node in graph.nodes)
    changed = any(new is not old for new, old in zip(nodes, graph.nodes, strict=True))
    return replace(graph, nodes=nodes) if changed else graph


def _settled(graph: Graph, node: Node, weights: Weights, used: set[ValueId]) -> Node:
    if node.op not in _CONTROL:
        return node
    graphs = tuple((name, settle_scalars(body, weights)) for name, body in node.graphs)
    if any(new is not old for (_, new), (_, old) in zip(graphs, node.graphs, strict=True)):
        node = replace(node, graphs=graphs)
    body = node.graph("body")
    if node.op != "onnx.Loop" or body is None:
        return node
    for place in range(2, len(node.inputs) - node.attrs.get("captures", 0)):
        first, result = node.inputs[place], node.outputs[place - 2] if place - 2 < len(node.outputs) else None
        unknown = _shape(body, body.inputs[place]) is None
        if unknown and first is not None and result not in used and _shape(graph, first) == ():
            body = _without_axes(body, place, weights) or body
    return node if body is node.graph("body") else replace(node, graphs=(("body", body),))


def _without_axes(body: Graph, place: int, weights: Weights) -> Graph | None:
    """A loop's body in which a carried number has no axes; None where something would see that."""
    hidden = _Hidden(body, weights, (body.inputs[place],))
    returned = body.outputs[place - 1]
    try:
        rewritten = hidden.graph()
    except _Seen:
        return None
    kept = body.outputs[1 : place - 1] + body.outputs[place:]
    if hidden.values.intersection(kept) or not hidden.is_single(returned):
        return None
    return _flattened(rewritten, weights, (place - 1,))


class _Hidden:
    """The values of a graph that are single numbers of a rank that nobody sees. `shapes` are those that others turn out
    to have if that is so."""

    def __init__(self, graph: Graph, weights: Weights, first: Iterable[ValueId]) -> None:
        self._graph, self._weights = graph, weights
        self.values = set(first)
        self._shapes: dict[ValueId, Shape] = {}

    def graph(self) -> Graph:
        """The graph, in which branches give such numbers without axes. Raises _Seen where there is no such choice."""
        nodes = []
        for node in self._graph.nodes:
            if self.values.intersection(node.inputs[1:] if node.op == "onnx.If" else node.inputs):
                node = self._branches(node) if node.op == "onnx.If" else self._map(node)
            elif node.op in _MAPS and self._shapes.keys() & set(node.inputs):
                self._pass_on(node)
            nodes.append(node)
        return replace(self._graph, nodes=tuple(nodes))

    def is_single(self, value: ValueId) -> bool:
        """Whether a value is one element with at most one axis."""
        shape = self.shape(value)
        return value in self.values or (shape is not None and len(shape) <= 1 and prod(_numbers(shape)) == 1)

    def shape(self, value: ValueId | None) -> Shape | None:
        return None if value is None else self._shapes.get(value) or _shape(self._graph, value)

    def _map(self, node: Node) -> Node:
        """Beside an argument with axes, a single number changes nothing of the shape."""
        if node.op not in _MAPS:
            raise _Seen
        shapes = {self.shape(value) for value in node.inputs if value not in self.values}
        if not shapes - {()}:
            self.values.update(value for value in node.outputs if value is not None)
        elif not self._pass_on(node):
            raise _Seen
        return node

    def _pass_on(self, node: Node) -> bool:
        """Whether the arguments of a map that have axes have one shape: then so has the result."""
        shapes = {self.shape(value) for value in node.inputs if value not in self.values} - {()}
        if len(shapes) != 1 or None in shapes:
            return False
        self._shapes.update((value, shape) for value in node.outputs if value is not None for shape in shapes if shape)
        return True

    def _branches(self, node: Node) -> Node:
        """An If that is given such numbers: what its branches make of them."""
        inner = []
        for name, body in node.graphs:
            given = [inside for value, inside in zip(node.inputs[1:], body.inputs, strict=True) if value in self.values]
            hidden = _Hidden(body, self._weights, given)
            inner.append((name, hidden, hidden.graph()))
        flat = []
        for place, result in enumerate(node.outputs):
            made = [(hidden, body.outputs[place]) for _, hidden, body in inner]
            shapes = {None if value in hidden.values else hidden.shape(value) for hidden, value in made}
            if len(shapes) == 1 and None not in shapes:
                continue
            if result is None or not all(hidden.is_single(value) for hidden, value in made):
                raise _Seen
            flat.append(place)
            self.values.add(result)
        graphs = tuple((name, _flattened(body, self._weights, flat)) for name, _, body in inner)
        return replace(node, graphs=graphs)


def _numbers(shape: Shape) -> list[int]:
    """Sizes; 0 for those that are not known."""
    return [dim if isinstance(dim, int) else 0 for dim in shape]


def _shape(graph: Graph, value: ValueId) -> Shape | None:
    type = graph.type(value)
    return type.shape if isinstance(type, TensorType) else None


def _flattened(graph: Graph, weights: Weights, places: Sequence[int]) -> Graph:
    """A graph whose outputs at these places lose their axes."""
    if not places:
        return graph
    values, nodes, outputs = list(graph.values), list(graph.nodes), list(graph.outputs)
    none = np.zeros(0, np.int64)
    sizes = len(values)
    values.append(Value(static_type(none), ""))
    for place in places:
        type = graph.type(outputs[place])
        assert isinstance(type, TensorType)
        nodes.append(Node("core.reshape", 1, (outputs[place], sizes), (len(values),), Attrs()))
        outputs[place] = len(values)
        values.append(Value(TensorType(type.dtype, ()), ""))
    constants = (*graph.weights, (sizes, weights.add(none)))
    return replace(graph, values=tuple(values), nodes=tuple(nodes), outputs=tuple(outputs), weights=constants)
