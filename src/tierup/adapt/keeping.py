"""What a climb leaves behind: the entry that the next process starts with, and what was learned, in the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tierup.adapt.background import Climb
from tierup.adapt.builders import run_jobs
from tierup.adapt.learn import decision_key, decision_row, kernel_rows, machine_row, trial_rows
from tierup.adapt.memory import MEMORY
from tierup.adapt.messages import Failure, Identified, Identify, PlannedModel
from tierup.adapt.workers import WorkersUnavailable
from tierup.events import Compared, NotKept
from tierup.logs import logger
from tierup.store.plans import Plans, cache_parts
from tierup.store.records import EntryRecord, KernelError
from tierup.store.source import FileSource, Source

log = logger(__name__)


def identify_entry(climb: Climb, source: Source, entry: EntryRecord) -> None:
    """Have an entry say what it was made of, if that was put off until nobody waits for it: a worker that gives way to
    calls reads all of the model for it. If that fails, it says nothing, and is not kept."""
    if entry.parts or not isinstance(source, FileSource):
        return
    try:
        (reply,) = run_jobs([Identify(os.path.abspath(source.origin), source.stamp)])
    except WorkersUnavailable as error:
        _tell(climb, error)
        return
    if isinstance(reply, Identified):
        # What answers has the same dict, and is kept from now on.
        entry.parts.update(cache_parts(climb.config.precision), model=reply.fingerprint)
    else:
        _tell(climb, reply.reason if isinstance(reply, Failure) else reply)


class Learned:
    """What a climb leaves in the store."""

    def __init__(self, climb: Climb, entry: EntryRecord, planned: PlannedModel, errors: dict[int, KernelError]) -> None:
        self._climb, self._entry, self._planned, self._errors = climb, entry, planned, errors
        self.compared: list[Compared] = []

    def keep(self, outcome: str, reason: str) -> None:
        """Queue the rows to be written."""
        climb, planned = self._climb, self._planned
        if not climb.config.adapt:
            return
        machine = machine_row()
        rows = [machine, *kernel_rows(planned.programs, planned.target, self._errors, machine.key)]
        if self._entry.parts:
            key = decision_key(self._entry.parts, climb.aim)
            rows += trial_rows(key, self.compared, machine.key)
            rows.append(decision_row(key, machine.key, climb.name, climb.tier, outcome, reason))
        MEMORY.remember(climb.config, rows, climb.progress.events)


def keep(climb: Climb, plans: Plans, source: Source, entry: EntryRecord, program: int) -> None:
    """Keep the entry of a plan that went live as this program, unless it was taken back already, without variants that
    were."""
    progress = climb.progress
    if progress.taken_back == program or not entry.parts:
        return
    with not_kept(climb):
        plans.write(source, entry)
    if progress.taken_back == program:  # meanwhile
        before = None if progress.counts.quarantined else climb.incumbent
        plans.take_back(source, entry.parts, entry.plan.aim, before)
    plan, gone = entry.plan, progress.left_out
    if any(plan.kernels[variant.kernel].region in gone for variant in plan.variants):
        kept = [variant for variant in plan.variants if plan.kernels[variant.kernel].region not in gone]
        plans.keep_variants(source, entry.parts, plan.aim, kept)


@contextmanager
def not_kept(climb: Climb) -> Iterator[None]:
    """A plan that cannot be kept serves all the same."""
    try:
        yield
    except OSError as error:  # a full disk, a folder that is not ours, a model that was changed
        _tell(climb, error)


def _tell(climb: Climb, why: object) -> None:
    log.warning("the plan of model %r is not kept: %s", climb.name, why)
    climb.progress.events.add(NotKept(str(why)))
