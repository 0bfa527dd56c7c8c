"""Cores that those who work behind calls keep off, while calls come.

A worker that has stepped back gives a call its core at once, but leaves it cold: LLVM runs through more code and data
than the caches next to a core hold. Beside workers on both of two cores, half of the calls of 1.4 µs took 3.6 µs, and
one in a hundred 8 to 20. So workers, and the threads that give them jobs, get the cores on which no calls run, if
there are any.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

LOOK_S = 0.02  # for so long calls may share a core with workers when they have moved to it
# Calls and jobs of the pool in a second, below which cores are not kept free: then calls are long, or so far apart that
# other things leave them cold, and builds would take twice as long for it on two cores.
LEAST_USES = 50.0
_RATE_S = 1.0  # over which these are counted

Cores = frozenset[int]


def _native_uses(cores: int) -> Sequence[int]:
    # A model that is loaded first has a worker begin before it imports this, with NumPy: there were no calls yet.
    native = sys.modules.get("tierup._native")
    return () if native is None else native.core_uses(cores)


class Aside:
    """Which cores calls leave to others; for one thread at a time."""

    def __init__(
        self, uses: Callable[[int], Sequence[int]] = _native_uses, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._uses, self._now = uses, now
        self._seen: dict[int, int] = {}
        self._looked_s, self._left = -LOOK_S, Cores()
        self._since_s, self._since_uses, self._rate = now(), 0, 0.0

    def left(self, allowed: Cores) -> Cores:
        """Those of the allowed cores on which no calls run; all where calls are few, or run on all alike."""
        now_s = self._now()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look(allowed, now_s)
        return self._left & allowed or allowed

    def _look(self, allowed: Cores, now_s: float) -> None:
        counted = self._uses(max(allowed, default=-1) + 1)
        uses = {core: count for core, count in enumerate(counted) if core in allowed}
        lately = {core: count - self._seen.get(core, 0) for core, count in uses.items()}
        self._seen = uses
        self._count(sum(uses.values()), now_s)
        fair = sum(lately.values()) / max(1, len(allowed))
        few = Cores(core for core, count in lately.items() if 2 * count < fair)  # the system moves these back
        if self._rate < LEAST_USES:
            self._left = allowed
        elif few:
            self._left = few
        elif sum(lately.get(core, 0) for core in self._left) > fair * len(self._left):
            self._left = allowed

    def _count(self, uses: int, now_s: float) -> None:
        passed_s = now_s - self._since_s
        if passed_s >= _RATE_S:
            self._rate = (uses - self._since_uses) / passed_s
            self._since_s, self._since_uses = now_s, uses


def cores_of(thread: int = 0) -> Cores:
    """Where a thread may run, this one or another; none where the system does not say, or it has ended."""
    try:
        return Cores(os.sched_getaffinity(thread)) if hasattr(os, "sched_getaffinity") else Cores()
    except OSError:
        return Cores()


def keep_to(thread: int, cores: Cores) -> None:
    """Let a thread run on these cores alone, if it is still there and the system lets us."""
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(thread, cores)


def keep_process_to(cores: Cores, process: int | str = "self") -> None:
    """Let all threads of a process run on these cores alone, if it is still there."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            keep_to(int(thread), cores)


class Here:
    """Where this thread may run: anywhere again when it is done."""

    def __init__(self) -> None:
        self.allowed = self._cores = cores_of()

    def keep_to(self, cores: Cores) -> None:
        """Run on these cores alone."""
        if cores != self._cores:
            self._cores = cores
            keep_to(0, cores)
