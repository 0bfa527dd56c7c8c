"""Products of matrices as `np.matmul` has them, those of f32 in native code.

NumPy copies the whole of a matrix that begins between two borders of its type, as those of a mapped file may. Its sums
are rounded as the machine's BLAS does it, and as they stand in a matrix; and its BLAS may not know the machine (a Zen 5
gets the kernels of Haswell, which take twice the time). Here right sides are read where they lie, and every sum is in
the order of its terms.
"""

from __future__ import annotations

import numpy as np

from tierup import _native
from tierup.ir.types import Array

# Of one matrix. Below, NumPy is sooner done: the loop over matrices is its own, and sums lie along its vectors.
_LEAST_TERMS, _LEAST_COLUMNS = 1 << 14, 16


def multiply_matrices(a: Array, b: Array, out: Array | None = None) -> Array:
    """`a @ b`; `out` has the type and shape of that, and shares no memory with either."""
    if not _is_native(a, b):
        return np.asarray(np.matmul(a, b, out=out))
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    if b.ndim == 2 and out is None:  # one right side for all rows
        result = np.empty((*a.shape[:-1], columns), np.float32)
        _native.multiply(np.ascontiguousarray(a).reshape(-1, inner), b, result.reshape(-1, columns))
        return result
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.empty((*batch, rows, columns), np.float32) if out is None else out
    left = np.broadcast_to(np.ascontiguousarray(a), (*batch, rows, inner))
    right = np.broadcast_to(b, (*batch, inner, columns))
    for place in np.ndindex(batch):
        _native.multiply(left[place], right[place], result[place])
    return result


def _is_native(a: Array, b: Array) -> bool:
    """Whether they are large matrices of f32, and rows of the right one dense."""
    if a.ndim < 2 or b.ndim < 2 or a.dtype != np.float32 or b.dtype != np.float32 or a.shape[-1] != b.shape[-2]:
        return False
    terms = (a.size if b.ndim == 2 else a.shape[-2] * a.shape[-1]) * b.shape[-1]
    return terms >= _LEAST_TERMS and b.shape[-1] >= _LEAST_COLUMNS and b.strides[-1] == b.itemsize
