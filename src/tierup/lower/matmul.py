"""A matmul region -> one tile program: columns in panels, rows in tiles, the maps behind it in registers.

A constant right side is packed in panels once, behind a cast, too; any other is read as it lies, batch by batch.
Where the machine multiplies pairs of bf16 or fours of bytes that lie side by side in a word (`dots`), both sides are
read as words (`lower/words.py`): the right side is packed so, and rows of the left side lie so already.

Rows are taken in full tiles, and what is left in tiles of 4, 3, 2 and 1, so that one row costs one row. Panels
are as wide as divides the columns evenly among two threads: of 128 columns, three panels of 48 would give one thread
two. `benchmarks/products.py` measures what comes of it.

Where there are more rows than columns, or many of an image, and the right side stays in the second cache, threads
divide the rows instead (`by_rows`): each then reads what it wrote itself, once, and panels are as wide as wastes the
fewest columns. Many rows of a small right side are divided, too, in one block for each thread (`block_rows`), with
panels as for columns: what threads divided by rows before it and behind it, a norm or another product, finds its rows
where it wrote them.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from msgspec.structs import replace

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Dim, DType, Shape, TensorType
from tierup.lower.epilogue import Epilogue
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.names import Names, Sizes
from tierup.lower.rows import DEAR
from tierup.lower.tile import (
    Arg,
    Buffer,
    Dot,
    Fill,
    Grid,
    Index,
    Load,
    Loop,
    Map,
    Reduce,
    Size,
    Statement,
    Store,
    Tile,
    TileProgram,
)
from tierup.lower.tiling import CACHED_BYTES, MANY_ROWS, TILES, divided, panel_vectors
from tierup.lower.views import View, Views
from tierup.lower.windows import Spot
from tierup.lower.words import Words, words_for
from tierup.plan.packing import WIDENED
from tierup.plan.products import Right, constant_right
from tierup.plan.regions import Region
from tierup.plan.strides import Strides

# Of rows whose number is open. Three rows ran at 114 GFLOP/s, two and then one at 71; a tile more is a tenth more to
# compile. One row behind others waits for the cache: five as four and one ran at 96, as three and two at 113.
_LEFT_ROWS = (4, 3, 2, 1)
_ACCUMULATORS = 24
# Rows beyond which a narrow right side is widened when it is packed: to widen it in the kernel took 64 rows a ninth
# longer, and up to these the time is that of reading it.
_WIDENED_ROWS = 16
_SPLITS = (1, 2, 4)  # of a sum, where there are registers
# Steps of a sum before it is added to the total. The baseline's products sum in blocks of some hundreds, too: summing
# 4096 in a row had three times its RMS error, 1024 have 1.7 times. A block costs about 130 cycles: 3% at 384 steps.
_BLOCK = 1024
# Columns of a panel where threads divide the rows; 24 are three half vectors, which machines compute in half the time.
_WIDTHS = (3, 4, 2, 1.5, 1)
# Of a right side that every thread may read for itself. With 1 MiB, 128 tokens of an encoder of 4 layers of 256 took 1%
# less on two cores with one last-level cache, 3% less on two without. With more it came from memory: 5% more there.
_SHARED_BYTES = 1 << 20
_THREADS = 2  # at least; what is even for two is even enough for more
_WORK_FLOPS = 60_000  # less is not worth a fork-join of about 0.3 µs at 230 GFLOP/s


def lower_matmul(
    graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int, dots: Set[str] = frozenset()
) -> Kernel:
    """The kernel of a matmul region; `dots` are the maps of words that the machine has instructions for."""
    return _Matmul(graph, weights, region, dims, lanes, dots).kernel()


class _Matmul:
    def __init__(
        self, graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int, dots: Set[str]
    ) -> None:
        self._graph = graph
        self._product = graph.nodes[region.nodes[0]]
        self._dims = dims
        stored = self._dtype(self._output())
        self._sum = DType.F32 if stored in (DType.F16, DType.BF16) else stored
        self._lanes = lanes = max(1, lanes * 4 // max(4, self._sum.numpy.itemsize))
        self._sizes = Sizes()
        self._names = Names()
        *batch, rows, self._n = region.domain
        self._image = len(batch) > 1  # whose neighbours go by rows, too
        right = constant_right(graph, self._product) if len(self._shape(1)) == 2 else None
        self._packed = right is not None
        self._right = right or Right(self._input(1))
        self._weight = self._right.value
        scaled = self._product.op == "core.matmul_scaled"  # a factor for each row of the right side
        self._factors = Views(graph, weights, dims).of(self._input(2)) if scaled else None
        flat = len(self._shape(1)) == 2
        self._batch: list[Dim] = [] if flat else list(batch)
        self._m = dims.product([*batch, rows]) if flat else rows
        self._k = self._shape(1)[-2]
        self._a, self._b = self._operand_views(Views(graph, weights, dims), flat)
        self._words = self._as_words(dots) if self._packed else None
        self._steps: Dim = self._k
        if self._words is not None:
            assert isinstance(self._k, int)
            self._a, self._steps = self._word_view(self._a, self._words.group), self._k // self._words.group
        plain = self._packed and self._right.scales is None
        self._form = self._packed_form() if self._packed else ""
        width = self._row_width(lanes) if plain else 0
        self._by_rows = width > 0
        self._vectors = -(-width // lanes) or panel_vectors(self._n, lanes, _THREADS if flat else 1)
        self._width = width or self._vectors * lanes
        self._block_rows = self._rows_of_a_block() if flat and width == 0 else 0
        # Rows of a right side that lies the other way round are columns: a panel is turned over before it is used.
        self._turned = not self._packed and self._b.strides[-1] != 1 and self._b.strides[-2] == 1
        self._epilogue = Epilogue(graph, weights, region.nodes, self._names)
        self._by_row = self._packed and not isinstance(self._m, int) and _has_dear_maps(graph, region)

    def _input(self, index: int) -> ValueId:
        value = self._product.inputs[index]
        assert value is not None
        return value

    def _output(self) -> ValueId:
        value = self._product.outputs[0]
        assert value is not None
        return value

    def _shape(self, index: int) -> Shape:
        type = self._graph.type(self._input(index))
        assert isinstance(type, TensorType)
        assert type.shape is not None
        return type.shape

    def _operand_views(self, views: Views, flat: bool) -> tuple[View, View]:
        """Both sides as [batch…, rows, columns]; of a flat product the left side's rows are one axis."""
        if not flat:
            left = views.broadcast(self._input(0), (*self._batch, self._m, self._k))
            right = views.broadcast(self._input(1), (*self._batch, self._k, self._n))
            assert left is not None
            assert right is not None
            return left, right
        merged = views.reshaped(self._input(0), (self._m, self._k))
        return merged, views.of(self._input(1))

    def _as_words(self, dots: Set[str]) -> Words | None:
        """How to compute on words; None where the machine or the sizes do not allow it."""
        left, right = self._dtype(self._input(0)), self._dtype(self._input(1))
        found = words_for(left, right, self._dtype(self._output()), dots)
        if found is None or not isinstance(self._k, int) or self._k % found.group:
            return None
        return found if right is DType.BF16 or self._dtype(self._weight) is right else None

    def _packed_form(self) -> str:
        """How the right side is packed: as words, as it is, or widened."""
        if self._words is not None:
            return self._words.form
        narrow = self._dtype(self._weight) in (DType.F16, DType.BF16) and self._sum is DType.F32
        many = isinstance(self._m, int) and self._m > _WIDENED_ROWS
        return WIDENED if narrow and many and self._right.scales is None else ""

    def _row_width(self, lanes: int) -> int:
        """The width of panels where threads divide the rows: what computes the fewest columns too many, the best tile
        first among equals. 0 where they divide columns."""
        m, n, k = self._m, self._n, self._k
        if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int)):
            return 0
        packed_as = self._sum if self._words is None else self._dtype(self._input(1))
        few = m < (MANY_ROWS if self._image else max(n, MANY_ROWS))
        if few or k * n * packed_as.numpy.itemsize > CACHED_BYTES:
            return 0
        widths = dict.fromkeys(max(1, int(vectors * lanes)) for vectors in _WIDTHS)
        return min(widths, key=lambda width: -(-n // width) * width)

    def _tile_rows(self) -> int:
        """Rows of a tile where threads divide these: what leaves the busiest thread the least to do."""
        most = TILES[self._vectors]
        if not isinstance(self._m, int):
            return most
        m = self._m
        return min(range(most, most // 2, -1), key=lambda rows: -(-m // (rows * _THREADS)) * rows)

    def _rows_of_a_block(self) -> int:
        """Where threads divide the rows in equal blocks, how many one has; 0 where they divide columns alone."""
        m, n, k = self._m, self._n, self._k
        if not (self._packed and isinstance(m, int) and isinstance(n, int) and isinstance(k, int)):
            return 0
        read = k * n * self._dtype(self._weight).numpy.itemsize
        return m // _THREADS if m >= MANY_ROWS and m % _THREADS == 0 and read <= _SHARED_BYTES else 0

    def _word_view(self, view: View, group: int) -> View:
        """Rows of words; where the view has rows that do not begin with a word, those of the value itself."""
        rows, columns = view.strides
        whole = all(isinstance(size, int) and size % group == 0 for size in (rows, view.offset))
        if not whole or columns != 1:
            view = View(self._input(0), (self._m, self._k), (self._k, 1))
        rows, offset = (self._dims.floordiv(size, group) for size in (view.strides[0], view.offset))
        return View(view.base, (self._m, self._dims.floordiv(self._k, group)), (rows, 1), offset)

    def kernel(self) -> Kernel:
        body, grid = self._body(), self._grid()
        sides = (self._input(0), self._weight)
        kinds = [DType.I32 if self._words is not None else self._dtype(side) for side in sides]
        kinds[1] = self._sum if self._form == WIDENED else kinds[1]
        buffers = [Buffer(name, kind) for name, kind in zip(("a", "w"), kinds, strict=True)]
        scales = [] if self._right.scales is None else [self._right.scales]
        buffers += [Buffer("scales", self._dtype(value)) for value in scales]
        factors = [] if self._factors is None else [self._factors.base]
        buffers += [Buffer("factors", self._dtype(value)) for value in factors]
        buffers += [Buffer(name, self._dtype(value)) for value, name in self._epilogue.operands.items()]
        buffers += self._epilogue.outs()
        if self._turned or self._by_row:
            buffers.append(Buffer("scratch", self._sum, "scratch"))
        program = TileProgram("matmul", tuple(buffers), len(self._sizes.dims), grid, body, ("j",))
        right = Panels(self._weight, self._width, self._form) if self._packed else self._b.base
        return Kernel(
            program,
            (self._a.base, right, *scales, *factors, *self._epilogue.operands, *self._epilogue.results),
            tuple(self._sizes.dims),
            self._pieces(),
            self._grain(),
            self._scratch_bytes(),
        )

    def _scratch_bytes(self) -> Dim:
        row = self._sum.numpy.itemsize * self._width
        return self._dims.mul(self._k, row) if self._turned else TILES[self._vectors] * row if self._by_row else 0

    def _pieces(self) -> tuple[tuple[Dim, int], ...]:
        """Extent and step of each axis of the grid."""
        if self._by_rows:
            return ((self._m, self._tile_rows()),)
        blocks = ((self._m, self._block_rows),) if self._block_rows else ()
        return (*((size, 1) for size in self._batch), *blocks, (self._n, self._width))

    def _grid(self) -> tuple[Grid, ...]:
        if self._by_rows:
            rows = self._tile_rows()
            return (Grid(f"i{rows}", self._sizes.of(self._m), rows),)
        batch = (Grid(f"g{axis}", self._sizes.of(size), 1) for axis, size in enumerate(self._batch))
        blocks = (Grid("r", self._sizes.of(self._m), self._block_rows),) if self._block_rows else ()
        return (*batch, *blocks, Grid("j", self._sizes.of(self._n), self._width))

    def _at(self, view: View, row: str, column: str) -> Index:
        """Elements of the matrix of this batch."""
        names = [*(f"g{axis}" for axis in range(len(self._batch))), row, column]
        strides = zip(names, view.strides, strict=True)
        axes = [(name, self._sizes.of(s)) for name, s in strides if s != 0 or name in (row, column)]
        return Index(self._from_block(axes, row), self._sizes.of(view.offset))

    def _from_block(self, axes: list[tuple[str, Size]], row: str) -> tuple[tuple[str, Size], ...]:
        """Addresses of rows that count from the first one of a block."""
        blocks = [("r", stride) for name, stride in axes if name == row and self._block_rows]
        return (*blocks, *axes)

    def _result_index(self, i: str) -> Index:
        """Elements of the result, and of what has its shape."""
        strides = Strides(self._dims).row_major((*self._batch, self._m, self._n))
        return self._at(View(0, (), strides), i, "j")

    def _grain(self) -> Dim:
        """Panels or tiles of rows that are worth a thread's while: fewer, the more there is to do for one."""
        if self._by_rows:
            flops = self._dims.product([2 * self._tile_rows(), self._k, self._n])
            return self._dims.floordiv(_WORK_FLOPS, self._dims.max(flops, 1))
        flops = self._dims.product([2 * self._width, self._k, self._block_rows or self._m])
        return self._dims.floordiv(_WORK_FLOPS, self._dims.max(flops, 1))

    def _dtype(self, value: ValueId) -> DType:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type.dtype

    def _body(self) -> tuple[Statement, ...]:
        if self._by_rows:
            return (Loop("j", self._sizes.of(self._n), self._width, tuple(self._tile(self._tile_rows()))),)
        statements: list[Statement] = [self._turn()] if self._turned else []
        begin: Dim = 0
        tiles, all_rows = self._row_tiles(), self._block_rows or self._m
        for rows in tiles:
            count = self._tiles(rows, self._dims.sub(all_rows, begin))
            end = all_rows if rows == tiles[-1] else self._dims.add(begin, self._dims.mul(count, rows))
            if begin != end:
                statements.append(self._rows(rows, begin, end))
            begin = end
        return tuple(statements)

    def _tiles(self, rows: int, left: Dim) -> Dim:
        """How many tiles of so many rows there are among those that are left."""
        count = self._dims.floordiv(left, rows)
        if isinstance(left, int) or rows != _LEFT_ROWS[0]:
            return count
        return self._dims.sub(count, self._dims.emit("eq", left, sum(_LEFT_ROWS[1:3])))

    def _row_tiles(self) -> tuple[int, ...]:
        """Rows of the tiles, the last of which ends with the last row: equal ones where their number is known."""
        most, rows = TILES[self._vectors], self._block_rows or self._m
        return divided(rows, most) if isinstance(rows, int) else (most, *_LEFT_ROWS)

    def _turn(self) -> Loop:
        """This panel of the right side, its columns side by side, in scratch."""
        name = self._names.new("t")
        load = Load(name, Tile(self._sum, ("t", "j")), "w", self._at(self._b, "t", "j"))
        store = Store("scratch", Index((("t", self._width), ("j", 1)), 0, (("j", 0),)), name)
        return Loop("t", self._sizes.of(self._k), self._lanes, (load, store))

    def _right_index(self, k: str) -> Index:
        if self._packed:
            first = 0 if self._words is None else self._words.ahead
            rows = self._sizes.of(self._dims.add(self._steps, first))
            return Index((("j", 1), (k, self._width)), first * self._width, (("j", rows),))
        if self._turned:
            return Index((("j", 1), (k, self._width)), 0, (("j", 0),))
        return self._at(self._b, k, "j")

    def _rows(self, rows: int, begin: Dim, end: Dim) -> Loop:
        body = tuple(self._tile(rows))
        return Loop(f"i{rows}", self._sizes.of(end), rows, body, begin=self._sizes.of(begin), exact=True)

    def _tile(self, rows: int) -> list[Statement]:
        """So many rows of a panel's results."""
        body: list[Statement] = []
        if self._by_row:
            return self._mapped_by_row(body, rows)
        result = self._epilogue.write(body, self._total(body, rows), self._sum, self._spot(f"i{rows}"))
        body += self._epilogue.stores(self._result_index(f"i{rows}"), result)
        return body

    def _mapped_by_row(self, body: list[Statement], rows: int) -> list[Statement]:
        """The same by way of scratch: there are several such tiles, and what the maps of a whole one take to compile is
        most of what a kernel takes."""
        i, total, row = f"i{rows}", self._total(body, rows), self._names.new("row")
        places = Index(((i, self._width), ("j", 1)), 0, ((i, 0), ("j", 0)))
        inner: list[Statement] = [
            Load(row, Tile(self._sum, ("x", "j")), "scratch", Index((("x", self._width), ("j", 1)), 0, (("j", 0),)))
        ]
        spot = self._spot("x")
        spot = replace(spot, index=_from_tile(spot.index, i), rows=_from_tile(spot.rows or Index(), i))
        inner += self._epilogue.stores(spot.index, self._epilogue.write(inner, row, self._sum, spot))
        return [*body, Store("scratch", places, total), Loop("x", rows, 1, tuple(inner))]

    def _total(self, body: list[Statement], rows: int) -> str:
        """The sums of a tile: block by block where they are long, so that rounding does not grow with their length."""
        if self._right.scales is not None:
            return self._scaled_blocks(body, rows, self._right.block)
        steps = self._steps
        if not isinstance(steps, int) or steps <= _BLOCK or not self._sum.is_float:
            return self._block(body, rows, steps)
        length = -(-steps // -(-steps // _BLOCK))
        whole = steps // length * length
        tile = Tile(self._sum, (f"i{rows}", "j"))
        start, old, new, total = (self._names.new(hint) for hint in ("zero", "old", "new", "total"))
        inner: list[Statement] = []
        inner.append(Map(new, tile, "add", (old, self._block(inner, rows, length, f"K{rows}"))))
        loop = Loop(f"K{rows}", whole, length, tuple(inner), ((old, start),), (new,), (total,))
        body += [Fill(start, tile, 0.0), loop]
        if whole < steps:
            last, rest = self._names.new("sum"), self._block(body, rows, steps - whole, begin=whole)
            body.append(Map(last, tile, "add", (total, rest)))
            return last
        return total

    def _scaled_blocks(self, body: list[Statement], rows: int, block: int) -> str:
        """Σ over blocks of rows of the right side: their scales times their sums."""
        count, tile = self._dims.floordiv(self._k, block), Tile(self._sum, (f"i{rows}", "j"))
        start, old, new, total, scale = (self._names.new(hint) for hint in ("zero", "old", "new", "total", "scale"))
        columns = Index(((f"b{rows}", self._sizes.of(self._n)), ("j", 1)))
        inner: list[Statement] = [Load(scale, Tile(self._sum, ("j",)), "scales", columns)]
        inner.append(Map(new, tile, "fma", (self._block(inner, rows, block, f"b{rows}", each=block), scale, old)))
        loop = Loop(f"b{rows}", self._sizes.of(count), 1, tuple(inner), ((old, start),), (new,), (total,))
        body += [Fill(start, tile, 0.0), loop]
        return total

    def _block(
        self, body: list[Statement], rows: int, length: Dim, block: str = "", begin: int = 0, each: int = 1
    ) -> str:
        """Sums over `length` steps, from `begin` or from the position of the loop `block`, times `each`, on."""
        i, k, split = f"i{rows}", f"k{rows}", self._split(rows)
        summed = split == 1 and self._words is None  # by the loop itself
        tile = Tile(self._sum, (i, "j") if summed else (i, k, "j"))
        start, sums, new, old, a, b = (self._names.new(hint) for hint in ("zero", "sums", "new", "old", "a", "b"))
        kind = self._sum if self._words is None else DType.I32
        right = Load(b, Tile(kind, (k, "j")), "scratch" if self._turned else "w", self._right_index(k))
        left = Load(a, Tile(kind, (i, k)), "a", self._at(self._a, i, k))
        shift = partial(_shifted, k=k, block=block, begin=begin, each=each, sizes=self._sizes, dims=self._dims)
        loads: list[Statement] = [shift(right), shift(left)]
        if self._factors is not None:
            factor, scaled = self._names.new("factor"), self._names.new("b")
            (step,), offset = self._factors.strides, self._sizes.of(self._factors.offset)
            loads.append(shift(Load(factor, Tile(kind, (k,)), "factors", Index(((k, self._sizes.of(step)),), offset))))
            loads.append(Map(scaled, Tile(kind, (k, "j")), "mul", (b, factor)))
            b = scaled
        add: tuple[Statement, ...] = (Map(new, tile, "fma", (a, b, old)),)
        if self._words is not None:
            add = tuple(self._words.dot(self._names, new, tile, left, right, old))
        elif summed:
            add = (Dot(new, tile, a, b, old, k),)
        loop = Loop(k, self._sizes.of(length), split, (*loads, *add), ((old, start),), (new,), (sums,))
        body += [Fill(start, tile, 0.0), loop]
        if summed:
            return sums
        total = self._names.new("total")
        body.append(Reduce(total, Tile(self._sum, (i, "j")), "sum", sums, k))
        return self._plus_sums(body, i, total)

    def _plus_sums(self, body: list[Statement], i: str, total: str) -> str:
        """What the sums lack because the left side was moved."""
        if self._words is None or not self._words.moved:
            return total
        sums, whole = self._names.new("sums"), self._names.new("total")
        rows = self._sizes.of(self._dims.add(self._steps, 1))
        body.append(Load(sums, Tile(DType.I32, ("j",)), "w", Index((("j", 1),), 0, (("j", rows),))))
        body.append(Map(whole, Tile(self._sum, (i, "j")), "add", (total, sums)))
        return whole

    def _split(self, rows: int) -> int:
        """How many sums share the work of one: few rows leave registers idle, and a single sum waits for itself."""
        if not self._sum.is_float and self._words is None:
            return 1
        return max(split for split in _SPLITS if split * rows * self._vectors <= _ACCUMULATORS or split == 1)

    def _spot(self, i: str) -> Spot:
        """Where the results of a tile of rows lie."""
        names = [*(f"g{axis}" for axis in range(len(self._batch))), i]
        strides = zip(names, Strides(self._dims).row_major((*self._batch, self._m)), strict=True)
        rows = Index(self._from_block([(name, self._sizes.of(stride)) for name, stride in strides], i))
        return Spot((i, "j"), self._result_index(i), Index((("j", 1),)), rows)


def _has_dear_maps(graph: Graph, region: Region) -> bool:
    return any(graph.nodes[index].op.removeprefix("core.") in DEAR for index in region.nodes)


def _from_tile(index: Index, i: str) -> Index:
    """Addresses of rows x that count from the first one of a tile."""
    return replace(index, axes=(*((i, stride) for axis, stride in index.axes if axis == "x"), *index.axes))


def _shifted(load: Load, k: str, block: str, begin: int, each: int, sizes: Sizes, dims: DimBuilder) -> Load:
    """The same load further along the sum: by the position of the loop `block`, times `each`, or by a number."""
    ((_, stride),) = [entry for entry in load.index.axes if entry[0] == k]
    if block:
        further = sizes.of(dims.mul(_dim(stride, sizes), each))
        return replace(load, index=replace(load.index, axes=(*load.index.axes, (block, further))))
    if begin == 0:
        return load
    offset = dims.add(_dim(load.index.offset, sizes), dims.mul(_dim(stride, sizes), begin))
    return replace(load, index=replace(load.index, offset=sizes.of(offset)))


def _dim(size: Size, sizes: Sizes) -> Dim:
    return sizes.dims[size.index] if isinstance(size, Arg) else size
