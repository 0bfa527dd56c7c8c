"""`tierup run`: load, first answer, more calls, and what came out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tierup.cli.inputs import sound_inputs
from tierup.cli.live import LiveView
from tierup.cli.show import brief, duration, write_json
from tierup.session import Model, load


def run_model(path: Path, files: list[str], shapes: list[str], calls: int, seed: int, json_file: Path | None) -> None:
    """Run the model and print inputs, outputs and timings."""
    console = Console()
    started = time.perf_counter()
    model = load(path)
    load_s = time.perf_counter() - started
    values, sources, (outputs, first_s) = sound_inputs(model.inputs, files, shapes, seed, lambda v: _timed(model, v))
    _print_inputs(console, values, sources)
    times_s = _time_calls(console, model, values, calls - 1) if calls > 1 else [first_s]
    _print_outputs(console, outputs)
    timings = {"load_s": load_s, "first_answer_s": first_s, "calls": calls, **_quantiles(times_s)}
    _print_timings(console, timings)
    console.print(str(model.report()), markup=False, highlight=False)
    write_json(
        json_file,
        {
            "model": str(path),
            "inputs": {name: brief(value) for name, value in values.items()},
            "outputs": {name: brief(value) for name, value in outputs.items()},
            "timings": timings,
            "report": model.report().to_dict(),
        },
    )


def _timed(model: Model, values: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Outputs, and the seconds that they took."""
    started = time.perf_counter()
    return model.run(values), time.perf_counter() - started


def _time_calls(console: Console, model: Model, values: dict[str, Any], calls: int) -> list[float]:
    """Seconds of each call; what happens meanwhile is shown."""
    times_s = []
    with LiveView(console, model, calls) as view:
        for _ in range(calls):
            started = time.perf_counter()
            model.run(values)
            times_s.append(time.perf_counter() - started)
            view.called(times_s[-1])
    return times_s


def _quantiles(times_s: list[float]) -> dict[str, float]:
    p10, median, p90, p99 = np.quantile(times_s, [0.1, 0.5, 0.9, 0.99]).tolist()
    return {"p10_s": p10, "median_s": median, "p90_s": p90, "p99_s": p99}


def _print_inputs(console: Console, values: dict[str, Any], sources: dict[str, str]) -> None:
    table = Table("input", "from", "value", title_justify="left", box=None, pad_edge=False)
    for name, value in values.items():
        table.add_row(escape(name), sources[name], escape(brief(value)))
    console.print(table)


def _print_outputs(console: Console, outputs: dict[str, Any]) -> None:
    table = Table("output", "value", box=None, pad_edge=False)
    for name, value in outputs.items():
        table.add_row(escape(name), escape(brief(value)))
    console.print(table)


def _print_timings(console: Console, timings: dict[str, float]) -> None:
    table = Table("load", "first answer", "median", "p10 to p90", "p99", "calls", box=None, pad_edge=False)
    table.add_row(
        duration(timings["load_s"]),
        duration(timings["first_answer_s"]),
        duration(timings["median_s"]),
        f"{duration(timings['p10_s'])} to {duration(timings['p90_s'])}",
        duration(timings["p99_s"]),
        str(timings["calls"]),
    )
    console.print(table)
