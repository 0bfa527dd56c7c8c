"""TensorProto -> NumPy array, checked before anything is allocated."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from tierup.errors import ModelError, UnsupportedError
from tierup.frontends.onnx.external import ExternalFiles
from tierup.frontends.onnx.limits import MAX_RANK, max_tensor_bytes
from tierup.ir.types import Array, DType, dtype_from_code

# Where each type keeps its elements when they are not raw, and how many entries one element takes there.
_TYPED_FIELDS = {
    DType.F32: ("float_data", 1),
    DType.F64: ("double_data", 1),
    DType.C64: ("float_data", 2),
    DType.C128: ("double_data", 2),
    DType.I64: ("int64_data", 1),
    DType.U32: ("uint64_data", 1),
    DType.U64: ("uint64_data", 1),
    DType.STR: ("string_data", 1),
}


def tensor_array(proto: Any, files: ExternalFiles) -> Array:
    """The tensor as an array, read-only where it is mapped."""
    name = proto.name
    dtype = dtype_from_code(proto.data_type)
    if dtype is None:
        raise UnsupportedError(f"tensor '{name}' has data type {proto.data_type}, which ONNX does not define")
    shape, count = _checked_shape(name, proto.dims, dtype)
    if proto.HasField("segment"):
        raise UnsupportedError(f"tensor '{name}' is stored in segments, which no ONNX tool supports")
    if proto.data_location == proto.EXTERNAL:
        return _from_bytes(name, _external(proto, files), dtype, shape, count)
    if proto.HasField("raw_data"):
        return _from_bytes(name, memoryview(proto.raw_data), dtype, shape, count)
    return _typed(proto, dtype, shape, count)


def sparse_array(proto: Any, files: ExternalFiles) -> Array:
    """A SparseTensorProto as a dense array, as ONNX Runtime also takes it."""
    values = tensor_array(proto.values, files)
    name = proto.values.name
    dtype = dtype_from_code(proto.values.data_type)
    assert dtype is not None  # tensor_array has checked it
    shape, count = _checked_shape(name, proto.dims, dtype)
    indices = tensor_array(proto.indices, files) if proto.indices.data_type else np.zeros(0, np.int64)
    if indices.dtype != np.int64 or values.ndim != 1:
        raise ModelError(f"sparse tensor '{name}' must have 1-d values and int64 indices")
    if indices.ndim == 2 and indices.shape == (values.size, len(shape)):
        if indices.size and (indices.min() < 0 or (indices >= np.array(shape)).any()):
            raise ModelError(f"sparse tensor '{name}' has an index outside its shape {list(shape)}")
        flat = np.ravel_multi_index(tuple(indices.T), shape) if len(shape) else np.zeros(values.size, np.int64)
    elif indices.shape == (values.size,):
        flat = indices
    else:
        raise ModelError(f"sparse tensor '{name}' has {values.size} values but indices of shape {list(indices.shape)}")
    if flat.size and (flat.min() < 0 or flat.max() >= count):
        raise ModelError(f"sparse tensor '{name}' has an index outside its shape {list(shape)}")
    dense = np.full(count, "", object) if dtype is DType.STR else np.zeros(count, dtype.numpy)
    dense[flat] = values
    return dense.reshape(shape)


def _checked_shape(name: str, dims: Any, dtype: DType) -> tuple[tuple[int, ...], int]:
    shape = tuple(map(int, dims))
    if len(shape) > MAX_RANK:
        raise ModelError(f"tensor '{name}' has {len(shape)} dims; at most {MAX_RANK} are possible")
    if any(dim < 0 for dim in shape):
        raise ModelError(f"tensor '{name}' has a negative dim in {list(shape)}")
    count = math.prod(shape)
    if count * max(dtype.bits, 8) // 8 > max_tensor_bytes() or any(dim > max_tensor_bytes() for dim in shape):
        raise ModelError(
            f"tensor '{name}' of shape {list(shape)} asks for {count * dtype.bits // 8} bytes, "
            f"more than this machine's memory of {max_tensor_bytes()}"
        )
    return shape, count


def _external(proto: Any, files: ExternalFiles) -> memoryview:
    entries = {entry.key: entry.value for entry in proto.external_data}
    numbers = {}
    for key in ("offset", "length"):
        text = entries.get(key)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 20):
            raise ModelError(f"tensor '{proto.name}' has the external {key} '{text[:40]}', which is not a number")
        numbers[key] = None if text is None else int(text)
    return files.read(proto.name, entries.get("location", ""), numbers["offset"] or 0, numbers["length"])


def _from_bytes(name: str, raw: memoryview, dtype: DType, shape: tuple[int, ...], count: int) -> Array:
    if dtype is DType.STR:
        raise ModelError(f"tensor '{name}' holds strings as raw data, which ONNX forbids")
    expected = (count * dtype.bits + 7) // 8
    if len(raw) != expected:
        raise ModelError(f"tensor '{name}' of {dtype!r}{list(shape)} needs {expected} bytes, but has {len(raw)}")
    if dtype.bits >= 8:
        array = np.frombuffer(raw, dtype.numpy).reshape(shape)
        return array if sys.byteorder == "little" else array.byteswap()
    return _unpack(np.frombuffer(raw, np.uint8), dtype, count).reshape(shape)


def _unpack(packed: Array, dtype: DType, count: int) -> Array:
    """Elements of 2, 4 or 6 bits, lowest bits first, as one byte each."""
    bits = np.unpackbits(packed, bitorder="little")[: count * dtype.bits].reshape(count, dtype.bits)
    codes = np.packbits(bits, axis=1, bitorder="little").reshape(count)
    if dtype in (DType.I4, DType.I2):
        shift = 8 - dtype.bits
        codes = ((codes << shift).view(np.int8) >> shift).view(np.uint8)
        return codes.view(np.int8).astype(dtype.numpy)
    return codes.astype(dtype.numpy) if dtype.is_integer else codes.view(dtype.numpy)


def _typed(proto: Any, dtype: DType, shape: tuple[int, ...], count: int) -> Array:
    field, per_element = _TYPED_FIELDS.get(dtype, ("int32_data", 1))
    entries = getattr(proto, field)
    packed = dtype.bits < 8
    expected = (count * dtype.bits + 7) // 8 if packed else count * per_element
    if len(entries) != expected:
        raise ModelError(
            f"tensor '{proto.name}' of {dtype!r}{list(shape)} needs {expected} entries in {field}, "
            f"but has {len(entries)}"
        )
    if dtype is DType.STR:
        return np.array([_text(proto.name, item) for item in entries] + [None], object)[:-1].reshape(shape)
    if packed:
        return _unpack(_small_ints(proto.name, entries, np.uint8), dtype, count).reshape(shape)
    if field == "int32_data" and (dtype.is_float or dtype in (DType.F16, DType.BF16)):
        carrier = np.uint16 if dtype.numpy.itemsize == 2 else np.uint8
        return _small_ints(proto.name, entries, carrier).view(dtype.numpy).reshape(shape)
    if dtype.is_complex:
        real = DType.F32 if dtype is DType.C64 else DType.F64
        return np.array(entries, real.numpy).view(dtype.numpy).reshape(shape)
    return np.array(entries, np.int64 if field == "int32_data" else None).astype(dtype.numpy).reshape(shape)


def _small_ints(name: str, entries: Any, carrier: type[Any]) -> Array:
    wide = np.array(entries, np.int64)
    if wide.size and (wide.min() < 0 or wide.max() > np.iinfo(carrier).max):
        raise ModelError(f"tensor '{name}' has an entry that does not fit its type")
    return wide.astype(carrier)


def _text(name: str, item: bytes | memoryview) -> str:
    try:
        return str(item, "utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"tensor '{name}' holds a string that is not UTF-8") from error
