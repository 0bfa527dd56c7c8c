"""The thread that joins the small pages of packed weights to huge ones, once they answer calls: see `runtime/pages.py`.

Filling one takes some milliseconds, so that is done behind calls, with rests in between, unless somebody waits until
nothing is left to do. (At the same priority as calls, each cost the call beside it some 10 ms.)
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tierup.adapt.behind import start_behind
from tierup.runtime.pages import Region, small_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tierup.ir.types import Array

_REST = 15.0  # times what filling took of a core


class Joiner:
    """Regions whose pages are to be joined; the thread is there while there are some."""

    def __init__(self) -> None:
        self._start_fresh()
        os.register_at_fork(after_in_child=self._start_fresh)

    def _start_fresh(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Region] = deque()
        self._running, self._awaited = False, 0

    def add(self, arrays: Iterable[Array]) -> None:
        """Have the pages of these arrays joined, where they are small and many. Returns at once."""
        regions = small_pages(arrays)
        with self._changed:
            self._waiting += regions
            if self._running or not self._waiting:
                return
            self._running = True
        try:
            start_behind(self._work, "tierup-joining")
        except RuntimeError:  # there are too many threads: small pages do as well
            self._start_fresh()

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to join; returns whether that is so."""
        with self._hurry(), self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    @contextmanager
    def _hurry(self) -> Iterator[None]:
        self._count_awaited(1)
        try:
            yield
        finally:
            self._count_awaited(-1)

    def _count_awaited(self, change: int) -> None:
        with self._changed:
            self._awaited += change
            self._changed.notify_all()

    def _work(self) -> None:
        while (region := self._next()) is not None:
            for taken_s in region.join():
                self._rest(_REST * taken_s)

    def _next(self) -> Region | None:
        with self._changed:
            if self._waiting:
                return self._waiting.popleft()
            self._running = False
            self._changed.notify_all()
            return None

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._awaited > 0, seconds)


JOINER = Joiner()  # one for the process
