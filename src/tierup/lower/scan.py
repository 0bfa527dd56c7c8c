"""A scan region -> one tile program: running sums and products, serial along their axis, parallel along all others."""

from __future__ import annotations

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Dim, TensorType
from tierup.lower.axes import LANE
from tierup.lower.kernel import Kernel
from tierup.lower.names import Sizes
from tierup.lower.reduce import identity
from tierup.lower.sources import stored_dtype, tile_dtype
from tierup.lower.tile import Buffer, Fill, Grid, Index, Load, Loop, Map, Size, Store, Tile, TileProgram
from tierup.plan.regions import SCANS, Region
from tierup.plan.strides import Strides

_GRAIN_ELEMS = 8192  # elements that are worth a thread's while
_COMBINE = {"sum": "add", "prod": "mul"}


def lower_scan(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a scan region: one node over [before, axis, behind]."""
    node = graph.nodes[region.nodes[0]]
    (source,), (result,) = node.inputs, node.outputs
    assert source is not None
    assert result is not None
    type = graph.type(source)
    assert isinstance(type, TensorType)
    sizes, strides, axis = Sizes(), Strides(dims), node.attrs["axis"]
    before, extent = strides.times(*region.domain[:axis]), region.domain[axis]
    behind = strides.times(*region.domain[axis + 1 :])
    wide = behind != 1
    tile = Tile(tile_dtype(type.dtype), (LANE,) if wide else ())
    index = _index(sizes, strides, extent, behind, reverse=bool(node.attrs["reverse"]))
    op = SCANS[node.op]
    loop = Loop(
        "r0",
        sizes.of(extent),
        1,
        (
            Load("x", tile, "source", index),
            Map("new", tile, _COMBINE[op], ("old", "x")),
            Store("result", index, "old" if node.attrs["exclusive"] else "new"),
        ),
        (("old", "start"),),
        ("new",),
        ("total",),
    )
    dtype = stored_dtype(type.dtype)
    grid = [Grid("g0", sizes.of(before), 1)]
    steps: list[tuple[Dim, int]] = [(before, 1)]
    if wide:
        grid.append(Grid(LANE, sizes.of(behind), lanes))
        steps.append((behind, lanes))
    program = TileProgram(
        "scan",
        (Buffer("source", dtype), Buffer("result", dtype, "out")),
        len(sizes.dims),
        tuple(grid),
        (Fill("start", tile, identity(op, tile.dtype)), loop),
        (LANE,) if wide else (),
    )
    grain = dims.floordiv(_GRAIN_ELEMS, dims.max(strides.times(extent, lanes if wide else 1), 1))
    return Kernel(program, (source, result), tuple(sizes.dims), tuple(steps), grain)


def _index(sizes: Sizes, strides: Strides, extent: Dim, behind: Dim, *, reverse: bool) -> Index:
    """Elements of [before, extent, behind], counted from the end of the axis with `reverse`."""
    stride, offset = behind, strides.times(0)
    if reverse:
        stride, offset = strides.times(behind, -1), strides.times(strides.dims.sub(extent, 1), behind)
    axes: list[tuple[str, Size]] = [
        ("g0", sizes.of(strides.times(extent, behind))),
        ("r0", sizes.of(stride)),
    ]
    if behind != 1:
        axes.append((LANE, 1))
    return Index(tuple(axes), sizes.of(offset))
