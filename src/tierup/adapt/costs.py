"""What jobs took -> what the next build will take: seconds of one core and memory, by tier, stage and model size.

Plain sums: the mean of models of about that size, or of the nearest size there is, in proportion; a guess where nothing
was built yet. Sums come from the store and go back there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import get_args

import msgspec

from tierup.adapt.messages import Compile, Job, PlanModel, Prove, Spent, TryPlan
from tierup.store.build_cost import BuildCost, Stage, cost_key

STAGES: dict[type[Job], Stage] = {PlanModel: "plan", Compile: "compile", Prove: "prove", TryPlan: "try"}

# Seconds of one core to begin with and for each node. The first kernels of the 21 models that this was fitted to, of 2
# to 789 nodes and on a busy machine, took 0.25 to 3.9 times of that in all, those of half of them 0.6 to 1.9 times.
_GUESSES: dict[str, tuple[float, float]] = {
    "plan": (0.05, 0.0012),
    "compile": (0.1, 0.0017),
    "prove": (0.1, 0.0045),
    "try": (0.05, 0.0001),
}
_GUESSED_BYTES = 300 << 20  # Python with NumPy and LLVM takes some 100 MiB, the largest kernels as much again

_Kind = tuple[int, str, int]  # tier, stage, size


class Estimate(msgspec.Struct, frozen=True):
    """Seconds of one core, and the most memory of one worker."""

    core_s: float
    peak_bytes: int


class Ledger:
    """What the jobs of one climb took, by stage. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stages: dict[Stage, Estimate] = {}

    def add(self, job: Job, spent: Spent) -> None:
        """A job is done."""
        stage = STAGES.get(type(job))
        if stage is None:
            return
        with self._lock:
            known = self.stages.get(stage, Estimate(0.0, 0))
            self.stages[stage] = Estimate(known.core_s + spent.core_s, max(known.peak_bytes, spent.peak_bytes))


class Costs:
    """The sums of one process. Threads may share it."""

    def __init__(self) -> None:
        self._start_fresh()
        os.register_at_fork(after_in_child=self._start_fresh)

    def _start_fresh(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_Kind, BuildCost] = {}
        self._recalled = False

    @property
    def recalled(self) -> bool:
        """Whether it has what the store knew."""
        return self._recalled

    def recall(self, rows: Iterable[BuildCost]) -> None:
        """Take what the store knows; once, since it has our own sums as well from then on."""
        with self._lock:
            if self._recalled:
                return
            self._recalled = True
            for row in rows:
                self._add(row)

    def learn(self, ledger: Ledger, machine: str, tier: int, nodes: int) -> list[BuildCost]:
        """A climb is over: rows for the store, which adds them to its own."""
        rows = []
        for stage, found in ledger.stages.items():
            key = cost_key(machine, tier, stage, nodes.bit_length())
            rows.append(BuildCost(key, machine, tier, stage, nodes.bit_length(), 1, found.core_s, found.peak_bytes))
        with self._lock:
            for row in rows:
                self._add(row)
        return rows

    def _add(self, row: BuildCost) -> None:
        kind = row.tier, row.stage, row.size
        known = self._known.get(kind)
        self._known[kind] = row if known is None else known + row

    def predict(self, tier: int, nodes: int) -> Estimate:
        """What a climb of a model with so many nodes will take."""
        stages = [self.predict_stage(tier, stage, nodes) for stage in get_args(Stage)]
        return Estimate(sum(stage.core_s for stage in stages), max(stage.peak_bytes for stage in stages))

    def predict_stage(self, tier: int, stage: str, nodes: int) -> Estimate:
        """What one stage of it will take."""
        size = nodes.bit_length()
        with self._lock:
            known = [row for (t, s, _), row in self._known.items() if (t, s) == (tier, stage)]
        if not known:
            begin_s, node_s = _GUESSES[stage]
            return Estimate(begin_s + node_s * nodes, _GUESSED_BYTES)
        nearest = min(known, key=lambda row: (abs(row.size - size), row.size))
        return Estimate(nearest.core_s / nearest.climbs * 2.0 ** (size - nearest.size), nearest.peak_bytes)


COSTS = Costs()  # one for the process
