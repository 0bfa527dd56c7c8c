"""What of a graph runs, and what lies in memory: the first half of a cut.

Products are placed first, with what follows them. Movement is looked through: what reads a transposed or gathered value
reads the original at other addresses, and only what products, call-outs and callers read has to lie in memory. What is
left are members, which `cut.py` groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.dims import READS, DimBuilder, values_read
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.plan.attention import is_scaled
from tierup.plan.contents import contents, is_exact
from tierup.plan.forms import VIEWS, Forms
from tierup.plan.groups import Member
from tierup.plan.products import products
from tierup.plan.recurrent import recurrences
from tierup.plan.regions import NARROW, PLACES, SAME_MEMORY, SCANS, SCATTERS, Region, legality, shape_of, tensor
from tierup.plan.sources import dims_in
from tierup.plan.spaces import BITS, PARTED, Space, Spaces, is_movement, parts
from tierup.plan.strides import Strides

_UNFIT = "its sizes are known to fit only in the call"
_MOST_PARTS = 64  # of one node: they are numbered node by node


class Item(Struct):
    """Something that runs: a node alone, a region that is decided, or a member of a rows region."""

    unit: Region | int | Member
    node: int
    reads: frozenset[ValueId]
    writes: tuple[ValueId, ...]


class Items:
    """The items of a graph in `all`, by keys that stand in the order of nodes and parts; `refusals` says why nodes are
    alone, and `dims` has the sizes that they need."""

    def __init__(self, graph: Graph, weights: Weights | None) -> None:
        self._graph = graph
        self.dims = DimBuilder(graph.dims)
        self._strides = Strides(self.dims)
        self._contents = contents(graph, weights, self.dims)
        self._constants = graph.digests
        self._products = [*map(self._with_pads, products(graph)), *recurrences(graph)]
        self._taken = {index for region in self._products for index in region.nodes}
        self._read_for: dict[Dim, frozenset[ValueId]] = {}
        self.refusals = self._illegal()
        self.all: dict[int, Item] = {}
        refused = -1
        while refused != len(self.refusals):  # a node may turn out not to fit, and then reads memory itself
            refused = len(self.refusals)
            self._collect()

    def _illegal(self) -> dict[int, str]:
        """The nodes that no kernel can be made of, and why."""
        found: dict[int, str] = {}
        for index, node in enumerate(self._graph.nodes):
            reason = legality(self._graph, node)
            if reason is None and parts(node) >= _MOST_PARTS:
                reason = (
                    f"it is written in {parts(node)} parts, each a kernel, and more than {_MOST_PARTS - 1} are too many"
                )
            if reason is not None and index not in self._taken and not self._is_known(node):
                found[index] = reason
        return found

    def _with_pads(self, region: Region) -> Region:
        """A convolution with its pads as sizes; those that are computed are read in the call."""
        pads = self._graph.nodes[region.nodes[0]].inputs[-1]
        if region.kind != "conv" or pads is None:
            return region
        (count,) = shape_of(tensor(self._graph, pads))
        assert isinstance(count, int)
        known = self._contents.get(pads)
        return replace(region, sizes=known or tuple(self.dims.elem(pads, place) for place in range(count)))

    def _is_known(self, node: Node) -> bool:
        """Whether a node's results are sizes, which can be written down without it."""
        known = [self._contents.get(value) for value in node.outputs if value is not None]
        types = [self._graph.type(value) for value in node.outputs if value is not None]
        return all(c is not None and all(is_exact(dim, self.dims) for dim in c) for c in known) and all(
            isinstance(type, TensorType) and type.dtype in (DType.I64, DType.I32) for type in types
        )

    def _collect(self) -> None:
        """List what runs, and what lies in memory; movement that only leads to memory is not listed."""
        self.all.clear()
        self._in_memory = set(self.always_in_memory())
        movement = {
            index
            for index, node in enumerate(self._graph.nodes)
            if is_movement(node) and index not in self._taken and self._can_move(index)
        }
        asked = {i for i in movement if self._graph.nodes[i].outputs[0] in self._in_memory}
        views = {i for i in asked if self._graph.nodes[i].op == "core.reshape"}
        self._forms = Forms(self._graph, self._contents, self._strides, movement - asked | views)
        self._spaces = Spaces(self._graph, self._forms, self._strides)
        regions = {region.nodes[-1]: region for region in self._products}
        for index in reversed(range(len(self._graph.nodes))):
            if index in regions:
                self._add(index, 0, regions[index], self._read_by_region(regions[index]))
            elif index not in self._taken:
                self._collect_node(index, self._graph.nodes[index])
        self.all = dict(sorted(self.all.items()))

    def _can_move(self, index: int) -> bool:
        return self.refusals.get(index) in (None, SAME_MEMORY)

    def _collect_node(self, index: int, node: Node) -> None:
        """From the back: by now it is known whether a movement node's result has to lie in memory."""
        if is_movement(node) and self._can_move(index) and node.outputs[0] not in self._in_memory:
            return
        if self._is_known(node):
            sizes = tuple(dim for value in node.outputs if value is not None for dim in self._contents[value])
            self._add(index, 0, Region("known", (index,), (len(sizes),), sizes=sizes), ())
        elif index in self.refusals:
            viewed = self.refusals[index] == SAME_MEMORY
            self._add(index, 0, index, node.inputs[:1] if viewed else node.inputs)
        elif node.op in SCANS:
            shape = shape_of(tensor(self._graph, node.inputs[0]))
            self._add(index, 0, Region("scan", (index,), shape), node.inputs)
        elif node.op == PLACES:
            shape = shape_of(tensor(self._graph, node.inputs[0]))
            self._add(index, 0, Region("places", (index,), shape), node.inputs)
        else:
            self._collect_parts(index, node)

    def _collect_parts(self, index: int, node: Node) -> None:
        spaces = [self._spaces.of(index, part) for part in range(parts(node))]
        checks = self._spaces.scattered(node) if node.op in SCATTERS else ()
        if checks is None or any(space is None for space in spaces):
            self.refusals[index] = _UNFIT
            self._add(index, 0, index, node.inputs)
            return
        made = node.outputs[0] if self._is_usable(node) else None
        for part, space in enumerate(spaces):
            assert space is not None
            sizes_from = frozenset(v for dim in self._dims_of_space(space) for v in self._values_in(dim))
            member = Member(self._key(index, part), index, part, space, made, sizes_from, node.op == BITS)
            self._add(index, part, member, (read.base for read in member.reads()))
        if node.op in SCATTERS:
            shape = shape_of(tensor(self._graph, node.inputs[2]))
            self._add(index, len(spaces), Region("scatter", (index,), shape, checks=checks), node.inputs[1:])

    def _is_usable(self, node: Node) -> bool:
        """Whether others of its region may use a node's result as it is in registers."""
        if node.op == "core.cast":
            return tensor(self._graph, node.outputs[0]).dtype not in NARROW
        return node.op != BITS and (node.op not in PARTED or is_movement(node))

    def _key(self, index: int, part: int) -> int:
        """Keys stand in the order of nodes and parts."""
        return index * _MOST_PARTS + part

    def _add(self, index: int, part: int, unit: Region | int | Member, read: Iterable[ValueId | None]) -> None:
        nodes = unit.nodes if isinstance(unit, Region) else (index,)
        values = {value for value in read if value is not None}
        self._in_memory |= values
        for dim in self._dims_of(unit, index):
            values |= self._values_in(dim)
        writes = tuple(v for i in nodes for v in self._graph.nodes[i].outputs if v is not None)
        self.all[self._key(index, part)] = Item(unit, index, frozenset(values), writes)

    def _dims_of(self, unit: Region | int | Member, index: int) -> Iterator[Dim]:
        """The sizes that something needs before it can run."""
        if isinstance(unit, Member):
            yield from self._dims_of_space(unit.space)
            return
        for node in unit.nodes if isinstance(unit, Region) else (index,):
            for value in (*self._graph.nodes[node].inputs, *self._graph.nodes[node].outputs):
                type = None if value is None else self._graph.type(value)
                yield from (type.shape or ()) if isinstance(type, TensorType) else ()
        if isinstance(unit, Region):
            yield from (*unit.sizes, *unit.checks)

    def _dims_of_space(self, space: Space) -> Iterator[Dim]:
        """The whole result has its place before the first part of it is written."""
        yield from (*space.extents, *space.checks, space.result.offset, *space.result.strides)
        yield from shape_of(tensor(self._graph, space.target))
        for source in space.arguments:
            yield from dims_in(source)

    def _values_in(self, dim: Dim) -> frozenset[ValueId]:
        """The values that a size is read from."""
        if dim not in self._read_for:
            self._read_for[dim] = frozenset(values_read(self.dims.ops, dim))
        return self._read_for[dim]

    def always_in_memory(self) -> Iterator[ValueId]:
        """Outputs, what call-outs and products read, and what sizes are read from."""
        yield from self._graph.outputs
        for op in self.dims.ops:
            if op.op in READS and isinstance(op.args[0], int):
                yield op.args[0]
        for index, reason in self.refusals.items():
            if reason != SAME_MEMORY:
                yield from (value for value in self._graph.nodes[index].inputs if value is not None)
        for region in self._products:
            yield from self._read_by_region(region)

    def _read_by_region(self, region: Region) -> list[ValueId]:
        """What a product may read: its inputs, and what lies behind them if it looks through movement and factors."""
        inside = {value for index in region.nodes for value in self._graph.nodes[index].outputs}
        pending = [v for i in region.nodes for v in self._graph.nodes[i].inputs if v is not None and v not in inside]
        found: dict[ValueId, None] = {}
        while pending:
            value = pending.pop()
            node = self._graph.producer(value)
            if value not in found and node is not None and self.is_looked_through(region, node):
                pending.extend(given for given in node.inputs[:2] if given is not None)
            found.setdefault(value)
        return list(found)

    def is_looked_through(self, region: Region, node: Node) -> bool:
        """Whether a region may read what is behind a node instead of its result."""
        if region.kind in ("matmul", "conv") and node.op == "core.cast":
            return node.inputs[0] in self._constants
        return node.op in VIEWS or (region.kind == "attention" and is_scaled(self._graph, node))
