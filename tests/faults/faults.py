"""The faults: each is a function that injects it so many times under load and says what came of it.

Kernels are changed after they were built and before they run for the first time, which is in a worker.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults.changes import KERNELS, Change
from tests.faults.injection import Bench, Outcome
from tierup.adapt import builders, memory, proofs, tiering
from tierup.adapt.builders import Builders, Built
from tierup.adapt.memory import MEMORY
from tierup.adapt.messages import Failure
from tierup.events import Compared, StoreIgnored
from tierup.lower.parse import parse_program
from tierup.store.learned import Store
from tierup.store.objects import ObjectCache
from tierup.store.place import FILE

Inject = Callable[[int, Path, pytest.MonkeyPatch], Outcome]
HANGING_S = 2.5  # what takes longer hangs; the same machine also runs other tests


def _result(text: str) -> int:
    """The position of the first buffer that a program writes."""
    return next(number for number, buffer in enumerate(parse_program(text).buffers) if buffer.mode == "out")


def _changed(kernel: Built | Failure, change: Change, text: str) -> Built | Failure:
    assert isinstance(kernel, Built)
    return msgspec.structs.replace(kernel, code=change(kernel.code, _result(text)))


def inject_kernels(change: Change, times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Climb with every kernel changed, until so many were."""
    bench, real, injected, passed, said = Bench(folder, patch), Builders.compile_texts, 0, 0, ""

    def compile_texts(builder: Builders, texts: Any, *rest: Any, **options: Any) -> list[Built | Failure]:
        nonlocal injected
        built = real(builder, texts, *rest, **options)
        injected += len(built)
        return [_changed(kernel, change, text) for kernel, text in zip(built, texts, strict=True)]

    bench.plan_once()
    patch.setattr(Builders, "compile_texts", compile_texts)
    if change.__name__ == "hangs":
        patch.setattr(proofs, "LIMIT_S", HANGING_S)
    with bench.under_load():
        while injected < times:
            before = injected
            said = bench.climb_afresh() or said
            passed += (injected - before) * (bench.tier != 0)
            bench.back()
            if injected == before:
                raise AssertionError(f"no kernel was built: {said}")
        return bench.outcome(change.__name__, injected, passed, said)


def inject_kills(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Kill workers while they plan, build, prove and try."""
    bench, over, draw, said = Bench(folder, patch), threading.Event(), random.Random(0), ""
    kills = 0

    def kill() -> None:
        nonlocal kills
        while kills < times and not over.wait(draw.uniform(0, 0.6)):
            for worker in list(builders._WORKERS._all):
                if worker.ready and worker.task is not None:
                    with suppress(OSError):
                        os.kill(worker.process.pid, signal.SIGKILL)
                        kills += 1

    killer = threading.Thread(target=kill)
    try:
        with bench.under_load():
            killer.start()
            while killer.is_alive():
                said = bench.climb_afresh() or said
                bench.back()
            return bench.outcome("worker killed", kills, 0, said)
    finally:
        over.set()
        killer.join()


def inject_memory_limit(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Have workers that run out of memory while they build, prove or try: each gets a limit of its own."""
    bench, real, injected, climbs, said = Bench(folder, patch), Builders.compile_texts, 0, 0, ""

    def compile_texts(*arguments: Any, **options: Any) -> list[Built | Failure]:
        nonlocal injected
        built = real(*arguments, **options)
        injected += sum(isinstance(result, Failure) for result in built)
        return built

    bench.plan_once()
    bench.climb()  # the plan is made while there is memory
    bench.back()
    bench.use_workers(memory_mib=[8, 160])
    patch.setattr(ObjectCache, "get", lambda *_: None)
    patch.setattr(Builders, "compile_texts", compile_texts)
    with bench.under_load():
        while injected < times and climbs < times:
            climbs += 1
            said = bench.climb_afresh() or said
            bench.back()
            builders._WORKERS.rest()
            builders._WORKERS._unavailable = None  # too little to start with is tried again, too
        return bench.outcome("memory limit", injected, 0, said)


def inject_store(name: str, times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Climb with a store that is locked, corrupt, read-only or full. Nothing stands in the way of the plan."""
    bench, place = Bench(folder, patch), folder / "data"
    held: list[sqlite3.Connection] = []
    bench.use_workers(**{"locked": {"store_wait_s": 0.05}, "full": {"store_bytes": 1 << 16}}.get(name, {}))
    bench.plan_once()
    patch.setattr(tiering, "_time_apart", lambda *_: (Compared(((3, 40),), 9, 100.0, 50.0, 0.5, 0.01),))
    if name == "read-only":
        patch.setattr(memory, "place_of", lambda config: "/proc/none")
        patch.setattr(tiering, "place_of", lambda config: "/proc/none")
    with Store(str(place)):
        pass
    if name == "locked":
        held.append(sqlite3.connect(place / FILE, isolation_level=None))
        held[0].execute("BEGIN EXCLUSIVE")
    passed, said = 0, ""
    with bench.under_load():
        for _ in range(times):
            if name == "corrupt":
                (place / FILE).write_bytes(os.urandom(1 << 16))
            reason = bench.climb()
            MEMORY.wait(60)
            said = reason or _ignored(bench) or said
            passed += bench.tier != 1  # it serves all the same
            bench.back()
        for connection in held:
            connection.close()
        return bench.outcome(f"store {name}", times, passed, said)


def _ignored(bench: Bench) -> str:
    """What the last event about the store says."""
    events = (entry.event for entry in reversed(bench.model.events.all()))
    return next((event.reason for event in events if isinstance(event, StoreIgnored)), "")


STORES = ("locked", "corrupt", "read-only", "full")
BUILDING: dict[str, Inject] = {
    **{change.__name__: partial(inject_kernels, change) for change in KERNELS},
    "worker killed": inject_kills,
    "memory limit": inject_memory_limit,
    **{f"store {name}": partial(inject_store, name) for name in STORES},
}
