"""What a job takes, as the worker that does it sees it."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

from tierup.adapt.messages import Spent


class Meter:
    """Runs from when it is made to when it is read. `told_s` is what of a core this process had taken by then."""

    told_s = 0.0

    def __init__(self) -> None:
        with suppress(OSError):  # then the peak is that of the process's whole life
            Path("/proc/self/clear_refs").write_text("5")
        self._began_s = _core_s()

    def spent(self) -> Spent:
        """What was taken since."""
        peak_bytes, held_bytes = _memory_bytes()
        Meter.told_s = _core_s()
        return Spent(max(0.0, Meter.told_s - self._began_s), peak_bytes, held_bytes)


def untold_s() -> float:
    """Seconds of a core since the end of the last job: in the first one, the start of the process is among them."""
    return max(0.0, _core_s() - Meter.told_s)


def _core_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory_bytes() -> tuple[int, int]:
    """The most that there was in memory, and what was allocated and is still held."""
    found = {"VmHWM": 0, "RssAnon": 0}
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, text = line.partition(":")
        if name in found:
            found[name] = int(text.split()[0]) << 10
    return found["VmHWM"], found["RssAnon"]
