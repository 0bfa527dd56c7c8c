"""First answers: from the start of a process to its first answer, in fresh processes, interleaved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from tierup.bench.bench import Bench
from tierup.bench.contenders import Contender, Settings
from tierup.bench.process import Lost, Process, Start
from tierup.bench.record import FirstAnswer, failed, spread

T = TypeVar("T")
Stages = tuple[float, float, float, float]
SLOW_START_MS = 5000.0  # a contender that compiles at every start is started once, and once with nothing on disk


def stages_ms(spawned_ns: int, start: Start) -> Stages:
    """Interpreter and NumPy, import of the library, load, first call. Reading the inputs belongs to none of them."""
    return (
        (start.numpy_ns - spawned_ns) / 1e6,
        (start.imported_ns - start.read_ns) / 1e6,
        (start.loaded_ns - start.imported_ns) / 1e6,
        (start.answered_ns - start.loaded_ns) / 1e6,
    )


def first_answer(starts: Sequence[Stages], cold_ms: float | None = None) -> FirstAnswer:
    begin, imported, load, call = (float(np.median(stage)) for stage in zip(*starts, strict=True))
    return FirstAnswer(spread(sum(stages) for stages in starts), begin, imported, load, call, cold_ms)


def measure_starts(bench: Bench, chosen: Mapping[Contender, Settings]) -> None:
    """Adds the first answers to the entries of those that were measured."""
    warm: dict[Contender, list[Stages]] = {contender: [] for contender in chosen}
    cold: dict[Contender, float] = {}
    for contender in list(chosen):
        if contender.cache == "told":  # the others kept theirs while they were measured
            _start(bench, contender, chosen[contender], bench.warm_cache(contender))
    for turn in range(bench.options.starts):
        for contender in rotated(list(chosen), turn):
            if any(sum(stages) > SLOW_START_MS for stages in warm[contender]):
                continue
            found = _start(bench, contender, chosen[contender], bench.warm_cache(contender))
            if found is not None:
                warm[contender].append(found)
    for contender in chosen:
        if contender.cache != "none":
            found = _start(bench, contender, chosen[contender], bench.empty_cache(contender), cold=True)
            if found is not None:
                cold[contender] = sum(found)
    for contender, starts in warm.items():
        figures = bench.entries[contender.name].figures
        if figures is not None and starts:
            figures.first_answer = first_answer(starts, cold.get(contender))


def _start(bench: Bench, contender: Contender, settings: Settings, cache: str, cold: bool = False) -> Stages | None:
    """One start; a contender that fails here loses its entry, whatever it did before."""
    if bench.entries[contender.name].figures is None:
        return None
    bench.options.say(f"starting {contender.name}{' with nothing on disk' if cold else ''}")
    try:
        with Process(bench.job(contender, settings, sets=1, cache=cache, cold=cold)) as process:
            return stages_ms(process.spawned_ns, process.start())
    except Lost as lost:
        bench.entries[contender.name] = failed(contender, str(lost))
        return None


def rotated(contenders: Iterable[T], turn: int) -> list[T]:
    """The order of one round: it turns, so that nobody is always first."""
    order = list(contenders)
    at = turn % len(order) if order else 0
    return order[at:] + order[:at]
