"""How a worker process starts: `python -m tierup.adapt.start CHANNEL PARENT`, by `process.py`.

What has to be said before NumPy is imported is said here.
"""

from __future__ import annotations

import gc
import os
import sys

# Objects made: a plan is made of many that all stay, and so are modules; with Python's 700, looking for dead ones takes
# 3% of the time.
_COLLECTED_AFTER = 20_000


def main() -> None:
    """Begin to work."""
    gc.set_threshold(_COLLECTED_AFTER)
    os.putenv("OPENBLAS_NUM_THREADS", "1")  # it never uses more, and they spin on cores that calls could use
    from tierup.adapt.worker import work

    work(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
