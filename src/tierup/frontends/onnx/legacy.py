"""Opsets before 7 broadcast by attributes: `axis` says where the second input's dims meet the first's.

Here the second input is unsqueezed so that later opsets' rule, trailing dims meet, gives the same result.
"""

from __future__ import annotations

from tierup.errors import ModelError
from tierup.frontends.onnx.schema import Schema
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, ValueId
from tierup.ir.types import TensorType

_BY_ATTRIBUTE = {
    "onnx.Add", "onnx.And", "onnx.Div", "onnx.Equal", "onnx.Greater", "onnx.Less", "onnx.Mul", "onnx.Or", "onnx.Pow",
    "onnx.Sub", "onnx.Xor",
}  # fmt: skip


def aligned(builder: GraphBuilder, schema: Schema, inputs: list[ValueId | None], attrs: Attrs) -> list[ValueId | None]:
    """`inputs` with the second one unsqueezed where an old opset aligns it elsewhere than at the end."""
    if schema.version >= 7 or len(inputs) != 2:
        return inputs
    axis = attrs.get("axis") if schema.op in _BY_ATTRIBUTE and attrs.get("broadcast") else None
    if schema.op == "onnx.PRelu":
        axis = 1  # one slope for each channel
    first, second = inputs
    if axis is None or first is None or second is None:
        return inputs
    a, b = builder.type(first), builder.type(second)
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.shape is None or b.shape is None:
        raise ModelError("broadcasts by an attribute, which needs known ranks")
    missing = len(a.shape) - axis % max(len(a.shape), 1) - len(b.shape)
    if missing <= 0 or b.shape in ((), (1,)):
        return inputs
    axes = tuple(range(len(b.shape), len(b.shape) + missing))
    (unsqueezed,) = builder.node("onnx.Unsqueeze", [second], Attrs({"axes": axes}), version=1)
    return [first, unsqueezed]
