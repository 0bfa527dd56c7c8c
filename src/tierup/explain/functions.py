"""The functions of a model side by side: with open sizes (tier 1), and closed to the sizes of one call (tier 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tierup.adapt.planning import Planned, make_plan, why_not
from tierup.explain.explanation import Explanation
from tierup.explain.probe import Passed, Probes, Sounding
from tierup.frontends.onnx import Imported
from tierup.ir.facts import LIMIT_BYTES, MOST, Aim, Fact
from tierup.ir.types import DType, TensorType
from tierup.plan.program import Variant
from tierup.runtime.compiled import Function
from tierup.runtime.feeds import Input
from tierup.runtime.progress import Signature


class FunctionRow(msgspec.Struct, frozen=True):
    """A function in short. `signature` has the shapes that it is closed to; None: its sizes are open. `facts` are what
    some of its kernels rely on. `stray`: calls get to it only if they are like this one, in which sizes differ that are
    taken to be equal."""

    tier: int
    signature: Signature | None
    regions: int
    kernels: int
    alone: int
    call_us: float
    kernels_us: float
    arena_bytes: int | None
    facts: tuple[str, ...] = ()
    stray: bool = False


def function_row(
    explanation: Explanation, signature: Signature | None, facts: tuple[str, ...] = (), stray: bool = False
) -> FunctionRow:
    """One function out of what is known of it."""
    return FunctionRow(
        tier=1 if signature is None else 2,
        signature=signature,
        regions=len(explanation.regions),
        kernels=explanation.kernels,
        alone=len(explanation.alone),
        call_us=explanation.call_us,
        kernels_us=sum(region.measured_us or 0.0 for region in explanation.regions),
        arena_bytes=explanation.memory.arena_bytes,
        facts=facts,
        stray=stray,
    )


def plan_closed(
    imported: Imported, signature: Signature, facts: tuple[Fact, ...] = (), strays: tuple[Signature, ...] = ()
) -> Planned:
    """The plan that tier 2 has if this signature is the one that calls come with, and these facts hold in them. Facts
    that save too little are not relied on."""
    planned = make_plan(imported, Aim((signature,), facts, strays))
    return make_plan(imported, Aim((signature,), (), strays)) if why_not(planned) else planned


def facts_in(inputs: Sequence[Input], values: Mapping[str, Any]) -> tuple[Fact, ...]:
    """What holds in a call with these values, and can be looked at in every call."""
    found: list[Fact] = []
    for place, given in enumerate(inputs):
        value, kind = values.get(given.name), given.type
        if not isinstance(value, np.ndarray) or not isinstance(kind, TensorType) or kind.dtype is DType.STR:
            continue
        flat = value.reshape(-1)
        if flat.size and value.nbytes <= LIMIT_BYTES and bool((flat == flat[0]).all()):
            found.append(Fact(place, given.name, kind.dtype.code, float(flat[0])))
    return tuple(found[:MOST])


def as_called(
    planned: Planned, probes: Probes, soundings: dict[int, Sounding]
) -> tuple[tuple[Function, ...], dict[int, Sounding]]:
    """The functions that a call of a closed plan runs, and what is passed to their kernels.

    A model with control flow has a function of its own for the signature. Otherwise it is the open one, with variants
    in place of the kernels in whose slots the call finds them.
    """
    opened, *bodies = probes.functions
    closed = next(function for function in planned.compiled.functions if function.signature is not None)
    if closed.number != opened.number or opened.signature is not None:
        return probes.functions, soundings
    sounding = soundings[opened.number]
    relying = [function for function in planned.compiled.functions if function.uniform]
    variants = [placed for function in (closed, *relying) for placed in function.kernels]
    places = {(placed.slot, placed.kernel.buffers): placed for placed in variants}
    kernels, passed = list(opened.kernels), dict(sounding.kernels)
    for position, given in sounding.kernels.items():
        variant = _chosen(planned.compiled.plan.variants, kernels[position].slot, given)
        if variant is not None:
            kernels[position] = places[variant.kernel, kernels[position].kernel.buffers]
            passed[position] = Passed((), variant.scratch, variant.range, max(variant.grain, 1))
    changed = replace(closed, kernels=tuple(kernels), assumed=opened.assumed)
    return (changed, *bodies), {**soundings, opened.number: replace(sounding, kernels=passed)}


def _chosen(variants: Sequence[Variant], slot: int, given: Passed) -> Variant | None:
    """The variant that native code calls: its key is what the step passes. All facts hold, and those that rely on the
    most go first."""
    fitting = [
        variant
        for variant in variants
        if variant.slot == slot and variant.key[: len(wanted := (*given.sizes[variant.first :], given.steps))] == wanted
    ]
    return max(fitting, key=lambda v: (len(v.key), v.key[-1].bit_count()), default=None)
