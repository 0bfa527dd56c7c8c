"""How far a model has come: shared by the model and the work for it, which know nothing else of each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from tierup.events import Events
from tierup.ir.facts import Aim, Fact
from tierup.ir.facts import Signature as Signature

if TYPE_CHECKING:
    from tierup.plan.program import Plan
    from tierup.runtime.constants import Constants
    from tierup.runtime.executable import Baseline
    from tierup.store.records import KernelError, VariantRecord


_MOST_PUT_OFF = 64  # plans; the oldest goes


class Serving(msgspec.Struct, frozen=True):
    """What answers calls: the plan's figures for reports, the signatures that have functions of their own, who answers
    where its guard fails, its constants, which the next plan may share, and what was measured when its kernels were
    proved, by slot."""

    kernels: int
    kernel_steps: int
    fallback_nodes: int
    signatures: tuple[Signature, ...] = ()
    baseline: Baseline | None = None
    constants: Constants = {}
    errors: tuple[tuple[int, KernelError], ...] = ()
    parts: dict[str, str] = {}
    """What it was made of, by name; empty if it is not kept."""
    keys: tuple[str, ...] = ()
    """What the kernel of each slot is called in the object cache."""
    refused: tuple[tuple[str, str], ...] = ()
    """Regions that the reference computes because their kernels were refused, and why."""
    regions: tuple[str, ...] = ()
    """What each slot's kernel computes: the SHA-256 of its tile program's text."""
    variants: tuple[VariantRecord, ...] = ()
    """Kernels for some sizes, by number, in front of the slots' open ones."""
    facts: tuple[Fact, ...] = ()
    """What some of the variants rely on."""
    strays: tuple[Signature, ...] = ()
    """Calls like these have functions of their own, since sizes differ in them that are taken to be equal."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        signatures: tuple[Signature, ...] = (),
        baseline: Baseline | None = None,
        constants: Constants | None = None,
        errors: tuple[tuple[int, KernelError], ...] = (),
        refused: tuple[tuple[str, str], ...] = (),
        regions: tuple[str, ...] = (),
    ) -> Serving:
        """A plan's figures."""
        from tierup.plan.program import StepCode
        from tierup.store.records import variant_records

        return cls(
            plan.kernels, plan.count(StepCode.KERNEL), plan.fallback_nodes, signatures, baseline, constants or {},
            errors, refused=refused, regions=regions, variants=variant_records(plan), facts=plan.facts,
            strays=plan.strays,
        )  # fmt: skip

    @property
    def aim(self) -> Aim:
        """What it was made for."""
        return Aim(self.signatures, self.facts, self.strays)

    @property
    def tier(self) -> int:
        """0: the baseline. 1: kernels. 2: also functions for signatures, with closed sizes."""
        return (2 if self.signatures else 1) if self.kernels else 0

    @property
    def deopts(self) -> int:
        """How many calls the baseline has answered because a guard failed."""
        return 0 if self.baseline is None else self.baseline.calls


class Counts(msgspec.Struct):
    """What was done for a model. Builds are compilations started; what came from a cache is none."""

    builds: int = 0
    swaps: int = 0
    rollbacks: int = 0
    refusals: int = 0
    quarantined: int = 0
    plan_hits: int = 0
    plan_misses: int = 0
    object_hits: int = 0
    object_misses: int = 0


class Progress:
    """What was done for a model so far, and whether anything is left to do."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.may_begin = threading.Event()  # the first call was answered, or somebody waits
        self.lock = threading.Lock()  # held while a program goes live, or while that is being forbidden
        self.stopped = False  # closed or frozen: nothing goes live any more
        self.awaited = 0  # callers that wait until it is settled
        self.taken_back = 0  # the number of the last program that was rolled back or found wrong
        self.taken_back_for = "", ""  # which of the two, and why
        self.reason = ""  # why the model did not get further
        self.counts = Counts()
        self.events = Events()
        self.left_out: dict[str, str] = {}  # variants that later plans do without, by their programs' digests, and why
        self._put_off: dict[frozenset[object], float] = {}

    def fate(self, program: int) -> tuple[str, str]:
        """What became of a program that went live, and why."""
        return self.taken_back_for if self.taken_back == program else ("swapped", "")

    @property
    def settled(self) -> bool:
        """Whether nothing is left to improve."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to improve, or for so many seconds; returns `settled`."""
        self.may_begin.set()
        with self.hurry():
            return self._done.wait(timeout_s)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Somebody waits meanwhile, also between two climbs."""
        with self.lock:
            self.awaited += 1
        try:
            yield
        finally:
            with self.lock:
                self.awaited -= 1

    def presses(self) -> bool:
        """Whether somebody waits."""
        return self.awaited > 0

    def finish(self, reason: str = "") -> None:
        """Nothing is left to do. `reason` says why the model did not get further, if it did not."""
        self.reason = reason
        self._done.set()

    def resume(self) -> bool:
        """There is something to do again; False if it must not be done."""
        with self.lock:
            if not self.stopped:
                self._done.clear()
            return not self.stopped

    def put_off(self, aim: Aim, seconds: float) -> None:
        """A plan that is made for this would be turned away for so long: it need not be asked for."""
        if seconds > 0:
            self._put_off[aim.wants] = monotonic() + seconds
        while len(self._put_off) > _MOST_PUT_OFF:
            del self._put_off[next(iter(self._put_off))]

    def allows(self, aim: Aim) -> bool:
        """Whether a plan that is made for this may be asked for now."""
        return monotonic() >= self._put_off.get(aim.wants, 0.0)

    def stop(self) -> None:
        """Let nothing go live from now on."""
        with self.lock:
            self.stopped = True
        self.may_begin.set()
        self._done.set()

    def abandon(self, reason: str) -> None:
        """In a forked child: the thread that did the work is not there, and may have held the locks."""
        self._done, self.may_begin, self.lock = threading.Event(), threading.Event(), threading.Lock()
        self.awaited = 0
        self.events.forked()
        self.finish(reason)
