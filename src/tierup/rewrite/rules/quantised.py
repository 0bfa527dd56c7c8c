"""Products between DequantizeLinear and QuantizeLinear as products of bytes.

    conv(s · (x - p), t · w) = s · t · (conv(x, w) - p · Σ w), with p around the data

Sums of bytes are exact, so the result is at least as close to the exact answer as one computed in floats. Tensors that
are quantised to signed bytes and read by DequantizeLinear alone are quantised to unsigned ones: s · (x - p) is the same
with 128 more on both sides, and machines multiply unsigned bytes by signed ones. Movement and the largest of a window
are taken of the bytes. What was computed with rounded scales anyway is multiplied by one over the next scale, not
divided by that.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, DType
from tierup.rewrite.decompose.core import Core, Declined
from tierup.rewrite.decompose.nn import by_channel, conv_pads, pads_value, steps, with_bias
from tierup.rewrite.decompose.quant import flat, quantised
from tierup.rewrite.walk import Rewriter, Values

_DEQUANTISE, _QUANTISE = "onnx.DequantizeLinear", "onnx.QuantizeLinear"
QUANTISING = frozenset((_DEQUANTISE, _QUANTISE))  # where a graph has neither, there is nothing to do
_BYTES = (DType.I8, DType.U8)
_LEAST_CHANNELS = 3  # a word has four: of fewer, sums in f32 take no longer
_LEAST_RESULTS = 8  # fewer have kernels for floats that do not waste most of a vector on them
_MOST_TERMS = (1 << 31) // (255 * 128)  # what i32 surely holds
_DEPTH = 8  # maps between a product and the next QuantizeLinear
_MAPS = frozenset(("onnx.Relu", "onnx.Clip", "onnx.Add", "core.add", "core.mul", "core.sub"))


class _Scaled(Struct, frozen=True):
    """A tensor of bytes that stands for (value - zero) · scale."""

    node: Node
    value: ValueId
    scale: float
    zero: int


class _Weights(Struct, frozen=True):
    """Constant bytes, less their zero points, and their scales: one, or one for each result."""

    whole: Array
    scale: Array


def byte_tensors(out: Rewriter, node: Node) -> Values | None:
    """First, for the whole graph: fewer tensors, of unsigned bytes. What a node becomes; None where it stays."""
    rule = _TENSORS.get(node.op)
    return None if rule is None else rule(out, node)


def byte_products(out: Rewriter, node: Node) -> Values | None:
    """Then: products of those, as core ops. What a node becomes; None where it stays."""
    rule = _PRODUCTS.get(node.op)
    try:
        return None if rule is None else rule(out, node)
    except Declined:
        return None


def _number(out: Rewriter, value: ValueId | None) -> Array | None:
    """The one number that a constant holds."""
    array = None if value is None else out.constant(value)
    return array.reshape(()) if array is not None and array.size == 1 else None


def _scaled(out: Rewriter, value: ValueId | None) -> _Scaled | None:
    """A dequantised tensor with one constant scale and zero point."""
    node = out.producer(value)
    if node is None or node.op != _DEQUANTISE or out.dtype(value) is not DType.F32:
        return None
    x, zero = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    scale, offset = _number(out, node.inputs[1]), np.array(0) if zero is None else _number(out, zero)
    if x is None or out.dtype(x) not in _BYTES or scale is None or offset is None or out.shape(x) is None:
        return None
    if scale.dtype != np.float32 or not np.isfinite(scale) or scale <= 0:
        return None
    return _Scaled(node, x, float(scale), int(offset))


def _weights(out: Rewriter, value: ValueId | None, axis: int) -> _Weights | None:
    """A dequantised constant, scaled as a whole or along an axis, whose differences from the zero points fit bytes."""
    node = out.producer(value)
    if node is None or node.op != _DEQUANTISE or out.dtype(value) is not DType.F32 or node.attrs.get("block_size", 0):
        return None
    whole = None if node.inputs[0] is None else out.constant(node.inputs[0])
    scale = None if node.inputs[1] is None else out.constant(node.inputs[1])
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    offset = np.zeros(1, np.int16) if zero is None else out.constant(zero)
    if whole is None or scale is None or offset is None or whole.dtype not in (np.int8, np.uint8):
        return None
    along = whole.ndim > 0 and node.attrs.get("axis", 1) % whole.ndim == axis
    if scale.dtype != np.float32 or any(array.size != 1 and not along for array in (scale, offset)):
        return None
    places = [-1 if i == axis else 1 for i in range(whole.ndim)]
    difference = whole.astype(np.int16) - offset.astype(np.int16).reshape(places)
    for kind in (np.int8, np.uint8):
        ends = np.iinfo(kind)
        if difference.min(initial=0) >= ends.min and difference.max(initial=0) <= ends.max:
            return _Weights(difference.astype(kind), scale.reshape(-1))
    return None


def _is_worthwhile(terms: int, channels: int, results: int) -> bool:
    return channels >= _LEAST_CHANNELS and results >= _LEAST_RESULTS and terms <= _MOST_TERMS


def _convolution(out: Rewriter, node: Node) -> Values | None:
    x, w = _scaled(out, node.inputs[0]), _weights(out, node.inputs[1], 0)
    if x is None or w is None or w.whole.ndim < 3:
        return None
    results, channels, *kernel = w.whole.shape
    group = int(node.attrs.get("group", 1))
    if not _is_worthwhile(channels * prod(kernel), channels * group, results):
        return None
    b, rank = Core(out), w.whole.ndim
    if b.rank(x.value) != rank:
        return None
    pads = pads_value(b, conv_pads(b, node.attrs, b.shape(x.value)[2:], kernel))
    attrs = {"fill": x.zero} if x.zero else {}
    total = b.op("conv", x.value, b.weight(w.whole), pads, group=group, **steps(node.attrs, rank - 2), **attrs)
    sums = w.whole.sum(axis=tuple(range(1, rank)), dtype=np.int32)
    scaled = _rescaled(b, total, x, w, sums, lambda vector: by_channel(b, vector, rank))
    return [with_bias(b, scaled, b.given(node, 2))]


def _rescaled(
    b: Core, total: ValueId, x: _Scaled, w: _Weights, sums: Array, spread: Callable[[ValueId], ValueId]
) -> ValueId:
    """s · t · (total - p · Σ w)."""
    if x.zero:
        total = b.sub(total, spread(b.weight(np.asarray(x.zero * sums, np.int32))))
    scale = (x.scale * w.scale.astype(np.float64)).astype(np.float32)
    return b.mul(b.cast(total, DType.F32), spread(b.weight(scale)))


def _product(out: Rewriter, node: Node) -> Values | None:
    """MatMul, and Gemm whose left side stays as it is."""
    turned = bool(node.attrs.get("transB", 0))
    x, w = _scaled(out, node.inputs[0]), _weights(out, node.inputs[1], 0 if turned else 1)
    if x is None or w is None or node.attrs.get("transA", 0) or w.whole.ndim != 2:
        return None
    matrix = np.ascontiguousarray(w.whole.T) if turned else w.whole
    b = Core(out)
    if b.rank(x.value) < 2 or not _is_worthwhile(len(matrix), *matrix.shape):
        return None
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    total = b.matmul(x.value, b.weight(matrix))
    sums = matrix.sum(axis=0, dtype=np.int32)
    scaled = _rescaled(b, total, replace(x, scale=x.scale * alpha), w, sums, lambda vector: flat(b, vector))
    addend = b.given(node, 2)
    if addend is None:
        return [scaled]
    return [b.add(scaled, addend if beta == 1 else b.mul(addend, b.like(beta, addend)))]


def _moved(out: Rewriter, node: Node) -> Values | None:
    """f(s · (x - p)) = s · (f(x) - p), where f moves elements or takes the largest of some."""
    x = _scaled(out, node.inputs[0])
    if x is None or any(value is not None for value in node.outputs[1:]):
        return None
    if node.op == "onnx.MaxPool" and node.version < 12:  # bytes are not in its types
        return None
    wanted = [value is not None for value in node.outputs]
    inputs = (x.value, *node.inputs[1:])
    moved, *rest = out.node(node.op, inputs, node.attrs, version=node.version, outputs=wanted)
    found = out.node(_DEQUANTISE, (moved, *x.node.inputs[1:]), x.node.attrs, version=x.node.version)
    return [*found, *rest]


def _dequantised(out: Rewriter, node: Node) -> Values | None:
    """Of what was quantised to signed bytes: of unsigned ones."""
    before = out.producer(node.inputs[0])
    if before is None or before.op != _QUANTISE or len(before.inputs) < 3 or len(node.inputs) < 3:
        return None
    zeros = [_number(out, given.inputs[2]) for given in (before, node)]
    if any(zero is None or zero.dtype != np.int8 for zero in zeros) or _number(out, before.inputs[1]) is None:
        return None
    if _number(out, node.inputs[1]) is None or "output_dtype" in before.attrs:
        return None
    first, second = (
        out.weight(np.asarray(np.int16(zero) + 128).astype(np.uint8)) for zero in zeros if zero is not None
    )
    unsigned = replace(before, inputs=(*before.inputs[:2], first), outputs=(0,))
    (found,) = out.held(unsigned) or _quantised(out, unsigned) or out.add(unsigned)
    return out.node(_DEQUANTISE, (found, node.inputs[1], second), node.attrs, version=node.version)


def _quantised(out: Rewriter, node: Node) -> Values | None:
    """Of what was just dequantised in the same way: the bytes themselves."""
    scale, zero = _number(out, node.inputs[1]), _number(out, node.inputs[2] if len(node.inputs) > 2 else None)
    x = _scaled(out, node.inputs[0])
    if x is None or scale is None or zero is None or out.dtype(x.value) is not out.dtype(node.inputs[2]):
        return None
    return [x.value] if (x.scale, x.zero) == (float(scale), int(zero)) else None


def _quantised_sums(out: Rewriter, node: Node) -> Values | None:
    """x / s = x · (1 / s), where x was rounded before."""
    scale, zero = _number(out, node.inputs[1]), _number(out, node.inputs[2] if len(node.inputs) > 2 else None)
    if scale is None or zero is None or zero.dtype not in (np.int8, np.uint8):
        return None
    usual = scale.dtype == np.float32 and 1e-30 < scale < 1e30 and not node.attrs.get("precision", 0)
    if not usual or not _is_rescaled(out, node.inputs[0], _DEPTH):
        return None
    b = Core(out)
    factor = b.number(1 / float(scale), DType.F32)
    kind = DType.I8 if zero.dtype == np.int8 else DType.U8
    return [quantised(b, b.mul(b.input(node), factor), b.weight(zero), kind)]


def _is_rescaled(out: Rewriter, value: ValueId | None, depth: int) -> bool:
    """Whether maps lead from scaled bytes, or from sums of them, to a value."""
    node = out.producer(value)
    if node is None or depth == 0:
        return False
    if node.op == _DEQUANTISE:
        return depth < _DEPTH  # by itself, it may be read as it is
    if node.op == "core.cast":
        return out.dtype(node.inputs[0]) is DType.I32
    return node.op in _MAPS and any(_is_rescaled(out, given, depth - 1) for given in node.inputs)


_TENSORS: dict[str, Callable[[Rewriter, Node], Values | None]] = {
    **dict.fromkeys(
        ("onnx.Flatten", "onnx.MaxPool", "onnx.Reshape", "onnx.Squeeze", "onnx.Transpose", "onnx.Unsqueeze"), _moved
    ),
    "onnx.DequantizeLinear": _dequantised,
    "onnx.QuantizeLinear": _quantised,
}
_PRODUCTS: dict[str, Callable[[Rewriter, Node], Values | None]] = {
    "onnx.Conv": _convolution,
    "onnx.Gemm": _product,
    "onnx.MatMul": _product,
    "onnx.QuantizeLinear": _quantised_sums,
}
