"""The functions of a model side by side: with open sizes (tier 1), and closed to the sizes of one call (tier 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tierup.adapt.planning import Planned, make_plan
from tierup.explain.explanation import Explanation
from tierup.explain.probe import Passed, Probes, Sounding
from tierup.frontends.onnx import Imported
from tierup.plan.program import Variant
from tierup.runtime.compiled import Function
from tierup.runtime.progress import Signature


class FunctionRow(msgspec.Struct, frozen=True):
    """A function in short. `signature` has the shapes that it is closed to; None: its sizes are open."""

    tier: int
    signature: Signature | None
    regions: int
    kernels: int
    alone: int
    call_us: float
    kernels_us: float
    arena_bytes: int | None


def function_row(explanation: Explanation, signature: Signature | None) -> FunctionRow:
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
    )


def plan_closed(imported: Imported, signature: Signature) -> Planned:
    """The plan that tier 2 has if this signature is the one that calls come with."""
    return make_plan(imported, (signature,))


def as_called(
    planned: Planned, probes: Probes, soundings: dict[int, Sounding]
) -> tuple[tuple[Function, ...], dict[int, Sounding]]:
    """The functions that a call of a closed plan runs, and what is passed to their kernels.

    A model with control flow has a function of its own for the signature. Otherwise it is the open one, with variants
    in place of the kernels in whose slots the call finds them.
    """
    opened, *bodies = probes.functions
    closed = planned.compiled.functions[-1]
    if closed.number != opened.number or opened.signature is not None:
        return probes.functions, soundings
    sounding = soundings[opened.number]
    places = {(placed.slot, placed.kernel.buffers): placed for placed in closed.kernels}
    kernels, passed = list(opened.kernels), dict(sounding.kernels)
    for position, given in sounding.kernels.items():
        variant = _chosen(planned.compiled.plan.variants, kernels[position].slot, given)
        if variant is not None:
            kernels[position] = places[variant.kernel, kernels[position].kernel.buffers]
            passed[position] = Passed((), variant.scratch, variant.range, max(variant.grain, 1))
    changed = replace(closed, kernels=tuple(kernels), assumed=opened.assumed)
    return (changed, *bodies), {**soundings, opened.number: replace(sounding, kernels=passed)}


def _chosen(variants: Sequence[Variant], slot: int, given: Passed) -> Variant | None:
    """The variant that native code calls: its key is what the step passes."""
    fitting = (v for v in variants if v.slot == slot and v.key == (*given.sizes[v.first :], given.steps))
    return next(fitting, None)
