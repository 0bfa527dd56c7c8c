"""Which cores workers keep off while calls come, and that they do."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapt.test_care import settings
from tests.store.samples import perceptron, saved

import tierup
from tierup import _native
from tierup.adapt import builders
from tierup.adapt.aside import LEAST_USES, LOOK_S, Aside, Cores, Here, cores_of, keep_process_to, keep_to
from tierup.adapt.messages import Compile, Compiled
from tierup.adapt.process import Worker
from tierup.adapt.workers import Workers
from tierup.codegen.target import AVX2
from tierup.store.versions import emitter_version

FAKE = Path(__file__).parent / "fake_worker.py"
STEP_S = 1.25 * LOOK_S
TWO, FOUR = Cores({0, 1}), Cores({0, 1, 2, 3})


class Calls:
    """Counts of calls by core, and a clock."""

    def __init__(self) -> None:
        self.counts = [0] * 8
        self.now_s = 100.0
        self.aside = Aside(lambda cores: tuple(self.counts[:cores]), lambda: self.now_s)

    def pass_by(self, *rates: float, seconds: float = STEP_S, allowed: Cores = TWO) -> Cores:
        """So many calls a second on each of the first cores, for so long; what they leave."""
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for core, rate in enumerate(rates):
                self.counts[core] += round(rate * STEP_S)
            left = self.aside.left(allowed)
        return left


def test_calls_keep_their_core() -> None:
    calls = Calls()
    assert calls.pass_by(1000) == TWO  # it takes a second to know how many come
    assert calls.pass_by(1000, seconds=1.5) == {1}
    assert calls.pass_by(1000, seconds=1.5, allowed=Cores({0})) == {0}
    assert calls.pass_by(1000, seconds=1.5, allowed=FOUR) == {1, 2, 3}


def test_few_calls_keep_nothing() -> None:
    calls = Calls()
    assert calls.pass_by(0.8 * LEAST_USES, seconds=3) == TWO
    assert calls.pass_by(1000, seconds=2) == {1}
    assert calls.pass_by(0, seconds=STEP_S) == {1}  # a pause
    assert calls.pass_by(0, seconds=2) == TWO


def test_workers_make_room_where_calls_have_moved() -> None:
    calls = Calls()
    calls.pass_by(1000, seconds=2)
    assert calls.pass_by(900, 100) == {1}  # the system moves some, and moves them back
    assert calls.pass_by(450, 550) == TWO  # now it is not clear where they stay
    assert calls.pass_by(0, 1000) == {0}
    assert calls.pass_by(400, 600) == {0}


def test_calls_on_all_cores_leave_all() -> None:
    calls = Calls()
    assert calls.pass_by(1000, 1000, seconds=3) == TWO
    assert calls.pass_by(1000, 1000, 1000, seconds=3, allowed=FOUR) == {3}
    assert calls.pass_by(1000, 900, 1000, 1000, seconds=3, allowed=FOUR) == FOUR
    assert calls.pass_by(1000, 0, 1000, allowed=FOUR) == {1, 3}
    assert calls.pass_by(1000, allowed=FOUR) == {1, 2, 3}


def test_it_is_looked_now_and_then() -> None:
    asked = list[int]()

    def uses(cores: int) -> Sequence[int]:
        asked.append(cores)
        return (0,) * cores

    now = iter((0.0, 0.0, 0.4 * LOOK_S, 1.5 * LOOK_S))
    aside = Aside(uses, lambda: next(now))
    assert [aside.left(Cores({0, 5})) for _ in range(3)] == [{0, 5}] * 3
    assert asked == [6, 6]


def test_where_the_system_says_nothing_nothing_is_kept() -> None:
    assert Aside(lambda cores: (0,) * cores).left(Cores()) == Cores()
    before = cores_of()
    keep_to(0, Cores())
    keep_to(2**22 + 1, before)  # no thread has this number
    assert cores_of() == before
    assert cores_of(2**22 + 1) == Cores()


def test_calls_are_counted_where_they_run(tmp_path: Path) -> None:
    model = tierup.load(saved(tmp_path, perceptron()), config=tierup.Config(force_tier=0))
    (core, *_) = sorted(cores_of())
    found = list[tuple[int, int]]()

    def count() -> None:
        keep_to(0, Cores({core}))
        (before, *_), calls = _native.core_uses(core + 1)[core:], 10
        for _ in range(calls):
            model(x=np.ones((3, 40), np.float32))
        found.append((_native.core_uses(core + 1)[core] - before, calls))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    ((counted, calls),) = found
    assert counted >= calls  # jobs of the pool count, too
    assert len(_native.core_uses(10**9)) == 1024


def kept(aside: Any, presses: bool) -> tuple[Cores, Cores, Cores]:
    """Where a worker that was given a job may run, and this thread meanwhile and afterwards."""
    workers = Workers((sys.executable, str(FAKE), emitter_version(), "good"))
    workers._aside = aside
    meanwhile = list[Cores]()
    try:
        job = Compile(("a",), AVX2)
        at_most = lambda: (meanwhile.append(cores_of()), 1)[1]  # noqa: E731 - it is asked while jobs run
        assert workers.run([job, job], at_most=at_most, presses=presses) == [Compiled((b"a",))] * 2
        (worker,) = workers._all
        return cores_of(worker.process.pid), meanwhile[-1], cores_of()
    finally:
        workers.rest()


@pytest.mark.skipif(len(cores_of()) < 2, reason="there is one core")
def test_workers_and_who_gives_them_jobs_keep_off() -> None:
    allowed = cores_of()
    one = Cores({max(allowed)})
    aside = Calls().aside
    aside.left = lambda allowed: one  # type: ignore[method-assign]
    assert kept(aside, presses=False) == (one, one, allowed)
    assert kept(aside, presses=True) == (allowed, allowed, allowed)


def test_a_thread_is_where_it_was_when_it_is_done() -> None:
    here = Here()
    one = Cores({min(here.allowed)})
    here.keep_to(one)
    assert cores_of() == one
    here.keep_to(here.allowed)
    assert cores_of() == here.allowed


@pytest.mark.skipif(len(cores_of()) < 2, reason="there is one core")
def test_a_model_is_planned_and_built_and_tried_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, seen = cores_of(), set[tuple[str, Cores]]()
    one = Cores({max(allowed)})
    advance = Worker.advance

    def look(worker: Worker) -> Any:
        reply = advance(worker)
        assert worker.task is not None
        seen.add((type(worker.task.job).__name__, cores_of(worker.process.pid)))
        return reply

    monkeypatch.setattr(Worker, "advance", look)
    monkeypatch.setattr("tierup.adapt.background.Climb.presses", lambda climb: False)
    monkeypatch.setattr(builders._WORKERS._aside, "left", lambda allowed: one)
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    monkeypatch.setattr("tierup.profile.machine.measure_once", lambda folder: None)
    model = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    for _ in range(3):
        model(x=np.ones((3, 40), np.float32))
    while not model.settled:
        time.sleep(0.01)
    assert {("PlanModel", one), ("Compile", one), ("TryPlan", one)} <= seen
    assert {cores for _, cores in seen} == {one}
    assert os.sched_getaffinity(os.getpid()) == allowed


@pytest.mark.skipif(len(cores_of()) < 2, reason="there is one core")
def test_a_worker_that_went_where_it_wanted_is_told_again() -> None:
    worker = Worker((sys.executable, str(FAKE), emitter_version(), "good"))
    allowed = cores_of()
    one, pid = Cores({max(allowed)}), worker.process.pid
    try:
        worker.keep_to(one)
        keep_process_to(allowed, pid)  # as a trial does
        worker.keep_to(one)
        assert cores_of(pid) == allowed  # it is taken to be there
        worker.goes_where_it_wants()
        worker.keep_to(one)
        assert cores_of(pid) == one
    finally:
        worker.kill()
    keep_process_to(one, pid)  # there is none


@pytest.mark.skipif(len(cores_of()) < 2, reason="there is one core")
def test_a_job_that_was_begun_ahead_keeps_off_too() -> None:
    workers = Workers((sys.executable, str(FAKE), emitter_version(), "good"))
    allowed, left = cores_of(), list[Cores]()
    left += [Cores({min(allowed)}), Cores({max(allowed)})]
    workers._aside.left = lambda allowed: left[0]  # type: ignore[method-assign]
    try:
        workers.prepare(Compile(("a",), AVX2))
        (ahead,) = workers._all
        assert cores_of(ahead.process.pid) == left.pop(0)
        assert workers.run([Compile(("b",), AVX2)], at_most=2) == [Compiled((b"b",))]
        assert cores_of(ahead.process.pid) == left[0]  # whoever runs other jobs looks
        assert workers.run([Compile(("a",), AVX2)], at_most=2, presses=True) == [Compiled((b"a",))]
        assert cores_of(ahead.process.pid) == allowed
    finally:
        workers.rest()
