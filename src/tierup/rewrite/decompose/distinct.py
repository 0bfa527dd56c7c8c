"""Unique: slices are sorted by their bits, and those that differ from the one before begin a group.

Elements become unsigned integers that sort as they do. A Loop brings the slices in order bit by bit, the last element's
lowest bit first: those without the bit go to the front, the others behind them, both in the order that they had. So
equal slices stay in their own order, and the first of each is where it first occurs. The Loop has as many steps as the
largest difference of two elements has bits, for each element of a slice.
"""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Attrs, Graph, Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.walk import Rewriter

_LOOP_VERSION = 13
_I64 = DType.I64


def _unique(b: Core, n: Node) -> list[ValueId]:
    x, axis = b.input(n), n.attrs.get("axis")
    rows = b.reshape(x, (b.dims.product(b.shape(x)),)) if axis is None else x
    return _distinct(b, rows, b.axis(axis or 0, b.rank(rows)), bool(n.attrs.get("sorted", 1)))[: len(n.outputs)]


def _ms_unique(b: Core, n: Node) -> list[ValueId]:
    """In the order of their first occurrence, without where that is."""
    values, _, inverse, counts = _distinct(b, b.input(n), 0, in_order=False)
    return [values, inverse, counts][: len(n.outputs)]


def _distinct(b: Core, x: ValueId, axis: int, in_order: bool) -> list[ValueId]:
    """The distinct slices along an axis, where each first occurs, which of them each slice is, and how often they
    come: in order, or as they first occur."""
    shape = b.shape(x)
    others = [i for i in range(len(shape)) if i != axis]
    count, width = shape[axis], b.dims.product([shape[i] for i in others])
    keys = b.reshape(b.transpose(_keys(b, x), [*others, axis]), (width, count))
    order = _order(b, keys)
    begins = _begins(b, keys, order)
    ones, zeros = b.cast(begins, _I64), b.broadcast(b.number(0, _I64), (count,))
    group, total = _running(b, ones), b.reduce("sum", ones, (0,), keepdims=False)
    (size,) = b.elems(total, "how many distinct elements there are")
    room = b.broadcast(b.number(0, _I64), (b.dims.add(size, 1),))  # what begins no group goes behind the last
    firsts = b.part(_scatter(b, room, b.select(begins, group, total), order), 0, 0, size)
    inverse = _scatter(b, zeros, order, group)
    nothing = b.broadcast(b.number(0, _I64), (size,))
    if not in_order:
        place = b.gather(_running(b, _scatter(b, zeros, order, ones)), firsts, 0)
        firsts, inverse = _scatter(b, nothing, place, firsts), b.gather(place, inverse, 0)
    every = b.broadcast(b.number(1, _I64), (count,))
    return [b.gather(x, firsts, axis), firsts, inverse, _scatter(b, nothing, inverse, every, "add")]


def _scatter(b: Core, data: ValueId, places: ValueId, values: ValueId, how: str = "none") -> ValueId:
    return b.op("scatter_elements", data, places, values, axis=0, reduction=how)


def _running(b: Core, ones: ValueId) -> ValueId:
    """How many ones there are until each element, less one."""
    return b.sub(b.op("cumsum", ones, axis=0, exclusive=0, reverse=0), b.number(1, _I64))


def _keys(b: Core, x: ValueId) -> ValueId:
    """Unsigned integers that sort as elements do, from 0 on. NaN is the largest, and all of them are one; so are the
    zeros of both signs."""
    dtype = b.dtype(x)
    if dtype.is_float:
        x = _as_integers(b, x if dtype is DType.F64 else b.cast(x, DType.F32))
    elif dtype is DType.BOOL or (dtype.is_integer and dtype.bits < 32):
        x = b.cast(x, DType.I32)
    elif not dtype.is_integer:
        raise Declined(f"elements of {dtype!r} have no order that kernels know")
    unsigned = DType.U32 if b.dtype(x).bits == 32 else DType.U64
    axes = tuple(range(b.rank(x)))
    above = b.sub(x, b.reduce("min", x, axes, keepdims=False))  # wraps, and is right without its sign
    return above if b.dtype(above) is unsigned else b.op("bitcast", above, to=unsigned.code)


def _as_integers(b: Core, x: ValueId) -> ValueId:
    """Signed integers that sort as floats do: the bits, of negative ones all but the sign inverted."""
    integer = DType.I32 if b.dtype(x) is DType.F32 else DType.I64
    largest = b.number(np.iinfo(integer.numpy).max, integer)
    bits = b.op("bitcast", b.select(b.eq(x, b.like(0, x)), b.like(0, x), x), to=integer.code)
    ordered = b.select(b.lt(bits, b.number(0, integer)), b.op("xor", bits, largest), bits)
    return b.select(b.eq(x, x), ordered, largest)


def _order(b: Core, keys: ValueId) -> ValueId:
    """Which column of keys[width, count] comes at each place; of equal ones the first comes first."""
    width, count = b.shape(keys)
    unsigned = b.dtype(keys)
    top = b.reduce("max", b.reshape(keys, (b.dims.mul(width, count),)), (0,), keepdims=False)
    shifts = b.weight(np.arange(unsigned.bits, dtype=unsigned.numpy))
    used = b.inverse(b.eq(b.op("shr", top, shifts), b.number(0, unsigned)))
    bits = b.reduce("sum", b.cast(used, _I64), (0,), keepdims=False)
    trips = b.mul(bits, b.scalar(width, _I64))
    given = (trips, b.weight(np.array(True)), b.iota((count,), 0), keys, bits)
    (order,) = b.out.node(
        "onnx.Loop", given, Attrs({"captures": 2}),
        version=_LOOP_VERSION, outputs=(True,), graphs=(("body", _step(b, unsigned, width, count)),),
    )  # fmt: skip
    assert order is not None
    return order


def _step(b: Core, unsigned: DType, width: Dim, count: Dim) -> Graph:
    """One bit: the step's number, whether to go on, the order so far, the keys and how many bits they have in; whether
    to go on, and the order out."""
    out = Rewriter(b.out.weights, b.out.source)
    c = Core(out)
    number, more = out.open_input(_I64, ()), out.open_input(DType.BOOL, ())
    order = out.open_input(_I64, (count,))
    keys = out.open_input(unsigned, (width, count))
    bits = out.open_input(_I64, ())
    rows, (size,) = c.shape(keys)[0], c.shape(order)
    last = c.sub(c.scalar(rows, _I64), c.number(1, _I64))
    row = c.sub(last, c.div(number, bits))  # a bit is there, or there is no step
    own = c.gather(c.gather(keys, row, 0), order, 0)
    shifted = c.op("shr", own, c.cast(c.op("mod", number, bits), unsigned))
    has = c.eq(c.both(shifted, c.number(1, unsigned)), c.number(1, unsigned))
    without = c.cast(c.inverse(has), _I64)
    before = _running(c, without)
    behind = c.add(c.reduce("sum", without, (0,), keepdims=False), c.sub(c.iota((size,), 0), before))
    target = c.select(has, c.sub(behind, c.number(1, _I64)), before)
    return out.finish([more, _scatter(c, order, target, order)])


def _begins(b: Core, keys: ValueId, order: ValueId) -> ValueId:
    """Whether each column, in this order, differs from the one before it; the first one does."""
    (count,) = b.shape(order)
    places = b.iota((count,), 0)
    zero = b.number(0, _I64)
    before = b.gather(order, b.max(b.sub(places, b.number(1, _I64)), zero), 0)
    own, other = (b.gather(keys, which, 1) for which in (order, before))
    differs = b.reduce("max", b.inverse(b.eq(own, other)), (0,), keepdims=False)
    return b.either(differs, b.eq(places, zero))


DISTINCT: dict[str, Decomposition] = {"onnx.Unique": _unique, "ms.Unique": _ms_unique}
