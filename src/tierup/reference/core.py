"""The core ops in NumPy: what a decomposed graph means. `core_windows.py` has convolution, pools and resize,
`core_recurrent.py` the recurrences.

Floats below 32 bits are computed in f32 and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from tierup.ir.graph import Attrs, Node
from tierup.ir.types import Array, dtype_from_code
from tierup.reference import special
from tierup.reference.cast import bit_cast as bitcast
from tierup.reference.cast import cast
from tierup.reference.core_recurrent import gru, lstm, rnn
from tierup.reference.core_windows import conv, conv_last, conv_transpose, pool_max, pool_sum, resize
from tierup.reference.precision import down, rounded, up

__all__ = [
    "abs_", "acos", "acosh", "add", "and_", "argmax", "argmin", "asin", "asinh", "atan", "atanh", "bitcast",
    "broadcast", "cast", "ceil", "concat", "conv", "conv_last", "conv_transpose", "cos", "cosh", "cumprod", "cumsum",
    "div", "eq", "erf", "exp", "expm1", "floor", "fmod", "gather", "gather_elements", "gather_nd", "gru", "iota",
    "le", "log", "log1p", "lstm", "lt", "matmul", "matmul_blocks", "matmul_scaled", "max_", "min_", "mod", "mul", "neg",
    "nonzero",
    "not_", "or_", "pad", "pool_max", "pool_sum", "pow_", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum",
    "reshape", "resize", "rnn", "round_", "scatter_elements", "scatter_nd", "select", "shape", "shl", "shr", "sin",
    "sinh", "slice_", "sqrt", "sub", "tan", "tanh", "top_places", "topk", "transpose",
    "xor",
]  # fmt: skip

Reference = Callable[..., Any]


def _map(function: Callable[..., Array]) -> Reference:
    def call(node: Node, *inputs: Array) -> Array:
        return rounded(function, *inputs)

    return call


def _compare(function: Callable[..., Array]) -> Reference:
    return lambda node, a, b: np.asarray(function(up(a), up(b)))


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)  # floors; one too low where the signs differ and something is left
    inexact = (np.remainder(a, b) != 0) & ((a < 0) != (b < 0)) & (b != 0)
    return np.asarray(quotient + inexact.astype(a.dtype))


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.power(a, b)
    whole = np.power(a, np.maximum(b, 0))
    reciprocal = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)) if a.dtype.kind == "i" else (a == 1)
    return np.where(b < 0, reciprocal, whole)


def _shift_left(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0)


def _shift_right(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return np.where(
        inside, np.right_shift(a, np.where(inside, b, 0)), np.where(a < 0, -1, 0) if a.dtype.kind == "i" else 0
    )


neg, abs_, not_ = _map(np.negative), _map(np.absolute), _map(np.invert)
floor, ceil, round_, sqrt = _map(np.floor), _map(np.ceil), _map(np.rint), _map(np.sqrt)
exp, expm1, log, log1p = _map(np.exp), _map(np.expm1), _map(np.log), _map(np.log1p)
sin, cos, tan, asin, acos, atan = map(_map, (np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan))
sinh, cosh, tanh, asinh, acosh, atanh = map(_map, (np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh, np.arctanh))
erf = _map(special.erf)
add, sub, mul, div, pow_ = _map(np.add), _map(np.subtract), _map(np.multiply), _map(_divide), _map(_power)
mod, fmod, min_, max_ = _map(np.remainder), _map(np.fmod), _map(np.minimum), _map(np.maximum)
and_, or_, xor = _map(np.bitwise_and), _map(np.bitwise_or), _map(np.bitwise_xor)
shl, shr = _map(_shift_left), _map(_shift_right)
eq, lt, le = _compare(np.equal), _compare(np.less), _compare(np.less_equal)


def select(node: Node, condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def _reduce(function: Any, empty: Callable[[np.dtype[Any]], Any] | None) -> Reference:
    """`empty` gives what stands for the reduction of nothing where NumPy has no answer of its own."""

    def call(node: Node, x: Array) -> Array:
        axes, keep, dtype = node.attrs["axes"], bool(node.attrs["keepdims"]), x.dtype
        values = up(x)
        if empty is None:
            result = function(values, axis=axes, keepdims=keep, dtype=values.dtype)
        else:
            result = function(values, axis=axes, keepdims=keep, initial=empty(values.dtype))
        return down(result, dtype)

    return call


def _least(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _most(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


reduce_sum, reduce_prod = _reduce(np.sum, None), _reduce(np.prod, None)
reduce_max, reduce_min = _reduce(np.max, _least), _reduce(np.min, _most)


def _arg(function: Any) -> Reference:
    def call(node: Node, x: Array) -> Array:
        axis, keep, values = node.attrs["axis"], bool(node.attrs["keepdims"]), up(x)
        if not node.attrs["last"]:
            return np.asarray(function(values, axis=axis, keepdims=keep))
        return np.asarray(x.shape[axis] - 1 - function(np.flip(values, axis), axis=axis, keepdims=keep))

    return call


argmax, argmin = _arg(np.argmax), _arg(np.argmin)


def _running(function: Any, neutral: int) -> Reference:
    def call(node: Node, x: Array) -> Array:
        axis = node.attrs["axis"]
        values = np.flip(up(x), axis) if node.attrs["reverse"] else up(x)
        result = function(values, axis=axis, dtype=values.dtype)
        if node.attrs["exclusive"] and x.shape[axis]:
            kept = np.take(result, range(x.shape[axis] - 1), axis)
            first = np.full_like(np.take(result, [0], axis), neutral)
            result = np.concatenate([first, kept], axis)
        return down(np.flip(result, axis) if node.attrs["reverse"] else result, x.dtype)

    return call


cumsum, cumprod = _running(np.cumsum, 0), _running(np.cumprod, 1)


def reshape(node: Node, x: Array, sizes: Array) -> Array:
    return x.reshape(tuple(map(int, sizes)))


def transpose(node: Node, x: Array) -> Array:
    return x.transpose(node.attrs["perm"])


def broadcast(node: Node, x: Array, sizes: Array) -> Array:
    return np.broadcast_to(x, tuple(map(int, sizes)))


def slice_(node: Node, x: Array, starts: Array, ends: Array) -> Array:
    index: list[Any] = [slice(None)] * x.ndim
    for axis, step, start, end in zip(
        node.attrs["axes"], node.attrs["steps"], starts.tolist(), ends.tolist(), strict=True
    ):
        if not 0 <= start <= x.shape[axis] or not (0 if step > 0 else -1) <= end <= x.shape[axis]:
            raise IndexError(f"{start} to {end} lies outside axis {axis}, which has {x.shape[axis]} elements")
        index[axis] = slice(start, None if end < 0 else end, step)
    return np.asarray(x[tuple(index)])


def pad(node: Node, x: Array, pads: Array, value: Array) -> Array:
    widths = list(zip(pads[: x.ndim].tolist(), pads[x.ndim :].tolist(), strict=True))
    mode = node.attrs["mode"]
    extra = {"constant_values": value} if mode == "constant" else {}
    return np.pad(x, widths, mode, **extra)


def concat(node: Node, *inputs: Array) -> Array:
    return np.concatenate(inputs, node.attrs["axis"])


def _inside(indices: Array, size: int) -> None:
    if indices.size and not (indices.min() >= 0 and indices.max() < size):
        raise IndexError(f"an index from {indices.min()} to {indices.max()} lies outside an axis of {size} elements")


def gather(node: Node, x: Array, indices: Array) -> Array:
    axis = node.attrs["axis"]
    _inside(indices, x.shape[axis])
    return np.take(x, indices, axis)


def gather_elements(node: Node, x: Array, indices: Array) -> Array:
    axis = node.attrs["axis"]
    _inside(indices, x.shape[axis])
    return x[_grid(indices, axis)]


def _grid(indices: Array, axis: int) -> tuple[Array, ...]:
    """Index arrays that address each element's own place, but `indices` on `axis`."""
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = indices
    return tuple(grid)


def gather_nd(node: Node, x: Array, indices: Array) -> Array:
    batch, depth = node.attrs["batch_dims"], indices.shape[-1]
    for i in range(depth):
        _inside(indices[..., i], x.shape[batch + i])
    lead: list[Array] = list(np.indices(indices.shape[:batch], sparse=True))
    lead = [grid.reshape(grid.shape + (1,) * (indices.ndim - 1 - batch)) for grid in lead]
    return np.asarray(x[(*lead, *np.moveaxis(indices, -1, 0))])


_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _scatter(node: Node, x: Array, where: tuple[Array, ...], updates: Array) -> Array:
    result = up(x).copy()
    if node.attrs["reduction"] == "none":
        result[where] = up(updates)
    else:
        _COMBINE[node.attrs["reduction"]].at(result, where, up(updates))
    return down(result, x.dtype)


def scatter_elements(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    _inside(indices, x.shape[node.attrs["axis"]])
    return _scatter(node, x, _grid(indices, node.attrs["axis"]), updates)


def scatter_nd(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    for i in range(indices.shape[-1]):
        _inside(indices[..., i], x.shape[i])
    return _scatter(node, x, tuple(np.moveaxis(indices, -1, 0)), updates)


def iota(node: Node, sizes: Array) -> Array:
    target = dtype_from_code(node.attrs["dtype"])
    assert target is not None
    shape, axis = tuple(map(int, sizes)), node.attrs["axis"]
    steps = np.arange(shape[axis]).astype(target.numpy)
    return np.broadcast_to(steps.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def shape(node: Node, x: Array) -> Array:
    return np.array(x.shape, np.int64)


def nonzero(node: Node, x: Array) -> Array:
    places = np.nonzero(up(x)) if x.ndim else np.zeros((0, int(bool(x))), np.int64)
    return np.array(places, np.int64).reshape(x.ndim, -1 if x.ndim else int(bool(x)))


def topk(node: Node, x: Array, k: Array) -> tuple[Array, Array]:
    axis, count = node.attrs["axis"], int(k[0])
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"k is {count}, but axis {axis} has {x.shape[axis]} elements")
    values = up(x)
    if node.attrs["largest"]:  # a stable ascending sort of the reversed axis, read backwards: lower index first
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(values, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(values, axis, kind="stable")
    order = np.take(order, range(count), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


def top_places(node: Node, x: Array) -> Array:
    count, axis = node.attrs["k"], x.ndim - 1
    attrs = Attrs({"axis": axis, "largest": node.attrs["largest"]})
    return topk(replace(node, attrs=attrs), x, np.array([count]))[1]


def matmul(node: Node, a: Array, b: Array) -> Array:
    if a.dtype.itemsize == 1 and a.dtype.kind in "iu":
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64))  # many times as fast as NumPy's of integers
        return np.asarray(exact).astype(np.int64).astype(np.int32)
    product = np.matmul(up(a), up(b))
    return np.asarray(product) if "to" in node.attrs else down(product, a.dtype)


def matmul_scaled(node: Node, a: Array, w: Array, factors: Array) -> Array:
    """Σ a · factor · w."""
    return down(np.matmul(up(a) * up(factors), up(w)), a.dtype)


def matmul_blocks(node: Node, a: Array, w: Array, scales: Array) -> Array:
    """Σ over blocks of scale · Σ a · w."""
    (size, columns), block = w.shape, int(node.attrs["block"])
    left = a.reshape(-1, size // block, block).swapaxes(0, 1)
    sums = np.matmul(left, w.reshape(size // block, block, columns).astype(a.dtype))
    return np.asarray(np.sum(sums * scales[:, None], axis=0).reshape(*a.shape[:-1], columns))
