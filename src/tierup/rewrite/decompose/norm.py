"""Normalisations, Dropout and losses. Statistics run in f32 or better; results are rounded once."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Dim, DType, dtype_from_code
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.reduce import log_softmax
from tierup.rewrite.rules.arithmetic import is_inference


def moments(b: Core, x: ValueId, axes: Sequence[int]) -> tuple[ValueId, ValueId, ValueId]:
    """The mean, x less the mean, and the population variance"""
    mean = b.mean(x, axes)
    centered = b.sub(x, mean)
    return mean, centered, b.mean(b.mul(centered, centered), axes)


def _deviation(b: Core, variance: ValueId, epsilon: float) -> ValueId:
    return b.sqrt(b.add(variance, b.like(epsilon, variance)))


def _per_channel(b: Core, parameter: ValueId, rank: int, dtype: DType) -> ValueId:
    """A tensor over channels that broadcasts against a batch of `rank` axes."""
    shape = b.shape(parameter)
    return b.cast(b.reshape(parameter, [*shape, *[1] * max(rank - 1 - len(shape), 0)]), dtype)


def _stashed(b: Core, n: Node, x: ValueId) -> ValueId:
    stash = dtype_from_code(n.attrs.get("stash_type", 1))
    return b.cast(x, DType.F64) if stash is DType.F64 else b.wide(x)


def _batch_normalization(b: Core, n: Node) -> list[ValueId | None]:
    """(x - mean) · scale / √(variance + ε) + bias, with the batch's own statistics in training"""
    x, scale, bias, mean, variance = (b.input(n, i) for i in range(5))
    training = n.attrs.get("training_mode", 0) if n.version >= 14 else any(v is not None for v in n.outputs[1:])
    wide, rank = b.wide(x), b.rank(x)
    used, running = [mean, variance], [mean, variance]
    if training:
        axes = (0, *range(2, rank)) if n.attrs.get("spatial", 1) else (0,)
        own_mean, _, own_variance = moments(b, wide, axes)
        used = [b.reshape(own, b.shape(mean)) for own in (own_mean, own_variance)]
        running = [_blended(b, old, new, n.attrs["momentum"]) for old, new in zip((mean, variance), used, strict=True)]
    work = b.dtype(wide)
    center, spread, factor, shift = (_per_channel(b, p, rank, work) for p in (*used, scale, bias))
    factor = b.div(factor, _deviation(b, spread, n.attrs["epsilon"]))
    result = b.add(b.mul(b.sub(wide, center), factor), shift)
    saved = [] if n.version >= 14 else [b.cast(s, b.dtype(mean)) for s in used]
    return [b.cast(result, b.dtype(x)), *running, *saved]


def _blended(b: Core, old: ValueId, new: ValueId, keep: float) -> ValueId:
    """old · momentum + new · (1 - momentum)"""
    wide, fresh = b.wide(old), b.cast(new, b.dtype(b.wide(old)))
    blend = b.add(b.mul(wide, b.like(keep, wide)), b.mul(fresh, b.like(1 - keep, wide)))
    return b.cast(blend, b.dtype(old))


def _normal(b: Core, x: ValueId, axes: Sequence[int], epsilon: float) -> ValueId:
    """(x - mean) / √(variance + ε)"""
    _, centered, variance = moments(b, x, axes)
    return b.div(centered, _deviation(b, variance, epsilon))


def _affine(b: Core, n: Node, normal: ValueId) -> ValueId:
    """normal · scale + bias, both one number a channel"""
    rank, work = b.rank(normal), b.dtype(normal)
    scale, bias = (_per_channel(b, b.input(n, i), rank, work) for i in (1, 2))
    return b.cast(b.add(b.mul(normal, scale), bias), b.dtype(b.input(n)))


def _instance_normalization(b: Core, n: Node) -> ValueId:
    x = b.wide(b.input(n))
    return _affine(b, n, _normal(b, x, range(2, b.rank(x)), n.attrs["epsilon"]))


def _group_normalization(b: Core, n: Node) -> ValueId:
    """Until opset 21 scale and bias are one number a group"""
    x, groups = _stashed(b, n, b.input(n)), n.attrs["num_groups"]
    shape = b.shape(x)
    grouped = b.reshape(x, (shape[0], groups, b.dims.floordiv(shape[1], groups), *shape[2:]))
    normal = _normal(b, grouped, range(2, b.rank(grouped)), n.attrs["epsilon"])
    if n.version >= 21:
        return _affine(b, n, b.reshape(normal, shape))
    scale, bias = (b.cast(b.reshape(b.input(n, i), (groups, *[1] * (len(shape) - 1))), b.dtype(normal)) for i in (1, 2))
    return b.cast(b.reshape(b.add(b.mul(normal, scale), bias), shape), b.dtype(b.input(n)))


def layer_normalization(
    b: Core, wide: ValueId, axes: Sequence[int], epsilon: float, scale: ValueId, bias: ValueId | None
) -> tuple[ValueId, ValueId, ValueId]:
    """(x - mean) / √(variance + ε) · scale + bias; the mean; the inverse deviation"""
    mean, centered, variance = moments(b, wide, axes)
    inverse = b.div(b.like(1, wide), _deviation(b, variance, epsilon))
    result = b.mul(b.mul(centered, inverse), b.cast(scale, b.dtype(wide)))
    if bias is not None:
        result = b.add(result, b.cast(bias, b.dtype(wide)))
    return result, mean, inverse


def _layer_normalization(b: Core, n: Node) -> list[ValueId | None]:
    x = b.input(n)
    axes = range(b.axis(n.attrs["axis"], b.rank(x)), b.rank(x))
    wide, stash = _stashed(b, n, x), dtype_from_code(n.attrs["stash_type"])
    assert stash is not None  # the type rule has checked it
    result, mean, inverse = layer_normalization(b, wide, axes, n.attrs["epsilon"], b.input(n, 1), b.given(n, 2))
    return [b.cast(result, b.dtype(x)), b.cast(mean, stash), b.cast(inverse, stash)]


def rms(b: Core, wide: ValueId, axes: Sequence[int], epsilon: float) -> ValueId:
    """√(Σx² / n + ε)"""
    return _deviation(b, b.mean(b.mul(wide, wide), axes), epsilon)


def _rms_normalization(b: Core, n: Node) -> ValueId:
    x, scale = b.input(n), b.input(n, 1)
    wide = _stashed(b, n, x)
    axes = range(b.axis(n.attrs["axis"], b.rank(x)), b.rank(x))
    normal = b.div(wide, rms(b, wide, axes, n.attrs["epsilon"]))
    return b.cast(b.mul(normal, b.cast(scale, b.dtype(wide))), b.dtype(scale))


def _mean_variance_normalization(b: Core, n: Node) -> ValueId:
    """(x - mean) / (√variance + 1e-9): constant data gives 0"""
    x = b.input(n)
    wide = b.wide(x)
    axes = [b.axis(axis, b.rank(x)) for axis in n.attrs["axes"]]
    _, centered, variance = moments(b, wide, axes)
    return b.cast(b.div(centered, b.add(b.sqrt(variance), b.like(1e-9, wide))), b.dtype(x))


def _lp_normalization(b: Core, n: Node) -> ValueId:
    """x / ‖x‖, and 0 where that is 0"""
    x = b.input(n)
    wide, axes = b.wide(x), (b.axis(n.attrs["axis"], b.rank(x)),)
    if n.attrs["p"] == 1:
        norm = b.reduce("sum", b.abs(wide), axes)
    else:
        norm = b.sqrt(b.reduce("sum", b.mul(wide, wide), axes))
    zero = b.like(0, wide)
    return b.cast(b.select(b.eq(norm, zero), zero, b.div(wide, norm)), b.dtype(x))


def _lrn(b: Core, n: Node) -> ValueId:
    """x / (bias + alpha/size · Σx² over a window of channels) ^ beta: the window is a pool over one spatial axis"""
    x, size, dims = b.input(n), n.attrs["size"], b.dims
    wide = b.wide(x)
    shape = b.shape(x)
    rows = b.reshape(b.mul(wide, wide), (shape[0], 1, shape[1], dims.product(shape[2:])))
    pads = b.integers([(size - 1) // 2, 0, size // 2, 0])
    total = b.op("pool_sum", rows, pads, kernel_shape=(size, 1), strides=(1, 1), dilations=(1, 1))
    share = b.mul(b.reshape(total, shape), b.like(n.attrs["alpha"] / size, wide))
    scale = b.op("pow", b.add(share, b.like(n.attrs["bias"], wide)), b.like(n.attrs["beta"], wide))
    return b.cast(b.div(wide, scale), b.dtype(x))


def _dropout(b: Core, n: Node) -> list[ValueId | None]:
    """x and a mask of ones: nothing is dropped outside training"""
    x = b.input(n)
    if not is_inference(b.out, n):
        raise Declined("training draws random numbers")
    mask = b.dtype(x) if n.version < 10 else DType.BOOL
    return [x, b.broadcast(b.number(1, mask), b.shape(x)) if len(n.outputs) > 1 and n.outputs[1] is not None else None]


def _likelihood(b: Core, n: Node, scores: ValueId) -> ValueId:
    """-scores[n, label, d...] · weight[label]; ignored labels count nothing"""
    labels, weight, ignored = b.cast(b.input(n, 1), DType.I64), b.given(n, 2), n.attrs.get("ignore_index")
    zero, nothing = b.number(0, DType.I64), b.like(0, scores)
    counted = None if ignored is None else b.inverse(b.eq(labels, b.number(ignored, DType.I64)))
    index = labels if counted is None else b.select(counted, labels, zero)
    shape: tuple[Dim, ...] = b.shape(scores)
    picked = b.op("gather_elements", scores, b.unsqueeze(index, 1), axis=1)
    losses = b.neg(b.reshape(picked, (shape[0], *shape[2:])))
    weights = b.like(1, scores) if weight is None else b.gather(b.cast(weight, b.dtype(scores)), index, 0)
    losses = losses if weight is None else b.mul(losses, weights)
    if counted is not None:
        losses, weights = b.select(counted, losses, nothing), b.select(counted, weights, nothing)
    reduction, axes = n.attrs["reduction"], range(len(shape) - 1)
    if reduction == "none":
        return losses
    total = b.reduce("sum", losses, axes, keepdims=False)
    if reduction == "sum":
        return total
    everywhere = b.broadcast(weights, b.shape(losses))
    return b.div(total, b.reduce("sum", everywhere, axes, keepdims=False))


def _negative_log_likelihood(b: Core, n: Node) -> ValueId:
    scores = b.input(n)
    return b.cast(_likelihood(b, n, b.wide(scores)), b.dtype(scores))


def _softmax_cross_entropy(b: Core, n: Node) -> list[ValueId | None]:
    scores = b.input(n)
    logs = log_softmax(b, b.wide(scores), (1,))
    return [b.cast(_likelihood(b, n, logs), b.dtype(scores)), b.cast(logs, b.dtype(scores))]


NORM: dict[str, Decomposition] = {
    "onnx.BatchNormalization": _batch_normalization,
    "onnx.Dropout": _dropout,
    "onnx.GroupNormalization": _group_normalization,
    "onnx.InstanceNormalization": _instance_normalization,
    "onnx.LRN": _lrn,
    "onnx.LayerNormalization": _layer_normalization,
    "onnx.LpNormalization": _lp_normalization,
    "onnx.MeanVarianceNormalization": _mean_variance_normalization,
    "onnx.NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "onnx.RMSNormalization": _rms_normalization,
    "onnx.SoftmaxCrossEntropyLoss": _softmax_cross_entropy,
}
