"""python -m tests.faults [TIMES] [FAULT ...]: inject every fault, or those named, so many times under load, and print
what became of it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["TIERUP_ADAPT"] = "0"  # nothing but what is injected here
import pytest

from tests.faults.faults import BUILDING
from tests.faults.injection import run_fault, table
from tests.faults.service import SERVING

FAULTS = BUILDING | SERVING


def main() -> int:
    times, *names = sys.argv[1:] or ["200"]
    outcomes = []
    for name in names or FAULTS:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tierup-faults-") as folder, pytest.MonkeyPatch.context() as patch:
            outcomes.append(run_fault(FAULTS[name], int(times), Path(folder), patch))
        line = table(outcomes[-1:]).splitlines()[1]
        print(f"{line}  ({time.monotonic() - began_s:.0f} s)", file=sys.stderr, flush=True)
    print(table(outcomes))
    return 0 if all(outcome.held for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
