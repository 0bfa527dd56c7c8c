"""Rows of the elementwise ops: arithmetic, comparisons, logic, activations, casts.

Shapes broadcast as in NumPy. Where small integer tensors are known as dims, so are the results of integer arithmetic
on them: this is how sizes that a model computes for Reshape and Expand stay known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tierup.ir.dims import DimBuilder, DimError
from tierup.ir.infer import CONTENT_LIMIT, Infer, InferError, Out, PartialShape, Rule
from tierup.ir.ops.row import Op
from tierup.ir.types import Dim, DType, Shape, TensorType, Type, dtype_from_code

Content = tuple[Dim, ...]
Combine = Callable[..., Dim | None]  # (dims, one element of each input) -> the element of the result, or unknown


def attr_dtype(ctx: Infer, name: str, default: DType | None = None) -> DType:
    """The dtype that an integer attribute names; `default` where it is absent."""
    code = ctx.attrs.get(name)
    dtype = default if code is None else dtype_from_code(code) if isinstance(code, int) else None
    if dtype is None:
        raise InferError(f"attribute {name} must be the number of a dtype, but is {code}")
    return dtype


def agree(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of two tensors that must have one shape; plain numbers are kept before syms."""
    if a is None or b is None:
        return a if b is None else b
    if len(a) != len(b) or any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b, strict=True)):
        raise InferError(f"shapes {list(a)} and {list(b)} should be equal")
    return tuple(x if isinstance(x, int) else y for x, y in zip(a, b, strict=True))


def check_broadcasts_to(shape: Shape | None, target: Shape | None, what: str) -> None:
    """Refuse a shape that cannot be stretched to `target`, as far as sizes are known."""
    if shape is None or target is None:
        return
    pairs = zip(reversed(shape), reversed(target), strict=False)
    if len(shape) > len(target) or any(isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs):
        raise InferError(f"{what} of shape {list(shape)} does not broadcast to {list(target)}")


def holds(value: Dim, dtype: DType) -> bool:
    """Whether a dim is surely held by `dtype` as it is: syms are sizes, which fit 32 and 64 bits, and truth values."""
    if not isinstance(value, int):
        return dtype in (DType.I32, DType.I64, DType.BOOL)
    if dtype is DType.BOOL:
        return value in (0, 1)
    bits = dtype.bits - 1 if dtype.is_signed else dtype.bits
    return (-(1 << bits) if dtype.is_signed else 0) <= value < (1 << bits)


def combined(
    ctx: Infer, combine: Combine, dtype: DType, shape: PartialShape | None, inputs: int | None = None
) -> Content | None:
    """`combine` over the known elements of all inputs, or the first `inputs`, broadcast.

    None where one is unknown or a result overflows.
    """
    if shape is None or len(shape) > 1 or not (dtype.is_integer or dtype is DType.BOOL):
        return None
    contents = [ctx.content(i) for i in range(len(ctx.inputs) if inputs is None else inputs) if ctx.has(i)]
    known = [content for content in contents if content is not None]
    count = next((len(content) for content in known if len(content) != 1), 1)
    if len(known) != len(contents) or count > CONTENT_LIMIT or any(len(c) not in (1, count) for c in known):
        return None
    stretched = [content if len(content) == count else content * count for content in known]
    result: list[Dim] = []
    try:
        for items in zip(*stretched, strict=True):
            value = combine(ctx.dims, *items)
            if value is None or not holds(value, dtype):
                return None
            result.append(value)
    except DimError:  # numbers that overflow or divide by zero: the values exist, but are no sizes
        return None
    return tuple(result)


def elementwise(combine: Combine | None = None, result: DType | None = None) -> Rule:
    """All inputs broadcast; the dtype is the first input's, or `result`."""

    def rule(ctx: Infer) -> Sequence[Out | Type]:
        shape = ctx.broadcast(*(ctx.shape(i) for i in range(len(ctx.inputs))))
        dtype = result or ctx.dtype(0)
        return [Out(dtype, shape, combined(ctx, combine, dtype, shape) if combine else None)]

    return rule


def identity(ctx: Infer) -> Sequence[Out | Type]:
    type = ctx.inputs[0] if ctx.inputs else None
    if type is None:
        raise InferError("input 0 is missing")
    return [Out(type.dtype, type.shape, ctx.content(0))] if isinstance(type, TensorType) else [type]


def _converted(ctx: Infer, dtype: DType) -> Sequence[Out | Type]:
    def combine(dims: DimBuilder, a: Dim) -> Dim:
        return _not(dims, _eq(dims, a, 0)) if dtype is DType.BOOL else a

    shape = ctx.shape(0)
    return [Out(dtype, shape, combined(ctx, combine, dtype, shape, inputs=1))]


def cast(ctx: Infer) -> Sequence[Out | Type]:
    return _converted(ctx, attr_dtype(ctx, "to"))


def cast_like(ctx: Infer) -> Sequence[Out | Type]:
    return _converted(ctx, ctx.dtype(1))


def bit_cast(ctx: Infer) -> Sequence[Out | Type]:
    source, to = ctx.dtype(0), attr_dtype(ctx, "to")
    if DType.STR in (source, to) or source.bits != to.bits:
        raise InferError(f"{source!r} cannot be read as {to!r}: the types must have equally many bits")
    return [Out(to, ctx.shape(0))]


def clip(ctx: Infer) -> Sequence[Out | Type]:
    def combine(dims: DimBuilder, x: Dim, *bounds: Dim) -> Dim | None:
        if len(bounds) == 1:
            return dims.max(x, bounds[0]) if ctx.has(1) else dims.min(x, bounds[0])
        return dims.min(dims.max(x, bounds[0]), bounds[1]) if bounds else x

    for index, name in ((1, "min"), (2, "max")):
        if ctx.has(index):
            check_broadcasts_to(ctx.shape(index), (1,), f"the bound {name}")
    shape = ctx.shape(0)
    return [Out(ctx.dtype(0), shape, combined(ctx, combine, ctx.dtype(0), shape))]


def prelu(ctx: Infer) -> Sequence[Out | Type]:
    check_broadcasts_to(ctx.shape(1), ctx.shape(0), "the slope")
    return [Out(ctx.dtype(0), ctx.shape(0))]


def swiglu(ctx: Infer) -> Sequence[Out | Type]:
    return [Out(ctx.dtype(0), agree(ctx.shape(0), ctx.shape(1)))]


def where(ctx: Infer) -> Sequence[Out | Type]:
    shape = ctx.broadcast(ctx.shape(0), ctx.shape(1), ctx.shape(2))
    return [Out(ctx.dtype(1), shape, combined(ctx, DimBuilder.select, ctx.dtype(1), shape))]


def modulo(ctx: Infer) -> Sequence[Out | Type]:
    return elementwise(_remainder if ctx.attrs["fmod"] else _mod)(ctx)


def _eq(dims: DimBuilder, a: Dim, b: Dim) -> Dim:
    return 1 if a == b else dims.emit("eq", a, b)


def _differ(dims: DimBuilder, a: Dim, b: Dim) -> Dim:
    return _not(dims, _eq(dims, a, b))


def _lt(dims: DimBuilder, a: Dim, b: Dim) -> Dim:
    return 0 if a == b else dims.emit("lt", a, b)


def _not_below(dims: DimBuilder, a: Dim, b: Dim) -> Dim:
    return _not(dims, _lt(dims, a, b))


def _not(dims: DimBuilder, a: Dim) -> Dim:
    return dims.sub(1, a)


def _div(dims: DimBuilder, a: Dim, b: Dim) -> Dim | None:
    return None if b == 0 else dims.truncdiv(a, b)


def _mod(dims: DimBuilder, a: Dim, b: Dim) -> Dim | None:
    return None if b == 0 else dims.mod(a, b)


def _remainder(dims: DimBuilder, a: Dim, b: Dim) -> Dim | None:
    # a - trunc(a / b) · b
    return None if b == 0 else dims.sub(a, dims.mul(dims.truncdiv(a, b), b))


def _least(dims: DimBuilder, first: Dim, *rest: Dim) -> Dim:
    for item in rest:
        first = dims.min(first, item)
    return first


def _most(dims: DimBuilder, first: Dim, *rest: Dim) -> Dim:
    for item in rest:
        first = dims.max(first, item)
    return first


_SAME = elementwise()
_LOGIC = DType.BOOL


def _rows(rule: Rule, reference: str, docs: Mapping[str, str]) -> list[Op]:
    return [Op(f"onnx.{name}", doc, rule, f"elementwise.{reference}") for name, doc in docs.items()]


OPS: tuple[Op, ...] = (
    *_rows(_SAME, "unary", {
        "Acos": "arc cosine",
        "Acosh": "inverse hyperbolic cosine",
        "Asin": "arc sine",
        "Asinh": "inverse hyperbolic sine",
        "Atan": "arc tangent",
        "Atanh": "inverse hyperbolic tangent",
        "Ceil": "the next integer not below",
        "Cos": "cosine",
        "Cosh": "hyperbolic cosine",
        "Erf": "the error function",
        "Exp": "e to the power of x",
        "Floor": "the next integer not above",
        "HardSwish": "x · max(0, min(1, x/6 + 1/2))",
        "Log": "natural logarithm",
        "Mish": "x · tanh(softplus(x))",
        "Reciprocal": "1 / x",
        "Round": "the nearest integer, halves to even",
        "Sigmoid": "1 / (1 + exp(-x))",
        "Sign": "-1, 0 or 1",
        "Sin": "sine",
        "Sinh": "hyperbolic sine",
        "Softplus": "log(1 + exp(x))",
        "Softsign": "x / (1 + |x|)",
        "Sqrt": "square root",
        "Tan": "tangent",
        "Tanh": "hyperbolic tangent",
    }),
    *_rows(_SAME, "activation", {
        "Celu": "max(0, x) + min(0, alpha · (exp(x/alpha) - 1))",
        "Elu": "x above 0, else alpha · (exp(x) - 1)",
        "Gelu": "x · Φ(x), with erf or its tanh approximation",
        "HardSigmoid": "max(0, min(1, alpha · x + beta))",
        "LeakyRelu": "x, times alpha below 0",
        "Selu": "gamma · (x above 0, else alpha · (exp(x) - 1))",
        "Shrink": "0 within ±lambd, else moved towards 0 by bias",
        "Swish": "x · sigmoid(alpha · x)",
        "ThresholdedRelu": "x above alpha, else 0",
    }),
    *_rows(_SAME, "binary", {
        "BitwiseAnd": "bits set in both",
        "BitwiseOr": "bits set in either",
        "BitwiseXor": "bits that differ",
    }),
    *_rows(_SAME, "variadic", {"Mean": "the mean of all inputs", "Sum": "the sum of all inputs"}),
    Op("onnx.Abs", "absolute value", elementwise(lambda d, a: d.emit("abs", a)), "elementwise.unary"),
    Op("onnx.Add", "a + b", elementwise(DimBuilder.add), "elementwise.binary"),
    Op("onnx.And", "both are true", elementwise(DimBuilder.mul, _LOGIC), "elementwise.binary"),
    Op("onnx.BitCast", "the same bits read as another dtype", bit_cast, "cast.bit_cast"),
    Op("onnx.BitShift", "bits moved left or right by y places", _SAME, "elementwise.bit_shift"),
    Op("onnx.BitwiseNot", "all bits flipped", elementwise(lambda d, a: d.sub(-1, a)), "elementwise.unary"),
    Op("onnx.Cast", "the same numbers in another dtype", cast, "cast.cast"),
    Op("onnx.CastLike", "the same numbers in the dtype of another tensor", cast_like, "cast.cast_like"),
    Op("onnx.Clip", "min(max, max(min, x))", clip, "elementwise.clip"),
    Op("onnx.Div", "a / b; integers are cut towards zero", elementwise(_div), "elementwise.binary"),
    Op("onnx.Equal", "a = b", elementwise(_eq, _LOGIC), "elementwise.compare"),
    Op("onnx.Greater", "a > b", elementwise(lambda d, a, b: _lt(d, b, a), _LOGIC), "elementwise.compare"),
    Op("onnx.GreaterOrEqual", "a ≥ b", elementwise(_not_below, _LOGIC), "elementwise.compare"),
    Op("onnx.Identity", "the value itself", identity, "elementwise.identity"),
    Op("onnx.IsInf", "whether x is infinite", elementwise(None, _LOGIC), "elementwise.is_inf"),
    Op("onnx.IsNaN", "whether x is not a number", elementwise(None, _LOGIC), "elementwise.is_nan"),
    Op("onnx.Less", "a < b", elementwise(_lt, _LOGIC), "elementwise.compare"),
    Op("onnx.LessOrEqual", "a ≤ b", elementwise(lambda d, a, b: _not_below(d, b, a), _LOGIC), "elementwise.compare"),
    Op("onnx.Max", "the largest of all inputs", elementwise(_most), "elementwise.variadic"),
    Op("onnx.Min", "the smallest of all inputs", elementwise(_least), "elementwise.variadic"),
    Op("onnx.Mod", "the remainder of a / b", modulo, "elementwise.modulo"),
    Op("onnx.Mul", "a · b", elementwise(DimBuilder.mul), "elementwise.binary"),
    Op("onnx.Neg", "-x", elementwise(lambda d, a: d.sub(0, a)), "elementwise.unary"),
    Op("onnx.Not", "true where x is false", elementwise(_not, _LOGIC), "elementwise.unary"),
    Op("onnx.Or", "either is true", elementwise(DimBuilder.max, _LOGIC), "elementwise.binary"),
    Op("onnx.PRelu", "x, times a slope below 0", prelu, "elementwise.binary"),
    Op("onnx.Pow", "x to the power of y", _SAME, "elementwise.power"),
    Op("onnx.Relu", "max(x, 0)", elementwise(lambda d, a: d.max(a, 0)), "elementwise.unary"),
    Op("onnx.Sub", "a - b", elementwise(DimBuilder.sub), "elementwise.binary"),
    Op("onnx.SwiGLU", "a · sigmoid(alpha · a) · b", swiglu, "elementwise.swiglu"),
    Op("onnx.Where", "x where the condition holds, else y", where, "elementwise.where"),
    Op("onnx.Xor", "exactly one is true", elementwise(_differ, _LOGIC), "elementwise.binary"),
)  # fmt: skip
