"""An attention region -> one tile program: softmax(q · kᵀ · scale + mask) · v without the matrix of scores.

For each batch and head: k is turned over into panels of keys, once; what is left of the wide ones goes into narrow
ones. Then, for a few queries at a time, their scores are written to scratch, turned into weights some rows at a time,
and multiplied with v; what is in memory are the scores of these few queries, which stay in the first-level cache.

Sides in bf16 are multiplied in pairs where the machine does that (`dots`): q and k lie so already, pairs of v's rows
are put together in scratch, and weights are rounded there. Then scratch has three faces: floats, halves and words.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec.structs import replace

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.lower.attention_weights import Scratch, Weighing
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.rows import flushes, map_statement
from tierup.lower.sources import constant_scalar
from tierup.lower.tile import (
    Buffer,
    Dot,
    Fill,
    Grid,
    Index,
    Load,
    Loop,
    Map,
    Reduce,
    Statement,
    Store,
    Tile,
    TileProgram,
)
from tierup.lower.views import View, Views, paired
from tierup.plan.attention import Roles, roles
from tierup.plan.regions import Region
from tierup.plan.strides import Strides

_ROWS = (8, 4, 2, 1)  # queries at a time; 8 rows of two vectors keep both multipliers busy
# Of queries whose number is open. Without four the kernel compiles in a fifth less, and 2 to 15 queries of 512 keys
# take a tenth longer; without two as well it would be twice as long.
_OPEN_ROWS = (8, 2, 1)
_VECTORS = 2  # in a panel of keys
_COLUMN_VECTORS = (2, 3, 1)  # in one of the columns of v; with 8 rows, three still fit the registers
_WORK_FLOPS = 60_000  # less is not worth a fork-join; as for products


_HALF = 16  # bits


def lower_attention(
    graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int, dots: Set[str] = frozenset()
) -> Kernel:
    """The kernel of an attention region; `dots` are the maps of words that the machine has instructions for."""
    return _Attention(graph, weights, region, dims, lanes, dots).kernel()


class _Attention:
    def __init__(
        self, graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int, dots: Set[str]
    ) -> None:
        self._graph, self._weights, self._dims, self._lanes = graph, weights, dims, lanes
        self._roles: Roles = roles(graph, region)
        rounded = self._dtype(self._roles.result) is DType.BF16
        self._flush = rounded and any(flushes(graph.nodes[index]) for index in region.nodes[-2:])
        self._sizes, self._names = Sizes(), Names()
        self._width = _VECTORS * lanes
        *self._batch, self._m, self._n = region.domain
        self._views = Views(graph, weights, dims)
        scaled = Views(graph, weights, dims, scaled=True)
        self._d = self._shape(self._roles.query)[-1]
        self._e = self._shape(self._roles.value)[-1]
        self._q = self._for_all_heads(scaled, self._roles.query, self._m, self._d)
        self._k = self._for_all_heads(scaled, self._roles.key, self._d, self._n).swapped()
        self._v = self._for_all_heads(self._views, self._roles.value, self._n, self._e)
        self._operands: dict[ValueId, str] = {}
        self._steps, self._words = self._d, False  # of a score's sum, and whether these are words
        if self._roles.rounded and "dot_bf16" in dots:
            self._as_words()
        self._scratch = self._lay_out()
        self._weighing = Weighing(
            graph, weights, self._roles, self._scratch, (self._n, lanes), (self._names, self._sizes, dims), self._words
        )

    def _shape(self, value: ValueId) -> tuple[Dim, ...]:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        assert type.shape is not None
        return type.shape

    def _for_all_heads(self, views: Views, value: ValueId, rows: Dim, columns: Dim) -> View:
        """A side of a product; the heads that share it read the same memory."""
        view = views.broadcast(value, (*self._batch, rows, columns))
        assert view is not None
        return view

    def _as_words(self) -> None:
        """Computes on words of two where all sides are bf16 and lie so."""
        narrow = all(self._dtype(view.base) is DType.BF16 for view in (self._q, self._k, self._v))
        q, k = paired(self._q, self._dims), paired(self._k, self._dims)
        if narrow and q is not None and k is not None:
            self._q, self._k, self._words = q, k, True
            self._steps = self._dims.floordiv(self._d, 2)

    def _lay_out(self) -> Scratch:
        dims = self._dims
        wide = dims.mul(dims.floordiv(self._n, self._width), self._width)
        row = dims.mul(dims.ceildiv(self._n, self._lanes), self._lanes)
        pairs = dims.mul(row, self._steps)
        scores = dims.add(pairs, dims.mul(dims.ceildiv(self._n, 2), self._e)) if self._words else pairs
        sums = dims.add(scores, dims.mul(row, _ROWS[0]))
        halves = dims.add(sums, max(self._lanes, _ROWS[0]))
        total = dims.add(halves, dims.mul(row, _ROWS[0] // 2)) if self._roles.rounded else halves
        return Scratch(wide, pairs, scores, row, sums, halves, total)

    def kernel(self) -> Kernel:
        body: list[Statement] = [self._turn_keys(*panels) for panels in self._panels()]
        body += self._pair_values() if self._words else []
        begin: Dim = 0
        for rows in _ROWS if isinstance(self._m, int) else _OPEN_ROWS:
            tiles = self._dims.floordiv(self._dims.sub(self._m, begin), rows)
            end = self._m if rows == 1 else self._dims.add(begin, self._dims.mul(tiles, rows))
            if begin != end:
                body.append(self._rows(rows, begin, end))
            begin = end
        sides = (("q", self._q, DType.I32), ("k", self._k, DType.I32), ("v", self._v, DType.U16))
        buffers = [Buffer(n, words if self._words else self._dtype(view.base)) for n, view, words in sides]
        buffers += [Buffer(name, self._dtype(value)) for value, name in self._operands.items()]
        buffers.append(Buffer("out", self._dtype(self._roles.result), "out"))
        faces = [("scratch", DType.F32)]
        faces += [("halves", DType.BF16)] if self._roles.rounded else []
        faces += [("words", DType.I32)] if self._words else []
        buffers += [Buffer(name, dtype, "scratch") for name, dtype in faces]
        batch = self._batch or [1]
        grid = tuple(Grid(f"g{axis}", self._sizes.of(size), 1) for axis, size in enumerate(batch))
        vector = (*(axis for axis, *_ in self._panels()), "w", "e", *(("p",) if self._words else ()))
        program = TileProgram("attention", tuple(buffers), len(self._sizes.dims), grid, tuple(body), vector)
        flops = self._dims.product([2, self._m, self._n, self._dims.add(self._d, self._e)])
        return Kernel(
            program,
            (self._q.base, self._k.base, self._v.base, *self._operands, self._roles.result),
            tuple(self._sizes.dims),
            tuple((size, 1) for size in batch),
            self._dims.floordiv(_WORK_FLOPS, self._dims.max(flops, 1)),
            self._dims.mul(self._scratch.total, 4),
        )

    def _dtype(self, value: ValueId) -> DType:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type.dtype

    def _at(self, view: View, *axes: str) -> Index:
        """Elements of this batch and head; `axes` name the last axes of the value, innermost last."""
        names = [*(f"g{axis}" for axis in range(len(view.strides) - len(axes))), *axes]
        entries = tuple(
            (name, self._sizes.of(stride)) for name, stride in zip(names, view.strides, strict=True) if stride != 0
        )
        return Index(entries, self._sizes.of(view.offset))

    def _panels(self) -> list[tuple[str, Dim, Dim, int]]:
        """Loops over all keys: axis, begin, end and keys in a panel; the wide panels are full."""
        wide = self._scratch.wide
        panels: list[tuple[str, Dim, Dim, int]] = [("n", 0, wide, self._width), ("l", wide, self._n, self._lanes)]
        return [panel for panel in panels if panel[1] != panel[2]]

    def _over_panels(self, axis: str, begin: Dim, end: Dim, width: int, body: Sequence[Statement]) -> Loop:
        sizes = self._sizes
        return Loop(axis, sizes.of(end), width, tuple(body), begin=sizes.of(begin), exact=axis == "n")

    def _in_panels(self, axis: str, width: int, inner: str) -> Index:
        """The keys in scratch: panels of `width` keys, in each the d-th elements of all its keys side by side."""
        return Index(((axis, 1), (inner, width)), 0, ((axis, self._sizes.of(self._steps)),))

    @property
    def _side(self) -> tuple[DType, str]:
        """What sides are read as, and the face of scratch that has them."""
        return (DType.I32, "words") if self._words else (DType.F32, "scratch")

    def _turn_keys(self, axis: str, begin: Dim, end: Dim, width: int) -> Loop:
        name, (dtype, face) = self._names.new("k"), self._side
        load = Load(name, Tile(dtype, ("c", axis)), "k", self._at(self._k, axis, "c"))
        turn = (load, Store(face, self._in_panels(axis, width, "c"), name))
        inner = Loop("c", self._sizes.of(self._steps), self._lanes, turn)
        return self._over_panels(axis, begin, end, width, (inner,))

    def _pair_values(self) -> list[Statement]:
        """The rows of v in scratch, elements of two rows side by side; beside a last one are zeros."""
        pairs, sizes = self._dims.floordiv(self._n, 2), self._sizes
        loops = [self._paired_rows("b", 0, pairs, 2)]
        if not self._dims.is_multiple(self._n, 2):
            loops.append(self._paired_rows("l2", pairs, self._dims.ceildiv(self._n, 2), 1))
        return [Loop("p", sizes.of(self._e), self._lanes, tuple(loops))]

    def _paired_rows(self, t: str, begin: Dim, end: Dim, rows: int) -> Loop:
        names, sizes, tile = self._names, self._sizes, Tile(DType.I32, ("p",))
        *outer, row, column = self._v.strides
        first = self._at(replace(self._v, strides=(*outer, self._dims.mul(row, 2), column)), t, "p")
        low, high, bits, moved, word = (names.new(hint) for hint in ("low", "high", "bits", "moved", "word"))
        body: list[Statement] = [Load(low, tile, "v", first)]
        if rows == 2:
            second = replace(first, offset=sizes.of(self._dims.add(self._v.offset, row)))
            body += [
                Load(high, tile, "v", second),
                Fill(bits, Tile(DType.I32), _HALF),
                Map(moved, tile, "shl", (high, bits)),
                Map(word, tile, "or", (low, moved)),
            ]
        body.append(Store("words", self._in_pairs(t, "p"), word if rows == 2 else low))
        return Loop(t, sizes.of(end), 1, tuple(body), begin=sizes.of(begin))

    def _in_pairs(self, t: str, column: str) -> Index:
        return Index(((t, self._sizes.of(self._e)), (column, 1)), self._sizes.of(self._scratch.pairs))

    def _rows(self, rows: int, begin: Dim, end: Dim) -> Loop:
        """Everything for `rows` queries at a time."""
        i = f"i{rows}"
        scores = (self._scores(i, rows, *panels) for panels in self._panels())
        body = (*scores, self._weighing.loop(rows), self._product(i, rows))
        return Loop(i, self._sizes.of(end), rows, body, begin=self._sizes.of(begin), exact=True)

    def _row_index(self, i: str, column: str) -> Index:
        """Scores of the rows at hand; their position in the matrix does not count, only which of them it is."""
        row = self._sizes.of(self._scratch.row)
        return Index(((i, row), (column, 1)), self._sizes.of(self._scratch.scores), ((i, 0),))

    def _scores(self, i: str, rows: int, axis: str, begin: Dim, end: Dim, width: int) -> Loop:
        (dtype, face), k, q, inner = self._side, self._names.new("k"), self._names.new("q"), f"d{rows}"
        right = Load(k, Tile(dtype, (inner, axis)), face, self._in_panels(axis, width, inner))
        left = Load(q, Tile(dtype, (i, inner)), "q", self._at(self._q, i, inner))
        body: list[Statement] = []
        total = self._sums(body, (i, axis), inner, self._steps, left, right)
        result = self._maps(body, i, axis, total)
        body.append(Store("scratch", self._row_index(i, axis), result))
        return self._over_panels(axis, begin, end, width, body)

    def _sums(
        self, body: list[Statement], axes: tuple[str, str], inner: str, steps: Dim, left: Load, right: Load
    ) -> str:
        """The sums of a tile of products, along `inner`."""
        zero, old, new, sums, total = (self._names.new(hint) for hint in ("zero", "old", "new", "sums", "sum"))
        row, column = axes
        tile = Tile(DType.F32, (row, inner, column) if self._words else axes)
        step: Statement = Dot(new, tile, left.out, right.out, old, inner)
        if self._words:
            step = Map(new, tile, "dot_bf16", (left.out, right.out, old))
        loads = (right, left, step)
        body += [
            Fill(zero, tile, 0.0),
            Loop(inner, self._sizes.of(steps), 1, loads, ((old, zero),), (new,), (sums,)),
        ]
        if not self._words:
            return sums
        body.append(Reduce(total, Tile(DType.F32, axes), "sum", sums, inner))
        return total

    def _maps(self, body: list[Statement], i: str, axis: str, total: str) -> str:
        """What happens to the scores before the softmax: scale, mask. Factors of q and k are applied here."""
        tile = Tile(DType.F32, (i, axis))
        for op, number in (*self._q.factors, *self._k.factors):
            factor, scaled = self._names.new("f"), self._names.new("t")
            body += [Fill(factor, Tile(DType.F32), number), Map(scaled, tile, op, (total, factor))]
            total = scaled
        values: dict[ValueId, tuple[str, Tile]] = {self._roles.scores: (total, tile)}
        last = self._roles.scores
        for node in self._roles.maps:
            arguments = [self._argument(body, values, value, (i, axis)) for value in node.inputs if value is not None]
            assert node.outputs[0] is not None
            last = node.outputs[0]
            values[last] = map_statement(body, self._names, node, arguments, self._dtype(last))
        return values[last][0]

    def _argument(
        self, body: list[Statement], values: dict[ValueId, tuple[str, Tile]], value: ValueId, axes: tuple[str, str]
    ) -> tuple[str, Tile]:
        if value in values:
            return values[value]
        name, dtype = self._names.new("m"), self._dtype(value)
        number = constant_scalar(self._graph, self._weights, value)
        if number is not None:
            body.append(Fill(name, Tile(dtype), number))
            values[value] = (name, Tile(dtype))
            return values[value]
        view = self._views.broadcast(value, (*self._batch, self._m, self._n))
        assert view is not None
        buffer = self._operands.setdefault(view.base, f"m{len(self._operands)}")
        present = [axis for axis, stride in zip(axes, view.strides[-2:], strict=True) if stride != 0]
        tile = Tile(dtype, tuple(present))
        body.append(Load(name, tile, buffer, self._at(view, *axes)))
        values[value] = (name, tile)
        return values[value]

    def _product(self, i: str, rows: int) -> Loop:
        p, v, inverse, result = (self._names.new(hint) for hint in ("p", "v", "inverse", "result"))
        (dtype, _), t, steps = self._side, f"t{rows}", self._n
        right = Load(v, Tile(dtype, (t, "e")), "v", self._at(self._v, t, "e"))
        left = Load(p, Tile(dtype, (i, t)), "scratch", self._row_index(i, t))
        if self._roles.rounded:
            halves = self._weighing.halves(i, t)
            left = replace(left, buffer="halves", index=replace(halves, starts=((i, 0),)))
        if self._words:
            steps = self._dims.ceildiv(self._n, 2)
            row = self._sizes.of(self._dims.floordiv(self._scratch.row, 2))
            words = Index(((i, row), (t, 1)), self._sizes.of(self._scratch.halves), ((i, 0),))
            left = replace(left, buffer="words", index=words)
            right = replace(right, buffer="words", index=self._in_pairs(t, "e"))
        body: list[Statement] = []
        total = self._sums(body, (i, "e"), t, steps, left, right)
        sums = Index(((i, 1),), self._sizes.of(self._scratch.sums), ((i, 0),))
        body += [
            Load(inverse, Tile(DType.F32, (i,)), "scratch", sums),
            Map(result, Tile(DType.F32, (i, "e")), "mul", (total, inverse)),
            Store("out", self._out_index(i), result, flush=self._flush),
        ]
        return Loop("e", self._sizes.of(self._e), self._columns(), tuple(body))

    def _columns(self) -> int:
        """Columns of v at a time: what computes the fewest too many."""
        if not isinstance(self._e, int):
            return self._width
        e, widths = self._e, [vectors * self._lanes for vectors in _COLUMN_VECTORS]
        return min(widths, key=lambda width: -(-e // width) * width)

    def _out_index(self, i: str) -> Index:
        """Row-major, or turned as the transpose behind the product would have it."""
        order = self._roles.order or tuple(range(len(self._batch) + 2))
        shape = [*self._batch, self._m, self._e]
        names = [*(f"g{axis}" for axis in range(len(self._batch))), i, "e"]
        strides = Strides(self._dims).row_major([shape[axis] for axis in order])
        entries = [(names[axis], self._sizes.of(stride)) for axis, stride in zip(order, strides, strict=True)]
        return Index(tuple(sorted(entries, key=lambda entry: names.index(entry[0]))))
