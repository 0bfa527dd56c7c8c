"""Products of bytes by constants, with a multiple of four terms: machines multiply words of four bytes.

    Σ x · w = Σ x' · w', where x' has any bytes more and w' has zeros there

Where all that reads a product's results are maps and such products, it gives as many columns as they want, so that
nothing is copied: zeros more among the weights are columns more of the result, and zeros more among the next weights
take them away. In between, `core.slice` says which columns are meant. Any other data gets zeros beside it.

Convolutions in groups with few results are ones in fewer groups, with zeros between the channels of one and the results
of another, so that panels of weights are as wide as vectors.
"""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Attrs, Graph, Node, ValueId
from tierup.ir.ops.core import ELEMENTWISE
from tierup.ir.types import Array, DType, TensorType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Rule, Values

_WORD = 4
_VECTOR = 16  # results side by side in a vector
_BYTES = (DType.I8, DType.U8)
_LEAST_CHANNELS = 3  # fewer would be multiplied by zeros for the most part
_PRODUCTS = ("core.matmul", "core.conv_last")
_MAPS = frozenset(f"core.{name}" for name in (*ELEMENTWISE, "cast"))


def whole_words(graph: Graph) -> Rule | None:
    """The rule for one graph; bodies of control nodes stay as they are. None where there are no products of bytes."""
    if not any(node.op in _PRODUCTS and _multiplies_bytes(graph, node) for node in graph.nodes):
        return None
    wanted = _read_as_words(graph)

    def rule(out: Rewriter, node: Node) -> Values | None:
        if out.source is not graph:
            return None
        if node.op in _MAPS:
            return _map(out, node)
        if node.op == "core.conv_last" and node.attrs["group"] > 1:
            return _joined_groups(out, node)
        return _product(out, node, node.outputs[0] in wanted) if node.op in _PRODUCTS else None

    return rule


def _read_as_words(graph: Graph) -> set[ValueId | None]:
    """The values that only products of bytes read in the end, and maps with constants and each other on the way."""
    constants = {value for value, _ in graph.weights}
    readers: dict[ValueId | None, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    made = {node.outputs[0] for node in graph.nodes if node.op in _MAPS or node.op in _PRODUCTS}
    found = made.intersection(readers).difference(graph.outputs)

    def takes(node: Node, value: ValueId | None) -> bool:
        if node.op in _PRODUCTS:
            return node.inputs[0] == value and _is_of_bytes(graph, node) and node.inputs[1] in constants
        return (
            node.op in _MAPS
            and node.outputs[0] in found
            and all(given in found or given in constants for given in node.inputs)
        )

    count = -1
    while count != len(found):  # what one map reads beside a value may turn out not to be one of them
        count = len(found)
        for node in reversed(graph.nodes):
            value = node.outputs[0]
            if value in found and not all(takes(reader, value) for reader in readers[value]):
                found.discard(value)
    return found


def _is_of_bytes(graph: Graph, node: Node) -> bool:
    return node.attrs.get("group", 1) == 1 and _multiplies_bytes(graph, node)


def _multiplies_bytes(graph: Graph, node: Node) -> bool:
    types = [graph.type(value) for value in node.inputs[:2] if value is not None]
    return all(isinstance(type, TensorType) and type.shape is not None and type.dtype in _BYTES for type in types)


def _product(out: Rewriter, node: Node, widen: bool) -> Values | None:
    data, w, *rest = node.inputs
    matrix = None if w is None else out.constant(w)
    shape = out.shape(data)
    if matrix is None or data is None or shape is None or matrix.ndim != 2 or node.attrs.get("group", 1) != 1:
        return None
    if out.dtype(data) not in _BYTES or out.dtype(w) not in _BYTES or not isinstance(shape[-1], int):
        return None
    channels, columns = shape[-1], matrix.shape[1]
    b = Core(out)
    wide = _sliced_from(out, data)
    if wide is None and channels % _WORD and channels >= _LEAST_CHANNELS:
        wide = _with_zeros(b, data, -channels % _WORD)
    more = 0 if wide is None else b.shape(wide)[-1]
    more = more - channels if isinstance(more, int) and wide is not None else 0
    beside = -columns % _WORD if widen else 0
    if not more and not beside:
        return None
    places = len(matrix) // channels
    padded = np.pad(matrix.reshape(places, channels, columns), ((0, 0), (0, more), (0, beside)))
    given = (wide if more else data, b.weight(padded.reshape(-1, columns + beside)), *rest)
    (result,) = out.node(node.op, given, node.attrs)
    assert result is not None
    return [b.part(result, b.rank(result) - 1, 0, columns)]


def _joined_groups(out: Rewriter, node: Node) -> Values | None:
    """conv(x, w) in n groups = conv(x, w') in n / k groups, where w' has the matrices of k along its diagonal."""
    data, w, pads = node.inputs
    matrix = None if w is None else out.constant(w)
    shape, group = out.shape(data), node.attrs["group"]
    if matrix is None or shape is None or not isinstance(shape[-1], int):
        return None
    channels, columns = shape[-1] // group, matrix.shape[1] // group
    if channels == columns == 1 or out.dtype(data) not in _BYTES or out.dtype(w) not in _BYTES:
        return None
    fits = (
        k for k in range(1, group + 1) if group % k == 0 and k * columns % _VECTOR == 0 and k * channels % _WORD == 0
    )
    k = next(fits, 1)
    if k == 1:
        return None
    narrow = matrix.reshape(-1, channels, group // k, k, columns)
    wide = np.zeros((len(narrow), k, channels, group // k, k, columns), matrix.dtype)
    for i in range(k):
        wide[:, i, :, :, i] = narrow[:, :, :, i]
    attrs = Attrs({**node.attrs, "group": group // k})
    return out.node(node.op, (data, Core(out).weight(wide.reshape(-1, matrix.shape[1])), pads), attrs)


def _sliced_from(out: Rewriter, value: ValueId | None) -> ValueId | None:
    """What a value is the first columns of, where these are whole words."""
    node = out.producer(value)
    if node is None or node.op != "core.slice" or tuple(node.attrs["steps"]) != (1,):
        return None
    shape, first = out.shape(node.inputs[0]), None if node.inputs[1] is None else out.content(node.inputs[1])
    if shape is None or tuple(node.attrs["axes"]) != (len(shape) - 1,) or first != (0,):
        return None
    return node.inputs[0] if isinstance(shape[-1], int) and shape[-1] % _WORD == 0 else None


def _with_zeros(b: Core, data: ValueId, count: int) -> ValueId:
    """Bytes more behind the last axis; the weights there are 0, so any would do."""
    none = [0] * b.rank(data)
    return b.op("pad", data, b.sizes([*none, *none[:-1], count]), b.like(0, data), mode="constant")


def _map(out: Rewriter, node: Node) -> Values | None:
    """f(first columns of x, constants) = first columns of f(x, constants), which are repeated at their ends."""
    wide = [_sliced_from(out, value) for value in node.inputs]
    there = [(v, x) for v, x in zip(node.inputs, wide, strict=True) if v is not None and x is not None]
    constants = [None if value is None else out.constant(value) for value in node.inputs]
    if not there or any(x is None and c is None for x, c in zip(wide, constants, strict=True)):
        return None
    b = Core(out)
    sizes = {(b.shape(v)[-1], b.shape(x)[-1]) for v, x in there}
    narrow, width = sizes.pop()
    if sizes or not isinstance(narrow, int) or not isinstance(width, int):
        return None
    inputs = [x if c is None else b.weight(_stretched(c, narrow, width)) for x, c in zip(wide, constants, strict=True)]
    (result,) = out.node(node.op, inputs, node.attrs)
    assert result is not None
    return [b.part(result, b.rank(result) - 1, 0, narrow)]


def _stretched(array: Array, narrow: int, width: int) -> Array:
    if array.ndim == 0 or array.shape[-1] != narrow or narrow == 1:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, width - narrow)], mode="edge")
