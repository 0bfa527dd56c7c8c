"""Traffic: the same calls with changing shapes, each time in a cold process.

With a *warm* cache the process finds on disk what a run before it kept there, with an *empty* one nothing: what is
built is built while calls come. In: how to measure, the sets of inputs, and which of them each call takes. Out: a
`Record` for each state of the cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from tierup.bench.bench import ANSWERS, ORDER, TIMES, Bench, Options
from tierup.bench.contenders import Contender, Settings
from tierup.bench.process import Done, Job, Lost, Process, Settled
from tierup.bench.record import Cache, MemoryUse, Record, Trial, failed, figures, measured
from tierup.bench.starts import Stages, first_answer, rotated, stages_ms
from tierup.bench.trials import best, try_settings
from tierup.ir.types import Array

TRIAL_CALLS = 100  # of the traffic, to choose settings
_TRIAL_ORDER = "trial-order.npy"


class _Runs(Struct, eq=False):
    """A contender with one state of its cache, and what its runs have brought so far; or why it could not be run."""

    contender: Contender
    cache: Cache
    trials: list[Trial]
    details: dict[str, Any] = field(default_factory=dict)
    """What it said about itself when its cache was filled."""
    times_ns: list[Array] = field(default_factory=list)
    starts: list[Stages] = field(default_factory=list)
    memory: MemoryUse | None = None
    answers: list[Array] = field(default_factory=list)
    lost: str | None = None


def measure_traffic(
    options: Options, sets: Sequence[Mapping[str, Array]], order: Sequence[int], caches: Sequence[Cache] = ("warm",)
) -> dict[Cache, Record]:
    """Choose everybody's settings, fill what is kept on disk where it shall be warm, and run in turn. Who keeps nothing
    on disk runs once for all states of the cache."""
    with tempfile.TemporaryDirectory(prefix="tierup-bench-", ignore_cleanup_errors=True) as folder:
        bench = Bench(options, Path(folder), sets)
        for name, calls in ((ORDER, order), (_TRIAL_ORDER, order[:TRIAL_CALLS])):
            np.save(bench.folder / name, np.array(calls, np.int64), allow_pickle=False)
        runs = [one for contender in bench.present() for one in _prepare(bench, contender, caches)]
        for turn in range(options.rounds):
            for one in rotated([one for one in runs if one.lost is None], turn):
                state = "" if one.contender.cache == "none" else f", cache {one.cache}"
                options.say(f"run {turn + 1} of {options.rounds}: {one.contender.name}{state}")
                try:
                    _run(bench, one)
                except Lost as lost:
                    one.lost = str(lost)
        return {cache: _record(bench, runs, cache) for cache in caches}


def _prepare(bench: Bench, contender: Contender, caches: Sequence[Cache]) -> list[_Runs]:
    """The contender once for each state of the cache that makes a difference to it, with the best settings."""
    details: dict[Cache, dict[str, Any]] = {}
    try:
        trials = try_settings(bench, contender, _try) if contender.has_choice(bench.threads) else []
        if contender.cache != "none" and "warm" in caches:
            details["warm"] = _fill(bench, contender, _settings(bench, contender, trials))
    except Lost as lost:
        return [_Runs(contender, cache, [], lost=str(lost)) for cache in caches]
    states = caches[:1] if contender.cache == "none" else caches
    return [_Runs(contender, cache, trials, details.get(cache, {})) for cache in states]


def _settings(bench: Bench, contender: Contender, trials: Sequence[Trial]) -> Settings:
    return best(trials) if trials else contender.settings(bench.threads)[0]


def _try(bench: Bench, contender: Contender, settings: Settings) -> float:
    """Microseconds of the median call of the first part of the traffic."""
    with Process(_job(bench, contender, settings, "warm")) as process:
        process.start()
        process.ask("replay", Done, order=_TRIAL_ORDER, times=TIMES, answers=ANSWERS)
    return float(np.median(bench.times(TIMES))) / 1e3


def _fill(bench: Bench, contender: Contender, settings: Settings) -> dict[str, Any]:
    """A run whose process leaves on disk what it compiled. Tierup settles, so that what it learned is there too."""
    bench.options.say(f"filling the cache of {contender.name}")
    with Process(_job(bench, contender, settings, "warm")) as process:
        process.start()
        process.ask("replay", Done, order=ORDER, times=TIMES, answers=ANSWERS)
        return process.ask("settle", Settled, timeout_s=bench.options.settle_s).details


def _run(bench: Bench, runs: _Runs) -> None:
    settings = _settings(bench, runs.contender, runs.trials)
    with Process(_job(bench, runs.contender, settings, runs.cache)) as process:
        start = process.start()
        with bench.watched(process):
            process.ask("replay", Done, order=ORDER, times=TIMES, answers=ANSWERS)
        runs.memory = bench.memory(process, start)
    runs.times_ns.append(bench.times(TIMES))
    runs.starts.append(stages_ms(process.spawned_ns, start))
    runs.answers = bench.answers()


def _job(bench: Bench, contender: Contender, settings: Settings, cache: Cache) -> Job:
    folder = bench.empty_cache(contender) if cache == "empty" else bench.filled_cache(contender)
    return bench.job(contender, settings, dynamic=True, cold=cache == "empty", cache=folder)


def _record(bench: Bench, runs: Sequence[_Runs], cache: Cache) -> Record:
    answers = {}
    for one in runs:
        if one.cache != cache and one.contender.cache != "none":
            continue
        if one.lost is not None:
            bench.entries[one.contender.name] = failed(one.contender, one.lost)
            continue
        settings = _settings(bench, one.contender, one.trials)
        row = figures(one.times_ns, "total", one.contender.version, settings, one.trials)
        row.first_answer, row.memory, row.details = first_answer(one.starts), one.memory, one.details
        bench.entries[one.contender.name] = measured(one.contender, row)
        answers[one.contender.name] = one.answers
    bench.compare_answers(answers)
    return bench.record("traffic", cache)
