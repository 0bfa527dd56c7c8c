"""The shown models beside all peers, settled and under a traffic of changing lengths: `tierup bench`, case by case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import choose, model_path, source
from tierup.bench.bench import Options
from tierup.bench.contenders import choose as choose_contenders
from tierup.bench.plot import plot
from tierup.bench.record import Entry, Figures, Record, Spread, geometric_mean
from tierup.bench.replay import measure_traffic
from tierup.bench.rounds import measure_rounds
from tierup.bench.text import digits
from tierup.bench.traffic import parse_traffic
from tierup.cli.bench import TRAFFIC_CALLS, Inputs

CONTENDERS = "onnxruntime,onnxruntime-bound,openvino,openvino-bf16,torch"
TRAFFIC_MODEL, TRAFFIC = "bert_mini", "ids=1,8..128"
SETS, SEED = 8, 0


@dataclass(frozen=True)
class Effort:
    """How much to measure, and what."""

    cases: tuple[str, ...] = ()
    contenders: str = CONTENDERS
    rounds: int | None = None
    seconds: float = 0.5
    starts: int = 3
    calls: int = TRAFFIC_CALLS
    plot: Path | None = None


def models_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a case, then one row a contender of each case, as Markdown."""
    records: dict[str, Record] = {}
    for case in choose(effort.cases):
        path = model_path(case.model)
        options = _options(effort, path, case.model, effort.rounds or 9)
        print(f"measuring {case.name}", flush=True)
        records[case.name] = measure_rounds(options, Inputs(path, [], case.shapes, SETS, SEED).for_rounds())
    _print_summary(records, effort.contenders)
    _print_details(records)
    mean = geometric_mean(records)
    print(f"\ngeometric mean of the ratios: {digits(mean) if mean else 'none, since a case has no ratio'}")
    if effort.plot:
        machine = next(iter(records.values())).machine
        effort.plot.write_text(plot(records, f"Settled calls on {machine}"), encoding="utf-8")
    return {name: record.to_dict() for name, record in records.items()}


def traffic_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a contender, as Markdown: many calls of changing lengths in a cold process."""
    path = model_path(TRAFFIC_MODEL)
    calls = parse_traffic(TRAFFIC).shapes(effort.calls, SEED, effort.calls)
    print(f"measuring {effort.calls} calls of {TRAFFIC_MODEL}, {TRAFFIC}", flush=True)
    options = _options(effort, path, TRAFFIC_MODEL, effort.rounds or 3)
    record = measure_traffic(options, *Inputs(path, [], [], SETS, SEED).for_traffic(calls))
    print("\n| contender | all calls, s | p50, ms | p99, ms | p99.9, ms | first answer, ms | peak, MiB | answers |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for entry in record.entries:
        found = entry.figures
        if found is None:
            print(f"| {entry.contender} | {entry.status}: {entry.why} | | | | | | |")
            continue
        times = [digits(us / 1e3) for us in (found.call_us.median, found.p99_us, found.p999_us)]
        cells = [_spread(found.total_s), *times, _first(found), _peak(found), _answers(entry)]
        print(f"| {entry.contender} | {' | '.join(cells)} |")
    print(f"\nbest peer ÷ Tierup: {_ratio(record)}{_disturbed(record)}")
    return {TRAFFIC_MODEL: record.to_dict()}


def _options(effort: Effort, path: Path, model: str, rounds: int) -> Options:
    return Options(
        model=path,
        contenders=choose_contenders(effort.contenders),
        source=source(model),
        rounds=rounds,
        seconds=effort.seconds,
        starts=effort.starts,
        say=lambda text: print(f"  {text}", flush=True),
    )


def _print_summary(records: dict[str, Record], contenders: str) -> None:
    names = [row.name for row in choose_contenders(contenders)]
    print(f"\n| case, µs | {' | '.join(names)} | best peer ÷ Tierup |")
    print(f"| --- |{' --- |' * (len(names) + 1)}")
    for case, record in records.items():
        measured = record.measured
        cells = [_spread(measured[name].call_us) if name in measured else "-" for name in names]
        print(f"| {case} | {' | '.join(cells)} | {_ratio(record)}{_disturbed(record)} |")


def _print_details(records: dict[str, Record]) -> None:
    print(
        "\n| case | contender | settings | p99, µs | first answer, ms | cold, ms | peak, MiB | workers, MiB | answers |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for case, record in records.items():
        for entry in record.entries:
            found = entry.figures
            if found is None:
                print(f"| {case} | {entry.contender} | {entry.status}: {entry.why} | | | | | | |")
                continue
            settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
            cold = found.first_answer.cold_ms if found.first_answer else None
            workers = found.memory.workers_peak_bytes / 2**20 if found.memory else 0
            cells = [settings, digits(found.p99_us), _first(found), f"{cold:.0f}" if cold is not None else "-"]
            cells += [_peak(found), f"{workers:.0f}" if workers else "-", _answers(entry)]
            print(f"| {case} | {entry.contender} | {' | '.join(cells)} |")


def _spread(spread: Spread) -> str:
    return f"{digits(spread.median)} ({digits(spread.low)}–{digits(spread.high)})"


def _first(found: Figures) -> str:
    return f"{found.first_answer.total_ms.median:.0f}" if found.first_answer else "-"


def _peak(found: Figures) -> str:
    return f"{found.memory.peak_bytes / 2**20:.0f}" if found.memory else "-"


def _answers(entry: Entry) -> str:
    found = entry.figures
    if found is None or found.answers is None:
        return "not compared"
    if found.answers.reference == entry.contender:
        return "reference"
    if not found.answers.agrees:
        return f"**differ**: {found.answers.why or found.answers.relative_rms}"
    return f"{found.answers.relative_rms:.0e}"


def _ratio(record: Record) -> str:
    if record.ratio is None:
        return f"none: {record.why_no_ratio}"
    return f"{_spread(record.ratio.ratio)} {record.ratio.peer}"


def _disturbed(record: Record) -> str:
    return f", disturbed {record.others_share:.0%}" if record.others_share > 0.05 else ""
