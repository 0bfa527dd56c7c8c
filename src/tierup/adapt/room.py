"""How many workers may run: what the process itself does not use, and what there is memory for."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LEAST_S = 0.05  # between two looks, lest one tick of the clock decide; asking for memory takes 0.1 ms


class Room:
    """Workers give way to calls: of the cores that a model has, they get those that this process left idle lately, at
    least one. More than one run only where memory has room for another as large as is expected."""

    def __init__(self, threads: int, peak_bytes: int) -> None:
        self._threads, self._peak_bytes = threads, max(1, peak_bytes)
        self._looked_s, self._used_s = time.monotonic(), time.process_time()
        self._cores = max(1, threads - 1)  # until it is known what calls take
        self._workers = 0  # that memory has room for; 0: nobody has looked

    def __call__(self) -> int:
        now_s = time.monotonic()
        passed_s = now_s - self._looked_s
        if passed_s >= _LEAST_S:
            used_s = time.process_time()
            self._cores = cores_left(self._threads, (used_s - self._used_s) / passed_s)
            self._looked_s, self._used_s = now_s, used_s
        if passed_s >= _LEAST_S or not self._workers:
            self._workers = 1 + available_bytes() // self._peak_bytes
        return min(self._cores, self._workers)


def cores_left(threads: int, busy: float) -> int:
    """Of so many cores, those that are left if calls keep `busy` of them."""
    return max(1, threads - round(busy + 0.25))  # a core that is in use a quarter of the time is not left


def available_bytes() -> int:
    """What the system can give without taking it from others."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
