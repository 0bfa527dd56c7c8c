"""Memory for large weights: where it begins, and pages that are joined later."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tierup import _native
from tierup.adapt.joining import Joiner
from tierup.ir.types import Array
from tierup.runtime import pages
from tierup.runtime.constants import aligned_empty, pack_panels
from tierup.runtime.pages import HUGE_BYTES, small_pages

MATRIX = np.random.default_rng(0).standard_normal((1024, 1100), np.float32)
JOINS = pytest.mark.skipif(_native.join_pages(0, 0) != 0, reason="this system joins no pages on demand")


@pytest.fixture(autouse=True)
def asked_again() -> Any:
    yield
    pages._can_join.cache_clear()


@pytest.mark.parametrize("system", ["joins", "does not join", "refuses", "knows none"])
def test_weights_are_packed_whatever_pages_there_are(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no memory")

    pages._can_join.cache_clear()
    if system == "refuses":
        monkeypatch.setattr(mmap, "mmap", refuse)
    elif system == "knows none":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    elif system == "does not join":
        monkeypatch.setattr(pages._native, "join_pages", lambda address, size: 22)
    packed = pack_panels(MATRIX, 44)
    np.testing.assert_array_equal(packed, MATRIX.reshape(1024, 25, 44).transpose(1, 0, 2))
    assert packed.ctypes.data % 64 == 0
    assert packed.flags.writeable
    if system in ("joins", "does not join") and hasattr(mmap, "MADV_HUGEPAGE"):
        assert packed.ctypes.data % HUGE_BYTES == 0
    monkeypatch.undo()
    assert len(small_pages([packed])) == (system == "joins" and pages._can_join())


def huge_bytes(array: Array) -> int:
    """How much of an array lies in huge pages."""
    begin, found, inside = array.ctypes.data, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
            inside = low < begin + array.nbytes and begin < high
        elif inside and first == "AnonHugePages:":
            found += int(rest[0]) << 10
    return found


@JOINS
def test_pages_are_joined_behind_calls_with_what_they_hold() -> None:
    packed = pack_panels(MATRIX, 44)
    before = packed.copy()
    assert huge_bytes(packed) == 0
    joiner = Joiner()
    joiner.add([packed])
    assert joiner.wait(60)
    np.testing.assert_array_equal(packed, before)
    (region,) = small_pages([packed])
    joined = len(list(region.join()))  # once more, as for another plan that shares it
    assert 0 < joined <= packed.nbytes // HUGE_BYTES
    assert huge_bytes(packed) == joined * HUGE_BYTES
    np.testing.assert_array_equal(packed, before)


@JOINS
def test_memory_that_nobody_has_any_more_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []

    def join(address: int, size: int) -> int:
        joined.append(address)
        return 0

    monkeypatch.setattr(pages._native, "join_pages", join)
    packed = aligned_empty((3 * HUGE_BYTES + 5,), np.dtype(np.uint8))
    start = packed.ctypes.data
    (region,) = small_pages([packed])
    joined.clear()
    steps = region.join()
    next(steps)
    del packed
    gc.collect()
    assert list(steps) == []
    assert joined == [start]
    assert list(region.join()) == []


@JOINS
def test_what_cannot_be_joined_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = aligned_empty((3 * HUGE_BYTES,), np.dtype(np.uint8))
    (region,) = small_pages([packed])
    monkeypatch.setattr(pages._native, "join_pages", lambda address, size: 12)
    assert list(region.join()) == []


def test_other_memory_is_never_joined(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * HUGE_BYTES))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        view = np.frombuffer(mapping, np.uint8)
        arrays = [view, view[-view.ctypes.data % HUGE_BYTES :], np.zeros(2 * HUGE_BYTES, np.uint8), np.zeros(3)]
        assert small_pages(arrays) == []
        joiner = Joiner()
        joiner.add(arrays)
        assert joiner.wait(0)  # nothing to do, and no thread for that
        del view, arrays
