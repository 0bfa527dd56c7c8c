"""Attention whose batch is grouped anew on the way: [batch · heads, m, n] for products, [batch, heads, m, n] for the
mask. All of it gets the finest grouping, so that no reshape stands between the products:

    f(reshape(x, s), …) = reshape(f(x, …), s)   where s leaves the last two axes as they are
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.dims import READS
from tierup.ir.graph import Attrs, Graph, Node, ValueId
from tierup.ir.ops.core import ELEMENTWISE
from tierup.ir.types import Dim, Shape, Sym, TensorType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Rule, Values

_REDUCTIONS = ("core.reduce_max", "core.reduce_sum")
_MOST_NODES = 64  # between two products; attention has some twenty


def regrouped(graph: Graph) -> Rule | None:
    """The rule for one graph; bodies of control nodes stay as they are. None where it would find nothing."""
    finest = _finest(graph)
    if not finest:
        return None

    def rule(out: Rewriter, node: Node) -> Values | None:
        lead = finest.get(node.outputs[0]) if out.source is graph else None
        return None if lead is None else _grouped(out, graph, node, lead)

    return rule


class _Between(Struct, frozen=True):
    """What lies between two products: nodes by their results, the first product among them, and the groupings that
    reshapes make of the second's left side. What has another is broadcast."""

    nodes: dict[ValueId, Node]
    groupings: set[Shape]

    def is_attention(self) -> bool:
        ops = {node.op for node in self.nodes.values()}
        return len(self.groupings) > 1 and {"core.matmul", "core.reduce_max", "core.exp"} <= ops


def _finest(graph: Graph) -> dict[ValueId | None, Shape]:
    """For results that have a coarser one: the grouping that they get."""
    found: dict[ValueId | None, Shape] = {}
    for node in graph.nodes:
        between = _between(graph, node) if node.op == "core.matmul" else None
        if between is None or not between.is_attention():
            continue
        finest = max(between.groupings, key=len)
        if sum(len(grouping) == len(finest) for grouping in between.groupings) > 1:
            continue
        for value in (*between.nodes, *node.outputs):
            shape = _shape(graph, value)
            if len(shape) < len(finest) + 2 and shape[:-2] in between.groupings:
                found[value] = finest
    return found


def _between(graph: Graph, product: Node) -> _Between | None:
    """From the left side of a product back to what is no map of its elements."""
    weights = product.inputs[0]
    whole = _shape(graph, weights)
    nodes, pairs, pending = dict[ValueId, Node](), list[set[Shape]](), [weights]
    while pending:
        value = pending.pop()
        node = graph.producer(value)
        if value is None or node is None or value in nodes:
            continue
        shape = _shape(graph, value)
        if len(shape) < 3 or shape[-2:-1] != whole[-2:-1] or shape[-1] not in (*whole[-1:], 1):
            continue
        if len(nodes) == _MOST_NODES:
            return None
        if node.op == "core.matmul":
            nodes[value] = node
        elif _is_map(graph, node):
            nodes[value] = node
            pending.extend(node.inputs)
        elif node.op == "core.reshape" and _shape(graph, node.inputs[0])[-2:] == shape[-2:]:
            pairs.append({shape[:-2], _shape(graph, node.inputs[0])[:-2]})
            pending.append(node.inputs[0])
    return _Between(nodes, _joined(whole[:-2], pairs))


def _joined(first: Shape, pairs: Sequence[set[Shape]]) -> set[Shape]:
    """All groupings that pairs of equal ones lead to from the first."""
    found, more = {first}, True
    while more:
        reached = {grouping for pair in pairs if pair & found for grouping in pair}
        more, found = not reached <= found, found | reached
    return found


def _is_map(graph: Graph, node: Node) -> bool:
    """Whether a node computes element by element, or row by row."""
    if node.op in _REDUCTIONS:
        last = (len(_shape(graph, node.inputs[0])) - 1,)
        return tuple(node.attrs["axes"]) == last and bool(node.attrs["keepdims"])
    return node.op.removeprefix("core.") in ELEMENTWISE


def _shape(graph: Graph, value: ValueId | None) -> Shape:
    type = None if value is None else graph.type(value)
    return (type.shape or ()) if isinstance(type, TensorType) else ()


def _grouped(out: Rewriter, graph: Graph, node: Node, finest: Shape) -> Values | None:
    """The node on operands with the finest grouping, and its result as it was."""
    types = out.types(node)
    whole = None if types is None else getattr(types[0], "shape", None)
    lead = [_again(out, graph, dim) for dim in finest]
    known = [dim for dim in lead if dim is not None]
    if whole is None or len(known) != len(lead) or len(whole) < 3:
        return None
    given = [_operand(out, value, whole[:-2], known) for value in node.inputs]
    if None in given or (node.op == "core.matmul" and any(len(out.shape(v) or ()) != len(known) + 2 for v in given)):
        return None
    attrs = Attrs({**node.attrs, "axes": (len(known) + 1,)}) if node.op in _REDUCTIONS else node.attrs
    (made,) = out.add(replace(node, inputs=tuple(given), attrs=attrs))
    assert made is not None
    return [Core(out).reshape(made, whole)]


def _operand(out: Rewriter, value: ValueId | None, own: Shape, lead: Sequence[Dim]) -> ValueId | None:
    """A value with the grouping `lead` in place of `own`; None where it has yet another."""
    shape = out.shape(value)
    if value is None or shape is None:
        return None
    behind = out.producer(value)
    if behind is not None and behind.op == "core.reshape":
        before = out.shape(behind.inputs[0]) or ()
        if before == (*lead, *shape[-2:]) and len(shape) > 2:
            return behind.inputs[0]
    wanted = _regrouped(shape[:-2], own, lead) if len(shape) > 2 else ()
    if wanted is None:
        return None
    return value if all(dim == 1 for dim in wanted) else Core(out).reshape(value, (*wanted, *shape[-2:]))


def _regrouped(shape: Shape, own: Shape, lead: Sequence[Dim]) -> Sequence[Dim] | None:
    """What is broadcast to the grouping `own`, in the grouping `lead` of the same elements; None where that is not
    known. The last axes of both are alike, and before them `own` has one axis more, or none."""
    if shape == own:
        return lead
    alike = 0
    while alike < min(len(own), len(lead)) and own[-1 - alike] == lead[-1 - alike]:
        alike += 1
    if len(own) - alike > 1 or any(a not in (1, b) for a, b in zip(reversed(shape), reversed(own), strict=False)):
        return None
    split, kept = shape[: max(0, len(shape) - alike)], shape[max(0, len(shape) - alike) :]
    first = lead[: len(lead) - alike]
    return (*((1,) * len(first) if all(dim == 1 for dim in split) else first), *kept)


def _again(out: Rewriter, graph: Graph, dim: Dim) -> Dim | None:
    """A dim of the graph that is walked in the new one; None where it is read from data."""
    if not isinstance(dim, Sym):
        return dim
    op = graph.dims[dim.id]
    if op.op in READS:
        value, axis = op.args
        if op.op != "of" or value not in graph.inputs or not isinstance(axis, int):
            return None
        return out.dims.of(graph.inputs.index(value), axis)  # inputs come first in every graph
    args = [_again(out, graph, arg) for arg in op.args]
    return None if None in args else out.dims.emit(op.op, *(arg for arg in args if arg is not None))
