"""Traffic: the same calls with changing shapes, each time in a cold process that finds what the last one kept on disk.

In: how to measure, the sets of inputs, and which of them each call takes. Out: a `Record`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tierup.bench.bench import ANSWERS, ORDER, TIMES, Bench, Options
from tierup.bench.contenders import Contender, Settings
from tierup.bench.process import Done, Job, Lost, Process, Settled
from tierup.bench.record import MemoryUse, Record, Trial, failed, figures, measured
from tierup.bench.starts import Stages, first_answer, rotated, stages_ms
from tierup.bench.trials import best, try_settings
from tierup.ir.types import Array


@dataclass
class _Runs:
    """What the runs of a contender have brought so far."""

    trials: list[Trial]
    times_ns: list[Array] = field(default_factory=list)
    starts: list[Stages] = field(default_factory=list)
    memory: MemoryUse | None = None


def measure_traffic(options: Options, sets: Sequence[Mapping[str, Array]], order: Sequence[int]) -> Record:
    """Run everybody's traffic once, to choose settings and fill what is kept on disk; then in turn, recorded."""
    with tempfile.TemporaryDirectory(prefix="tierup-bench-") as folder:
        bench = Bench(options, Path(folder), sets)
        np.save(bench.folder / ORDER, np.array(order, np.int64), allow_pickle=False)
        runs: dict[Contender, _Runs] = {}
        for contender in bench.present():
            try:
                runs[contender] = _Runs(try_settings(bench, contender, _prime))
            except Lost as lost:
                bench.entries[contender.name] = failed(contender, str(lost))
        for turn in range(options.rounds):
            for contender in rotated(runs, turn):
                options.say(f"run {turn + 1} of {options.rounds}: {contender.name}")
                try:
                    _run(bench, contender, runs[contender])
                except Lost as lost:
                    bench.entries[contender.name] = failed(contender, str(lost))
                    del runs[contender]
        for contender, found in runs.items():
            settings = best(found.trials)
            row = figures(found.times_ns, "total", contender.version, settings, found.trials)
            row.first_answer, row.memory = first_answer(found.starts), found.memory
            bench.entries[contender.name] = measured(contender, row)
        bench.compare_answers()
        return bench.record("traffic")


def _prime(bench: Bench, contender: Contender, settings: Settings) -> float:
    """Microseconds of the median call in a run before the recorded ones, which find on disk what this one compiled.
    Tierup settles behind it, so that what it learned is there too."""
    with Process(_job(bench, contender, settings)) as process:
        process.start()
        process.ask("replay", Done, order=ORDER, times=TIMES, answers=ANSWERS)
        process.ask("settle", Settled, timeout_s=bench.options.settle_s)
    return float(np.median(bench.times(TIMES))) / 1e3


def _run(bench: Bench, contender: Contender, runs: _Runs) -> None:
    with Process(_job(bench, contender, best(runs.trials))) as process:
        start = process.start()
        with bench.watched(process):
            process.ask("replay", Done, order=ORDER, times=TIMES, answers=ANSWERS)
        runs.memory = bench.memory(process, start)
    runs.times_ns.append(bench.times(TIMES))
    runs.starts.append(stages_ms(process.spawned_ns, start))
    bench.keep_answers(contender)


def _job(bench: Bench, contender: Contender, settings: Settings) -> Job:
    return bench.job(contender, settings, dynamic=True, cache=bench.warm_cache(contender))
