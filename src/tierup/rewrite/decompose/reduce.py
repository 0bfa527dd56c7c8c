"""Reductions, softmax, running sums. Narrow floats are reduced in f32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.open_axes import OpenAxes

Reduction = Callable[[Core, ValueId, Sequence[int]], ValueId]  # keeps the reduced axes


def reduced_axes(b: Core, n: Node, rank: int) -> tuple[int, ...]:
    """The axes of a Reduce op, from its attribute or its second input."""
    given = b.given(n, 1)
    axes = n.attrs.get("axes") or () if given is None else b.numbers(given, "the axes of a reduction")
    if not axes:
        return () if n.attrs.get("noop_with_empty_axes") else tuple(range(rank))
    return tuple(sorted({b.axis(axis, rank) for axis in axes}))


class _Reduced(Struct, frozen=True):
    """What a Reduce op reduces: a value, which of its axes, and the shape of the result."""

    x: ValueId
    axes: tuple[int, ...]
    shape: tuple[Dim, ...]


def _reduced(b: Core, n: Node) -> _Reduced:
    x, keep = b.input(n), n.attrs["keepdims"]
    shape, given = b.shape(x), b.given(n, 1)
    if given is not None and not b.is_known(given):
        return _chosen_in_call(b, x, b.elems(given, "the axes of a reduction"), keep=bool(keep))
    axes = reduced_axes(b, n, len(shape))
    return _Reduced(x, axes, tuple(1 if i in axes else dim for i, dim in enumerate(shape) if keep or i not in axes))


def _chosen_in_call(b: Core, x: ValueId, axes: Sequence[Dim], *, keep: bool) -> _Reduced:
    """Each axis is divided in two, of which one has a single element: the first if it is reduced, else the second."""
    dims, shape = b.dims, b.shape(x)
    rank = len(shape)
    if not axes or len(axes) > rank:
        raise Declined(f"there are {len(axes)} axes to reduce of {rank}")
    found = OpenAxes(dims, axes, rank)
    kept = [dims.select(one, 1, size) for one, size in zip(found.chosen, shape, strict=True)]
    gone = [dims.select(one, size, 1) for one, size in zip(found.chosen, shape, strict=True)]
    pairs = [size for pair in zip(kept, gone, strict=True) for size in pair]
    divided = b.reshape(x, [found.checked(pairs[0]), *pairs[1:]])
    odd = tuple(range(1, 2 * rank, 2))
    return _Reduced(divided, odd, tuple(kept) if keep else tuple(found.left(shape)))


def _reduction(reduction: Reduction, *, in_floats: bool = False) -> Decomposition:
    """`in_floats`: integers go through f64 and are cut towards zero."""

    def decomposition(b: Core, n: Node) -> ValueId:
        dtype, reduced = b.dtype(b.input(n)), _reduced(b, n)
        x = reduced.x
        wide = b.cast(x, DType.F64) if in_floats and dtype.is_integer else b.wide(x)
        return b.reshape(b.cast(reduction(b, wide, reduced.axes), dtype), reduced.shape)

    return decomposition


def _plain(name: str) -> Decomposition:
    """A reduction that is a core op; it drops its axes by itself."""

    def decomposition(b: Core, n: Node) -> ValueId:
        reduced = _reduced(b, n)
        keep = b.rank(reduced.x) == len(reduced.shape)
        return b.reshape(b.reduce(name, reduced.x, reduced.axes, keep), reduced.shape)

    return decomposition


def _sum(b: Core, x: ValueId, axes: Sequence[int]) -> ValueId:
    return b.reduce("sum", x, axes)


def _mean(b: Core, n: Node) -> ValueId:
    """Σx / n; integers in 64 bits, cut towards zero"""
    x = b.input(n)
    dtype = b.dtype(x)
    if not dtype.is_integer:
        return _reduction(Core.mean)(b, n)  # type: ignore[return-value]  # that gives one value
    work = DType.I64 if dtype.is_signed else DType.U64
    return _reduction(lambda b, y, axes: b.mean(b.cast(y, work), axes))(b, n)  # type: ignore[return-value]  # as above


def _log_sum_exp(b: Core, x: ValueId, axes: Sequence[int]) -> ValueId:
    """log Σ exp(x - m) + m, with m the largest where that is finite, else 0: inf - inf would be NaN"""
    largest = b.reduce("max", x, axes)
    finite = b.lt(b.abs(largest), b.like(math.inf, x))
    shift = b.select(finite, largest, b.like(0, x))
    return b.add(b.op("log", _sum(b, b.exp(b.sub(x, shift)), axes)), shift)


def _arg(name: str) -> Decomposition:
    def decomposition(b: Core, n: Node) -> ValueId:
        x = b.input(n)
        axis = b.axis(n.attrs["axis"], b.rank(x))
        last = int(n.attrs.get("select_last_index", 0))
        return b.op(name, x, axis=axis, keepdims=int(n.attrs["keepdims"]), last=last)

    return decomposition


def softmax(b: Core, x: ValueId, axes: Sequence[int]) -> ValueId:
    """exp(x - max) / Σ exp(x - max)"""
    powers = b.exp(b.sub(x, b.reduce("max", x, axes)))
    return b.div(powers, b.reduce("sum", powers, axes))


def log_softmax(b: Core, x: ValueId, axes: Sequence[int]) -> ValueId:
    """x - max - log Σ exp(x - max)"""
    shifted = b.sub(x, b.reduce("max", x, axes))
    return b.sub(shifted, b.op("log", b.reduce("sum", b.exp(shifted), axes)))


def _softmax_axes(b: Core, n: Node) -> tuple[int, ...]:
    """One axis; before opset 13 all axes from there on."""
    rank, axis = b.rank(b.input(n)), n.attrs["axis"]
    if n.version >= 13:
        return (b.axis(axis, rank),)
    return () if axis == rank else tuple(range(b.axis(axis, rank), rank))


def _along(function: Reduction) -> Decomposition:
    def decomposition(b: Core, n: Node) -> ValueId:
        x = b.input(n)
        return b.cast(function(b, b.wide(x), _softmax_axes(b, n)), b.dtype(x))

    return decomposition


def _hardmax(b: Core, n: Node) -> ValueId:
    """1 where the index is that of the first largest"""
    x = b.input(n)
    shape, axes = b.shape(x), _softmax_axes(b, n)
    if any(shape[axis] == 0 for axis in axes) or not axes:
        raise Declined("there is no largest among none")
    rows = b.reshape(x, [*shape[: axes[0]], b.dims.product(shape[axes[0] :])]) if len(axes) > 1 else x
    axis = axes[0]
    first = b.op("argmax", rows, axis=axis, keepdims=1, last=0)
    on = b.eq(b.iota(b.shape(rows), axis), first)
    return b.reshape(b.cast(on, b.dtype(x)), shape)


def _cumulative(name: str) -> Decomposition:
    def decomposition(b: Core, n: Node) -> ValueId:
        x = b.input(n)
        (axis,) = b.numbers(b.input(n, 1), "the axis of a running sum")
        flags = {flag: int(n.attrs[flag]) for flag in ("exclusive", "reverse")}
        return b.op(name, x, axis=b.axis(axis, b.rank(x)), **flags)

    return decomposition


REDUCE: dict[str, Decomposition] = {
    "onnx.ArgMax": _arg("argmax"),
    "onnx.ArgMin": _arg("argmin"),
    "onnx.CumProd": _cumulative("cumprod"),
    "onnx.CumSum": _cumulative("cumsum"),
    "onnx.Hardmax": _hardmax,
    "onnx.LogSoftmax": _along(log_softmax),
    "onnx.ReduceL1": _reduction(lambda b, x, axes: _sum(b, b.abs(x), axes)),
    "onnx.ReduceL2": _reduction(lambda b, x, axes: b.sqrt(_sum(b, b.mul(x, x), axes)), in_floats=True),
    "onnx.ReduceLogSum": _reduction(lambda b, x, axes: b.op("log", _sum(b, x, axes)), in_floats=True),
    "onnx.ReduceLogSumExp": _reduction(_log_sum_exp, in_floats=True),
    "onnx.ReduceMax": _plain("max"),
    "onnx.ReduceMean": _mean,
    "onnx.ReduceMin": _plain("min"),
    "onnx.ReduceProd": _plain("prod"),
    "onnx.ReduceSum": _plain("sum"),
    "onnx.ReduceSumSquare": _reduction(lambda b, x, axes: _sum(b, b.mul(x, x), axes)),
    "onnx.Softmax": _along(softmax),
}
