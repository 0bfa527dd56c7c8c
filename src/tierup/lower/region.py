"""A region -> its kernel: which lowering makes what kind."""

from __future__ import annotations

from collections.abc import Set

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.lower.attention import lower_attention
from tierup.lower.conv import lower_conv
from tierup.lower.kernel import Kernel
from tierup.lower.known import lower_known
from tierup.lower.matmul import lower_matmul
from tierup.lower.places import lower_places
from tierup.lower.recurrent import lower_recurrent
from tierup.lower.rows import lower_rows
from tierup.lower.scan import lower_scan
from tierup.lower.scatter import lower_scatter
from tierup.plan.regions import Region

_ON_WORDS = {"matmul": lower_matmul, "conv": lower_conv, "attention": lower_attention}
_LOWERINGS = {
    "rows": lower_rows, "known": lower_known, "recurrent": lower_recurrent, "scan": lower_scan,
    "places": lower_places, "scatter": lower_scatter,
}  # fmt: skip


def lower_region(
    graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int, dots: Set[str]
) -> Kernel:
    """The kernel of a region; `dots` are the maps of words that the machine has instructions for."""
    if region.kind in _ON_WORDS:
        return _ON_WORDS[region.kind](graph, weights, region, dims, lanes, dots)
    return _LOWERINGS[region.kind](graph, weights, region, dims, lanes)
