"""Constant weights that are kept as small integers: they stay so in memory, and their scales move behind the product.

    a · (s · (w - z)) = s · (a · (w - z)), where s is one number for each column

The product then reads bytes, which kernels widen in registers. Differences from zero points are taken now. Sums are
larger by 1 / s on the way: in f32 that matters to numbers beyond 1e34 alone.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Values

_SMALL = (np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int16))
_ADDED_BYTES = 64 << 20  # of a weight that has to be written anew


class _Scaled(Struct, frozen=True):
    """The matrix `scale` · `whole`; `value` is the constant that holds `whole`, if there is one."""

    whole: Array
    value: ValueId | None
    scale: Array | None = None

    def turned(self) -> _Scaled:
        return _Scaled(self.whole.T, None, None if self.scale is None else np.atleast_2d(self.scale).T)


def integer_weight(out: Rewriter, node: Node) -> Values | None:
    """The product of floats by a matrix of scaled integers, scaled afterwards."""
    a, w = node.inputs
    found = None if w is None or out.dtype(a) is not DType.F32 else _scaled(out, w)
    if a is None or found is None or found.whole.ndim != 2 or found.whole.nbytes > _ADDED_BYTES:
        return None
    if found.scale is None and found.value is not None:
        return None  # nothing to do
    scale = found.scale
    if scale is not None and np.atleast_2d(scale).shape[:-1] != (1,):
        return None
    b = Core(out)
    value = b.weight(np.ascontiguousarray(found.whole)) if found.value is None else found.value
    product = b.matmul(a, b.cast(value, DType.F32))
    return [product if scale is None else b.mul(product, b.weight(np.ascontiguousarray(scale.reshape(-1))))]


def _scaled(out: Rewriter, value: ValueId) -> _Scaled | None:
    """A value of f32 as scaled integers."""
    node = out.producer(value)
    if node is None or out.dtype(value) is not DType.F32:
        return None
    first = node.inputs[0]
    assert first is not None
    if node.op == "core.transpose" and tuple(node.attrs["perm"]) == (1, 0):
        found = _scaled(out, first)
        return None if found is None else found.turned()
    if node.op == "core.cast":
        return _whole(out, first)
    if node.op != "core.mul":
        return None
    for one, other in (node.inputs, node.inputs[::-1]):
        scale = None if other is None else out.constant(other)
        found = None if one is None or scale is None else _scaled(out, one)
        if found is not None and found.scale is None and scale is not None and scale.ndim <= 2:
            return replace(found, scale=scale)
    return None


def _whole(out: Rewriter, value: ValueId) -> _Scaled | None:
    """A constant of small integers, or such a constant less its zero points."""
    array, node = out.constant(value), out.producer(value)
    if array is not None:
        return _Scaled(array, value) if array.dtype in _SMALL else None
    if node is None or node.op != "core.sub":
        return None
    sides = [_widened(out, side) for side in node.inputs]
    if sides[0] is None or sides[1] is None:
        return None
    difference = sides[0].astype(np.int32) - sides[1].astype(np.int32)
    ends = (int(difference.min(initial=0)), int(difference.max(initial=0)))
    for kind in (np.int8, np.int16):
        if np.iinfo(kind).min <= ends[0] and ends[1] <= np.iinfo(kind).max:
            return _Scaled(difference.astype(kind), None)
    return None


def _widened(out: Rewriter, value: ValueId | None) -> Array | None:
    """A constant of small integers, or the cast of one to a wider type."""
    array, node = (None, None) if value is None else (out.constant(value), out.producer(value))
    if array is None and node is not None and node.op == "core.cast" and node.inputs[0] is not None:
        array = out.constant(node.inputs[0])
    return array if array is not None and array.dtype.kind in "iu" and array.dtype.itemsize <= 4 else None
