"""Calls that wait until something far better is there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.security.models import model, node, value

import tierup


def loaded() -> tierup.Model:
    given = model([node("Exp", ["x"], ["y"])], [value("x", ["n"])], [value("y", ["n"])])
    return tierup.load(given.SerializeToString(), config=tierup.Config(adapt=False, force_tier=0))


def answer(held: tierup.Model) -> float:
    return float(held(x=np.zeros(1, np.float32))["y"][0])


def test_a_call_waits_and_is_answered_by_what_came_meanwhile() -> None:
    held, better = loaded(), loaded()
    held.hold_calls(30)
    answers: list[float] = []
    caller = threading.Thread(target=lambda: answers.append(answer(held)))
    caller.start()
    while held.held_calls == 0:
        time.sleep(0.001)
    assert not answers
    assert held.calls == 0
    held.program = better.program
    held.hold_calls(0)
    caller.join(30)
    assert answers == [1.0]
    assert better.program is not None
    assert [program for _, program, _ in held.times()] == [better.program.number]
    assert held.held_calls == 1
    assert answer(held) == 1.0
    assert held.held_calls == 1  # nobody waits any more


def test_a_call_waits_no_longer_than_it_was_said() -> None:
    held = loaded()
    began = time.monotonic()
    held.hold_calls(0.2)
    assert answer(held) == 1.0
    over = time.monotonic()
    assert over - began >= 0.2
    answers = 0
    while answers < 20:  # the time was over before: none of these waits, however long it takes
        answers += answer(held) == 1.0
    assert (held.held_calls, held.calls) == (21, 21)
    assert time.monotonic() - over < 20 * 0.2
    for seconds in (-1.0, 61.0, float("nan")):
        with pytest.raises(ValueError, match="60 seconds"):
            held.hold_calls(seconds)


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs these tests may have it ignored
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_whoever_waits_can_be_interrupted() -> None:
    held = loaded()
    held.hold_calls(30)
    began = time.monotonic()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        answer(held)
    assert time.monotonic() - began < 20
    timer.join()


def test_a_model_that_is_closed_meanwhile_says_so() -> None:
    held = loaded()
    held.hold_calls(30)
    said: list[str] = []

    def call() -> None:
        with pytest.raises(tierup.TierupError) as error:
            answer(held)
        said.append(str(error.value))

    caller = threading.Thread(target=call)
    caller.start()
    while held.held_calls == 0:
        time.sleep(0.001)
    held.close()
    held.hold_calls(0)
    caller.join(30)
    assert said == ["the model is closed"]
