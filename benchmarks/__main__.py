"""python -m benchmarks [NAME ...]: all benchmarks, or those named."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.load import load_benchmark
from benchmarks.models import CONTENDERS, TRAFFIC_CALLS, Effort, models_benchmark, traffic_benchmark
from benchmarks.overhead import overhead_benchmark
from benchmarks.products import products_benchmark
from tierup.profile.machine import identify

BENCHMARKS: dict[str, Callable[[Effort], dict[str, object]]] = {
    "overhead": lambda effort: overhead_benchmark(effort.rounds or 5),
    "products": lambda effort: products_benchmark(effort.rounds or 5),
    "models": models_benchmark,
    "traffic": traffic_benchmark,
    "load": lambda effort: load_benchmark(effort.rounds or 5),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], default=[], metavar="NAME", help=listed())
    parser.add_argument("--rounds", type=int, help="rounds of each; a few quick ones say little")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a round of `models` (0.5)")
    parser.add_argument("--starts", type=int, default=3, help="fresh processes for first answers (3)")
    parser.add_argument("--calls", type=int, default=TRAFFIC_CALLS, help=f"calls of `traffic` ({TRAFFIC_CALLS})")
    parser.add_argument("--cases", default="", help="of `models`, separated by commas: mlp-64, or mlp for all of it")
    parser.add_argument("--contenders", default=CONTENDERS, help=f"separated by commas ({CONTENDERS})")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--plot", type=Path, help="also draw `models`, as SVG")
    arguments = parser.parse_args()
    effort = Effort(
        cases=tuple(filter(None, arguments.cases.split(","))),
        contenders=arguments.contenders,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        starts=arguments.starts,
        calls=arguments.calls,
        plot=arguments.plot,
    )
    head = heading()
    print(", ".join(f"{key} {text}" for key, text in head.items()))
    record: dict[str, object] = {"heading": head}
    for name in arguments.names or BENCHMARKS:
        record[name] = BENCHMARKS[name](effort)
        if arguments.json:  # after each: a long run that is cut off has not been for nothing
            arguments.json.write_text(json.dumps(record, indent=1))


def listed() -> str:
    return f"of {', '.join(BENCHMARKS)}"


def heading() -> dict[str, str]:
    """Machine, commit and versions: what stands beside every figure."""
    identity = identify()
    return {
        "cpu": f"{identity.name} family {identity.family} model {identity.model}, {identity.threads} threads",
        "commit": commit(),
        **{package: _version(package) for package in ("tierup", "onnxruntime", "openvino", "torch")},
    }


def commit() -> str:
    """The commit, and whether what runs is what was committed."""
    head = _git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{head} with changes" if _git("status", "--porcelain", "--untracked-files=no") else head


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
