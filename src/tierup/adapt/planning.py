"""A model -> its compiled plan, and what a plan entry keeps of that but for the kernels.

Planning is Python for some tenths of a second. In a worker it does not take turns with calls; where somebody waits for
the plan, it is made in this process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from tierup.adapt.background import NO_TARGET
from tierup.adapt.case import NotAlone, cases_of
from tierup.adapt.case_record import record_of
from tierup.adapt.imports import LAST_IMPORT
from tierup.adapt.learn import decision_key, left_alone_s
from tierup.adapt.messages import Failure, PlacedCase, PlanModel, PlannedModel
from tierup.adapt.proof import REASON_LIMIT_CHARS
from tierup.codegen.target import Target, target_of
from tierup.errors import ConfigError, StoreError
from tierup.frontends.onnx import Imported
from tierup.ir.facts import Aim, facts_text
from tierup.ir.graph import Weights
from tierup.ir.types import Array, dtype_from_numpy
from tierup.logs import logger
from tierup.lower.checked import CHECKED
from tierup.plan.program import BASELINE, Plan, StepCode
from tierup.profile.identity import identify
from tierup.runtime.compiled import Compiled, compile_plan
from tierup.runtime.describe import about_record
from tierup.runtime.executable import weights_of
from tierup.runtime.progress import Signature
from tierup.store.place import is_new
from tierup.store.plans import Plans
from tierup.store.records import MODEL, AboutRecord, EntryRecord, dtype_codes, known_dtype, plan_record
from tierup.store.rows import Decision
from tierup.store.source import FileSource, Source
from tierup.store.weights import place

log = logger(__name__)

# A swap has to save 2% of a call. Counting statements is right within a factor of four or so.
LEAST_SAVED = 0.005


class Planned(Struct, frozen=True):
    """A compiled plan, the weights that it was made with, folded ones included, and what it was made for."""

    compiled: Compiled
    weights: Weights
    target: Target

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Those that have functions of their own."""
        found = (function.signature for function in self.compiled.functions if function.signature is not None)
        return tuple(dict.fromkeys(found))

    @property
    def refused(self) -> tuple[tuple[str, str], ...]:
        """Regions that the reference computes because their kernels were refused, and why."""
        return tuple(dict.fromkeys((made.region, made.reason) for made in self.compiled.stand_ins))

    @property
    def texts(self) -> list[str]:
        """The tile programs of the plan's slots."""
        return [program.text for program in self.compiled.programs]


def make_plan(
    imported: Imported,
    aim: Aim | None = None,
    precision: str = "f32",
    refused: Mapping[str, str] | None = None,
) -> Planned:
    """Plan a model for this machine, in this precision, with variants of its kernels for what it aims at.

    `refused` are tile programs, by digest, that may not serve. ConfigError if nothing can be compiled for it.
    """
    target = target_of(identify())
    if target is None:
        raise ConfigError(NO_TARGET)
    weights = Weights()  # a copy: what is folded on the way goes with the plan
    for digest in imported.weights:
        weights.add(imported.weights[digest], digest)
    aim = aim or Aim()
    aims = aim.facts, aim.strays
    compiled = compile_plan(imported.graph, weights, target, aim.signatures, precision, refused, *aims)
    return Planned(compiled, weights, target)


def why_not(planned: Planned) -> str:
    """Why a plan that relies on facts is not worth being built; empty if it is, or relies on none."""
    facts, saved = planned.compiled.plan.facts, planned.compiled.saved
    if not facts or saved >= LEAST_SAVED:
        return ""
    where = f"where {facts_text(facts)}"
    if not any(function.uniform for function in planned.compiled.functions):
        return f"no kernel has less to do {where}"
    return f"kernels have {100 * saved:.2g}% less to do {where}, which is too little to be built"


def make_entry(
    planned: Planned, imported: Imported, source: Source, parts: Mapping[str, str] | None, plans: Plans
) -> EntryRecord:
    """What the plan cache keeps of a plan, without kernels. Derived arrays are stored now; OSError if that fails.
    Without parts it does not say yet what it was made of."""
    plan, weights = planned.compiled.plan, planned.weights
    external = {location: view for location, view in imported.files.items() if location}
    files = {MODEL: imported.files[""], **dict(enumerate(external.values(), start=MODEL + 1))}
    digests = [constant if isinstance(constant, str) else constant[0] for constant in plan.constants]
    placed = place(weights, (*digests, *weights_of(node for node in plan.callouts if node.op != BASELINE)), files)
    about = about_record(imported)
    other_dtypes = _uses_other_dtypes(about, plan, [weights[digest] for digest in digests])
    record = plan_record(plan, other_dtypes, planned.signatures, planned.refused)
    return plans.complete(EntryRecord(about, record, placed.records), source, parts, external, placed)


def plan_model(job: PlanModel) -> PlannedModel | Failure:
    """A worker's answer: the plan of a model file, and the programs of its kernels; or that it did not pay lately."""
    source = FileSource(job.path, job.stamp)
    plans = Plans(job.cache_dir, job.threads)
    consults = bool(job.store) and not is_new(job.store)
    if consults:
        turned_away = _turned_away(job.store, decision_key(plans.full_parts(source, job.parts), job.aim))
        if turned_away is not None:
            return turned_away
    _allow_bytes(2 * source.size_bytes)
    imported = LAST_IMPORT.get(job.path, source.stamp, lasts=job.stamp is not None)
    planned = make_plan(imported, job.aim, job.precision, job.refused)
    if reason := why_not(planned):
        return Failure(reason[:REASON_LIMIT_CHARS], left_alone_s("refused"))
    if not planned.compiled.plan.slots:
        return PlannedModel(b"", (), planned.target)
    # To say what a model's content is takes reading all of it, which can wait where nobody has asked.
    identified = consults or job.stamp is None
    try:
        entry = make_entry(planned, imported, source, job.parts if identified else None, plans)
    except OSError as error:  # a full disk: derived arrays travel in a file
        return Failure(f"the plan cannot be left in {plans.folder}: {error}"[:REASON_LIMIT_CHARS], here=True)
    cases = placed_cases(planned.compiled, planned.weights)
    for program in planned.compiled.programs:
        CHECKED.add(program)  # it will mostly be this process that compiles it
    return PlannedModel(
        msgspec.msgpack.encode(entry), tuple(planned.texts), planned.target, cases, planned.compiled.saved
    )


def placed_cases(compiled: Compiled, weights: Weights) -> tuple[PlacedCase, ...]:
    """The cases of a plan's kernels, each once, as they travel."""

    def found() -> Iterator[PlacedCase]:
        for function in compiled.all_functions:
            for group, case in cases_of(function, weights):
                slots = tuple(placed.slot for placed in group)
                if isinstance(case, NotAlone):
                    yield PlacedCase(slots, reason=f"it cannot be tried alone: {case}"[:REASON_LIMIT_CHARS])
                else:
                    yield PlacedCase(slots, msgspec.msgpack.encode(record_of(case)))

    return tuple(dict.fromkeys(found()))


def _turned_away(place: str, key: str) -> Failure | None:
    """Why a plan is not built again: it was too slow lately, or wrong. Without a store nothing is known."""
    from tierup.store.learned import Store

    try:
        with Store(place) as store:
            known = store.get(Decision, key)
    except StoreError as error:
        log.warning("%s", error)
        return None
    if known is None:
        return None
    decision = known.row
    left_s = known.made_s + left_alone_s(decision.outcome, decision.failures) - time.time()
    if left_s <= 0:
        return None
    reason = f"{decision.outcome} before, and not tried again for a while: {decision.reason}"
    return Failure(reason[:REASON_LIMIT_CHARS], left_s)


def _allow_bytes(count: int) -> None:
    """A mapped model counts as memory, but is no sign of anything running away."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        wanted = soft + count
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _uses_other_dtypes(about: AboutRecord, plan: Plan, constants: list[Array]) -> bool:
    """Whether a plan handles types that are not NumPy's own."""
    codes = {code for value in (*about.inputs, *about.outputs) for code in dtype_codes(value.type)}
    for function in plan.functions:
        codes |= {step[2] for step in function.steps if step[0] in (StepCode.ALLOC, StepCode.SCALAR)}
        codes |= {step[5] for step in function.steps if step[0] == StepCode.STACK}
    used = {known_dtype(code) for code in codes} | {dtype_from_numpy(array.dtype) for array in constants}
    return any(dtype is not None and not dtype.is_builtin for dtype in used)
