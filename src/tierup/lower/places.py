"""A places region -> one tile program: where the k best elements of a row are, best first, found one after another.

Each round goes over the row and takes the best of what comes behind the last one found: better ones first, of equals
the first, NaN as the largest. Rows are divided among threads.
"""

from __future__ import annotations

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import DType, TensorType
from tierup.lower.axes import LANE
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.reduce import identity
from tierup.lower.sources import stored_dtype, tile_dtype
from tierup.lower.tile import (
    Buffer,
    Check,
    Convert,
    Fill,
    Grid,
    Index,
    Load,
    Loop,
    Map,
    Position,
    Reduce,
    Statement,
    Store,
    Tile,
    TileProgram,
)
from tierup.plan.regions import Region
from tierup.plan.strides import Strides

_GRAIN_ELEMS = 8192  # elements looked at that are worth a thread's while
_VECTORS = 2  # of a step
_NOWHERE = 2**31 - 1


def lower_places(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a places region: one node over [rows, axis]."""
    node = graph.nodes[region.nodes[0]]
    (source,), (result,) = node.inputs, node.outputs
    assert source is not None
    assert result is not None
    type = graph.type(source)
    assert isinstance(type, TensorType)
    sizes, strides, count = Sizes(), Strides(dims), int(node.attrs["k"])
    rows, extent = strides.times(*region.domain[:-1]), region.domain[-1]
    body = _Body(tile_dtype(type.dtype), bool(node.attrs["largest"]))
    length = sizes.of(extent)
    row = Index((("g0", length), (LANE, 1)))
    search = Loop(
        LANE,
        length,
        _VECTORS * lanes,
        tuple(body.look(row)),
        (("best", "none"), ("spot", "nowhere")),
        ("new_best", "new_spot"),
        ("bests", "spots"),
    )
    found: list[Statement] = [
        Check("place", length),
        Convert("result_place", Tile(DType.I64), "place"),
        Store("result", Index((("g0", count), ("r0", 1))), "result_place"),
    ]
    rounds = Loop(
        "r0",
        count,
        1,
        (*body.begin(), search, *body.end(), *found),
        (("last", "least"), ("last_place", "no_place")),
        ("top", "place"),
        ("end", "end_place"),
    )
    grid = Grid("g0", sizes.of(rows), 1)
    program = TileProgram(
        "places",
        (Buffer("source", stored_dtype(type.dtype)), Buffer("result", DType.I64, "out")),
        len(sizes.dims),
        (grid,),
        (
            Fill("least", Tile(body.dtype), identity(body.op, body.dtype)),
            Fill("no_place", Tile(DType.I32), -1),
            rounds,
        ),
        (LANE,),
    )
    grain = dims.floordiv(_GRAIN_ELEMS, dims.max(strides.times(extent, count), 1))
    return Kernel(program, (source, result), tuple(sizes.dims), ((rows, 1),), grain)


class _Body:
    """The statements of one round. Names that loops carry are fixed; the others are new."""

    def __init__(self, dtype: DType, largest: bool) -> None:
        self.dtype, self._largest = dtype, largest
        self.op = "max" if largest else "min"
        self._names, self._statements = Names(), list[Statement]()
        self._wide, self._where = Tile(dtype, (LANE,)), Tile(DType.I32, (LANE,))

    def _taken(self) -> list[Statement]:
        taken, self._statements = self._statements, []
        return taken

    def _map(self, op: str, *arguments: str, tile: Tile | None = None, name: str = "") -> str:
        """Bools along the lanes, unless it says otherwise."""
        name = name or self._names.new("p")
        self._statements.append(Map(name, tile or Tile(DType.BOOL, (LANE,)), op, arguments))
        return name

    def begin(self) -> list[Statement]:
        """Nothing is found yet in this round; `any` holds in the first, in which everything counts."""
        nothing = identity(self.op, self.dtype)
        self._statements += [Fill("none", self._wide, nothing), Fill("nowhere", self._where, -1)]
        self._statements += [Fill("zero", Tile(DType.I32), 0), Fill("zeros", self._where, 0)]
        self._map("lt", "last_place", "zero", tile=Tile(DType.BOOL), name="any")
        return self._taken()

    def look(self, row: Index) -> list[Statement]:
        """One step along the row."""
        self._statements += [Load("x", self._wide, "source", row), Position("here", self._where, LANE)]
        allowed = self._map("or", self._behind_last(), "any")
        first = self._map("lt", "spot", "zeros")
        taken = self._map("and", allowed, self._map("or", first, self._better()))
        self._map("select", taken, "x", "best", tile=self._wide, name="new_best")
        self._map("select", taken, "here", "spot", tile=self._where, name="new_spot")
        return self._taken()

    def _behind_last(self) -> str:
        """Worse than the last one found, or as good and further on."""
        sides = ("x", "last") if self._largest else ("last", "x")
        further = self._map("lt", "last_place", "here")
        behind = self._map("or", self._map("lt", *sides), self._map("and", self._map("eq", "x", "last"), further))
        if not self.dtype.is_float:
            return behind
        number, last_number = self._map("eq", "x", "x"), self._map("eq", "last", "last", tile=Tile(DType.BOOL))
        if self._largest:  # NaN comes first
            after_nan = self._map("and", self._map("or", number, further), self._not(last_number, ()))
        else:  # NaN comes last
            after_nan = self._map("and", self._map("or", further, last_number), self._not(number, (LANE,)))
        return self._map("or", behind, after_nan)

    def _not(self, name: str, axes: tuple[str, ...]) -> str:
        return self._map("not", name, tile=Tile(DType.BOOL, axes))

    def _better(self) -> str:
        """Better than the best of its lane so far, which came before it."""
        if not self.dtype.is_float:
            return self._map("lt", *(("best", "x") if self._largest else ("x", "best")))
        number = self._map("eq", "best", "best")
        if self._largest:
            return self._map("and", number, self._not(self._map("le", "x", "best"), (LANE,)))
        beats_nan = self._map("and", self._not(number, (LANE,)), self._map("eq", "x", "x"))
        return self._map("or", self._map("lt", "x", "best"), beats_nan)

    def end(self) -> list[Statement]:
        """Of the lanes' best, the first of the best: `top` at `place`."""
        valid = self._map("le", "zeros", "spots")
        self._statements.append(Fill("far", self._where, _NOWHERE))
        if not self.dtype.is_float or self._largest:
            self._statements.append(Reduce("top", Tile(self.dtype), self.op, "bests", LANE))
            wins = self._map("eq", "bests", "top")
            if self.dtype.is_float:
                wins = self._map("or", wins, self._not(self._map("eq", "bests", "bests"), (LANE,)))
            self._first(self._map("and", valid, wins), "place")
            return self._taken()
        number = self._map("eq", "bests", "bests")
        numbers = self._map("select", number, "bests", "none", tile=self._wide)
        self._statements.append(Reduce("least_number", Tile(self.dtype), "min", numbers, LANE))
        self._first(self._map("and", valid, self._map("eq", "bests", "least_number")), "number_place")
        self._first(self._map("and", valid, self._not(number, (LANE,))), "nan_place")
        self._statements += [
            Fill("far_off", Tile(DType.I32), _NOWHERE),
            Fill("nan", Tile(self.dtype), float("nan")),
        ]
        some = self._map("lt", "number_place", "far_off", tile=Tile(DType.BOOL))
        self._map("select", some, "number_place", "nan_place", tile=Tile(DType.I32), name="place")
        self._map("select", some, "least_number", "nan", tile=Tile(self.dtype), name="top")
        return self._taken()

    def _first(self, wins: str, name: str) -> None:
        chosen = self._map("select", wins, "spots", "far", tile=self._where)
        self._statements.append(Reduce(name, Tile(DType.I32), "min", chosen, LANE))
