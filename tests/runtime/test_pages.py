"""Memory for large weights: where it begins, and pages that are joined later."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from tests.security.models import model, node, value

import tierup
from tierup.adapt import joining
from tierup.adapt.joining import Joiner
from tierup.ir.types import Array
from tierup.runtime import pages
from tierup.runtime.constants import aligned_empty, pack_panels
from tierup.runtime.pages import HUGE_BYTES, small_pages

MATRIX = np.random.default_rng(0).standard_normal((1024, 1100), np.float32)
JOINS = pytest.mark.skipif(not pages._has_huge_pages(), reason="this system gives no huge pages")


@pytest.mark.parametrize("system", ["joins", "does not join", "refuses", "knows none"])
def test_weights_are_packed_whatever_pages_there_are(
    system: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no memory")

    setting = tmp_path / "enabled"
    setting.write_text("always madvise [never]" if system == "does not join" else "always [madvise] never")
    monkeypatch.setattr(pages, "_SETTING", setting)
    if system == "refuses":
        monkeypatch.setattr(pages._Room, "madvise", refuse)
    elif system == "knows none":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    packed = pack_panels(MATRIX, 44)
    np.testing.assert_array_equal(packed, MATRIX.reshape(1024, 25, 44).transpose(1, 0, 2))
    assert packed.ctypes.data % 64 == 0
    assert packed.flags.writeable
    if system in ("joins", "does not join") and hasattr(mmap, "MADV_HUGEPAGE"):
        assert packed.ctypes.data % HUGE_BYTES == 0
    assert len(small_pages([packed])) == (system == "joins" and hasattr(mmap, "MADV_HUGEPAGE"))
    setting.unlink()
    assert small_pages([packed]) == []


@JOINS
def test_memory_that_is_locked_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page that takes the place of a locked one is not; and aside, it would be locked in small pieces."""
    packed = [pack_panels(MATRIX, 44), pack_panels(MATRIX, 22)]
    locked = sum(array.nbytes for array in packed) >> 10
    status = tmp_path / "status"
    monkeypatch.setattr(pages, "_STATUS", status)
    for kib, regions in ((0, 2), (64, 2), (locked + 1, 0)):
        status.write_text(f"Name:\tpython\nVmLck:\t{kib} kB\nVmPin:\t9999999 kB\n")
        assert len(small_pages(packed)) == regions
    status.unlink()
    assert len(small_pages(packed)) == 2


@JOINS
def test_where_no_thread_can_be_started_pages_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    joiner, packed = Joiner(), pack_panels(MATRIX, 44)
    monkeypatch.setattr(joining, "start_behind", refuse)
    joiner.add([packed])
    assert joiner.wait(0)


class Pages:
    """Notes what huge pages would be put in the place of, and says this of it."""

    filling_s = 0.0
    given_back = False

    def __init__(self, taken: list[int], answer: int) -> None:
        self._taken, self._answer = taken, answer

    def take_place_of(self, address: int) -> int:
        self._taken.append(address)
        return self._answer

    def give_back(self) -> None:
        self.given_back = True


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
    assert huge_bytes(packed) == packed.nbytes // HUGE_BYTES * HUGE_BYTES > 0
    assert small_pages([packed]) == []  # nothing is left to do for another plan that shares it


@JOINS
def test_a_region_is_joined_once() -> None:
    packed = pack_panels(MATRIX, 44)
    regions = [*small_pages([packed]), *small_pages([packed])]  # of two plans that share it, one soon after the other
    assert [len(list(region.join())) for region in regions] == [packed.nbytes // HUGE_BYTES, 0]


@JOINS
def test_memory_that_nobody_has_any_more_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    monkeypatch.setattr(pages._native, "HugePages", lambda pages: Pages(joined, 0))
    packed = aligned_empty((3 * HUGE_BYTES + 5,), np.dtype(np.uint8))
    start = packed.ctypes.data
    region, later = *small_pages([packed]), *small_pages([packed])
    steps = region.join()
    next(steps)
    del packed
    gc.collect()
    assert list(steps) == []
    assert joined == [start]
    assert list(later.join()) == []


@JOINS
def test_what_cannot_be_joined_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    aside = Pages(joined, 12)
    monkeypatch.setattr(pages._native, "HugePages", lambda pages: aside)
    packed = aligned_empty((3 * HUGE_BYTES,), np.dtype(np.uint8))
    (region,) = small_pages([packed])
    assert list(region.join()) == []
    assert len(joined) == 1
    assert aside.given_back
    assert small_pages([packed]) == []


@JOINS
def test_who_joins_may_hold_locks_and_so_does_not_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread in idle time that had Python's lock let a call wait for 1.3 s while others used both cores."""
    seen: list[tuple[int, int]] = []

    class Looks(Pages):
        def take_place_of(self, address: int) -> int:
            seen.append((os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.sched_getscheduler(0)))
            return super().take_place_of(address)

    monkeypatch.setattr(pages._native, "HugePages", lambda pages: Looks([], 0))
    before = os.getpriority(os.PRIO_PROCESS, 0)
    joiner = Joiner()
    packed = pack_panels(MATRIX, 44)
    joiner.add([packed])
    assert joiner.wait(60)
    assert set(seen) == {(before, os.sched_getscheduler(0))}


@JOINS
def test_who_joins_rests_for_fifteen_times_what_filling_took(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(Joiner, "_rest", lambda joiner, seconds: rests.append(seconds))
    filled = iter((0.25, 1.0, 1.125))

    class Takes(Pages):
        def take_place_of(self, address: int) -> int:
            self.filling_s = next(filled)
            return super().take_place_of(address)

    monkeypatch.setattr(pages._native, "HugePages", lambda pages: Takes([], 0))
    joiner = Joiner()
    packed = aligned_empty((3 * HUGE_BYTES,), np.dtype(np.uint8))
    joiner.add([packed])
    assert joiner.wait(60)
    assert rests == [15 * 0.25, 15 * 0.75, 15 * 0.125]


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


def test_a_model_has_packed_weights_joined_and_not_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call reads some rows of a table, and as fast in small pages: calls would be slow meanwhile for nothing."""
    added: list[Array] = []
    monkeypatch.setattr(joining.JOINER, "add", added.extend)
    table = numpy_helper.from_array(np.ones((8192, 70), np.float32), "table")
    right = numpy_helper.from_array(np.ones((70, 8192), np.float32), "right")
    nodes = [node("Gather", ["table", "ids"], ["rows"]), node("MatMul", ["rows", "right"], ["y"])]
    ids, y = value("ids", ["n"], TensorProto.INT64), value("y", ["n", 8192])
    with tierup.load(model(nodes, [ids], [y], [table, right]), config=tierup.Config(force_tier=1)) as compiled:
        assert compiled(ids=[1, 2])["y"].max() == 70
        assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
    assert [array.ndim for array in added] == [3]  # the panels of `right`
