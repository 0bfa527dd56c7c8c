"""Divides a core graph into regions.

Products are placed first, with what follows them. Movement is looked through: what reads a transposed or gathered value
reads the original at other addresses, and only what products, call-outs and callers read has to lie in memory. What is
left is grouped greedily from the front into regions as large as legality allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from tierup.ir.dims import READS, DimBuilder, values_read
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.plan.contents import contents, is_exact
from tierup.plan.forms import VIEWS, Forms
from tierup.plan.groups import Group, Member, joined, single
from tierup.plan.products import products
from tierup.plan.recurrent import recurrences
from tierup.plan.regions import (
    NARROW,
    PLACES,
    SAME_MEMORY,
    SCANS,
    SCATTERS,
    Cut,
    Region,
    Step,
    legality,
    shape_of,
    tensor,
)
from tierup.plan.sources import Linear, dims_in, rearranged
from tierup.plan.spaces import PARTED, Space, Spaces, is_movement, parts
from tierup.plan.strides import Strides

_READ_THROUGH = ("matmul", "conv", "attention", "recurrent")
_UNFIT = "its sizes are known to fit only in the call"


_MOST_PARTS = 64  # of one node: they are numbered node by node


def cut(graph: Graph, weights: Weights | None = None) -> Cut:
    """Regions as large as legality allows, greedily from the front.

    Without the weights, bounds that are constants are not known, and slices are not looked through.
    """
    return _Cutter(graph, weights).cut()


@dataclass
class _Item:
    """Something that runs: a node alone, a region that is decided, or a member of a rows region."""

    unit: Region | int | Member
    node: int
    reads: frozenset[ValueId]
    writes: tuple[ValueId, ...]


class _Cutter:
    def __init__(self, graph: Graph, weights: Weights | None) -> None:
        self._graph = graph
        self._dims = DimBuilder(graph.dims)
        self._strides = Strides(self._dims)
        self._contents = contents(graph, weights, self._dims)
        self._producer = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        self._constants = dict(graph.weights)
        self._products = [*map(self._with_pads, products(graph)), *recurrences(graph)]
        self._taken = {index for region in self._products for index in region.nodes}
        self._refusals: dict[int, str] = {}
        self._items: dict[int, _Item] = {}
        self._group: dict[int, Group] = {}
        self._apart: dict[tuple[int, int], str] = {}
        self._fresh = count().__next__
        self._read_for: dict[Dim, frozenset[ValueId]] = {}

    def cut(self) -> Cut:
        for index, node in enumerate(self._graph.nodes):
            reason = legality(self._graph, node)
            if reason is None and parts(node) >= _MOST_PARTS:
                reason = (
                    f"it is written in {parts(node)} parts, each a kernel, and more than {_MOST_PARTS - 1} are too many"
                )
            if reason is not None and index not in self._taken and not self._is_known(node):
                self._refusals[index] = reason
        refused = -1
        while refused != len(self._refusals):  # a node may turn out not to fit, and then reads memory itself
            refused = len(self._refusals)
            self._collect()
        self._connect()
        for key in list(self._items):
            if isinstance(self._items[key].unit, Member):
                self._place(key)
        self._retry()
        return Cut(tuple(self._ordered()), self._refusals, tuple(self._dims.ops))

    def _with_pads(self, region: Region) -> Region:
        """A convolution with its pads as sizes; those that are computed are read in the call."""
        pads = self._graph.nodes[region.nodes[0]].inputs[-1]
        if region.kind != "conv" or pads is None:
            return region
        (count,) = shape_of(tensor(self._graph, pads))
        assert isinstance(count, int)
        known = self._contents.get(pads)
        return replace(region, sizes=known or tuple(self._dims.elem(pads, place) for place in range(count)))

    def _is_known(self, node: Node) -> bool:
        """Whether a node's results are sizes, which can be written down without it."""
        known = [self._contents.get(value) for value in node.outputs if value is not None]
        types = [self._graph.type(value) for value in node.outputs if value is not None]
        return all(c is not None and all(is_exact(dim, self._dims) for dim in c) for c in known) and all(
            isinstance(type, TensorType) and type.dtype in (DType.I64, DType.I32) for type in types
        )

    def _collect(self) -> None:
        """List what runs, and what lies in memory; movement that only leads to memory is not listed."""
        self._items.clear()
        self._in_memory = set(self._always_in_memory())
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
        self._items = dict(sorted(self._items.items()))

    def _can_move(self, index: int) -> bool:
        return self._refusals.get(index) in (None, SAME_MEMORY)

    def _collect_node(self, index: int, node: Node) -> None:
        """From the back: by now it is known whether a movement node's result has to lie in memory."""
        if is_movement(node) and self._can_move(index) and node.outputs[0] not in self._in_memory:
            return
        if self._is_known(node):
            sizes = tuple(dim for value in node.outputs if value is not None for dim in self._contents[value])
            self._add(index, 0, Region("known", (index,), (len(sizes),), sizes=sizes), ())
        elif index in self._refusals:
            viewed = self._refusals[index] == SAME_MEMORY
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
            self._refusals[index] = _UNFIT
            self._add(index, 0, index, node.inputs)
            return
        made = node.outputs[0] if self._is_usable(node) else None
        for part, space in enumerate(spaces):
            assert space is not None
            sizes_from = frozenset(v for dim in self._dims_of_space(space) for v in self._values_in(dim))
            member = Member(self._key(index, part), index, part, space, made, sizes_from)
            self._add(index, part, member, (read.base for read in member.reads()))
        if node.op in SCATTERS:
            shape = shape_of(tensor(self._graph, node.inputs[2]))
            self._add(index, len(spaces), Region("scatter", (index,), shape, checks=checks), node.inputs[1:])

    def _is_usable(self, node: Node) -> bool:
        """Whether others of its region may use a node's result as it is in registers."""
        if node.op == "core.cast":
            return tensor(self._graph, node.outputs[0]).dtype not in NARROW
        return node.op not in PARTED or is_movement(node)

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
        self._items[self._key(index, part)] = _Item(unit, index, frozenset(values), writes)

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
            self._read_for[dim] = frozenset(values_read(self._dims.ops, dim))
        return self._read_for[dim]

    def _always_in_memory(self) -> Iterator[ValueId]:
        """Outputs, what call-outs and products read, and what sizes are read from."""
        yield from self._graph.outputs
        for op in self._dims.ops:
            if op.op in READS and isinstance(op.args[0], int):
                yield op.args[0]
        for index, reason in self._refusals.items():
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
            node = self._producer.get(value)
            if value not in found and node is not None and self._is_looked_through(region, node):
                pending.extend(given for given in node.inputs[:2] if given is not None)
            found.setdefault(value)
        return list(found)

    def _is_looked_through(self, region: Region, node: Node) -> bool:
        """Whether a region may read what is behind a node instead of its result."""
        if region.kind in ("matmul", "conv") and node.op == "core.cast":
            return node.inputs[0] in self._constants
        return node.op in VIEWS or (region.kind == "attention" and self._is_scaled(node))

    def _is_scaled(self, node: Node) -> bool:
        """Whether a node multiplies or divides everything by one constant."""
        return node.op in ("core.mul", "core.div") and any(
            value in self._constants and all(size == 1 for size in shape_of(tensor(self._graph, value)))
            for value in node.inputs
        )

    def _connect(self) -> None:
        """Who writes a value and who reads it."""
        self._writers: dict[ValueId, list[int]] = {}
        self._readers: dict[ValueId, list[int]] = {}
        for key, item in self._items.items():
            for value in item.writes:
                self._writers.setdefault(value, []).append(key)
            for value in item.reads:
                self._readers.setdefault(value, []).append(key)
        self._always = set(self._always_in_memory())
        self._needs = {key: set(self._needed_by(key, item)) for key, item in self._items.items()}
        self._users: dict[int, list[int]] = {}
        for key, needed in self._needs.items():
            for other in needed:
                self._users.setdefault(other, []).append(key)

    def _needed_by(self, key: int, item: _Item) -> Iterator[int]:
        for value in item.reads:
            yield from self._writers.get(value, ())
        if self._graph.nodes[item.node].op != "core.concat":  # parts are written in order
            yield from (other for other in (key - 1,) if other in self._items and self._items[other].node == item.node)

    def _is_stored(self, value: ValueId, members: Iterable[int]) -> bool:
        """Whether a value is needed outside of some items."""
        inside = set(members)
        return value in self._always or any(key not in inside for key in self._readers.get(value, ()))

    def _place(self, key: int) -> None:
        member = self._items[key].unit
        assert isinstance(member, Member)
        self._group[key] = single(member, self._fresh)
        if self._is_for_products(member):
            return
        for other in sorted(self._needs[key]):
            if other in self._group:
                self._try(other, key)

    def _retry(self) -> None:
        """What did not fit a group may fit it with what joined it later."""
        again = True
        while again:
            again = False
            for pair in list(self._apart):
                again |= self._try(*pair)

    def _try(self, key: int, user: int) -> bool:
        """Join the groups of two items, or note why not; whether they became one."""
        self._apart.pop((key, user), None)
        before, after = self._group[key], self._group[user]
        if before is after:
            return False
        refused = self._join(before, after)
        if refused is not None:
            self._apart[key, user] = refused
        return refused is None

    def _is_for_products(self, member: Member) -> bool:
        """Whether only products read it that may look through it: then it may turn out not to be needed."""
        value, node = member.made, self._graph.nodes[member.node]
        if value is None or value in self._graph.outputs:
            return False
        units = [self._items[key].unit for key in self._readers.get(value, ())]
        return bool(units) and all(
            isinstance(unit, Region) and unit.kind in _READ_THROUGH and self._is_looked_through(unit, node)
            for unit in units
        )

    def _join(self, before: Group, after: Group) -> str | None:
        """Make one region of two, if they fit and no path leads out of it and back in; returns why not."""
        union = joined(before, after, self._is_stored)
        if isinstance(union, str):
            return union
        if self._path_outside(before, after) or self._path_outside(after, before):
            return "a path leads out of them and back in: one would need the other's results before it begins"
        for key in union.members:
            self._group[key] = union
        return None

    def _path_outside(self, start: Group, end: Group) -> bool:
        """Whether something outside both depends on `start` and is needed by `end`."""
        inside = {*start.members, *end.members}
        last = max(end.members)
        pending = [key for member in start.members for key in self._users.get(member, ()) if key not in inside]
        seen = set(pending)
        while pending:
            key = pending.pop()
            group = self._group.get(key)
            members = (key,) if group is None else tuple(group.members)
            if min(members) > last:
                continue
            for user in (user for member in members for user in self._users.get(member, ())):
                if user in end.members:
                    return True
                if user not in inside and user not in seen:
                    seen.add(user)
                    pending.append(user)
        return False

    def _ordered(self) -> Iterator[Region | int]:
        """Regions and single nodes, each after what it needs."""
        units: dict[int, list[int]] = {}
        for key in self._items:
            units.setdefault(self._unit(key), []).append(key)
        waiting = {
            unit: {self._unit(other) for key in keys for other in self._needs[key]} - {unit}
            for unit, keys in units.items()
        }
        done: set[int] = set()
        pending = sorted(units)
        while pending:
            ready = [unit for unit in pending if waiting[unit] <= done]
            assert ready, "regions depend on each other"
            for unit in ready:
                finished = self._finished(unit)
                if not self._is_idle(finished):
                    yield finished
                done.add(unit)
            pending = [unit for unit in pending if unit not in done]

    def _is_idle(self, unit: Region | int) -> bool:
        """Whether nobody needs what a region computes."""
        if isinstance(unit, int) or unit.kind != "rows":
            return False
        return not unit.stores and all(step.made is not None for step in unit.steps)

    def _unit(self, key: int) -> int:
        """The item that stands for an item's region."""
        group = self._group.get(key)
        return key if group is None else min(group.members)

    def _finished(self, key: int) -> Region | int:
        unit = self._items[key].unit
        if not isinstance(unit, Member):
            return unit
        group = self._group[key]
        members = [group.members[key] for key in sorted(group.members)]
        position = {axis: number for number, axis in enumerate(group.extents)}
        return Region(
            kind="rows",
            nodes=tuple(member.node for member in members),
            domain=tuple(group.extents.values()),
            steps=tuple(self._step(group, member) for member in members),
            reduced=tuple(sorted(position[axis] for axis in group.reduced)),
            stores=tuple(
                member.made
                for member in members
                if member.made is not None and self._is_stored(member.made, group.members)
            ),
            reads=tuple(sorted({node for member in members for node in member.space.nodes})),
            checks=tuple(dict.fromkeys(check for member in members for check in member.space.checks)),
            refused=tuple(dict(self._refused(group)).items()),
        )

    def _refused(self, group: Group) -> Iterator[tuple[ValueId, str]]:
        """Values that were made by other rows regions, and why those are not part of this one."""
        for (before, after), reason in self._apart.items():
            if after in group.members and before not in group.members:
                yield from ((value, reason) for value in self._items[before].writes)

    def _step(self, group: Group, member: Member) -> Step:
        """A member with its linear forms over the axes of the group's domain."""
        places = group.places[member.key]
        axes = list(group.extents)

        def change(at: Linear) -> Linear:
            by_axis = dict(zip(places, at.strides, strict=True))
            return Linear(at.offset, tuple(by_axis.get(axis, 0) for axis in axes))

        arguments = [rearranged(source, change) for source in member.space.arguments]
        given = tuple(source for source in arguments if source is not None)
        space = member.space
        return Step(
            member.node, member.part, given, space.target, change(space.result), member.made, bool(space.reduced)
        )
