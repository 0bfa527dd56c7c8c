"""Runs contenders in turn, each in a fresh process, and gathers their figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

Figures = dict[str, list[float]]


def interleaved(contenders: Sequence[str], model: Path, inputs: Path, rounds: int) -> dict[str, Figures]:
    """Contender -> figure -> one number a round. The order turns with each round, so that nobody is always first."""
    results: dict[str, Figures] = {name: {} for name in contenders}
    # Installed packages have their modules compiled; an editable checkout gets the same, as for any user.
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["TIERUP_ADAPT"] = "0"  # nothing is measured in the background while something is timed
    for turn in range(rounds):
        for name in [*contenders[turn % len(contenders) :], *contenders[: turn % len(contenders)]]:
            command = [sys.executable, "-m", "benchmarks.worker", name, str(model), str(inputs)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            for figure, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                results[name].setdefault(figure, []).append(seconds)
    return results


def middle(values: Sequence[float]) -> float:
    return median(values)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The quartiles."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high
