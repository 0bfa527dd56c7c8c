"""One worker process, as its parent sees it: a job goes in, a reply comes out, or it is lost."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from tierup.adapt.aside import Cores, cores_of, keep_process_to
from tierup.adapt.deadline import Deadline, core_s
from tierup.adapt.messages import REPLIES, Inbox, Job, Ready, Reply, Request, Spent, fits, pack
from tierup.adapt.start import IDLE_NICENESS
from tierup.store.versions import emitter_version

# A worker that had stepped back when its job came to press is left at it if it gets so much of a core; it takes so long
# until that can be said, and another one about as long to start.
STARVED_S = 1.0
_ENOUGH_CORE = 0.5
_START_LIMIT_S = 60.0
_SPARE_S = 5.0  # a worker ends itself so long after its parent should have ended it
_READ_BYTES = 1 << 18


class Lost(Exception):
    """A worker that cannot go on. `started`: it was ready once."""

    def __init__(self, reason: str, started: bool) -> None:
        super().__init__(reason)
        self.started = started


class Task(Struct):
    number: int
    job: Job
    attempts: int = 0


class Worker:
    """One process, and its side of what is being said."""

    def __init__(self, command: Sequence[str]) -> None:
        self.channel, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
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
        self._cores = cores_of()  # as those of the thread that started it
        self.task: Task | None = None
        self.spent: Spent | None = None
        self.deadline = Deadline(self.process.pid, _START_LIMIT_S)
        self._limit_s = 0.0
        self._begun_s = self._begun_core_s = 0.0
        self._unsent = memoryview(b"")
        self._inbox = Inbox()

    def begin(self, task: Task, limit_s: float) -> None:
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

    def keep_to(self, cores: Cores) -> None:
        """Let it run on these cores alone, from now on."""
        if cores != self._cores:
            self._cores = cores
            keep_process_to(cores, self.process.pid)

    def goes_where_it_wants(self) -> None:
        """It decides by itself on which cores it runs, until it is told again."""
        self._cores = Cores()

    def starves(self) -> bool:
        """Whether it has stepped back and hardly gets on with its job, since others want all cores."""
        took_s = time.monotonic() - self._begun_s
        if not self.stepped_back or took_s < STARVED_S:
            return False
        used_s = core_s(self.process.pid)
        return used_s is not None and used_s - self._begun_core_s < _ENOUGH_CORE * took_s

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def advance(self) -> Reply | None:
        """Send and receive what can be at once. The reply when it is complete; Lost if there will be none."""
        try:
            self.send()
            data = self._receive()
            if data == b"":
                raise Lost(f"a worker {self._ended()}", self.ready)
            for message in self._inbox.messages(data or b"", REPLIES):
                if (reply := self._take(message)) is not None:
                    return reply
        except (OSError, ValueError) as error:
            raise Lost(f"a worker sent what is no reply: {error}", self.ready) from error
        return None

    def _take(self, message: Ready | Spent | Reply) -> Reply | None:
        assert self.task is not None
        if isinstance(message, Spent):
            self.spent = message
            return None
        if isinstance(message, Ready):
            if self.ready or message.emitter != emitter_version():
                raise Lost("a worker has another version of this package", False)
            self.ready = True
            self.deadline = Deadline(self.process.pid, self._limit_s)
            return None
        if not self.ready or not fits(self.task.job, message):
            raise ValueError("it answers another question")
        return message

    def send(self) -> None:
        """Send what can be at once."""
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
        """Whether an idle worker is still there, and silent."""
        return self.process.poll() is None and self._receive() is None

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
