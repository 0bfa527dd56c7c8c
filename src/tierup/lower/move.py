"""A transpose or a broadcast -> one tile program: a copy whose source strides are permuted, or zero."""

from __future__ import annotations

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Dim, Shape, TensorType
from tierup.lower.kernel import Kernel
from tierup.lower.names import Sizes
from tierup.lower.tile import Buffer, Grid, Index, Load, Loop, Statement, Store, Tile, TileProgram
from tierup.plan.regions import Region

_GRAIN_ELEMS = 8192  # elements that are worth a thread's while


def lower_move(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a move region: one node, nothing computed."""
    node = graph.nodes[region.nodes[0]]
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    assert result is not None
    shape, domain = _shape(graph, source), region.domain
    strides = _row_major(shape, dims)
    if node.op == "core.transpose":
        strides = [strides[axis] for axis in node.attrs["perm"]]
    else:
        missing = len(domain) - len(shape)
        strides = [0 if own == 1 else stride for own, stride in zip(shape, strides, strict=True)]
        strides = [*([0] * missing), *strides]
    return _copy(graph, source, result, domain, strides, dims, lanes)


def _shape(graph: Graph, value: ValueId) -> Shape:
    type = graph.type(value)
    assert isinstance(type, TensorType)
    assert type.shape is not None
    return type.shape


def _row_major(shape: Shape, dims: DimBuilder) -> list[Dim]:
    strides: list[Dim] = []
    stride: Dim = 1
    for size in reversed(shape):
        strides.insert(0, stride)
        stride = dims.mul(stride, size)
    return strides


def _copy(
    graph: Graph, source: ValueId, result: ValueId, domain: Shape, strides: list[Dim], dims: DimBuilder, lanes: int
) -> Kernel:
    """result[i, …, j] = source at the given strides."""
    type = graph.type(source)
    assert isinstance(type, TensorType)
    sizes, names = Sizes(), [*(f"g{axis}" for axis in range(len(domain) - 1)), "j"]
    tile = Tile(type.dtype, ("j",))
    inward = Index(tuple((name, sizes.of(stride)) for name, stride in zip(names, strides, strict=True)))
    outward = Index(
        tuple((name, sizes.of(stride)) for name, stride in zip(names, _row_major(domain, dims), strict=True))
    )
    body: tuple[Statement, ...] = (Load("x", tile, "source", inward), Store("result", outward, "x"))
    grid: tuple[Grid, ...]
    if len(domain) == 1:
        grid = (Grid("j", sizes.of(domain[0]), lanes),)
        steps: tuple[tuple[Dim, int], ...] = ((domain[0], lanes),)
    else:
        grid = tuple(Grid(name, sizes.of(size), 1) for name, size in zip(names[:-1], domain, strict=False))
        steps = tuple((size, 1) for size in domain[:-1])
        body = (Loop("j", sizes.of(domain[-1]), lanes, body),)
    buffers = (Buffer("source", type.dtype), Buffer("result", type.dtype, "out"))
    program = TileProgram("move", buffers, len(sizes.dims), grid, body, ("j",))
    grain = dims.floordiv(_GRAIN_ELEMS, dims.max(domain[-1], 1))
    return Kernel(program, (source, result), tuple(sizes.dims), steps, grain)
