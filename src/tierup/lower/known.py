"""A known region -> one tile program that writes sizes down as integers."""

from __future__ import annotations

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import TensorType
from tierup.lower.kernel import Kernel
from tierup.lower.names import Sizes
from tierup.lower.tile import Buffer, Fill, Grid, Index, Statement, Store, Tile, TileProgram
from tierup.plan.regions import Region


def lower_known(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a known region: one node, whose result is the region's sizes."""
    (value,) = (value for value in graph.nodes[region.nodes[0]].outputs if value is not None)
    type = graph.type(value)
    assert isinstance(type, TensorType)
    sizes, body = Sizes(), list[Statement]()
    for place, size in enumerate(region.sizes):
        body.append(Fill(f"s{place}", Tile(type.dtype), sizes.of(size)))
        body.append(Store("sizes", Index(offset=place), f"s{place}"))
    buffers = (Buffer("sizes", type.dtype, "out"),)
    program = TileProgram("known", buffers, len(sizes.dims), (Grid("g0", 1, 1),), tuple(body))
    return Kernel(program, (value,), tuple(sizes.dims), ((1, 1),), grain=1)
