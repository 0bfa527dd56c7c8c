"""How much to measure, and of what: the command line as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tierup.bench.bench import Options
from tierup.bench.contenders import Contender, choose

CONTENDERS = "onnxruntime,onnxruntime-bound,openvino,openvino-bf16,torch"
SETS, SEED = 8, 0


@dataclass(frozen=True)
class Effort:
    """`cases`: those that are wanted, all where there are none. None: as much as a benchmark takes by itself."""

    cases: tuple[str, ...] = ()
    contenders: str = CONTENDERS
    rounds: int | None = None
    seconds: float = 0.5
    starts: int = 3
    calls: int | None = None
    plot: Path | None = None

    def chosen(self, source: str) -> list[Contender]:
        """The contenders, without those that need the source of a model that has none."""
        return [row for row in choose(self.contenders) if source or not row.needs_source]


def options(effort: Effort, path: Path, source: str, rounds: int, *, quantised: bool = False) -> Options:
    """The settings of one model's benchmark, on `rounds` rounds unless the effort says otherwise."""
    return Options(
        model=path,
        contenders=effort.chosen(source),
        source=source,
        quantised=quantised,
        rounds=effort.rounds or rounds,
        seconds=effort.seconds,
        starts=effort.starts,
        say=lambda text: print(f"  {text}", flush=True),
    )
