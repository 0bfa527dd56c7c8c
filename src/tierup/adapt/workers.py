"""Worker processes, as their parent sees them: jobs in, replies out, whatever happens to a worker.

Processes are started when they are needed, at most as many as a run asks for, and given back when nothing was asked of
them for a while. A job that can wait is done by a worker that has stepped back: it runs only where nobody else wants
to. There is no way back for it, so that a job that presses gets another one, also if it came to press when it was begun
and hardly gets on. Workers share nothing with this process but a socket each. One that dies, or says what cannot be an
answer, is replaced, and its job is tried once more; one that takes too long is killed, and its job fails. Nothing here
keeps the process alive: it may end at any time, and its workers notice.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tierup.adapt.deadline import Deadline, core_s
from tierup.adapt.messages import IDLE_NICENESS, REPLIES, Failure, Inbox, Job, Ready, Reply, Request, Spent, fits, pack
from tierup.store.versions import emitter_version

# -P: what lies in the current folder is not imported.
COMMAND = (sys.executable or "", "-P", "-m", "tierup.adapt.worker")
JOB_LIMIT_S = 120.0

_START_LIMIT_S = 60.0
_SPARE_S = 5.0  # a worker ends itself so long after its parent should have ended it
_IDLE_S = 30.0
_RETRY_S = 60.0  # after which starting workers is tried again where none could be
_ATTEMPTS = 2
# A worker that had stepped back when its job came to press is left at it if it gets so much of a core; it takes so long
# until that can be said, and another one about as long to start.
_ENOUGH_CORE, _STARVED_S = 0.5, 1.0
_READ_BYTES = 1 << 18
_MOST_HELD_BYTES = 1 << 30  # of a worker that rests: one that holds more is let go

_log = logging.getLogger(__name__)


AtMost = int | Callable[[], int]  # workers at once; it may change while jobs wait
Presses = bool | Callable[[], bool]  # whether a job is worth a core that calls could use; it may change, too
Told = Callable[[Job, Spent], None]  # what a job took


class WorkersUnavailable(Exception):
    """No worker can be started here; the message says why."""


class _Lost(Exception):
    """A worker that cannot go on. `started`: it was ready once."""

    def __init__(self, reason: str, started: bool) -> None:
        super().__init__(reason)
        self.started = started


@dataclass
class _Task:
    number: int
    job: Job
    attempts: int = 0


class _Worker:
    """One process, and its side of what is being said."""

    def __init__(self, command: Sequence[str], first: str) -> None:
        self.channel, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid()), first],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C is for the parent. No session of its own: Linux may share the processor between sessions,
                # and then it would count as much as the parent's, however idle it is inside.
                process_group=0,
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.channel.setblocking(False)
        self.ready = self.stepped_back = False
        self.task: _Task | None = None
        self.spent: Spent | None = None
        self.deadline = Deadline(self.process.pid, _START_LIMIT_S)
        self._limit_s = 0.0
        self._begun_s = self._begun_core_s = 0.0
        self._unsent = memoryview(b"")
        self._inbox = Inbox()

    def begin(self, task: _Task, limit_s: float) -> None:
        """Give it a job; it is sent as the worker takes it."""
        task.attempts += 1
        self.task, self.spent = task, None
        self._limit_s = limit_s
        self._begun_s, self._begun_core_s = time.monotonic(), core_s(self.process.pid) or 0.0
        self.deadline = Deadline(self.process.pid, limit_s if self.ready else _START_LIMIT_S)
        self._unsent = memoryview(pack(Request(task.job, limit_s + _SPARE_S)))

    def step_back(self) -> None:
        """Let it run only where nobody else wants to, from now on."""
        if self.stepped_back:
            return
        self.stepped_back = True
        with suppress(OSError):  # it may have ended
            for thread in map(int, os.listdir(f"/proc/{self.process.pid}/task")):
                os.setpriority(os.PRIO_PROCESS, thread, IDLE_NICENESS)
                with suppress(OSError):  # some containers forbid it; niceness is most of it
                    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))

    def starves(self) -> bool:
        """Whether it has stepped back and hardly gets on with its job, since others want all cores."""
        took_s = time.monotonic() - self._begun_s
        if not self.stepped_back or took_s < _STARVED_S:
            return False
        used_s = core_s(self.process.pid)
        return used_s is not None and used_s - self._begun_core_s < _ENOUGH_CORE * took_s

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def advance(self) -> Reply | None:
        """Send and receive what can be at once. The reply when it is complete; _Lost if there will be none."""
        try:
            self._send()
            data = self._receive()
            if data == b"":
                raise _Lost(f"a worker {self._ended()}", self.ready)
            for message in self._inbox.messages(data or b"", REPLIES):
                if (reply := self._take(message)) is not None:
                    return reply
        except (OSError, ValueError) as error:
            raise _Lost(f"a worker sent what is no reply: {error}", self.ready) from error
        return None

    def _take(self, message: Ready | Spent | Reply) -> Reply | None:
        assert self.task is not None
        if isinstance(message, Spent):
            self.spent = message
            return None
        if isinstance(message, Ready):
            if self.ready or message.emitter != emitter_version():
                raise _Lost("a worker has another version of this package", False)
            self.ready = True
            self.deadline = Deadline(self.process.pid, self._limit_s)
            return None
        if not self.ready or not fits(self.task.job, message):
            raise ValueError("it answers another question")
        return message

    def _send(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):  # what it said before it died counts
            while self._unsent:
                sent = self.channel.send(self._unsent)
                # A view of nothing would keep the whole message.
                self._unsent = self._unsent[sent:] if sent < len(self._unsent) else memoryview(b"")

    def _receive(self) -> bytes | None:
        """What has come; None if nothing has, b"" at the end."""
        try:
            return self.channel.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return b""

    def _ended(self) -> str:
        """How the process ended, in words."""
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def is_usable(self) -> bool:
        """Whether an idle worker is still there, and silent once it has said that it is ready."""
        return self.process.poll() is None and (not self.ready or self._receive() is None)

    def leave(self) -> None:
        """Let an idle worker go: it ends when its channel does."""
        self.channel.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.kill()

    def end(self) -> None:
        """End it soon: one that has stepped back needs a moment on a core for that, too."""
        self.channel.close()
        self.process.kill()

    def kill(self) -> None:
        """End it now."""
        self.end()
        with suppress(subprocess.TimeoutExpired):  # a process in the kernel's hands ends when it is let go
            self.process.wait(1)

    def forget(self) -> None:
        """In a forked child: the worker is the parent's. Holding the channel open would keep it from noticing its
        parent's end."""
        self.channel.close()
        self.process.returncode = 0  # there is nothing to wait for


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
        self._all: set[_Worker] = set()
        self._resting: list[_Worker] = []
        self._waiting = 0
        self._failed_starts = 0
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
        `told` hears what each took. Unless the jobs press, calls go first.

        Others may run jobs at the same time. WorkersUnavailable if none can be started.
        """
        self._see_to_forks()
        pending = deque(_Task(number, job) for number, job in enumerate(jobs))
        replies: dict[int, Reply] = {}
        busy: list[_Worker] = []
        try:
            while (pending or busy) and not self._ending.is_set():
                most = at_most if isinstance(at_most, int) else at_most()
                pressing = presses if isinstance(presses, bool) else presses()
                if pressing:
                    self._take_back(busy, pending)
                while pending and len(busy) < most and (worker := self._take(most, pressing, wait=not busy)):
                    busy.append(worker)
                    worker.begin(pending.popleft(), limit_s)
                for worker in _wait(busy, looks=not isinstance(presses, bool)):
                    job, known = worker.task, len(replies)
                    self._advance(worker, busy, pending, replies, limit_s)
                    if told is not None and job is not None and worker.spent is not None and len(replies) > known:
                        told(job.job, worker.spent)
        finally:
            for worker in busy:  # somebody stopped us
                self._drop(worker)
            self._rest_later()
        return [replies.get(number, Failure("the process is ending")) for number in range(len(jobs))]

    def prepare(self) -> None:
        """Have a worker start now, if there is none: a model was loaded that has to be planned."""
        self._see_to_forks()
        with self._changed, suppress(WorkersUnavailable):
            if not self._all:
                self._resting.append(self._start("plan"))
        self._rest_later()

    def _see_to_forks(self) -> None:
        if self._pid != os.getpid():
            self.forget()

    def _take_back(self, busy: list[_Worker], pending: deque[_Task]) -> None:
        """Have jobs begun anew that press by now, and whose workers hardly get on."""
        for worker in [worker for worker in busy if worker.starves()]:
            busy.remove(worker)
            self._drop(worker)
            if worker.task is not None:
                worker.task.attempts -= 1
                pending.appendleft(worker.task)

    def _advance(
        self, worker: _Worker, busy: list[_Worker], pending: deque[_Task], replies: dict[int, Reply], limit_s: float
    ) -> None:
        """One step of one job: not done yet, done, or to be done again by another worker."""
        task = worker.task
        assert task is not None
        try:
            reply = worker.advance()
        except _Lost as lost:
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

    def _take(self, at_most: int, pressing: bool, wait: bool) -> _Worker | None:
        """A worker that rests, or a new one; None if there is none and `wait` is false. Whoever has none goes first."""
        worker = self._rested_or_new(at_most, pressing, wait)
        if worker is not None and not pressing:
            worker.step_back()
        return worker

    def _rested_or_new(self, at_most: int, pressing: bool, wait: bool) -> _Worker | None:
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
                if sum(not (pressing and worker.stepped_back) for worker in self._all) < at_most:
                    return self._start()
                if not wait:
                    return None
                self._waiting += 1
                self._changed.wait()
                self._waiting -= 1

    def _start(self, first: str = "any") -> _Worker:
        """`first` is what it will be asked to do first, if that is known."""
        try:
            worker = _Worker(self._command, first)
        except OSError as error:  # it may be better later: too many processes, no memory
            raise WorkersUnavailable(f"no worker could be started: {error}") from error
        self._all.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
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

    def _count_start(self, lost: _Lost) -> None:
        """Give up for a while where workers do not even start: a broken installation, or no memory today."""
        with self._changed:
            self._failed_starts = 0 if lost.started else self._failed_starts + 1
            if self._failed_starts >= _ATTEMPTS:
                self._unavailable, self._failed_starts = str(lost), 0
                self._unavailable_until_s = time.monotonic() + _RETRY_S
                self._changed.notify_all()
                raise WorkersUnavailable(self._unavailable) from lost

    def _drop(self, worker: _Worker) -> None:
        worker.kill()
        with self._changed:
            self.lost += 1
            self._all.discard(worker)
            self._changed.notify()

    def rest(self) -> None:
        """Let the workers go that have nothing to do."""
        with self._changed:
            leaving, self._resting = self._resting, []
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


def _wait(workers: Iterable[_Worker], *, looks: bool) -> list[_Worker]:
    """Those that have something to say, can be told something, or have run out of time. With `looks`, it is looked now
    and then whether the jobs of those press that have stepped back."""
    poll = select.poll()
    by_number = {worker.channel.fileno(): worker for worker in workers}
    for number, worker in by_number.items():
        poll.register(number, worker.events)
    first = min((worker.deadline.next_s for worker in by_number.values()), default=0.0)
    if looks and any(worker.stepped_back for worker in by_number.values()):
        first = min(first, time.monotonic() + _STARVED_S)
    ready = {number for number, _ in poll.poll(max(0.0, first - time.monotonic()) * 1000 + 1)}
    now = time.monotonic()
    return [worker for number, worker in by_number.items() if number in ready or now >= worker.deadline.next_s]


def _kill_all(workers: set[_Worker], ending: threading.Event, pid: int) -> None:
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
