"""Kernels of a plan -> refusals: each is proved in a worker, once in a process, however many models have it.

A plan comes with its cases as bytes, so that the process that serves neither imports nor computes anything for them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from tierup.adapt.builders import run_jobs
from tierup.adapt.messages import Failure, PlacedCase, Prove, Reply
from tierup.adapt.proof import Proof, Refusal
from tierup.adapt.workers import AtMost, Presses, Told, WorkersUnavailable
from tierup.codegen.target import Target
from tierup.digests import sha256
from tierup.logs import logger
from tierup.store.records import KernelError

log = logger(__name__)

LIMIT_S = 60.0  # the largest take some seconds; what takes longer hangs
_KEPT = 8192  # verdicts

Run = Callable[[Sequence[Prove]], Sequence[Reply]]


class Verdicts:
    """What was proved or refused in this process, by digest of case and machine code; the oldest are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replies: OrderedDict[str, Proof | Failure] = OrderedDict()

    def get(self, key: str) -> Proof | Failure | None:
        """What came of it; None if it was never tried."""
        with self._lock:
            return self._replies.get(key)

    def put(self, key: str, reply: Proof | Failure) -> None:
        with self._lock:
            self._replies[key] = reply
            while len(self._replies) > _KEPT:
                self._replies.popitem(last=False)


VERDICTS = Verdicts()  # one for the process


def refusals_of(
    cases: Sequence[PlacedCase],
    codes: Sequence[bytes],
    target: Target,
    run: Run,
    *,
    verdicts: Verdicts = VERDICTS,
    errors: dict[int, KernelError] | None = None,
) -> list[Refusal]:
    """The kernels that may not serve; `codes` is the machine code of each slot. `errors` takes what was measured."""
    jobs = {
        place: Prove(place.case, tuple(codes[slot] for slot in place.slots), target) for place in cases if place.case
    }
    keys = {place: _key(job) for place, job in jobs.items()}
    untried = [place for place in jobs if verdicts.get(keys[place]) is None]
    replies = run([jobs[place] for place in untried])
    for place, reply in zip(untried, replies, strict=True):
        assert isinstance(reply, Proof | Failure)  # the only replies that fit such a job
        verdicts.put(keys[place], reply)
    refusals = []
    for place in cases:
        verdict = verdicts.get(keys[place]) if place in keys else None
        reason = place.reason or (verdict.reason if verdict is not None else "")
        if reason:
            refusals.append(Refusal(place.slots[-1], reason, not isinstance(verdict, Failure)))
        if isinstance(verdict, Proof) and errors is not None:
            measured = KernelError(verdict.worst, verdict.rms, verdict.rms_baseline, verdict.narrowed)
            errors.update(dict.fromkeys(place.slots, measured))
    return refusals


def in_workers(workers: AtMost, told: Told | None = None, presses: Presses = False) -> Run:
    """Has kernels proved by so many workers at once; `told` hears what each job took."""

    def run(jobs: Sequence[Prove]) -> Sequence[Reply]:
        if not jobs:
            return ()
        try:
            return run_jobs(jobs, at_most=workers, limit_s=LIMIT_S, told=told, presses=presses)
        except WorkersUnavailable as error:
            log.warning("kernels are proved in this process: %s", error)
        from tierup.adapt.prove import prove_job

        return [prove_job(job) for job in jobs]

    return run


def _key(job: Prove) -> str:
    digest = sha256(repr(job.target).encode())
    for part in (job.case, *job.codes):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
