"""From the start of a process to its first answer, and the memory that takes, for every real model.

Each contender runs in processes of its own, in turn. Tierup runs twice: with an empty cache, where the baseline answers
first, and with the plan of the model in it.

python -m benchmarks.load CONTENDER CACHE MODEL INPUTS STARTED_S     one such process; prints one line of JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import real_cases
from benchmarks.effort import Effort
from benchmarks.rounds import Figures, middle, spread
from benchmarks.tables import header, row

CONTENDERS = ("tierup cold", "tierup warm", "onnxruntime")
ROUNDS = 3


def load_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a model and contender: median milliseconds with quartiles, and MiB."""
    print("\nFrom the start of the process, ms: median (quartiles); memory above what importing NumPy takes, MiB.\n")
    print(header("model", "contender", "import", "load", "first answer", "peak"))
    record: dict[str, object] = {}
    for case in real_cases(effort.cases):
        if case.inputs is None:
            continue
        results = _rounds(case.path, case.inputs, effort.rounds or ROUNDS)
        record[case.name] = results
        for contender, figures in results.items():
            low, high = spread(figures["total_ms"])
            total = f"{middle(figures['total_ms']):.0f} ({low:.0f}–{high:.0f})"
            parts = (f"{middle(figures[key]):.0f}" for key in ("import_ms", "load_ms"))
            print(row(case.name, contender, *parts, total, f"{middle(figures['peak_mib']):.0f}"))
    return record


def _rounds(model: Path, inputs: Path, rounds: int) -> dict[str, Figures]:
    results: dict[str, Figures] = {name: {} for name in CONTENDERS}
    with tempfile.TemporaryDirectory(prefix="tierup-load-") as folder:
        _run("tierup fill", f"{folder}/warm", model, inputs)
        for turn in range(rounds):
            for name in [*CONTENDERS[turn % 3 :], *CONTENDERS[: turn % 3]]:
                cache = f"{folder}/warm" if name == "tierup warm" else f"{folder}/cold{turn}"
                for figure, number in _run(name, cache, model, inputs).items():
                    results[name].setdefault(figure, []).append(number)
    return results


def _run(contender: str, cache: str, model: Path, inputs: Path) -> dict[str, float]:
    # Installed packages have their modules compiled; an editable checkout gets the same, as for any user.
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "benchmarks.load", contender, cache, str(model), str(inputs)]
    done = subprocess.run(
        [*command, repr(time.monotonic())], capture_output=True, text=True, check=True, env=environment
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """One process: load, answer, and say how long it took."""
    import numpy as np

    contender, cache, model, inputs, started = sys.argv[1:]
    with np.load(inputs, allow_pickle=False) as file:
        feeds = dict(file)
    before_mib, began_s = _peak_mib(), time.monotonic()
    if contender == "onnxruntime":
        import onnxruntime

        imported_s = time.monotonic()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    else:
        import tierup.session

        imported_s = time.monotonic()
        config = tierup.Config(cache_dir=Path(cache), adapt=False)
        if contender == "tierup fill":  # a plan that was not proved is nobody's to start with
            tierup.load(model, config=config).settle()
        session = tierup.InferenceSession(model, config=config)
    loaded_s = time.monotonic()
    session.run(None, feeds)
    answered_s = time.monotonic()
    figures = {
        "import_ms": (imported_s - began_s) * 1e3,
        "load_ms": (loaded_s - imported_s) * 1e3,
        "total_ms": (answered_s - float(started)) * 1e3,
        "peak_mib": _peak_mib() - before_mib,
    }
    print(json.dumps(figures))


def _peak_mib() -> float:
    """The most memory this process has had at once."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
