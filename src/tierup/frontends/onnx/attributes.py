"""AttributeProto -> plain attribute values."""

from __future__ import annotations

from typing import Any

from tierup.errors import ModelError, UnsupportedError
from tierup.frontends.onnx.external import ExternalFiles
from tierup.frontends.onnx.tensors import sparse_array, tensor_array
from tierup.frontends.onnx.types import value_type
from tierup.ir.graph import Attr, Const


def attribute_value(proto: Any, files: ExternalFiles | None, owner: str) -> Attr:
    """The attribute as an int, float, str, Const, type or tuple of these; graphs are not taken here."""
    files = files or ExternalFiles(None)
    kind = proto.type
    if kind == proto.FLOAT:
        return float(proto.f)
    if kind == proto.INT:
        return int(proto.i)
    if kind == proto.STRING:
        return _text(proto.s, proto.name, owner)
    if kind == proto.TENSOR:
        return Const(tensor_array(proto.t, files))
    if kind == proto.SPARSE_TENSOR:
        return Const(sparse_array(proto.sparse_tensor, files))
    if kind == proto.TYPE_PROTO:
        return value_type(proto.tp, f"attribute '{proto.name}' of {owner}")
    if kind == proto.FLOATS:
        return tuple(map(float, proto.floats))
    if kind == proto.INTS:
        return tuple(map(int, proto.ints))
    if kind == proto.STRINGS:
        return tuple(_text(item, proto.name, owner) for item in proto.strings)
    if kind == proto.TENSORS:
        return tuple(Const(tensor_array(item, files)) for item in proto.tensors)
    raise UnsupportedError(f"attribute '{proto.name}' of {owner} has the type {kind}, which Tierup does not take")


def _text(item: bytes | memoryview, name: str, owner: str) -> str:
    try:
        return str(item, "utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"attribute '{name}' of {owner} is not UTF-8") from error
