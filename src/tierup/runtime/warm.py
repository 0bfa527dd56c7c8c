"""The warm start: a model out of the plan cache, without front end, op table or compiler.

In: where the model comes from. Out: a program that is ready to run, or None, and the cold way has to be gone.
"""

from __future__ import annotations

import msgspec

from tierup import _native
from tierup.config import Config
from tierup.events import Displaced
from tierup.runtime.constants import Constants, bind_constants
from tierup.runtime.executable import Baseline, restored
from tierup.runtime.kernels import publish_loaded
from tierup.runtime.origin import Origin
from tierup.runtime.progress import Progress, Serving
from tierup.runtime.setup import configure
from tierup.store.plans import Entry, Plans, cache_parts, log_ignored
from tierup.store.records import AboutRecord, EntryRecord, dtype_codes, type_of


class Warm(msgspec.Struct, frozen=True):
    """A model that can answer."""

    about: AboutRecord
    program: _native.Program
    serving: Serving
    displaced: tuple[Displaced, ...] = ()
    """Variants that found no room in their slots."""


def warm_start(origin: Origin, config: Config, progress: Progress) -> Warm | None:
    """The model's program from the cache; None if there is none that fits. Counts hit or miss."""
    if origin.source is None:
        return None
    plans = Plans(config.cache_path, config.threads)
    entry = plans.find(origin.source, cache_parts(config.precision))
    warm = None
    if entry is not None and (entry.record.plan.proved or config.force_tier is not None):
        try:
            warm = restore(entry, origin, config)
        except (ValueError, OSError, MemoryError, RecursionError) as error:  # numbers that no plan of ours has
            log_ignored(f"of '{entry.record.about.name}'", error)
    progress.counts.plan_hits += warm is not None
    progress.counts.plan_misses += warm is None
    return warm


def restore(
    entry: Entry,
    origin: Origin,
    config: Config,
    known: Constants | None = None,
    most_bytes: int | None = None,
) -> Warm:
    """The program of an entry; constants that are known are shared, `most_bytes` as `bind_constants` has it. ValueError
    if it cannot be one."""
    record = entry.record
    _check(record.about, len(record.plan.functions[0].inputs), len(record.plan.functions[0].outputs))
    _check_facts(record)
    configure(config, record.plan.all_dtypes)
    baseline = Baseline(origin.imported)
    weights, wanted = entry.weights, record.plan.constants
    constants = bind_constants(wanted, weights, config.threads, weights.release, known, most_bytes)
    program = restored(record.plan, weights, baseline, constants)
    plan, displaced = record.plan, list[Displaced]()
    if len(plan.kernels) < len(program.kernel_addresses()):
        raise ValueError("a slot has no kernel")
    if plan.kernels:
        if not all(0 <= variant.kernel < len(plan.kernels) for variant in plan.variants):
            raise ValueError("a variant's kernel is not among the plan's")
        code = _native.Code([kernel.image for kernel in plan.kernels])
        displaced = publish_loaded(program, [(address, code) for address in code.addresses], plan.variants)
    serving = Serving(
        len(plan.kernels), plan.kernel_steps, plan.fallback_nodes, plan.signatures, baseline, constants, plan.errors,
        record.parts, tuple(kernel.key for kernel in plan.kernels), plan.refused,
        tuple(kernel.region for kernel in plan.kernels), plan.variants, plan.facts,
        plan.strays,
    )  # fmt: skip
    return Warm(record.about, program, serving, tuple(displaced))


def _check_facts(record: EntryRecord) -> None:
    """ValueError unless facts are about inputs of the model, and of numbers that these can have."""
    inputs = record.about.inputs
    for fact in record.plan.facts:
        if fact.input >= len(inputs) or inputs[fact.input].name != fact.name:
            raise ValueError("a fact is about no input of the model")
        if (fact.dtype,) != dtype_codes(inputs[fact.input].type):
            raise ValueError(f"a fact about '{fact.name[:40]}' is of another type")


def _check(about: AboutRecord, inputs: int, outputs: int) -> None:
    """ValueError unless the native runner can take calls as the record describes them."""
    for values, count in ((about.inputs, inputs), (about.outputs, outputs)):
        if len(values) != count or len({value.name for value in values}) != count:
            raise ValueError("the plan's inputs or outputs are not the model's")
        for value in values:
            type_of(value.type)
            if any(isinstance(dim, int) and dim < 0 for dim in value.shape or ()):
                raise ValueError(f"'{value.name[:40]}' has a negative size")
