"""Det: elimination with pivots, a Loop over the columns of all matrices at once."""

from __future__ import annotations

from tierup.ir.graph import Attrs, Graph, Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core, Decomposition
from tierup.rewrite.walk import Rewriter

_LOOP_VERSION = 21


def _det(b: Core, n: Node) -> ValueId:
    """The product of the pivots, with the sign of their order"""
    x = b.input(n)
    *batch, _, size = b.shape(x)
    count = b.dims.product(batch)
    matrices = b.reshape(b.wide(x), (count, size, size))
    ones = b.broadcast(b.like(1, matrices), (count,))
    trips, always = b.scalar(size, DType.I64), b.number(1, DType.BOOL)
    results = b.out.node(
        "onnx.Loop", (trips, always, matrices, ones), Attrs({"captures": 0}), version=_LOOP_VERSION,
        outputs=(False, True), graphs=(("body", _body(b, matrices, (count, size, size))),),
    )  # fmt: skip
    assert results[1] is not None
    return b.cast(b.reshape(results[1], batch), b.dtype(x))


def _body(b: Core, matrices: ValueId, shape: tuple[Dim, Dim, Dim]) -> Graph:
    """One column: its number, whether to go on, matrices and products so far in; the same, with zeros below the pivots
    of one column more, out. A column without a pivot makes the product 0, and is left as it is."""
    out = Rewriter(b.out.weights, b.out.source)
    c, dtype = Core(out), b.dtype(matrices)
    step, going = out.open_input(DType.I64, ()), out.open_input(DType.BOOL, ())
    x, product = out.open_input(dtype, shape), out.open_input(dtype, shape[:1])
    count, size, _ = c.shape(x)
    row = c.iota((1, size, 1), 1)
    column = c.gather(x, c.reshape(step, (1,)), 2)
    below = c.select(c.le(step, row), c.abs(column), c.like(-1, x))
    place = c.op("argmax", below, axis=1, keepdims=1, last=0)
    wanted = c.broadcast(place, (count, 1, size))
    pivots, first = c.op("gather_elements", x, wanted, axis=1), c.gather(x, c.reshape(step, (1,)), 1)
    swapped = c.select(c.eq(row, step), pivots, c.select(c.eq(row, place), first, x))
    pivot = c.gather(pivots, c.reshape(step, (1,)), 2)
    none = c.eq(pivot, c.like(0, pivot))
    factor = c.div(c.gather(swapped, c.reshape(step, (1,)), 2), c.select(none, c.like(1, pivot), pivot))
    taken = c.select(c.lt(step, row), factor, c.like(0, factor))
    left = c.sub(swapped, c.mul(taken, pivots))
    signed = c.select(c.eq(place, step), pivot, c.neg(pivot))
    return out.finish([going, left, c.mul(product, c.reshape(signed, (count,)))])


ELIMINATION: dict[str, Decomposition] = {"onnx.Det": _det}
