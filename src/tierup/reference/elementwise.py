"""Elementwise ops in NumPy: one entry point a kind of op, tables of formulas behind it.

Floats narrower than f32 are computed in f32 and rounded once. Integers wrap as in NumPy; an integer divided by zero
is 0, and so is its remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from tierup.ir.graph import Attrs, Node
from tierup.ir.types import Array
from tierup.reference import special
from tierup.reference.cast import dtype_of, float_to_int
from tierup.reference.precision import down, rounded, up

Formula = Callable[..., Any]


def _formula(table: Mapping[str, Formula], node: Node) -> Formula:
    return table[node.op.rpartition(".")[2]]


def sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), written so that exp never overflows."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _erf(x: Array) -> Array:
    return special.erf(x) if x.dtype.kind == "f" else np.trunc(special.erf(x.astype(np.float64)))


_UNARY: dict[str, Formula] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "BitwiseNot": np.invert,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": _erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "HardSwish": lambda x: x * np.clip(x / 6.0 + 0.5, 0, 1),
    "Log": np.log,
    "Mish": lambda x: x * np.tanh(softplus(x)),
    "Neg": np.negative,
    "Not": np.logical_not,
    "Reciprocal": lambda x: 1.0 / x,
    "Relu": lambda x: np.maximum(x, 0),
    "Round": np.rint,
    "Sigmoid": sigmoid,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": softplus,
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "Sqrt": np.sqrt,
    "Tan": np.tan,
    "Tanh": np.tanh,
}


def unary(node: Node, x: Array) -> Array:
    return rounded(_formula(_UNARY, node), x)


def _elu(x: Array, alpha: float) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(x: Array, a: Attrs) -> Any:
    alpha = a["alpha"]
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha if alpha > 0 else x / alpha))


def _gelu(x: Array, a: Attrs) -> Any:
    if a["approximate"] == "tanh":
        # 0.5 · (1 + tanh(u)) = sigmoid(2u), which does not cancel where u is far below 0
        return x * sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * x * x * x))
    return special.gelu(x)


def _shrink(x: Array, a: Attrs) -> Any:
    bias, border = a["bias"], a["lambd"]
    if x.dtype.kind != "f":
        return float_to_int(np.asarray(_shrink(x.astype(np.float64), a)), dtype_of(x))
    return np.where(x < -border, x + bias, np.where(x > border, x - bias, 0 * x))


_ACTIVATION: dict[str, Formula] = {
    "Celu": _celu,
    "Elu": lambda x, a: _elu(x, a["alpha"]),
    "Gelu": _gelu,
    "HardSigmoid": lambda x, a: np.clip(a["alpha"] * x + a["beta"], 0, 1),
    "LeakyRelu": lambda x, a: np.where(x < 0, a["alpha"] * x, x),
    "Selu": lambda x, a: a["gamma"] * _elu(x, a["alpha"]),
    "Shrink": _shrink,
    "Swish": lambda x, a: x * sigmoid(a["alpha"] * x),
    "ThresholdedRelu": lambda x, a: np.where(x <= a["alpha"], 0, x),
}


def activation(node: Node, x: Array) -> Array:
    """A function of one tensor with attributes."""
    formula = _formula(_ACTIVATION, node)
    return rounded(lambda wide: formula(wide, node.attrs), x)


def swiglu(node: Node, gate: Array, value: Array) -> Array:
    return rounded(lambda g, v: g * sigmoid(node.attrs["alpha"] * g) * v, gate, value)


def divide(a: Array, b: Array) -> Array:
    """a / b; integers are cut towards zero."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return np.asarray(quotient)
    cut = (quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0)
    return np.asarray(quotient + cut)


_BINARY: dict[str, Formula] = {
    "Add": np.add,
    "And": np.logical_and,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "Div": divide,
    "Mul": np.multiply,
    "Or": np.logical_or,
    "PRelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "Sub": np.subtract,
    "Xor": np.logical_xor,
}


def binary(node: Node, a: Array, b: Array) -> Array:
    return rounded(_formula(_BINARY, node), a, b)


def modulo(node: Node, a: Array, b: Array) -> Array:
    return rounded(np.fmod if node.attrs["fmod"] else np.mod, a, b)


def bit_shift(node: Node, x: Array, by: Array) -> Array:
    """NumPy already gives 0, or -1 to the right of a negative number, where `by` is no valid shift."""
    return np.asarray((np.left_shift if node.attrs["direction"] == "LEFT" else np.right_shift)(x, by))


def power(node: Node, x: Array, exponent: Array) -> Array:
    if x.dtype.kind == "f" or x.dtype.kind == "V":
        return down(_float_power(up(x), up(exponent)), x.dtype)
    if exponent.dtype.kind not in "iu":
        return float_to_int(np.power(x.astype(np.float64), exponent.astype(np.float64)), dtype_of(x))
    # integers: exact modulo the range; negative exponents as in floats, cut towards zero; ONNX leaves 0 ** -1 open: 0
    exponent = exponent.astype(np.int64)
    exact = np.power(x.astype(np.int64), np.maximum(exponent, 0)).astype(x.dtype)
    if not (exponent < 0).any():
        return np.asarray(exact)
    inverse = float_to_int(np.power(np.where(x == 0, np.inf, x), exponent), dtype_of(x))
    return np.asarray(np.where(exponent < 0, inverse, exact))


def _float_power(x: Array, exponent: Array) -> Any:
    if exponent.size == 1 and exponent.item() == 2:  # by far the most frequent, and many times faster than pow
        return np.broadcast_to(x * x, np.broadcast_shapes(x.shape, exponent.shape))
    return np.power(x, exponent if exponent.dtype.kind == "f" else exponent.astype(x.dtype))


_COMPARE: dict[str, Formula] = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}


def compare(node: Node, a: Array, b: Array) -> Array:
    return np.asarray(_formula(_COMPARE, node)(up(a), up(b))).astype(np.bool_, copy=False)


def is_nan(node: Node, x: Array) -> Array:
    return np.asarray(np.isnan(up(x)))


def is_inf(node: Node, x: Array) -> Array:
    wide = up(x)
    positive = (wide == np.inf) & bool(node.attrs["detect_positive"])
    negative = (wide == -np.inf) & bool(node.attrs["detect_negative"])
    return np.asarray(positive | negative)


_VARIADIC: dict[str, Formula] = {
    "Max": lambda *xs: reduce(np.maximum, xs),
    "Mean": lambda *xs: reduce(np.add, xs) / len(xs),
    "Min": lambda *xs: reduce(np.minimum, xs),
    "Sum": lambda *xs: reduce(np.add, xs),
}


def variadic(node: Node, *inputs: Array) -> Array:
    return rounded(_formula(_VARIADIC, node), *inputs)


def clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """min(high, max(x, low)). The bounds were attributes once; an absent bound bounds nothing, infinities included."""
    lower = node.attrs.get("min") if low is None else up(low)
    upper = node.attrs.get("max") if high is None else up(high)
    result = up(x)
    if lower is not None:
        result = np.maximum(result, lower)
    if upper is not None:
        result = np.minimum(result, upper)
    return down(result, x.dtype).reshape(x.shape)


def where(node: Node, condition: Array, a: Array, b: Array) -> Array:
    return np.asarray(np.where(condition, a, b))


def identity(node: Node, x: Any) -> Any:
    return x
