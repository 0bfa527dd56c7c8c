"""How much to measure, and of what: the command line as data."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct

from tierup.bench.bench import Options
from tierup.bench.contenders import Contender, choose
from tierup.bench.record import OURS

CONTENDERS = "onnxruntime,onnxruntime-bound,openvino,openvino-bf16,tierup-bf16,torch"
SETS, SEED = 8, 0


class Effort(Struct, frozen=True):
    """`cases`: those that are wanted, all where there are none. None: as much as a benchmark takes by itself."""

    cases: tuple[str, ...] = ()
    contenders: str = CONTENDERS
    rounds: int | None = None
    seconds: float = 0.3
    starts: int = 2
    calls: int | None = None
    plot: Path | None = None

    def chosen(self, source: str, every: bool) -> list[Contender]:
        """The contenders, without those that need the source of a model that has none; unless `every` one is wanted,
        without those that enter no ratio."""
        rows = [row for row in choose(self.contenders) if source or not row.needs_source]
        return [row for row in rows if every or row.is_peer or row.name == OURS]


def tell(text: str) -> None:
    """What is being done, beside the tables: those alone are standard output."""
    print(text, file=sys.stderr, flush=True)


def options(
    effort: Effort, path: Path, source: str, rounds: int, *, quantised: bool = False, every: bool = False
) -> Options:
    """The settings of one model's benchmark, on `rounds` rounds unless the effort says otherwise."""
    return Options(
        model=path,
        contenders=effort.chosen(source, every),
        source=source,
        quantised=quantised,
        rounds=effort.rounds or rounds,
        seconds=effort.seconds,
        starts=effort.starts,
        say=lambda text: tell(f"  {text}"),
    )
