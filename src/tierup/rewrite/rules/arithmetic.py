"""Simplifications of arithmetic, logic and casts.

Zeros have signs: (-0.0) + 0.0 is 0.0, so for floats only x + (-0.0) and x - 0.0 are x. x · 0 is never 0: x may be NaN
or infinite.
"""

from __future__ import annotations

from msgspec.structs import replace

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import DType, dtype_from_code
from tierup.rewrite.rules.row import Simplification, is_number, keeps_shape, uniform
from tierup.rewrite.walk import Rewriter, Rule, Values


def _neutral(number: float, *, both_sides: bool, negative_zero: bool | None = None) -> Rule:
    """x ∘ number = x, and number ∘ x = x if `both_sides`, where the number's shape does not stretch x."""

    def rule(out: Rewriter, node: Node) -> Values | None:
        if len(node.inputs) != 2 or node.attrs.get("broadcast"):
            return None
        x, other = node.inputs
        for value, constant in ((x, other), (other, x))[: 2 if both_sides else 1]:
            if (
                is_number(uniform(out, constant), number, negative_zero=negative_zero)
                and out.dtype(value) is out.dtype(constant)
                and keeps_shape(out.shape(value), out.shape(constant))
            ):
                return [value]
        return None

    return rule


_times_one = _neutral(1, both_sides=True)


def _and_true(out: Rewriter, node: Node) -> Values | None:
    return _times_one(out, node) if out.dtype(node.inputs[0]) is DType.BOOL else None


def _itself(out: Rewriter, node: Node) -> Values:
    return [node.inputs[0]]


def _alone(out: Rewriter, node: Node) -> Values | None:
    return [node.inputs[0]] if len(node.inputs) == 1 else None


def _twice(out: Rewriter, node: Node) -> Values | None:
    """f(f(x)) = x."""
    inner = out.producer(node.inputs[0])
    return [inner.inputs[0]] if inner is not None and inner.op == node.op else None


def _idempotent(out: Rewriter, node: Node) -> Values | None:
    """f(f(x)) = f(x)."""
    inner = out.producer(node.inputs[0])
    return [node.inputs[0]] if inner is not None and inner.op == node.op else None


# Dtypes that hold every number of the dtype on the left. Integers fit a float whose significand is wide enough.
_SIGNIFICAND_BITS = {DType.BF16: 8, DType.F16: 11, DType.F32: 24, DType.F64: 53}
_FLOAT_INTO = {
    DType.BF16: {DType.F32, DType.F64},
    DType.F16: {DType.F32, DType.F64},
    DType.F32: {DType.F64},
}
_BYTES_OR_MORE = {
    DType.U8, DType.I8, DType.U16, DType.I16, DType.I32, DType.I64, DType.U32, DType.U64,
}  # fmt: skip


def exact(source: DType, target: DType) -> bool:
    """Whether a cast from `source` to `target` keeps every number as it is."""
    if source is target:
        return True
    if source is DType.BOOL:
        return target in _BYTES_OR_MORE or target in _SIGNIFICAND_BITS
    if source in _FLOAT_INTO:
        return target in _FLOAT_INTO[source]
    if source not in _BYTES_OR_MORE:
        return False
    digits = source.bits - source.is_signed
    if target in _SIGNIFICAND_BITS:
        return digits <= _SIGNIFICAND_BITS[target]
    if target not in _BYTES_OR_MORE or (source.is_signed and not target.is_signed):
        return False
    return digits <= target.bits - target.is_signed


def _target(out: Rewriter, node: Node) -> DType | None:
    if node.op == "onnx.CastLike":
        return out.dtype(node.inputs[1])
    return dtype_from_code(node.attrs["to"])


def _same_dtype(out: Rewriter, node: Node) -> Values | None:
    x = node.inputs[0]
    return [x] if out.dtype(x) is _target(out, node) else None


_CASTS = ("onnx.Cast", "onnx.CastLike", "core.cast")


def _cast_of_cast(out: Rewriter, node: Node) -> Values | None:
    middle = node.inputs[0]
    inner = out.producer(middle)
    if inner is None or inner.op not in _CASTS:
        return None
    source, between = out.dtype(inner.inputs[0]), out.dtype(middle)
    if source is None or between is None or not exact(source, between):
        return None
    return out.add(replace(node, inputs=(inner.inputs[0], *node.inputs[1:])))


def _select(out: Rewriter, node: Node) -> Values | None:
    condition, a, b = node.inputs
    known = uniform(out, condition)
    chosen, other = (b, a) if known is not None and not known else (a, b)
    if known is None and a != b:
        return None
    shapes = (out.shape(condition), out.shape(other))
    return [chosen] if all(keeps_shape(out.shape(chosen), shape) for shape in shapes) else None


def _dropout(out: Rewriter, node: Node) -> Values | None:
    if any(value is not None for value in node.outputs[1:]) or not is_inference(out, node):
        return None
    return [node.inputs[0], *(None for _ in node.outputs[1:])]


def is_inference(out: Rewriter, node: Node) -> bool:
    """Whether a Dropout surely drops nothing: its training input is absent or constant false."""
    training: ValueId | None = node.inputs[2] if len(node.inputs) > 2 else None
    return training is None or is_number(uniform(out, training), 0)


ARITHMETIC = (
    Simplification("add zero", ("onnx.Add", "core.add"), "x + (-0.0) = x; integers: x + 0 = x",
                   _neutral(0, both_sides=True, negative_zero=True)),
    Simplification("subtract zero", ("onnx.Sub", "core.sub"), "x - 0 = x",
                   _neutral(0, both_sides=False, negative_zero=False)),
    Simplification("multiply by one", ("onnx.Mul", "core.mul"), "x · 1 = x", _neutral(1, both_sides=True)),
    Simplification("divide by one", ("onnx.Div", "core.div"), "x / 1 = x", _neutral(1, both_sides=False)),
    Simplification("power of one", ("onnx.Pow", "core.pow"), "x ^ 1 = x", _neutral(1, both_sides=False)),
    Simplification("and true", ("onnx.And", "core.and"), "x ∧ true = x", _and_true),
    Simplification("or false", ("onnx.Or", "onnx.BitwiseOr", "core.or"), "x ∨ false = x; bits: x | 0 = x",
                   _neutral(0, both_sides=True)),
    Simplification("identity", ("onnx.Identity",), "identity(x) = x", _itself),
    Simplification("of one", ("onnx.Sum", "onnx.Max", "onnx.Min", "onnx.Mean", "onnx.Concat", "core.concat"),
                   "f(x) = x where f joins a list of one", _alone),
    Simplification("involution", ("onnx.Neg", "core.neg", "onnx.Not", "onnx.BitwiseNot", "core.not"),
                   "-(-x) = x, ¬¬x = x", _twice),
    Simplification("idempotent", ("onnx.Relu", "onnx.Abs", "core.abs", "onnx.Floor", "core.floor", "onnx.Ceil",
                                  "core.ceil", "onnx.Round", "core.round"),
                   "f(f(x)) = f(x)", _idempotent),
    Simplification("cast to itself", _CASTS, "cast[t](x : t) = x", _same_dtype),
    Simplification("cast of cast", _CASTS, "cast[t](cast[s](x)) = cast[t](x) where cast[s] is exact", _cast_of_cast),
    Simplification("select known", ("onnx.Where", "core.select"),
                   "where(true, a, b) = a, where(false, a, b) = b, where(c, a, a) = a", _select),
    Simplification("dropout", ("onnx.Dropout",), "dropout(x) = x outside training", _dropout),
)  # fmt: skip
