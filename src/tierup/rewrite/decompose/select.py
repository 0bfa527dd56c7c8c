"""Ops that pick or place by index: negative indices become positive ones, which the core ops check."""

from __future__ import annotations

from tierup.ir.graph import Node, ValueId
from tierup.ir.infer import Out
from tierup.ir.types import Dim, DType, Shape
from tierup.rewrite.decompose.core import Core, Declined, Decomposition


def from_front(b: Core, indices: ValueId, size: Dim) -> ValueId:
    """Indices counted from the front: i + size where i < 0"""
    known = b.out.constant(indices)
    if known is not None and (known.size == 0 or known.min() >= 0):
        return indices
    shifted = b.add(indices, b.scalar(size, b.dtype(indices)))
    return b.select(b.lt(indices, b.like(0, indices)), shifted, indices)


def _tuples_from_front(b: Core, indices: ValueId, sizes: Shape) -> ValueId:
    """As `from_front` for index tuples, whose parts have sizes of their own."""
    known = b.out.constant(indices)
    if known is not None and (known.size == 0 or known.min() >= 0):
        return indices
    shifted = b.add(indices, b.cast(b.sizes(sizes), b.dtype(indices)))
    return b.select(b.lt(indices, b.like(0, indices)), shifted, indices)


def _compress(b: Core, n: Node) -> ValueId:
    x, axis = b.input(n), n.attrs.get("axis")
    shape = b.shape(x)
    rows = b.reshape(x, [b.dims.product(shape)]) if axis is None else x
    places = b.op("nonzero", b.input(n, 1))
    return b.gather(rows, b.reshape(places, b.shape(places)[1:]), 0 if axis is None else b.axis(axis, len(shape)))


def _gather(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    axis = b.axis(n.attrs.get("axis", 0), b.rank(x))
    return b.gather(x, from_front(b, b.input(n, 1), b.shape(x)[axis]), axis)


def _gather_elements(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    axis = b.axis(n.attrs.get("axis", 0), b.rank(x))
    return b.op("gather_elements", x, from_front(b, b.input(n, 1), b.shape(x)[axis]), axis=axis)


def _depth(b: Core, indices: ValueId) -> int:
    shape = b.shape(indices)
    if not shape or not isinstance(shape[-1], int):
        raise Declined("the length of its index tuples is known only in the call")
    return shape[-1]


def _gather_nd(b: Core, n: Node) -> ValueId:
    x, indices, batch = b.input(n), b.input(n, 1), n.attrs.get("batch_dims", 0)
    sizes = b.shape(x)[batch : batch + _depth(b, indices)]
    return b.op("gather_nd", x, _tuples_from_front(b, indices, sizes), batch_dims=batch)


def _scatter_elements(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    axis = b.axis(n.attrs.get("axis", 0), b.rank(x))
    indices = from_front(b, b.input(n, 1), b.shape(x)[axis])
    return b.op("scatter_elements", x, indices, b.input(n, 2), axis=axis, reduction=n.attrs.get("reduction", "none"))


def _scatter_nd(b: Core, n: Node) -> ValueId:
    x, indices = b.input(n), b.input(n, 1)
    tuples = _tuples_from_front(b, indices, b.shape(x)[: _depth(b, indices)])
    return b.op("scatter_nd", x, tuples, b.input(n, 2), reduction=n.attrs.get("reduction", "none"))


def _tensor_scatter(b: Core, n: Node) -> ValueId:
    """Step t of an update goes to start + t of its sample, modulo the cache's length if that is circular"""
    cache, update, starts = b.input(n), b.input(n, 1), b.given(n, 2)
    shape = b.shape(update)
    axis = b.axis(n.attrs.get("axis", -2), len(shape))
    places = b.iota([dim if i == axis else 1 for i, dim in enumerate(shape)], axis)
    if starts is not None:
        first = b.reshape(b.cast(starts, DType.I64), [dim if i == 0 else 1 for i, dim in enumerate(shape)])
        places = b.add(first, places)
    if n.attrs.get("mode", "linear") == "circular":
        places = b.op("mod", places, b.scalar(b.shape(cache)[axis], DType.I64))
    return b.op("scatter_elements", cache, b.broadcast(places, shape), update, axis=axis, reduction="none")


def _classes(b: Core, n: Node, axis: int) -> Dim:
    """How many classes there are, read in the call where it is not known before."""
    types = b.out.types(n)
    shape = types[0].shape if types and isinstance(types[0], Out) else None
    size = None if shape is None else shape[axis]
    if size is not None:
        return size
    (size,) = b.elems(b.cast(b.reshape(b.input(n, 1), ()), DType.I64), "how many classes there are")
    return size


def _one_hot(b: Core, n: Node) -> ValueId:
    """values[1] where the index is the class, else values[0]; an index outside meets no class"""
    indices, values = b.cast(b.input(n), DType.I64), b.input(n, 2)
    rank = b.rank(indices)
    axis = b.axis(n.attrs.get("axis", -1), rank + 1)
    size = _classes(b, n, axis)
    classes = b.iota([size if i == axis else 1 for i in range(rank + 1)], axis)
    places = b.unsqueeze(from_front(b, indices, size), axis)
    off, on = (b.reshape(b.part(values, 0, i, i + 1), ()) for i in range(2))
    return b.select(b.eq(places, classes), on, off)


def _top_k(b: Core, n: Node) -> tuple[ValueId, ValueId]:
    x = b.input(n)
    count = b.integers([n.attrs["k"]]) if n.version < 10 else b.reshape(b.cast(b.input(n, 1), DType.I64), (1,))
    axis = b.axis(n.attrs.get("axis", -1), b.rank(x))
    return b.pair("topk", x, count, axis=axis, largest=int(n.attrs.get("largest", 1)))


SELECT: dict[str, Decomposition] = {
    "onnx.Compress": _compress,
    "onnx.Gather": _gather,
    "onnx.GatherElements": _gather_elements,
    "onnx.GatherND": _gather_nd,
    "onnx.NonZero": lambda b, n: b.op("nonzero", b.input(n)),
    "onnx.OneHot": _one_hot,
    "onnx.Scatter": _scatter_elements,
    "onnx.ScatterElements": _scatter_elements,
    "onnx.ScatterND": _scatter_nd,
    "onnx.TensorScatter": _tensor_scatter,
    "onnx.TopK": _top_k,
}
