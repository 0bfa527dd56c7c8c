"""A contender's process, seen from its parent: started, asked, stopped while others run, and ended.

What comes back is checked like any other input. A contender that raises, dies or does not answer in time becomes a
`Lost` with a sentence for the reader; it never takes the benchmark down.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

WORKER = Path(__file__).with_name("worker.py")
MAX_REPLY_BYTES = 1 << 20
MAX_STDERR_BYTES = 1 << 16
ANSWER_TIMEOUT_S = 900.0  # torch.compile takes minutes on large models
MAX_WORDS = 500  # characters of a contender's own that a reader gets to see
CLOSE_TIMEOUT_S = 10.0
_SAMPLE_S = 0.1


class Lost(Exception):
    """A contender that could not be measured, and why."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender's process is told when it starts. `sets` inputs lie in `folder` as 0.npz, 1.npz and so on."""

    contender: str
    model: str
    folder: str
    sets: int
    threads: int
    settings: dict[str, int | bool] = {}
    cache: str = ""
    """Where it may keep what it compiled; empty: where it always does."""
    cold: bool = False
    """Whether it must not find anything from before."""
    dynamic: bool = False
    """Whether shapes will change from call to call."""
    source: str = ""
    """`FILE.py:NAME`, for contenders that need the module that the model was exported from."""


class Start(msgspec.Struct, frozen=True):
    """When a process reached which stage, in nanoseconds of the system's clock, and its memory after the import."""

    numpy_ns: int
    read_ns: int
    imported_ns: int
    loaded_ns: int
    answered_ns: int
    bare_bytes: int


class Settled(msgspec.Struct, frozen=True):
    details: dict[str, Any]
    seconds: float


class Memory(msgspec.Struct, frozen=True):
    peak_bytes: int = 0
    resident_bytes: int = 0


class Done(msgspec.Struct, frozen=True):
    """A reply that says no more than that."""


class _Failure(msgspec.Struct, frozen=True):
    error: str = ""


T = TypeVar("T")


class Process:
    """One process. It is its own process group, so that what it starts is stopped and ended with it."""

    def __init__(self, job: Job, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.job = job
        self._timeout_s = timeout_s
        self.workers_peak_bytes = 0
        self._pending = b""
        self._errors = Path(job.folder) / f"{job.contender}.stderr"
        command = [sys.executable, "-P", str(WORKER), msgspec.json.encode(job).decode()]
        with self._errors.open("wb") as errors:
            self.spawned_ns = time.monotonic_ns()
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0
            )

    def start(self, *, sample: bool = False) -> Start:
        """Waits for the first answer. `sample` looks meanwhile at the memory of what the process started, which takes
        some time from it."""
        return self._reply(Start, sample)

    def ask(self, do: str, kind: type[T], *, sample: bool = False, **arguments: Any) -> T:
        """Gives a command and waits for its reply."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"do": do, **arguments}) + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Lost(self._last_words()) from None
        return self._reply(kind, sample)

    def pause(self) -> None:
        """Nothing of it runs until `resume`: threads that spin for more work would slow the others down."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        """Processor time that it has used, where the kernel says so."""
        return sum(_cpu_s(pid) for pid in (self._process.pid, *_descendants(self._process.pid)))

    def close(self) -> None:
        """Lets it end by itself, for it may have something to write, and ends it if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return
        self.resume()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_TIMEOUT_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._signal(signal.SIGKILL)
        self.close()

    def _reply(self, kind: type[T], sample: bool) -> T:
        try:
            line = self._line(self._timeout_s, sample)
            failure = msgspec.json.decode(line, type=_Failure).error
            if failure:
                raise Lost(" ".join(failure.split())[:MAX_WORDS])
            return msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            self._signal(signal.SIGKILL)
            raise Lost(f"its reply cannot be read: {error}") from None
        except Lost:
            self._signal(signal.SIGKILL)  # it may be busy with something, at the cost of the others
            raise

    def _line(self, timeout_s: float, sample: bool) -> bytes:
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = end - time.monotonic()
                if left <= 0:
                    raise Lost(f"it did not answer within {timeout_s:.0f} s")
                if not selector.select(min(left, _SAMPLE_S) if sample else left):
                    self._sample_workers()
                    continue
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise Lost(self._last_words())
                self._pending += chunk
                if len(self._pending) > MAX_REPLY_BYTES:
                    raise Lost(f"its reply is longer than {MAX_REPLY_BYTES} bytes")
        line, self._pending = self._pending.split(b"\n", 1)
        return line

    def _sample_workers(self) -> None:
        """What still has its parent's command line is about to start something: its memory is its parent's."""
        own = _command(self._process.pid)
        workers = (pid for pid in _descendants(self._process.pid) if _command(pid) != own)
        self.workers_peak_bytes = max(self.workers_peak_bytes, sum(map(_resident_bytes, workers)))

    def _last_words(self) -> str:
        """How it ended, and the last line that it wrote about it."""
        try:
            code = self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "it closed its pipe and went on"
        how = f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"
        with self._errors.open("rb") as errors:
            errors.seek(max(0, self._errors.stat().st_size - MAX_STDERR_BYTES))
            lines = errors.read(MAX_STDERR_BYTES).decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {said[:MAX_WORDS]}" if said else how

    def _signal(self, number: signal.Signals) -> None:
        """To its group, and to processes that it started in groups of their own, such as workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        for pid in _descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _descendants(pid: int) -> Iterator[int]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in listed.read_text().split()]
        except (OSError, ValueError):
            continue
        for child in children:
            yield child
            yield from _descendants(child)
