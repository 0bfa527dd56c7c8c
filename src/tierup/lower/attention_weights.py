"""The softmax of attention: the scores of some rows, which lie in scratch, become their weights there."""

from __future__ import annotations

from msgspec import Struct

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.lower.names import Names, Sizes
from tierup.lower.rows import map_statement
from tierup.lower.sources import constant_scalar
from tierup.lower.tile import Fill, Index, Load, Loop, Map, Reduce, Statement, Store, Tile
from tierup.plan.attention import Roles

# Rows whose weights are made together: the largest score of one row is waited for while others are looked at. 28 cycles
# a vector with one row of 128, 19 with four, 18 with eight.
_WEIGHED_ROWS = 4


class Scratch(Struct, frozen=True):
    """Where things lie in a thread's scratch, in floats: panels of k, pairs of v's rows, scores of the rows at hand,
    1 / their sums, and their weights as halves.

    `wide` is how many keys lie in wide panels.
    """

    wide: Dim
    pairs: Dim
    scores: Dim
    row: Dim
    sums: Dim
    halves: Dim
    total: Dim


class Weighing:
    """Writes what turns scores into weights. `keys` are how many there are, and the lanes of a vector; `parts` name
    values, sizes and dims of the program; `words`: weights are read in pairs."""

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        roles: Roles,
        scratch: Scratch,
        keys: tuple[Dim, int],
        parts: tuple[Names, Sizes, DimBuilder],
        words: bool,
    ) -> None:
        self._graph, self._weights, self._roles, self._scratch, self._words = graph, weights, roles, scratch, words
        self._n, self._lanes = keys
        self._names, self._sizes, self._dims = parts

    def _dtype(self, value: ValueId) -> DType:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type.dtype

    def loop(self, rows: int) -> Loop:
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
        finished = self._roles.rounded or bool(self._roles.after)
        rest: list[Statement] = []
        left = one if finished else self._of_any(rest, single, inverse, one)
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
            *(self._finish(row, vector, inverse) if finished else rest),
            Store("scratch", Index(((r, 1),), self._sizes.of(self._scratch.sums)), left),
        )
        return Loop(r, rows, min(rows, _WEIGHED_ROWS), body)

    def _of_any(self, body: list[Statement], tile: Tile, inverse: str, one: str) -> str:
        """What the product is still to be multiplied with: of no keys it is 0, and one over no sum is infinite."""
        if isinstance(self._n, int) and self._n:
            return inverse
        count, nought, some, left = (self._names.new(hint) for hint in ("count", "nought", "some", "left"))
        body += [
            Fill(count, Tile(DType.I64), self._sizes.of(self._n)),
            Fill(nought, Tile(DType.I64), 0),
            Map(some, Tile(DType.BOOL), "lt", (nought, count)),
            Map(left, tile, "select", (some, inverse, one)),
        ]
        return left

    def _finish(self, row: Index, vector: Tile, inverse: str) -> tuple[Statement, ...]:
        """Maps on the weights themselves, and their rounding, need them divided before the product, in a pass of their
        own."""
        raw, weight = self._names.new("w"), self._names.new("w")
        body: list[Statement] = [
            Load(raw, vector, "scratch", row),
            Map(weight, vector, "mul", (raw, inverse)),
        ]
        result = self._row_maps(body, self._roles.after, weight, vector)
        if not self._roles.rounded:
            body.append(Store("scratch", row, result))
            return (Loop("w", self._sizes.of(self._n), self._lanes, tuple(body)),)
        r = vector.axes[0]
        body.append(Store("halves", self.halves(r, "w"), result))
        loops = [Loop("w", self._sizes.of(self._n), self._lanes, tuple(body))]
        if self._words and not self._dims.is_multiple(self._n, 2):
            nought, z, even = self._names.new("zero"), "z" + r, self._dims.mul(self._dims.ceildiv(self._n, 2), 2)
            store = (Fill(nought, Tile(DType.F32, (r,)), 0.0), Store("halves", self.halves(r, z), nought))
            loops.append(Loop(z, self._sizes.of(even), 1, store, begin=self._sizes.of(self._n)))
        return tuple(loops)

    def halves(self, r: str, column: str) -> Index:
        """Rounded weights of the rows at hand."""
        row, offset = self._scratch.row, self._dims.mul(self._scratch.halves, 2)
        return Index(((r, self._sizes.of(row)), (column, 1)), self._sizes.of(offset))

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
