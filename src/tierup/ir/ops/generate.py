"""Rows of the ops that make tensors from sizes, numbers or chance."""

from __future__ import annotations

import math

from tierup.ir.graph import Const, static_type
from tierup.ir.infer import CONTENT_LIMIT, Infer, InferError, Out, PartialShape
from tierup.ir.ops.elementwise import Content, attr_dtype, holds
from tierup.ir.ops.row import Op
from tierup.ir.types import Array, Dim, DType, TensorType

_MAX_RANK = 64  # NumPy's; a shape tensor that is longer describes no array


def _numeric(ctx: Infer, name: str, default: DType | None = None) -> DType:
    dtype = attr_dtype(ctx, name, default)
    if dtype is DType.STR or dtype.is_complex:
        raise InferError(f"attribute {name} must name a numeric dtype, but names {dtype!r}")
    return dtype


def _floating(ctx: Infer, name: str, default: DType | None = None) -> DType:
    dtype = attr_dtype(ctx, name, default)
    if not dtype.is_float:
        raise InferError(f"attribute {name} must name a float dtype, but names {dtype!r}")
    return dtype


def _scalar(ctx: Infer, index: int) -> Dim | None:
    """The integer that input `index` holds: a number, or a sym that reads it."""
    elems = ctx.elems(index)
    if elems is None:
        return None
    if len(elems) != 1:
        raise InferError(f"input {index} must hold one number, but holds {len(elems)}")
    return elems[0]


def bernoulli(ctx: Infer) -> list[Out]:
    return [Out(_numeric(ctx, "dtype", ctx.dtype(0)), ctx.shape(0))]


def random_like(ctx: Infer) -> list[Out]:
    return [Out(_floating(ctx, "dtype", ctx.dtype(0)), ctx.shape(0))]


def random_shaped(ctx: Infer) -> list[Out]:
    shape = ctx.attrs["shape"]
    if len(shape) > _MAX_RANK:
        raise InferError(f"attribute shape has {len(shape)} sizes, more than {_MAX_RANK}")
    return [Out(_floating(ctx, "dtype"), shape)]


def multinomial(ctx: Infer) -> list[Out]:
    shape, count = ctx.shape(0), ctx.attrs["sample_size"]
    if shape is not None and len(shape) != 2:
        raise InferError(f"input 0 must have rank 2, but has {len(shape)}")
    if count < 1:
        raise InferError(f"attribute sample_size must be above 0, but is {count}")
    dtype = attr_dtype(ctx, "dtype")
    if dtype not in (DType.I32, DType.I64):
        raise InferError(f"attribute dtype must name i32 or i64, but names {dtype!r}")
    return [Out(dtype, (None if shape is None else shape[0], count))]


def constant(ctx: Infer) -> list[Out]:
    if len(ctx.attrs) != 1:
        raise InferError(f"a constant has one value, but {len(ctx.attrs)} attributes are given")
    ((name, value),) = ctx.attrs.items()
    if isinstance(value, Const):
        return [_constant(static_type(value.array), value.array)]
    dtype = {"int": DType.I64, "float": DType.F32, "string": DType.STR}.get(name.removeprefix("value_").rstrip("s"))
    if dtype is None:
        raise InferError(f"attribute {name} is no dense value")
    items = value if isinstance(value, tuple) else (value,)
    content = items if dtype is DType.I64 and len(items) <= CONTENT_LIMIT else None
    return [Out(dtype, (len(items),) if name.endswith("s") else (), content)]  # type: ignore[arg-type]  # I64: ints


def _constant(type: TensorType, array: Array) -> Out:
    small = array.ndim <= 1 and array.size <= CONTENT_LIMIT and array.dtype.kind in "iub"
    return Out(type.dtype, type.shape, tuple(int(v) for v in array.reshape(-1)) if small else None)


def constant_of_shape(ctx: Infer) -> list[Out]:
    value = ctx.attrs.get("value")
    if value is not None and value.array.size != 1:
        raise InferError(f"attribute value must hold one number, but holds {value.array.size}")
    dtype = DType.F32 if value is None else static_type(value.array).dtype
    shape = _described_shape(ctx)
    content: Content | None = None
    if shape is not None and len(shape) <= 1 and (dtype.is_integer or dtype is DType.BOOL):
        count = shape[0] if shape else 1
        if isinstance(count, int) and 0 <= count <= CONTENT_LIMIT:
            content = (int(value.array.item()),) * count
    return [Out(dtype, shape, content)]


def _described_shape(ctx: Infer) -> PartialShape | None:
    """The shape that input 0 holds."""
    elems, source = ctx.elems(0), ctx.shape(0)
    if source is not None and len(source) != 1:
        raise InferError(f"input 0 must have rank 1, but has {len(source)}")
    return elems


def eye_like(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if shape is not None and len(shape) != 2:
        raise InferError(f"input 0 must have rank 2, but has {len(shape)}")
    return [Out(_numeric(ctx, "dtype", ctx.dtype(0)), shape or (None, None))]


def range_count(start: float, limit: float, delta: float) -> int:
    """How many numbers start, start + delta, ... lie before limit."""
    if delta == 0:
        raise ValueError("a range cannot advance by 0")
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        return max(-((start - limit) // delta), 0)
    steps = (limit - start) / delta
    if not abs(steps) < 1 << 62:  # NaN too
        raise ValueError(f"a range from {start} to {limit} by {delta} has no end")
    return max(math.ceil(steps), 0)


def range_(ctx: Infer) -> list[Out]:
    dtype = ctx.dtype(0)
    if not dtype.is_integer:
        return [Out(dtype, (_float_count(ctx),))]
    start, limit, delta = (_scalar(ctx, index) for index in range(3))
    if start is None or limit is None or delta is None:
        return [Out(dtype, (None,))]
    if delta == 0:
        raise InferError("a range cannot advance by 0")
    dims = ctx.dims
    count = dims.max(dims.ceildiv(dims.sub(limit, start), delta), 0)
    content: Content | None = None
    if isinstance(count, int) and count <= CONTENT_LIMIT:
        content = tuple(dims.add(start, dims.mul(delta, i)) for i in range(count))
        content = content if all(holds(item, dtype) for item in content) else None
    return [Out(dtype, (count,), content)]


def _float_count(ctx: Infer) -> int | None:
    values = [ctx.constant(index) for index in range(3)]
    numbers = [float(value.reshape(-1)[0]) for value in values if value is not None and value.size == 1]
    if len(numbers) != 3:
        return None
    try:
        return range_count(*numbers)
    except ValueError as error:
        raise InferError(str(error)) from error


def window(ctx: Infer) -> list[Out]:
    return [Out(_numeric(ctx, "output_datatype"), (_scalar(ctx, 0),))]


def mel_weight_matrix(ctx: Infer) -> list[Out]:
    bins, length = _scalar(ctx, 0), _scalar(ctx, 1)
    rows = None if length is None else ctx.dims.add(ctx.dims.floordiv(length, 2), 1)
    return [Out(_numeric(ctx, "output_datatype"), (rows, bins))]


OPS: tuple[Op, ...] = (
    Op("onnx.Bernoulli", "0 or 1, drawn with the given probabilities", bernoulli, "generate.bernoulli", pure=False),
    Op("onnx.BlackmanWindow", "a Blackman window of the given length", window, "generate.blackman_window"),
    Op("onnx.Constant", "a tensor that stands in the model", constant, "generate.constant"),
    Op("onnx.ConstantOfShape", "one number in every place of a shape", constant_of_shape, "generate.constant_of_shape"),
    Op("onnx.EyeLike", "ones on a diagonal, in the shape of a matrix", eye_like, "generate.eye_like"),
    Op("onnx.HammingWindow", "a Hamming window of the given length", window, "generate.hamming_window"),
    Op("onnx.HannWindow", "a Hann window of the given length", window, "generate.hann_window"),
    Op(
        "onnx.MelWeightMatrix",
        "weights that gather DFT bins into mel bands",
        mel_weight_matrix,
        "generate.mel_weight_matrix",
    ),
    Op("onnx.Multinomial", "classes drawn from log-probabilities", multinomial, "generate.multinomial", pure=False),
    Op("onnx.RandomNormal", "normal random numbers", random_shaped, "generate.random_normal", pure=False),
    Op(
        "onnx.RandomNormalLike",
        "normal random numbers in the shape of a tensor",
        random_like,
        "generate.random_normal",
        pure=False,
    ),
    Op("onnx.RandomUniform", "uniform random numbers", random_shaped, "generate.random_uniform", pure=False),
    Op(
        "onnx.RandomUniformLike",
        "uniform random numbers in the shape of a tensor",
        random_like,
        "generate.random_uniform",
        pure=False,
    ),
    Op("onnx.Range", "start, start + delta, ... before limit", range_, "generate.range_"),
)
