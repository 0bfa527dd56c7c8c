"""Arrays as records: how live inputs and outputs travel to a worker. They are never written to disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from tierup.ir.facts import Fact
from tierup.ir.types import Array, DType, dtype_from_code, dtype_from_numpy

CALL_LIMIT_BYTES = 16 << 20  # what is kept and sent of one call, inputs and outputs together


class TensorData(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A named tensor, row-major."""

    name: Annotated[str, Meta(max_length=4096)]
    dtype: Annotated[int, Meta(ge=0, le=255)]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=64)]
    data: Annotated[bytes, Meta(max_length=CALL_LIMIT_BYTES)]


def hold(facts: Iterable[Fact], records: Sequence[TensorData]) -> bool:
    """Whether facts hold in a call with these inputs."""
    given = {record.name: record.data for record in records}
    found = ((given.get(fact.name), fact.element) for fact in facts)
    return all(data is not None and data == element * (len(data) // len(element)) for data, element in found)


def array_of(record: TensorData) -> Array:
    """The array that a record describes, read-only; ValueError if it is none."""
    dtype = dtype_from_code(record.dtype)
    if dtype is None or dtype is DType.STR:
        raise ValueError(f"there is no tensor of dtype {record.dtype}")
    if math.prod(record.shape) * dtype.numpy.itemsize != len(record.data):
        raise ValueError(f"'{record.name[:40]}' has {len(record.data)} bytes, which is not what its shape takes")
    return np.frombuffer(record.data, dtype.numpy).reshape(record.shape)


def records_of(values: Mapping[str, Any], room_bytes: int = CALL_LIMIT_BYTES) -> tuple[TensorData, ...] | None:
    """Copies of named arrays; None if one is no tensor of numbers, or all together are more than there is room for."""
    if sum(getattr(value, "nbytes", 0) for value in values.values()) > room_bytes:
        return None
    records = []
    for name, value in values.items():
        dtype = dtype_from_numpy(value.dtype) if isinstance(value, np.ndarray) else None
        if dtype is None or dtype is DType.STR:
            return None
        records.append(TensorData(name, dtype.code, value.shape, value.tobytes()))
    return tuple(records)
