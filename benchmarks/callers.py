"""Callers at the same time: one model, one thread of computing, one and two Python threads that call it.

python -m benchmarks.callers CONTENDER MODEL INPUTS CALLERS SECONDS     one process; prints one line of JSON
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases import Case, model_path
from benchmarks.effort import SEED, Effort
from benchmarks.rounds import middle, spread
from benchmarks.tables import header, row
from tierup.cli.bench import Inputs

CASES = (
    Case("mlp-1", "mlp", ("x=1,64",)),
    Case("mlp-64", "mlp", ("x=64,64",)),
    Case("bert_mini-16", "bert_mini", ("ids=1,16",)),
)
CONTENDERS = ("tierup", "onnxruntime")
CALLERS = (1, 2)
ROUNDS = 5


def callers_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a model and contender: calls a second, the median of rounds with quartiles, and the gain."""
    print("\nCalls a second of one model that computes on one thread: median (quartiles).\n")
    print(header("case", "contender", *(f"{count} callers" for count in CALLERS), "gain"))
    record: dict[str, object] = {}
    for case in CASES:
        if effort.cases and not {case.name, case.model} & set(effort.cases):
            continue
        rates = _rates(case, effort.rounds or ROUNDS, effort.seconds)
        for contender in CONTENDERS:
            found = [rates[contender, count] for count in CALLERS]
            gain = middle(found[-1]) / middle(found[0])
            print(row(case.name, contender, *map(_cell, found), f"{gain:.2f}"))
        record[case.name] = {f"{contender} {count}": values for (contender, count), values in rates.items()}
    return record


def _cell(rates: list[float]) -> str:
    low, high = spread(rates)
    return f"{middle(rates):.0f} ({low:.0f}–{high:.0f})"


def _rates(case: Case, rounds: int, seconds: float) -> dict[tuple[str, int], list[float]]:
    """Contender and number of callers -> calls a second, one figure a round, each from a process of its own."""
    path = model_path(case.model)
    rates: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        feeds: dict[str, Any] = Inputs(path, [], case.shapes, 1, SEED).for_rounds()[0]
        np.savez(f"{folder}/inputs.npz", **feeds)
        for _ in range(rounds):
            for count, contender in itertools.product(CALLERS, CONTENDERS):
                command = [sys.executable, "-m", "benchmarks.callers", contender, str(path), f"{folder}/inputs.npz"]
                done = subprocess.run(
                    [*command, str(count), str(seconds)], stdout=subprocess.PIPE, text=True, check=True
                )
                rates.setdefault((contender, count), []).append(json.loads(done.stdout.splitlines()[-1])["calls_per_s"])
    return rates


def open_tierup(path: str) -> Callable[[Any], Any]:
    import tierup

    return tierup.load(path, config=tierup.Config(force_tier=1, adapt=False, threads=1)).run


def open_onnxruntime(path: str) -> Callable[[Any], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return partial(session.run, None)


OPEN = {"tierup": open_tierup, "onnxruntime": open_onnxruntime}


def main() -> None:
    """One process: load, warm up, let all callers begin at once, count what they have done when time is up."""
    contender, path, inputs, callers, seconds = sys.argv[1:]
    feeds = dict(np.load(inputs, allow_pickle=False))
    call = OPEN[contender](path)
    for _ in range(50):
        call(feeds)
    counts, gate, over = [0] * int(callers), threading.Barrier(int(callers) + 1), threading.Event()

    def serve(index: int) -> None:
        gate.wait()
        while not over.is_set():
            call(feeds)
            counts[index] += 1

    threads = [threading.Thread(target=serve, args=(index,)) for index in range(int(callers))]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    over.wait(float(seconds))
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"calls_per_s": sum(counts) / (time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
