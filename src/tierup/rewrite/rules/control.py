"""Simplifications of control flow: what is decided already is not decided again in each call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId, static_type
from tierup.ir.types import DType
from tierup.rewrite.rules.row import Simplification, numbers
from tierup.rewrite.walk import Rewriter, Values, live, splice

_MAPS = frozenset(
    f"onnx.{name}"
    for name in ("And", "Cast", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Not", "Or")
)
_BODIES = ("onnx.If", "onnx.Loop", "onnx.Scan", "onnx.SequenceMap", "preview.FlexAttention")


def _single(out: Rewriter, value: ValueId | None) -> int | None:
    """The one integer or truth that a constant holds."""
    array = None if value is None else out.constant(value)
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _known_branch(out: Rewriter, node: Node) -> Values | None:
    condition = _single(out, node.inputs[0])
    if condition is None:
        return None
    body = node.graph("then_branch" if condition else "else_branch")
    return None if body is None else splice(out, body, node.inputs[1:])


def _no_trips(out: Rewriter, node: Node) -> Values | None:
    limit, condition = (_single(out, value) for value in node.inputs[:2])
    never = (condition is not None and not condition) or (limit is not None and limit <= 0)
    carried = node.inputs[2 : len(node.inputs) - node.attrs.get("captures", 0)]
    if not never or any(value is not None for value in node.outputs[len(carried) :]):
        return None
    return [*carried, *(None for _ in node.outputs[len(carried) :])][: len(node.outputs)]


def _sink(out: Rewriter, node: Node) -> Values | None:
    """A weight that bodies capture becomes a weight of theirs: only then do their rules see it."""
    count = node.attrs.get("captures", 0)
    first = len(node.inputs) - count
    kept = [i for i in range(first, len(node.inputs)) if _weight(out, node.inputs[i]) is None]
    if len(kept) == count:
        return None
    inputs = (*node.inputs[:first], *(node.inputs[i] for i in kept))
    graphs = tuple((name, _with_weights(out, node, body, count)) for name, body in node.graphs)
    attrs = Attrs({**node.attrs, "captures": len(kept)})
    return out.add(replace(node, inputs=inputs, attrs=attrs, graphs=graphs))


def _weight(out: Rewriter, value: ValueId | None) -> str | None:
    return None if value is None else out.digest_of(value)


def _with_weights(out: Rewriter, node: Node, body: Graph, count: int) -> Graph:
    captured = zip(body.inputs[len(body.inputs) - count :], node.inputs[len(node.inputs) - count :], strict=True)
    sunk = {inner: digest for inner, outer in captured if (digest := _weight(out, outer)) is not None}
    values = list(body.values)
    for inner, digest in sunk.items():
        values[inner] = Value(static_type(out.weights[digest]), values[inner].name)
    return replace(
        body,
        inputs=tuple(value for value in body.inputs if value not in sunk),
        weights=(*body.weights, *sunk.items()),
        values=tuple(values),
    )


def _deciding_slice(out: Rewriter, node: Node) -> Values | None:
    """The loops that exporters write for bags of embeddings compare one element of a list with the next, as slices of
    which nobody knows that they have one element. But a condition has one, or the call is turned away."""
    if len(node.inputs) < 3:
        return None
    x, first, end, *more = node.inputs
    if x is None or first is None or len(out.shape(x) or ()) != 1 or out.dtype(first) is not DType.I64:
        return None
    if out.shape(first) != (1,) or out.shape(end) != (1,) or not _is_plain(out, more):
        return None
    (base, start), (other, stop) = _counted(out, first), _counted(out, end)
    if base != other or stop - start != 1 or not _decides(out.source, node.outputs[0]):
        return None
    # What lies outside is empty as a slice, and so is x[-1:0]: neither may be found.
    (size,) = out.node("onnx.Shape", [x], version=15)
    (is_last,) = out.node("onnx.Equal", [first, out.weight(np.array(-1, np.int64))], version=13)
    (place,) = out.node("onnx.Where", [is_last, size, first], version=16)
    return out.node("onnx.Gather", [x, place], Attrs({"axis": 0}), version=13)


def _is_plain(out: Rewriter, more: Sequence[ValueId | None]) -> bool:
    """Whether axes and steps, where they are given, are those of a slice along the only axis."""
    return all(
        value is None or numbers(out, value) in usual
        for value, usual in zip(more, (((0,), (-1,)), ((1,),)), strict=False)
    )


def _counted(out: Rewriter, value: ValueId | None) -> tuple[ValueId | None, int]:
    """What a number is counted from, and how far."""
    made = out.producer(value)
    if made is not None and made.op == "onnx.Add":
        for base, step in (made.inputs, made.inputs[::-1]):
            known = numbers(out, step)
            if known is not None and len(known) == 1:
                return base, known[0]
    return value, 0


def _decides(graph: Graph, value: ValueId | None) -> bool:
    """Whether a condition is computed of all elements of this value, one by one."""
    used, told = live(graph), {value}
    for node in graph.nodes:
        if node.op == "onnx.If" and node.inputs[0] in told and used.intersection(node.outputs):
            return True
        if node.op in _MAPS and told.intersection(node.inputs):
            told.update(node.outputs)
    return False


CONTROL = (
    Simplification(
        "deciding slice", ("onnx.Slice",), "x[i:i+1] = x[i] where a condition needs one element", _deciding_slice
    ),
    Simplification("captured weights", _BODIES, "(λw. body)(weight) = body[w := weight]", _sink),
    Simplification("known branch", ("onnx.If",), "if true then a else b = a", _known_branch),
    Simplification("no trips", ("onnx.Loop",), "a loop of no trips gives its first values", _no_trips),
)
