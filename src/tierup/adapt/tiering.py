"""From the baseline to tier 1: plan, build, prove, go live, keep.

In the background the plan is made by a worker, and comes as the entry that the plan cache will keep; the model then
starts from it as it would start from the cache. A caller that waits for a tier has it planned in its own process.
Whatever goes wrong leaves the model on the tier that it is on, with the reason in its report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from tierup.adapt.background import NO_TARGET, Climb, Stopped
from tierup.adapt.builders import Builders, Built, codes, run_in_background
from tierup.adapt.messages import Failure, PlacedCase, PlanModel, PlannedModel
from tierup.adapt.proof import Refusal
from tierup.adapt.proofs import placed_cases, refusals_of
from tierup.adapt.workers import WorkersUnavailable
from tierup.codegen.image import runs_images
from tierup.codegen.target import Target, target_of
from tierup.config import Config
from tierup.errors import TierupError
from tierup.logs import logger
from tierup.profile.identity import identify
from tierup.runtime.executable import Baseline, bind_plan, executable
from tierup.runtime.kernels import publish_code
from tierup.runtime.progress import Serving, Signature
from tierup.runtime.warm import restore
from tierup.store.objects import ObjectCache
from tierup.store.plans import Plans, cache_parts
from tierup.store.private import make_private, write_whole
from tierup.store.records import EntryRecord, KernelError, KernelRecord
from tierup.store.source import FileSource, Source

log = logger(__name__)


Prove = Callable[[Sequence[str], Sequence[Built]], Sequence[Refusal]]  # of tile programs as text, and their kernels


class NotBetter(TierupError):
    """The model stays as it is; the message says why."""


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
    except Exception as error:
        reason = str(error) if isinstance(error, TierupError) else f"{type(error).__name__}: {error}"
        log.warning("model %r stays as it is: %s", climb.name, reason, exc_info=not isinstance(error, TierupError))
    climb.progress.finish(reason)
    if climb.config.adapt and not climb.progress.stopped:
        from tierup.profile.machine import measure_once

        measure_once(climb.config.data_dir)


def _with_plan_from_worker(climb: Climb, prove: Prove | None) -> None:
    """Calls go on while the plan is made elsewhere."""
    config, plans = climb.config, _plans(climb.config)
    source = climb.origin().source
    assert source is not None  # `_can_plan_apart` has seen it
    try:
        entry, planned = _plan_apart(source, config, climb.signatures)
    except WorkersUnavailable as error:
        log.warning("the plan of model %r is made in this process: %s", climb.name, error)
        _with_plan_from_here(climb, prove)
        return
    kernels = _build(climb, planned.programs, planned.target)
    errors: dict[int, KernelError] = {}
    _check_proofs(climb, planned.programs, kernels, prove or _in_workers(planned.cases, planned.target, config, errors))
    entry = _with_kernels(entry, kernels, True, errors)
    origin = climb.origin()
    warm = restore(plans.open(source, entry), origin, config, climb.constants)
    climb.go_live(warm.program, warm.serving)
    with _not_kept(climb):
        plans.write(source, entry)
    origin.forget()


def _with_plan_from_here(climb: Climb, prove: Prove | None, forced: bool = False) -> None:
    """Somebody waits for it, or there is no file for a worker to read."""
    from tierup.adapt.planning import make_entry, make_plan

    origin, config = climb.origin(), climb.config
    imported = origin.imported()
    planned = make_plan(imported, climb.signatures, config.precision)
    plan, texts = planned.compiled.plan, planned.texts
    if not texts and not forced:
        raise NotBetter("no part of the model compiles to kernels")
    kernels = _build(climb, texts, planned.target, urgent=forced)
    errors: dict[int, KernelError] = {}
    if prove is None and not forced:  # a caller that forces a tier gets it as it is
        prove = _in_workers(placed_cases(planned.compiled, planned.weights), planned.target, config, errors)
    _check_proofs(climb, texts, kernels, prove)
    baseline = Baseline(origin.imported)
    constants = bind_plan(plan, planned.weights, config.threads, climb.constants)
    program = executable(plan, planned.weights, baseline=baseline, constants=constants)
    publish_code(program, [kernel.code for kernel in kernels], planned.target)
    climb.go_live(program, Serving.of(plan, planned.signatures, baseline, constants, tuple(errors.items())))
    if origin.source is not None and kernels and runs_images(planned.target):
        plans, parts = _plans(config), cache_parts(config.precision)
        with _not_kept(climb):
            entry = make_entry(planned, imported, origin.source, parts, plans)
            plans.write(origin.source, _with_kernels(entry, kernels, prove is not None, errors))
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


def _plan_apart(source: Source, config: Config, signatures: tuple[Signature, ...]) -> tuple[EntryRecord, PlannedModel]:
    """The plan's entry without kernels, and what its kernels are built of and proved on."""
    with _as_file(source, _plans(config).folder) as (path, stamp):
        parts = cache_parts(config.precision)
        job = PlanModel(path, stamp, config.cache_path, parts, config.threads, signatures, config.precision)
        reply = run_in_background(job)
    if isinstance(reply, Failure):
        raise NotBetter(reply.reason)
    assert isinstance(reply, PlannedModel)  # the only other reply that fits such a job
    if not reply.programs:
        raise NotBetter("no part of the model compiles to kernels")
    return msgspec.msgpack.decode(reply.entry, type=EntryRecord), reply


@contextmanager
def _as_file(source: Source, folder: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """A file with the model in it, and what tells whether it is still the same."""
    if isinstance(source, FileSource):
        yield os.path.abspath(source.origin), source.stamp
        return
    path = os.path.join(folder, f"{os.getpid()}-{id(source)}.onnx")
    write_whole(path, (source.view(),))
    try:
        yield path, None
    finally:
        with suppress(OSError):
            os.unlink(path)


def _build(climb: Climb, texts: Sequence[str], target: Target, urgent: bool = False) -> list[Built]:
    """A kernel for each program; BuildError if there is not one for all of them."""
    climb.origin()
    config, counts = climb.config, climb.progress.counts
    workers = config.threads if urgent else max(1, config.threads - 1)  # calls go on meanwhile
    builders = Builders(ObjectCache(config.cache_dir / "objects"), workers)
    try:
        results = builders.compile_texts(texts, target, urgent=urgent)
    finally:
        counts.builds += builders.counters.builds
        counts.object_misses += builders.counters.builds
    codes(results)
    built = [result for result in results if isinstance(result, Built)]
    counts.object_hits += sum(kernel.cached for kernel in built)
    return built


def _in_workers(cases: Sequence[PlacedCase], target: Target, config: Config, errors: dict[int, KernelError]) -> Prove:
    """Proves the kernels of a plan in processes that calls do not wait for; `errors` takes what was measured."""
    workers = max(1, config.threads - 1)
    return lambda texts, kernels: refusals_of(
        cases, [kernel.code for kernel in kernels], target, workers=workers, errors=errors
    )


def _check_proofs(climb: Climb, texts: Sequence[str], kernels: Sequence[Built], prove: Prove | None) -> None:
    """NotBetter if one of the kernels may not serve."""
    climb.origin()
    refusals = prove(texts, kernels) if prove is not None else ()
    climb.progress.counts.refusals += len(refusals)
    if refusals:
        raise NotBetter(f"kernel {refusals[0].slot} of {len(kernels)} was refused: {refusals[0].reason}")


def _with_kernels(
    entry: EntryRecord, kernels: Sequence[Built], proved: bool, errors: dict[int, KernelError]
) -> EntryRecord:
    records = tuple(KernelRecord(kernel.key, kernel.code) for kernel in kernels)
    plan = msgspec.structs.replace(entry.plan, kernels=records, proved=proved, errors=tuple(errors.items()))
    return msgspec.structs.replace(entry, plan=plan)


@contextmanager
def _not_kept(climb: Climb) -> Iterator[None]:
    """A plan that cannot be kept serves all the same."""
    try:
        yield
    except OSError as error:  # a full disk, a folder that is not ours, a model that was changed
        log.warning("the plan of model %r is not kept: %s", climb.name, error)
