"""Divides a core graph into regions.

`items.py` says what runs. What of that is no region yet is grouped greedily from the front into regions as large as
legality allows, and all are put in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from tierup.ir.graph import Graph, ValueId, Weights
from tierup.plan.groups import Group, Member, joined, single
from tierup.plan.items import Item, Items
from tierup.plan.regions import Cut, Region, Step
from tierup.plan.sources import Linear, rearranged

_READ_THROUGH = ("matmul", "conv", "attention", "recurrent")


def cut(graph: Graph, weights: Weights | None = None) -> Cut:
    """Regions as large as legality allows, greedily from the front.

    Without the weights, bounds that are constants are not known, and slices are not looked through.
    """
    return _Cutter(graph, Items(graph, weights)).cut()


class _Cutter:
    def __init__(self, graph: Graph, items: Items) -> None:
        self._graph, self._all, self._items = graph, items, items.all
        self._group: dict[int, Group] = {}
        self._apart: dict[tuple[int, int], str] = {}
        self._fresh = count().__next__

    def cut(self) -> Cut:
        self._connect()
        for key in list(self._items):
            if isinstance(self._items[key].unit, Member):
                self._place(key)
        self._retry()
        return Cut(tuple(self._ordered()), self._all.refusals, tuple(self._all.dims.ops))

    def _connect(self) -> None:
        """Who writes a value and who reads it."""
        self._writers: dict[ValueId, list[int]] = {}
        self._readers: dict[ValueId, list[int]] = {}
        for key, item in self._items.items():
            for value in item.writes:
                self._writers.setdefault(value, []).append(key)
            for value in item.reads:
                self._readers.setdefault(value, []).append(key)
        self._always = set(self._all.always_in_memory())
        self._needs = {key: set(self._needed_by(key, item)) for key, item in self._items.items()}
        self._users: dict[int, list[int]] = {}
        for key, needed in self._needs.items():
            for other in needed:
                self._users.setdefault(other, []).append(key)

    def _needed_by(self, key: int, item: Item) -> Iterator[int]:
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
            isinstance(unit, Region) and unit.kind in _READ_THROUGH and self._all.is_looked_through(unit, node)
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
