"""Faults of a model that serves: kernels that go wrong or slow after their proof, and calls that end in the middle."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tierup
from tests.faults.changes import is_slow, is_very_slow, returns_at_once
from tests.faults.injection import CALLERS, Bench, Load, Outcome, X
from tierup import _native, session
from tierup.adapt import care, hot, tiering
from tierup.adapt.care import Care
from tierup.adapt.sampling import MOST_CALLS, SAMPLER
from tierup.codegen.target import target_of
from tierup.plan.program import StepCode
from tierup.profile.identity import identify
from tierup.store.objects import ObjectCache

FOUND_S = 120.0  # after which it counts as never found
STARTED_S = 0.01  # instead of the seconds that a process is given before its first check, so that hundreds take minutes


class Service:
    """Models that start from the plan cache, are cared for, and are called by several threads."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        patch.delenv("TIERUP_FORCE_TIER", raising=False)
        self.bench = Bench(folder, patch)
        self.config = tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", threads=1, adapt=True)
        patch.setattr(tiering, "_time_apart", lambda *_: "the load decides")
        patch.setattr(care, "START_S", STARTED_S)
        self._plans: dict[int, dict[Path, bytes]] = {}
        with tierup.load(self.bench.path, config=self.config) as first:
            for tier in (1, 2):
                assert first.settle(300).settled
                kept = (folder / "cache" / "plans").glob("*.plan")
                self._plans[tier] = {path: path.read_bytes() for path in kept}
                first(x=X)
        patch.setattr(hot, "hot_signatures", lambda *_, **__: ())  # from now on no other plan takes what is broken out
        self.requests = self.lost = self.wrong = 0

    def load(self, tier: int = 1) -> tierup.Model:
        """A model that is on this tier at once, whatever became of the plan before."""
        for path, content in self._plans[tier].items():
            path.write_bytes(content)
        held = tierup.load(self.bench.path, config=self.config)
        assert held.report().tier == tier
        return held

    def under_load(self, held: tierup.Model, **options: Any) -> Load:
        return Load(held, self.bench.load.expected, **options)

    def count(self, load: Load) -> None:
        self.requests += load.requests
        self.lost += len(load.lost)
        self.wrong += load.wrong

    def outcome(self, fault: str, injected: int, passed: int, said: str, *found: int) -> Outcome:
        self.load().close()  # it starts as ever
        return Outcome(fault, injected, self.requests, self.lost, self.wrong, passed, True, said, *found)


def publish(held: tierup.Model, change: Any) -> None:
    """Put other code in the place of the first kernel, as if memory had been overwritten."""
    target = target_of(identify())
    assert target is not None
    assert held.program is not None
    code = ObjectCache(held._config.cache_dir / "objects").get_digest(held._serving.keys[0], target)
    assert code is not None
    bad = _native.Code([change(code, 0)])
    held.program.publish({0: (bad.addresses[0], bad)})


class Asked:
    """When samples are asked for: (the model's calls then, after how many more), as the sampling itself states it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.last = 0, 0
        again = Care.again

        def noted(care: Care, runner: Any, *rest: float) -> None:
            again(care, runner, *rest)
            self.last = runner.calls, care.every_calls

        patch.setattr(Care, "again", noted)

    def begin(self, held: tierup.Model) -> None:
        """A model that starts from the cache says at its first notice when its first sample is checked."""
        self.last = held.calls, session.FIRST_NOTICE


def inject_corruption(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Overwrite a kernel that serves: the next sample has to find it, and everything is right afterwards.

    So it takes at most the calls until that sample, which sampling has stated before, and those that are answered while
    a worker checks it; and if another one is being checked when it happens, those until that is done.
    """
    service, draw, asked = Service(folder, patch), random.Random(0), Asked(patch)
    worst = passed = bound = 0
    said = ""
    for _ in range(times):
        held = service.load()
        asked.begin(held)
        load = service.under_load(held)
        with load.running():
            calls = draw.randint(1, 200)
            wait_for(lambda load=load, calls=calls: load.requests >= calls)
            before = held.calls
            publish(held, returns_at_once)
            found = wait_for(lambda held=held: held._serving.kernels == 0)
            taken = held.calls - before
        passed += not found
        service.count(load)
        report = held.report()
        if found:
            since, every = asked.last
            sampled = report.evidence[-1][0].number
            limit = max(0, since - before) + every + CALLERS + (before + taken - sampled)
            passed += taken > limit or every > MOST_CALLS
            worst, bound = max((worst, bound), (taken, limit))
        said = report.reason or said
        after = service.under_load(held)
        for _ in range(5):
            after.call()
        passed += after.wrong  # it must be right from now on
        SAMPLER.wait(60)
        held.close()
    return service.outcome("wrong in service", times, passed, said, worst, bound)


def inject_slowness(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Let a plan go live that no trial has seen, with kernels that are slow: live calls have to take it back."""
    service = Service(folder, patch)
    passed = worst = 0
    said = ""
    for _ in range(times):
        held = tierup.load(service.bench.path, config=tierup.Config(force_tier=0, threads=1))
        held._config = service.config  # from now on it is cared for
        load = service.under_load(held)
        with load.running():
            wait_for(lambda load=load: load.requests >= 64)
            plan = service.load()
            publish(plan, is_very_slow)
            assert plan.program is not None
            before = held.calls
            held._go_live(plan.program, plan._serving)
            passed += not wait_for(lambda held=held, slow=plan.program.number: held.program.number != slow)
            worst = max(worst, held.calls - before)
        service.count(load)
        events = (entry["text"] for entry in held.report().to_dict()["events"] if entry["event"] == "rolled back")
        said = next(events, said)
        held.close()
    return service.outcome("slow in service", times, passed, said, worst)


def inject_failures(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Let a plan go live that fails in every call, as a wrong rewrite made one: the baseline has to answer, at once."""
    service = Service(folder, patch)
    passed = worst = 0
    said = ""

    def fails(*_: Any) -> Any:
        raise tierup.InputError("a rewrite was wrong")

    step = (StepCode.CALLOUT, 0, 1, 0, 1, 1)
    for _ in range(times):
        held = service.load()
        load = service.under_load(held)
        with load.running():
            wait_for(lambda load=load: load.requests >= 16)
            plan = _native.Program(functions=[(2, 0, [0], [1], [], [step])], callouts=[fails], constants=[])
            before = held.calls
            held._go_live(plan, held._serving)
            passed += not wait_for(lambda held=held: held._serving.kernels == 0)
            worst = max(worst, held.calls - before)
            answered = load.requests
            wait_for(lambda load=load, answered=answered: load.requests > answered + 10)
        service.count(load)
        said = held.report().reason or said
        held.close()
    return service.outcome("plan that fails", times, passed, said, worst)


def slow_down_variant(held: tierup.Model, number: int) -> tuple[int, tuple[int, ...]]:
    """Make one of a model's variants slow; its slot and key."""
    target = target_of(identify())
    assert target is not None
    assert held.program is not None
    variant = held._serving.variants[number % len(held._serving.variants)]
    code = ObjectCache(held._config.cache_dir / "objects").get_digest(held._serving.keys[variant.kernel], target)
    assert code is not None
    bad = _native.Code([is_slow(code, 0)])
    row = (variant.slot, variant.first, variant.key, bad.addresses[0], bad)
    held.program.add_variants([(*row, variant.range, variant.grain, variant.scratch)])
    return variant.slot, variant.key


def inject_slow_variants(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Let a plan go live one of whose variants is slow: live calls have to take out that one, at least."""
    service = Service(folder, patch)
    passed = worst = alone = 0
    for number in range(times):
        held, plan = service.load(), service.load(tier=2)
        load = service.under_load(held)
        with load.running():
            wait_for(lambda load=load: load.requests >= 64)
            slow = slow_down_variant(plan, number)
            before = held.calls
            held._go_live(plan.program, plan._serving)
            passed += not wait_for(lambda held=held, slow=slow: slow not in variants_of(held))
            worst = max(worst, held.calls - before)
            alone += held._serving.tier == 2
        service.count(load)
        held.close()
    return service.outcome("slow variant", times, passed, f"taken out alone {alone} times", worst)


def variants_of(held: tierup.Model) -> set[tuple[int, tuple[int, ...]]]:
    program = held.program
    return set() if program is None else {(slot, key) for slot, key, *_ in program.variants()}


def inject_interrupts(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Interrupt calls of the main thread while others go on: the next call is answered as ever."""
    service, draw = Service(folder, patch), random.Random(0)
    held = service.load()
    load, interrupts = service.under_load(held), 0

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with load.running():
            while interrupts < times:
                try:
                    # Once more after a second: Python drops what lands in a destructor.
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 2e-3), 1.0)
                    while True:
                        held(x=X)
                except KeyboardInterrupt:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    interrupts += 1
                load.call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    service.count(load)
    held.close()
    return service.outcome("interrupted", interrupts, 0, "")


def inject_closing(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Close a model in the middle of calls, and of what is done for it: they are answered, or told so."""
    service, draw = Service(folder, patch), random.Random(0)
    for number in range(times):
        held = service.load() if number % 2 else tierup.load(service.bench.path, config=_fresh(service, folder, number))
        load = service.under_load(held, fine=(tierup.TierupError,))
        with load.running():
            calls = draw.randint(0, 50)
            wait_for(lambda load=load, calls=calls: load.requests >= calls)
            held.close()
            said = load.requests
            wait_for(lambda load=load, said=said: load.requests > said + 10)
        service.count(load)
    return service.outcome("closed mid-call", times, 0, "")


def _fresh(service: Service, folder: Path, number: int) -> tierup.Config:
    """Of a model that has to climb."""
    return tierup.Config(cache_dir=folder / f"cache{number % 8}", data_dir=folder / "data", threads=1, adapt=True)


def inject_forks(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Fork while other threads call and kernels are built: the child's calls are answered, too, and the parent's."""
    service = Service(folder, patch)
    lost = 0
    held = service.load()
    load = service.under_load(held)
    with load.running():
        for number in range(times):
            climbing = tierup.load(service.bench.path, config=_fresh(service, folder, number))
            child = os.fork()
            if child == 0:
                _answer_in_child([held, climbing], load.expected)
            lost += not _ends_well(child)
            climbing.close()
    service.count(load)
    service.lost += lost
    held.close()
    return service.outcome("forked", times, 0, f"{lost} children did not answer" if lost else "")


def _answer_in_child(models: list[tierup.Model], expected: Any) -> None:
    """Call each model as its parent does, and end with 0 if the answers are right."""
    status = 3
    try:
        loads = [Load(held, expected) for held in models]
        for load in loads:
            for _ in range(3):
                load.call()
        status = sum(len(load.lost) + load.wrong for load in loads)
    finally:
        os._exit(min(status, 100))


def _ends_well(child: int) -> bool:
    """Whether a child ends in time, and says that all was right."""
    deadline = time.monotonic() + FOUND_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        threading.Event().wait(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def wait_for(condition: Any) -> bool:
    """Wait until something that other threads bring about is so; False if it never is."""
    deadline = time.monotonic() + FOUND_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.001)
    return True


SERVING = {
    "wrong in service": inject_corruption,
    "plan that fails": inject_failures,
    "slow in service": inject_slowness,
    "slow variant": inject_slow_variants,
    "interrupted": inject_interrupts,
    "closed mid-call": inject_closing,
    "forked": inject_forks,
}
