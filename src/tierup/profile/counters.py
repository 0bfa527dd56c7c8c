"""Says which hardware counters there are, and in a sentence why the others are not."""

import errno
import os
from pathlib import Path

import msgspec

from tierup.profile.identity import ROOT, Text


class Counter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hardware counter that counts, or the reason why it does not."""

    name: Text
    unavailable: Text | None


def explain_counters(errors: list[tuple[str, int]], root: Path = ROOT) -> tuple[Counter, ...]:
    """From each counter's name and errno (0: it counts) to what a user can read."""
    return tuple(Counter(name, _reason(error, root) if error else None) for name, error in errors)


def _reason(error: int, root: Path) -> str:
    match error:
        case errno.ENOENT | errno.ENODEV | errno.EOPNOTSUPP:
            return "the CPU, or this virtual machine, offers no such counter"
        case errno.ENODATA:
            return "the counter opens but does not count: it is taken by somebody else, or not real"
        case errno.ENOSYS:
            return "the kernel was built without perf events"
        case errno.EACCES | errno.EPERM:
            return _forbidden(root)
        case _:
            return f"perf_event_open failed: {os.strerror(error)}"


def _forbidden(root: Path) -> str:
    try:
        paranoid = int((root / "proc/sys/kernel/perf_event_paranoid").read_text()[:16])
    except (OSError, ValueError):
        return "the kernel forbids it, and does not tell its perf_event_paranoid setting"
    if paranoid > 2:
        return f"kernel.perf_event_paranoid={paranoid} forbids it; 2 or less would do"
    return f"forbidden although kernel.perf_event_paranoid={paranoid} allows it: most likely by a container's seccomp"
