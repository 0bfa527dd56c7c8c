"""The places of what is not zero, as core ops that have kernels.

    nonzero(x)[k] = i, where x[i] is not 0 and k elements before it are not

How many there are is a sum, and the size of the result a dim that reads it. Each place is written to where the number
of those before it says; all others go to one more place behind the last, which is cut off.
"""

from __future__ import annotations

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Values


def by_counts(out: Rewriter, node: Node) -> Values | None:
    """What a `core.nonzero` becomes; None where it stays."""
    x, (shape, dtype) = node.inputs[0], (out.shape(node.inputs[0]), out.dtype(node.inputs[0]))
    if x is None or not shape or dtype is None or not (dtype is DType.BOOL or dtype.is_integer or dtype.is_float):
        return None
    b = Core(out)
    count = b.dims.product(shape)
    met = b.reshape(x if dtype is DType.BOOL else b.inverse(b.eq(x, b.like(0, x))), (count,))
    ones = b.cast(met, DType.I64)
    total = b.reduce("sum", ones, (0,), keepdims=False)
    (size,) = b.elems(total, "how many elements are not zero")
    before = b.sub(b.op("cumsum", ones, axis=0, exclusive=0, reverse=0), b.number(1, DType.I64))
    room = b.broadcast(b.number(0, DType.I64), (b.dims.add(size, 1),))
    targets, places = b.select(met, before, total), b.iota((count,), 0)
    written = b.op("scatter_elements", room, targets, places, axis=0, reduction="none")
    flat = b.part(written, 0, 0, size)
    return [b.concat([b.unsqueeze(row, 0) for row in _along(b, flat, shape)], 0)]


def _along(b: Core, flat: ValueId, shape: tuple[Dim, ...]) -> list[ValueId]:
    """Places counted through a whole tensor as places along each axis."""
    rows = []
    for axis, dim in enumerate(shape):
        behind = b.dims.product(shape[axis + 1 :])
        row = flat if behind == 1 else b.div(flat, b.scalar(behind, DType.I64))
        rows.append(row if axis == 0 else b.op("mod", row, b.scalar(dim, DType.I64)))
    return rows
