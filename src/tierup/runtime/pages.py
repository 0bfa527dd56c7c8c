"""Memory for weights: small pages while they are filled, joined to huge ones afterwards.

Products of few rows read weights once, at the pace of memory. In small pages each 4 KiB cost a walk through page tables
and a new start of the prefetcher: bert_base at 32 tokens took 51.9 ms on one core, in huge ones 49.3. But a huge page
is mostly memory that nobody has had for long. In a virtual machine the host may have to find it first, page by small
page: 350 MB took 0.9 s to touch in huge pages, 0.2 s in small ones, which come from what was used lately.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np

from tierup import _native
from tierup.ir.types import Array

HUGE_BYTES = 2 << 20


def large_room(size: int) -> Array | None:
    """`size` bytes from the border of a huge page on; None where the system has no such pages, or no room. What does
    not fill a huge page at the end stays in small ones."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # Linux's
        return None
    try:
        memory = mmap.mmap(-1, size + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        raw = np.frombuffer(memory, np.uint8)
        start = -raw.ctypes.data % HUGE_BYTES
        whole = size // HUGE_BYTES * HUGE_BYTES
        memory.madvise(mmap.MADV_NOHUGEPAGE if _can_join() else mmap.MADV_HUGEPAGE, start, whole)
    except (OSError, OverflowError):
        return None
    return raw[start : start + size]


@cache
def _can_join() -> bool:
    """Whether the system joins pages when it is told to, as Linux does since 6.1."""
    return _native.join_pages(0, 0) == 0


class Region:
    """Memory of an array that `large_room` gave; it does not keep it alive."""

    def __init__(self, memory: mmap.mmap, array: Array) -> None:
        self._memory = weakref.ref(memory)
        self._address = array.ctypes.data
        self._bytes = array.nbytes // HUGE_BYTES * HUGE_BYTES

    def join(self) -> Iterator[None]:
        """Join its pages, one huge one at a time; ends when that does not work, or nobody has the memory any more."""
        memory = self._memory()
        if memory is None:
            return
        begin = -np.frombuffer(memory, np.uint8).ctypes.data % HUGE_BYTES
        try:
            memory.madvise(mmap.MADV_HUGEPAGE, begin, self._bytes)
        except OSError:  # pragma: no cover - a kernel without them said so before
            return
        del memory
        for offset in range(0, self._bytes, HUGE_BYTES):
            memory = self._memory()  # which stays as long as it is needed
            if memory is None or _native.join_pages(self._address + offset, HUGE_BYTES) != 0:
                return
            del memory
            yield


def small_pages(arrays: Iterable[Array]) -> list[Region]:
    """What could be joined of these arrays."""
    if not _can_join():
        return []
    large = ((array, _memory_of(array)) for array in arrays if array.nbytes >= HUGE_BYTES)
    return [Region(memory, array) for array, memory in large if memory is not None]


def _memory_of(array: Array) -> mmap.mmap | None:
    """The mapping that `large_room` made for an array, if it did: a file's is no such."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    memory = base.obj if isinstance(base, memoryview) and not base.readonly else None
    return memory if isinstance(memory, mmap.mmap) and array.ctypes.data % HUGE_BYTES == 0 else None
