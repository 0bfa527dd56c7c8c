"""Swaps on live calls: kept, compared call by call, taken back, and tried again later."""

from __future__ import annotations

import random

import pytest

from tierup.adapt.care import Care
from tierup.adapt.live import Backoff, Timed, Watch
from tierup.config import Config
from tierup.runtime.progress import Progress

OLD, NEW = 1, 2
SMALL, LARGE = ((1, 8),), ((1, 128),)


def calls(program: int, count: int, us: float, signature: tuple[tuple[int, ...], ...] = SMALL) -> list[Timed]:
    return [(signature, program, int(1000 * us))] * count


def test_a_clear_gain_is_kept_without_a_comparison() -> None:
    watch = Watch(OLD, NEW, calls(OLD, 10, 100), tried=True)
    assert watch.look(calls(OLD, 10, 100) + calls(NEW, 4, 50), 14).action == "wait"
    found = watch.look(calls(OLD, 10, 100) + calls(NEW, 8, 50), 18)
    assert (found.action, found.reason) == ("keep", "1×8 took 100 µs before and 50 µs now")
    assert not watch.open


def duel(watch: Watch, old_us: float, new_us: float, noise: float = 0.02, most: int = 400) -> tuple[str, int]:
    """Answer calls by both, as a runner with a rival does, until it is decided: how, and after how many calls."""
    draw = random.Random(3)
    times: list[Timed] = calls(NEW, 8, new_us)
    timed = len(times)
    assert watch.look(times, timed).action == "compare"
    for number in range(most):
        program, us = (OLD, old_us) if draw.random() < 0.5 else (NEW, new_us)
        times.append((SMALL, program, int(1000 * us * draw.lognormvariate(0, noise))))
        timed += 1
        if number % 8 == 7:
            found = watch.look(times[-512:], timed)
            if found.action != "wait":
                return found.action, number
    return "never", most


@pytest.mark.parametrize("tried", [True, False])
def test_what_is_not_clear_is_compared_call_by_call(tried: bool) -> None:
    assert duel(Watch(OLD, NEW, calls(OLD, 10, 100), tried=tried), 100, 90)[0] == "keep"
    action, after = duel(Watch(OLD, NEW, calls(OLD, 10, 100), tried=tried), 100, 110)
    assert action == "go back"
    assert after < 64


@pytest.mark.parametrize(("tried", "expected"), [(True, "keep"), (False, "go back")])
def test_no_difference_leaves_what_a_trial_said(tried: bool, expected: str) -> None:
    watch = Watch(OLD, NEW, calls(OLD, 10, 100), tried=tried)
    assert watch.look(calls(NEW, 8, 100), 8).action == "compare"
    turns = [entry for us in (90, 110) * 60 for entry in (*calls(OLD, 1, 100), *calls(NEW, 1, us))]
    assert watch.look(turns[:200], 208).action == "wait"
    assert watch.look(turns, 248).action == expected


def test_signatures_that_never_come_again_say_nothing() -> None:
    watch = Watch(OLD, NEW, calls(OLD, 50, 100, SMALL), tried=True)
    assert watch.look(calls(NEW, 63, 500, LARGE), 63).action == "wait"
    assert watch.look(calls(NEW, 64, 500, LARGE), 64).action == "keep"
    watch = Watch(OLD, NEW, calls(OLD, 50, 100, SMALL), tried=False)
    assert watch.look(calls(NEW, 64, 500, LARGE), 64).action == "compare"


def test_a_plan_that_becomes_slow_is_compared_again() -> None:
    watch = Watch(OLD, NEW, calls(OLD, 20, 100), tried=True)
    assert watch.look(calls(NEW, 8, 50), 8).action == "keep"
    assert watch.look(calls(NEW, 100, 60), 100).action == "wait"
    assert watch.look(calls(NEW, 100, 60) + calls(NEW, 16, 120), 116).action == "compare"
    slow = [entry for _ in range(20) for entry in (*calls(OLD, 1, 100), *calls(NEW, 1, 120))]
    assert watch.look(slow, 116 + len(slow)).action == "go back"


def test_false_alarms_become_rarer() -> None:
    """The whole machine became slow, so both did: the new plan stays, and is left alone for a while."""
    watch = Watch(OLD, NEW, calls(OLD, 20, 100), tried=True)
    assert watch.look(calls(NEW, 8, 50), 8).action == "keep"
    both = [entry for _ in range(20) for entry in (*calls(OLD, 1, 300), *calls(NEW, 1, 150))]
    timed, gaps = 8, []
    for alarm in range(3):
        looks = 0
        while True:
            timed += 16
            looks += 1
            if watch.look(calls(NEW, 16, 150 * 3 ** (alarm + 1)), timed).action == "compare":
                break
        gaps.append(looks)
        timed += len(both)
        slower = [(s, p, t * 3**alarm) for s, p, t in both]
        assert watch.look(slower, timed).action == "keep"
    assert gaps == sorted(set(gaps))


def test_failures_back_off() -> None:
    backoff = Backoff()
    assert backoff.allows("plan", 0)
    waits = []
    for _ in range(3):
        calls_now = 10_000
        backoff.failed("plan", calls_now)
        assert not backoff.allows("plan", calls_now)
        waits.append(next((n for n in (1000, 8000, 64_000) if backoff.allows("plan", calls_now + n)), None))
    assert waits == [1000, 8000, None]
    assert backoff.allows("another", 0)


class Calls:
    """A runner, as far as it is asked how long calls take."""

    def __init__(self, taken_ns: int) -> None:
        self._taken_ns = taken_ns

    def times(self) -> list[tuple[tuple[tuple[int, ...]], int, int]]:
        return [(((1,),), 2, self._taken_ns)] * 8


@pytest.mark.parametrize(("taken_ns", "after"), [(10_000_000, 8), (100_000, 50), (10_000, 256), (100, 256)])
def test_a_plan_on_trial_is_looked_at_as_often_as_its_calls_can_bear(
    taken_ns: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes 100 µs of the call that it is in."""
    care = Care(Progress(), Config(), "m")
    care.watch = Watch(1, 2, [], tried=True)
    monkeypatch.setattr("tierup.adapt.care.perf_counter", lambda: 100e-6)
    assert care.next_look(Calls(taken_ns), 0.0) == after  # type: ignore[arg-type]
