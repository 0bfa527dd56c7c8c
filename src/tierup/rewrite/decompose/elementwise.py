"""Elementwise ops: most are one core op; activations are a few, in f32 or better."""

from __future__ import annotations

import math
from collections.abc import Callable

from tierup.ir.graph import Attrs, Node, ValueId
from tierup.ir.types import DType, dtype_from_code
from tierup.rewrite.decompose.core import Core, Declined, Decomposition

Formula = Callable[[Core, ValueId, Attrs], ValueId]


def _same(name: str) -> Decomposition:
    """The core op of this name on the same inputs."""
    return lambda b, n: b.op(name, *_plain_inputs(b, n))


def _swapped(name: str) -> Decomposition:
    def decomposition(b: Core, n: Node) -> ValueId:
        left, right = _plain_inputs(b, n)
        return b.op(name, right, left)

    return decomposition


def _plain_inputs(b: Core, n: Node) -> list[ValueId]:
    """All inputs; before opset 7 an attribute could ask for another kind of broadcasting."""
    if n.attrs.get("broadcast"):
        raise Declined("it broadcasts as before opset 7")
    return [b.input(n, i) for i in range(len(n.inputs))]


def _formula(formula: Formula) -> Decomposition:
    """A function of one tensor, computed in f32 or better and rounded once."""

    def decomposition(b: Core, n: Node) -> ValueId:
        x = b.input(n)
        return b.cast(formula(b, b.wide(x), n.attrs), b.dtype(x))

    return decomposition


def _float_formula(formula: Formula) -> Decomposition:
    """As `_formula`; integers go through f64 and are cut towards zero."""

    def decomposition(b: Core, n: Node) -> ValueId:
        x = b.input(n)
        wide = b.cast(x, DType.F64) if b.dtype(x).is_integer else b.wide(x)
        return b.cast(formula(b, wide, n.attrs), b.dtype(x))

    return decomposition


def sigmoid(b: Core, x: ValueId) -> ValueId:
    """e = exp(-|x|): 1 / (1 + e) from 0 on, else e / (1 + e); nothing overflows or cancels."""
    e, one, zero = b.exp(b.neg(b.abs(x))), b.like(1, x), b.like(0, x)
    return b.div(b.select(b.le(zero, x), one, e), b.add(one, e))


def softplus(b: Core, x: ValueId) -> ValueId:
    """max(x, 0) + log1p(exp(-|x|))"""
    return b.add(b.max(x, b.like(0, x)), b.op("log1p", b.exp(b.neg(b.abs(x)))))


def gelu(b: Core, x: ValueId) -> ValueId:
    """x/2 · (1 + erf(x/√2))"""
    half, one = b.like(0.5, x), b.like(1, x)
    return b.mul(b.mul(half, x), b.add(one, b.op("erf", b.mul(x, b.like(math.sqrt(0.5), x)))))


def gelu_tanh(b: Core, x: ValueId) -> ValueId:
    """x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))"""
    cube = b.mul(b.mul(b.mul(b.like(0.044715, x), x), x), x)
    inner = b.mul(b.like(math.sqrt(2 / math.pi), x), b.add(x, cube))
    return b.mul(b.mul(b.like(0.5, x), x), b.add(b.like(1, x), b.op("tanh", inner)))


def relu(b: Core, x: ValueId) -> ValueId:
    """max(x, 0)"""
    return b.max(x, b.like(0, x))


def leaky(b: Core, x: ValueId, slope: ValueId) -> ValueId:
    """x, times the slope below 0"""
    return b.select(b.lt(x, b.like(0, x)), b.mul(slope, x), x)


def elu(b: Core, x: ValueId, alpha: float) -> ValueId:
    """x above 0, else alpha · (exp(x) - 1)"""
    zero = b.like(0, x)
    return b.select(b.lt(zero, x), x, b.mul(b.like(alpha, x), b.op("expm1", b.min(x, zero))))


def hard_sigmoid(b: Core, x: ValueId, alpha: float, beta: float) -> ValueId:
    """min(1, max(0, alpha · x + beta))"""
    line = b.add(b.mul(b.like(alpha, x), x), b.like(beta, x))
    return b.clamp(line, b.like(0, x), b.like(1, x))


def _hard_swish(b: Core, x: ValueId, a: Attrs) -> ValueId:
    """x · min(1, max(0, x/6 + 1/2)); a division takes as long as ten products"""
    return b.mul(x, hard_sigmoid(b, x, 1 / 6, 0.5))


def _celu(b: Core, x: ValueId, a: Attrs) -> ValueId:
    """max(x, 0) + min(0, alpha · (exp(x/alpha) - 1)); only the side that counts is exponentiated"""
    zero, alpha = b.like(0, x), b.like(a["alpha"], x)
    power = b.op("expm1", b.div(b.min(x, zero) if a["alpha"] > 0 else x, alpha))
    return b.add(b.max(x, zero), b.min(zero, b.mul(alpha, power)))


def _shrink(b: Core, x: ValueId, a: Attrs) -> ValueId:
    bias, border = b.like(a["bias"], x), b.like(a["lambd"], x)
    inside = b.mul(b.like(0, x), x)  # 0, or NaN
    above = b.select(b.lt(border, x), b.sub(x, bias), inside)
    return b.select(b.lt(x, b.neg(border)), b.add(x, bias), above)


def _thresholded(b: Core, x: ValueId, a: Attrs) -> ValueId:
    return b.select(b.le(x, b.like(a["alpha"], x)), b.like(0, x), x)


def _gelu(b: Core, x: ValueId, a: Attrs) -> ValueId:
    return gelu_tanh(b, x) if a["approximate"] == "tanh" else gelu(b, x)


def _sign(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    one, zero = b.like(1, x), b.like(0, x)
    if b.dtype(x).is_integer and not b.dtype(x).is_signed:
        return b.min(x, one)
    return b.select(b.lt(zero, x), one, b.select(b.lt(x, zero), b.like(-1, x), x))


def _variadic(name: str) -> Decomposition:
    def decomposition(b: Core, n: Node) -> ValueId:
        first, *rest = _plain_inputs(b, n)
        dtype = b.dtype(first)
        result = b.wide(first)
        for other in rest:
            result = b.op(name, result, b.wide(other))
        if n.op == "onnx.Mean":
            result = b.div(result, b.like(len(n.inputs), result))
        return b.cast(result, dtype)

    return decomposition


def _bit_shift(b: Core, n: Node) -> ValueId:
    return b.op("shl" if n.attrs["direction"] == "LEFT" else "shr", b.input(n), b.input(n, 1))


def _cast_to(b: Core, n: Node, to: DType) -> ValueId:
    attrs = {"saturate": n.attrs.get("saturate", 1)}
    if to is DType.F8E8M0:
        attrs["round_mode"] = n.attrs.get("round_mode", "up")
    return b.cast(b.input(n), to, **attrs)


def _cast(b: Core, n: Node) -> ValueId:
    to = dtype_from_code(n.attrs["to"])
    if to is None:
        raise Declined(f"there is no dtype with number {n.attrs['to']}")
    return _cast_to(b, n, to)


def _bit_cast(b: Core, n: Node) -> ValueId:
    """Of a bool, the bits are those of a byte that is 0 or 1; any other byte is true, too"""
    x, to = b.input(n), dtype_from_code(n.attrs["to"])
    if to is DType.BOOL and b.dtype(x) is not DType.BOOL:
        return b.cast(b.op("bitcast", x, to=DType.U8.code), DType.BOOL)
    return b.op("bitcast", x, to=n.attrs["to"])


def _clip(b: Core, n: Node) -> ValueId:
    """min(max, max(min, x)); a bound that is absent bounds nothing"""
    result = b.input(n)
    for index, name, op in ((1, "min", "max"), (2, "max", "min")):
        bound = b.given(n, index)
        if bound is not None:
            result = b.op(op, result, b.reshape(bound, ()))
        elif name in n.attrs:
            result = b.op(op, result, b.like(n.attrs[name], result))
    return result


def _is_inf(b: Core, n: Node) -> ValueId:
    x = b.wide(b.input(n))
    infinite = {1: b.like(math.inf, x), -1: b.like(-math.inf, x)}
    wanted = [sign for sign, name in ((1, "detect_positive"), (-1, "detect_negative")) if n.attrs[name]]
    if len(wanted) == 2:
        return b.eq(b.abs(x), infinite[1])
    return b.eq(x, infinite[wanted[0]]) if wanted else b.lt(x, x)


def _is_nan(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    return b.inverse(b.eq(x, x))


def _mod(b: Core, n: Node) -> ValueId:
    x, y = b.input(n), b.input(n, 1)
    if n.attrs["fmod"] or b.dtype(x).is_integer:
        return b.op("fmod" if n.attrs["fmod"] else "mod", x, y)
    # what is left has the sign of y: y is added where something is left with the other sign
    wide, other = b.wide(x), b.wide(y)
    rest, zero = b.op("fmod", wide, other), b.like(0, b.wide(x))
    differ = b.op("xor", b.lt(rest, zero), b.lt(other, zero))
    moved = b.both(differ, b.inverse(b.eq(rest, zero)))
    return b.cast(b.select(moved, b.add(rest, other), rest), b.dtype(x))


def _prelu(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    return b.cast(leaky(b, b.wide(x), b.wide(b.input(n, 1))), b.dtype(x))


_PRODUCTS_OF_ITSELF = (2, 3, 4)  # x³ is off by one rounding more than the power, and takes a tenth of its time


def _pow(b: Core, n: Node) -> ValueId:
    """Floats in the wider of both dtypes; integers exactly, modulo their range; integer ^ float through f64."""
    x, y = _plain_inputs(b, n)
    source, exponent = b.dtype(x), b.dtype(y)
    if source.is_integer:
        work = DType.I64 if exponent.is_integer else DType.F64
    else:
        work = DType.F64 if DType.F64 in (source, exponent) else DType.F32
    constant = b.out.constant(y)
    times = float(constant.reshape(-1)[0]) if constant is not None and constant.size == 1 else 0
    if source.is_float and times in _PRODUCTS_OF_ITSELF:
        if b.rank(y) > b.rank(x):
            raise Declined("the exponent has more axes than what is raised")
        wide = b.wide(x)
        square = b.mul(wide, wide)
        return b.cast(square if times == 2 else b.mul(square, wide if times == 3 else square), source)
    return b.cast(b.op("pow", b.cast(x, work), b.cast(y, work)), source)


def _swiglu(b: Core, n: Node) -> ValueId:
    gate, value = b.wide(b.input(n)), b.wide(b.input(n, 1))
    swish = b.mul(gate, sigmoid(b, b.mul(b.like(n.attrs["alpha"], gate), gate)))
    return b.cast(b.mul(swish, value), b.dtype(b.input(n)))


_NAMES = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan",
    "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Exp": "exp", "Floor": "floor", "Log": "log",
    "Neg": "neg", "Round": "round", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
    "BitwiseNot": "not", "Not": "not", "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and",
    "Or": "or", "Xor": "xor", "BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor", "Equal": "eq",
    "Less": "lt", "LessOrEqual": "le", "Where": "select",
}  # fmt: skip

ELEMENTWISE: dict[str, Decomposition] = {
    **{f"onnx.{name}": _same(core) for name, core in _NAMES.items()},
    "onnx.Greater": _swapped("lt"),
    "onnx.GreaterOrEqual": _swapped("le"),
    "onnx.BitCast": _bit_cast,
    "onnx.BitShift": _bit_shift,
    "onnx.Cast": _cast,
    "onnx.CastLike": lambda b, n: _cast_to(b, n, b.dtype(b.input(n, 1))),
    "onnx.Celu": _formula(_celu),
    "onnx.Clip": _clip,
    "onnx.Elu": _formula(lambda b, x, a: elu(b, x, a["alpha"])),
    "onnx.Erf": _float_formula(lambda b, x, a: b.op("erf", x)),
    "onnx.Gelu": _formula(_gelu),
    "onnx.HardSigmoid": _formula(lambda b, x, a: hard_sigmoid(b, x, a["alpha"], a["beta"])),
    "onnx.HardSwish": _formula(_hard_swish),
    "onnx.Identity": lambda b, n: b.input(n),
    "onnx.IsInf": _is_inf,
    "onnx.IsNaN": _is_nan,
    "onnx.LeakyRelu": _formula(lambda b, x, a: leaky(b, x, b.like(a["alpha"], x))),
    "onnx.Max": _variadic("max"),
    "onnx.Mean": _variadic("add"),
    "onnx.Min": _variadic("min"),
    "onnx.Mish": _formula(lambda b, x, a: b.mul(x, b.op("tanh", softplus(b, x)))),
    "onnx.Mod": _mod,
    "onnx.PRelu": _prelu,
    "onnx.Pow": _pow,
    "onnx.Reciprocal": _formula(lambda b, x, a: b.div(b.like(1, x), x)),
    "onnx.Relu": lambda b, n: relu(b, b.input(n)),
    "onnx.Selu": _formula(lambda b, x, a: b.mul(b.like(a["gamma"], x), elu(b, x, a["alpha"]))),
    "onnx.Shrink": _float_formula(_shrink),
    "onnx.Sigmoid": _formula(lambda b, x, a: sigmoid(b, x)),
    "onnx.Sign": _sign,
    "onnx.Softplus": _formula(lambda b, x, a: softplus(b, x)),
    "onnx.Softsign": _formula(lambda b, x, a: b.div(x, b.add(b.like(1, x), b.abs(x)))),
    "onnx.Sum": _variadic("add"),
    "onnx.Swish": _formula(lambda b, x, a: b.mul(x, sigmoid(b, b.mul(b.like(a["alpha"], x), x)))),
    "onnx.SwiGLU": _swiglu,
    "onnx.ThresholdedRelu": _formula(_thresholded),
}
