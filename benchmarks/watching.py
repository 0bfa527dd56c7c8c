"""What watching costs: one settled model with and without, in turn, in each of several processes.

python -m benchmarks.watching MODEL INPUTS FOLDER     one process: `on|off SECONDS` in, what a call took out
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from benchmarks.cases import CASES, Case, model_path
from benchmarks.effort import SEED, Effort, tell
from benchmarks.rounds import middle, spread
from benchmarks.tables import header, row
from tierup.cli.bench import Inputs
from tierup.session.watched import FIRST_NOTICE

if TYPE_CHECKING:
    import tierup

SHOWN = ("mlp-1", "bert_mini-16", "bert_mini-128", "resnet50")
ROUNDS = 12
PROCESSES = 2  # for each start that is asked for
SETTLE_S = 600.0
WARM_S = 1.0


def watching_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a case: how long a call takes with and without, and the ratio of rounds side by side.

    Two processes of the same program differ by 2% where calls take 2 µs, by where their memory lies alone, so both are
    measured in the same one, and several say what that makes. CPU time is of the whole process, with the analyser.
    """
    print("\nµs a call, watched and not: medians of rounds in turn; ratios: median (quartiles), and of each process.\n")
    print(header("case", "watched", "not watched", "ratio", "processes", "ratio of CPU time", "processes"))
    record: dict[str, object] = {}
    for case in CASES:
        wanted = {case.name, case.model} & set(effort.cases) if effort.cases else case.name in SHOWN
        if not wanted:
            continue
        starts = _measure(case, effort.rounds or ROUNDS, effort.seconds, PROCESSES * effort.starts)
        middles = [f"{middle([took.call_us for pair in starts for took in pair[name]]):.2f}" for name in ("on", "off")]
        ratios = {field: [_ratios(pair, field) for pair in starts] for field in ("call_us", "cpu_us")}
        print(row(case.name, *middles, *_cells(ratios["call_us"]), *_cells(ratios["cpu_us"])))
        record[case.name] = {"starts": [{name: list(map(asdict, pair[name])) for name in pair} for pair in starts]}
    return record


class Took(Struct, frozen=True):
    """A call, in a round of many."""

    call_us: float
    cpu_us: float


Pair = dict[str, list[Took]]  # "on" and "off", round by round


def _ratios(pair: Pair, field: str) -> list[float]:
    return [getattr(on, field) / getattr(off, field) for on, off in zip(pair["on"], pair["off"], strict=True)]


def _cells(ratios: list[list[float]]) -> tuple[str, str]:
    every = [ratio for found in ratios for ratio in found]
    low, high = spread(every)
    medians = [middle(found) for found in ratios]
    return f"{middle(every):.4f} ({low:.4f}–{high:.4f})", f"{min(medians):.4f}–{max(medians):.4f}"


def _measure(case: Case, rounds: int, seconds: float, starts: int) -> list[Pair]:
    """What calls took in each process with and without watching, round by round."""
    path = model_path(case.model)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        feeds: dict[str, Any] = Inputs(path, [], case.shapes, 1, SEED).for_rounds()[0]
        np.savez(inputs, **feeds)
        with Process(path, inputs, folder) as first:
            first.call("on", 0.0)  # which settles, so that the others start with its plan
        for start in range(starts):
            tell(f"  {case.name}, processes {start + 1} of {starts}")
            found.append(_pair(path, inputs, folder, rounds, seconds))
    return found


def _pair(path: Path, inputs: Path, folder: str, rounds: int, seconds: float) -> Pair:
    found: Pair = {"on": [], "off": []}
    with Process(path, inputs, folder) as process:
        process.call("on", WARM_S)
        for number in range(rounds):
            for name in ("on", "off") if number % 2 else ("off", "on"):
                found[name].append(process.call(name, seconds))
    return found


class Process:
    """One model in a process that waits between its rounds."""

    def __init__(self, path: Path, inputs: Path, folder: str) -> None:
        command = [sys.executable, "-m", "benchmarks.watching", str(path), str(inputs), folder]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, watching: str, seconds: float) -> Took:
        """What a call takes, called for so long, with watching "on" or "off"."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{watching} {seconds}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a process ended with {self._process.wait()}")
        return Took(**json.loads(answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """One process: settles, then calls for as long as each line says."""
    import tierup

    path, inputs, folder = sys.argv[1:]
    feeds = dict(np.load(inputs, allow_pickle=False))
    config = tierup.Config(cache_dir=f"{folder}/cache", data_dir=f"{folder}/data")
    model = tierup.load(path, config=config)
    model.run(feeds)
    model.settle(SETTLE_S)
    for line in sys.stdin:
        watching, seconds = line.split()
        _watch(model, on=watching == "on")
        print(json.dumps(_called(model, feeds, float(seconds))), flush=True)


def _watch(model: tierup.Model, *, on: bool) -> None:
    """Have its calls timed, watched, looked at and sampled, as often as its budgets say by now; or none of that."""
    model.set_timing(on)
    model.set_watching(on)
    model.notice_after(FIRST_NOTICE if on else 0)
    model.sample_after(model.report().sampled_every or FIRST_NOTICE if on else 0)


def _called(model: tierup.Model, feeds: dict[str, Any], seconds: float) -> dict[str, float]:
    calls, began_cpu, began = 0, time.process_time(), time.perf_counter()
    while calls == 0 or time.perf_counter() < began + seconds:
        for _ in range(8):
            model.run(feeds)
        calls += 8
    taken_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return {"call_us": 1e6 * taken_s / calls, "cpu_us": 1e6 * cpu_s / calls}


if __name__ == "__main__":
    main()
