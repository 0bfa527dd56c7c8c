"""Products by rows that have one 1 and zeros: what a product by rows of an identity matrix picks.

    [i = 0, i = 1, …, i = n-1] · w = w[i], or zeros where i is none of those

Exporters write embeddings so where their framework has one_hot and no gather.
"""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.rules.row import uniform
from tierup.rewrite.walk import Rewriter, Values


def row_of_matrix(out: Rewriter, node: Node) -> Values | None:
    """A product of one-hot rows and a constant matrix, as a gather from it and a row of zeros."""
    rows, w = node.inputs
    index = None if rows is None else _ones(out, rows)
    matrix, shape = None if w is None else out.constant(w), out.shape(rows)
    if index is None or matrix is None or shape is None:
        return None
    # Zero times an infinity is no zero.
    if matrix.ndim != 2 or shape[-1] != len(matrix) or not np.isfinite(matrix).all():
        return None
    b, size = Core(out), len(matrix)
    inside = b.both(b.le(b.like(0, index), index), b.lt(index, b.like(size, index)))
    picked = b.reshape(b.select(inside, index, b.like(size, index)), shape[:-1])
    table = b.weight(np.concatenate([matrix, np.zeros_like(matrix, shape=(1, matrix.shape[1]))]))
    return [b.gather(table, picked, 0)]


def _ones(out: Rewriter, rows: ValueId) -> ValueId | None:
    """The places [..., 1] of the ones in such rows; None where a value is not known to be made of them."""
    made = out.producer(rows)
    if made is None:
        return None
    if made.op == "core.select":
        on, off = (uniform(out, value) for value in made.inputs[1:])
        if on is None or off is None or on != 1 or off != 0:
            return None
    elif made.op != "core.cast" or out.dtype(made.inputs[0]) is not DType.BOOL:
        return None
    equal = out.producer(made.inputs[0])
    if equal is None or equal.op != "core.eq":
        return None
    for index, classes in (equal.inputs, equal.inputs[::-1]):
        shape = out.shape(index)
        if shape and shape[-1] == 1 and out.dtype(index) in (DType.I32, DType.I64) and _counts(out, classes):
            return index
    return None


def _counts(out: Rewriter, value: ValueId | None) -> bool:
    """Whether a value is 0, 1, 2, … along its last axis, and has no other."""
    array = None if value is None else out.constant(value)
    if array is None or not array.ndim or array.size != array.shape[-1]:
        return False
    return np.array_equal(array.reshape(-1), np.arange(array.size))
