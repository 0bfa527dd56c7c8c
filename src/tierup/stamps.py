"""What tells whether a file is still the one that it was: cheap, and good as long as it is on this machine."""

from __future__ import annotations

import os

Stamp = tuple[int, int, int, int, int]


def stamp_of(status: os.stat_result) -> Stamp:
    """Which file it is, its size, and when it was written; the last number cannot be set by anybody."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
