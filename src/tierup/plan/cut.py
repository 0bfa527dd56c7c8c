"""Divides a core graph into regions.

Products are placed first, with what follows them; what is left is grouped greedily from the front into regions as large
as legality allows.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Shape
from tierup.plan.products import products
from tierup.plan.regions import MOVES, REDUCTIONS, Cut, Region, legality, present_axes, row_shape, shape_of, tensor


class _Group:
    """A region in the making."""

    def __init__(self, kind: str, domain: Shape, node: int) -> None:
        self.kind = kind
        self.domain = domain
        self.nodes = [node]


def cut(graph: Graph) -> Cut:
    """Regions as large as legality allows, greedily from the front."""
    return _Cutter(graph).cut()


class _Cutter:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producer = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs if v is not None}
        self._uses: dict[ValueId, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            for value in node.inputs:
                if value is not None:
                    self._uses.setdefault(value, []).append(index)
        self._group: dict[int, _Group] = {}
        self._refusals: dict[int, str] = {}

    def cut(self) -> Cut:
        for region in products(self._graph):
            group = _Group(region.kind, region.domain, region.nodes[0])
            group.nodes = list(region.nodes)
            self._group.update(dict.fromkeys(region.nodes, group))
        for index, node in enumerate(self._graph.nodes):
            reason = legality(self._graph, node)
            if reason is not None:
                self._refusals[index] = reason
            elif index not in self._group:
                self._place(index, node)
        return Cut(tuple(self._ordered()), self._refusals)

    def _place(self, index: int, node: Node) -> None:
        if node.op in MOVES:
            self._group[index] = _Group("move", shape_of(tensor(self._graph, node.outputs[0])), index)
            return
        domain = shape_of(tensor(self._graph, node.inputs[0] if node.op in REDUCTIONS else node.outputs[0]))
        group = _Group("rows", domain, index)
        self._group[index] = group
        for value in node.inputs:
            producer = self._producer.get(value) if value is not None else None
            before = self._group.get(producer) if producer is not None else None
            if before is not None and before is not self._group[index]:
                self._join(before, self._group[index])

    def _join(self, before: _Group, after: _Group) -> None:
        """Make one region of two, if the domains fit and no path leads out of it and back in."""
        if before.kind != "rows" or after.kind != "rows":
            return
        domain = _common_domain(before.domain, after.domain)
        if domain is None or not self._fits(before, domain) or not self._fits(after, domain):
            return
        if self._path_outside(before, after) or self._path_outside(after, before):
            return
        before.nodes = sorted({*before.nodes, *after.nodes})
        before.domain = domain
        for index in after.nodes:
            self._group[index] = before

    def _fits(self, group: _Group, domain: Shape) -> bool:
        """Whether every value of a group has the domain's shape or one element a row, and all inputs reach it."""
        for index in group.nodes:
            node = self._graph.nodes[index]
            shapes = [shape_of(tensor(self._graph, value)) for value in node.inputs]
            result = shape_of(tensor(self._graph, node.outputs[0]))
            if node.op in REDUCTIONS:
                if shapes[0] != domain:
                    return False
                continue
            if result not in (domain, row_shape(domain)):
                return False
            if any(present_axes(shape, result) is None for shape in shapes):
                return False
        return True

    def _path_outside(self, start: _Group, end: _Group) -> bool:
        """Whether something outside both depends on `start` and is needed by `end`."""
        inside = {*start.nodes, *end.nodes}
        pending = [use for index in start.nodes for use in self._users(index) if use not in inside]
        seen = set(pending)
        last = max(end.nodes)
        while pending:
            index = pending.pop()
            group = self._group.get(index)
            members = group.nodes if group is not None else [index]
            for member in members:
                for use in self._users(member):
                    if use in inside:
                        if use in end.nodes:
                            return True
                    elif use not in seen and use <= last:
                        seen.add(use)
                        pending.append(use)
        return False

    def _users(self, index: int) -> Iterator[int]:
        for value in self._graph.nodes[index].outputs:
            yield from self._uses.get(value, ()) if value is not None else ()

    def _ordered(self) -> Iterator[Region | int]:
        """Regions and single nodes, each after what it needs."""
        waiting: dict[int, set[int]] = {}
        units: dict[int, list[int]] = {}
        for index in range(len(self._graph.nodes)):
            unit = self._unit(index)
            units.setdefault(unit, []).append(index)
            needs = waiting.setdefault(unit, set())
            for value in self._graph.nodes[index].inputs:
                producer = self._producer.get(value) if value is not None else None
                if producer is not None and self._unit(producer) != unit:
                    needs.add(self._unit(producer))
        done: set[int] = set()
        pending = sorted(units)
        while pending:
            ready = [unit for unit in pending if waiting[unit] <= done]
            assert ready, "regions depend on each other"
            for unit in ready:
                group = self._group.get(unit)
                yield unit if group is None else Region(group.kind, tuple(sorted(group.nodes)), group.domain)
                done.add(unit)
            pending = [unit for unit in pending if unit not in done]

    def _unit(self, index: int) -> int:
        """The node that stands for a node's region."""
        group = self._group.get(index)
        return index if group is None else min(group.nodes)


def _common_domain(a: Shape, b: Shape) -> Shape | None:
    """The larger of two domains that are equal or differ in their rows' length only."""
    if a == b:
        return a
    if len(a) == len(b) and a[:-1] == b[:-1]:
        return a if b[-1] == 1 else b if a[-1] == 1 else None
    return None
