"""Threads of ours that work behind calls.

A call gives Python's lock away while kernels run, and needs it back to hand out its answer. Whoever has taken it
meanwhile keeps it for as long as Python lets threads wait, 5 ms: longer than most calls take. While a thread of ours is
at work, that is half a millisecond.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

TURN_S = 0.0005


def start_behind(work: Callable[[], None], name: str) -> None:
    """Start a thread that does this. It is a daemon: the interpreter never waits for it."""
    threading.Thread(target=_run, args=(work,), name=name, daemon=True).start()


def _run(work: Callable[[], None]) -> None:
    with _TURNS:
        work()


class _Turns:
    """How long Python lets threads wait, while any of ours works; afterwards as it was."""

    def __init__(self) -> None:
        self._start_fresh()
        os.register_at_fork(after_in_child=self._after_fork)

    def _start_fresh(self) -> None:
        self._lock, self._working, self._before_s = threading.Lock(), 0, 0.0

    def _after_fork(self) -> None:
        """A forked child has none of our threads."""
        if self._working:
            self._restore()
        self._start_fresh()

    def __enter__(self) -> None:
        with self._lock:
            if not self._working:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before_s, TURN_S))
            self._working += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._working -= 1
            if not self._working:
                self._restore()

    def _restore(self) -> None:
        if sys.getswitchinterval() == min(self._before_s, TURN_S):  # or somebody has chosen another meanwhile
            sys.setswitchinterval(self._before_s)


_TURNS = _Turns()
