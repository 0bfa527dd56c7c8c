"""Reductions, softmax and running sums in NumPy.

Narrow floats are reduced in f32 and rounded once; integers wrap in their own type. Nothing reduced gives the
identity: 0, 1, or the least or largest value that the type has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference.cast import dtype_of, float_to_int
from tierup.reference.elementwise import divide
from tierup.reference.precision import down, rounded, up

Axes = tuple[int, ...]


def _sum(x: Array, axes: Axes) -> Any:
    return np.sum(x, axis=axes, keepdims=True, dtype=x.dtype)


def mean(x: Array, axes: Axes) -> Any:
    """The mean over `axes`, which are kept; of nothing it is NaN, without the warning of np.mean."""
    return _sum(x, axes) / _count(x, axes)


def _mean(x: Array, axes: Axes) -> Any:
    if x.dtype.kind == "f":
        return mean(x, axes)
    total = np.asarray(np.sum(x, axis=axes, keepdims=True, dtype=np.uint64 if x.dtype.kind == "u" else np.int64))
    return divide(total, np.asarray(_count(x, axes), total.dtype))


def _count(x: Array, axes: Axes) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


def _bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return False, True
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _max(x: Array, axes: Axes) -> Any:
    if _count(x, axes) == 0:
        return np.max(x, axis=axes, keepdims=True, initial=_bounds(x.dtype)[0])
    return np.max(x, axis=axes, keepdims=True)


def _min(x: Array, axes: Axes) -> Any:
    if _count(x, axes) == 0:
        return np.min(x, axis=axes, keepdims=True, initial=_bounds(x.dtype)[1])
    return np.min(x, axis=axes, keepdims=True)


def _in_float(function: Callable[[Array, Axes], Any]) -> Callable[[Array, Axes], Any]:
    """Integers go through f64 and are cut towards zero."""

    def reduce(x: Array, axes: Axes) -> Any:
        if x.dtype.kind == "f":
            return function(x, axes)
        return float_to_int(np.asarray(function(x.astype(np.float64), axes)), dtype_of(x))

    return reduce


def _log_sum_exp(x: Array, axes: Axes) -> Any:
    largest = _max(x, axes)
    shift = np.where(np.isfinite(largest), largest, 0)  # inf - inf would be NaN
    return np.log(_sum(np.exp(x - shift), axes)) + shift


_REDUCE: dict[str, Callable[[Array, Axes], Any]] = {
    "ReduceL1": lambda x, axes: _sum(np.abs(x), axes),
    "ReduceL2": _in_float(lambda x, axes: np.sqrt(_sum(x * x, axes))),
    "ReduceLogSum": _in_float(lambda x, axes: np.log(_sum(x, axes))),
    "ReduceLogSumExp": _in_float(_log_sum_exp),
    "ReduceMax": _max,
    "ReduceMean": _mean,
    "ReduceMin": _min,
    "ReduceProd": lambda x, axes: np.prod(x, axis=axes, keepdims=True, dtype=x.dtype),
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axes: _sum(x * x, axes),
}


def reduction(node: Node, x: Array, axes: Array | None = None) -> Array:
    given = node.attrs.get("axes", ()) if axes is None else tuple(int(axis) for axis in axes.reshape(-1))
    if not given:
        given = () if node.attrs.get("noop_with_empty_axes") else tuple(range(x.ndim))
    chosen = np.lib.array_utils.normalize_axis_tuple(given, x.ndim)
    result = rounded(lambda wide: _REDUCE[node.op.rpartition(".")[2]](wide, chosen), x)
    return result if node.attrs["keepdims"] else np.squeeze(result, axis=chosen)


def arg_reduction(node: Node, x: Array) -> Array:
    find = np.argmax if node.op.endswith("ArgMax") else np.argmin
    axis, wide = node.attrs["axis"], up(x)
    if not node.attrs.get("select_last_index", 0):
        found = find(wide, axis=axis, keepdims=True)
    else:
        found = x.shape[axis] - 1 - find(np.flip(wide, axis), axis=axis, keepdims=True)
    result = np.asarray(found).astype(np.int64, copy=False)
    return result if node.attrs["keepdims"] else np.squeeze(result, axis=axis)


def _softmax(x: Array) -> Any:
    result = np.exp(x - _max(x, (-1,)))
    result /= _sum(result, (-1,))
    return result


def log_softmax(x: Array) -> Any:
    """The logarithm of softmax along the last axis."""
    shifted = x - _max(x, (-1,))
    return shifted - np.log(_sum(np.exp(shifted), (-1,)))


def _hardmax(x: Array) -> Any:
    result = np.zeros(x.shape, x.dtype)
    if x.size:
        np.put_along_axis(result, np.argmax(x, axis=-1, keepdims=True), 1, axis=-1)
    return result


_SOFTMAX: dict[str, Callable[[Array], Any]] = {"Hardmax": _hardmax, "LogSoftmax": log_softmax, "Softmax": _softmax}


def softmax(node: Node, x: Array) -> Array:
    """Along one axis; before opset 13 along all axes from `axis` on, as one."""
    function, axis = _SOFTMAX[node.op.rpartition(".")[2]], node.attrs["axis"]
    if node.version >= 13:
        moved = rounded(function, np.moveaxis(x, axis, -1))
        return np.moveaxis(moved, -1, axis)
    axis = axis + x.ndim if axis < 0 else axis
    rows, columns = (int(np.prod(sizes, dtype=np.int64)) for sizes in (x.shape[:axis], x.shape[axis:]))
    return rounded(function, x.reshape(rows, columns)).reshape(x.shape)


def cumulative(node: Node, x: Array, axis: Array) -> Array:
    where = int(axis.item())
    run, identity = (np.cumsum, 0) if node.op.endswith("CumSum") else (np.cumprod, 1)
    wide = up(x)
    if node.attrs["reverse"]:
        wide = np.flip(wide, where)
    result = np.asarray(run(wide, axis=where, dtype=wide.dtype))
    if node.attrs["exclusive"] and result.shape[where]:
        first = np.full_like(np.take(result, [0], axis=where), identity)
        kept = np.moveaxis(np.moveaxis(result, where, 0)[:-1], 0, where)
        result = np.concatenate([first, kept], axis=where)
    return down(np.flip(result, where) if node.attrs["reverse"] else result, x.dtype)
