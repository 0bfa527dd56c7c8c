"""What a value can be: dtypes, dims, tensors, sequences, optionals and maps.

A dim is a number, or a `Sym`: the index of an instruction in its graph's dim program (see `dims.py`). A shape of
`None` means that not even the rank is known before the value exists.
"""

from __future__ import annotations

from enum import Enum
from functools import cache, cached_property
from typing import Any

import msgspec
import numpy as np

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]  # as numpy.typing has it, which takes milliseconds to import


class DType(Enum):
    """The element types, by the names that text and reports use."""

    F32 = "f32"
    U8 = "u8"
    I8 = "i8"
    U16 = "u16"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    STR = "str"
    BOOL = "bool"
    F16 = "f16"
    F64 = "f64"
    U32 = "u32"
    U64 = "u64"
    C64 = "c64"
    C128 = "c128"
    BF16 = "bf16"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    U4 = "u4"
    I4 = "i4"
    F4E2M1 = "f4e2m1"
    F8E8M0 = "f8e8m0"
    U2 = "u2"
    I2 = "i2"
    F6E2M3 = "f6e2m3"
    F6E3M2 = "f6e3m2"

    __hash__ = object.__hash__  # there is one of each; an enum's own, of its name, runs as Python

    def __repr__(self) -> str:
        return self.value

    @cached_property
    def code(self) -> int:
        """The number that ONNX and the native program give this type."""
        return _CODES[self]

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """How NumPy holds it; types under a byte take one byte an element."""
        dtype: np.dtype[Any] = np.dtype(_NUMPY[self] if self.is_builtin else _from_ml_dtypes(_ML_DTYPES[self]))
        return dtype

    @cached_property
    def bits(self) -> int:
        """Bits of one element in a packed file; strings have none."""
        return _SMALL_BITS.get(self, self.numpy.itemsize * 8)

    @property
    def is_builtin(self) -> bool:
        """Whether NumPy has it by itself; the others come from ml_dtypes, which is imported when one is used."""
        return self in _NUMPY

    @property
    def is_float(self) -> bool:
        """Any real floating type, down to four bits."""
        return self.value[0] == "f" or self is DType.BF16

    @property
    def is_integer(self) -> bool:
        """Any signed or unsigned integer type."""
        return self.value[0] in "iu"

    @property
    def is_signed(self) -> bool:
        """A signed integer type."""
        return self.value[0] == "i"

    @property
    def is_complex(self) -> bool:
        return self.value[0] == "c"


_SMALL_BITS = {
    DType.U4: 4, DType.I4: 4, DType.F4E2M1: 4, DType.U2: 2, DType.I2: 2, DType.F6E2M3: 6, DType.F6E3M2: 6,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(DType, start=1)}  # the members stand in ONNX's order
_NUMPY: dict[DType, Any] = {
    DType.F32: np.float32,
    DType.U8: np.uint8,
    DType.I8: np.int8,
    DType.U16: np.uint16,
    DType.I16: np.int16,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.STR: np.object_,
    DType.BOOL: np.bool_,
    DType.F16: np.float16,
    DType.F64: np.float64,
    DType.U32: np.uint32,
    DType.U64: np.uint64,
    DType.C64: np.complex64,
    DType.C128: np.complex128,
}
_ML_DTYPES = {
    DType.BF16: "bfloat16",
    DType.F8E4M3FN: "float8_e4m3fn",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2",
    DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.U4: "uint4",
    DType.I4: "int4",
    DType.F4E2M1: "float4_e2m1fn",
    DType.F8E8M0: "float8_e8m0fnu",
    DType.U2: "uint2",
    DType.I2: "int2",
    DType.F6E2M3: "float6_e2m3fn",
    DType.F6E3M2: "float6_e3m2fn",
}
_FROM_CODE = {code: dtype for dtype, code in _CODES.items()}
_FROM_NUMPY = {np.dtype(kind): dtype for dtype, kind in _NUMPY.items()}


def _from_ml_dtypes(name: str) -> Any:
    import ml_dtypes  # 5 ms, and most models have none of its types

    return getattr(ml_dtypes, name)


@cache
def _from_numpy() -> dict[np.dtype[Any], DType]:
    """All dtypes by how NumPy holds them."""
    return {dtype.numpy: dtype for dtype in DType}


def dtype_from_code(code: int) -> DType | None:
    """The dtype with this ONNX number, if there is one."""
    return _FROM_CODE.get(code)


def dtype_from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The dtype that NumPy holds as `dtype`; NumPy's own strings count as strings."""
    if dtype.kind in "US":
        return DType.STR
    return _FROM_NUMPY.get(dtype) or _from_numpy().get(dtype)


class Sym(msgspec.Struct, frozen=True):
    """A dim that is known only when the model is called: instruction `id` of the graph's dim program."""

    id: int

    def __repr__(self) -> str:
        return f"d{self.id}"


Dim = int | Sym
Shape = tuple[Dim, ...]


class TensorType(msgspec.Struct, frozen=True):
    """A dense array. `shape` is None where the rank is unknown."""

    dtype: DType
    shape: Shape | None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def __repr__(self) -> str:
        if self.shape is None:
            return f"{self.dtype.value}[*]"
        return f"{self.dtype.value}[{', '.join(map(repr, self.shape))}]"


class SequenceType(msgspec.Struct, frozen=True):
    """A list of values of one type. The shapes of its items may differ, so they are not part of the type."""

    elem: Type

    def __repr__(self) -> str:
        return f"seq({self.elem!r})"


class OptionalType(msgspec.Struct, frozen=True):
    """A value or nothing."""

    elem: Type

    def __repr__(self) -> str:
        return f"optional({self.elem!r})"


class MapType(msgspec.Struct, frozen=True):
    """A dictionary from an integer or string to values of one type."""

    key: DType
    value: Type

    def __repr__(self) -> str:
        return f"map({self.key.value}, {self.value!r})"


Type = TensorType | SequenceType | OptionalType | MapType


def dtypes_in(type: Type) -> tuple[DType, ...]:
    """The dtypes that a type is made of."""
    match type:
        case TensorType(dtype, _):
            return (dtype,)
        case SequenceType(elem) | OptionalType(elem):
            return dtypes_in(elem)
        case MapType(key, value):
            return (key, *dtypes_in(value))


def without_dims(type: Type) -> Type:
    """The same type with every shape forgotten: what sequence items and optional contents keep."""
    match type:
        case TensorType(dtype, _):
            return TensorType(dtype, None)
        case SequenceType(elem):
            return SequenceType(without_dims(elem))
        case OptionalType(elem):
            return OptionalType(without_dims(elem))
        case MapType(key, value):
            return MapType(key, without_dims(value))
