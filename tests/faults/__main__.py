"""python -m tests.faults [TIMES]: inject every fault so many times under load, and print what became of it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ["TIERUP_ADAPT"] = "0"  # nothing but what is injected here
import pytest

from tests.faults.injection import KERNELS, STORES, Outcome, inject_kernels, inject_kills, inject_store, table


def main() -> int:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    outcomes = []

    def run(inject: Callable[[Path, pytest.MonkeyPatch], Outcome]) -> None:
        with tempfile.TemporaryDirectory(prefix="tierup-faults-") as folder, pytest.MonkeyPatch.context() as patch:
            outcomes.append(inject(Path(folder), patch))
            print(table(outcomes[-1:]).splitlines()[1], flush=True)

    for change in KERNELS:
        run(lambda folder, patch, change=change: inject_kernels(change, times, folder, patch))  # type: ignore[misc]
    run(lambda folder, patch: inject_kills(times, folder, patch))
    for name in STORES:
        run(lambda folder, patch, name=name: inject_store(name, times, folder, patch))  # type: ignore[misc]
    print(table(outcomes))
    return 0 if all(outcome.held for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
