"""What was measured and decided -> the store, by way of a worker: no request waits for a database.

Rows are queued and written by a thread that is there while there is something to write. The queue is bounded, and a
store that does not work costs its rows and an event, nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tierup.adapt.behind import start_behind
from tierup.events import StoreIgnored

if TYPE_CHECKING:
    from tierup.config import Config
    from tierup.events import Events
    from tierup.store.rows import Row

_MOST_WAITING = 256  # batches
_BATCH_ROWS = 4096
_LIMIT_S = 30.0


def place_of(config: Config) -> str:
    """Where a model's store is: a URL or a folder."""
    return config.store_url or str(config.data_dir)


class Memory:
    """The queue, and its thread."""

    def __init__(self) -> None:
        self._start_fresh()
        self.lost = 0  # rows that were not written
        os.register_at_fork(after_in_child=self._start_fresh)

    def _start_fresh(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, tuple[Row, ...], Events]] = deque()
        self._running = False

    def remember(self, config: Config, rows: Sequence[Row], events: Events) -> None:
        """See to it that rows are written. Returns at once."""
        place = place_of(config)
        with self._changed:
            for begin in range(0, len(rows), _BATCH_ROWS):
                if len(self._waiting) >= _MOST_WAITING:
                    self.lost += len(self._waiting.popleft()[1])
                self._waiting.append((place, tuple(rows[begin : begin + _BATCH_ROWS]), events))
            if self._running or not self._waiting:
                return
            self._running = True
        start_behind(self._work, "tierup-memory")

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything is written, or for so many seconds; returns whether it is."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._running:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._running = False
                    self._changed.notify_all()
                    return
                place, rows, events = self._waiting.popleft()
            reason = _write(place, rows)
            if reason:
                self.lost += len(rows)
                events.add(StoreIgnored(reason))


def _write(place: str, rows: tuple[Row, ...]) -> str:
    """Have a worker write them; why it did not, if it did not."""
    from tierup.adapt.builders import run_jobs
    from tierup.adapt.messages import Failure, Remember
    from tierup.adapt.workers import WorkersUnavailable

    try:
        (reply,) = run_jobs([Remember(place, rows)], limit_s=_LIMIT_S)
    except WorkersUnavailable as error:
        return str(error)
    except Exception as error:  # whatever it is, nothing hangs on it
        return f"{type(error).__name__}: {error}"
    return reply.reason if isinstance(reply, Failure) else ""


MEMORY = Memory()  # one for the process
