"""A product with a single column is a sum over what lies side by side, and may read its matrices where they are:

    a · x = Σ a[…, k] · x[k]

As experts are: a matrix for each token, gathered from a table. As a product, a panel of one column would be computed in
whole vectors, and the gathered matrices be written and read again.
"""

from __future__ import annotations

from tierup.ir.graph import Node
from tierup.ir.types import DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Values


def single_column(out: Rewriter, node: Node) -> Values | None:
    """What a product of batches becomes whose right side has one column."""
    a, x = node.inputs
    shapes, dtype = [out.shape(value) for value in node.inputs], out.dtype(a)
    if a is None or x is None or dtype not in (DType.F32, DType.F64) or out.dtype(x) is not dtype:
        return None
    left, right = (shape or () for shape in shapes)
    if len(right) < 3 or len(left) < 2 or right[-1] != 1 or left[-1] != right[-2]:
        return None
    b, rank = Core(out), max(len(left), len(right))
    return [b.reduce("sum", b.mul(a, b.reshape(x, (*right[:-2], 1, right[-2]))), (rank - 1,))]
