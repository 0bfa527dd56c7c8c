"""Calls of one model while a hundred kernels are built for another in the same process, beside calls with adapting off.

One thread calls at a steady rate that keeps one core busy for about a quarter of the time; builds go on behind it, as
they do by default. Each figure comes from a process of its own, in turn with and without. Calls of microseconds are
timed twice: as it comes, and with cores kept from sleeping between calls, both with builds and without. A core that
sleeps is the host's, and finds what a call needs gone when it wakes: that differs from minute to minute, and hides what
builds do.

python -m benchmarks.building on|off MODEL ROWS OTHER SECONDS     one process; prints one line of JSON
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

import numpy as np

from benchmarks.effort import Effort
from benchmarks.many import save_layers, save_many
from benchmarks.rounds import Figures, middle, spread
from benchmarks.tables import header, row

KERNELS = 104
GOAL = 1.5  # p99 while building over p99 without
ROUNDS, SECONDS = 7, 8.0
MOST_SECONDS = 120.0  # for the builds, where others take the cores
PACE, LEAST_S = 4.0, 0.0005  # between the beginnings of calls: so many times what one takes, and at least so long
# Widths, rows of a call, and whether cores are kept awake.
CASES = {
    "small": ([64, 128, 128, 10], 1, False),
    "small, cores awake": ([64, 128, 128, 10], 1, True),
    "large": ([1024, 1024, 1024], 32, False),
}
LATENCIES = Path("/dev/cpu_dma_latency")  # no core sleeps while a file is open in which 0 was written


def building_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a case: microseconds of calls with and without builds, medians of rounds with quartiles."""
    print(f"\nCalls while {KERNELS} kernels are built, and with adapting off, µs: median of rounds (quartiles).\n")
    columns = ("p50 off", "p50 building", "p99 off", "p99 building", "p99 ratio", "goal", "ratio of seconds", "kernels")
    print(header("model", *columns))
    record: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="tierup-building-") as folder:
        other = save_many(Path(folder) / "other.onnx", KERNELS)
        for name, (widths, rows, awake) in CASES.items():
            if awake and not os.access(LATENCIES, os.W_OK):
                print(row(name, *["-"] * 5, "cores cannot be kept awake here", "-", "-"))
                continue
            model = save_layers(Path(folder) / "layers.onnx", widths)
            found: dict[str, Figures] = {"off": {}, "on": {}}
            for turn in range(effort.rounds or ROUNDS):
                for mode in ("off", "on") if turn % 2 else ("on", "off"):
                    with _awake() if awake else nullcontext():
                        figures = _run(mode, model, rows, other)
                    for figure, number in figures.items():
                        found[mode].setdefault(figure, []).append(number)
            record[name] = found
            ratios, of_seconds = (_ratios(found, figure) for figure in ("p99_us", "second_p99_us"))
            cells = [_cell(found[mode][figure]) for figure in ("p50_us", "p99_us") for mode in ("off", "on")]
            built = f"{min(found['on']['kernels']):.0f}"
            goal = f"{GOAL:g}{', missed' if middle(ratios) > GOAL else ''}"
            print(row(name, *cells, _cell(ratios), goal, _cell(of_seconds), built))
    return record


def _ratios(found: dict[str, Figures], figure: str) -> list[float]:
    return [on / off for on, off in zip(found["on"][figure], found["off"][figure], strict=True)]


def _cell(values: list[float]) -> str:
    low, high = spread(values)
    return f"{middle(values):.3g} ({low:.3g}–{high:.3g})"


@contextmanager
def _awake() -> Iterator[None]:
    """No core sleeps meanwhile."""
    with LATENCIES.open("wb", buffering=0) as file:
        file.write(struct.pack("i", 0))
        yield


def _run(mode: str, model: Path, rows: int, other: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.building", mode, str(model), str(rows), str(other), str(SECONDS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """One process: a model on tier 1, and calls of it for some seconds, or until everything is built."""
    import tierup

    mode, path, rows, other, seconds = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="tierup-building-", ignore_cleanup_errors=True) as folder:
        settings = {"cache_dir": Path(folder) / "cache", "data_dir": Path(folder) / "data", "threads": 2}
        tierup.load(path, config=tierup.Config(force_tier=1, adapt=False, **settings)).close()
        model = tierup.load(path, config=tierup.Config(adapt=mode == "on", **settings))
        x = np.random.default_rng(0).standard_normal((int(rows), int(model.inputs[0].shape[1]))).astype(np.float32)
        model.settle(60)
        interval_s = _interval_s(model, x)
        behind = tierup.load(other, config=tierup.Config(adapt=True, **settings)) if mode == "on" else None
        times, seconds_of = np.ones(1 << 20, np.int64), np.ones(1 << 20, np.int64)  # in memory before it begins
        calls = 0
        began = due = perf_counter()
        while (passed := due - began) < float(seconds) or (behind and not behind.settled and passed < MOST_SECONDS):
            before = perf_counter_ns()
            model(x=x)
            times[calls], seconds_of[calls] = perf_counter_ns() - before, passed
            calls += 1
            due = max(due + interval_s, perf_counter())
            sleep(max(0.0, due - perf_counter()))
        p50, p99, p999 = np.quantile(times[:calls], [0.5, 0.99, 0.999]) / 1e3
        by_second = np.split(times[:calls], np.flatnonzero(np.diff(seconds_of[:calls])) + 1)
        second_p99 = median(float(np.quantile(second, 0.99)) for second in by_second) / 1e3
        kernels = 0 if behind is None else behind.report().to_dict()["counters"]["builds"]
        figures = {
            "p50_us": p50,
            "p99_us": p99,
            "p999_us": p999,
            "second_p99_us": second_p99,
            "calls": calls,
            "kernels": kernels,
        }
        print(json.dumps({**figures, "seconds": perf_counter() - began}))


def _interval_s(model: Any, x: Any) -> float:
    """After how long the next call comes, once the model is warm."""
    taken = []
    for _ in range(200):
        before = perf_counter()
        model(x=x)
        taken.append(perf_counter() - before)
    return max(LEAST_S, PACE * median(taken))


if __name__ == "__main__":
    main()
