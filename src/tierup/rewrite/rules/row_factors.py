"""Factors of channels before a 1×1 convolution, as squeeze-and-excitation has them, go to its weights:

    (x · s) · w = x · (diag(s) · w)   where s has one factor for each column of x

A product multiplies a panel of weights by them as it reads it, once for a tile of rows. The picture is neither read nor
written for it: at 112×112 places of 64 channels, that took as long as the product.
"""

from __future__ import annotations

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import DType, TensorType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Rule, Values

_LEAST_ROWS = 256  # of the left side, below which it is not worth a multiplication for each tile of some rows
_MOST_COLUMNS = 32  # of weights: with 40, multiplying them for each tile takes as long as the picture once


def factors_of_rows(graph: Graph) -> Rule | None:
    """The rule for one graph; bodies of control nodes stay as they are. None where it would find nothing."""
    places = ((node.outputs[0], _factor(graph, index)) for index, node in enumerate(graph.nodes))
    found = {value: place for value, place in places if place is not None}
    if not found:
        return None

    def rule(out: Rewriter, node: Node) -> Values | None:
        if out.source is not graph or node.outputs[0] not in found:
            return None
        place = found[node.outputs[0]]
        left, right = node.inputs
        scaled = out.producer(left)
        if scaled is None or scaled.op != "core.mul" or right is None:
            return None
        b, (x, s) = Core(out), (scaled.inputs[1 - place], scaled.inputs[place])
        assert x is not None
        assert s is not None
        return [b.op("matmul_scaled", x, right, b.reshape(s, (b.shape(right)[0],)))]

    return rule


def _factor(graph: Graph, product: int) -> int | None:
    """Which input of what makes a product's left side is a factor for each column; None if none is, or it does not
    pay."""
    if graph.nodes[product].op != "core.matmul":
        return None
    left, right = graph.nodes[product].inputs
    scaled = graph.producer(left)
    if scaled is None or scaled.op != "core.mul" or right not in graph.digests or _dtype(graph, right) is not DType.F32:
        return None
    if left is None or graph.users.get(left, ()) != [product] or left in graph.outputs:
        return None
    whole, rows = _shape(graph, left), 1
    for size in whole[:-1]:
        rows *= size if isinstance(size, int) else 1
    columns = _shape(graph, right)[1:]
    if rows < _LEAST_ROWS or len(columns) != 1 or not isinstance(columns[0], int) or columns[0] > _MOST_COLUMNS:
        return None
    for place, value in enumerate(scaled.inputs):
        other = scaled.inputs[1 - place]
        shape = _shape(graph, value)
        single = all(size == 1 for size in shape[:-1]) and shape[-1:] == whole[-1:]
        if single and value not in graph.digests and _shape(graph, other) == whole:
            return place
    return None


def _shape(graph: Graph, value: ValueId | None) -> tuple[object, ...]:
    type = None if value is None else graph.type(value)
    return (type.shape or ()) if isinstance(type, TensorType) else ()


def _dtype(graph: Graph, value: ValueId | None) -> DType | None:
    type = None if value is None else graph.type(value)
    return type.dtype if isinstance(type, TensorType) else None
