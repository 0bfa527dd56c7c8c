"""Products in bf16: both sides rounded to 8 bits of mantissa, multiplied and summed up in f32.

Only where the user asks for it. The roundings are casts in the graph, so that whoever computes a side writes it
rounded, and every kernel is judged by what it is given. Rounding to nearest is off by at most 2^-8 of a number, so of
each product a · w by at most (2^-7 + 2^-16) · |a · w|, and of a sum by at most that part of Σ |a · w|.
"""

from __future__ import annotations

from tierup.ir.graph import Node
from tierup.ir.types import DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Values


def narrow(out: Rewriter, node: Node) -> Values | None:
    """a · w = Σ bf16(a) · bf16(w) in f32, where w is a constant matrix of pairs of rows; bytes are exact in bf16."""
    if node.op != "core.matmul" or "to" in node.attrs:
        return None
    a, w = node.inputs
    shape = out.shape(w)
    if a is None or w is None or shape is None or out.dtype(w) is not DType.F32:
        return None
    if len(shape) != 2 or not isinstance(shape[0], int) or shape[0] % 2:
        return None
    behind = out.producer(w)
    if behind is not None and behind.op == "core.cast" and out.dtype(behind.inputs[0]) in (DType.I8, DType.U8):
        w = behind.inputs[0]
    if w is None or out.digest_of(w) is None:
        return None
    b = Core(out)
    return [b.op("matmul", b.cast(a, DType.BF16), b.cast(w, DType.BF16), to=DType.F32.code)]
