"""What a length costs that was never seen: its first call against later calls of it, when tier 1 is live.

Sizes and offsets are filled in natively; nothing is planned or built. The longest length comes first, so that no arena
grows while something is timed. New and later calls both follow a call of that length, so that caches are alike.
One thread.

python -m benchmarks.signatures MODEL INPUT SHAPE...     one process; prints one line of JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from time import perf_counter_ns

import numpy as np

from benchmarks.cases import model_path
from benchmarks.effort import Effort
from benchmarks.rounds import middle, spread
from benchmarks.tables import header, row

# The input whose shape changes, and the shapes: `n` runs over LENGTHS.
CASES = {
    "mlp": ("x", "n,64"),
    "bert_mini": ("ids", "1,n"),
    "elementwise": ("x", "n,1024"),
}
LENGTHS = range(8, 129)
ROUNDS, REPEATS = 4, 5


def signatures_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a model: microseconds, the median over lengths with quartiles, of all processes."""
    print("\nThe first call of a length, µs above the median of later calls of it, over 120 lengths.\n")
    print(header("model", "later calls", "first call, extra", "worst tenth above"))
    record: dict[str, object] = {}
    for model in CASES:
        if effort.cases and model not in effort.cases:
            continue
        found = [_run(model) for _ in range(effort.rounds or ROUNDS)]
        # Of each call the best of all processes: what is left is not other work's.
        times = np.min(found, axis=0)
        later = np.median(times[:, 1:], axis=1)
        extra = (times[:, 0] - later).tolist()
        low, high = spread(extra)
        cells = (f"{np.median(later):.1f}", f"{middle(extra):.1f} ({low:.1f}–{high:.1f})")
        print(row(model, *cells, f"{np.quantile(extra, 0.9):.1f}"))
        record[model] = found
    return record


def _run(model: str) -> list[list[float]]:
    """For each length, the microseconds of its first and of its later calls."""
    command = [sys.executable, "-m", "benchmarks.signatures", str(model_path(model)), *CASES[model]]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """One process: the lengths in random order, each new once."""
    import tierup
    from tierup.cli.inputs import gather_inputs

    path, name, shape = sys.argv[1:]
    model = tierup.load(path, config=tierup.Config(force_tier=1, adapt=False, threads=1))
    random = np.random.default_rng(0)
    feeds = {n: gather_inputs(model.inputs, [], [f"{name}={shape.replace('n', str(n))}"], 0)[0] for n in LENGTHS}
    longest, *others = sorted(LENGTHS, reverse=True)
    for _ in range(REPEATS):
        model.run(feeds[longest])

    def timed(length: int) -> float:
        model.run(feeds[longest])
        began = perf_counter_ns()
        model.run(feeds[length])
        return (perf_counter_ns() - began) / 1e3

    order = [others[index] for index in random.permutation(len(others))]
    print(json.dumps([[timed(length) for _ in range(1 + REPEATS)] for length in order]))


if __name__ == "__main__":
    main()
