"""An attention region -> one tile program: softmax(q · kᵀ · scale + mask) · v without the matrix of scores.

For each batch and head: k is turned over into panels of keys, once; what is left of the wide ones goes into narrow
ones. Then, for a few queries at a time, their scores are written to scratch, turned into weights some rows at a time,
and multiplied with v; what is in memory are the scores of these few queries, which stay in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.rows import map_statement
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
    Size,
    Statement,
    Store,
    Tile,
    TileProgram,
)
from tierup.lower.views import View, Views
from tierup.plan.attention import Roles, roles
from tierup.plan.regions import Region

_ROWS = (8, 4, 2, 1)  # queries at a time; 8 rows of two vectors keep both multipliers busy
_VECTORS = 2  # in a panel of keys, and in one of the columns of v
# Rows whose weights are made together: the largest score of one row is waited for while others are looked at. 28 cycles
# a vector with one row of 128, 19 with four, 18 with eight.
_WEIGHED_ROWS = 4
_WORK_FLOPS = 60_000  # less is not worth a fork-join; as for products


def lower_attention(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of an attention region."""
    return _Attention(graph, weights, region, dims, lanes).kernel()


@dataclass(frozen=True)
class _Scratch:
    """Where things lie in a thread's scratch, in elements: panels of k, scores of the rows at hand, 1 / their sums.

    `wide` is how many keys lie in wide panels.
    """

    wide: Dim
    scores: Dim
    row: Dim
    sums: Dim
    total: Dim


class _Attention:
    def __init__(self, graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> None:
        self._graph, self._weights, self._dims, self._lanes = graph, weights, dims, lanes
        self._roles: Roles = roles(graph, region)
        self._sizes, self._names = Sizes(), Names()
        self._width = _VECTORS * lanes
        *self._batch, self._m, self._n = region.domain
        self._views = Views(graph, weights, dims)
        scaled = Views(graph, weights, dims, scaled=True)
        self._q = scaled.of(self._roles.query)
        self._k = scaled.of(self._roles.key).swapped()
        self._v = self._views.of(self._roles.value)
        self._d = self._shape(self._roles.query)[-1]
        self._e = self._shape(self._roles.value)[-1]
        self._operands: dict[ValueId, str] = {}
        self._scratch = self._lay_out()

    def _shape(self, value: ValueId) -> tuple[Dim, ...]:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        assert type.shape is not None
        return type.shape

    def _lay_out(self) -> _Scratch:
        dims = self._dims
        wide = dims.mul(dims.floordiv(self._n, self._width), self._width)
        row = dims.mul(dims.ceildiv(self._n, self._lanes), self._lanes)
        scores = dims.mul(row, self._d)
        sums = dims.add(scores, dims.mul(row, _ROWS[0]))
        return _Scratch(wide, scores, row, sums, dims.add(sums, self._lanes))

    def kernel(self) -> Kernel:
        body: list[Statement] = [self._turn_keys(*panels) for panels in self._panels()]
        begin: Dim = 0
        for rows in _ROWS:
            tiles = self._dims.floordiv(self._dims.sub(self._m, begin), rows)
            end = self._m if rows == 1 else self._dims.add(begin, self._dims.mul(tiles, rows))
            if begin != end:
                body.append(self._rows(rows, begin, end))
            begin = end
        buffers = [Buffer("q", DType.F32), Buffer("k", DType.F32), Buffer("v", DType.F32)]
        buffers += [Buffer(name, self._dtype(value)) for value, name in self._operands.items()]
        buffers += [Buffer("out", DType.F32, "out"), Buffer("scratch", DType.F32, "scratch")]
        batch = self._batch or [1]
        grid = tuple(Grid(f"g{axis}", self._sizes.of(size), 1) for axis, size in enumerate(batch))
        vector = (*(axis for axis, *_ in self._panels()), "w", "e")
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
        return Index(((axis, 1), (inner, width)), 0, ((axis, self._sizes.of(self._d)),))

    def _turn_keys(self, axis: str, begin: Dim, end: Dim, width: int) -> Loop:
        name = self._names.new("k")
        load = Load(name, Tile(DType.F32, ("c", axis)), "k", self._at(self._k, axis, "c"))
        turn = (load, Store("scratch", self._in_panels(axis, width, "c"), name))
        inner = Loop("c", self._sizes.of(self._d), self._lanes, turn)
        return self._over_panels(axis, begin, end, width, (inner,))

    def _rows(self, rows: int, begin: Dim, end: Dim) -> Loop:
        """Everything for `rows` queries at a time."""
        i = f"i{rows}"
        scores = (self._scores(i, rows, *panels) for panels in self._panels())
        body = (*scores, self._weigh(rows), self._product(i, rows))
        return Loop(i, self._sizes.of(end), rows, body, begin=self._sizes.of(begin), exact=True)

    def _row_index(self, i: str, column: str) -> Index:
        """Scores of the rows at hand; their position in the matrix does not count, only which of them it is."""
        row = self._sizes.of(self._scratch.row)
        return Index(((i, row), (column, 1)), self._sizes.of(self._scratch.scores), ((i, 0),))

    def _scores(self, i: str, rows: int, axis: str, begin: Dim, end: Dim, width: int) -> Loop:
        names, tile = self._names, Tile(DType.F32, (i, axis))
        zero, old, new, total, q, k = (names.new(hint) for hint in ("zero", "old", "new", "sum", "q", "k"))
        inner = f"d{rows}"
        dot = Loop(
            inner,
            self._sizes.of(self._d),
            1,
            (
                Load(k, Tile(DType.F32, (inner, axis)), "scratch", self._in_panels(axis, width, inner)),
                Load(q, Tile(DType.F32, (i, inner)), "q", self._at(self._q, i, inner)),
                Dot(new, tile, q, k, old, inner),
            ),
            ((old, zero),),
            (new,),
            (total,),
        )
        body: list[Statement] = [Fill(zero, tile, 0.0), dot]
        result = self._maps(body, i, axis, total)
        body.append(Store("scratch", self._row_index(i, axis), result))
        return self._over_panels(axis, begin, end, width, body)

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

    def _weigh(self, rows: int) -> Loop:
        """Some rows at a time: the largest score, then exp(score - largest), and one over their sum."""
        names, r = self._names, f"r{rows}"
        vector, single = Tile(DType.F32, (r, "w")), Tile(DType.F32, (r,))
        row = Index(((r, self._sizes.of(self._scratch.row)), ("w", 1)), self._sizes.of(self._scratch.scores))
        least, old, score, new, tops, top = (names.new(h) for h in ("least", "old", "s", "new", "tops", "top"))
        shift: list[Statement] = []
        largest = Loop(
            "w",
            self._sizes.of(self._n),
            self._lanes,
            (Load(score, vector, "scratch", row, float("-inf")), Map(new, vector, "max", (score, old))),
            ((old, least),),
            (new,),
            (tops,),
        )
        shifted = self._row_maps(shift, self._roles.shift, top, single)
        zero, before, again, less, weight, after, sums, total, one, inverse = (
            names.new(h) for h in ("zero", "before", "s", "less", "w", "after", "sums", "total", "one", "inverse")
        )
        divide: list[Statement] = []
        divisor = self._row_maps(divide, self._roles.divisor, total, single)
        weigh = Loop(
            "w",
            self._sizes.of(self._n),
            self._lanes,
            (
                Load(again, vector, "scratch", row),
                Map(less, vector, "sub", (again, shifted)),
                Map(weight, vector, "exp", (less,)),
                Store("scratch", row, weight),
                Map(after, vector, "add", (before, weight)),
            ),
            ((before, zero),),
            (after,),
            (sums,),
        )
        left = one if self._roles.after else inverse  # what the product is still to be multiplied with
        body = (
            Fill(least, vector, float("-inf")),
            largest,
            Reduce(top, single, "max", tops, "w"),
            *shift,
            Fill(zero, vector, 0.0),
            weigh,
            Reduce(total, single, "sum", sums, "w"),
            *divide,
            Fill(one, single, 1.0),
            Map(inverse, single, "div", (one, divisor)),
            *(self._finish(row, vector, inverse) if self._roles.after else ()),
            Store("scratch", Index(((r, 1),), self._sizes.of(self._scratch.sums)), left),
        )
        return Loop(r, rows, min(rows, _WEIGHED_ROWS), body)

    def _finish(self, row: Index, vector: Tile, inverse: str) -> tuple[Statement, ...]:
        """Maps on the weights themselves need them divided before the product, in a pass of their own."""
        raw, weight = self._names.new("w"), self._names.new("w")
        body: list[Statement] = [
            Load(raw, vector, "scratch", row),
            Map(weight, vector, "mul", (raw, inverse)),
        ]
        result = self._row_maps(body, self._roles.after, weight, vector)
        body.append(Store("scratch", row, result))
        return (Loop("w", self._sizes.of(self._n), self._lanes, tuple(body)),)

    def _row_maps(self, body: list[Statement], nodes: tuple[Node, ...], reduced: str, tile: Tile) -> str:
        """Maps on one value: the largest score of a row, the sum of its weights, the weights. Some exporters treat rows
        in which nothing is left apart."""
        values: dict[ValueId, tuple[str, Tile]] = {}
        last = reduced
        for node in nodes:
            arguments = []
            for value in node.inputs:
                assert value is not None
                if value not in values:
                    number = constant_scalar(self._graph, self._weights, value)
                    values[value] = (reduced, tile)
                    if number is not None:
                        values[value] = (self._names.new("c"), Tile(self._dtype(value)))
                        body.append(Fill(*values[value], number))
                arguments.append(values[value])
            assert node.outputs[0] is not None
            values[node.outputs[0]] = map_statement(body, self._names, node, arguments, self._dtype(node.outputs[0]))
            last = values[node.outputs[0]][0]
        return last

    def _product(self, i: str, rows: int) -> Loop:
        names, tile = self._names, Tile(DType.F32, (i, "e"))
        zero, old, new, total, p, v, inverse, result = (
            names.new(h) for h in ("zero", "old", "new", "sum", "p", "v", "inverse", "result")
        )
        t = f"t{rows}"
        dot = Loop(
            t,
            self._sizes.of(self._n),
            1,
            (
                Load(v, Tile(DType.F32, (t, "e")), "v", self._at(self._v, t, "e")),
                Load(p, Tile(DType.F32, (i, t)), "scratch", self._row_index(i, t)),
                Dot(new, tile, p, v, old, t),
            ),
            ((old, zero),),
            (new,),
            (total,),
        )
        sums = Index(((i, 1),), self._sizes.of(self._scratch.sums), ((i, 0),))
        body: tuple[Statement, ...] = (
            Fill(zero, tile, 0.0),
            dot,
            Load(inverse, Tile(DType.F32, (i,)), "scratch", sums),
            Map(result, tile, "mul", (total, inverse)),
            Store("out", self._out_index(i), result),
        )
        return Loop("e", self._sizes.of(self._e), self._width, body)

    def _out_index(self, i: str) -> Index:
        """Row-major, or turned as the transpose behind the product would have it."""
        order = self._roles.order or tuple(range(len(self._batch) + 2))
        shape = [*self._batch, self._m, self._e]
        names = [*(f"g{axis}" for axis in range(len(self._batch))), i, "e"]
        stride: Dim = 1
        entries: list[tuple[str, Size]] = []
        for axis in reversed(order):
            entries.append((names[axis], self._sizes.of(stride)))
            stride = self._dims.mul(stride, shape[axis])
        return Index(tuple(sorted(entries, key=lambda entry: names.index(entry[0]))))
