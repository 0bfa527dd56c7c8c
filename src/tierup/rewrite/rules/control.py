"""Simplifications of control flow: what is decided already is not decided again in each call."""

from __future__ import annotations

from msgspec.structs import replace

from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId, static_type
from tierup.rewrite.rules.row import Simplification
from tierup.rewrite.walk import Rewriter, Values, splice

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


CONTROL = (
    Simplification("captured weights", _BODIES, "(λw. body)(weight) = body[w := weight]", _sink),
    Simplification("known branch", ("onnx.If",), "if true then a else b = a", _known_branch),
    Simplification("no trips", ("onnx.Loop",), "a loop of no trips gives its first values", _no_trips),
)
