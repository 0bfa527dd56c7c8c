"""Two programs, timed in turn: what their first calls and interrupted ones may say, and what not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tierup.adapt import contest
from tierup.adapt.compare import log_of, verdict
from tierup.adapt.messages import CallRecord
from tierup.adapt.tensors import records_of
from tierup.events import Compared
from tierup.plan.program import StepCode
from tierup.profile.identity import identify

MS = 1e-3


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[float], bool], Compared]:
    """Compares an incumbent whose calls take so long with a candidate whose calls take a millisecond."""
    now_s = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now_s, monotonic=lambda: now_s)
    monkeypatch.setattr(contest, "time", clock)

    def runner(times_s: Iterator[float]) -> Callable[[Any], None]:
        def run(feeds: Any) -> None:
            nonlocal now_s
            now_s += next(times_s)

        return run

    def compare(
        incumbent: Iterator[float], single: bool, far: bool = False, live_s: float = 0.0, first_s: float = 0.0
    ) -> Compared:
        call = CallRecord(((1,),), records_of({"x": np.zeros(1, np.float32)}) or (), live_s)
        entry: Any = None  # it says how inputs are drawn, which are given here
        answers = runner(incumbent)
        return contest._compare(entry, call, lambda feeds: answers, runner(repeat(MS)), 0.1, single, far, first_s)

    return compare


def said(compared: Compared) -> str:
    return verdict([(log_of(compared.gain), compared.margin)])


def test_single_calls_tell_the_baseline_from_kernels(compared: Callable[[Iterator[float], bool], Compared]) -> None:
    found = compared(repeat(30 * MS), True)
    assert (said(found), found.pairs) == ("better", 2)


def test_one_call_of_each_is_enough_where_other_signatures_have_said_so(compared: Callable[..., Compared]) -> None:
    found = compared(repeat(30 * MS), True, True)
    assert (said(found), found.pairs) == ("better", 1)
    slow = compared(repeat(0.9 * MS), True, True)
    assert said(slow) == "worse"
    assert slow.pairs >= 3


def test_live_calls_have_shown_what_the_baseline_takes(compared: Callable[..., Compared]) -> None:
    never: Iterator[float] = iter(())
    found = compared(never, True, live_s=30 * MS, first_s=2 * MS)
    assert (said(found), found.pairs, found.incumbent_us) == ("better", 2, pytest.approx(30_000))
    assert compared(never, True, True, live_s=30 * MS, first_s=2 * MS).pairs == 1
    # Where they do not say twice, both are timed here, one after the other.
    near = compared(repeat(0.9 * MS), True, live_s=1.9 * MS, first_s=MS)
    assert said(near) == "worse"
    late = compared(repeat(30 * MS), True, live_s=30 * MS, first_s=20 * MS)
    assert (said(late), late.pairs) == ("better", 2)
    # A call that takes long is hardly changed by an interruption: half as long again tells enough.
    assert compared(never, True, live_s=200 * MS, first_s=125 * MS).pairs == 1
    assert compared(repeat(30 * MS), True, live_s=200 * MS, first_s=140 * MS).candidate_us == pytest.approx(1000)
    # Short ones may all have been interrupted: the kernels were slow, and looked far better.
    assert said(compared(repeat(0.1 * MS), True, live_s=9 * MS, first_s=2 * MS)) == "worse"
    # Beside other kernels, live calls of another time say nothing.
    assert said(compared(repeat(MS), False, live_s=30 * MS, first_s=MS)) == "same"


def test_first_calls_do_not_tell_kernels_from_kernels(compared: Callable[[Iterator[float], bool], Compared]) -> None:
    """One takes long because it is the first, another because it was interrupted."""
    found = compared(chain([30 * MS, 40 * MS], repeat(MS, 4), [18 * MS], repeat(MS)), False)
    assert said(found) == "same"
    assert found.pairs >= 3
    assert said(compared(repeat(2 * MS), False)) == "better"


def test_what_it_takes_to_make_the_baseline_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of 2.5 ms won against a baseline of 0.1: other signatures had said so, and one call was to be enough."""
    called: list[Any] = []
    monkeypatch.setattr("tierup.plan.baseline.baseline", lambda graph: called.append("made"))
    monkeypatch.setattr(contest, "executable", lambda plan, weights: None)
    monkeypatch.setattr(contest, "_runner", lambda about, program: called.append)
    origin: Any = SimpleNamespace(imported=lambda: SimpleNamespace(graph=None, weights=None))
    about: Any = None
    incumbent = contest._baseline(about, origin)
    assert called == []
    assert incumbent({"x": 1}) is incumbent({"x": 2})
    assert called == ["made", {"x": 1}]


@pytest.mark.parametrize(("step", "every"), [(StepCode.BRANCH_DIM, False), (StepCode.BRANCH, True)])
def test_a_trial_has_all_weights_where_values_decide(step: StepCode, every: bool) -> None:
    entry: Any = SimpleNamespace(plan=SimpleNamespace(functions=[SimpleNamespace(steps=[(step, 0, 0)])]))
    caches = identify().caches
    least = caches[-1].size_bytes if caches and not every else sys.maxsize
    assert contest._most_bytes(entry, 2) >= least
    assert (contest._most_bytes(entry, 2) == sys.maxsize) == (every or not caches)
