"""Where a plan's weights lie, so that a warm start finds them without the front end.

Most are a stretch of the model file, or of a file beside it, perhaps with their axes exchanged. What was computed when
the plan was made lies in the entry, or in a file beside it if it is large.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tierup.ir.types import Array, DType, dtype_from_numpy
from tierup.store.records import ARRAYS, INLINE, WeightRecord, known_dtype

if TYPE_CHECKING:  # the type alone
    from tierup.ir.graph import Weights

_INLINE_BYTES = 4096
_ALIGNMENT = 64


class StoredWeights:
    """Arrays by digest, over the files that their records name. Reading one checks its record: ValueError."""

    def __init__(self, records: Mapping[str, WeightRecord], files: Mapping[int, memoryview]) -> None:
        self._records, self._files = records, files
        mapped = [view.obj for view in files.values() if isinstance(view.obj, mmap.mmap)]
        self._mapped = [(_address(np.frombuffer(mapping, np.uint8)), mapping) for mapping in mapped]

    def __getitem__(self, digest: str) -> Array:
        record = self._records.get(digest)
        if record is None:
            raise ValueError(f"the entry has no weight {digest[:12]}")
        array = self._stored(record)
        if not record.axes:
            return array
        if sorted(record.axes) != list(range(array.ndim)):
            raise ValueError(f"{record.axes} is no order of {array.ndim} axes")
        return array.transpose(record.axes)

    def _stored(self, record: WeightRecord) -> Array:
        dtype, count = known_dtype(record.dtype), math.prod(record.stored)
        if record.offset < 0 or any(dim < 0 for dim in record.stored):
            raise ValueError("a weight has a negative size")
        if dtype is DType.STR:
            if record.where != INLINE or len(record.strings) != count:
                raise ValueError(f"a weight of {count} strings has {len(record.strings)}")
            return np.array([*record.strings, None], object)[:-1].reshape(record.stored)
        data = memoryview(record.data) if record.where == INLINE else self._files.get(record.where)
        end = record.offset + count * dtype.numpy.itemsize
        if data is None or end > len(data) or (record.where == INLINE and end != len(data)):
            raise ValueError("a weight lies outside its file")
        if count == 0:
            return np.empty(record.stored, dtype.numpy)
        array = np.frombuffer(data, dtype.numpy, count, record.offset).reshape(record.stored)
        array.flags.writeable = False
        return array

    def release(self, array: Array) -> None:
        """Forget the pages of a mapped file that an array lies on: whoever needs them again gets them again."""
        start = _address(array)
        for begin, mapping in self._mapped:
            if begin <= start < begin + len(mapping) and array.size:
                end = start + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
                first = (start - begin) // mmap.PAGESIZE * mmap.PAGESIZE
                mapping.madvise(mmap.MADV_DONTNEED, first, end + array.itemsize - begin - first)


class Placed:
    """What `place` found: a record for each weight, and the arrays that belong into a file of their own, in order."""

    def __init__(self) -> None:
        self.records: dict[str, WeightRecord] = {}
        self.arrays: list[Array] = []
        self.arrays_bytes = 0

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The content of the file of arrays, each on a 64-byte border."""
        for array in self.arrays:
            yield array.reshape(-1).view(np.uint8).data
            yield bytes(-array.nbytes % _ALIGNMENT)


def place(weights: Weights, needed: Iterable[str], files: Mapping[int, memoryview]) -> Placed:
    """Find each of the needed weights in the files, or make it one of the entry's own arrays."""
    located = dict(_located(weights, files))
    by_shape: dict[tuple[Any, ...], list[str]] = {}
    for digest in located:
        by_shape.setdefault((weights[digest].dtype, weights[digest].shape), []).append(digest)
    placed = Placed()
    for digest in dict.fromkeys(needed):
        array = weights[digest]
        found = located.get(digest) or _transposed(array, weights, located, by_shape)
        placed.records[digest] = found or _own(placed, array)
    return placed


def _located(weights: Weights, files: Mapping[int, memoryview]) -> Iterator[tuple[str, WeightRecord]]:
    """The weights that are nothing but a stretch of a file."""
    begins = {where: _address(np.frombuffer(view, np.uint8)) for where, view in files.items() if len(view)}
    for digest in weights:
        array = weights[digest]
        dtype = dtype_from_numpy(array.dtype)
        if dtype is None or dtype is DType.STR or not array.flags.c_contiguous or not array.size:
            continue
        for where, begin in begins.items():
            offset = _address(array) - begin
            if offset >= 0 and offset + array.nbytes <= len(files[where]):
                yield digest, WeightRecord(where, offset, dtype.code, array.shape)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _transposed(
    array: Array, weights: Weights, located: Mapping[str, WeightRecord], by_shape: Mapping[tuple[Any, ...], list[str]]
) -> WeightRecord | None:
    """A matrix that is a located one with its axes exchanged: exporters store many that way."""
    if array.ndim != 2 or array.dtype.kind in "Oc":
        return None
    for digest in by_shape.get((array.dtype, array.shape[::-1]), ()):
        other = weights[digest].T
        if _same_bits(array[:1], other[:1]) and _same_bits(array, other):
            record = located[digest]
            return WeightRecord(record.where, record.offset, record.dtype, record.stored, (1, 0))
    return None


def _same_bits(left: Array, right: Array) -> bool:
    bits = np.dtype(f"u{left.itemsize}")  # a NaN is the same as itself
    return bool(np.array_equal(left.view(bits), right.view(bits)))


def _own(placed: Placed, array: Array) -> WeightRecord:
    dtype = dtype_from_numpy(array.dtype)
    assert dtype is not None  # a graph's weights have one of our types
    if dtype is DType.STR:
        strings = tuple(str(item) for item in array.reshape(-1))
        return WeightRecord(INLINE, 0, dtype.code, array.shape, strings=strings)
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.nbytes <= _INLINE_BYTES:
        return WeightRecord(INLINE, 0, dtype.code, array.shape, data=array.tobytes())
    offset = placed.arrays_bytes
    placed.arrays.append(array)
    placed.arrays_bytes += array.nbytes + -array.nbytes % _ALIGNMENT
    return WeightRecord(ARRAYS, offset, dtype.code, array.shape)
