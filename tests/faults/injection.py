"""Faults, injected one after another into climbs of a model that several threads call meanwhile.

Kernels are changed after they were built and before they run for the first time, which is in a worker. Machine code is
x86-64's.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tierup
from tests.store.samples import floats, perceptron, saved
from tierup.adapt import builders, memory, proofs, tiering
from tierup.adapt.background import Climb
from tierup.adapt.builders import Built
from tierup.adapt.proofs import Verdicts
from tierup.adapt.tiering import tier_up_quietly
from tierup.lower.parse import parse_program
from tierup.store.learned import FILE, Store

CALLERS = 3
CLOSE = {"rtol": 0, "atol": 2e-6}  # probabilities; both tiers round sums of 64 in f32, in different orders

RETURN = bytes.fromhex("31c0c3")  # xor eax, eax; ret
Change = Callable[[bytes, int], bytes]  # code and the position of the buffer that is written -> other code


def returns_at_once(code: bytes, result: int) -> bytes:
    """Writes nothing."""
    return RETURN + code[len(RETURN) :]


def writes_nan(code: bytes, result: int) -> bytes:
    """push rdi; call the kernel; pop rdi; mov rax, [rdi + 8 · result]; mov dword [rax], NaN; xor eax, eax; ret"""
    call = b"\x57\xe8" + (64 - 6).to_bytes(4, "little")
    return _before(
        call + bytes.fromhex("5f488b47") + bytes([8 * result]) + bytes.fromhex("c7000000c07f") + RETURN, code
    )


def writes_far(code: bytes, result: int) -> bytes:
    """mov rax, [rdi]; mov dword [rax - 16], 0: before the first buffer."""
    return _before(bytes.fromhex("488b07c740f000000000"), code)


def crashes(code: bytes, result: int) -> bytes:
    """ud2"""
    return bytes.fromhex("0f0b") + code[2:]


def hangs(code: bytes, result: int) -> bytes:
    """jmp to itself"""
    return bytes.fromhex("ebfe") + code[2:]


def is_slow(code: bytes, result: int) -> bytes:
    """mov ecx, 10,000,000; dec ecx; jnz: some milliseconds in each piece of each kernel."""
    return _before(bytes.fromhex("b980969800ffc975fc"), code)


def _before(prefix: bytes, code: bytes) -> bytes:
    """Run something first. What the code refers to stays as far away as it was, and on its border."""
    return prefix.ljust(64, b"\x90") + code


@dataclass
class Load:
    """Threads that call a model, and what came of it."""

    model: tierup.Model
    expected: Any
    requests: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: int = 0

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
        done = wrong = 0
        while not stop.is_set():
            done += 1
            try:
                answer = self.model(x=floats(3, 40))["y"]
            except Exception as error:  # whatever it is, a request was lost
                self.lost.append(repr(error))
                continue
            wrong += not np.allclose(answer, self.expected, **CLOSE)
        self.requests += done
        self.wrong += wrong


@dataclass
class Outcome:
    """What a fault did. `passed`: it reached service, though it must not."""

    fault: str
    injected: int
    requests: int
    lost: int
    wrong: int
    passed: int
    recovered: bool
    said: str

    @property
    def held(self) -> bool:
        """Whether nothing was lost, wrong or served, and the next climb was as any other."""
        return not self.lost and not self.wrong and not self.passed and self.recovered


class Bench:
    """One model under load, and climbs with faults in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", threads=2, adapt=True)
        path = saved(folder, perceptron())
        self.model = tierup.load(path, config=tierup.Config(force_tier=0, cache_dir=folder / "cache"))
        self.load = Load(self.model, self.model(x=floats(3, 40))["y"])

    def climb(self) -> str:
        """One climb, waited for; why the model did not get further."""
        model = self.model
        model._progress.resume()
        climb = Climb(
            "bench",
            model._go_live,
            model._origin,
            model._progress,
            self.config,
            calls=model._calls_to_try,
            again=True,
        )
        tier_up_quietly(climb)
        return model._progress.reason

    def back(self) -> None:
        """Back to the baseline, for the next one."""
        model = self.model
        imported = model.imported
        from tierup.plan.baseline import baseline
        from tierup.runtime.executable import executable
        from tierup.runtime.progress import Serving

        plan = baseline(imported.graph)
        model.program, model._serving = executable(plan, imported.weights), Serving.of(plan)
        for entry in (self.folder / "cache" / "plans").glob("*.plan"):
            entry.unlink()


def _result(text: str) -> int:
    """The position of the first buffer that a program writes."""
    return next(number for number, buffer in enumerate(parse_program(text).buffers) if buffer.mode == "out")


def inject_kernels(change: Change, times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Climb with every kernel changed."""
    real = tiering._build

    def build(*arguments: Any, **options: Any) -> list[Built]:
        kernels, texts = real(*arguments, **options), arguments[1]
        return [
            msgspec.structs.replace(kernel, code=change(kernel.code, _result(text)))
            for kernel, text in zip(kernels, texts, strict=True)
        ]

    patch.setattr(proofs, "LIMIT_S", 2.0)
    return _injected(change.__name__, times, folder, patch, lambda: patch.setattr(tiering, "_build", build))


def inject_kills(times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Kill the workers while they plan, build, prove and try."""
    stop, draw = threading.Event(), random.Random(0)

    def kill() -> None:
        while not stop.wait(0.02):
            for worker in list(builders._BACKGROUND._all):
                if worker.ready and worker.task is not None and draw.random() < 0.5:
                    with suppress(OSError):
                        os.kill(worker.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    try:
        return _injected("worker killed", times, folder, patch, killer.start, end=lambda: (stop.set(), killer.join()))
    finally:
        stop.set()


def inject_store(name: str, times: int, folder: Path, patch: pytest.MonkeyPatch) -> Outcome:
    """Climb with a store that is locked, corrupt, read-only or full. Nothing stands in the way of the plan."""
    place = folder / "data"
    held: list[Any] = []

    def spoil() -> None:
        with Store(str(place)):
            pass
        if name == "locked":
            held.append(sqlite3.connect(place / FILE, isolation_level=None))
            held[0].execute("BEGIN EXCLUSIVE")
        elif name == "corrupt":
            (place / FILE).write_bytes(os.urandom(1 << 16))
        elif name == "read-only":
            patch.setattr(memory, "place_of", lambda config: "/proc/none")
            patch.setattr(tiering, "place_of", lambda config: "/proc/none")
        elif name == "full":
            with sqlite3.connect(place / FILE) as raw:
                raw.execute("CREATE TRIGGER IF NOT EXISTS full BEFORE INSERT ON measurement "
                            "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END")  # fmt: skip

    outcome = _injected(f"store {name}", times, folder, patch, spoil, serves=True)
    for connection in held:
        connection.close()
    return outcome


def _injected(
    name: str,
    times: int,
    folder: Path,
    patch: pytest.MonkeyPatch,
    begin: Callable[[], Any],
    end: Callable[[], Any] | None = None,
    serves: bool = False,
) -> Outcome:
    """So many climbs with the fault, under load, then one without. `serves`: the plan may go live all the same."""
    bench = Bench(folder)
    passed, said = 0, ""
    with bench.load.running():
        begin()
        for _ in range(times):
            patch.setattr(proofs.refusals_of, "__kwdefaults__", _fresh_verdicts())
            said = bench.climb() or said
            tier = bench.model.report().tier
            passed += (tier == 0) if serves else (tier != 0 and name != "worker killed")
            bench.back()
        if end is not None:
            end()
        patch.undo()
        patch.delenv("TIERUP_FORCE_TIER", raising=False)
        recovered = bench.climb() == "" and bench.model.report().tier == 1
    load = bench.load
    return Outcome(name, times, load.requests, len(load.lost), load.wrong, passed, recovered, said)


def _fresh_verdicts() -> dict[str, Any]:
    """What was refused once is not tried again in a process; here it is."""
    known = dict(proofs.refusals_of.__kwdefaults__ or {})
    return {**known, "verdicts": Verdicts()}


KERNELS: tuple[Change, ...] = (returns_at_once, writes_nan, writes_far, crashes, hangs, is_slow)
STORES = ("locked", "corrupt", "read-only", "full")


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as text."""
    lines = [f"{'fault':<18}{'injected':>9}{'requests':>10}{'lost':>6}{'wrong':>7}{'served':>8}{'recovers':>10}  said"]
    for one in outcomes:
        recovers = "yes" if one.recovered else "NO"
        lines.append(
            f"{one.fault:<18}{one.injected:>9}{one.requests:>10}{one.lost:>6}{one.wrong:>7}{one.passed:>8}{recovers:>10}"
            f"  {one.said[:90]}"
        )
    return "\n".join(lines)
