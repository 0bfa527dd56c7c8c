"""Settled calls, side by side: all contenders are loaded, one is awake at a time, and rounds go in turn.

In: how to measure, and several sets of inputs that rotate. Out: a `Record`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from tierup.bench.bench import ANSWERS, TIMES, Bench, Options
from tierup.bench.contenders import Contender, Settings
from tierup.bench.process import Done, Lost, Process, Settled, Start
from tierup.bench.record import Entry, Figures, Record, Trial, failed, figures, measured
from tierup.bench.starts import measure_starts, rotated
from tierup.bench.trials import best, try_settings
from tierup.ir.types import Array

TRIAL_SECONDS = 0.3


class _Runner(Struct):
    """A contender whose process is up, and the times that it has brought so far."""

    process: Process
    settings: Settings
    trials: list[Trial]
    start: Start
    settled: Settled
    rounds_ns: list[Array] = field(default_factory=list)


def measure_rounds(options: Options, sets: Sequence[Mapping[str, Array]]) -> Record:
    """Choose settings, load and settle everybody, run the rounds, compare the answers, start everybody afresh."""
    with (
        tempfile.TemporaryDirectory(prefix="tierup-bench-", ignore_cleanup_errors=True) as folder,
        ExitStack() as processes,
    ):
        bench = Bench(options, Path(folder), sets)
        runners: dict[Contender, _Runner] = {}
        for contender in bench.present():
            try:
                trials = try_settings(bench, contender, _try) if contender.has_choice(bench.threads) else []
                runners[contender] = _open(bench, contender, trials, processes)
            except Lost as lost:
                bench.entries[contender.name] = failed(contender, str(lost))
        for turn in range(options.rounds):
            options.say(f"round {turn + 1} of {options.rounds}")
            for contender in rotated(runners, turn):
                try:
                    _run_round(bench, runners[contender])
                except Lost as lost:
                    bench.entries[contender.name] = failed(contender, str(lost))
                    runners.pop(contender).process.close()
        answers: dict[str, list[Array]] = {}
        for contender, runner in runners.items():
            bench.entries[contender.name] = _finish(bench, contender, runner, answers)
        processes.close()
        bench.compare_answers(answers)
        if options.starts:
            measure_starts(bench, {contender: runner.settings for contender, runner in runners.items()})
        return bench.record("rounds")


def _try(bench: Bench, contender: Contender, settings: Settings) -> float:
    """Microseconds of a call in one short round."""
    with Process(bench.job(contender, settings)) as process:
        process.start()
        process.ask("settle", Settled, timeout_s=bench.options.settle_s)
        process.ask("round", Done, seconds=min(TRIAL_SECONDS, bench.options.seconds), times=TIMES)
    return float(np.median(bench.times(TIMES))) / 1e3


def _open(bench: Bench, contender: Contender, trials: list[Trial], processes: ExitStack) -> _Runner:
    """The contender, loaded and settled, and stopped until its first round."""
    bench.options.say(f"settling {contender.name}")
    settings = best(trials) if trials else contender.settings(bench.threads)[0]
    process = processes.enter_context(Process(bench.job(contender, settings)))
    start = process.start(sample=True)
    settled = process.ask("settle", Settled, sample=True, timeout_s=bench.options.settle_s)
    process.pause()
    return _Runner(process, settings, trials, start, settled)


def _run_round(bench: Bench, runner: _Runner) -> None:
    runner.process.resume()
    with bench.watched(runner.process):
        runner.process.ask("round", Done, seconds=bench.options.seconds, times=TIMES)
    runner.process.pause()
    runner.rounds_ns.append(bench.times(TIMES))


def _finish(bench: Bench, contender: Contender, runner: _Runner, answers: dict[str, list[Array]]) -> Entry:
    """Figures, memory and (into `answers`) answers, taken after the last round: from the kernels that were measured."""
    process = runner.process
    process.resume()
    try:
        process.ask("answer", Done, answers=ANSWERS)
        answers[contender.name] = bench.answers()
        memory = bench.memory(process, runner.start)
    except Lost as lost:
        return failed(contender, str(lost))
    finally:
        process.pause()
    found: Figures = figures(runner.rounds_ns, "median", contender.version, runner.settings, runner.trials)
    found.memory = memory
    found.details = {**runner.settled.details, "settle_s": runner.settled.seconds}
    return measured(contender, found)
