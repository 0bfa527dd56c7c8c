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

import numpy as np

from tierup import _native
from tierup.ir.types import Array

HUGE_BYTES = 2 << 20
_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"  # as "always [madvise] never"
_STATUS = "/proc/self/status"


class _Room(mmap.mmap):
    """Memory that `large_room` gave."""

    joined = False  # whether its pages were, or it was tried


def large_room(size: int) -> Array | None:
    """`size` bytes from the border of a huge page on; None where the system has no such pages, or no room."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # Linux's
        return None
    try:
        memory = _Room(-1, size + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    except (OSError, OverflowError):
        return None
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % HUGE_BYTES
    return raw[start : start + size]


class Region:
    """Memory of an array that `large_room` gave; it does not keep it alive."""

    def __init__(self, memory: _Room, array: Array) -> None:
        self._memory = weakref.ref(memory)
        self._address = array.ctypes.data
        self._pages = array.nbytes // HUGE_BYTES  # what does not fill one at the end stays in small ones

    def join(self) -> Iterator[float]:
        """Join its pages, one huge one at a time; yields the seconds of a core that it took. Ends when that does not
        work, or nobody has the memory any more. Calls may read there meanwhile; nobody may write."""
        memory = self._memory()
        if memory is None or memory.joined:
            return
        memory.joined = True
        del memory
        pages, before_s = _native.HugePages(self._pages), 0.0
        try:
            for page in range(self._pages):
                memory = self._memory()  # which stays as long as it is needed
                if memory is None or pages.take_place_of(self._address + page * HUGE_BYTES) != 0:
                    return
                del memory
                yield pages.filling_s - before_s
                before_s = pages.filling_s
        finally:
            pages.give_back()


def small_pages(arrays: Iterable[Array]) -> list[Region]:
    """What could be joined of these arrays. Nothing, where they may be locked in memory: the lock would be lost."""
    large = [(array, memory) for array in arrays if (memory := _room_of(array)) is not None and not memory.joined]
    if not large or not _has_huge_pages() or _locked_bytes() >= sum(array.nbytes for array, _ in large):
        return []
    return [Region(memory, array) for array, memory in large]


def _has_huge_pages() -> bool:
    """Whether the system gives huge pages to who asks for them."""
    try:
        with open(_SETTING) as setting:  # a warm start does without pathlib
            return "[never]" not in setting.read()
    except OSError:
        return False


def _locked_bytes() -> int:
    """How much of this process somebody has locked in memory."""
    try:
        with open(_STATUS) as status:
            locked = [line.split()[1] for line in status if line.startswith("VmLck:")]
    except OSError:
        return 0
    return sum(int(kib) << 10 for kib in locked)


def _room_of(array: Array) -> _Room | None:
    """The mapping that `large_room` made for an array that fills a page of it at least; a file's is no such."""
    if array.nbytes < HUGE_BYTES:
        return None
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    memory = base.obj if isinstance(base, memoryview) else None
    return memory if isinstance(memory, _Room) and array.ctypes.data % HUGE_BYTES == 0 else None
