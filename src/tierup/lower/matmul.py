"""A matmul region -> one tile program: columns in panels, rows in tiles, the maps behind it in registers.

A constant right side is packed in panels once; any other is read as it lies, batch by batch.

Rows are taken in full tiles, and what is left in tiles of 4, 2 and 1, so that one row costs one row. Panels
are as wide as divides the columns evenly among two threads: of 128 columns, three panels of 48 would give one thread
two. `benchmarks/products.py` measures what comes of it.
"""

from __future__ import annotations

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.names import Names, Sizes
from tierup.lower.rows import constant_scalar, map_statement
from tierup.lower.tile import Buffer, Dot, Fill, Grid, Index, Load, Loop, Size, Statement, Store, Tile, TileProgram
from tierup.plan.regions import Region

# Vectors in a panel -> rows in a full tile: about 24 accumulators, which leaves registers for the panel and broadcasts.
_TILES = {3: 8, 4: 6, 2: 8, 1: 8}
_LEFT_ROWS = (4, 2, 1)
_OPEN_VECTORS = 2  # for columns known only in the call, which may be few
_THREADS = 2  # at least; what is even for two is even enough for more
_WORK_FLOPS = 60_000  # less is not worth a fork-join of about 0.3 µs at 230 GFLOP/s


def lower_matmul(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a matmul region."""
    return _Matmul(graph, weights, region, dims, lanes).kernel()


class _Matmul:
    def __init__(self, graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> None:
        self._graph = graph
        self._weights = weights
        self._product = graph.nodes[region.nodes[0]]
        self._maps = [graph.nodes[index] for index in region.nodes[1:]]
        self._dims = dims
        self._sizes = Sizes()
        self._names = Names()
        left = graph.type(self._input(0))
        right = graph.type(self._input(1))
        assert isinstance(left, TensorType)
        assert isinstance(right, TensorType)
        assert left.shape is not None
        assert right.shape is not None
        self._k, self._n = right.shape[-2:]
        self._packed = len(right.shape) == 2 and self._input(1) in dict(graph.weights)
        self._batched = len(right.shape) > 2
        self._vectors = _panel_vectors(self._n, lanes, 1 if self._batched else _THREADS)
        self._width = self._vectors * lanes
        self._m = left.shape[-2] if self._batched else dims.product(left.shape[:-1])
        self._batch = dims.product(left.shape[:-2]) if self._batched else 1
        self._operands: dict[ValueId, str] = {}

    def _input(self, index: int) -> ValueId:
        value = self._product.inputs[index]
        assert value is not None
        return value

    def kernel(self) -> Kernel:
        result = (self._maps or [self._product])[-1].outputs[0]
        assert result is not None
        body = self._body()
        extras = tuple(self._operands)
        buffers = [Buffer("a", DType.F32), Buffer("w", DType.F32)]
        buffers += [Buffer(name, self._dtype(value)) for value, name in self._operands.items()]
        buffers.append(Buffer("out", self._dtype(result), "out"))
        grid = self._grid()
        program = TileProgram("matmul", tuple(buffers), len(self._sizes.dims), grid, body, ("j",))
        return Kernel(
            program,
            (self._input(0), self._right(), *extras, result),
            tuple(self._sizes.dims),
            (((self._batch, 1),) if self._batched else ()) + ((self._n, self._width),),
            grain=self._grain(),
        )

    def _right(self) -> ValueId | Panels:
        return Panels(self._input(1), self._width) if self._packed else self._input(1)

    def _grid(self) -> tuple[Grid, ...]:
        columns = Grid("j", self._sizes.of(self._n), self._width)
        return (Grid("g", self._sizes.of(self._batch), 1), columns) if self._batched else (columns,)

    def _matrix(self, rows: Dim, columns: Dim, *axes: tuple[str, Size]) -> Index:
        """Elements of the matrix [rows, columns] of this batch."""
        batch = (("g", self._sizes.of(self._dims.mul(rows, columns))),) if self._batched else ()
        return Index((*batch, *axes))

    def _grain(self) -> Dim:
        """Panels that are worth a thread's while: fewer, the more rows there are."""
        flops = self._dims.product([2 * self._width, self._k, self._m])
        return self._dims.floordiv(_WORK_FLOPS, self._dims.max(flops, 1))

    def _dtype(self, value: ValueId) -> DType:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type.dtype

    def _body(self) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        begin: Dim = 0
        for rows in (_TILES[self._vectors], *_LEFT_ROWS):
            tiles = self._dims.floordiv(self._dims.sub(self._m, begin), rows)
            end = self._m if rows == 1 else self._dims.add(begin, self._dims.mul(tiles, rows))
            if begin != end:
                statements.append(self._rows(rows, begin, end))
            begin = end
        return tuple(statements)

    def _rows(self, rows: int, begin: Dim, end: Dim) -> Loop:
        i, names, sizes = f"i{rows}", self._names, self._sizes
        tile = Tile(DType.F32, (i, "j"))
        start, total, b, a, new, old = (names.new(hint) for hint in ("zero", "sum", "b", "a", "new", "old"))
        k, n = sizes.of(self._k), sizes.of(self._n)
        right = self._matrix(self._k, self._n, (f"k{rows}", n), ("j", 1))
        if self._packed:
            right = Index((("j", 1), (f"k{rows}", self._width)), 0, (("j", k),))
        inner = Loop(
            f"k{rows}",
            k,
            1,
            (
                Load(b, Tile(DType.F32, (f"k{rows}", "j")), "w", right),
                Load(a, Tile(DType.F32, (i, f"k{rows}")), "a", self._matrix(self._m, self._k, (i, k), (f"k{rows}", 1))),
                Dot(new, tile, a, b, old, f"k{rows}"),
            ),
            ((old, start),),
            (new,),
            (total,),
        )
        body: list[Statement] = [Fill(start, tile, 0.0), inner]
        result = self._epilogue(body, i, total)
        body.append(Store("out", self._matrix(self._m, self._n, (i, n), ("j", 1)), result))
        return Loop(i, sizes.of(end), rows, tuple(body), begin=sizes.of(begin), exact=True)

    def _epilogue(self, body: list[Statement], i: str, total: str) -> str:
        """The maps behind the product on one tile; returns the name of the last."""
        values: dict[ValueId, tuple[str, Tile]] = {}
        product = self._product.outputs[0]
        assert product is not None
        values[product] = (total, Tile(DType.F32, (i, "j")))
        for node in self._maps:
            arguments = [self._argument(body, values, value, i) for value in node.inputs]
            result = node.outputs[0]
            assert result is not None
            values[result] = map_statement(body, self._names, node, arguments, self._dtype(result))
        return values[(self._maps or [self._product])[-1].outputs[0] or 0][0] if self._maps else total

    def _argument(
        self, body: list[Statement], values: dict[ValueId, tuple[str, Tile]], value: ValueId | None, i: str
    ) -> tuple[str, Tile]:
        assert value is not None
        if value in values:
            return values[value]
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        number = constant_scalar(self._graph, self._weights, value)
        name = self._names.new("c")
        if number is not None:
            values[value] = (name, Tile(type.dtype))
            body.append(Fill(name, Tile(type.dtype), number))
            return values[value]
        buffer = self._operands.setdefault(value, f"e{len(self._operands)}")
        index, axes = self._operand_index(type, i)
        values[value] = (name, Tile(type.dtype, axes))
        body.append(Load(name, Tile(type.dtype, axes), buffer, index))
        return values[value]

    def _operand_index(self, type: TensorType, i: str) -> tuple[Index, tuple[str, ...]]:
        """Where an operand of the epilogue lies: a single element, one for each column, or the whole shape."""
        assert type.shape is not None
        if type.shape in ((), (1,)):
            return Index(), ()
        if len(type.shape) == 1:
            return Index((("j", 1),)), ("j",)
        row: Size = self._sizes.of(self._n)
        return self._matrix(self._m, self._n, (i, row), ("j", 1)), (i, "j")


def _panel_vectors(columns: Dim, lanes: int, threads: int) -> int:
    """The width that leaves the busiest thread the least to do, the best tile first among equals."""
    if not isinstance(columns, int):
        return _OPEN_VECTORS

    def busiest(vectors: int) -> int:
        panels = -(-columns // (vectors * lanes))
        return -(-panels // threads) * vectors

    return min(_TILES, key=busiest)
