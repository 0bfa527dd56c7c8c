"""Limits of workers are of their own time: who waits for a processor has not taken any."""

from __future__ import annotations

import os

import pytest

from tierup.adapt import deadline
from tierup.adapt.deadline import Deadline, core_s


class Clock:
    """A clock and a process, both of which stand still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.used_s = 100.0, 5.0
        self.known = True
        monkeypatch.setattr(deadline.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(deadline, "core_s", lambda pid: self.used_s if self.known else None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_time_of_its_own_counts(clock: Clock) -> None:
    limit = Deadline(1, 2.0)
    clock.now_s += 1.9
    clock.used_s += 9  # before its time is over nobody looks
    assert not limit.is_over()
    clock.now_s += 0.2
    assert limit.is_over()


def test_waiting_for_a_processor_does_not(clock: Clock) -> None:
    limit = Deadline(1, 2.0)
    for _ in range(3):
        clock.now_s += 2.0
        clock.used_s += 0.5
        assert not limit.is_over()
        assert clock.now_s < limit.next_s <= clock.now_s + 2.0
    clock.now_s, clock.used_s = limit.next_s, clock.used_s + 0.5
    assert limit.is_over()


def test_patience_ends(clock: Clock) -> None:
    limit = Deadline(1, 2.0)
    clock.now_s += 39
    assert not limit.is_over()
    clock.now_s = limit.next_s
    assert limit.is_over()


def test_without_figures_the_clock_decides(clock: Clock) -> None:
    clock.known = False
    limit = Deadline(1, 2.0)
    clock.now_s += 2.1
    assert limit.is_over()


def test_the_system_says_what_a_process_took() -> None:
    took = core_s(os.getpid())
    assert took is not None
    assert took > 0
    assert core_s(2**22 + 1) is None
