"""What rounding to bf16 costs a kernel: its results beside those of the same region in f32.

The kernel is given numbers that were rounded already, so numbers are drawn that round to them, and the region is
evaluated on those in float64 without its roundings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tierup.adapt.draws import Draw
from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId, Weights
from tierup.ir.types import Array, DType, TensorType
from tierup.reference.bounds import evaluate_bounded


def rounding_errors(
    graph: Graph, weights: Weights, arguments: Sequence[Array], results: Sequence[Array], unit: float, draw: Draw
) -> Array:
    """How far results are from f32's, in units of B; none where nothing is rounded."""
    if not any(_sums_wide(node) for node in graph.nodes):
        return np.zeros(0)
    whole, given = unrounded(graph), []
    for value, array in zip(graph.inputs, arguments, strict=True):
        given.append(_before_rounding(array, draw) if whole.type(value) != graph.type(value) else array)
    found = []
    for result, expected in zip(results, evaluate_bounded(whole, weights, given, unit), strict=True):
        measured = np.isfinite(expected.own) & (expected.own > 0) & np.isfinite(expected.value)
        off = np.abs(result.astype(np.float64) - expected.value)[measured]
        found.append(off / expected.own[measured])
    return np.concatenate(found) if found else np.zeros(0)


def _sums_wide(node: Node) -> bool:
    return node.op in ("core.matmul", "core.conv_last") and "to" in node.attrs


def unrounded(graph: Graph) -> Graph:
    """The same graph in f32: sides of products come as they were, and results are not rounded."""
    types = list(graph.values)
    same: dict[ValueId | None, ValueId | None] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(same.get(value, value) for value in node.inputs)
        if node.op == "core.cast" and _dtype(graph, node.outputs[0]) is DType.BF16:
            same[node.outputs[0]] = inputs[0]
            continue
        if _sums_wide(node):
            attrs = Attrs({name: value for name, value in node.attrs.items() if name != "to"})
            node = replace(node, attrs=attrs)
            for value in inputs[:2]:
                type = None if value is None else graph.type(value)
                if value is not None and isinstance(type, TensorType):
                    types[value] = Value(TensorType(DType.F32, type.shape), types[value].name)
        nodes.append(replace(node, inputs=inputs))
    outputs = tuple(value if (other := same.get(value)) is None else other for value in graph.outputs)
    return replace(graph, nodes=tuple(nodes), values=tuple(types), outputs=outputs)


def _dtype(graph: Graph, value: ValueId | None) -> DType | None:
    type = None if value is None else graph.type(value)
    return type.dtype if isinstance(type, TensorType) else None


def _before_rounding(array: Array, draw: Draw) -> Array:
    """Numbers of f32 that round to these: up to half of the last digit off."""
    bits = np.asarray(array).view(np.uint16).astype(np.int64) << 16
    moved = bits + draw.integers(-0x7FFF, 0x8000, array.shape)
    inside = np.where((bits & 0x7F800000 != 0) & (bits & 0x7F800000 != 0x7F800000), moved, bits)
    return inside.astype(np.uint32).view(np.float32)
