"""NumPy's BLAS has one thread while reference functions run, whichever threads call, and its own number afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tierup.reference.threads import ONE_BLAS_THREAD


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def in_thread(body: Callable[[], None]) -> None:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def several_threads() -> object:
    """More than one to begin with, on a machine with one core too."""
    np.ones((2, 2)) @ np.ones((2, 2))
    with threadpool_limits(2, "blas"):
        yield
        assert set(blas_threads()) == {2}


def test_a_second_thread_is_limited_too() -> None:
    """threadpoolctl lets only the first thread that ever set a limit set another."""
    with ONE_BLAS_THREAD:
        assert set(blas_threads()) == {1}
    seen: list[int] = []

    def work() -> None:
        with ONE_BLAS_THREAD:
            seen.extend(blas_threads())

    in_thread(work)
    assert set(seen) == {1}


def test_a_worker_keeps_one_thread() -> None:
    with threadpool_limits(2, "blas"):
        ONE_BLAS_THREAD.keep()
        assert set(blas_threads()) == {1}
        with ONE_BLAS_THREAD:
            pass
        assert set(blas_threads()) == {1}


def test_the_last_to_leave_restores_what_the_first_found() -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with ONE_BLAS_THREAD:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=work)
    with ONE_BLAS_THREAD:
        thread.start()
        entered.wait()
    assert set(blas_threads()) == {1}
    leave.set()
    thread.join()
    assert set(blas_threads()) == {2}


@pytest.mark.parametrize("step", ["_limit", "_restore"])
def test_an_interrupt_in_a_step_is_made_good_by_the_next_function(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ONE_BLAS_THREAD, step, interrupted)
        with pytest.raises(KeyboardInterrupt), ONE_BLAS_THREAD:
            pass
    with ONE_BLAS_THREAD:
        assert set(blas_threads()) == {1}
    assert set(blas_threads()) == {2}


def test_an_interrupt_just_before_leaving_is_made_good_by_the_next_function() -> None:
    ONE_BLAS_THREAD.__enter__()  # the interrupt is raised by the first instruction of __exit__
    with ONE_BLAS_THREAD:
        assert set(blas_threads()) == {1}
    assert set(blas_threads()) == {2}


def test_a_signal_handler_may_call_while_the_limit_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = ONE_BLAS_THREAD._limit
    inside: list[int] = []

    def handled() -> None:  # as a handler that runs between two bytecodes of __enter__
        if not inside:
            inside.append(1)
            with ONE_BLAS_THREAD:
                pass
        limit()

    monkeypatch.setattr(ONE_BLAS_THREAD, "_limit", handled)
    with ONE_BLAS_THREAD:
        assert set(blas_threads()) == {1}
