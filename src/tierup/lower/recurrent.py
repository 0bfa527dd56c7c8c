"""A recurrent region -> one tile program: the state times the weights of all gates, with the cell in registers behind.

A step of time needs all of the state before it, so steps are *rounds* of the kernel: in each, threads divide the hidden
units, a panel of them at a time, whose columns of every gate's weights lie side by side. The state before is what the
result y holds for the step before, or the first state; it is brought into scratch for the rows at hand. The hidden
states and cells of its own units a panel keeps in the last results, h and c, from round to round.

Where a step is so little work that a round shows, and where a GRU needs its reset gates for the product of its
hidden gate, all steps are one loop in the kernel, and threads divide the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Dim, DType, Shape
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.names import Names, Sizes
from tierup.lower.recurrent_cells import Maps, gru_cell, gru_gates, lstm_cell, rnn_cell
from tierup.lower.sources import Value
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
    Position,
    Reduce,
    Size,
    Statement,
    Store,
    Tile,
    TileProgram,
)
from tierup.lower.views import View, Views
from tierup.plan.packing import grouped
from tierup.plan.recurrent import roles
from tierup.plan.regions import RECURRENCES, Region, shape_of, tensor
from tierup.plan.strides import Strides

# Gates -> vectors of hidden units in a panel, rows in a full tile: about 24 accumulators in all.
_TILES = {1: (2, 8), 3: (1, 8), 4: (1, 6)}
_LEFT_ROWS = (4, 2, 1)
_ACCUMULATORS = 24
_SPLITS = (1, 2, 4)  # of a sum, where there are registers: a single one waits for itself
# Of one row in one step: with less, too little would be left for a second thread, and a round costs 0.1 µs, which is
# 30% of a step of an LSTM of 32 units.
_ROUND_FLOPS = 30_000
_WORK_FLOPS = 60_000  # less is not worth a fork-join, as for products
_ROUND, _NEXT = Arg(0), Arg(1)
_COUNT = Tile(DType.I64)


def lower_recurrent(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a recurrent region."""
    return _Recurrence(graph, weights, region, dims, lanes).kernel()


class _Recurrence:
    def __init__(self, graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> None:
        self._graph, self._dims = graph, dims
        self._node = graph.nodes[region.nodes[0]]
        self._roles = roles(graph, self._node)
        self._time, self._batch, self._hidden = region.domain
        self._gates = RECURRENCES[self._node.op]
        self._dtype = tensor(graph, self._roles.y).dtype
        self._lanes = max(1, lanes * 4 // self._dtype.numpy.itemsize)
        vectors, self._most_rows = _TILES[self._gates]
        self._width = vectors * self._lanes
        self._twice = self._node.op == "core.gru" and not self._node.attrs["linear_before_reset"]
        self._serial = self._twice or self._step_flops() < _ROUND_FLOPS
        self._names, self._sizes = Names(), Sizes(reserved=0 if self._serial else 2)
        views = Views(graph, weights, dims)
        self._inputs: dict[str, View] = {"gates": views.of(self._roles.gates)}
        self._inputs.update((f"first{i}", views.of(value)) for i, value in enumerate(self._roles.first))
        if self._roles.extra is not None:
            self._inputs["extra"] = views.of(self._roles.extra)
        if self._roles.lengths is not None:
            self._inputs["lengths"] = views.of(self._roles.lengths)
        self._packed = self._roles.weights in graph.digests
        self._check_sizes()

    def _check_sizes(self) -> None:
        """End calls whose sizes do not agree, where types do not say that they do."""
        dims, strides, roles, columns = self._dims, Strides(self._dims), self._roles, self._columns(self._gates)
        expected: dict[ValueId | None, Shape] = {
            roles.gates: (self._time, self._batch, columns),
            roles.weights: (self._hidden, columns),
            roles.extra: (self._columns(3 if self._node.op == "core.lstm" else 1),),
            roles.lengths: (self._batch,),
            **dict.fromkeys(roles.first, (self._batch, self._hidden)),
        }
        for value, shape in expected.items():
            own = shape if value is None else shape_of(tensor(self._graph, value))
            for size, wanted in zip(own, shape, strict=True):
                if not strides.same(size, wanted):
                    self._sizes.check(dims.record("floordiv", 1, dims.emit("eq", size, wanted)))

    def _columns(self, gates: int) -> Dim:
        """So many times the hidden units."""
        return self._dims.mul(self._hidden, gates)

    def _step_flops(self) -> int:
        """Operations of one step of one row; few where the size is known only in the call."""
        return 2 * self._gates * self._hidden**2 if isinstance(self._hidden, int) else 0

    def kernel(self) -> Kernel:
        body = self._all_steps() if self._serial else self._round()
        width, rows = self._width, 1 if self._serial else self._most_rows
        steps: tuple[Dim, int] = (self._batch, 1) if self._serial else (self._hidden, width)
        grid = Grid("i1" if self._serial else "j", self._sizes.of(steps[0]), steps[1])
        flops = [2 * self._gates, self._hidden, *((self._hidden, self._time) if self._serial else (width, self._batch))]
        weights = Panels(self._roles.weights, width, grouped(self._gates)) if self._packed else self._roles.weights
        results = (self._roles.y, *self._roles.last)
        bound: tuple[ValueId | Panels, ...] = (*(view.base for view in self._inputs.values()), weights, *results)
        program = TileProgram(
            self._node.op.removeprefix("core."),
            tuple(self._buffers()),
            self._sizes.count,
            (grid,),
            tuple(body),
            ("j", "n"),
        )
        return Kernel(
            program,
            bound,
            tuple(self._sizes.dims),
            (steps,),
            self._dims.floordiv(_WORK_FLOPS, self._dims.max(self._dims.product(flops), 1)),
            self._dims.mul(self._hidden, self._dtype.numpy.itemsize * (3 if self._twice else rows)),
            None if self._serial else self._dims.max(self._time, 1),
        )

    def _buffers(self) -> list[Buffer]:
        inward = [Buffer(name, tensor(self._graph, view.base).dtype) for name, view in self._inputs.items()]
        outward = [Buffer(name, self._dtype, "out") for name in ("y", *self._last())]
        return [*inward, Buffer("weights", self._dtype), *outward, Buffer("scratch", self._dtype, "scratch")]

    def _last(self) -> list[str]:
        return [f"last{number}" for number in range(len(self._roles.last))]

    # Loops around the cell.

    def _round(self) -> list[Statement]:
        """One step of time for a panel: all rows, in full tiles and then in what is left."""
        start = Loop("b", self._sizes.of(self._batch), 1, tuple(self._start("b")))
        step: list[Statement] = []
        now = self._now(step)
        begin: Dim = 0
        for rows in (self._most_rows, *_LEFT_ROWS):
            tiles = self._dims.floordiv(self._dims.sub(self._batch, begin), rows)
            end = self._batch if rows == 1 else self._dims.add(begin, self._dims.mul(tiles, rows))
            if begin != end:
                i, body = f"i{rows}", list[Statement]()
                running = self._bring_state(body, i, now)
                self._cell(body, i, rows, running)
                step.append(Loop(i, self._sizes.of(end), rows, tuple(body), begin=self._sizes.of(begin), exact=True))
            begin = end
        time = Loop("t", _NEXT, 1, tuple(step), begin=_ROUND)
        first = Loop("z", 1, 1, (start,), begin=_ROUND)  # in round 0 alone
        if isinstance(self._time, int) and self._time > 0:
            return [first, time]
        return [first, Loop("any", self._sizes.of(self._dims.min(self._time, 1)), 1, (time,))]

    def _all_steps(self) -> list[Statement]:
        """Every step of time for one row."""
        units = self._sizes.of(self._hidden)
        step: list[Statement] = []
        running = self._bring_state(step, "i1", self._now(step))
        passes = (self._reset, self._cell) if self._twice else (self._cell,)
        for part in passes:
            body: list[Statement] = []
            part(body, "i1", 1, running)
            step.append(Loop("j", units, self._width, tuple(body)))
        start = Loop("j", units, self._width, tuple(self._start("i1")))
        return [start, Loop("t", self._sizes.of(self._time), 1, tuple(step))]

    def _start(self, i: str) -> list[Statement]:
        """The first states, where the last ones will be."""
        body: list[Statement] = []
        for number, name in enumerate(self._last()):
            value, _ = self._load(body, f"first{number}", (i, "j"))
            body.append(Store(name, self._state_index(i, "j"), value))
        return body

    def _now(self, body: list[Statement]) -> Value:
        """How many steps were taken before this one."""
        place, now = self._names.new("place"), self._names.new("now")
        body += [Position(place, Tile(DType.I64, ("t",)), "t"), Reduce(now, _COUNT, "sum", place, "t")]
        return now, _COUNT

    def _bring_state(self, body: list[Statement], i: str, now: Value) -> Value | None:
        """The state before this step in scratch, for the rows at hand; returns which rows have this step.

        It is what the step before wrote to y, or the first state: with lengths, time begins at each row's own end where
        it runs backwards. Where there was no step before, some step is read, and not used.
        """
        m, last, reverse = Maps(body, self._names, DType.I64, (i, "n")), self._dims.sub(self._time, 1), self._reverse
        zero, one = (self._count(body, number) for number in (0, 1))
        before, first, running = m("max", m("sub", now, one), zero), m("le", now, zero), None
        if reverse:
            before = m("sub", self._count(body, last), before)
        if self._roles.lengths is not None:
            length, _ = self._load(body, "lengths", (i,), DType.I64)
            lengths = length, Tile(DType.I64, (i,))
            time = m("sub", self._count(body, last), now) if reverse else now
            running = m("lt", time, lengths)
            if reverse:
                first = m("or", first, m("le", lengths, m("add", time, one)))
        inner: list[Statement] = []
        tile = Tile(self._dtype, (i, "n"))
        start, state = self._load(inner, "first0", (i, "n")), self._names.new("h")
        units, size = self._sizes.of(self._hidden), self._sizes.of(self._y_view().strides[0])
        inner.append(Load(state, tile, "y", Index(((i, units), ("n", 1))), at=((before[0], size),)))
        chosen, _ = Maps(inner, self._names, self._dtype, (i, "n"))("select", first, start, (state, tile))
        inner.append(Store("scratch", self._scratch_index(i, "n"), chosen))
        body.append(Loop("n", units, self._lanes, tuple(inner)))
        return running

    @property
    def _reverse(self) -> bool:
        return bool(self._node.attrs["reverse"])

    def _count(self, body: list[Statement], number: Dim) -> Value:
        name = self._names.new("c")
        body.append(Fill(name, _COUNT, self._sizes.of(number)))
        return name, _COUNT

    # The cell of a few rows and one panel.

    def _cell(self, body: list[Statement], i: str, rows: int, running: Value | None) -> None:
        """Gates, new states, and where they are written."""
        m = Maps(body, self._names, self._dtype, (i, "j"))
        new = self._new_states(m, i, rows)
        result = new[0]
        if running is not None:
            result = m("select", running, new[0], m.number(0))
            old = [self._own(body, i, name) for name in self._last()]
            new = [m("select", running, after, before) for after, before in zip(new, old, strict=True)]
        body.append(Store("y", self._time_index(self._y_view(), i, 0), result[0]))
        for name, state in zip(self._last(), new, strict=True):
            body.append(Store(name, self._state_index(i, "j"), state[0]))

    def _new_states(self, m: Maps, i: str, rows: int) -> list[Value]:
        """The states after this step, whether or not a row has it."""
        body, node = m.body, self._node
        if node.op == "core.rnn":
            return [rnn_cell(m, node, self._summed(m, i, rows, range(1)))]
        if node.op == "core.lstm":
            gates = self._summed(m, i, rows, range(4))
            peepholes = None if self._roles.extra is None else [self._extra(body, part) for part in range(3)]
            return [*lstm_cell(m, node, gates, peepholes, self._own(body, i, "last1"))]
        if self._twice:
            (total,) = self._sums(body, i, rows, range(2, 3), 1)
            update = self._names.new("z"), Tile(self._dtype, (i, "j"))
            body.append(Load(*update, "scratch", self._scratch_index(i, "j", 2)))
            hidden = m("add", total, self._extra(body, 0))
        else:
            *totals, total = self._sums(body, i, rows, range(3))
            given = [m("add", self._input(body, i, gate), total) for gate, total in enumerate(totals)]
            update, reset = gru_gates(m, node, *given)
            hidden = m("mul", reset, m("add", total, self._extra(body, 0)))
        hidden = m("add", self._input(body, i, 2), hidden)
        return [gru_cell(m, node, update, hidden, self._own(body, i, "last0"))]

    def _reset(self, body: list[Statement], i: str, rows: int, running: Value | None) -> None:
        """The first half of a GRU that resets its state before the product: update gates, and what is left of h."""
        m = Maps(body, self._names, self._dtype, (i, "j"))
        update, reset = gru_gates(m, self._node, *self._summed(m, i, rows, range(2)))
        kept = m("mul", reset, self._own(body, i, "last0"))
        body.append(Store("scratch", self._scratch_index(i, "j", 1), kept[0]))
        body.append(Store("scratch", self._scratch_index(i, "j", 2), update[0]))

    def _summed(self, m: Maps, i: str, rows: int, gates: Sequence[int]) -> list[Value]:
        """What goes into the functions of these gates: inputs and products."""
        totals = self._sums(m.body, i, rows, gates)
        return [m("add", self._input(m.body, i, g), total) for g, total in zip(gates, totals, strict=True)]

    def _sums(self, body: list[Statement], i: str, rows: int, gates: Sequence[int], part: int = 0) -> list[Value]:
        """The products of what lies in a part of scratch with the weights of some gates."""
        k, split = f"k{rows}", self._split(rows)
        wide, tile = Tile(self._dtype, (i, k, "j")), Tile(self._dtype, (i, "j"))
        summed = tile if split == 1 else wide
        h, zero = self._names.new("h"), self._names.new("zero")
        inner: list[Statement] = [Load(h, Tile(self._dtype, (i, k)), "scratch", self._scratch_index(i, k, part))]
        old, new, sums = ([self._names.new(hint) for _ in gates] for hint in ("old", "new", "sums"))
        for place, gate in enumerate(gates):
            w = self._names.new("w")
            inner.append(Load(w, Tile(self._dtype, (k, "j")), "weights", self._weight_index(k, gate)))
            add: Statement = Map(new[place], summed, "fma", (h, w, old[place]))
            inner.append(Dot(new[place], summed, h, w, old[place], k) if split == 1 else add)
        carried = tuple((name, zero) for name in old)
        loop = Loop(k, self._sizes.of(self._hidden), split, tuple(inner), carried, tuple(new), tuple(sums))
        body += [Fill(zero, summed, 0.0), loop]
        if split == 1:
            return [(name, tile) for name in sums]
        totals = [self._names.new("total") for _ in gates]
        body += [Reduce(total, tile, "sum", name, k) for total, name in zip(totals, sums, strict=True)]
        return [(total, tile) for total in totals]

    def _split(self, rows: int) -> int:
        registers = rows * self._gates * self._width // self._lanes
        return max(split for split in _SPLITS if split * registers <= _ACCUMULATORS or split == 1)

    # Where things lie.

    def _load(self, body: list[Statement], name: str, axes: tuple[str, ...], dtype: DType | None = None) -> Value:
        """Elements of an input whose axes these are."""
        view = self._inputs[name]
        index = Index(
            tuple((axis, self._sizes.of(stride)) for axis, stride in zip(axes, view.strides, strict=True)),
            self._sizes.of(view.offset),
        )
        value, tile = self._names.new("x"), Tile(dtype or self._dtype, axes)
        body.append(Load(value, tile, name, index))
        return value, tile

    def _extra(self, body: list[Statement], part: int) -> Value:
        """A part, one element for each hidden unit, of what the cell needs beside the gates."""
        view = self._inputs["extra"]
        (stride,) = view.strides
        offset = self._dims.add(view.offset, self._dims.product([self._hidden, part, stride]))
        value, tile = self._names.new("e"), Tile(self._dtype, ("j",))
        body.append(Load(value, tile, "extra", Index((("j", self._sizes.of(stride)),), self._sizes.of(offset))))
        return value, tile

    def _input(self, body: list[Statement], i: str, gate: int) -> Value:
        """What the inputs add to a gate at this step."""
        value, tile = self._names.new("x"), Tile(self._dtype, (i, "j"))
        body.append(Load(value, tile, "gates", self._time_index(self._inputs["gates"], i, gate)))
        return value, tile

    def _own(self, body: list[Statement], i: str, name: str) -> Value:
        """A state of these hidden units, as the step before left it."""
        value, tile = self._names.new("s"), Tile(self._dtype, (i, "j"))
        body.append(Load(value, tile, name, self._state_index(i, "j")))
        return value, tile

    def _y_view(self) -> View:
        shape = (self._time, self._batch, self._hidden)
        return View(self._roles.y, shape, Strides(self._dims).row_major(shape))

    def _time_index(self, view: View, i: str, gate: int) -> Index:
        """Elements of this step; the first step is the last in memory where time runs backwards."""
        dims, (step, row, column) = self._dims, view.strides
        offset = dims.add(view.offset, dims.product([self._hidden, gate, column]))
        if self._reverse:
            offset = dims.add(offset, dims.mul(dims.sub(self._time, 1), step))
            step = dims.mul(step, -1)
        axes: tuple[tuple[str, Size], ...] = (
            ("t", self._sizes.of(step)),
            (i, self._sizes.of(row)),
            ("j", self._sizes.of(column)),
        )
        return Index(axes, self._sizes.of(offset))

    def _state_index(self, i: str, unit: str) -> Index:
        return Index(((i, self._sizes.of(self._hidden)), (unit, 1)))

    def _scratch_index(self, i: str, unit: str, part: int = 0) -> Index:
        """Rows at hand: the state before, and of a row that is reset before the product, that state and the update."""
        units = self._sizes.of(self._hidden)
        return Index(((i, units), (unit, 1)), self._sizes.of(self._columns(part)), ((i, 0),))

    def _weight_index(self, k: str, gate: int) -> Index:
        gates = self._gates
        if self._packed:
            panel = self._sizes.of(self._columns(gates))
            return Index((("j", 1), (k, gates * self._width)), gate * self._width, (("j", panel),))
        row, offset = (self._sizes.of(self._columns(count)) for count in (gates, gate))
        return Index((("j", 1), (k, row)), offset)
