"""Matrix products. Types narrower than f32 are multiplied in f32 and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.ops.matrix import parse_einsum
from tierup.ir.types import Array
from tierup.reference.products import multiply_matrices

_EXACT = 1 << 53  # integers up to here are exact in f64, whose products run in BLAS; NumPy's integer ones do not


def work_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type to compute in: f32 for floats narrower than that, the type itself otherwise."""
    narrow = dtype == np.float16 or dtype.kind == "V" or (dtype.itemsize < 4 and dtype.kind == "f")
    return np.dtype(np.float32) if narrow else dtype


def matmul(a: Array, b: Array) -> Array:
    """`a @ b` in the dtype of `a`: integers exact modulo their range, narrow floats through f32."""
    if a.dtype.kind in "iu":
        return integer_matmul(a, b).astype(a.dtype, copy=False)
    work = work_dtype(a.dtype)
    return multiply_matrices(a.astype(work, copy=False), b.astype(work, copy=False)).astype(a.dtype, copy=False)


def integer_matmul(a: Array, b: Array) -> Array:
    """The exact product of integers as int64 (modulo 2^64 where even that is too small)."""
    if a.size and b.size and _largest(a) * _largest(b) * a.shape[-1] < _EXACT:
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)
    return np.asarray(np.matmul(a.astype(np.int64), b.astype(np.int64)))


def _largest(array: Array) -> int:
    return max(abs(int(array.min())), abs(int(array.max())))


def matmul_op(node: Node, a: Array, b: Array) -> Array:
    return matmul(a, b)


def gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    a = a.T if node.attrs["transA"] else a
    b = b.T if node.attrs["transB"] else b
    return affine(matmul_wide(a, b), c, node.attrs["alpha"], node.attrs["beta"], a.dtype)


def matmul_wide(a: Array, b: Array) -> Array:
    """`a @ b` before it is rounded to a narrow type."""
    return integer_matmul(a, b) if a.dtype.kind in "iu" else matmul(a.astype(work_dtype(a.dtype)), b)


def affine(product: Array, c: Array | None, alpha: float, beta: float, dtype: np.dtype[Any]) -> Array:
    """alpha · product + beta · c, in the product's type, then rounded to `dtype`; c may not widen the product."""
    result = _scaled(product, alpha)
    if c is not None:
        if np.broadcast_shapes(result.shape, c.shape) != result.shape:
            raise ValueError(f"an addend of shape {c.shape} does not broadcast to {result.shape}")
        result = result + _scaled(c.astype(product.dtype, copy=False), beta)
    return result.astype(dtype, copy=False)


def _scaled(array: Array, factor: float) -> Array:
    if factor == 1.0:
        return array
    if array.dtype.kind in "iu":
        if float(factor).is_integer():
            return np.asarray(array * array.dtype.type(int(factor)))
        return np.trunc(array * factor).astype(array.dtype)
    return np.asarray(array * array.dtype.type(factor))


def det(node: Node, x: Array) -> Array:
    return np.asarray(np.linalg.det(x.astype(work_dtype(x.dtype)))).astype(x.dtype)


def einsum(node: Node, *inputs: Array) -> Array:
    """`np.einsum` over numbered labels, so that an ellipsis may also be summed away."""
    equation = parse_einsum(node.attrs["equation"])
    numbers: dict[str, int] = {}
    spread = 0
    for term, array in zip(equation.inputs, inputs, strict=True):
        if "..." in term:
            spread = max(spread, array.ndim - len(term) + 1)
    dots = [_number(numbers, f".{i}") for i in range(spread)]

    def labels(term: tuple[str, ...], count: int) -> list[int]:
        result: list[int] = []
        for label in term:
            result.extend(dots[spread - count :] if label == "..." else [_number(numbers, label)])
        return result

    dtype = inputs[0].dtype
    work = work_dtype(dtype)
    operands: list[Any] = []
    for term, array in zip(equation.inputs, inputs, strict=True):
        operands += [array.astype(work, copy=False), labels(term, array.ndim - len(term) + 1)]
    result = np.einsum(*operands, labels(equation.output, spread), optimize=len(inputs) > 1)
    return np.asarray(result).astype(dtype, copy=False)


def _number(numbers: dict[str, int], label: str) -> int:
    return numbers.setdefault(label, len(numbers))
