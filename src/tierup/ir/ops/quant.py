"""Quantised arithmetic: between real numbers and small integers, and products that stay in integers."""

from __future__ import annotations

from msgspec.structs import replace

from tierup.ir.infer import Infer, InferError, Out, PartialShape
from tierup.ir.ops import lookup
from tierup.ir.ops.matrix import matmul_shape
from tierup.ir.ops.row import Op
from tierup.ir.types import DType, dtype_from_code


def with_inputs(ctx: Infer, *indices: int) -> Infer:
    """The same node with only the inputs `indices`, in this order; those that are not given stay absent."""
    given = [index if ctx.has(index) else None for index in indices]
    return replace(
        ctx,
        inputs=tuple(None if i is None else ctx.inputs[i] for i in given),
        ids=tuple(None if i is None else ctx.ids[i] for i in given),
        contents=tuple(None if i is None else ctx.contents[i] for i in given),
    )


def shape_as(ctx: Infer, op: str, *indices: int, version: int | None = None) -> PartialShape | None:
    """The shape of the first result that `op` would have on the inputs `indices` of this node."""
    row = lookup(op)
    if row is None:
        raise InferError(f"there is no op {op}")
    version = ctx.version if version is None else version
    result = row.infer(replace(with_inputs(ctx, *indices), op=op, version=version, wanted=(True,)))[0]
    assert isinstance(result, Out)
    return result.shape


def _output_dtype(ctx: Infer) -> DType | None:
    code = ctx.attrs.get("output_dtype", 0)
    if not code:
        return None
    dtype = dtype_from_code(code)
    if dtype is None:
        raise InferError(f"output_dtype {code} is no element type")
    return dtype


def _check_granularity(ctx: Infer) -> None:
    """A scale is one number, one number for each slice of an axis, or one for each block of it."""
    shape, scale = ctx.shape(0), ctx.shape(1)
    if shape is None or scale is None or all(dim == 1 for dim in scale):
        return
    block = ctx.attrs.get("block_size", 0)
    if block < 0:
        raise InferError(f"block_size must not be negative, but is {block}")
    if len(scale) != (len(shape) if block else 1):
        raise InferError(f"scales of rank {len(scale)} do not fit an input of rank {len(shape)} (block_size {block})")
    if len(shape) > 1:
        ctx.axis(ctx.attrs.get("axis", 1), len(shape))


def dequantize(ctx: Infer) -> list[Out]:
    _check_granularity(ctx)
    dtype = _output_dtype(ctx) or ctx.dtype(1)
    if dtype is DType.F8E8M0:
        raise InferError("DequantizeLinear with scales of type f8e8m0 needs an output_dtype")
    return [Out(dtype, ctx.shape(0))]


def quantize(ctx: Infer) -> list[Out]:
    _check_granularity(ctx)
    stated = _output_dtype(ctx)
    given = ctx.dtype(2) if ctx.has(2) else None
    if stated is not None and given is not None and stated is not given:
        raise InferError(f"output_dtype says {stated!r}, but the zero point is {given!r}")
    return [Out(stated or given or DType.U8, ctx.shape(0))]


def dynamic_quantize(ctx: Infer) -> list[Out]:
    return [Out(DType.U8, ctx.shape(0)), Out(DType.F32, ()), Out(DType.U8, ())]


def matmul_integer(ctx: Infer) -> list[Out]:
    return [Out(DType.I32, matmul_shape(ctx, ctx.shape(0), ctx.shape(1)))]


def qlinear_matmul(ctx: Infer) -> list[Out]:
    return [Out(ctx.dtype(7), matmul_shape(ctx, ctx.shape(0), ctx.shape(3)))]


def conv_integer(ctx: Infer) -> list[Out]:
    return [Out(DType.I32, shape_as(ctx, "onnx.Conv", 0, 1))]


def qlinear_conv(ctx: Infer) -> list[Out]:
    return [Out(ctx.dtype(7), shape_as(ctx, "onnx.Conv", 0, 3, 8))]


OPS = (
    Op("onnx.ConvInteger", "the convolution of 8-bit tensors in 32 bits", conv_integer, "quant.conv_integer"),
    Op("onnx.DequantizeLinear", "(x - zero point) · scale", dequantize, "quant.dequantize_linear"),
    Op("onnx.DynamicQuantizeLinear", "to u8, with the scale and zero point that fit the input's range",
       dynamic_quantize, "quant.dynamic_quantize_linear"),
    Op("onnx.MatMulInteger", "the product of 8-bit matrices in 32 bits", matmul_integer, "quant.matmul_integer"),
    Op("onnx.QLinearConv", "the convolution of quantised tensors, quantised again",
       qlinear_conv, "quant.qlinear_conv"),
    Op("onnx.QLinearMatMul", "the product of quantised matrices, quantised again",
       qlinear_matmul, "quant.qlinear_matmul"),
    Op("onnx.QuantizeLinear", "saturate(round(x / scale) + zero point)", quantize, "quant.quantize_linear"),
)  # fmt: skip
