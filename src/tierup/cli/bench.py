"""`tierup bench`: Tierup beside other libraries, on one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tierup.bench.bench import Options
from tierup.bench.contenders import choose
from tierup.bench.draw import Feeds, draw_sets, draw_traffic, index_bounds, is_quantised
from tierup.bench.plot import plot
from tierup.bench.record import OURS, Cache, Entry, Figures, Record
from tierup.bench.replay import measure_traffic
from tierup.bench.rounds import measure_rounds
from tierup.bench.text import digits, spread_text, time_text
from tierup.bench.traffic import Shapes, parse_traffic
from tierup.bench.trials import settings_text
from tierup.cli.inputs import gather_inputs, sound_inputs
from tierup.cli.show import write_json
from tierup.config import Config
from tierup.errors import StoreError, TierupError
from tierup.session import load

TRAFFIC_CALLS = 2000
_LOUD_SHARE = 0.05  # other work from which figures are not to be relied on
_ROUNDS, _RUNS = 9, 3
_PLAIN_WIDTH = 120  # of a table in a file or a pipe


class Request(Struct, frozen=True, kw_only=True):
    """What a user asks for: inputs as `tierup run` takes them, and how long to measure."""

    files: list[str]
    shapes: list[str]
    traffic: str | None
    cache: Cache
    calls: int | None
    sets: int
    seed: int
    against: str | None
    source: str
    rounds: int | None
    seconds: float
    starts: int
    settle_s: float


def bench_model(path: Path, request: Request, json_file: Path | None, plot_file: Path | None) -> None:
    """Measure, print the table, and write JSON and plot where the user wants them."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _PLAIN_WIDTH)
    default = "onnxruntime,openvino" + (",torch" if request.source else "")
    contenders = choose(default if request.against is None else request.against)
    traffic = parse_traffic(request.traffic) if request.traffic else None
    inputs = Inputs(path, request.files, request.shapes, request.sets, request.seed)
    options = Options(
        model=path,
        contenders=contenders,
        source=request.source,
        quantised=inputs.quantised,
        rounds=request.rounds or (_RUNS if traffic else _ROUNDS),
        seconds=request.seconds,
        starts=request.starts,
        settle_s=request.settle_s,
        say=lambda text: console.print(f"  {text}", style="dim", highlight=False) if console.is_terminal else None,
    )
    if traffic:
        calls = traffic.shapes(request.calls, request.seed, TRAFFIC_CALLS)
        record = measure_traffic(options, *inputs.for_traffic(calls), (request.cache,))[request.cache]
    else:
        record = measure_rounds(options, inputs.for_rounds())
    print_record(console, record)
    write_json(json_file, record.to_dict())
    if plot_file is not None:
        _write_plot(plot_file, plot({path.name: record}, f"{path.name} on {record.machine}, {record.threads} threads"))
    ours = next(entry for entry in record.entries if entry.contender == OURS)
    if ours.figures is None:
        raise TierupError(f"Tierup could not be measured: {ours.why}")


class Inputs:
    """The inputs of a model for a benchmark: shapes as given or made up, values drawn anew for each of `sets` sets."""

    def __init__(self, path: Path, files: Sequence[str], shapes: Sequence[str], sets: int, seed: int) -> None:
        self._files, self._shapes, self._sets, self._seed = files, shapes, sets, seed
        self._model = load(path, config=Config(adapt=False, force_tier=0, threads=1))
        self._bounds = index_bounds(self._model.imported.graph)
        self.quantised = is_quantised(self._model.imported.graph)

    def for_rounds(self) -> list[Feeds]:
        base, sources, _ = sound_inputs(self._model.inputs, self._files, self._shapes, self._seed, self._model.run)
        drawn = _made_up(sources)
        return draw_sets(base, drawn, self._bounds, self._sets, self._seed)

    def for_traffic(self, calls: Sequence[Shapes]) -> tuple[list[Feeds], list[int]]:
        """Sets of inputs, and which of them each call takes."""
        distinct: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
        which = [distinct.setdefault(tuple(shapes.items()), len(distinct)) for shapes in calls]
        bases, drawn = [], set[str]()
        for signature in distinct:
            shapes = [f"{name}={','.join(map(str, sizes))}" for name, sizes in signature]
            base, sources = gather_inputs(self._model.inputs, self._files, [*self._shapes, *shapes], self._seed)
            bases.append(base)
            drawn |= _made_up(sources)
        return draw_traffic(bases, which, drawn, self._bounds, self._sets, self._seed)


def _made_up(sources: Mapping[str, str]) -> set[str]:
    return {name for name, source in sources.items() if source == "made up"}


def print_record(console: Console, record: Record) -> None:
    """The table, the ratio, and whatever a reader must know about them."""
    given = ", ".join(f"{name} {text}" for name, text in record.inputs.items())
    rounds = f"{record.rounds} rounds of {record.seconds or 0:g} s"
    if record.kind == "traffic":
        rounds = f"{record.rounds} cold processes with {'a warm' if record.cache == 'warm' else 'an empty'} cache"
    console.print(f"[bold]{escape(record.model)}[/bold]  {escape(given)}", highlight=False)
    console.print(f"{escape(record.machine)}, {record.threads} threads, {rounds}", highlight=False)
    console.print(_traffic_table(record) if record.kind == "traffic" else _rounds_table(record))
    for entry in record.entries:
        for note in _notes(entry):
            console.print(escape(f"{entry.contender}: {note}"), highlight=False)
    if record.ratio is not None:
        spread = record.ratio.ratio
        text = f"{digits(spread.median)} ({digits(spread.low)}-{digits(spread.high)})"
        console.print(f"best peer ÷ Tierup: [bold]{text}[/bold], {record.ratio.peer}", highlight=False)
    else:
        console.print(f"no ratio: {escape(record.why_no_ratio or '')}", highlight=False)
    if record.others_share > _LOUD_SHARE:
        share = f"{record.others_share:.0%} of the processors"
        console.print(f"Other work took {share} meanwhile: do not rely on these figures.", style="yellow")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _rounds_table(record: Record) -> Table:
    table = _table("contender", "call", "p99", "first answer", "cold", "peak", "workers", "answers")
    for entry in record.entries:
        found = entry.figures
        if found is None:
            table.add_row(entry.contender, entry.status)
            continue
        first = found.first_answer
        table.add_row(
            entry.contender,
            spread_text(found.call_us),
            time_text(found.p99_us),
            f"{first.total_ms.median:.0f} ms" if first else "-",
            f"{first.cold_ms:.0f} ms" if first and first.cold_ms is not None else "-",
            *_memory_cells(found),
            _answers_cell(entry.contender, found),
        )
    return table


def _traffic_table(record: Record) -> Table:
    table = _table(
        "contender", "all calls", "p50", "p99", "p99.9", "after 1 s", "first answer", "peak", "workers", "answers"
    )
    for entry in record.entries:
        found = entry.figures
        if found is None:
            table.add_row(entry.contender, entry.status)
            continue
        total = found.total_s
        table.add_row(
            entry.contender,
            f"{digits(total.median)} ({digits(total.low)}-{digits(total.high)}) s",
            time_text(found.call_us.median),
            time_text(found.p99_us),
            time_text(found.p999_us),
            "-" if found.late_p999_us is None else time_text(found.late_p999_us),
            f"{found.first_answer.total_ms.median:.0f} ms" if found.first_answer else "-",
            *_memory_cells(found),
            _answers_cell(entry.contender, found),
        )
    return table


def _memory_cells(found: Figures) -> tuple[str, str]:
    if found.memory is None:
        return "-", "-"
    workers = found.memory.workers_peak_bytes
    return f"{found.memory.peak_bytes / 2**20:.0f} MiB", f"{workers / 2**20:.0f} MiB" if workers else "-"


def _answers_cell(contender: str, found: Figures) -> str:
    if found.answers is None:
        return "not compared"
    if found.answers.reference == contender:
        return "reference"
    return f"agree to {found.answers.relative_rms:.1g}" if found.answers.agrees else "[red]differ[/red]"


def _notes(entry: Entry) -> list[str]:
    found = entry.figures
    if found is None:
        return [f"{entry.status}: {entry.why}"]
    tried = f", the best of {len(found.trials)} settings" if len(found.trials) > 1 else ""
    notes = [f"{found.version}, {settings_text(found.settings)}{tried}"]
    if found.details.get("settled") is False:
        notes.append("not settled when it was measured, or its cache filled (--settle gives it more time)")
    if found.answers is not None and not found.answers.agrees:
        rms = found.answers.relative_rms
        how = found.answers.why or ("not finite in the same places" if rms is None else f"relative RMS error {rms:.2g}")
        notes.append(f"its answers differ from those of {found.answers.reference}: {how}")
    return notes


def _write_plot(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"'{path}' cannot be written: {error.strerror}") from error
