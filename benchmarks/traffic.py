"""Calls of changing lengths in cold processes, once with a warm cache and once with an empty one, beside all peers."""

from __future__ import annotations

from benchmarks.cases import model_path, source
from benchmarks.effort import SEED, SETS, Effort, options, tell
from benchmarks.tables import print_traffic
from tierup.bench.record import Cache
from tierup.bench.replay import measure_traffic
from tierup.bench.traffic import parse_traffic
from tierup.cli.bench import TRAFFIC_CALLS, Inputs

TRAFFIC = "ids=1,8..128"
CASES = {"bert_mini": (3, TRAFFIC_CALLS), "bert_base": (2, TRAFFIC_CALLS)}  # runs, each of some minutes, and calls
CACHES: tuple[Cache, ...] = ("warm", "empty")


def traffic_benchmark(effort: Effort) -> dict[str, object]:
    """Prints, for each model and state of the cache, one row a contender."""
    record: dict[str, object] = {}
    for model, (runs, usual) in CASES.items():
        if effort.cases and model not in effort.cases:
            continue
        path, count = model_path(model), effort.calls or usual
        calls = parse_traffic(TRAFFIC).shapes(count, SEED, count)
        tell(f"measuring {count} calls of {model}, {TRAFFIC}")
        settings = options(effort, path, source(model), runs)
        found = measure_traffic(settings, *Inputs(path, [], [], SETS, SEED).for_traffic(calls), CACHES)
        for cache, one in found.items():
            print(f"\n{count} calls of {model}, `{TRAFFIC}`, {one.rounds} cold processes, cache {cache}:")
            print_traffic(one)
        record[model] = {cache: one.to_dict() for cache, one in found.items()}
    return record
