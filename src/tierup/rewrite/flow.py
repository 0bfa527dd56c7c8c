"""What flows into the bodies of control nodes: the sizes that the graph around them knows.

A body is a closed graph with dims of its own. While a graph is rewritten, more becomes known of the values outside;
here a body's inputs learn of it. Two inputs that have one size outside have one size inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tierup.ir.build import OpenShape
from tierup.ir.graph import Attrs, Graph, Node, ValueId
from tierup.ir.ops.control import closed_type, item_types
from tierup.ir.types import Dim, Shape, Sym, TensorType

Shapes = list[OpenShape | None]  # of inputs; None where the rank is not known, or the value is no tensor


class Carried(NamedTuple):
    """A value that goes round: its place among the node's inputs, and among the body's inputs and outputs."""

    first: int
    inside: int
    returned: int


class Flow:
    """The shapes of a body's inputs. Their dims are those of the graph around it, or stand for the body's own.

    `outside` are the shapes of the node's inputs where the graph around knows them.
    """

    def __init__(self, node: Node, body: Graph, outside: Sequence[Shape | None]) -> None:
        self._outside = outside
        self._own = [_shape(body, value) for value in body.inputs]
        self._given = _given(node, len(body.inputs), outside)
        self._joined = self._dims_outside()
        self.carried = _carried(node)

    def known(self) -> Shapes:
        """What holds whenever the body runs."""
        return [
            outside if own is None else [self._dim(dim) for dim in own]
            for own, outside in zip(self._own, self._given, strict=True)
        ]

    def hoped(self) -> Shapes:
        """As `known`, with carried values as they are when they come in for the first time."""
        found = self.known()
        for value in self.carried:
            first, known = self._outside[value.first], found[value.inside]
            if first is not None and known is None:
                found[value.inside] = first
            elif first is not None and known is not None and len(known) == len(first):
                found[value.inside] = [a if isinstance(a, int) else b for a, b in zip(known, first, strict=True)]
        return found

    def kept(self, hoped: Shapes, walked: Graph) -> Shapes:
        """What of `hoped` the body, rewritten under it, gives back as it came; what is `known` where it does not."""
        found, known = list(hoped), self.known()
        for value in self.carried:
            given, back = _shape(walked, walked.inputs[value.inside]), _shape(walked, walked.outputs[value.returned])
            hope = hoped[value.inside]
            if hope is None or given is None:
                continue
            if back is None or len(back) != len(given):
                found[value.inside] = known[value.inside]
            else:
                sure = known[value.inside] or [None] * len(given)
                rows = zip(hope, sure, given, back, strict=True)
                found[value.inside] = [a if came == went else b for a, b, came, went in rows]
        return found

    def _dim(self, own: Dim) -> Dim:
        if not isinstance(own, Sym):
            return own
        return self._joined.get(own, Sym(-1 - own.id))  # no graph has such a sym: it is the body's own

    def _dims_outside(self) -> dict[Sym, Dim]:
        """The body's dims that are dims outside."""
        found: dict[Sym, Dim] = {}
        for own, outside in zip(self._own, self._given, strict=True):
            if own is not None and outside is not None and len(own) == len(outside):
                for inner, outer in zip(own, outside, strict=True):
                    if isinstance(inner, Sym) and not isinstance(found.get(inner), int):
                        found[inner] = outer
        return found


def with_items(node: Node) -> Node:
    """A loop or scan that says what its collected outputs are where it never runs, before more is known of its body."""
    carried = {"onnx.Loop": len(node.inputs) - node.attrs.get("captures", 0) - 1, "onnx.Scan": _n_states(node)}
    body = node.graph("body")
    if node.op not in carried or body is None or "items" in node.attrs or len(body.outputs) <= carried[node.op]:
        return node
    items = tuple(closed_type(type) for type in item_types(node.attrs, body, carried[node.op]))
    return replace(node, attrs=Attrs({**node.attrs, "items": items}))


def _n_states(node: Node) -> int:
    lengths = int(node.version <= 8)  # the first input then
    others: int = node.attrs.get("captures", 0) + node.attrs.get("num_scan_inputs", 0)
    return len(node.inputs) - lengths - others


def _given(node: Node, count: int, outside: Sequence[Shape | None]) -> list[Shape | None]:
    """For each of a body's inputs the shape that it has outside, where a value or a slice of it comes in as it is."""
    captures = node.attrs.get("captures", 0)
    given: list[Shape | None] = [None] * (count - captures)
    if node.op == "onnx.Scan" and node.version > 8:
        scans = node.attrs["num_scan_inputs"]
        axes = node.attrs.get("scan_input_axes") or (0,) * scans
        for place, axis in enumerate(axes, start=count - captures - scans):
            shape = outside[place]
            given[place] = None if shape is None else _without(shape, axis)
    return given + list(outside[len(outside) - captures :])


def _without(shape: Shape, axis: int) -> Shape | None:
    if not -len(shape) <= axis < len(shape):
        return None
    return tuple(dim for place, dim in enumerate(shape) if place != axis % len(shape))


def _carried(node: Node) -> list[Carried]:
    split = len(node.inputs) - node.attrs.get("captures", 0)
    if node.op == "onnx.Loop":
        return [Carried(place, place, place - 1) for place in range(2, split)]
    if node.op == "onnx.Scan" and node.version > 8:
        return [Carried(place, place, place) for place in range(_n_states(node))]
    return []


def _shape(graph: Graph, value: ValueId) -> Shape | None:
    type = graph.type(value)
    return type.shape if isinstance(type, TensorType) else None
