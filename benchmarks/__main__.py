"""python -m benchmarks [--rounds N] [--json FILE] [NAME ...]: all benchmarks, or those named."""

from __future__ import annotations

import argparse
import json
import subprocess
from importlib.metadata import version
from pathlib import Path

from benchmarks.compiled import compiled_benchmark
from benchmarks.load import load_benchmark
from benchmarks.overhead import overhead_benchmark
from benchmarks.products import products_benchmark
from tierup.profile.machine import identify

BENCHMARKS = {
    "overhead": overhead_benchmark,
    "products": products_benchmark,
    "compiled": compiled_benchmark,
    "load": load_benchmark,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    head = heading()
    print(", ".join(f"{key} {text}" for key, text in head.items()))
    record: dict[str, object] = {"heading": head}
    for name in arguments.names or BENCHMARKS:
        record[name] = BENCHMARKS[name](arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1))


def heading() -> dict[str, str]:
    """Machine, commit and versions: what stands beside every figure."""
    identity = identify()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cpu": f"{identity.name} family {identity.family} model {identity.model}, {identity.threads} threads",
        "commit": commit.stdout.strip() or "unknown",
        "tierup": version("tierup"),
        "onnxruntime": version("onnxruntime"),
    }


if __name__ == "__main__":
    main()
