"""Live calls -> workers that answer them again, for life: one at a time, as often as a small budget allows."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from time import thread_time
from typing import TYPE_CHECKING
from weakref import WeakMethod

import msgspec

from tierup.adapt.behind import start_behind

if TYPE_CHECKING:
    from tierup.adapt.messages import CheckedCall
    from tierup.adapt.tensors import TensorData
    from tierup.config import Config
    from tierup.store.source import Source

LIMIT_S = 60.0  # of a core; what takes longer is left out
_MOST_WAITING = 8

# The calls after a swap that are checked whatever it costs; then the budget decides, within these bounds. At least, so
# that what taking a sample adds to its call is not seen in the 99th percentile; where that is much beside what a call
# takes, and the next calls find their caches cold, nor in the 99.9th. At most, so that a kernel that goes wrong is in a
# sample so many calls later, whatever a check costs.
FIRST_CALLS = (1, 7)
LEAST_CALLS, LEAST_SHORT_CALLS, MOST_CALLS = 128, 2048, 1 << 18
_SHORT = 10.0  # times what taking a sample takes
SHARE = 0.005  # of a core, for workers: they take no more from calls than the core that they use (native/src/rests.hpp)
OWN_SHARE = 0.002  # and in this process: copies, messages
START_S = 10.0  # of calls, that a process which starts with a plan from the cache is left alone for


def pause_s(check_s: float, own_s: float) -> float:
    """The time that has to pass between two samples, if one takes a worker and this process so long."""
    return max(check_s / SHARE, own_s / OWN_SHARE)


def least_calls(call_s: float, taking_s: float) -> int:
    """After how many calls to take the next one at least, if calls and taking a sample of one last so long."""
    return LEAST_SHORT_CALLS if call_s < _SHORT * taking_s else LEAST_CALLS


def next_sample(number: int, calls_per_s: float, pause_s: float, least: int = LEAST_CALLS) -> int:
    """After how many calls to take the next one: `number` were taken since the swap."""
    if number < len(FIRST_CALLS):
        return FIRST_CALLS[number]
    return int(max(least, min(MOST_CALLS, calls_per_s * pause_s)))


class Sample(msgspec.Struct, frozen=True):
    """A call with its answer, in memory only. `number` is the call's, `program` that of the program that answered."""

    inputs: tuple[TensorData, ...]
    outputs: tuple[TensorData, ...]
    number: int
    program: int


_Told = Callable[[Sample, "CheckedCall | str"], None]
_Asked = tuple[Sample, "Source", "Config", "WeakMethod[_Told]", Callable[[], bool]]


class Sampler:
    """A queue and its thread, which sleeps while there is nothing to check: to start one takes half a millisecond of
    the call that was sampled, since the new thread comes first."""

    def __init__(self) -> None:
        self._start_fresh()
        os.register_at_fork(after_in_child=self._start_fresh)

    def _start_fresh(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Asked] = deque()
        self._running = self._busy = False
        self.spent_s = 0.0  # processor time that this thread took for the last one

    def check(
        self,
        sample: Sample,
        source: Source,
        config: Config,
        done: _Told,
        presses: Callable[[], bool],
    ) -> bool:
        """Have a call answered again; `done`, a method that is held weakly, is told what came of it. `presses` says
        whether somebody waits for that; otherwise calls go first. False if there is too much to do already."""
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                return False
            if not self._running:
                try:
                    start_behind(self._work, "tierup-sampling")
                except RuntimeError:  # there are too many threads
                    return False
                self._running = True
            self._waiting.append((sample, source, config, WeakMethod(done), presses))
            self._changed.notify_all()
            return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to check; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def _work(self) -> None:
        try:
            while True:
                self._check_one(*self._next())  # so that nothing is kept alive while this waits
        finally:
            with self._changed:
                self._running = self._busy = False
                self._changed.notify_all()

    def _next(self) -> _Asked:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting)
            self._busy = True
            return self._waiting.popleft()

    def _check_one(
        self,
        sample: Sample,
        source: Source,
        config: Config,
        done: WeakMethod[_Told],
        presses: Callable[[], bool],
    ) -> None:
        if done() is None:
            return
        began_s = thread_time()
        result = _checked(sample, source, config, presses)
        self.spent_s = thread_time() - began_s
        tell = done()
        if tell is not None:
            tell(sample, result)


def _checked(sample: Sample, source: Source, config: Config, presses: Callable[[], bool]) -> CheckedCall | str:
    """What a worker found, or why it did not."""
    from tierup.adapt.builders import run_jobs
    from tierup.adapt.messages import CheckCall, CheckedCall, Failure
    from tierup.adapt.workers import WorkersUnavailable
    from tierup.store.plans import Plans
    from tierup.store.source import as_file

    try:
        with as_file(source, Plans(config.cache_path).folder) as (path, stamp):
            job = CheckCall(path, stamp, sample.inputs, sample.outputs, config.precision)
            (reply,) = run_jobs([job], limit_s=LIMIT_S, presses=presses)
    except (WorkersUnavailable, OSError, ValueError) as error:
        return str(error)
    if isinstance(reply, Failure):
        return reply.reason
    assert isinstance(reply, CheckedCall)  # the only other reply that fits such a job
    return reply


SAMPLER = Sampler()  # one for the process
