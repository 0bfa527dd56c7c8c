"""The careful way from what a caller gave to what a program takes: converts what can be, or says what is wrong.

Native code binds exact NumPy arrays by itself and comes here for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tierup.errors import InputError
from tierup.ir.types import Array, DType, MapType, OptionalType, SequenceType, TensorType, Type, dtype_from_numpy

_CHECKED_OBJECT = -2  # for the native runner: sequences, maps and strings are checked in Python


class Input(msgspec.Struct, frozen=True):
    """A model's input as calls are checked against it. A dim is a number, the name of an open one, or None.

    `onnx_type` is the type as ONNX writes it.
    """

    name: str
    type: Type
    shape: tuple[int | str | None, ...] | None
    onnx_type: str
    required: bool = True

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """NumPy's dtype; None where the input is no tensor."""
        return self.type.dtype.numpy if isinstance(self.type, TensorType) else None


class Output(msgspec.Struct, frozen=True):
    """A model's output. A dim is a number, the name of an open one, or None; `onnx_type` is ONNX's name of the type."""

    name: str
    type: Type
    shape: tuple[int | str | None, ...] | None
    onnx_type: str

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """NumPy's dtype; None where the output is no tensor."""
        return self.type.dtype.numpy if isinstance(self.type, TensorType) else None


def native_inputs(inputs: Sequence[Input]) -> list[tuple[str, int, list[int] | None, bool]]:
    """(name, dtype code, shape, required): see `Runner`."""
    numbers: dict[str, int] = {}
    specs: list[tuple[str, int, list[int] | None, bool]] = []
    for spec in inputs:
        tensor = isinstance(spec.type, TensorType) and spec.type.dtype is not DType.STR
        if not tensor or not isinstance(spec.type, TensorType):
            specs.append((spec.name, _CHECKED_OBJECT, None, spec.required))
            continue
        shape = None
        if spec.shape is not None:
            shape = [
                -1 if dim is None else dim if isinstance(dim, int) else -2 - numbers.setdefault(dim, len(numbers))
                for dim in spec.shape
            ]
        specs.append((spec.name, spec.type.dtype.code, shape, spec.required))
    return specs


def check_feeds(inputs: Sequence[Input], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """`feeds` with every value converted to what its input takes; InputError names the input that does not fit."""
    known = {spec.name: spec for spec in inputs}
    for name in feeds:
        if name not in known:
            raise InputError(_unknown_name(name, known))
    missing = [spec.name for spec in inputs if spec.required and spec.name not in feeds]
    if missing:
        raise InputError(f"input '{missing[0]}' is missing; the model needs {_listed(inputs)}")
    checked = {name: _convert(known[name], value) for name, value in feeds.items()}
    _check_named_dims(known, checked)
    return checked


def _unknown_name(name: object, known: Mapping[str, Input]) -> str:
    from difflib import get_close_matches  # milliseconds, and only for those who are wrong

    close = get_close_matches(str(name), known, 1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return f"there is no input '{name}'; the model's inputs are {_listed(known.values())}{hint}"


def _listed(inputs: Any) -> str:
    return ", ".join(f"'{spec.name}'" for spec in inputs) or "none"


def _convert(spec: Input, value: Any) -> Any:
    match spec.type:
        case TensorType(dtype, _):
            array = _tensor(f"input '{spec.name}'", dtype, value)
            _check_shape(spec, array)
            return array
        case _:
            return _convert_item(f"input '{spec.name}'", spec.type, value)


def _convert_item(where: str, type: Type, value: Any) -> Any:
    match type:
        case TensorType(dtype, _):
            return _tensor(where, dtype, value)
        case OptionalType(elem):
            return None if value is None else _convert_item(where, elem, value)
        case SequenceType(elem):
            if not isinstance(value, list | tuple):
                raise InputError(f"{where} must be a list, but is {_kind(value)}")
            return [_convert_item(f"item {i} of {where}", elem, item) for i, item in enumerate(value)]
        case MapType(_, item_type):
            if not isinstance(value, Mapping):
                raise InputError(f"{where} must be a dict, but is {_kind(value)}")
            return {key: _convert_item(f"item {key!r} of {where}", item_type, item) for key, item in value.items()}


def _tensor(where: str, dtype: DType, value: Any) -> Array:
    array = _as_array(where, value)
    if dtype is DType.STR:
        return _strings(where, array)
    given = (
        dtype_from_numpy(array.dtype.newbyteorder("=")) if array.dtype.kind in "iufc" else dtype_from_numpy(array.dtype)
    )
    if given is dtype:
        return array.astype(dtype.numpy, copy=False)  # to this machine's byte order
    if not isinstance(value, np.ndarray) and _is_python_data(value) and _same_kind(array, dtype):
        with np.errstate(over="ignore"):  # a float that is too large is infinite, as it is in NumPy's own arrays
            return array.astype(dtype.numpy)  # Python's numbers have no width of their own
    raise InputError(f"{where} must be {dtype.numpy.name}, but is {array.dtype.name}")


def _as_array(where: str, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(f"{where} is a masked array with masked elements; fill them first")
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # subclasses (memory maps, matrices) as what they are underneath
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
            return np.from_dlpack(value)
        return np.asarray(value)
    except Exception as error:
        raise InputError(f"{where} cannot be read as an array: {error}") from error


def _is_python_data(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex | list | tuple)


def _same_kind(array: Array, dtype: DType) -> bool:
    if array.size == 0:
        return True
    kind = array.dtype.kind
    if kind in "iu" and dtype.is_integer:
        import ml_dtypes  # milliseconds, and only for inputs that are no arrays

        info = ml_dtypes.iinfo(dtype.numpy)  # type: ignore[no-untyped-call]  # it ships no types
        return bool(info.min <= array.min() and array.max() <= info.max)
    return (
        (kind in "iuf" and dtype.is_float)
        or (kind == "b" and dtype is DType.BOOL)
        or (kind in "iufc" and dtype.is_complex)
    )


def _strings(where: str, array: Array) -> Array:
    if array.dtype.kind not in "OUS" and not array.dtype.name.startswith("StringDType"):
        raise InputError(f"{where} must be strings, but is {array.dtype.name}")
    result = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        item: Any = array[index]
        if isinstance(item, bytes):
            item = item.decode(errors="replace")
        if not isinstance(item, str):
            raise InputError(f"{where} must be strings, but element {list(index)} is {_kind(item)}")
        result[index] = str(item)
    return result


def _check_shape(spec: Input, array: Array) -> None:
    if spec.shape is None:
        return
    if array.ndim != len(spec.shape):
        raise InputError(
            f"input '{spec.name}' must have {len(spec.shape)} dims {_shape_text(spec.shape)}, "
            f"but has {array.ndim}: {list(array.shape)}"
        )
    for axis, (wanted, size) in enumerate(zip(spec.shape, array.shape, strict=True)):
        if isinstance(wanted, int) and wanted != size:
            raise InputError(
                f"input '{spec.name}' must have the shape {_shape_text(spec.shape)}, but has {list(array.shape)}: "
                f"axis {axis} is {size} instead of {wanted}"
            )


def _check_named_dims(known: Mapping[str, Input], feeds: Mapping[str, Any]) -> None:
    """Open dims with one name have one size in a call."""
    seen: dict[str, tuple[str, int]] = {}
    for name, value in feeds.items():
        for axis, dim in enumerate(known[name].shape or ()):
            if isinstance(dim, str):
                other, size = seen.setdefault(dim, (f"axis {axis} of '{name}'", value.shape[axis]))
                if size != value.shape[axis]:
                    raise InputError(
                        f"the dim '{dim}' must have one size, but is {size} as {other} and "
                        f"{value.shape[axis]} as axis {axis} of '{name}'"
                    )


def _shape_text(shape: tuple[int | str | None, ...]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
