"""python -m benchmarks [NAME ...]: all benchmarks, or those named."""

from __future__ import annotations

import argparse
import compileall
import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.building import building_benchmark
from benchmarks.callers import callers_benchmark
from benchmarks.cases import check_names
from benchmarks.choosing import choosing_benchmark
from benchmarks.effort import CONTENDERS, Effort, tell
from benchmarks.load import load_benchmark
from benchmarks.models import models_benchmark, others_benchmark, real_benchmark
from benchmarks.overhead import overhead_benchmark
from benchmarks.products import products_benchmark
from benchmarks.second import second_benchmark
from benchmarks.signatures import signatures_benchmark
from benchmarks.traffic import traffic_benchmark
from benchmarks.watching import watching_benchmark
from benchmarks.workers import workers_benchmark
from tierup import __file__ as tierup_file
from tierup.profile.machine import identify

BENCHMARKS: dict[str, tuple[Callable[[Effort], dict[str, object]], str]] = {
    "overhead": (overhead_benchmark, "one call around no work, beside ONNX Runtime"),
    "signatures": (signatures_benchmark, "what the first call of a length costs above the next ones"),
    "choosing": (choosing_benchmark, "what it costs that every kernel step chooses among variants"),
    "callers": (callers_benchmark, "one and two callers of one model at the same time, beside ONNX Runtime"),
    "watching": (watching_benchmark, "the same model with and without watching its calls, in turn"),
    "products": (products_benchmark, "matrix products against the roofline of the same run"),
    "models": (models_benchmark, "made models, settled, beside all peers"),
    "real": (real_benchmark, "published models, settled, beside all peers"),
    "others": (others_benchmark, "made models from many fields that nothing was tuned to, settled, beside all peers"),
    "traffic": (traffic_benchmark, "lengths that change, in cold processes with a warm and with an empty cache"),
    "second": (second_benchmark, "the first calls of a second process, beside the first one when it has settled"),
    "load": (load_benchmark, "import, load, first answer and memory of the published models, beside ONNX Runtime"),
    "building": (building_benchmark, "calls while a hundred kernels are built, beside calls with adapting off"),
    "workers": (workers_benchmark, "the same kernels compiled by one worker and by two"),
}
QUICK = {"rounds": 3, "seconds": 0.1, "starts": 1, "calls": 300, "contenders": "onnxruntime,openvino"}


def main() -> None:
    arguments = parse()
    # pip compiles what it installs, the peers too; an editable install has to be where the interpreter writes nothing.
    compileall.compile_dir(str(Path(tierup_file).parent), quiet=1)
    effort = Effort(
        cases=tuple(filter(None, arguments.cases.split(","))),
        contenders=arguments.contenders,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        starts=arguments.starts,
        calls=arguments.calls,
        plot=arguments.plot,
    )
    check_names(effort.cases)
    head = heading()
    record: dict[str, object] = {"heading": head}
    for name in arguments.names or BENCHMARKS:
        began, printed = time.monotonic(), Printed()
        with contextlib.redirect_stdout(printed):
            print(f"\n{', '.join(f'{key} {text}' for key, text in head.items())}.")
            record[name] = BENCHMARKS[name][0](effort)
        tell(f"{name} took {(time.monotonic() - began) / 60:.1f} minutes")
        # After each: a long run that is cut off has not been for nothing.
        if arguments.json:
            arguments.json.write_text(json.dumps(record, indent=1))
        if arguments.doc:
            arguments.doc.write_text(filled(arguments.doc.read_text(), name, printed.getvalue()))


class Printed(io.StringIO):
    """What is printed, which also goes to where it always does."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)
        sys.__stdout__.flush()
        return super().write(text)


def filled(document: str, name: str, text: str) -> str:
    """A document with this text between its marks for a benchmark; as it was where it has none."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = document.partition(begin)
    return f"{before}{begin}{text.strip()}\n\n{end}{rest.partition(end)[2]}" if found and end in rest else document


def parse() -> argparse.Namespace:
    """The command line; `--quick` only changes what is not said explicitly."""
    described = parser()
    if described.parse_args().quick:
        described.set_defaults(**QUICK)
    return described.parse_args()


def parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:11} {text}" for name, (_, text) in BENCHMARKS.items())
    found = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{listed}\n\nexample: python -m benchmarks models --cases mlp,bert_mini-16 --quick",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("names", nargs="*", choices=[[], *BENCHMARKS], default=[], metavar="NAME", help="one of those below")
    add("--quick", action="store_true", help=f"a short look, which says little: {_quick_text()}")
    add("--rounds", type=int, help="rounds of each")
    add(
        "--seconds", type=float, default=0.3, help="length of a round of `models`, `others`, `real` and `callers` (0.3)"
    )
    add("--starts", type=int, default=2, help="fresh processes for first answers (2)")
    add("--calls", type=int, help="calls of `traffic` (2000)")
    add(
        "--cases",
        default="",
        help="of `models`, `others`, `real`, `traffic` and `load`: mlp-64,silero_vad; mlp means all of it",
    )
    add("--contenders", default=CONTENDERS, help=f"separated by commas ({CONTENDERS})")
    add("--doc", type=Path, help="also fill the tables into this document, between the marks that it has for each")
    add("--json", type=Path, help="also write all figures to this file")
    add("--plot", type=Path, help="also draw `models` as SVG, `others` and `real` beside it")
    return found


def _quick_text() -> str:
    return " ".join(f"--{name} {value}" for name, value in QUICK.items())


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
