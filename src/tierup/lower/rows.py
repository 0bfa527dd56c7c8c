"""A rows region -> one tile program: for each row, loops over its columns with everything in between in registers.

Values are *full* (one element a column) or *row* (one element a row). A reduction ends a loop; what depends on its
result comes in a later loop over the same row, which is in cache by then. A full value that a later loop needs again is
read back where it was stored, kept in scratch where it is dear to compute, and computed again otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, DType, Shape, TensorType
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import (
    Buffer,
    Convert,
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
from tierup.plan.regions import REDUCTIONS, Region, present_axes

_IDENTITY = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
_INTEGER_ENDS = {DType.I32: 2**31, DType.I64: 2**63}
# Cycles of a map on one vector, roughly: what counts is dear or not.
_DEAR = {
    "exp": 10,
    "expm1": 14,
    "log": 12,
    "log1p": 14,
    "tanh": 16,
    "erf": 14,
    "sin": 16,
    "cos": 16,
    "tan": 24,
    "pow": 30,
}
_KEEP_COST = 8  # a vector written to scratch and read back costs about this much
_VECTORS = 2  # a step is two vectors: latency is hidden, and long bodies do not spill
_GRAIN_ELEMS = 8192  # elements that are worth a thread's while


def map_statement(
    body: list[Statement], names: Names, node: Node, arguments: list[tuple[str, Tile]], dtype: DType
) -> tuple[str, Tile]:
    """Append the map of a core node; returns its name and type."""
    name, op = names.new(), node.op.removeprefix("core.")
    axes: dict[str, None] = {}
    for _, tile in sorted(arguments, key=lambda argument: -len(argument[1].axes)):
        axes.update(dict.fromkeys(tile.axes))
    type = Tile(dtype, tuple(axes))
    if op == "cast":
        body.append(Convert(name, type, arguments[0][0]))
    else:
        body.append(Map(name, type, op, tuple(argument for argument, _ in arguments)))
    return name, type


def constant_scalar(graph: Graph, weights: Weights, value: ValueId) -> float | None:
    """The number behind a constant of one element."""
    digest = dict(graph.weights).get(value)
    if digest is None or weights[digest].size != 1:
        return None
    item: float = weights[digest].reshape(-1)[0].item()
    return item


def lower_rows(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a rows region."""
    return _Rows(graph, weights, region, dims, lanes).kernel()


@dataclass(frozen=True)
class _Axes:
    """The domain folded to as few axes as its operands allow: grid axes, then the columns."""

    groups: tuple[tuple[int, ...], ...]
    extents: tuple[Dim, ...]
    names: tuple[str, ...]


class _Rows:
    def __init__(self, graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> None:
        self._graph, self._weights, self._region, self._dims = graph, weights, region, dims
        self._nodes = [graph.nodes[index] for index in region.nodes]
        self._made = {value: node for node in self._nodes for value in node.outputs if value is not None}
        self._inputs = self._outside()
        self._outputs = self._leaving()
        self._names, self._sizes = Names(), Sizes()
        self._axes = self._fold()
        self._step = self._choose_step(lanes)
        self._phase = self._phases()
        self._kept = self._keep()
        self._buffer: dict[ValueId, str] = {}
        self._row_values: dict[ValueId, tuple[str, Tile]] = {}

    def _outside(self) -> list[ValueId]:
        found: dict[ValueId, None] = {}
        for node in self._nodes:
            for value in node.inputs:
                if value is not None and value not in self._made:
                    found.setdefault(value)
        return list(found)

    def _leaving(self) -> list[ValueId]:
        inside = set(self._region.nodes)
        used = {
            value
            for i, node in enumerate(self._graph.nodes)
            if i not in inside
            for value in node.inputs
            if value is not None
        }
        return [value for value in self._made if value in used or value in self._graph.outputs]

    def _type(self, value: ValueId) -> TensorType:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type

    def _shape(self, value: ValueId) -> Shape:
        shape = self._type(value).shape
        assert shape is not None
        node = self._made.get(value)
        if node is not None and node.op in REDUCTIONS and not node.attrs["keepdims"]:
            return (*shape, 1)
        return shape

    def _present(self, value: ValueId) -> tuple[bool, ...]:
        """For each axis of the domain, whether this value has it."""
        present = present_axes(self._shape(value), self._region.domain)
        assert present is not None
        return present

    def _is_row(self, value: ValueId) -> bool:
        """One element a row, or fewer."""
        return not self._present(value)[-1] and (value in self._made or self._region.domain[-1] != 1)

    def _fold(self) -> _Axes:
        """Neighbouring axes that every operand has, or lacks, together are one axis."""
        domain = self._region.domain
        operands = [self._present(value) for value in (*self._inputs, *self._made)]
        reduces = any(node.op in REDUCTIONS for node in self._nodes)
        if reduces:
            operands.append((*(True for _ in domain[:-1]), False))  # keeps the columns apart
        groups: list[list[int]] = [[]] if reduces and len(domain) == 1 else []  # a single row is a row, too
        for axis in range(len(domain)):
            column = [present[axis] for present in operands]
            if groups and groups[-1] and column == [present[axis - 1] for present in operands]:
                groups[-1].append(axis)
            else:
                groups.append([axis])
        extents = tuple(self._dims.product([domain[axis] for axis in group]) for group in groups)
        names = (*(f"g{position}" for position in range(len(groups) - 1)), "j")
        return _Axes(tuple(map(tuple, groups)), extents, names)

    def _choose_step(self, lanes: int) -> int:
        columns = self._axes.extents[-1]
        return lanes if isinstance(columns, int) and columns <= lanes else _VECTORS * lanes

    def _phases(self) -> dict[ValueId, int]:
        """In which loop over the row a value exists; a reduction's result exists from the next one on."""
        phase: dict[ValueId, int] = dict.fromkeys(self._inputs, 0)
        for node in self._nodes:
            latest = max((phase[value] for value in node.inputs if value is not None), default=0)
            for value in node.outputs:
                if value is not None:
                    phase[value] = latest + (1 if node.op in REDUCTIONS else 0)
        return phase

    def _cost(self, value: ValueId, seen: set[ValueId]) -> int:
        """What computing a full value again would cost in its own loop."""
        node = self._made.get(value)
        if node is None or value in seen or self._is_row(value):
            return 0
        seen.add(value)
        own = _DEAR.get(node.op.removeprefix("core."), 1)
        return own + sum(self._cost(v, seen) for v in node.inputs if v is not None)

    def _keep(self) -> list[ValueId]:
        """Full values that later loops read from scratch instead of computing them again."""
        kept = []
        for value, node in self._made.items():
            if self._is_row(value) or node.op in REDUCTIONS or value in self._outputs:
                continue
            later = any(self._loop_of(user) > self._phase[value] for user in self._nodes if value in user.inputs)
            if later and self._cost(value, set()) > _KEEP_COST and self._type(value).dtype is DType.F32:
                kept.append(value)
        return kept

    def _loop_of(self, node: Node) -> int:
        """The loop in which a node reads its full inputs."""
        return max(self._phase[value] for value in node.inputs if value is not None)

    def kernel(self) -> Kernel:
        body: list[Statement] = []
        last = max(self._phase[value] for value in self._made)
        for value in (*self._inputs, *self._outputs):
            if constant_scalar(self._graph, self._weights, value) is None:
                self._buffer.setdefault(value, f"b{len(self._buffer)}")
        for phase in range(last + 1):
            self._row_level(body, phase)
            self._column_loop(body, phase)
        self._row_level(body, last + 1)
        self._store_rows(body)
        return self._finish(body)

    def _finish(self, body: list[Statement]) -> Kernel:
        modes = dict.fromkeys(self._outputs, "out")
        buffers = [Buffer(name, self._type(v).dtype, modes.get(v, "in")) for v, name in self._buffer.items()]
        if self._kept:
            buffers.append(Buffer("scratch", DType.F32, "scratch"))
        extents = self._axes.extents
        columns_in_grid = len(extents) == 1
        grid: tuple[Grid, ...]
        if columns_in_grid:
            grid = (Grid("j", self._sizes.of(extents[0]), self._step),)
            steps: tuple[tuple[Dim, int], ...] = ((extents[0], self._step),)
            grain: Dim = _GRAIN_ELEMS // self._step
        else:
            grid = tuple(
                Grid(name, self._sizes.of(extent), 1)
                for name, extent in zip(self._axes.names[:-1], extents, strict=False)
            )
            steps = tuple((extent, 1) for extent in extents[:-1])
            grain = self._dims.floordiv(_GRAIN_ELEMS, self._dims.max(extents[-1], 1))
        program = TileProgram("rows", tuple(buffers), len(self._sizes.dims), grid, tuple(body), ("j",))
        scratch = self._dims.mul(extents[-1], 4 * len(self._kept)) if self._kept else 0
        return Kernel(program, tuple(self._buffer), tuple(self._sizes.dims), steps, grain, scratch)

    def _index(self, value: ValueId) -> Index:
        """Row-major over the folded axes that a value has."""
        present = self._present(value)
        entries: list[tuple[str, Size]] = []
        stride: Dim = 1
        for name, group, extent in reversed(
            list(zip(self._axes.names, self._axes.groups, self._axes.extents, strict=True))
        ):
            if group and present[group[0]]:
                entries.append((name, self._sizes.of(stride)))
                stride = self._dims.mul(stride, extent)
        return Index(tuple(reversed(entries)))

    def _row_level(self, body: list[Statement], phase: int) -> None:
        """Values of one element a row that exist before the loop of this phase."""
        for node in self._nodes:
            value = node.outputs[0]
            if value is None or node.op in REDUCTIONS or not self._is_row(value) or value in self._row_values:
                continue
            if self._phase[value] <= phase:
                arguments = [self._row_value(body, v) for v in node.inputs if v is not None]
                dtype = self._type(value).dtype
                self._row_values[value] = map_statement(body, self._names, node, arguments, dtype)

    def _row_value(self, body: list[Statement], value: ValueId) -> tuple[str, Tile]:
        if value not in self._row_values:
            self._row_values[value] = self._read(body, value, Tile(self._type(value).dtype))
        return self._row_values[value]

    def _read(self, body: list[Statement], value: ValueId, tile: Tile) -> tuple[str, Tile]:
        """An operand from outside, or one that was stored before."""
        name = self._names.new("x")
        number = constant_scalar(self._graph, self._weights, value)
        if number is not None:
            body.append(Fill(name, Tile(tile.dtype), number))
            return name, Tile(tile.dtype)
        body.append(Load(name, tile, self._buffer[value], self._index(value)))
        return name, tile

    def _column_loop(self, body: list[Statement], phase: int) -> None:
        """One pass over the row: reductions that end here, full values that leave or are kept."""
        reductions = [n for n in self._nodes if n.op in REDUCTIONS and self._loop_of(n) == phase]
        leaving = [v for v in self._outputs if not self._is_row(v) and self._phase[v] == phase]
        kept = [v for v in self._kept if self._phase[v] == phase]
        if not (reductions or leaving or kept):
            return
        inner: list[Statement] = []
        values: dict[ValueId, tuple[str, Tile]] = {}
        carried, yields, totals = [], [], []
        for node in reductions:
            source = node.inputs[0]
            assert source is not None
            old, start, total = self._names.new("old"), self._names.new("start"), self._names.new("total")
            name, tile = self._full(body, inner, values, source, phase)
            op = REDUCTIONS[node.op]
            accumulator = Tile(tile.dtype, ("j",))
            body.append(Fill(start, accumulator, self._identity(op, tile.dtype)))
            new = self._names.new("new")
            inner.append(Map(new, accumulator, _COMBINE[op], (old, name)))
            carried.append((old, start))
            yields.append(new)
            totals.append(total)
        for value in (*leaving, *kept):
            name, _ = self._full(body, inner, values, value, phase)
            inner.append(self._store(value, name))
        if len(self._axes.extents) == 1:
            body.extend(inner)
            return
        columns = self._sizes.of(self._axes.extents[-1])
        body.append(Loop("j", columns, self._step, tuple(inner), tuple(carried), tuple(yields), tuple(totals)))
        for node, total in zip(reductions, totals, strict=True):
            result = node.outputs[0]
            assert result is not None
            name, dtype = self._names.new("r"), self._type(result).dtype
            body.append(Reduce(name, Tile(dtype), REDUCTIONS[node.op], total, "j"))
            self._row_values[result] = (name, Tile(dtype))

    def _identity(self, op: str, dtype: DType) -> float:
        if dtype.is_float or op in ("sum", "prod"):
            return _IDENTITY[op]
        end = _INTEGER_ENDS[dtype]
        return -end if op == "max" else end - 1

    def _store(self, value: ValueId, name: str) -> Store:
        if value in self._buffer:
            return Store(self._buffer[value], self._index(value), name)
        return Store("scratch", self._scratch_index(value), name)

    def _scratch_index(self, value: ValueId) -> Index:
        position = self._kept.index(value)
        return Index((("j", 1),), self._sizes.of(self._dims.mul(self._axes.extents[-1], position)))

    def _full(
        self,
        body: list[Statement],
        inner: list[Statement],
        values: dict[ValueId, tuple[str, Tile]],
        value: ValueId,
        phase: int,
    ) -> tuple[str, Tile]:
        """A value inside the loop of `phase`: read, kept, or computed from what it needs."""
        if value in values:
            return values[value]
        tile = Tile(self._type(value).dtype, ("j",))
        node = self._made.get(value)
        if self._is_row(value):
            values[value] = self._row_value(body, value)
        elif node is None or (value in self._outputs and self._phase[value] < phase):
            values[value] = self._read(inner, value, tile)
        elif value in self._kept and self._phase[value] < phase:
            name = self._names.new("k")
            inner.append(Load(name, tile, "scratch", self._scratch_index(value)))
            values[value] = (name, tile)
        else:
            arguments = [self._full(body, inner, values, v, phase) for v in node.inputs if v is not None]
            values[value] = map_statement(inner, self._names, node, arguments, self._type(value).dtype)
        return values[value]

    def _store_rows(self, body: list[Statement]) -> None:
        for value in self._outputs:
            if self._is_row(value):
                body.append(Store(self._buffer[value], self._index(value), self._row_values[value][0]))
