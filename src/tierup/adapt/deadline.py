"""When a worker has had its time: seconds of its own, not of the clock, since everybody else goes first."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PATIENCE = 20  # times the limit by the clock: what takes no time of its own for so long waits for something in vain


class Deadline:
    """Runs from when it is made. `next_s` is when to look again, on the monotonic clock."""

    def __init__(self, pid: int, limit_s: float) -> None:
        now_s = time.monotonic()
        self._pid, self._limit_s = pid, limit_s
        self._began_s = core_s(pid) or 0.0
        self._last_s = now_s + _PATIENCE * limit_s
        self.next_s = now_s + limit_s

    def is_over(self) -> bool:
        """Whether it has taken too long; where that cannot be known, the clock decides."""
        now_s = time.monotonic()
        if now_s < self.next_s:
            return False
        used_s = core_s(self._pid)
        left_s = 0.0 if used_s is None else self._limit_s - (used_s - self._began_s)
        self.next_s = min(now_s + max(left_s, 0.0), self._last_s)
        return self.next_s <= now_s


def core_s(pid: int) -> float | None:
    """Processor time of a process; None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
