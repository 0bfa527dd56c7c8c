"""TypeProto -> types and open shapes."""

from __future__ import annotations

from typing import Any

from tierup.errors import ModelError, UnsupportedError
from tierup.frontends.onnx.limits import MAX_RANK, max_tensor_bytes
from tierup.ir.types import DType, MapType, OptionalType, SequenceType, TensorType, Type, dtype_from_code

DeclaredShape = tuple[int | str | None, ...]


def value_type(proto: Any, where: str, depth: int = 0) -> Type:
    """The declared type without its dims."""
    if depth > 8:
        raise ModelError(f"the type of {where} is nested too deeply")
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return TensorType(_dtype(proto.tensor_type.elem_type, where), None)
    if kind == "sequence_type":
        return SequenceType(value_type(proto.sequence_type.elem_type, where, depth + 1))
    if kind == "optional_type":
        return OptionalType(value_type(proto.optional_type.elem_type, where, depth + 1))
    if kind == "map_type":
        key = _dtype(proto.map_type.key_type, where)
        return MapType(key, value_type(proto.map_type.value_type, where, depth + 1))
    if kind == "sparse_tensor_type":
        raise UnsupportedError(f"{where} is a sparse tensor, which Tierup takes only as an initialiser")
    raise ModelError(f"{where} has no type")


def declared_shape(proto: Any, where: str) -> DeclaredShape | None:
    """The declared dims of a tensor: a number, a name, or None where nothing is said; None if even the rank is open."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if len(dims) > MAX_RANK:
        raise ModelError(f"{where} has {len(dims)} dims; at most {MAX_RANK} are possible")
    shape: list[int | str | None] = []
    for dim in dims:
        kind = dim.WhichOneof("value")
        if kind == "dim_value":
            if dim.dim_value > max_tensor_bytes():
                raise ModelError(f"{where} has a dim of {dim.dim_value}, more than any tensor on this machine can have")
            shape.append(dim.dim_value if dim.dim_value >= 0 else None)  # some exporters write -1 for "open"
        elif kind == "dim_param" and dim.dim_param and isinstance(dim.dim_param, str):
            shape.append(dim.dim_param)
        else:
            shape.append(None)
    return tuple(shape)


def _dtype(code: int, where: str) -> DType:
    dtype = dtype_from_code(code)
    if dtype is None:
        raise ModelError(f"{where} has the element type {code}, which ONNX does not define")
    return dtype
