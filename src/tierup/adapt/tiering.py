"""From one tier to the next: plan, build, prove, try, go live, keep.

In the background the plan is made by a worker, and comes as the entry that the plan cache will keep; the model then
starts from it as it would start from the cache. A caller that waits for a tier has it planned in its own process.
Whatever goes wrong leaves the model on the tier that it is on, with the reason in its report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from logging import INFO, WARNING

import msgspec

from tierup import _native
from tierup.adapt.ahead import plan_job
from tierup.adapt.aside import cores_of
from tierup.adapt.background import NO_TARGET, Climb, Stopped
from tierup.adapt.builders import Builders, Built, run_jobs
from tierup.adapt.compare import log_of, verdict
from tierup.adapt.costs import COSTS
from tierup.adapt.keeping import Learned, identify_entry, keep, not_kept
from tierup.adapt.learn import left_alone_s, machine_row
from tierup.adapt.memory import MEMORY, place_of
from tierup.adapt.messages import Failure, PlacedCase, PlannedModel, Recall, Recalled, TriedPlan, TryPlan
from tierup.adapt.proof import Refusal
from tierup.adapt.proofs import in_workers, refusals_of
from tierup.adapt.refusing import Refusing, in_quarantine, not_built
from tierup.adapt.room import Room
from tierup.adapt.workers import WorkersUnavailable
from tierup.codegen.image import runs_images
from tierup.codegen.target import Target, target_of
from tierup.config import Config
from tierup.errors import TierupError
from tierup.events import Built as BuiltEvent
from tierup.events import Compared, Packed, Planned, Proved, Refused, Spent, StoreIgnored, Tried
from tierup.logs import logger
from tierup.private import make_private
from tierup.profile.identity import identify
from tierup.runtime.executable import Baseline, bind_plan, executable
from tierup.runtime.kernels import publish_code
from tierup.runtime.origin import Origin
from tierup.runtime.progress import Serving, Signature
from tierup.runtime.warm import Warm, restore
from tierup.store.objects import ObjectCache, program_digest
from tierup.store.place import is_new
from tierup.store.plans import Plans, cache_parts
from tierup.store.records import EntryRecord, KernelError, KernelRecord
from tierup.store.rows import Quarantine
from tierup.store.source import Source, as_file

log = logger(__name__)


TRIAL_S = 3.0  # for all signatures of a trial; three pairs are timed even if they take longer
_TRIAL_LIMIT_S = 60.0  # with loading both plans; what takes longer hangs
_STORE_LIMIT_S = 30.0
_MOST_BYTES = 48 << 20  # of an entry that is sent to a worker
# Calls wait for a trial, which takes about one of the baseline's, and for weights to be packed, so many bytes a second,
# if both take less than so many calls.
_WAITED_CALLS, _PACKED_BYTES_S = 3, 2e9

Prove = Callable[[Sequence[str], Sequence[Built]], Sequence[Refusal]]  # of tile programs as text, and their kernels


class NotBetter(TierupError):
    """The model stays as it is; the message says why."""


class TurnedAway(NotBetter):
    """Calls break what the plan assumes of sizes, so that the baseline would have to answer them."""

    def __init__(self, strays: Sequence[Signature]) -> None:
        super().__init__("the plan turns calls away that come")
        self.strays = strays


class Unclear(NotBetter):
    """Noise could hide a gain, so this says little about the next time."""


def tier_up_now(climb: Climb, prove: Prove | None = None) -> None:
    """Have the model on tier 1 when this returns, even if no part of it compiles; what goes wrong is raised."""
    try:
        _with_plan_from_here(climb, prove, forced=True)
    finally:
        climb.progress.finish()


def tier_up_quietly(climb: Climb, prove: Prove | None = None) -> None:
    """In the background: what goes wrong is logged and in the report, and the model serves on."""
    reason = ""
    try:
        target = target_of(identify())
        if target is None:
            raise NotBetter(NO_TARGET)
        if runs_images(target) and _can_plan_apart(climb):
            _with_plan_from_worker(climb, prove)
        else:
            _with_plan_from_here(climb, prove)
    except Stopped:
        reason = "the model was closed or frozen before its kernels were ready"
    except NotBetter as error:
        reason = str(error)
        # Facts are proposed on the off chance: most save too little, and then nothing is amiss.
        log.log(INFO if climb.facts else WARNING, "model %r stays as it is: %s", climb.name, reason)
    except Exception as error:
        reason = str(error) if isinstance(error, TierupError) else f"{type(error).__name__}: {error}"
        log.warning("model %r stays as it is: %s", climb.name, reason, exc_info=not isinstance(error, TierupError))
    if reason:
        climb.progress.events.add(Refused("climb", reason))
    _keep_costs(climb)
    _native.trim_heap()  # what the import and the baseline's calls took
    climb.progress.finish("" if climb.facts else reason)
    if climb.config.adapt and not climb.progress.stopped:
        from tierup.profile.machine import measure_once

        measure_once(climb.config.data_dir)


def _keep_costs(climb: Climb) -> None:
    """What it took, so that the next one's cost is known."""
    stages: dict[str, tuple[float, int]] = {
        stage: (found.core_s, found.peak_bytes) for stage, found in climb.ledger.stages.items()
    }
    if not stages:
        return
    expected = COSTS.predict(climb.tier, climb.nodes)
    climb.progress.events.add(Spent(stages, expected.core_s))
    machine = machine_row()
    rows = COSTS.learn(climb.ledger, machine.key, climb.tier, climb.nodes)
    if climb.config.adapt:
        MEMORY.remember(climb.config, [machine, *rows], climb.progress.events)


def _room(climb: Climb) -> Room:
    """How many workers may build for it at once: calls go on meanwhile."""
    return Room(climb.config.threads, COSTS.predict(climb.tier, climb.nodes).peak_bytes)


def _with_plan_from_worker(climb: Climb, prove: Prove | None) -> None:
    """Calls go on while the plan is made elsewhere."""
    plans = _plans(climb.config)
    source = climb.origin().source
    assert source is not None  # `_can_plan_apart` has seen it
    refusing, kernels = Refusing(climb.progress), None
    while kernels is None:
        began_s = time.monotonic()
        try:
            entry, planned = _plan_apart(source, climb, refusing)
        except WorkersUnavailable as error:
            log.warning("the plan of model %r is made in this process: %s", climb.name, error)
            _with_plan_from_here(climb, prove)
            return
        seconds, facts = time.monotonic() - began_s, tuple(map(str, climb.facts))
        climb.progress.events.add(Planned(len(planned.programs), seconds, facts, planned.saved))
        errors: dict[int, KernelError] = {}
        in_workers = _in_workers(planned.cases, planned.target, climb, errors)
        kernels = _ready(climb, planned.programs, planned.target, prove or in_workers, refusing)
    worst = max((error.worst for error in errors.values()), default=0.0)
    climb.progress.events.add(Proved(len(kernels), worst, time.monotonic() - began_s))
    entry = _with_kernels(entry, planned.programs, kernels, True, errors)
    learned = Learned(climb, entry, planned, errors)
    origin = climb.origin()
    try:
        warm = _try_and_go_live(climb, source, origin, plans, entry, learned.compared)
    except TurnedAway as found:
        climb.take_in(found.strays)
        _with_plan_from_worker(climb, prove)
        return
    except NotBetter as error:
        outcome = "unclear" if isinstance(error, Unclear) else "refused"
        identify_entry(climb, source, entry)
        learned.keep(outcome, str(error))
        climb.progress.put_off(climb.aim, left_alone_s(outcome))
        raise
    for displaced in warm.displaced:
        climb.progress.events.add(displaced)
    identify_entry(climb, source, entry)
    learned.keep(*climb.progress.fate(warm.program.number))
    if refusing.lasts:  # otherwise the next one that loads the model tries again
        keep(climb, plans, source, entry, warm.program.number)
    origin.forget()


def _try_and_go_live(
    climb: Climb, source: Source, origin: Origin, plans: Plans, entry: EntryRecord, compared: list[Compared]
) -> Warm:
    """Calls that come meanwhile wait, if kernels are there soon: beside a trial, and beside threads that pack weights,
    the baseline would take longer than that to answer them."""
    before = climb.hold_calls(_longest_wait_s(climb, entry))
    try:
        tried = _try(climb, source, entry, compared)
        origin.release_pages()  # what the baseline read, lest weights be in memory twice while they are packed
        began_s = time.monotonic()
        warm = restore(plans.open(source, entry), origin, climb.config, climb.constants)
        packed_s = time.monotonic() - began_s
        climb.go_live(warm.program, warm.serving, tried)
    finally:
        waited = climb.hold_calls(0.0) - before
    climb.progress.events.add(Packed(packed_s, waited))
    return warm


def _longest_wait_s(climb: Climb, entry: EntryRecord) -> float:
    """How long calls wait at most for kernels that are proved; 0 where it is likely to take longer, or where others
    answer already."""
    demand = climb.demand()
    call_s = 0.0 if demand is None or climb.incumbent is not None else demand.call_s
    needed_s, longest_s = call_s + entry.about.weights_bytes / _PACKED_BYTES_S, _WAITED_CALLS * call_s
    return longest_s if needed_s < longest_s else 0.0


def _with_plan_from_here(climb: Climb, prove: Prove | None, forced: bool = False) -> None:
    """Somebody waits for it, or there is no file for a worker to read."""
    from tierup.adapt.planning import make_entry, make_plan, placed_cases, why_not

    origin, config = climb.origin(), climb.config
    imported = origin.imported()
    refusing, kernels = Refusing(climb.progress), None
    while kernels is None:
        planned = make_plan(imported, climb.aim, config.precision, refusing.reasons)
        if not planned.texts and not forced:
            raise NotBetter(refusing.nothing_left)
        if reason := why_not(planned):
            climb.progress.put_off(climb.aim, left_alone_s("refused"))
            raise NotBetter(reason)
        errors: dict[int, KernelError] = {}
        judge = prove
        if prove is None and not forced:  # a caller that forces a tier gets it as it is
            judge = _in_workers(placed_cases(planned.compiled, planned.weights), planned.target, climb, errors)
        kernels = _ready(climb, planned.texts, planned.target, judge, refusing, urgent=forced)
    plan = planned.compiled.plan
    if config.adapt and not forced:
        climb.progress.events.add(Tried(False, (), 0.0, "there is no file that a worker could read it from"))
    baseline = Baseline(origin.imported)
    constants = bind_plan(plan, planned.weights, config.threads, climb.constants)
    program = executable(plan, planned.weights, baseline=baseline, constants=constants)
    for displaced in publish_code(program, [kernel.code for kernel in kernels], planned.target, plan.variants):
        climb.progress.events.add(displaced)
    measured, regions = tuple(errors.items()), tuple(map(program_digest, planned.texts))
    serving = Serving.of(plan, planned.signatures, baseline, constants, measured, planned.refused, regions)
    source, plans, entry = origin.source, _plans(config), None
    if source is not None and kernels and runs_images(planned.target) and refusing.lasts:
        with not_kept(climb):
            entry = make_entry(planned, imported, source, cache_parts(config.precision), plans)
            entry = _with_kernels(entry, planned.texts, kernels, judge is not None, errors)
            serving = msgspec.structs.replace(serving, parts=entry.parts, keys=tuple(built.key for built in kernels))
    climb.go_live(program, serving)
    if source is not None and entry is not None:
        keep(climb, plans, source, entry, program.number)
    origin.forget()


def _plans(config: Config) -> Plans:
    return Plans(config.cache_path, config.threads)


def _can_plan_apart(climb: Climb) -> bool:
    """Whether a worker can be told where the model is, and can leave something for us."""
    if climb.origin().source is None:
        return False
    try:
        make_private(_plans(climb.config).folder)
    except OSError as error:
        log.warning("plans cannot be kept: %s", error)
        return False
    return True


def _plan_apart(source: Source, climb: Climb, refusing: Refusing) -> tuple[EntryRecord, PlannedModel]:
    """The plan's entry without kernels, and what its kernels are built of and proved on. WorkersUnavailable if none can
    do that."""
    config = climb.config
    consults = config.adapt and not climb.again
    with as_file(source, _plans(config).folder) as (path, stamp):
        job = plan_job(path, stamp, config, climb.aim, refusing.reasons, consults=consults)
        (reply,) = run_jobs([job], told=climb.ledger.add, presses=climb.presses)
    if isinstance(reply, Failure):
        if reply.here:
            raise WorkersUnavailable(reply.reason)
        climb.progress.put_off(climb.aim, reply.again_s)
        raise NotBetter(reply.reason)
    assert isinstance(reply, PlannedModel)  # the only other reply that fits such a job
    if not reply.programs:
        raise NotBetter(refusing.nothing_left)
    return msgspec.msgpack.decode(reply.entry, type=EntryRecord), reply


def _ready(
    climb: Climb,
    texts: Sequence[str],
    target: Target,
    prove: Prove | None,
    refusing: Refusing,
    urgent: bool = False,
) -> list[Built] | None:
    """Kernels for these programs that may serve; None if some may not, so that another plan is needed.

    NotBetter if there is no end to that.
    """
    if refusing.too_often:
        raise NotBetter("kernels were refused again and again, whatever the plan")
    results = _build(climb, texts, target, urgent=urgent)
    if refusing.more(texts, not_built(results)):
        return None
    kernels = [result for result in results if isinstance(result, Built)]
    if not urgent and refusing.more(texts, in_quarantine(kernels, _quarantined(climb, kernels))):
        return None
    climb.pause()
    if prove is not None and refusing.more(texts, prove(texts, kernels)):
        return None
    return kernels


def _build(climb: Climb, texts: Sequence[str], target: Target, urgent: bool = False) -> list[Built | Failure]:
    """A kernel for each program, or why there is none."""
    climb.pause()
    config, counts = climb.config, climb.progress.counts
    began_s = time.monotonic()
    at_most = config.threads if urgent else _room(climb)
    cache = ObjectCache(config.cache_dir / "objects")
    builders = Builders(cache, config.threads, at_most=at_most, told=climb.ledger.add, presses=climb.presses)
    try:
        results = builders.compile_texts(texts, target, urgent=urgent)
    finally:
        counts.builds += builders.counters.builds
        counts.object_misses += builders.counters.builds
    cached = sum(result.cached for result in results if isinstance(result, Built))
    counts.object_hits += cached
    climb.progress.events.add(BuiltEvent(builders.counters.builds, cached, time.monotonic() - began_s))
    return results


def _in_workers(cases: Sequence[PlacedCase], target: Target, climb: Climb, errors: dict[int, KernelError]) -> Prove:
    """Proves the kernels of a plan in processes that calls do not wait for; `errors` takes what was measured."""
    run = in_workers(_room(climb), climb.ledger.add, climb.presses)
    return lambda texts, kernels: refusals_of(cases, [kernel.code for kernel in kernels], target, run, errors=errors)


def _quarantined(climb: Climb, kernels: Sequence[Built]) -> tuple[Quarantine, ...]:
    """What is known against these kernels from before. A store that does not work knows of nothing."""
    if not climb.config.adapt or is_new(place_of(climb.config)):
        return ()
    machine = "" if COSTS.recalled else machine_row().key
    job = Recall(place_of(climb.config), tuple(dict.fromkeys(kernel.key for kernel in kernels)), machine)
    try:
        (reply,) = run_jobs([job], limit_s=_STORE_LIMIT_S, presses=climb.presses)
    except WorkersUnavailable as error:
        reply = Failure(str(error))
    if isinstance(reply, Failure):
        climb.progress.events.add(StoreIgnored(reply.reason))
    elif isinstance(reply, Recalled) and machine:
        COSTS.recall(reply.costs)
    return reply.quarantined if isinstance(reply, Recalled) else ()


def _try(climb: Climb, source: Source, entry: EntryRecord, kept: list[Compared]) -> bool:
    """Whether a worker measured a gain above noise; NotBetter if it measured that there is none.

    Where nothing can be measured, live calls have to show it. `kept` takes what was measured.
    """
    if not climb.config.adapt:
        return False
    climb.pause()
    began_s = time.monotonic()
    compared = _time_apart(climb, source, entry)
    taken_s = time.monotonic() - began_s
    climb.origin()
    if isinstance(compared, TurnedAway):
        raise compared
    if isinstance(compared, str):
        climb.progress.events.add(Tried(False, (), taken_s, compared))
        return False
    kept += compared
    found = verdict([(log_of(one.gain), one.margin) for one in compared])
    climb.progress.events.add(Tried(found == "better", compared, taken_s))
    if found == "better":
        return True
    climb.progress.counts.refusals += 1
    measured = "; ".join(map(str, compared))
    if found == "unclear":
        raise Unclear(f"it is too noisy to tell whether the kernels are faster than what answers now: {measured}")
    raise NotBetter(f"the kernels of tier {climb.tier} save too little beside what answers now: {measured}")


def _time_apart(climb: Climb, source: Source, entry: EntryRecord) -> tuple[Compared, ...] | TurnedAway | str:
    """What a worker measured, or why it could not."""
    config, calls, content = climb.config, climb.calls(), msgspec.msgpack.encode(entry)
    if not calls:
        return "there is no call that it could be tried on"
    if len(content) > _MOST_BYTES:
        return f"the plan takes {len(content)} bytes, which is too much to send"
    with as_file(source, _plans(config).folder) as (path, stamp):
        parts = cache_parts(config.precision)
        threads, cores, incumbent = config.threads, tuple(cores_of()), climb.incumbent
        job = TryPlan(path, stamp, config.cache_path, parts, threads, cores, content, incumbent, calls, TRIAL_S)
        try:
            (reply,) = run_jobs([job], limit_s=_TRIAL_LIMIT_S, told=climb.ledger.add, presses=climb.presses)
        except WorkersUnavailable as error:
            return str(error)
    if isinstance(reply, Failure):
        return reply.reason
    assert isinstance(reply, TriedPlan)  # the only other reply that fits such a job
    if reply.failed:
        raise NotBetter(f"the plan fails on a call that was answered: {reply.failed}")
    return TurnedAway(reply.turned_away) if reply.turned_away else reply.compared


def _with_kernels(
    entry: EntryRecord, texts: Sequence[str], kernels: Sequence[Built], proved: bool, errors: dict[int, KernelError]
) -> EntryRecord:
    records = tuple(
        KernelRecord(kernel.key, kernel.code, program_digest(text)) for text, kernel in zip(texts, kernels, strict=True)
    )
    plan = msgspec.structs.replace(entry.plan, kernels=records, proved=proved, errors=tuple(errors.items()))
    return msgspec.structs.replace(entry, plan=plan)
