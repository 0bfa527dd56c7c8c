"""Rows of the ops that reduce over axes: sums and maxima, softmax, normalisations, cumulative sums, losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tierup.ir.dims import DimBuilder, DimError
from tierup.ir.infer import Infer, InferError, Out, PartialShape, Rule
from tierup.ir.ops.elementwise import Content, agree, attr_dtype, check_broadcasts_to, holds
from tierup.ir.ops.row import Op
from tierup.ir.types import Dim, DType, Shape

Fold = Callable[[DimBuilder, Sequence[Dim]], Dim | None]


def _axes(ctx: Infer) -> Sequence[int] | None:
    """The axes as given, in an attribute or in input 1; empty where absent, None where only a call knows them."""
    if not ctx.has(1):
        axes: Sequence[int] = ctx.attrs.get("axes") or ()
        return axes
    return () if ctx.shape(1) == (0,) else ctx.ints(1)


def reduced_axes(ctx: Infer, rank: int) -> tuple[int, ...] | None:
    """The axes to reduce, counted from the front; None where only a call knows them."""
    axes = _axes(ctx)
    if axes is None:
        return None
    if not axes:
        return () if ctx.attrs.get("noop_with_empty_axes") else tuple(range(rank))
    return ctx.axes(axes, rank)


def reduced_shape(ctx: Infer) -> PartialShape | None:
    """Input 0 with the reduced axes set to 1 or left out."""
    shape, keep = ctx.shape(0), bool(ctx.attrs.get("keepdims", 1))
    if shape is None:
        axes = _axes(ctx)
        everything = axes is not None and not axes and not ctx.attrs.get("noop_with_empty_axes")
        return () if everything and not keep else None
    reduced = reduced_axes(ctx, len(shape))
    if reduced is not None:
        return _without(shape, reduced, keep)
    if keep:
        return (None,) * len(shape)
    count = (ctx.shape(1) or (None,))[0]
    return (None,) * (len(shape) - count) if isinstance(count, int) and count <= len(shape) else None


def _without(shape: Shape, axes: Sequence[int], keep: bool) -> Shape:
    if keep:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def reduction(fold: Fold | None = None) -> Rule:
    """A Reduce op; `fold` reduces known integers."""

    def rule(ctx: Infer) -> list[Out]:
        shape, dtype, content = reduced_shape(ctx), ctx.dtype(0), ctx.content(0)
        known = fold is not None and content is not None and ctx.rank(0) == 1 and reduced_axes(ctx, 1) == (0,)
        return [Out(dtype, shape, _folded(ctx, fold, dtype, content) if known and fold and content else None)]

    return rule


def _folded(ctx: Infer, fold: Fold, dtype: DType, content: Content) -> Content | None:
    try:
        value = fold(ctx.dims, content)
    except DimError:
        return None
    return None if value is None or not holds(value, dtype) else (value,)


def _least(dims: DimBuilder, items: Sequence[Dim]) -> Dim:
    result = items[0]
    for item in items[1:]:
        result = dims.min(result, item)
    return result


def _most(dims: DimBuilder, items: Sequence[Dim]) -> Dim:
    result = items[0]
    for item in items[1:]:
        result = dims.max(result, item)
    return result


def arg_reduction(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if shape is None:
        return [Out(DType.I64, None)]
    axis = ctx.axis(ctx.attrs["axis"], len(shape))
    return [Out(DType.I64, _without(shape, (axis,), bool(ctx.attrs["keepdims"])))]


def along_axis(ctx: Infer) -> list[Out]:
    """The shape of input 0, in which attribute `axis` must lie; before opset 13 it may also be the rank."""
    shape = ctx.shape(0)
    if shape is not None and not (ctx.version < 13 and ctx.attrs["axis"] == len(shape)):
        ctx.axis(ctx.attrs["axis"], len(shape))
    return [Out(ctx.dtype(0), shape)]


def lp_normalization(ctx: Infer) -> list[Out]:
    if ctx.attrs["p"] not in (1, 2):
        raise InferError(f"attribute p must be 1 or 2, but is {ctx.attrs['p']}")
    if (shape := ctx.shape(0)) is not None:
        ctx.axis(ctx.attrs["axis"], len(shape))
    return [Out(ctx.dtype(0), shape)]


def cumulative(ctx: Infer) -> list[Out]:
    shape, axis = ctx.shape(0), ctx.ints(1)
    if axis is not None and len(axis) != 1:
        raise InferError(f"input 1 must hold one axis, but holds {len(axis)}")
    if shape is not None and axis is not None:
        ctx.axis(axis[0], len(shape))
    return [Out(ctx.dtype(0), shape)]


def dropout(ctx: Infer) -> list[Out]:
    mask = ctx.dtype(0) if ctx.version < 10 else DType.BOOL
    return [Out(ctx.dtype(0), ctx.shape(0)), Out(mask, ctx.shape(0))]


def _check_channels(ctx: Infer, shape: Shape | None, least_rank: int, inputs: Sequence[int]) -> None:
    """`inputs` must hold one number for each of the channels, axis 1 of `shape`."""
    if shape is None:
        return
    if len(shape) < least_rank:
        raise InferError(f"input 0 must have rank {least_rank} or more, but has {len(shape)}")
    channels = shape[1] if len(shape) > 1 else 1
    for index in inputs:
        agree(ctx.shape(index), (channels,))


def batch_normalization(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if ctx.attrs.get("spatial", 1):
        _check_channels(ctx, shape, 1, range(1, 5))
    else:
        for index in range(1, 5):
            agree(ctx.shape(index), None if shape is None else shape[1:])
    running, variance = Out(ctx.dtype(3), ctx.shape(3)), Out(ctx.dtype(4), ctx.shape(4))
    saved = [running, variance] if ctx.version < 14 else []
    return [Out(ctx.dtype(0), shape), running, variance, *saved]


def group_normalization(ctx: Infer) -> list[Out]:
    shape, groups = ctx.shape(0), ctx.attrs["num_groups"]
    if groups < 1:
        raise InferError(f"attribute num_groups must be above 0, but is {groups}")
    _check_channels(ctx, shape, 2, (1, 2) if ctx.version >= 21 else ())
    if shape is not None and isinstance(shape[1], int) and shape[1] % groups:
        raise InferError(f"{shape[1]} channels do not divide into {groups} groups")
    if ctx.version < 21:
        for index in (1, 2):
            agree(ctx.shape(index), (groups,))
    return [Out(ctx.dtype(0), shape)]


def instance_normalization(ctx: Infer) -> list[Out]:
    _check_channels(ctx, ctx.shape(0), 2, (1, 2))
    return [Out(ctx.dtype(0), ctx.shape(0))]


def lrn(ctx: Infer) -> list[Out]:
    if ctx.attrs["size"] < 1:
        raise InferError(f"attribute size must be above 0, but is {ctx.attrs['size']}")
    _check_channels(ctx, ctx.shape(0), 2, ())
    return [Out(ctx.dtype(0), ctx.shape(0))]


def layer_normalization(ctx: Infer) -> list[Out]:
    shape, stash = ctx.shape(0), attr_dtype(ctx, "stash_type")
    if not stash.is_float:
        raise InferError(f"attribute stash_type must name a float dtype, but names {stash!r}")
    if shape is None:
        return [Out(ctx.dtype(0), None), Out(stash, None), Out(stash, None)]
    axis = ctx.axis(ctx.attrs["axis"], len(shape))
    for index, what in ((1, "the scale"), (2, "the bias")):
        if ctx.has(index):
            check_broadcasts_to(ctx.shape(index), shape, what)
    statistic = Out(stash, (*shape[:axis], *(1,) * (len(shape) - axis)))
    return [Out(ctx.dtype(0), shape), statistic, statistic]


def rms_normalization(ctx: Infer) -> list[Out]:
    (result, *_) = layer_normalization(ctx)
    return [Out(ctx.dtype(1), result.shape)]


def mean_variance_normalization(ctx: Infer) -> list[Out]:
    if (shape := ctx.shape(0)) is not None:
        ctx.axes(ctx.attrs["axes"], len(shape))
    return [Out(ctx.dtype(0), shape)]


def loss(ctx: Infer) -> list[Out]:
    """Scores (N, C, d...) and labels (N, d...): a loss for each label, or one number."""
    scores, labels, reduce = ctx.shape(0), ctx.shape(1), ctx.attrs["reduction"]
    if reduce not in ("none", "mean", "sum"):
        raise InferError(f"attribute reduction must be none, mean or sum, but is '{reduce}'")
    if scores is not None:
        if len(scores) < 2:
            raise InferError(f"input 0 must have rank 2 or more, but has {len(scores)}")
        labels = agree(labels, (scores[0], *scores[2:]))
        if ctx.has(2):
            agree(ctx.shape(2), (scores[1],))
    return [Out(ctx.dtype(0), labels if reduce == "none" else ()), Out(ctx.dtype(0), scores)]


def _rows(rule: Rule, reference: str, docs: Mapping[str, str]) -> list[Op]:
    return [Op(f"onnx.{name}", doc, rule, reference) for name, doc in docs.items()]


OPS: tuple[Op, ...] = (
    *_rows(reduction(), "reduce.reduction", {
        "ReduceL1": "the sum of absolute values over axes",
        "ReduceL2": "the square root of the sum of squares over axes",
        "ReduceLogSum": "the logarithm of the sum over axes",
        "ReduceLogSumExp": "the logarithm of the sum of exponentials over axes",
        "ReduceMean": "the mean over axes",
        "ReduceSumSquare": "the sum of squares over axes",
    }),
    Op("onnx.ReduceMax", "the largest element over axes", reduction(_most), "reduce.reduction"),
    Op("onnx.ReduceMin", "the smallest element over axes", reduction(_least), "reduce.reduction"),
    Op("onnx.ReduceProd", "the product over axes", reduction(DimBuilder.product), "reduce.reduction"),
    Op("onnx.ReduceSum", "the sum over axes", reduction(DimBuilder.sum), "reduce.reduction"),
    *_rows(arg_reduction, "reduce.arg_reduction", {
        "ArgMax": "where along an axis the largest element is",
        "ArgMin": "where along an axis the smallest element is",
    }),
    *_rows(along_axis, "reduce.softmax", {
        "Hardmax": "one at the first largest element along an axis, else zero",
        "LogSoftmax": "the logarithm of softmax along an axis",
        "Softmax": "exponentials along an axis, scaled to the sum 1",
    }),
    *_rows(cumulative, "reduce.cumulative", {
        "CumProd": "running products along an axis",
        "CumSum": "running sums along an axis",
    }),
    Op("onnx.BatchNormalization", "channels normalised over a batch", batch_normalization, "norm.batch_normalization"),
    Op("onnx.Dropout", "the input; in training, elements zeroed at random", dropout, "norm.dropout", pure=False),
    Op("onnx.GroupNormalization", "groups of channels normalised", group_normalization, "norm.group_normalization"),
    Op("onnx.InstanceNormalization", "each channel of each sample normalised", instance_normalization,
       "norm.instance_normalization"),
    Op("onnx.LRN", "elements scaled down by their neighbours across channels", lrn, "norm.lrn"),
    Op("onnx.LayerNormalization", "the last axes normalised, scaled and shifted", layer_normalization,
       "norm.layer_normalization"),
    Op("onnx.LpNormalization", "divided by the norm along an axis", lp_normalization, "norm.lp_normalization"),
    Op("onnx.MeanVarianceNormalization", "axes brought to mean 0 and variance 1", mean_variance_normalization,
       "norm.mean_variance_normalization"),
    Op("onnx.RMSNormalization", "the last axes divided by their root mean square", rms_normalization,
       "norm.rms_normalization"),
    Op("onnx.NegativeLogLikelihoodLoss", "minus the log-probabilities of the labels", loss,
       "loss.negative_log_likelihood"),
    Op("onnx.SoftmaxCrossEntropyLoss", "softmax, then minus the log-probabilities of the labels", loss,
       "loss.softmax_cross_entropy"),
)  # fmt: skip
