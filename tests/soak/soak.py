"""Mixed traffic for a long time: five models, four threads, sizes that come and go, and now and then a bad input.

Every answer is compared with the baseline's. At the end memory must have stayed as it was after warming up, counters
must say what was counted here, nothing may have been lost or wrong, and no worker may be left.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct, field

import tierup
from tests.soak.networks import Feeds, Network, networks
from tests.store.samples import saved
from tierup.adapt import builders
from tierup.adapt.background import BACKGROUND
from tierup.adapt.memory import MEMORY
from tierup.adapt.process import Worker
from tierup.adapt.sampling import SAMPLER
from tierup.events import Built, RolledBack, Swapped

CALLERS = 4
PAUSE_S = 0.001  # between the calls of one thread: traffic, not a race
BAD_SHARE = 0.01
PHASE_S = 10.0  # for which one size of each model is the most frequent
WARM_SHARE = 0.4  # of the time, in which plans are built and memory may grow
# What may be more at the end than after warming up: allocators keep some, and samples are held while they are checked.
GROWTH_BYTES, GROWTH_SHARE = 6 << 20, 0.03
# Sums of up to 144 products in f32, in another order than the baseline's, beside the largest element.
CLOSE = 2e-5


class Traffic(Struct):
    """One model, calls of it with their right answers, and what was counted."""

    network: Network
    model: tierup.Model
    calls: dict[int, tuple[Feeds, Feeds]]
    answered: int = 0
    turned_away: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, draw: random.Random, phase: int) -> None:
        """One request."""
        bad = draw.random() < BAD_SHARE
        sizes = self.network.sizes
        favourite = sizes[phase % len(sizes)]
        feeds, right = self.calls[favourite if draw.random() < 0.7 else draw.choice(sizes)]
        error, wrong = "", False
        try:
            answer = self.model.run(self.network.bad if bad else feeds)
            wrong = not all(_close(answer[name], right[name]) for name in right)
            error = "a bad input was answered" if bad else ""
        except tierup.InputError as raised:
            error = "" if bad else repr(raised)
        except Exception as raised:  # whatever it is, a request was lost
            error = repr(raised)
        with self.lock:
            self.answered += not bad and not error
            self.turned_away += bad and not error
            self.wrong += wrong and not bad
            if error:
                self.errors.append(error)

    def findings(self) -> list[str]:
        """What is wrong with this model's figures."""
        report, found = self.model.report(), []
        counters = report.to_dict()["counters"]
        if report.calls != self.answered + self.turned_away + len(self.errors):
            found.append(f"{report.calls} calls counted, but {self.answered} answered, {self.turned_away} turned away")
        if self.errors or self.wrong:
            found.append(f"{len(self.errors)} errors, {self.wrong} wrong answers: {self.errors[:1]}")
        if counters["quarantined"]:
            found.append(f"{counters['quarantined']} kernels in quarantine: {report.reason}")
        if not report.events_dropped:
            events = [entry.event for entry in report.events]
            told = Counter(type(event) for event in events)
            built = sum(event.compiled for event in events if isinstance(event, Built))
            counted = counters["builds"], counters["swaps"], counters["rollbacks"]
            if counted != (built, told[Swapped], told[RolledBack]):
                found.append(f"builds, swaps and rollbacks are {counted}; events have {built}, {told}")
        return [f"{self.network.name}: {text}" for text in found]


def _close(answer: Any, right: Any) -> bool:
    if answer.shape != right.shape or answer.dtype != right.dtype:
        return False
    return bool(np.abs(answer - right).max(initial=0) <= CLOSE * max(1.0, float(np.abs(right).max(initial=0))))


class Outcome(Struct):
    """What came of it: figures for people and programs, and what is wrong with them."""

    figures: dict[str, Any]
    findings: list[str]


def soak(seconds: float, folder: Path, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Traffic for so many seconds, and a look at what it left."""
    Worker.step_back = lambda worker: None  # type: ignore[method-assign]  # other tests may take every core
    every = [_start(network, folder) for network in networks()]
    stop, phase = threading.Event(), [0]
    threads = [threading.Thread(target=_serve, args=(every, stop, phase, seed)) for seed in range(CALLERS)]
    resident: list[tuple[float, int]] = []
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    while (passed_s := time.monotonic() - began_s) < seconds:
        phase[0] = int(passed_s / PHASE_S)
        resident.append((passed_s, resident_bytes()))
        if len(resident) % 30 == 0:
            say(f"{passed_s:.0f} s: {sum(one.answered for one in every)} answers, {resident[-1][1] >> 20} MiB")
        stop.wait(min(1.0, seconds - passed_s) or 0.001)
    stop.set()
    for thread in threads:
        thread.join()
    return _outcome(every, resident)


def _start(network: Network, folder: Path) -> Traffic:
    """A model on its way up, and the baseline's answers."""
    path = saved(folder, network.proto, f"{network.name}.onnx")
    draw = np.random.default_rng(0)
    with tierup.load(path, config=tierup.Config(force_tier=0)) as baseline:
        feeds = {size: network.draw(draw, size) for size in network.sizes}
        calls = {size: (given, baseline.run(given)) for size, given in feeds.items()}
    config = tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", threads=2, adapt=True)
    return Traffic(network, tierup.load(path, config=config), calls)


def _serve(every: list[Traffic], stop: threading.Event, phase: list[int], seed: int) -> None:
    draw = random.Random(seed)
    while not stop.wait(PAUSE_S):
        draw.choice(every).call(draw, phase[0])


def _outcome(every: list[Traffic], resident: list[tuple[float, int]]) -> Outcome:
    for traffic in every:
        traffic.model.freeze()
    findings = [text for traffic in every for text in traffic.findings()]
    reports = {traffic.network.name: traffic.model.report() for traffic in every}
    for traffic in every:
        traffic.model.close()
    _wait_for_the_queue()
    SAMPLER.wait(60)
    MEMORY.wait(60)
    builders._WORKERS.rest()
    workers = workers_left()
    if workers:
        findings.append(f"workers are left: {workers}")
    warm = resident[int(WARM_SHARE * len(resident)) :]
    before, after = (median(size for _, size in part) for part in (warm[: len(warm) // 3], warm[-(len(warm) // 3) :]))
    if after > before + max(GROWTH_BYTES, GROWTH_SHARE * before):
        findings.append(f"memory grew from {before / 2**20:.0f} to {after / 2**20:.0f} MiB")
    times, sizes = zip(*warm, strict=True)
    figures = {
        "seconds": resident[-1][0],
        "answers": sum(traffic.answered for traffic in every),
        "turned_away": sum(traffic.turned_away for traffic in every),
        "wrong": sum(traffic.wrong for traffic in every),
        "errors": sum(len(traffic.errors) for traffic in every),
        "memory_mib": [before / 2**20, after / 2**20],
        "slope_mib_per_hour": float(np.polyfit(times, sizes, 1)[0]) * 3600 / 2**20,
        "models": {name: {"tier": report.tier, **report.to_dict()["counters"]} for name, report in reports.items()},
    }
    return Outcome(figures, findings)


def _wait_for_the_queue() -> None:
    """What is being built for a model that is closed is still built, and then dropped."""
    deadline_s, pause = time.monotonic() + 120, threading.Event()
    while BACKGROUND.length and time.monotonic() < deadline_s:
        pause.wait(0.05)


def resident_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def workers_left() -> list[str]:
    """The workers that this process has started and that are still there."""
    tasks = Path("/proc/self/task").glob("*/children")
    started = [pid for task in tasks for pid in task.read_text(encoding="ascii").split()]
    commands = (Path(f"/proc/{pid}/cmdline") for pid in started)
    return [path.parent.name for path in commands if path.exists() and b"tierup.adapt.start" in path.read_bytes()]
