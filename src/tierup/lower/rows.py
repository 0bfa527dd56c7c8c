"""A rows region -> one tile program: loops over what is reduced, with everything in between in registers.

Values *vary* inside the loops or are the same in all of their rounds. A reduction ends a pass of the loops; what
depends on its result comes in a later pass over the same elements, which are in cache by then. A varying value that a
later pass needs again is read back where it was stored, kept in scratch where it is dear to compute, and computed again
otherwise.
"""

from __future__ import annotations

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, DType
from tierup.lower.axes import Forms, nest
from tierup.lower.kernel import Kernel
from tierup.lower.names import Names, Sizes
from tierup.lower.reduce import Folds, looped, spread
from tierup.lower.sources import Block, Sources, Value
from tierup.lower.tile import Buffer, Convert, Index, Load, Map, Statement, Store, Tile, TileProgram
from tierup.plan.regions import Region, Step
from tierup.plan.sources import Linear, Read, Source, linears, reads
from tierup.plan.spaces import ARG_REDUCTIONS, POOLS, REDUCTIONS, is_movement
from tierup.plan.strides import Strides

# Cycles of a map on one vector, roughly: what counts is dear or not.
DEAR = {
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
_CHASE = 4  # lookups one after another: then scalars, since vectors of addresses are loaded one by one all the same
_CHASED = 8  # elements side by side in such a kernel: they wait for memory together, and their registers suffice
_GRAIN_ELEMS = 8192  # elements that are worth a thread's while


def flushes(node: Node) -> bool:
    """Whether denormals of what a node gives are zero."""
    return node.op == "core.cast" and bool(node.attrs.get("flush", 0))


def map_statement(
    body: list[Statement], names: Names, node: Node, arguments: list[tuple[str, Tile]], dtype: DType
) -> tuple[str, Tile]:
    """Append the map of a core node; returns its name and type. One of the arguments has all axes."""
    axes: dict[str, None] = {}
    for _, tile in sorted(arguments, key=lambda argument: -len(argument[1].axes)):
        axes.update(dict.fromkeys(tile.axes))
    return _map(body, names, node, arguments, Tile(dtype, tuple(axes)))


def _map(body: list[Statement], names: Names, node: Node, arguments: list[Value], type: Tile) -> Value:
    name, op = names.new(), node.op.removeprefix("core.")
    if op == "cast":
        body.append(Convert(name, type, arguments[0][0]))
    else:
        body.append(Map(name, type, op, tuple(argument for argument, _ in arguments)))
    return name, type


def lower_rows(graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> Kernel:
    """The kernel of a rows region."""
    return _Rows(graph, weights, region, dims, lanes).kernel()


class _Rows:
    def __init__(self, graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int) -> None:
        self._graph, self._region, self._dims = graph, region, dims
        self._steps = region.steps
        self._made = {step.made: step for step in region.steps if step.made is not None}
        self._names, self._sizes = Names(), Sizes()
        for check in region.checks:
            self._sizes.check(check)
        self._strides = Strides(dims)
        self._chases = self._lookups_in_a_row() >= _CHASE
        own_lanes = _CHASED // 2 if self._chases else lanes  # a step is two vectors
        self._nest = nest(region.domain, region.reduced, self._forms(), self._strides, own_lanes)
        self._sources = Sources(graph, weights, region, self._nest, self._names, self._sizes)
        self._levels: dict[Source | ValueId, int] = {}
        self._phase: dict[ValueId, int] = {}
        for step in region.steps:
            if step.made is not None:
                self._phase[step.made] = self._pass_of(step) + step.reduces
        self._kept = self._keep()
        self._outer = Block()
        self._blocks = [self._outer]
        self._now = 0

    def _node(self, step: Step) -> Node:
        return self._graph.nodes[step.node]

    def _forms(self) -> Forms:
        """Everything linear over the domain."""
        outside = [s for step in self._steps for s in step.arguments if self._inside(s) is None]
        accesses = [read for source in outside for read in reads(source)]
        read = [access.at for access in accesses]
        counted = [linear for source in outside for linear in linears(source) if linear not in read]
        maps = sum(not is_movement(self._node(step)) for step in self._steps)
        return Forms(read, [step.result for step in self._stores()], counted, maps, list(map(_jumps, accesses)))

    def _stores(self) -> list[Step]:
        return [step for step in self._steps if step.made is None or step.made in self._region.stores]

    def _inside(self, source: Source) -> ValueId | None:
        """The value of this region that a source is."""
        return source.base if isinstance(source, Read) and source.base in self._made else None

    def _lookups_in_a_row(self) -> int:
        """The longest chain of lookups, each at a place that was made of what the one before it found."""
        chains: dict[ValueId, int] = {}

        def chain(source: Source) -> int:
            if not isinstance(source, Read):
                return 0
            if source.base in self._made:
                return chains.get(source.base, 0)
            return max((1 + chain(term.index) for term in source.terms), default=0)

        for step in self._steps:
            if step.made is not None and not step.reduces:
                chains[step.made] = max(map(chain, step.arguments), default=0)
        return max(chains.values(), default=0)

    def _level(self, source: Source) -> int:
        """How many of the loops are around a source; 0: it is the same in all rounds."""
        inside = self._inside(source)
        key: Source | ValueId = source if inside is None else inside
        if key not in self._levels:
            self._levels[key] = self._find_level(source, inside)
        return self._levels[key]

    def _find_level(self, source: Source, inside: ValueId | None) -> int:
        if inside is not None:
            step = self._made[inside]
            return 0 if step.reduces else max((self._level(given) for given in step.arguments), default=0)
        terms = source.terms if isinstance(source, Read) else ()
        own = [self._nest.level(linear) for linear in linears(source)[:1]]
        return max([*own, *(self._level(term.index) for term in terms)], default=0)

    def _source_phase(self, source: Source) -> int:
        """The pass from which on a source exists."""
        inside = self._inside(source)
        if inside is not None:
            return self._phase[inside]
        terms = source.terms if isinstance(source, Read) else ()
        return max((self._source_phase(term.index) for term in terms), default=0)

    def _pass_of(self, step: Step) -> int:
        """The pass in which a step's arguments exist."""
        return max((self._source_phase(source) for source in step.arguments), default=0)

    def _cost(self, value: ValueId, seen: set[ValueId]) -> int:
        """What computing a varying value again would cost in its own pass."""
        if value in seen or not self._level(_itself(value)):
            return 0
        seen.add(value)
        step = self._made[value]
        own = DEAR.get(self._node(step).op.removeprefix("core."), 1)
        return own + sum(self._cost(v, seen) for v in map(self._inside, step.arguments) if v is not None)

    def _keep(self) -> list[ValueId]:
        """Varying values that later passes read from scratch instead of computing them again."""
        kept = []
        for value, phase in self._phase.items():
            if value in self._region.stores or not self._level(_itself(value)):
                continue
            users = [s for s in self._steps if any(r.base == value for given in s.arguments for r in reads(given))]
            later = any(self._pass_of(user) > phase for user in users)
            if later and self._cost(value, set()) > _KEEP_COST and self._sources.dtype(value) is DType.F32:
                kept.append(value)
        return kept

    def kernel(self) -> Kernel:
        for phase in range(max(self._pass_of(step) for step in self._steps) + 1):
            self._pass(phase)
        for step in self._stores():
            if not self._store_level(step):
                self._store(step)
        return self._finish()

    def _store_level(self, step: Step) -> int:
        """How many of the loops are around what a step writes, and around where it writes it."""
        return max(self._level(_result(step)), self._nest.level(step.result))

    def _pass(self, phase: int) -> None:
        """One pass of the loops: reductions that end here, varying values that leave or are kept."""
        steps = [step for step in self._steps if self._pass_of(step) == phase]
        reductions = [step for step in steps if step.reduces]
        stores = [step for step in self._stores() if step in steps and self._store_level(step)]
        kept = [value for value in self._kept if self._phase[value] == phase]
        if not (reductions or stores or kept):
            return
        self._blocks, self._now = [self._outer, *(Block() for _ in self._nest.loops)], phase
        inner = self._blocks[-1]
        folds = Folds(self._nest, self._names, self._sizes, self._outer, inner)
        tiles = [self._fold(folds, step) for step in reductions]
        for step in stores:
            self._store(step)
        for value in kept:
            name, _ = spread(inner, self._names, self._value(_itself(value)), self._lane_axes())
            inner.statements.append(Store("scratch", self._scratch(value), name))
        bodies = [block.statements for block in self._blocks[1:]]
        loop, totals = looped(self._nest.loops, bodies, folds.carried, self._names, self._sizes)
        self._outer.statements.append(loop)
        for step, tile in zip(reductions, tiles, strict=True):
            assert step.made is not None
            self._outer.values[step.made] = self._folded(folds, step, tile, totals)

    def _fold(self, folds: Folds, step: Step) -> Tile:
        """One round of a reduction; returns the type of what is reduced."""
        node, value = self._node(step), self._value(step.arguments[0])
        if node.op in ARG_REDUCTIONS:
            (axis,) = self._nest.loops
            place = self._sources.position(self._blocks[-1], axis)
            folds.add_place(_operation(node), value, place, last=bool(node.attrs["last"]))
        else:
            folds.add(_operation(node), value)
        return value[1]

    def _folded(self, folds: Folds, step: Step, tile: Tile, totals: list[str]) -> Value:
        node = self._node(step)
        if node.op not in ARG_REDUCTIONS:
            return folds.finish(_operation(node), tile, totals)
        (axis,) = self._nest.loops
        return folds.finish_place(_operation(node), tile, totals, axis.extent, last=bool(node.attrs["last"]))

    def _value(self, source: Source) -> Value:
        """A source in the pass that is being written: once for each round, or once before all."""
        inside = self._inside(source)
        key: Source | ValueId = source if inside is None else inside
        block = self._blocks[self._level(source)]
        if key not in block.values:
            if inside is None:
                block.values[key] = self._sources.emit(block, source, self._value)
            else:
                block.values[key] = self._computed(block, inside)
        return block.values[key]

    def _computed(self, block: Block, value: ValueId) -> Value:
        """A value of the region: read back or kept from an earlier pass, or computed from what it needs."""
        step, dtype = self._made[value], self._sources.tile_dtype(value)
        if block is not self._outer and self._phase[value] < self._now:
            if value in self._region.stores:
                return self._read_back(block, step, dtype)
            if value in self._kept:
                return self._load(block, Tile(dtype, self._lane_axes()), "scratch", self._scratch(value))
        node, arguments = self._node(step), [self._value(source) for source in step.arguments]
        if is_movement(node) or node.op in REDUCTIONS:
            return arguments[0]  # moved by its address alone; or a reduction over no axes
        axes = self._nest.ordered([axis for _, tile in arguments for axis in tile.axes])
        return _map(block.statements, self._names, node, arguments, Tile(dtype, axes))

    def _read_back(self, block: Block, step: Step, dtype: DType) -> Value:
        tile = Tile(dtype, self._nest.tile_axes(step.result))
        return self._load(block, tile, self._sources.buffer(step.target), self._nest.index(step.result, self._sizes))

    def _load(self, block: Block, tile: Tile, buffer: str, index: Index) -> Value:
        name = self._names.new("k")
        block.statements.append(Load(name, tile, buffer, index))
        return name, tile

    def _lane_axes(self) -> tuple[str, ...]:
        return () if self._nest.lane is None else (self._nest.lane.name,)

    def _store(self, step: Step) -> None:
        block, dtype = self._blocks[self._store_level(step)], self._sources.dtype(step.target)
        saturates = bool(self._node(step).attrs.get("saturate", 0))
        value = self._sources.fitted(block, self._value(_result(step)), dtype, saturates=saturates)
        name, _ = spread(block, self._names, value, self._nest.tile_axes(step.result))
        index, flush = self._nest.index(step.result, self._sizes), flushes(self._node(step))
        block.statements.append(Store(self._sources.buffer(step.target), index, name, flush=flush))

    def _scratch(self, value: ValueId) -> Index:
        """Where a kept value lies: one element for each round of the loops, or one vector where lanes are no loop."""
        nest, lane = self._nest, self._nest.lane
        whole = nest.lane_in_grid and lane is not None
        width = lane.step if whole and lane is not None else 1
        strides = self._strides.row_major([axis.extent for axis in nest.loops])
        axes = [
            (a.name, self._sizes.of(self._strides.times(s, width))) for a, s in zip(nest.loops, strides, strict=True)
        ]
        starts = ((lane.name, 0),) if whole and lane is not None else ()
        if whole and lane is not None:
            axes.append((lane.name, 1))
        offset = self._strides.times(self._scratch_elems(), self._kept.index(value))
        return Index(tuple(axes), self._sizes.of(offset), starts)

    def _scratch_elems(self) -> Dim:
        """How many elements one kept value has."""
        lane = self._nest.lane
        width = lane.step if lane is not None and self._nest.lane_in_grid else 1
        return self._strides.times(width, *(axis.extent for axis in self._nest.loops))

    def _work(self) -> Dim:
        """The elements of one step of the grid."""
        tiled = [axis.step for axis in self._nest.grid]
        return self._strides.times(*tiled, *(axis.extent for axis in self._nest.loops))

    def _finish(self) -> Kernel:
        written = {step.target for step in self._stores()}
        buffers = [
            Buffer(name, self._sources.stored(value), "out" if value in written else "in")
            for value, name in self._sources.buffers.items()
        ]
        if self._kept:
            buffers.append(Buffer("scratch", DType.F32, "scratch"))
        grid, body = self._nest.grids(self._sizes), tuple(self._outer.statements)
        vector = () if self._chases else self._lane_axes()
        program = TileProgram("rows", tuple(buffers), len(self._sizes.dims), grid, body, vector)
        return Kernel(
            program,
            tuple(self._sources.buffers),
            tuple(self._sizes.dims),
            self._nest.steps(),
            self._dims.floordiv(_GRAIN_ELEMS, self._dims.max(self._work(), 1)),
            self._dims.mul(self._scratch_elems(), 4 * len(self._kept)) if self._kept else 0,
        )


def _jumps(read: Read) -> frozenset[int]:
    """The axes along which what is read jumps, since an index does not follow from the one before it."""
    indices = [linear for term in read.terms for linear in linears(term.index)]
    return frozenset(axis for linear in indices for axis, stride in enumerate(linear.strides) if stride != 0)


def _itself(value: ValueId) -> Read:
    """A value of the region as a source; where it lies is where it is made."""
    return Read(value, Linear(0, ()))


def _result(step: Step) -> Source:
    """What a step writes."""
    return step.arguments[0] if step.made is None else _itself(step.made)


def _operation(node: Node) -> str:
    """sum, prod, max or min."""
    return {**REDUCTIONS, **POOLS, "core.argmax": "max", "core.argmin": "min"}[node.op]
