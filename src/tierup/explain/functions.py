"""The functions of a model side by side: with open sizes (tier 1), and closed to the sizes of one call (tier 2)."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tierup.adapt.planning import Planned, make_plan
from tierup.explain.explanation import Explanation
from tierup.frontends.onnx import Imported
from tierup.ir.graph import Weights
from tierup.rewrite.rewrite import close_sizes
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
    """The plan whose one function is the one that tier 2 has for this signature."""
    weights = Weights()  # what is folded on the way belongs to this plan alone
    for digest in imported.weights:
        weights.add(imported.weights[digest], digest)
    return make_plan(replace(imported, graph=close_sizes(imported.graph, weights, signature), weights=weights))
