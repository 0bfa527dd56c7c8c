"""A real worker with narrower limits: `changed_worker.py SETTINGS CHANNEL PARENT`, SETTINGS as JSON.

memory_mib    a pair of bounds: from the first job on, the process may map so much more than it has, drawn between them
store_wait_s  how long it waits for a store that is locked
store_bytes   how large a store may become
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys

from tierup.adapt import worker


def main() -> None:
    settings = json.loads(sys.argv.pop(1))
    if "memory_mib" in settings:
        _limit_memory(*settings["memory_mib"])
    if "store_wait_s" in settings or "store_bytes" in settings:
        from tierup.store import learned

        learned._WAIT_S = settings.get("store_wait_s", learned._WAIT_S)
        learned._MAX_FILE_BYTES = settings.get("store_bytes", learned._MAX_FILE_BYTES)
    worker.work(int(sys.argv[1]), int(sys.argv[2]))


def _limit_memory(least_mib: int, most_mib: int) -> None:
    """Bound what is mapped, files and all."""
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    wanted = mapped + (random.Random(os.getpid()).randint(least_mib, most_mib) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))


if __name__ == "__main__":
    main()
