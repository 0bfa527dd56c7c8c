"""ONNX Runtime's own float ops: fused products and activations, normalisations, and other forms of ONNX's own ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tierup.ir.graph import Attr, Attrs, Node, ValueId
from tierup.ir.types import DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.elementwise import (
    elu,
    gelu,
    gelu_tanh,
    hard_sigmoid,
    leaky,
    relu,
    sigmoid,
    softplus,
)  # fmt: skip
from tierup.rewrite.decompose.generate import GENERATE
from tierup.rewrite.decompose.matrix import matmul
from tierup.rewrite.decompose.movement import MOVEMENT
from tierup.rewrite.decompose.nn import convolve, pool_max, wide_unless, with_bias
from tierup.rewrite.decompose.norm import layer_normalization
from tierup.rewrite.decompose.sampling import SAMPLING
from tierup.rewrite.decompose.select import SELECT

Fused = Callable[[Core, ValueId, float, float], ValueId]


def as_op(n: Node, op: str, version: int, inputs: Sequence[ValueId | None], **attrs: Attr) -> Node:
    """An ONNX op on `inputs`, with this node's attributes and some more."""
    return replace(n, op=op, version=version, inputs=tuple(inputs), attrs=Attrs({**n.attrs, **attrs}))


def _one(answer: ValueId | Sequence[ValueId | None]) -> ValueId:
    """The first result of a decomposition."""
    first = answer if isinstance(answer, int) else answer[0]
    assert first is not None
    return first


def _line(b: Core, x: ValueId, alpha: float, beta: float) -> ValueId:
    return b.add(b.mul(b.like(alpha, x), x), b.like(beta, x))


def _hard_swish(b: Core, x: ValueId, *_: float) -> ValueId:
    return b.mul(x, hard_sigmoid(b, x, 1 / 6, 0.5))


FUSED: dict[str, Fused] = {
    "Affine": _line,
    "Clip": lambda b, x, alpha, beta: b.clamp(x, b.like(alpha, x), b.like(beta, x)),
    "Elu": lambda b, x, alpha, _: elu(b, x, alpha),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": lambda b, x, alpha, _: leaky(b, x, b.like(alpha, x)),
    "Relu": lambda b, x, *_: relu(b, x),
    "ScaledTanh": lambda b, x, alpha, beta: b.mul(b.like(alpha, x), b.op("tanh", b.mul(b.like(beta, x), x))),
    "Sigmoid": lambda b, x, *_: sigmoid(b, x),
    "Softplus": lambda b, x, *_: softplus(b, x),
    "Softsign": lambda b, x, *_: b.div(x, b.add(b.like(1, x), b.abs(x))),
    "Tanh": lambda b, x, *_: b.op("tanh", x),
    "ThresholdedRelu": lambda b, x, alpha, _: b.select(b.lt(b.like(alpha, x), x), x, b.like(0, x)),
}
_PARAMETERS = {"Elu": (1.0, 0.0), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, 0.0), "ThresholdedRelu": (1.0, 0.0)}


def _activated(b: Core, x: ValueId, name: str, given: Sequence[float]) -> ValueId:
    if not name:
        return x
    alpha, beta = [*given, *_PARAMETERS.get(name, (0.0, 0.0))[len(given) :]]
    return FUSED[name](b, x, alpha, beta)


def _fused_conv(b: Core, n: Node) -> ValueId:
    bias, addend, name = b.given(n, 2), b.given(n, 3), n.attrs.get("activation", "")
    x, w = wide_unless(b, bias is None and addend is None and not name, b.input(n), b.input(n, 1))
    y = with_bias(b, convolve(b, x, w, n.attrs), bias)
    if addend is not None:
        y = b.add(y, b.wide(addend))
    return b.cast(_activated(b, y, name, n.attrs.get("activation_params", ())), b.dtype(b.input(n)))


def _scaled(b: Core, x: ValueId, factor: float) -> ValueId:
    return x if factor == 1 else b.mul(x, b.like(factor, x))


def _fused_gemm(b: Core, n: Node) -> ValueId:
    attrs, addend = n.attrs, b.given(n, 2)
    if not b.dtype(b.input(n)).is_float:
        raise Declined("a fused Gemm of integers")
    x, y = (b.wide(b.input(n, i)) for i in range(2))
    x, y = b.transpose(x, (1, 0)) if attrs["transA"] else x, b.transpose(y, (1, 0)) if attrs["transB"] else y
    result = _scaled(b, b.matmul(x, y), attrs["alpha"])
    if addend is not None:
        result = b.add(result, _scaled(b, b.wide(addend), attrs["beta"]))
    given = [attrs[f"activation_{name}"] for name in ("alpha", "beta") if f"activation_{name}" in attrs]
    return b.cast(_activated(b, result, attrs.get("activation", ""), given), b.dtype(b.input(n)))


def _fused_matmul(b: Core, n: Node) -> ValueId:
    alpha = n.attrs["alpha"]
    if not b.dtype(b.input(n)).is_float:
        raise Declined("a fused product of integers")
    left, right = wide_unless(b, alpha == 1, b.input(n), b.input(n, 1))
    left = _turned(b, left, n.attrs.get("transBatchA", 0), n.attrs["transA"])
    right = _turned(b, right, n.attrs.get("transBatchB", 0), n.attrs["transB"])
    return b.cast(_scaled(b, matmul(b, left, right), alpha), b.dtype(b.input(n)))


def _turned(b: Core, x: ValueId, batch: int, last: int) -> ValueId:
    """The first axis last but one, then the last two swapped, each if asked for."""
    rank = b.rank(x)
    if rank < 2:
        return x
    perm = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if last:
        perm[-1], perm[-2] = perm[-2], perm[-1]
    return b.transpose(x, perm)


def _biased(formula: Callable[[Core, ValueId], ValueId]) -> Decomposition:
    """A function of x, or of x + bias, computed in f32 or better and rounded once."""

    def decomposition(b: Core, n: Node) -> ValueId:
        x, bias = b.input(n), b.given(n, 1)
        wide = b.wide(x) if bias is None else b.add(b.wide(x), b.wide(bias))
        return b.cast(formula(b, wide), b.dtype(x))

    return decomposition


def _quick_gelu(b: Core, n: Node) -> ValueId:
    x = b.wide(b.input(n))
    return b.cast(b.mul(x, sigmoid(b, b.mul(b.like(n.attrs["alpha"], x), x))), b.dtype(b.input(n)))


def _root_mean_square(b: Core, x: ValueId, axes: Sequence[int], epsilon: float) -> tuple[ValueId, ValueId]:
    """x / √(mean of x² + ε), and the factor"""
    mean = b.mean(b.mul(x, x), axes)
    inverse = b.div(b.like(1, x), b.sqrt(b.add(mean, b.like(epsilon, x))))
    return b.mul(x, inverse), inverse


def _skip_sum(b: Core, n: Node, bias: ValueId | None) -> ValueId:
    total = b.add(b.wide(b.input(n)), b.wide(b.input(n, 1)))
    return total if bias is None else b.add(total, b.wide(bias))


def _skip_layer_norm(b: Core, n: Node) -> list[ValueId | None]:
    total, dtype = _skip_sum(b, n, b.given(n, 4)), b.dtype(b.input(n))
    axes = (b.rank(total) - 1,)
    y, mean, inverse = layer_normalization(b, total, axes, n.attrs["epsilon"], b.input(n, 2), b.given(n, 3))
    return [b.cast(y, dtype), b.cast(mean, DType.F32), b.cast(inverse, DType.F32), b.cast(total, dtype)]


def _skip_simplified(b: Core, n: Node) -> list[ValueId | None]:
    total, dtype = _skip_sum(b, n, b.given(n, 3)), b.dtype(b.input(n))
    normal, inverse = _root_mean_square(b, total, (b.rank(total) - 1,), n.attrs["epsilon"])
    y = b.mul(normal, b.cast(b.input(n, 2), b.dtype(total)))
    mean = b.broadcast(b.number(0, DType.F32), b.shape(inverse))
    return [b.cast(y, dtype), mean, b.cast(inverse, DType.F32), b.cast(total, dtype)]


def _simplified_layer_norm(b: Core, n: Node) -> list[ValueId | None]:
    x, scale = b.wide(b.input(n)), b.input(n, 1)
    axes = range(b.axis(n.attrs["axis"], b.rank(x)), b.rank(x))
    normal, inverse = _root_mean_square(b, x, axes, n.attrs["epsilon"])
    y = b.mul(normal, b.cast(scale, b.dtype(x)))
    return [b.cast(y, b.dtype(scale)), b.cast(inverse, DType.F32)]


Real = Callable[[int, ValueId], ValueId]  # what was taken from table `index`, as real numbers


def embed_layer_norm(b: Core, n: Node, real: Real, dtype: DType, positions: ValueId | None) -> list[ValueId | None]:
    """Looks up and adds word, position and segment vectors, and normalises the sum; also counts the mask's ones."""
    ids, segment_ids, segments, mask = b.input(n), b.given(n, 1), b.given(n, 4), b.given(n, 7)
    batch, length = b.shape(ids)
    if positions is None:
        places = b.unsqueeze(b.part(b.input(n, 3), 0, 0, length), 0)
    else:
        places = b.gather(b.input(n, 3), positions, 0)
    total = b.add(real(2, b.gather(b.input(n, 2), ids, 0)), real(3, places))
    if segments is not None:
        kinds = b.part(segments, 0, 0, 1) if segment_ids is None else b.gather(segments, segment_ids, 0)
        total = b.add(total, real(4, kinds))
    gamma, beta = real(5, b.input(n, 5)), real(6, b.input(n, 6))
    y, _, _ = layer_normalization(b, total, (2,), n.attrs["epsilon"], gamma, beta)
    if mask is None:
        counts = b.broadcast(b.like(0, ids), (batch,))
    else:
        ones = b.cast(b.eq(mask, b.like(1, mask)), b.dtype(ids))
        counts = b.reduce("sum", ones, (1,), keepdims=False)
    return [b.cast(y, dtype), counts, b.cast(total, dtype)]


def _embed(b: Core, n: Node) -> list[ValueId | None]:
    return embed_layer_norm(b, n, lambda _, x: b.wide(x), b.dtype(b.input(n, 2)), b.given(n, 8))


def _cdist(b: Core, n: Node) -> ValueId:
    """|a|² - 2 a·b + |b|², not below 0"""
    x, y = b.input(n), b.input(n, 1)
    left = b.reduce("sum", b.mul(x, x), (1,))
    right = b.reduce("sum", b.mul(y, y), (1,), keepdims=False)
    product = b.mul(b.like(2, x), b.matmul(x, b.transpose(y, (1, 0))))
    squares = b.max(b.add(b.sub(left, product), right), b.like(0, x))
    return b.sqrt(squares) if n.attrs["metric"] == "euclidean" else squares


def _expand_dims(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    (axis,) = b.numbers(b.input(n, 1), "the place of the new axis")
    return b.unsqueeze(x, b.axis(axis, b.rank(x) + 1))


def channels_first(b: Core, x: ValueId) -> ValueId:
    rank = b.rank(x)
    return b.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(b: Core, x: ValueId) -> ValueId:
    return b.transpose(x, (0, *range(2, b.rank(x)), 1))


def _nhwc_max_pool(b: Core, n: Node) -> ValueId:
    return channels_last(b, pool_max(b, channels_first(b, b.input(n)), n.attrs)[0])


def _matmul_integer16(b: Core, n: Node) -> ValueId:
    return matmul(b, b.cast(b.input(n), DType.I32), b.cast(b.input(n, 1), DType.I32))


def _pad(b: Core, n: Node) -> ValueId:
    pads, value = b.input(n, 1), b.given(n, 2)
    flat = b.reshape(pads, [b.dims.product(b.shape(pads))])
    inputs = (b.input(n), flat, None if value is None else b.reshape(value, ()))
    return _one(MOVEMENT["onnx.Pad"](b, as_op(n, "onnx.Pad", 11, inputs)))


def _gather_nd(b: Core, n: Node) -> ValueId:
    inputs = (b.input(n), b.cast(b.input(n, 1), DType.I64))
    return _one(SELECT["onnx.GatherND"](b, as_op(n, "onnx.GatherND", 13, inputs, batch_dims=0)))


def _range(b: Core, n: Node) -> ValueId:
    start, limit, step = b.input(n), b.input(n, 1), b.given(n, 2)
    inputs = (start, limit, b.like(1, start) if step is None else step)
    return _one(GENERATE["onnx.Range"](b, as_op(n, "onnx.Range", 11, inputs)))


def _as(op: str, version: int, family: dict[str, Decomposition]) -> Decomposition:
    """The same as an ONNX op."""
    return lambda b, n: family[op](b, as_op(n, op, version, n.inputs))


MICROSOFT: dict[str, Decomposition] = {
    "ms.BiasGelu": _biased(gelu),
    "ms.CDist": _cdist,
    "ms.EmbedLayerNormalization": _embed,
    "ms.ExpandDims": _expand_dims,
    "ms.FastGelu": _biased(gelu_tanh),
    "ms.FusedConv": _fused_conv,
    "ms.FusedGemm": _fused_gemm,
    "ms.FusedMatMul": _fused_matmul,
    "ms.GatherND": _gather_nd,
    "ms.Gelu": _biased(gelu),
    "ms.GridSample": _as("onnx.GridSample", 16, SAMPLING),
    "ms.MatMulInteger16": _matmul_integer16,
    "ms.NhwcMaxPool": _nhwc_max_pool,
    "ms.Pad": _pad,
    "ms.QuickGelu": _quick_gelu,
    "ms.Range": _range,
    "ms.SkipLayerNormalization": _skip_layer_norm,
    "ms.SkipSimplifiedLayerNormalization": _skip_simplified,
    "ms.TransposeMatMul": _fused_matmul,
    "ms.Trilu": _as("onnx.Trilu", 14, MOVEMENT),
    "onnx.SimplifiedLayerNormalization": _simplified_layer_norm,
}
