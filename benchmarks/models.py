"""Models beside all peers, settled: `tierup bench`, case by case."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cases import CASES, OTHERS, choose, model_path, real_cases, source
from benchmarks.effort import SEED, SETS, Effort, options, tell
from benchmarks.tables import print_details, print_mean, print_narrow, print_summary
from tierup.bench.plot import plot
from tierup.bench.record import Record
from tierup.bench.rounds import measure_rounds
from tierup.cli.bench import Inputs

ROUNDS = 5


def models_benchmark(effort: Effort) -> dict[str, object]:
    """The models of make_models.py, on drawn inputs."""
    records: dict[str, Record] = {}
    for case in choose(effort.cases):
        path = model_path(case.model)
        tell(f"measuring {case.name}")
        inputs = Inputs(path, [], case.shapes, SETS, SEED)
        settings = options(effort, path, source(case.model), ROUNDS, every=True)
        records[case.name] = measure_rounds(settings, inputs.for_rounds())
    return _show(records, effort.plot, "Settled calls", {case.name: case.goal for case in CASES})


def others_benchmark(effort: Effort) -> dict[str, object]:
    """The models of make_others.py, on drawn inputs."""
    records: dict[str, Record] = {}
    for case in choose(effort.cases, OTHERS):
        path = model_path(case.model)
        tell(f"measuring {case.name}")
        inputs = Inputs(path, [], case.shapes, SETS, SEED)
        records[case.name] = measure_rounds(options(effort, path, "", ROUNDS), inputs.for_rounds())
    file = effort.plot.with_stem(f"{effort.plot.stem}-others") if effort.plot else None
    return _show(records, file, "Settled calls of other models")


def real_benchmark(effort: Effort) -> dict[str, object]:
    """The published models of tests/models, on the inputs kept there: the same at every call."""
    records: dict[str, Record] = {}
    for case in real_cases(effort.cases):
        tell(f"measuring {case.name}")
        inputs = Inputs(case.path, [str(case.inputs)] if case.inputs else [], [], SETS, SEED)
        settings = options(effort, case.path, "", ROUNDS, quantised=inputs.quantised)
        records[case.name] = measure_rounds(settings, inputs.for_rounds())
    file = effort.plot.with_stem(f"{effort.plot.stem}-real") if effort.plot else None
    return _show(records, file, "Settled calls of real models")


def _show(
    records: dict[str, Record], file: Path | None, title: str, goals: dict[str, float] | None = None
) -> dict[str, object]:
    """Prints one row a case and one a contender of each, as Markdown; draws them where that is wanted."""
    if not records:
        return {}
    print_summary(records, goals)
    print_mean(records)
    print_narrow(records)
    print_details(records)
    if file:
        machine = next(iter(records.values())).machine
        file.write_text(plot(records, f"{title} on {machine}"), encoding="utf-8")
    return {name: record.to_dict() for name, record in records.items()}
