"""Products and convolutions in bf16: both sides rounded to 8 bits of mantissa, multiplied and summed up in f32.

Only where the user asks for it. The roundings are casts in the graph, so that whoever computes a side writes it
rounded, and every kernel is judged by what it is given. Rounding to nearest is off by at most 2^-8 of a number, so of
each product a · w by at most (2^-7 + 2^-16) · |a · w|, and of a sum by at most that part of Σ |a · w|. A number that
multiplies all of a side is rounding's equal: it is taken out, and multiplies the product instead. Denormals become
zero, which products take them for anyway: machines that round in one instruction do so.

Convolutions are then direct ones: on pairs, ResNet-50's 3×3 ones take no longer than F(2×2, 3×3) in f32, and their
weights are less than a third of the bytes. Those of every channel by itself stay in f32: they read more than they
multiply.
"""

from __future__ import annotations

import math

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Values

_LEAST_CHANNELS = 3  # of one, half of all products would be with zeros
# Products with an element of the data above which the third of them that three channels save in pairs takes longer than
# to put a fourth channel beside them. ResNet-50's first layer has 784 and takes 1.6 ms instead of 2.2; 150 would tie.
_WORTH_A_COPY = 300
_VIEWS = ("core.reshape", "core.transpose")
_MOST_FACTORS, _LEAST = 4, 2.0**-31  # that are taken out of both sides: together they are a number of f32
_BATCHED = 3  # axes of the sides of products of which one is computed for each batch or head


def narrow(out: Rewriter, node: Node) -> Values | None:
    """A product or convolution of floats, rounded; None where it stays."""
    if "to" in node.attrs:
        return None
    rule = {"core.matmul": _product, "core.conv_last": _convolution}.get(node.op)
    return None if rule is None else rule(out, node)


def _convolution(out: Rewriter, node: Node) -> Values | None:
    """As a product, where pairs of channels lie side by side, or are put there."""
    x, w, pads = node.inputs
    matrix = None if w is None else out.constant(w)
    if x is None or w is None or pads is None or out.dtype(x) is not DType.F32 or matrix is None:
        return None
    channels = (out.shape(x) or (1,))[-1]
    if node.attrs["group"] != 1 or not isinstance(channels, int):
        return None
    products = matrix.size / channels / math.prod(node.attrs["strides"])
    if channels % 2 and (channels < _LEAST_CHANNELS or products < _WORTH_A_COPY):
        return None
    b = Core(out)
    rounded = _rounded(out, x, None)
    if channels % 2:
        rounded, w = _paired(b, rounded, matrix, channels)
    attrs = {**node.attrs, "algorithm": "direct", "to": DType.F32.code}
    return [b.op("conv_last", rounded, b.cast(w, DType.BF16), pads, **attrs)]


def _paired(b: Core, x: ValueId, matrix: Array, channels: int) -> tuple[ValueId, ValueId]:
    """Data and weights with one more channel, of zeros."""
    none = [0] * b.rank(x)
    more = b.op("pad", x, b.sizes([*none, *none[:-1], 1]), b.like(0, x), mode="constant")
    places = matrix.reshape(-1, channels, matrix.shape[1])
    return more, b.weight(np.pad(places, ((0, 0), (0, 1), (0, 0))).reshape(-1, matrix.shape[1]))


def _product(out: Rewriter, node: Node) -> Values | None:
    """a · w = Σ bf16(a) · bf16(w) in f32, where w is a constant matrix of pairs of rows, or both are batches that are
    computed, as in attention; bytes are exact in bf16."""
    a, w = node.inputs
    shape = out.shape(w)
    if a is None or w is None or shape is None or out.dtype(w) is not DType.F32:
        return None
    if out.digest_of(w) is None and len(shape) >= _BATCHED and out.dtype(a) is DType.F32 and out.digest_of(a) is None:
        return _computed(out, a, w)
    if len(shape) != 2 or not isinstance(shape[0], int) or shape[0] % 2:
        return None
    behind = out.producer(w)
    if behind is not None and behind.op == "core.cast" and out.dtype(behind.inputs[0]) in (DType.I8, DType.U8):
        w = behind.inputs[0]
    if w is None or out.digest_of(w) is None:
        return None
    b = Core(out)
    return [b.op("matmul", _rounded(out, a, None), b.cast(w, DType.BF16), to=DType.F32.code)]


def _computed(out: Rewriter, a: ValueId, w: ValueId) -> Values:
    b, factors = Core(out), list[float]()
    left, right = _rounded(out, a, factors), _rounded(out, w, factors)
    result = b.op("matmul", left, right, to=DType.F32.code)
    return [b.mul(result, b.like(math.prod(factors), result)) if factors else result]


def _rounded(out: Rewriter, value: ValueId, factors: list[float] | None) -> ValueId:
    """The value in bf16, rounded before it is turned or divided anew: whoever computes it writes it so. With `factors`,
    multiplications of all of it by a number are left out and noted there."""
    behind = out.producer(value)
    source = None if behind is None else behind.inputs[0]
    if behind is not None and source is not None and behind.op in _VIEWS:
        rounded = _rounded(out, source, factors)
        (result,) = out.node(behind.op, (rounded, *behind.inputs[1:]), behind.attrs, version=behind.version)
        assert result is not None
        return result
    if behind is not None and factors is not None and len(factors) < _MOST_FACTORS:
        scaled = _scaled(out, behind)
        if scaled is not None:
            source, factor = scaled
            factors.append(factor)
            return _rounded(out, source, factors)
    return Core(out).cast(value, DType.BF16, flush=1)


def _scaled(out: Rewriter, node: Node) -> tuple[ValueId, float] | None:
    """What a node multiplies or divides by one number of ordinary size, and the factor."""
    if node.op not in ("core.mul", "core.div"):
        return None
    for number, other in ((1, 0), (0, 1))[: 2 if node.op == "core.mul" else 1]:
        constant, value = node.inputs[number], node.inputs[other]
        digest = None if constant is None else out.digest_of(constant)
        if value is None or digest is None or out.weights[digest].size != 1:
            continue
        factor = float(out.weights[digest].reshape(-1)[0])
        if node.op == "core.div":
            factor = 1 / factor if factor else math.inf
        if _LEAST < abs(factor) < 1 / _LEAST and out.shape(value) == out.shape(node.outputs[0]):
            return value, factor
    return None
