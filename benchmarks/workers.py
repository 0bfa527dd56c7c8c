"""The same hundred kernels compiled by one worker and by two, which run already and have LLVM loaded.

python -m benchmarks.workers MODEL WORKERS     one process; prints one line of JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.effort import Effort
from benchmarks.many import save_many
from benchmarks.rounds import middle, spread
from benchmarks.tables import header, row

KERNELS, COUNTS = 104, (1, 2)
ROUNDS = 5


def workers_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row: seconds with each number of workers, medians of rounds with quartiles, and the ratio."""
    print("\nSeconds to compile the same kernels: median of rounds (quartiles).\n")
    print(header("kernels", *(f"{count} worker{'s' * (count > 1)}" for count in COUNTS), "ratio"))
    taken: dict[int, list[float]] = {count: [] for count in COUNTS}
    with tempfile.TemporaryDirectory(prefix="tierup-workers-") as folder:
        model = save_many(Path(folder) / "many.onnx", KERNELS)
        for turn in range(effort.rounds or ROUNDS):
            for count in COUNTS if turn % 2 else COUNTS[::-1]:
                taken[count].append(_run(model, count))
    ratio = middle(taken[COUNTS[0]]) / middle(taken[COUNTS[-1]])
    print(row(str(KERNELS), *(_cell(taken[count]) for count in COUNTS), f"{ratio:.2f}"))
    return {"kernels": KERNELS, "seconds": taken, "ratio": ratio}


def _cell(values: list[float]) -> str:
    low, high = spread(values)
    return f"{middle(values):.3g} ({low:.3g}–{high:.3g})"


def _run(model: Path, count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.workers", str(model), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    """One process: plan, let every worker compile something, then time all kernels."""
    from tierup.adapt.builders import Builders, codes
    from tierup.adapt.planning import make_plan
    from tierup.adapt.workers import Workers
    from tierup.frontends.onnx import load_onnx

    model, count = sys.argv[1], int(sys.argv[2])
    planned = make_plan(load_onnx(model))
    builders = Builders(None, count, workers=Workers(), presses=True)
    codes(builders.compile_texts(planned.texts[:count], planned.target))
    began = perf_counter()
    built = codes(builders.compile_texts(planned.texts, planned.target))
    print(json.dumps({"seconds": perf_counter() - began, "kernels": len(built)}))


if __name__ == "__main__":
    main()
