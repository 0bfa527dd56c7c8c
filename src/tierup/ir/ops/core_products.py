"""Type rules of the core ops that sum products, and of windows: strict, and every size a dim."""

from __future__ import annotations

import math

from tierup.ir.dims import DimBuilder
from tierup.ir.infer import Infer, InferError, Out, Rule
from tierup.ir.ops.core_demands import demand, indices_shape, known_rank, pads_of, same_dtype
from tierup.ir.types import Dim, DType

_BYTES = (DType.I8, DType.U8)


def _dot_dtype(ctx: Infer) -> DType:
    """Bytes, signed or not on either side, accumulate and answer in i32; everything else in its own dtype."""
    if ctx.dtype(0) in _BYTES and ctx.dtype(1) in _BYTES:
        return DType.I32
    dtype = same_dtype(ctx, (0, 1))
    demand(ctx, dtype, "fi")
    return dtype


def _wide_dtype(ctx: Infer, dtype: DType) -> DType:
    """What a product answers in: f32 where it says so of bf16."""
    if "to" not in ctx.attrs:
        return dtype
    if dtype is not DType.BF16 or ctx.attrs["to"] != DType.F32.code:
        raise InferError(f"a product of {dtype!r} cannot answer in dtype number {ctx.attrs['to']}")
    return DType.F32


def _agree(a: Dim, b: Dim, what: str) -> None:
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise InferError(f"{what}: {a} is not {b}")


def matmul(ctx: Infer) -> list[Out]:
    a, b = known_rank(ctx, 0), known_rank(ctx, 1)
    if len(a) < 2 or len(b) < 2:
        raise InferError("both sides of a matmul must have at least two axes")
    _agree(a[-1], b[-2], "the columns of the left side must be the rows of the right side")
    batch = ctx.broadcast(a[:-2], b[:-2]) or ()
    return [Out(_wide_dtype(ctx, _dot_dtype(ctx)), (*batch, a[-2], b[-1]))]


def matmul_blocks(ctx: Infer) -> list[Out]:
    a, w, scales = (known_rank(ctx, number) for number in range(3))
    if len(a) < 2 or len(w) != 2 or len(scales) != 2:
        raise InferError("a scaled product takes at least two axes by two by two")
    block, size = int(ctx.attrs["block"]), w[0]
    if ctx.dtype(0) is not DType.F32 or ctx.dtype(2) is not DType.F32 or ctx.dtype(1) not in (*_BYTES, DType.I16):
        raise InferError("a scaled product is of f32 by small integers with scales of f32")
    if not isinstance(size, int) or block < 1 or size % block:
        raise InferError(f"{size} rows are no whole blocks of {block}")
    _agree(a[-1], size, "the columns of the left side must be the rows of the right side")
    _agree(scales[0], size // block, "each block of rows must have a row of scales")
    _agree(scales[1], w[1], "each column must have a scale")
    return [Out(DType.F32, (*a[:-1], w[1]))]


def matmul_scaled(ctx: Infer) -> list[Out]:
    a, w, factors = (known_rank(ctx, number) for number in range(3))
    if len(a) < 2 or len(w) != 2 or len(factors) != 1:
        raise InferError("a product with a factor for each row takes at least two axes by two by one")
    dtype = same_dtype(ctx, (0, 1, 2))
    demand(ctx, dtype, "f")
    _agree(a[-1], w[0], "the columns of the left side must be the rows of the right side")
    _agree(factors[0], w[0], "each row of the right side must have a factor")
    return [Out(dtype, (*a[:-1], w[1]))]


def _window_attrs(ctx: Infer, spatial: int, *names: str) -> list[tuple[int, ...]]:
    rows = [tuple(ctx.attrs[name]) for name in names]
    for name, row in zip(names, rows, strict=True):
        if len(row) != spatial or any(number < (0 if name == "output_padding" else 1) for number in row):
            raise InferError(f"{name} {row} does not fit {spatial} spatial axes")
    return rows


def window(dims: DimBuilder, size: Dim, kernel: Dim, stride: int, dilation: int, pads: tuple[Dim, Dim]) -> Dim:
    """Places of a window on a padded axis: (begin + size + end - (kernel - 1) * dilation - 1) // stride + 1."""
    extent = dims.add(dims.mul(dims.sub(kernel, 1), dilation), 1)
    room = dims.sub(dims.sum((pads[0], size, pads[1])), extent)
    return dims.add(dims.floordiv(room, stride), 1)


def conv(ctx: Infer) -> list[Out]:
    x, w = known_rank(ctx, 0), known_rank(ctx, 1)
    spatial, group = len(x) - 2, ctx.attrs["group"]
    if spatial < 1 or len(w) != len(x) or group < 1:
        raise InferError(f"a convolution of rank {len(x)} by rank {len(w)} in {group} groups is not possible")
    _agree(x[1], ctx.dims.mul(w[1], group), "channels and the kernel's channels times groups must agree")
    strides, dilations = _window_attrs(ctx, spatial, "strides", "dilations")
    pads = pads_of(ctx, 2, spatial)
    sizes = (
        window(ctx.dims, x[2 + i], w[2 + i], strides[i], dilations[i], (pads[i], pads[spatial + i]))
        for i in range(spatial)
    )
    return [Out(_conv_dtype(ctx), (x[0], w[0], *sizes))]


def _conv_dtype(ctx: Infer) -> DType:
    """As a product's. What is around the data stands for zero: another number than 0 only around bytes."""
    dtype = _dot_dtype(ctx)
    if ctx.attrs.get("fill", 0) and dtype is not DType.I32:
        raise InferError("only a convolution of bytes takes another number than 0 for its padding")
    return _wide_dtype(ctx, dtype)


def conv_last(ctx: Infer) -> list[Out]:
    x, w = known_rank(ctx, 0), known_rank(ctx, 1)
    spatial, group = len(x) - 2, ctx.attrs["group"]
    if spatial < 1 or len(w) != 2 or group < 1:
        raise InferError(f"a convolution of rank {len(x)} by rank {len(w)} in {group} groups is not possible")
    kernel, strides, dilations = _window_attrs(ctx, spatial, "kernel_shape", "strides", "dilations")
    terms = ctx.dims.mul(w[0], group)
    _agree(ctx.dims.mul(x[-1], math.prod(kernel)), terms, "places times channels and rows of w times groups must agree")
    pads = pads_of(ctx, 2, spatial)
    sizes = (
        window(ctx.dims, x[1 + i], kernel[i], strides[i], dilations[i], (pads[i], pads[spatial + i]))
        for i in range(spatial)
    )
    return [Out(_conv_dtype(ctx), (x[0], *sizes, w[1]))]


def conv_transpose(ctx: Infer) -> list[Out]:
    x, w = known_rank(ctx, 0), known_rank(ctx, 1)
    spatial, group, dims = len(x) - 2, ctx.attrs["group"], ctx.dims
    if spatial < 1 or len(w) != len(x) or group < 1:
        raise InferError(f"a convolution of rank {len(x)} by rank {len(w)} in {group} groups is not possible")
    _agree(x[1], w[0], "channels and the kernel's channels must agree")
    strides, dilations, extra = _window_attrs(ctx, spatial, "strides", "dilations", "output_padding")
    pads = pads_of(ctx, 2, spatial)
    sizes: list[Dim] = []
    for i in range(spatial):
        whole = dims.mul(dims.sub(x[2 + i], 1), strides[i])
        whole = dims.sum((whole, dims.mul(dims.sub(w[2 + i], 1), dilations[i]), 1 + extra[i]))
        sizes.append(dims.sub(whole, dims.add(pads[i], pads[spatial + i])))
    return [Out(_dot_dtype(ctx), (x[0], dims.mul(w[1], group), *sizes))]


def pool(ctx: Infer) -> list[Out]:
    x = known_rank(ctx, 0)
    spatial = len(x) - 2
    if spatial < 1:
        raise InferError("a pool needs batch, channels and at least one more axis")
    demand(ctx, ctx.dtype(0), "fi")
    kernel, strides, dilations = _window_attrs(ctx, spatial, "kernel_shape", "strides", "dilations")
    pads = pads_of(ctx, 1, spatial)
    sizes = tuple(
        window(ctx.dims, x[2 + i], kernel[i], strides[i], dilations[i], (pads[i], pads[spatial + i]))
        for i in range(spatial)
    )
    values = Out(ctx.dtype(0), (*x[:2], *sizes))
    return [values] if ctx.op == "core.pool_sum" else [values, Out(DType.I64, (*x[:2], *sizes))]


def recurrent(gates: int, weights: int, states: tuple[int, ...]) -> Rule:
    """Inputs: gates[T, B, gates * H], recurrent weights[H, gates * H] at `weights`, states[B, H]; lengths[B] last."""

    def rule(ctx: Infer) -> list[Out]:
        x, r, lengths = known_rank(ctx, 0), known_rank(ctx, weights), indices_shape(ctx, len(ctx.inputs) - 1)
        dtype = same_dtype(ctx, range(len(ctx.inputs) - 1))
        if len(x) != 3 or len(r) != 2 or len(lengths) != 1 or any(len(known_rank(ctx, i)) != 2 for i in states):
            raise InferError("the ranks must be 3 for the gates, 2 for weights and states, 1 for the lengths")
        hidden = r[0]
        _agree(x[2], ctx.dims.mul(hidden, gates), f"the gates must have {gates} times the hidden size")
        _agree(r[1], ctx.dims.mul(hidden, gates), f"the weights must have {gates} times the hidden size")
        state = Out(dtype, (x[1], hidden))
        return [Out(dtype, (*x[:2], hidden)), *(state for _ in states)]

    return rule
