"""Convolutions and poolings: their type rules and rows."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.infer import Infer, InferError, Out, PartialShape
from tierup.ir.ops.row import Op
from tierup.ir.ops.window import Window, per_axis, transposed_windows, windows
from tierup.ir.types import Dim, DType, Shape

_ACTIVATIONS = ("none", "silu", "swish")


def spatial_shape(ctx: Infer, index: int, least: int = 1) -> Shape | None:
    """The shape of an input that is batch, channels and at least `least` spatial axes."""
    shape = ctx.shape(index)
    if shape is not None and len(shape) < 2 + least:
        raise InferError(f"input {index} has {len(shape)} axes, expected batch, channels and at least {least} more")
    return shape


def same_dim(what: str, a: Dim, b: Dim) -> None:
    """Refuse two sizes that are known to differ."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise InferError(f"{what}: {a} and {b} differ")


def vector_of(ctx: Infer, index: int, what: str, size: Dim) -> None:
    """Refuse input `index` where it is given and known not to be a vector of `size` elements."""
    if ctx.has(index):
        shape = ctx.shape(index)
        if shape is not None and len(shape) != 1:
            raise InferError(f"{what} has {len(shape)} axes, expected 1")
        if shape is not None:
            same_dim(f"{what} and the channels of the result", shape[0], size)


def _known(shape: Shape | None, rank: int) -> PartialShape:
    return (None,) * rank if shape is None else shape


def _sizes(slides: Sequence[Window]) -> tuple[Dim, ...]:
    return tuple(window.count for window in slides)


def _group(ctx: Infer, name: str = "group") -> int:
    group: int = ctx.attrs.get(name, 1)
    if group < 1:
        raise InferError(f"{name} is {group}, expected at least 1")
    return group


def _kernel(ctx: Infer, weight: Shape) -> Shape:
    """The spatial sizes of the weight; the attribute, where given, must say the same."""
    kernel = weight[2:]
    stated = ctx.attrs.get("kernel_shape")
    if stated:
        if len(stated) != len(kernel):
            raise InferError(f"kernel_shape has {len(stated)} entries, but the weight has {len(kernel)} spatial axes")
        for said, real in zip(stated, kernel, strict=True):
            same_dim("kernel_shape and the weight", said, real)
    if any(isinstance(size, int) and size < 1 for size in kernel):
        raise InferError(f"the kernel has the shape {list(kernel)}, expected sizes of at least 1")
    return kernel


def _operands(ctx: Infer) -> tuple[Shape | None, Shape | None, int | None]:
    """Shapes of data and weight, and their common rank."""
    x, w = spatial_shape(ctx, 0), spatial_shape(ctx, 1)
    if x is not None and w is not None and len(x) != len(w):
        raise InferError(f"the data has {len(x)} axes, but the weight {len(w)}")
    known = x if x is not None else w
    return x, w, None if known is None else len(known)


def _conv(ctx: Infer) -> list[Out]:
    x, w, rank = _operands(ctx)
    group = _group(ctx)
    if w is None or rank is None:
        return [Out(ctx.dtype(0), None if x is None else (x[0], *(None,) * (len(x) - 1)))]
    kernel = _kernel(ctx, w)
    if isinstance(w[0], int) and w[0] % group:
        raise InferError(f"{w[0]} output channels do not divide into {group} groups")
    vector_of(ctx, 2 if ctx.op == "onnx.Conv" else 3, "the bias", w[0])
    if x is None:
        return [Out(ctx.dtype(0), (None, w[0], *(None,) * (rank - 2)))]
    same_dim("the data's channels and the weight's times group", x[1], ctx.dims.mul(w[1], group))
    return [Out(ctx.dtype(0), (x[0], w[0], *_sizes(windows(ctx.dims, ctx.attrs, x[2:], kernel))))]


def _deform_conv(ctx: Infer) -> list[Out]:
    group = _group(ctx, "offset_group")
    results = _conv(ctx)
    x, w, offset = ctx.shape(0), ctx.shape(1), spatial_shape(ctx, 2)
    if w is not None and offset is not None:
        if len(offset) != len(w):
            raise InferError(f"the offsets have {len(offset)} axes, but the weight {len(w)}")
        points = ctx.dims.mul(ctx.dims.product(w[2:]), group)
        same_dim("the offsets' channels", offset[1], ctx.dims.mul(points, len(w) - 2))
    if x is not None and isinstance(x[1], int) and x[1] % group:
        raise InferError(f"{x[1]} channels do not divide into {group} offset groups")
    return results


def _conv_transpose(ctx: Infer) -> list[Out]:
    x, w, rank = _operands(ctx)
    group = _group(ctx)
    if w is None or rank is None:
        return [Out(ctx.dtype(0), None if x is None else (x[0], *(None,) * (len(x) - 1)))]
    kernel = _kernel(ctx, w)
    channels = ctx.dims.mul(w[1], group)
    if isinstance(w[0], int) and w[0] % group:
        raise InferError(f"{w[0]} input channels do not divide into {group} groups")
    vector_of(ctx, 2, "the bias", channels)
    if x is None:
        return [Out(ctx.dtype(0), (None, channels, *(None,) * (rank - 2)))]
    same_dim("the data's and the weight's channels", x[1], w[0])
    slides = transposed_windows(ctx.dims, ctx.attrs, x[2:], kernel)
    return [Out(ctx.dtype(0), (x[0], channels, *(window.size for window in slides)))]


def _causal_conv(ctx: Infer) -> list[Out]:
    x, w = ctx.shape(0), ctx.shape(1)
    for shape, what in ((x, "the input"), (w, "the weight")):
        if shape is not None and len(shape) != 3:
            raise InferError(f"{what} has {len(shape)} axes, expected 3")
    if ctx.attrs.get("activation", "none") not in _ACTIVATIONS:
        raise InferError(f"activation is '{ctx.attrs.get('activation')}', expected one of {', '.join(_ACTIVATIONS)}")
    batch, channels, length = _known(x, 3)
    if w is not None:
        same_dim("the weight's second axis and 1", w[1], 1)
        same_dim("the channels of input and weight", w[0] if channels is None else channels, w[0])
        vector_of(ctx, 2, "the bias", w[0])
        if w[2] == 0:
            raise InferError("the kernel is empty")
    state = None if w is None else ctx.dims.sub(w[2], 1)
    return [Out(ctx.dtype(0), (batch, channels, length)), Out(ctx.dtype(0), (batch, channels, state))]


def _pool(ctx: Infer) -> list[Out]:
    if ctx.attrs.get("p", 1) < 1:
        raise InferError(f"p is {ctx.attrs['p']}, expected at least 1")
    x = spatial_shape(ctx, 0)
    rank = len(ctx.attrs["kernel_shape"]) + 2 if x is None else len(x)
    kernel = per_axis(ctx.attrs, "kernel_shape", rank - 2, 1, least=1)
    shape: PartialShape = (None,) * rank
    if x is not None:
        shape = (x[0], x[1], *_sizes(windows(ctx.dims, ctx.attrs, x[2:], kernel)))
    return [Out(ctx.dtype(0), shape), Out(DType.I64, shape)][: 2 if ctx.op == "onnx.MaxPool" else 1]


def _global_pool(ctx: Infer) -> list[Out]:
    if ctx.attrs.get("p", 1) < 1:
        raise InferError(f"p is {ctx.attrs['p']}, expected at least 1")
    x = spatial_shape(ctx, 0, least=0)
    return [Out(ctx.dtype(0), None if x is None else (x[0], x[1], *(1,) * (len(x) - 2)))]


def _max_unpool(ctx: Infer) -> list[Out]:
    x = spatial_shape(ctx, 0)
    rank = len(ctx.attrs["kernel_shape"]) + 2 if x is None else len(x)
    kernel = per_axis(ctx.attrs, "kernel_shape", rank - 2, 1, least=1)
    if ctx.has(2):
        wanted = ctx.elems(2)
        if wanted is not None and len(wanted) != rank:
            raise InferError(f"output_shape has {len(wanted)} entries, expected {rank}")
        return [Out(ctx.dtype(0), (None,) * rank if wanted is None else wanted)]
    if x is None:
        return [Out(ctx.dtype(0), (None,) * rank)]
    slides = transposed_windows(ctx.dims, ctx.attrs, x[2:], kernel)
    return [Out(ctx.dtype(0), (x[0], x[1], *(window.size for window in slides)))]


OPS: tuple[Op, ...] = (
    Op("onnx.AveragePool", "The mean of each window.", _pool, "pool.average_pool"),
    Op(
        "onnx.CausalConvWithState",
        "Depthwise 1-d convolution over past positions, which hands on its last ones.",
        _causal_conv,
        "conv.causal_conv_with_state",
    ),
    Op("onnx.Conv", "N-d convolution (cross-correlation) with groups, strides and dilations.", _conv, "conv.conv"),
    Op("onnx.ConvTranspose", "The transpose of a convolution.", _conv_transpose, "conv.conv_transpose"),
    Op(
        "onnx.DeformConv",
        "Convolution whose kernel points are moved by offsets, and weighed by a mask.",
        _deform_conv,
        "conv.deform_conv",
    ),
    Op("onnx.GlobalAveragePool", "The mean over all spatial axes.", _global_pool, "pool.global_average_pool"),
    Op("onnx.GlobalLpPool", "The p-norm over all spatial axes.", _global_pool, "pool.global_lp_pool"),
    Op("onnx.GlobalMaxPool", "The maximum over all spatial axes.", _global_pool, "pool.global_max_pool"),
    Op("onnx.LpPool", "The p-norm of each window.", _pool, "pool.lp_pool"),
    Op("onnx.MaxPool", "The maximum of each window, and where it stands.", _pool, "pool.max_pool"),
    Op("onnx.MaxUnpool", "Puts maxima back where they stood, zeros elsewhere.", _max_unpool, "pool.max_unpool"),
)
