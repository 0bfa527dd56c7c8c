"""A scatter region -> one tile program: updates go where indices say, into a result that holds the data by then.

Later updates win, or combine, in the order in which they stand: what may meet in one place is done by one thread, one
after the other. Only positions that no index chooses are divided among threads and lanes.
"""

from __future__ import annotations

from msgspec import Struct

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, DType, Shape, TensorType
from tierup.lower.axes import LANE
from tierup.lower.kernel import Kernel
from tierup.lower.names import Sizes
from tierup.lower.sources import stored_dtype, tile_dtype
from tierup.lower.tile import Buffer, Check, Grid, Index, Load, Loop, Map, Size, Statement, Store, Tile, TileProgram
from tierup.plan.regions import Region
from tierup.plan.strides import Strides

_GRAIN_ELEMS = 8192  # elements that are worth a thread's while


def lower_scatter(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a scatter region: one node, whose data lies in its result already."""
    return _Scatter(graph, graph.nodes[region.nodes[0]], region, dims, lanes).kernel()


class _Walk(Struct, frozen=True):
    """How updates are gone through: a space in which those along the `serial` axis may meet, and strides over it.

    `places` has for each index of an update its offset in the indices, its stride in the result, and its bound.
    """

    extents: Shape
    serial: int
    indices: tuple[Dim, ...]
    updates: tuple[Dim, ...]
    result: tuple[Dim, ...]
    places: tuple[tuple[Dim, Dim, Dim], ...]


class _Scatter:
    def __init__(self, graph: Graph, node: Node, region: Region, dims: DimBuilder, lanes: int) -> None:
        self._graph, self._node, self._dims, self._lanes = graph, node, dims, lanes
        self._strides, self._sizes = Strides(dims), Sizes()
        for check in region.checks:
            self._sizes.check(check)
        values = (*node.inputs, *node.outputs)
        self._data, self._indices, self._updates, self._result = (value for value in values if value is not None)
        self._walk = self._elements() if node.op == "core.scatter_elements" else self._slices()

    def _type(self, value: ValueId) -> TensorType:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type

    def _shape(self, value: ValueId) -> Shape:
        shape = self._type(value).shape
        assert shape is not None
        return shape

    def _elements(self) -> _Walk:
        """One index for each update: those in one line along the axis may meet."""
        axis, data, own = self._node.attrs["axis"], self._shape(self._data), self._shape(self._indices)
        strides, dense = self._strides.row_major(data), self._strides.row_major(own)
        result = tuple(0 if number == axis else stride for number, stride in enumerate(strides))
        return _Walk(own, axis, dense, dense, result, ((0, strides[axis], data[axis]),))

    def _slices(self) -> _Walk:
        """One tuple of indices for each slice; any two may meet."""
        data, own = self._shape(self._data), self._shape(self._indices)
        depth = own[-1]
        assert isinstance(depth, int)
        strides, times = self._strides.row_major(data), self._strides.times
        tuples, elements = times(*own[:-1]), times(*data[depth:])
        places = tuple((number, strides[number], data[number]) for number in range(depth))
        return _Walk((tuples, elements), 0, (depth, 0), (elements, 1), (0, 1), places)

    def kernel(self) -> Kernel:
        walk, sizes = self._walk, self._sizes
        last = len(walk.extents) - 1
        wide = last != walk.serial and walk.extents[last] != 1
        names = [self._name(axis, wide) for axis in range(len(walk.extents))]
        lane = (LANE,) if wide else ()
        count = walk.extents[walk.serial]
        loop = Loop(names[walk.serial], sizes.of(count), 1, tuple(self._update(names, lane)))
        parallel = [axis for axis in range(len(walk.extents)) if axis != walk.serial]
        steps = [(walk.extents[axis], self._lanes if names[axis] == LANE else 1) for axis in parallel] or [(1, 1)]
        grid = [
            Grid(names[axis], sizes.of(extent), step) for axis, (extent, step) in zip(parallel, steps, strict=False)
        ]
        dtype = stored_dtype(self._type(self._data).dtype)
        buffers = (
            Buffer("indices", self._type(self._indices).dtype),
            Buffer("updates", dtype),
            Buffer("result", dtype, "out"),
        )
        program = TileProgram("scatter", buffers, len(sizes.dims), tuple(grid) or (Grid("g", 1, 1),), (loop,), lane)
        work = self._strides.times(count, self._lanes if wide else 1)
        grain = self._dims.floordiv(_GRAIN_ELEMS, self._dims.max(work, 1))
        return Kernel(program, (self._indices, self._updates, self._result), tuple(sizes.dims), tuple(steps), grain)

    def _name(self, axis: int, wide: bool) -> str:
        return LANE if wide and axis == len(self._walk.extents) - 1 else f"a{axis}"

    def _index(self, names: list[str], strides: tuple[Dim, ...], offset: Dim = 0) -> Index:
        axes: list[tuple[str, Size]] = [
            (name, self._sizes.of(stride)) for name, stride in zip(names, strides, strict=True) if stride != 0
        ]
        return Index(tuple(axes), self._sizes.of(offset))

    def _update(self, names: list[str], lane: tuple[str, ...]) -> list[Statement]:
        """One update, or one for each lane."""
        walk, sizes, body = self._walk, self._sizes, list[Statement]()
        index_dtype, dtype = self._type(self._indices).dtype, tile_dtype(self._type(self._data).dtype)
        own = lane if lane and walk.indices[-1] != 0 else ()
        at = []
        for number, (offset, stride, extent) in enumerate(walk.places):
            body.append(Load(f"i{number}", Tile(index_dtype, own), "indices", self._index(names, walk.indices, offset)))
            body.append(Check(f"i{number}", sizes.of(extent)))
            at.append((f"i{number}", sizes.of(stride)))
        tile, place = Tile(dtype, lane), self._index(names, walk.result)
        body.append(Load("u", tile, "updates", self._index(names, walk.updates)))
        reduction = self._node.attrs["reduction"]
        if reduction != "none":
            body.append(Load("old", tile, "result", place, at=tuple(at)))
            body.append(Map("new", tile, self._combination(reduction, dtype), ("old", "u")))
        body.append(Store("result", place, "u" if reduction == "none" else "new", at=tuple(at)))
        return body

    def _combination(self, reduction: str, dtype: DType) -> str:
        """Bools add and multiply as NumPy's do."""
        return {"add": "or", "mul": "and"}.get(reduction, reduction) if dtype is DType.BOOL else reduction
