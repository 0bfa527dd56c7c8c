"""Products and convolutions in bf16: both sides rounded to 8 bits of mantissa, multiplied and summed up in f32.

Only where the user asks for it. The roundings are casts in the graph, so that whoever computes a side writes it
rounded, and every kernel is judged by what it is given. Rounding to nearest is off by at most 2^-8 of a number, so of
each product a · w by at most (2^-7 + 2^-16) · |a · w|, and of a sum by at most that part of Σ |a · w|.

Convolutions are then direct ones: on pairs, ResNet-50's 3×3 ones take no longer than F(2×2, 3×3) in f32, and their
weights are less than a third of the bytes. Those of every channel by itself stay in f32: they read more than they
multiply.
"""

from __future__ import annotations

from tierup.ir.graph import Node
from tierup.ir.types import DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Values


def narrow(out: Rewriter, node: Node) -> Values | None:
    """A product or convolution of floats, rounded; None where it stays."""
    if "to" in node.attrs:
        return None
    rule = {"core.matmul": _product, "core.conv_last": _convolution}.get(node.op)
    return None if rule is None else rule(out, node)


def _convolution(out: Rewriter, node: Node) -> Values | None:
    """As a product, where pairs of channels lie side by side."""
    x, w, pads = node.inputs
    if x is None or w is None or pads is None or out.dtype(x) is not DType.F32 or out.digest_of(w) is None:
        return None
    channels = (out.shape(x) or (1,))[-1]
    if node.attrs["group"] != 1 or not isinstance(channels, int) or channels % 2:
        return None
    b = Core(out)
    attrs = {**node.attrs, "algorithm": "direct", "to": DType.F32.code}
    return [b.op("conv_last", b.cast(x, DType.BF16), b.cast(w, DType.BF16), pads, **attrs)]


def _product(out: Rewriter, node: Node) -> Values | None:
    """a · w = Σ bf16(a) · bf16(w) in f32, where w is a constant matrix of pairs of rows; bytes are exact in bf16."""
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
