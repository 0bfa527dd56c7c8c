"""A model that several threads call while faults are injected into what is done for it, and what came of them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import Struct, field
from onnx import numpy_helper

import tierup
from tests.security.models import model, node, value
from tests.store.samples import floats, saved
from tierup.adapt import builders, proofs, tiering
from tierup.adapt.background import Climb
from tierup.adapt.memory import MEMORY
from tierup.adapt.messages import Job, PlanModel, Reply
from tierup.adapt.proofs import Verdicts
from tierup.adapt.tiering import tier_up_quietly

CALLERS = 3
PAUSE_S = 0.0005  # between the calls of one thread: without, nothing else gets a turn
CLOSE = {"rtol": 0, "atol": 4e-6}  # probabilities; both tiers round sums of up to 44 in f32, in different orders
WIDTHS = (40, 24, 36, 28, 20, 44, 32, 33)
X = floats(3, WIDTHS[0])
CHANGED = Path(__file__).with_name("changed_worker.py")


def layers() -> onnx.ModelProto:
    """Layers of different widths, so that each is a kernel of its own, and a softmax."""
    random, nodes, weights = np.random.default_rng(0), [], []
    for number, (rows, columns) in enumerate(pairwise(WIDTHS)):
        drawn = random.standard_normal((rows, columns)) / rows**0.5
        weights.append(numpy_helper.from_array(drawn.astype(np.float32), f"w{number}"))
        nodes.append(node("MatMul", [f"r{number}" if number else "x", f"w{number}"], [f"m{number}"]))
        nodes.append(node("Relu", [f"m{number}"], [f"r{number + 1}"]))
    nodes.append(node("Softmax", [f"r{len(WIDTHS) - 1}"], ["y"], axis=-1))
    return model(nodes, [value("x", ["batch", WIDTHS[0]])], [value("y", ["batch", WIDTHS[-1]])], weights)


class Load(Struct):
    """Threads that call a model, and what came of it. `fine`: exceptions that are an answer, too."""

    model: tierup.Model
    expected: Any
    fine: type[Exception] | tuple[type[Exception], ...] = ()
    requests: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        threads = [threading.Thread(target=self._call, args=(stop,)) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _call(self, stop: threading.Event) -> None:
        while not stop.wait(PAUSE_S):
            self.call()

    def call(self) -> None:
        """One request."""
        lost, wrong = "", False
        try:
            wrong = not np.allclose(self.model(x=X)["y"], self.expected, **CLOSE)
        except self.fine:
            pass
        except Exception as error:  # whatever it is, a request was lost
            lost = repr(error)
        with self._lock:
            self.requests += 1
            self.wrong += wrong
            if lost:
                self.lost.append(lost)


class Outcome(Struct):
    """What a fault did. `passed`: so many reached service, though they must not. `found_after`: for what can only be
    found in service, within how many calls it was, and `bound` within how many it has to be."""

    fault: str
    injected: int
    requests: int
    lost: int
    wrong: int
    passed: int
    recovered: bool
    said: str
    found_after: int | None = None
    bound: int | None = None

    @property
    def held(self) -> bool:
        """Whether nothing was lost, wrong or served, and the next climb was as any other."""
        wrong = self.wrong and self.found_after is None
        return self.injected > 0 and not self.lost and not wrong and not self.passed and self.recovered


class Bench:
    """One model under load, and climbs with faults in them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        # As many workers prove at a time as will, whatever else runs here: what hangs then takes its time together.
        self.config = tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", threads=5, adapt=True)
        self.path = saved(folder, layers())
        self.model = tierup.load(self.path, config=tierup.Config(force_tier=0, cache_dir=folder / "cache"))
        self.load = Load(self.model, self.model(x=X)["y"])
        patch.setattr("tierup.profile.machine.measure_once", lambda folder: None)
        self.use_workers()
        self._plans: dict[tuple[str, ...], Reply] = {}

    def use_workers(self, **settings: Any) -> None:
        """From now on jobs go to workers with these limits, which are in nobody's way, but not idle either: other tests
        may run on every core."""
        workers = builders._WORKERS
        MEMORY.wait(60)  # what is busy would come back with the limits that it has
        workers.rest()
        workers._unavailable = None  # those with the old limits may not have started just now
        self.patch.setattr("tierup.adapt.process.Worker.step_back", lambda worker: None)
        command = (sys.executable, "-P", str(CHANGED), json.dumps(settings))
        self.patch.setattr(workers, "_command", command)

    def plan_once(self) -> None:
        """Make each plan once: the fault is in what comes behind."""
        real = tiering.run_jobs

        def run(jobs: Sequence[Job], **rest: Any) -> list[Reply]:
            (job,) = jobs
            if not isinstance(job, PlanModel):
                return real(jobs, **rest)
            key = tuple(job.refused)
            if key not in self._plans:
                (self._plans[key],) = real(jobs, **rest)
            return [self._plans[key]]

        self.patch.setattr(tiering, "run_jobs", run)

    def climb(self) -> str:
        """One climb, waited for; why the model did not get further."""
        held = self.model
        held._progress.resume()
        arguments = ("bench", held._go_live, held._origin, held._progress, self.config)
        tier_up_quietly(Climb(*arguments, calls=held._calls_to_try, again=True))
        return held._progress.reason

    def climb_afresh(self) -> str:
        """The same, with nothing proved before: what was refused once is not tried again in a process."""
        known = dict(proofs.refusals_of.__kwdefaults__ or {})
        self.patch.setattr(proofs.refusals_of, "__kwdefaults__", {**known, "verdicts": Verdicts()})
        return self.climb()

    @property
    def tier(self) -> int:
        return self.model.report().tier

    def back(self) -> None:
        """Back to the baseline, for the next one."""
        from tierup.plan.baseline import baseline
        from tierup.runtime.executable import executable
        from tierup.runtime.progress import Serving

        imported = self.model.imported
        plan = baseline(imported.graph)
        self.model.program, self.model._serving = executable(plan, imported.weights), Serving.of(plan)
        for entry in (self.folder / "cache" / "plans").glob("*.plan"):
            entry.unlink()

    def outcome(self, fault: str, injected: int, passed: int, said: str) -> Outcome:
        """What came of it, once one climb without the fault was made."""
        self.patch.undo()
        self.patch.delenv("TIERUP_FORCE_TIER", raising=False)
        self.patch.setattr("tierup.profile.machine.measure_once", lambda folder: None)
        self.patch.setattr(tiering, "_time_apart", lambda *_: "whether it pays is another question")
        self.use_workers()
        reason = self.climb_afresh()
        recovered = reason == "" and self.tier == 1
        load = self.load
        said = said if recovered else f"afterwards: {reason}"
        return Outcome(fault, injected, load.requests, len(load.lost), load.wrong, passed, recovered, said)

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Threads call the model; nothing is left behind."""
        try:
            with self.load.running():
                yield
        finally:
            MEMORY.wait(60)
            builders._WORKERS.rest()


def run_fault(
    inject: Callable[[int, Path, pytest.MonkeyPatch], Outcome], times: int, folder: Path, patch: pytest.MonkeyPatch
) -> Outcome:
    """One fault, so many times; workers are afterwards as they were."""
    try:
        return inject(times, folder, patch)
    finally:
        patch.undo()
        MEMORY.wait(60)
        builders._WORKERS.rest()


HEAD = ("fault", "injected", "requests", "lost", "wrong", "served", "found after", "bound", "recovers", "said")
_WIDTHS = (20, -9, -10, -6, -7, -8, -13, -14, -10)


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as text."""
    return "\n".join(_line(cells) for cells in (HEAD, *map(_cells, outcomes)))


def _cells(one: Outcome) -> tuple[object, ...]:
    found = ("-" if calls is None else f"{calls} calls" for calls in (one.found_after, one.bound))
    recovers = "yes" if one.recovered else "NO"
    return one.fault, one.injected, one.requests, one.lost, one.wrong, one.passed, *found, recovers, one.said[:100]


def _line(cells: Sequence[object]) -> str:
    *columns, said = map(str, cells)
    padded = (
        text.ljust(width) if width > 0 else text.rjust(-width) for text, width in zip(columns, _WIDTHS, strict=True)
    )
    return "".join(padded) + f"  {said}"
