"""Sources of elements as statements: loads at linear addresses, lookups with their range checks, positions, sizes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.lower.axes import Axis, Nest
from tierup.lower.names import Names, Sizes
from tierup.lower.ranges import Ranges
from tierup.lower.tile import Check, Convert, Fill, Load, Map, Position, Reduce, Statement, Tile
from tierup.plan.regions import COMPUTED, SMALL_FLOATS, SMALL_INTEGERS, Region
from tierup.plan.sources import Bent, Count, Known, Linear, Read, Source, Term
from tierup.plan.spaces import BITS
from tierup.reference.cast import SATURATING

Value = tuple[str, Tile]
Evaluate = Callable[[Source], Value]
_BITS = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}


class Block(Struct):
    """Statements of one level, and what they computed."""

    statements: list[Statement] = field(default_factory=list)
    values: dict[object, Value] = field(default_factory=dict)


def stored_dtype(dtype: DType) -> DType:
    """What a buffer of this dtype is taken for: elements that are only moved are bits."""
    if dtype in COMPUTED:
        return dtype
    return DType.I8 if dtype in SMALL_INTEGERS and dtype.is_signed else _BITS[dtype.numpy.itemsize]


def tile_dtype(dtype: DType) -> DType:
    """What an element is in registers."""
    stored = stored_dtype(dtype)
    return DType.F32 if stored in (DType.F16, DType.BF16) else stored


def constant_scalar(graph: Graph, weights: Weights, value: ValueId) -> float | None:
    """The number behind a constant of one element."""
    digest = graph.digests.get(value)
    if digest is None or weights[digest].size != 1:
        return None
    item: float = weights[digest].reshape(-1)[0].item()
    return item


class Sources:
    """Writes sources into blocks. `buffers` names the values that are read."""

    def __init__(self, graph: Graph, weights: Weights, region: Region, nest: Nest, names: Names, sizes: Sizes) -> None:
        self._graph, self._weights, self._nest = graph, weights, nest
        self._names, self._sizes = names, sizes
        self._constants = graph.digests
        self._ranges = Ranges(graph, weights, (*region.nodes, *region.reads))
        self._decodes = self._casts_small_floats(region)
        self._copies_bits = any(graph.nodes[step.node].op == BITS for step in region.steps)
        self.buffers: dict[ValueId, str] = {}

    def _casts_small_floats(self, region: Region) -> bool:
        """Whether a cast needs the numbers that small floats stand for; where they are only moved they stay bits."""
        casts = [node for node in (self._graph.nodes[step.node] for step in region.steps) if node.op == "core.cast"]
        return any(
            self.dtype(value) in SMALL_FLOATS
            for node in casts
            for value in (*node.inputs, *node.outputs)
            if value is not None
        )

    def stored(self, value: ValueId) -> DType:
        """What the buffer of a value is taken for in this region."""
        dtype = self.dtype(value)
        if self._copies_bits:
            return _BITS[dtype.numpy.itemsize]
        return dtype if self._decodes and dtype in SMALL_FLOATS else stored_dtype(dtype)

    def tile_dtype(self, value: ValueId) -> DType:
        """What an element of a value is in registers of this region."""
        if self._copies_bits:
            return self.stored(value)
        return DType.F32 if self._decodes and self.dtype(value) in SMALL_FLOATS else tile_dtype(self.dtype(value))

    def buffer(self, value: ValueId) -> str:
        return self.buffers.setdefault(value, f"b{len(self.buffers)}")

    def dtype(self, value: ValueId) -> DType:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type.dtype

    def emit(self, block: Block, source: Source, evaluate: Evaluate) -> Value:
        """A source as a tile; `evaluate` gives the indices in it."""
        match source:
            case Known():
                return self._fill(block, tile_dtype(source.dtype), source.size)
            case Count():
                return self._converted(block, self._count(block, source.at), tile_dtype(source.dtype))
            case Bent():
                return self._bent(block, source)
            case Read():
                number = self._number(source)
                if number is not None:
                    return self._literal(block, self.tile_dtype(source.base), number)
                return self._load(block, source, evaluate)

    def _number(self, read: Read) -> float | None:
        if read.base not in self._constants or self.dtype(read.base) not in COMPUTED or self._copies_bits:
            return None
        return constant_scalar(self._graph, self._weights, read.base)

    def _literal(self, block: Block, dtype: DType, number: float) -> Value:
        name, tile = self._names.new("c"), Tile(dtype)
        block.statements.append(Fill(name, tile, number))
        return name, tile

    def _fill(self, block: Block, dtype: DType, size: Dim) -> Value:
        name, tile = self._names.new("s"), Tile(dtype)
        block.statements.append(Fill(name, tile, self._sizes.of(size)))
        return name, tile

    def _load(self, block: Block, read: Read, evaluate: Evaluate) -> Value:
        index, axes = self._nest.index(read.at, self._sizes), list(self._nest.tile_axes(read.at))
        at = []
        for term in read.terms:
            place, tile = evaluate(term.index)
            if not self._is_inside(term):
                self._check(block, place, term.extent)
            axes += tile.axes
            at.append((place, self._sizes.of(term.stride)))
        name, tile = self._names.new("x"), Tile(self.tile_dtype(read.base), self._nest.ordered(axes))
        block.statements.append(Load(name, tile, self.buffer(read.base), index, at=tuple(at)))
        return self._extended(block, (name, tile), self.dtype(read.base))

    def _extended(self, block: Block, value: Value, dtype: DType) -> Value:
        """A signed integer of less than a byte with its sign."""
        if dtype not in SMALL_INTEGERS or not dtype.is_signed:
            return value
        above = self._literal(block, value[1].dtype, 8 - dtype.bits)
        return self.map(block, "shr", self.map(block, "shl", value, above), above)

    def fitted(self, block: Block, value: Value, dtype: DType, *, saturates: bool = False) -> Value:
        """What memory of `dtype` takes: of integers of less than a byte, their bits alone; of small floats, where what
        writes them `saturates`, none beyond the largest."""
        if saturates and dtype in SATURATING and self._decodes:
            wide = self._converted(block, value, DType.F32)
            low, high = (self._literal(block, DType.F32, end) for end in (-SATURATING[dtype], SATURATING[dtype]))
            return self.map(block, "min", self.map(block, "max", wide, low), high)
        if dtype not in SMALL_INTEGERS:
            return value
        stored = self._converted(block, value, stored_dtype(dtype))
        return self.map(block, "and", stored, self._literal(block, stored[1].dtype, (1 << dtype.bits) - 1))

    def _is_inside(self, term: Term) -> bool:
        """Whether an index is known to lie inside: constants tell where it can be, or a pad brought it there."""
        index, extent = term.index, term.extent
        if not isinstance(extent, int) or extent == 0:
            return False
        if isinstance(index, Bent):
            return True
        found = self._ranges.of(index.base) if isinstance(index, Read) else None
        return found is not None and found[0] >= 0 and found[1] < extent

    def _check(self, block: Block, place: str, extent: Dim) -> None:
        if (place, extent) not in block.values:
            block.values[place, extent] = (place, Tile(DType.I64))
            block.statements.append(Check(place, self._sizes.of(extent)))

    def _count(self, block: Block, at: Linear) -> Value:
        """offset + Σ position · stride, in i64."""
        total = self._fill(block, DType.I64, at.offset) if at.offset != 0 else None
        for axis in self._nest.along(at):
            position = self.position(block, axis)
            stride = at.strides[axis.parts[-1]]
            if stride != 1:
                position = self.map(block, "mul", position, self._fill(block, DType.I64, stride))
            total = position if total is None else self.map(block, "add", total, position)
        return total or self._fill(block, DType.I64, 0)

    def position(self, block: Block, axis: Axis) -> Value:
        """The position of a loop: one for each element of its step, or a single one."""
        if axis not in block.values:
            name, tile = self._names.new("at"), Tile(DType.I64, (axis.name,))
            block.statements.append(Position(name, tile, axis.name))
            if axis not in self._nest.tiled:
                name, place = self._names.new("at"), name
                tile = Tile(DType.I64)
                block.statements.append(Reduce(name, tile, "sum", place, axis.name))
            block.values[axis] = (name, tile)
        return block.values[axis]

    def _bent(self, block: Block, bent: Bent) -> Value:
        """A position outside of an axis as the one inside that stands for it."""
        place, size = self._count(block, bent.at), self._fill(block, DType.I64, bent.size)
        if bent.mode == "wrap":
            return self.map(block, "mod", place, size)
        last = self.map(block, "sub", size, self._fill(block, DType.I64, 1))
        if bent.mode == "edge":
            return self.map(block, "max", self.map(block, "min", place, last), self._fill(block, DType.I64, 0))
        period = self.map(block, "add", last, last)  # of one element: 0, and x mod 0 is 0
        forth = self.map(block, "mod", place, period)
        return self.map(block, "min", forth, self.map(block, "sub", period, forth))

    def map(self, block: Block, op: str, *arguments: Value) -> Value:
        """A map of values of one dtype."""
        name = self._names.new("i")
        axes = [axis for _, tile in arguments for axis in tile.axes]
        tile = Tile(arguments[0][1].dtype, self._nest.ordered(axes))
        block.statements.append(Map(name, tile, op, tuple(argument for argument, _ in arguments)))
        return name, tile

    def _converted(self, block: Block, value: Value, dtype: DType) -> Value:
        if value[1].dtype is dtype:
            return value
        name, tile = self._names.new("v"), Tile(dtype, value[1].axes)
        block.statements.append(Convert(name, tile, value[0]))
        return name, tile
