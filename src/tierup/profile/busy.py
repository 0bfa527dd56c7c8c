"""How busy the whole machine is, whoever keeps it so."""

from __future__ import annotations

import os
from pathlib import Path


def busy_cpu_s() -> float:
    """Processor time that everything on this machine has used, and other guests took; 0 where the kernel is silent."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _wait, interrupts, soft, stolen = fields
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
