"""How a worker process starts: `python -m tierup.adapt.start CHANNEL PARENT`, by `process.py`.

What has to be said before NumPy is imported is said here.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

IDLE_NICENESS = 19  # of a worker that has stepped back; by that it knows

# Objects made: a plan is made of many that all stay, and so are modules. With 20,000, looking for dead ones takes 20 ms
# of the first plan of a small model, which calls wait for; with Python's 700, 3% of the time.
_COLLECTED_AFTER = 200_000
_AWAKE_S, _REST_S = 0.002, 0.0001  # as native/src/rests.cpp has it, which cannot be asked yet


def main() -> None:
    """Begin to work."""
    gc.set_threshold(_COLLECTED_AFTER)
    os.putenv("OPENBLAS_NUM_THREADS", "1")  # it never uses more, and they spin on cores that calls could use
    if os.getpriority(os.PRIO_PROCESS, 0) >= IDLE_NICENESS:
        signal.signal(signal.SIGVTALRM, lambda *_: time.sleep(_REST_S))
        signal.setitimer(signal.ITIMER_VIRTUAL, _AWAKE_S, _AWAKE_S)
    from tierup.adapt.worker import work

    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    work(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
