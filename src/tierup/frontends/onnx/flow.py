"""What flows into the bodies of loops and scans, and back: the types that hold for every round."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.errors import ModelError
from tierup.frontends.onnx.schema import onnx_type
from tierup.ir.graph import Attrs
from tierup.ir.types import OptionalType, TensorType, Type


def present(types: Sequence[Type | None]) -> list[Type]:
    """`types`, of which none may be absent."""
    given = [type for type in types if type is not None]
    if len(given) != len(types):
        raise ModelError("leaves out a value that its body needs")
    return given


def scan_types(version: int, attrs: Attrs, types: list[Type | None]) -> tuple[list[Type], list[Type]]:
    """Types of the states and of one slice of each scanned input."""
    count = attrs["num_scan_inputs"]
    values = types[1:] if version == 8 else types
    if not 0 < count <= len(values):
        raise ModelError(f"has {len(values)} values, of which it cannot scan {count}")
    states, scanned = present(values[: len(values) - count]), present(values[len(values) - count :])
    axes = attrs.get("scan_input_axes") or (0,) * count
    if len(axes) != count:
        raise ModelError(f"scans {count} inputs, but scan_input_axes has {len(axes)} entries")
    if version == 8:
        return [dropped(t, 0) for t in states], [dropped(dropped(t, 0), 0) for t in scanned]
    return states, [dropped(t, axis) for t, axis in zip(scanned, axes, strict=True)]


def dropped(type: Type, axis: int) -> Type:
    if not isinstance(type, TensorType):
        raise ModelError(f"scans a value of type {type!r}, but only tensors can be scanned")
    if type.shape is None:
        return type
    if not -len(type.shape) <= axis < len(type.shape):
        raise ModelError(f"scans axis {axis} of a tensor of rank {len(type.shape)}")
    axis %= len(type.shape)
    return TensorType(type.dtype, type.shape[:axis] + type.shape[axis + 1 :])


def opened(type: Type) -> Type:
    """A carried value's dims that are no numbers are its own: two that are equal at first may grow apart."""
    if not isinstance(type, TensorType) or type.shape is None:
        return type
    dims = tuple(dim if isinstance(dim, int) else None for dim in type.shape)
    return TensorType(type.dtype, dims)  # type: ignore[arg-type]  # None: open_input makes it a dim of its own


def widened(inside: Type, back: Type) -> Type:
    """The type that holds both what a body got and what it returned for the next round."""
    if isinstance(inside, OptionalType) and onnx_type(inside.elem) == onnx_type(back):
        return inside
    if onnx_type(inside) != onnx_type(back):
        raise ModelError(f"carries {onnx_type(inside)} into its body, which returns {onnx_type(back)}")
    if not isinstance(inside, TensorType) or not isinstance(back, TensorType) or inside.shape is None:
        return inside
    if back.shape is None or len(inside.shape) != len(back.shape):
        return TensorType(inside.dtype, None)
    dims = tuple(a if a == b else None for a, b in zip(inside.shape, back.shape, strict=True))
    return TensorType(inside.dtype, dims)  # type: ignore[arg-type]  # None: open_input makes it a dim of its own
