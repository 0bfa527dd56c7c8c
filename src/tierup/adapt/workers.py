"""Worker processes, as their parent sees them: jobs in, replies out, whatever happens to a worker.

Processes are started when they are needed, at most as many as a run asks for, and given back when nothing was asked of
them for a while. A job may be begun before anybody asks for it: `run` finds it under way. One that can wait is done by
a worker that has stepped back: it runs only where nobody else wants to. There is no way back for it, so that a job that
presses gets another one, also if it came to press when it was begun and hardly gets on. Workers share nothing with this
process but a socket each. One that dies, or says what cannot be an answer, is replaced, and its job is tried once more;
one that takes too long is killed, and its job fails. Nothing here keeps the process alive: it may end at any time, and
its workers notice.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from tierup.adapt.aside import LOOK_S, Aside, Cores, Here, cores_of
from tierup.adapt.messages import Failure, Job, Reply, Spent, TryPlan
from tierup.adapt.process import STARVED_S, Lost, Task, Worker

# -P: what lies in the current folder is not imported.
COMMAND = (sys.executable or "", "-P", "-m", "tierup.adapt.start")
JOB_LIMIT_S = 120.0

_IDLE_S = 30.0
_RETRY_S = 60.0  # after which starting workers is tried again where none could be
_ATTEMPTS = 2
_MOST_HELD_BYTES = 1 << 30  # of a worker that rests: one that holds more is let go

_log = logging.getLogger(__name__)


AtMost = int | Callable[[], int]  # workers at once; it may change while jobs wait
Presses = bool | Callable[[], bool]  # whether a job is worth a core that calls could use; it may change, too
Told = Callable[[Job, Spent], None]  # what a job took


class WorkersUnavailable(Exception):
    """No worker can be started here; the message says why."""


class Workers:
    """A set of workers."""

    def __init__(self, command: Sequence[str] = COMMAND, idle_s: float = _IDLE_S) -> None:
        self._command, self._idle_s = tuple(command), idle_s
        self.lost = 0
        """How many were replaced: they crashed, hanged or wrote rubbish."""
        self._unavailable: str | None = None
        self._unavailable_until_s = 0.0
        self._start_fresh()
        _SETS.add(self)

    def _start_fresh(self) -> None:
        """No workers, no waiters: also what a forked child begins with."""
        self._changed = threading.Condition()
        self._all: set[Worker] = set()
        self._resting: list[Worker] = []
        self._ahead: Worker | None = None  # it has begun with a job that nobody has asked for yet
        self._waiting = 0
        self._failed_starts = 0
        self._aside = Aside()
        self._timer: threading.Timer | None = None
        self._pid = os.getpid()
        self._ending = threading.Event()
        self._end = weakref.finalize(self, _kill_all, self._all, self._ending, self._pid)

    @property
    def running(self) -> int:
        """How many processes there are."""
        return len(self._all) if self._pid == os.getpid() else 0

    def run(
        self,
        jobs: Sequence[Job],
        *,
        at_most: AtMost,
        limit_s: float = JOB_LIMIT_S,
        told: Told | None = None,
        presses: Presses = False,
    ) -> list[Reply]:
        """The reply to each job, in order, with at most so many workers at once and so many seconds for each job;
        `told` hears what each took. Unless the jobs press, calls go first, and the cores on which they run are left to
        them: by this thread, too.

        Others may run jobs at the same time. WorkersUnavailable if none can be started.
        """
        self._see_to_forks()
        pending = deque(Task(number, job) for number, job in enumerate(jobs))
        replies: dict[int, Reply] = {}
        busy, here = self._begun_ahead(pending), Here()
        if not _says(presses):
            for begun in busy:
                begun.step_back()
        look_again_s = 0.0
        try:
            while (pending or busy) and not self._ending.is_set():
                if time.monotonic() >= look_again_s:
                    look_again_s = time.monotonic() + LOOK_S
                    pressing = _says(presses)
                    if pressing:
                        self._take_back(busy, pending)
                    left = here.allowed if pressing else self._left_by_calls(here.allowed)
                    most = at_most if isinstance(at_most, int) else at_most()
                    most = most if left == here.allowed else min(most, len(left))
                    here.keep_to(left)
                while pending and len(busy) < most and (worker := self._take(most, pressing, wait=not busy)):
                    busy.append(worker)
                    worker.begin(pending.popleft(), limit_s)
                for worker in busy:
                    if _tries(worker):
                        worker.goes_where_it_wants()
                    else:
                        worker.keep_to(left)
                for worker in _wait(busy, LOOK_S if len(here.allowed) > 1 else STARVED_S):
                    job, known = worker.task, len(replies)
                    self._advance(worker, busy, pending, replies, limit_s)
                    if told is not None and job is not None and worker.spent is not None and len(replies) > known:
                        told(job.job, worker.spent)
        finally:
            here.keep_to(here.allowed)
            for worker in busy:  # somebody stopped us
                self._drop(worker)
            self._rest_later()
        return [replies.get(number, Failure("the process is ending")) for number in range(len(jobs))]

    def prepare(self, job: Job, limit_s: float = JOB_LIMIT_S) -> None:
        """Have a job begun that will be asked for soon, if no worker is there yet. Returns at once."""
        self._see_to_forks()
        with self._changed, suppress(WorkersUnavailable):
            if not self._all:
                self._ahead = self._start()
                self._ahead.keep_to(self._aside.left(cores_of()))
                self._ahead.begin(Task(0, job), limit_s)
                self._ahead.send()
        self._rest_later()

    def _begun_ahead(self, pending: deque[Task]) -> list[Worker]:
        """The worker that is at one of these jobs already, if there is one."""
        with self._changed:
            worker = self._ahead
            if worker is None or worker.task is None:
                return []
            task = next((task for task in pending if task.job == worker.task.job), None)
            if task is None:
                return []
            self._ahead = None
        pending.remove(task)
        task.attempts, worker.task = worker.task.attempts, task
        return [worker]

    def _left_by_calls(self, allowed: Cores) -> Cores:
        """The cores that workers may use which give way to calls, as does one that nobody has asked for yet."""
        with self._changed:
            left = self._aside.left(allowed)
            if self._ahead is not None:
                self._ahead.keep_to(left)
            return left

    def _see_to_forks(self) -> None:
        if self._pid != os.getpid():
            self.forget()

    def _take_back(self, busy: list[Worker], pending: deque[Task]) -> None:
        """Have jobs begun anew that press by now, and whose workers hardly get on."""
        for worker in [worker for worker in busy if worker.starves()]:
            busy.remove(worker)
            self._drop(worker)
            if worker.task is not None:
                worker.task.attempts -= 1
                pending.appendleft(worker.task)

    def _advance(
        self, worker: Worker, busy: list[Worker], pending: deque[Task], replies: dict[int, Reply], limit_s: float
    ) -> None:
        """One step of one job: not done yet, done, or to be done again by another worker."""
        task = worker.task
        assert task is not None
        try:
            reply = worker.advance()
        except Lost as lost:
            busy.remove(worker)
            self._drop(worker)
            if self._ending.is_set():
                return
            _log.warning("%s", lost)
            self._count_start(lost)
            if task.attempts < _ATTEMPTS:
                pending.appendleft(task)
            else:
                replies[task.number] = Failure(f"{lost}, twice")
            return
        if reply is None and not worker.deadline.is_over():
            return
        busy.remove(worker)
        if reply is None:
            self._drop(worker)
            reply = Failure(f"it took longer than {limit_s:g} s" if worker.ready else "a worker took too long to start")
        else:
            self._give_back(worker)
        replies[task.number] = reply

    def _take(self, at_most: int, pressing: bool, wait: bool) -> Worker | None:
        """A worker that rests, or a new one; None if there is none and `wait` is false. Whoever has none goes first."""
        worker = self._rested_or_new(at_most, pressing, wait)
        if worker is not None and not pressing:
            worker.step_back()
        return worker

    def _rested_or_new(self, at_most: int, pressing: bool, wait: bool) -> Worker | None:
        with self._changed:
            if not wait and self._waiting:
                return None
            while True:
                if self._unavailable is not None and time.monotonic() < self._unavailable_until_s:
                    raise WorkersUnavailable(self._unavailable)
                self._unavailable = None
                while self._resting:
                    worker = self._resting.pop()
                    if worker.is_usable() and not (pressing and worker.stepped_back):
                        return worker
                    self._all.discard(worker)
                    worker.end()
                # One that has stepped back may not get on for a long time: a job that presses does not wait for it.
                others = (worker for worker in self._all if worker is not self._ahead)
                if sum(not (pressing and worker.stepped_back) for worker in others) < at_most:
                    return self._start()
                if not wait:
                    return None
                self._waiting += 1
                self._changed.wait()
                self._waiting -= 1

    def _start(self) -> Worker:
        try:
            worker = Worker(self._command)
        except OSError as error:  # it may be better later: too many processes, no memory
            raise WorkersUnavailable(f"no worker could be started: {error}") from error
        self._all.add(worker)
        return worker

    def _give_back(self, worker: Worker) -> None:
        greedy = worker.spent is not None and worker.spent.held_bytes > _MOST_HELD_BYTES
        with self._changed:
            worker.task = None
            self._failed_starts = 0
            if greedy:
                self._all.discard(worker)
            else:
                self._resting.append(worker)
            self._changed.notify()
        if greedy:
            worker.leave()

    def _rest_later(self) -> None:
        """The timer's thread is a daemon, so that it holds up nobody."""
        with self._changed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._idle_s, self.rest)
            self._timer.daemon = True
            with suppress(RuntimeError):  # the interpreter is ending, and starts no threads any more
                self._timer.start()

    def _count_start(self, lost: Lost) -> None:
        """Give up for a while where workers do not even start: a broken installation, or no memory today."""
        with self._changed:
            self._failed_starts = 0 if lost.started else self._failed_starts + 1
            if self._failed_starts >= _ATTEMPTS:
                self._unavailable, self._failed_starts = str(lost), 0
                self._unavailable_until_s = time.monotonic() + _RETRY_S
                self._changed.notify_all()
                raise WorkersUnavailable(self._unavailable) from lost

    def _drop(self, worker: Worker) -> None:
        worker.kill()
        with self._changed:
            self.lost += 1
            self._all.discard(worker)
            self._changed.notify()

    def rest(self) -> None:
        """Let the workers go that have nothing to do."""
        with self._changed:
            leaving, self._resting = self._resting, []
            if self._ahead is not None:  # nobody came for what it did
                leaving.append(self._ahead)
                self._ahead = None
            self._all.difference_update(leaving)
            self._changed.notify_all()
        for worker in leaving:
            worker.leave()

    def forget(self) -> None:
        """After a fork: the workers are the parent's. Start with none."""
        for worker in self._all:
            worker.forget()
        self._end.detach()
        self._start_fresh()


def _says(presses: Presses) -> bool:
    return presses if isinstance(presses, bool) else presses()


def _tries(worker: Worker) -> bool:
    """Whether it times a plan, which has to have the cores then that it has when it serves."""
    return worker.task is not None and isinstance(worker.task.job, TryPlan)


def _wait(workers: Iterable[Worker], look_s: float) -> list[Worker]:
    """Those that have something to say, can be told something, or have run out of time. After so many seconds it is
    looked again where those may run that have stepped back, and whether their jobs press."""
    poll = select.poll()
    by_number = {worker.channel.fileno(): worker for worker in workers}
    for number, worker in by_number.items():
        poll.register(number, worker.events)
    first = min((worker.deadline.next_s for worker in by_number.values()), default=0.0)
    if any(worker.stepped_back for worker in by_number.values()):
        first = min(first, time.monotonic() + look_s)
    ready = {number for number, _ in poll.poll(max(0.0, first - time.monotonic()) * 1000 + 1)}
    now = time.monotonic()
    return [worker for number, worker in by_number.items() if number in ready or now >= worker.deadline.next_s]


def _kill_all(workers: set[Worker], ending: threading.Event, pid: int) -> None:
    """When the set or the process ends. Daemon threads may still be waiting for replies."""
    if os.getpid() != pid:
        return
    ending.set()
    for worker in list(workers):
        worker.process.kill()
    for worker in list(workers):
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(1)


_SETS: weakref.WeakSet[Workers] = weakref.WeakSet()


def _forget_all() -> None:
    for workers in list(_SETS):
        workers.forget()


os.register_at_fork(after_in_child=_forget_all)
