"""Threads behind calls: turns are short while they work, and as they were afterwards."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from tierup.adapt.behind import _TURNS, TURN_S, start_behind


@pytest.fixture
def usual_s() -> Iterator[float]:
    """What the process has while nobody works."""
    wait = 0
    while _TURNS._working and wait < 1000:  # what earlier tests left
        wait += 1
        threading.Event().wait(0.01)
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


class Work:
    """Two pieces that end when they are told to."""

    def __init__(self) -> None:
        self.begun = threading.Barrier(3)
        self.end = [threading.Event(), threading.Event()]
        for event in self.end:
            start_behind(lambda event=event: self._work(event), "tierup-test")  # type: ignore[misc]
        self.begun.wait(20)

    def _work(self, event: threading.Event) -> None:
        self.begun.wait(20)
        event.wait(20)

    def finish(self) -> None:
        for event in self.end:
            event.set()
        for thread in threading.enumerate():
            if thread.name == "tierup-test":
                thread.join(20)


def test_turns_are_short_while_somebody_works(usual_s: float) -> None:
    work = Work()
    assert sys.getswitchinterval() == pytest.approx(TURN_S)
    work.end[0].set()
    assert sys.getswitchinterval() == pytest.approx(TURN_S)
    work.finish()
    assert sys.getswitchinterval() == usual_s


def test_what_somebody_chose_meanwhile_stays(usual_s: float) -> None:
    work = Work()
    sys.setswitchinterval(0.003)
    work.finish()
    assert sys.getswitchinterval() == pytest.approx(0.003)


def test_a_forked_child_has_the_usual_turns(usual_s: float) -> None:
    work = Work()
    child = os.fork()
    if child == 0:
        os._exit(0 if sys.getswitchinterval() == usual_s else 1)
    work.finish()
    assert os.waitpid(child, 0)[1] == 0
