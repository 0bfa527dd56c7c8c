"""What a second process finds of what the first one learned: its first calls beside the first process's settled ones.

The first process begins with nothing, calls, settles and calls on; the second one finds its cache and its store. It
should build nothing, and be as fast at once.

python -m benchmarks.second MODEL CACHE SETTLE SHAPE...     one process; prints one line of JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.cases import Case, choose, model_path
from benchmarks.effort import Effort
from benchmarks.rounds import Figures, middle, spread
from benchmarks.tables import header, row

NAMES = ("mlp-1", "bert_mini-16", "bert_mini-128", "mobilenet_v2", "resnet50")
ROUNDS = 3
SETTLED_CALLS = 200  # of the first process, of which the later half is timed
FIRST_CALLS = 20  # of the second one, without the very first: it reads weights from the disk


def second_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a case: milliseconds, medians of rounds with quartiles."""
    print(f"\nThe first process when it has settled, and the second one's calls 2 to {FIRST_CALLS + 1}, ms.\n")
    print(header("model", "first process", "second process", "second ÷ first", "its first answer", "tiers", "builds"))
    record: dict[str, object] = {}
    for case in choose(effort.cases or NAMES):
        first: Figures = {}
        second: Figures = {}
        for _ in range(effort.rounds or ROUNDS):
            with tempfile.TemporaryDirectory(prefix="tierup-second-", ignore_cleanup_errors=True) as folder:
                for found, settles in ((first, True), (second, False)):
                    for name, figure in _run(case, folder, settles).items():
                        found.setdefault(name, []).append(figure)
        record[case.name] = {"first": first, "second": second}
        ratios = [after / before for after, before in zip(second["calls_ms"], first["calls_ms"], strict=True)]
        cells = [_cell(figures) for figures in (first["calls_ms"], second["calls_ms"], ratios, second["first_ms"])]
        tiers = f"{middle(first['tier']):.0f}, {middle(second['tier']):.0f}"
        print(row(case.name, *cells, tiers, f"{max(second['builds']):.0f}"))
    return record


def _cell(values: list[float]) -> str:
    low, high = spread(values)
    return f"{middle(values):.3g} ({low:.3g}–{high:.3g})"


def _run(case: Case, folder: str, settles: bool) -> dict[str, float]:
    where = [str(model_path(case.model)), folder, "settle" if settles else "go"]
    command = [sys.executable, "-m", "benchmarks.second", *where, *case.shapes]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """One process."""
    import tierup
    from tierup.cli.inputs import gather_inputs

    path, folder, settles, *shapes = sys.argv[1:]
    began = perf_counter()
    model = tierup.load(path, config=tierup.Config(cache_dir=Path(folder) / "cache", data_dir=Path(folder) / "data"))
    feeds = gather_inputs(model.inputs, [], shapes, 0)[0]
    model.run(feeds)
    first_ms = (perf_counter() - began) * 1e3
    calls = FIRST_CALLS
    if settles == "settle":
        for _ in range(calls):
            model.run(feeds)
        model.settle(300)
        calls = SETTLED_CALLS
    times = []
    for _ in range(calls):
        before = perf_counter()
        model.run(feeds)
        times.append((perf_counter() - before) * 1e3)
    report = model.report().to_dict()
    figures = {"first_ms": first_ms, "calls_ms": median(times[-calls // 2 :] if settles == "settle" else times)}
    print(json.dumps({**figures, "tier": report["tier"], "builds": report["counters"]["builds"]}))


if __name__ == "__main__":
    main()
