"""Jobs in the queue: what comes first, what is dropped, and how many workers they get."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tierup.adapt.background import Background, Climb
from tierup.adapt.hot import hot_signatures
from tierup.adapt.room import Room, cores_left
from tierup.adapt.worth import Demand, why_stale, worth
from tierup.config import Config
from tierup.events import Dropped
from tierup.runtime.progress import Progress

QUIET = Demand(0, 0.0, 1.0, 0)
CLOSED = (((1, 2),),)


class Fake:
    """A model that says how it is called."""

    def __init__(self, name: str, demand: Demand, signatures: Any = ()) -> None:
        self.now, self.progress = QUIET, Progress()
        arguments: Any = (name, self.go_live, self, self.progress, Config(), signatures)
        self.climb = Climb(*arguments, demand=self.demand)
        self.later = demand

    def go_live(self, *_: Any) -> bool:
        return True

    def demand(self, signatures: Any) -> Demand:
        return self.now


class Queue:
    """A queue whose thread waits until everything is queued."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.may_run, self.first = threading.Event(), threading.Event()
        self.background = Background(self._run)
        self._first = Fake("first", QUIET)  # held: climbs are dropped with their models
        self.background.submit(self._first.climb)
        assert self.first.wait(20)

    def _run(self, climb: Climb) -> None:
        self.first.set()
        assert self.may_run.wait(20)
        self.ran.append(climb.name)
        climb.progress.finish()

    def finish(self, *models: Fake) -> list[str]:
        for model in models:
            self.background.submit(model.climb)
        for model in models:
            model.now = model.later
        self.may_run.set()
        for model in models:
            assert model.progress._done.wait(20)
        return self.ran[1:]


def test_the_most_worthy_comes_first() -> None:
    rare = Fake("rare", Demand(10, 0.01, 1.0, 10))
    often = Fake("often", Demand(1000, 0.01, 1.0, 64))
    closing = Fake("closing", Demand(1000, 0.01, 1.0, 64), CLOSED)  # which saves less
    assert Queue().finish(rare, closing, often) == ["often", "closing", "rare"]


def test_what_somebody_waits_for_comes_before() -> None:
    often, awaited = Fake("often", Demand(1000, 0.01, 1.0, 64)), Fake("awaited", QUIET)
    awaited.progress.awaited = 1
    assert Queue().finish(often, awaited) == ["awaited", "often"]


class Stages:
    """A queue whose climbs have two stages; others are queued after the first stage of the first one."""

    def __init__(self, first: Fake, *others: Fake) -> None:
        self.first, self.others, self.told = first, others, list[str]()
        self.background = Background(self._run)
        self.background.submit(first.climb)
        for model in (first, *others):
            assert model.progress._done.wait(20)

    def _run(self, climb: Climb) -> None:
        self.told.append(f"{climb.name} begins")
        if climb is self.first.climb:
            for model in self.others:
                self.background.submit(model.climb)
            for model in (self.first, *self.others):
                model.now = model.later
            assert self.background.length == 1 + len(self.others)
        climb.pause()
        self.told.append(f"{climb.name} ends")
        climb.progress.finish()


def test_a_climb_gives_way_to_one_that_is_worth_more() -> None:
    large = Fake("large", Demand(20, 0.01, 1.0, 20))
    often, same = Fake("often", Demand(1000, 0.01, 1.0, 64)), Fake("same", Demand(21, 0.01, 1.0, 21))
    most = Fake("most", Demand(9000, 0.01, 1.0, 64))
    told = Stages(large, often, same, most).told
    assert told == [
        "large begins", "most begins", "most ends", "often begins", "often ends", "large ends", "same begins",
        "same ends",
    ]  # fmt: skip


def test_a_climb_gives_way_to_one_that_somebody_waits_for() -> None:
    large, awaited = Fake("large", Demand(1000, 0.01, 1.0, 64)), Fake("awaited", QUIET)
    awaited.progress.awaited = 1
    assert Stages(large, awaited).told == ["large begins", "awaited begins", "awaited ends", "large ends"]


def test_a_climb_gives_way_to_nothing_that_is_gone() -> None:
    large, closed = Fake("large", Demand(2, 0.01, 1.0, 2)), Fake("closed", Demand(1000, 0.01, 1.0, 64))
    closed.progress.stop()
    assert Stages(large, closed).told == ["large begins", "large ends"]


def pressing(name: str, monkeypatch: pytest.MonkeyPatch, presses: bool = True) -> Fake:
    model = Fake(name, QUIET)
    monkeypatch.setattr(model.climb, "presses", lambda: presses)
    return model


def test_what_presses_runs_beside_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for a climb whose workers get no core."""
    queue = Queue()  # its first climb does not end before this test says so
    monkeypatch.setattr(queue._first.climb, "presses", lambda: False)
    idle, urgent = pressing("idle", monkeypatch, False), pressing("urgent", monkeypatch)
    ran = threading.Event()

    def run(climb: Climb) -> None:
        queue.ran.append(climb.name)
        climb.progress.finish()
        ran.set()

    queue.background._run = run
    queue.background.submit(idle.climb)
    queue.background.hurry()
    assert queue.background.length == 2
    queue.background.submit(urgent.climb)
    queue.background.hurry()
    assert ran.wait(20)
    assert queue.ran == ["urgent"]
    assert not idle.progress.settled
    queue.may_run.set()
    assert idle.progress._done.wait(20)
    assert queue.ran == ["urgent", "first", "idle"]


def test_one_that_presses_keeps_the_next_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    monkeypatch.setattr(queue._first.climb, "presses", lambda: True)
    queue.background.submit(pressing("urgent", monkeypatch).climb)
    queue.background.hurry()
    assert queue.background.length == 2
    assert queue.background._begun == [queue._first.climb]
    queue.may_run.set()


def test_equals_come_in_order() -> None:
    models = [Fake(str(number), QUIET, CLOSED) for number in range(5)]
    for model in models:
        model.climb._demand = None
    assert Queue().finish(*models) == ["0", "1", "2", "3", "4"]


def test_a_signature_that_stopped_coming_is_dropped() -> None:
    gone = Fake("gone", Demand(500, 0.0, 0.0, 64), CLOSED)
    there = Fake("there", Demand(500, 0.01, 0.5, 64), CLOSED)
    assert Queue().finish(gone, there) == ["there"]
    (entry,) = gone.progress.events.all()
    assert isinstance(entry.event, Dropped)
    assert str(entry.event) == (
        "tier 2 dropped from the queue: none of the last calls came with it, of 500 since it was queued"
    )
    assert gone.progress.settled
    assert gone.progress.reason == ""


def test_a_closed_model_is_dropped() -> None:
    closed = Fake("closed", QUIET)
    queue = Queue()
    queue.background.submit(closed.climb)
    closed.progress.stop()
    assert queue.finish(Fake("other", QUIET)) == ["other"]
    assert "closed or frozen" in closed.progress.reason
    assert [type(entry.event) for entry in closed.progress.events.all()] == [Dropped]


def test_worth_is_what_is_saved_for_what_it_costs() -> None:
    now = Demand(99, 0.01, 0.5, 64)
    value = worth(2, QUIET, now, 9.0, 2.0)
    assert value == pytest.approx(100 / 10 * 0.01 * 0.1 * 0.5 / 2.0)
    assert worth(1, QUIET, now, 9.0, 2.0) > value
    assert worth(2, QUIET, now, 9.0, 4.0) == pytest.approx(value / 2)
    assert worth(2, QUIET, Demand(99, 0.01, 0.25, 64), 9.0, 2.0) == pytest.approx(value / 2)


def test_a_climb_presses_while_the_baseline_is_called_a_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tierup.adapt.background.monotonic", lambda: clock[0])
    model, closing = Fake("model", QUIET), Fake("closing", QUIET, (((1, 2),),))
    for one in (model, closing):
        one.climb.queued()
        assert not one.climb.presses()  # nobody calls
    clock[0] = 2.0
    model.now = closing.now = Demand(100, 0.01, 1.0, 64)  # half of the time
    assert model.climb.presses()
    assert not closing.climb.presses()  # it would save a tenth of that
    clock[0] = 20.0
    assert not model.climb.presses()  # no more calls since


def test_a_call_that_has_just_begun_has_taken_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tierup.adapt.background.monotonic", lambda: clock[0])
    model, closing = Fake("model", QUIET), Fake("closing", QUIET, (((1, 2),),))
    for one in (model, closing):
        one.climb.queued()
    clock[0] = 0.002
    model.now = closing.now = Demand(1, 0.1, 1.0, 64)
    assert model.climb.presses()
    assert not closing.climb.presses()  # a tenth of a core, not five


def test_a_climb_of_unknown_demand_presses_when_somebody_waits() -> None:
    model = Fake("model", QUIET)
    assert not model.climb.presses()
    model.progress.awaited = 1
    assert model.climb.presses()


def test_a_job_is_stale_only_when_enough_calls_say_so() -> None:
    assert why_stale(QUIET, Demand(100, 0.0, 0.0, 64))
    assert not why_stale(QUIET, Demand(10, 0.0, 0.0, 64))  # too few since it was queued
    assert not why_stale(QUIET, Demand(100, 0.0, 0.0, 3))  # too few that were timed
    assert not why_stale(QUIET, Demand(100, 0.01, 0.02, 64))


def test_the_longer_the_queue_the_more_calls_it_takes() -> None:
    seen = [(((1, 2),), 40), (((3, 4),), 200)]
    assert hot_signatures(seen) == (((3, 4),), ((1, 2),))
    assert hot_signatures(seen, queued=1) == (((3, 4),),)
    assert hot_signatures(seen, queued=10) == ()
    assert len(hot_signatures(seen, queued=10, everything=True)) == 2


def test_workers_get_the_cores_that_calls_leave() -> None:
    assert [cores_left(2, busy) for busy in (0.0, 0.2, 0.5, 1.0, 2.0)] == [2, 2, 1, 1, 1]
    assert [cores_left(8, busy) for busy in (0.0, 1.0, 3.4, 9.0)] == [8, 7, 4, 1]
    assert cores_left(1, 0.0) == 1


def test_workers_get_the_memory_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, expected in ((0, 1), (1 << 30, 2), (9 << 30, 3)):
        monkeypatch.setattr("tierup.adapt.room.available_bytes", lambda available=available: available)
        assert Room(4, 1 << 30)() == expected
