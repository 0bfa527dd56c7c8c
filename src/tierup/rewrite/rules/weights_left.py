"""Attention with its weights on the right, as models write it whose channels come first, with them on the left:

    v · softmax(s)ᵀ = (softmax(s) · vᵀ)ᵀ

That is what the kernel of attention computes, and the transposes are addresses.
"""

from __future__ import annotations

from tierup.ir.graph import Node, ValueId
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Values


def weights_on_the_left(out: Rewriter, node: Node) -> Values | None:
    """What a product with transposed weights becomes."""
    values, turned = node.inputs
    transpose, rank = out.producer(turned), len(out.shape(turned) or ())
    if transpose is None or transpose.op != "core.transpose" or rank < 3 or len(out.shape(values) or ()) != rank:
        return None
    order, weights = (*range(rank - 2), rank - 1, rank - 2), transpose.inputs[0]
    if values is None or weights is None or tuple(transpose.attrs["perm"]) != order or not _is_softmax(out, weights):
        return None
    b = Core(out)
    return [b.transpose(b.matmul(weights, b.transpose(values, order)), order)]


def _is_softmax(out: Rewriter, value: ValueId) -> bool:
    """Whether a value is an exponential over a sum."""
    div = out.producer(value)
    if div is None or div.op != "core.div":
        return False
    made = [out.producer(given) for given in div.inputs]
    return [made_by.op if made_by is not None else "" for made_by in made] == ["core.exp", "core.reduce_sum"]
