"""Which nodes of a core graph run as one kernel: regions, and the reason for every node that is in none.

A *rows* region is maps and reductions over the last axis on one domain: every value in it has the domain's shape, or
that shape with a last size of 1. A *matmul* region is one product and the maps that follow it. A *move* region is one
transpose or broadcast that has to be written out. `legality` says whether a node could be compiled at all; what joins
what is decided by `cut`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Dim, DType, Shape, TensorType

COMPUTED = frozenset({DType.F32, DType.F64, DType.I32, DType.I64, DType.U8, DType.I8, DType.BOOL})
REDUCTIONS = {"core.reduce_sum": "sum", "core.reduce_prod": "prod", "core.reduce_max": "max", "core.reduce_min": "min"}
# The element-wise core ops that tile programs have maps for; a test keeps the two lists equal.
ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "div", "eq", "erf",
    "exp", "expm1", "floor", "fmod", "le", "log", "log1p", "lt", "max", "min", "mod", "mul", "neg", "not", "or", "pow",
    "round", "select", "shl", "shr", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "xor",
})  # fmt: skip
MOVES = frozenset({"core.transpose", "core.broadcast"})
_FLOAT_ONLY = frozenset({"pow", "fmod"})  # integer forms are not lowered yet


@dataclass(frozen=True)
class Region:
    """Nodes by position in the graph, in an order in which they can run, and the shape they run over."""

    kind: str
    nodes: tuple[int, ...]
    domain: Shape


@dataclass(frozen=True)
class Cut:
    """A graph divided: regions and single nodes, in an order in which they can run, and why nodes stand alone."""

    order: tuple[Region | int, ...]
    refusals: dict[int, str] = field(default_factory=dict)


def legality(graph: Graph, node: Node) -> str | None:
    """Why a node cannot be part of any region; None if it can."""
    if not node.op.startswith("core."):
        return f"{node.op} is no core op"
    for value in (*node.inputs, *node.outputs):
        if value is None:
            continue
        type = graph.type(value)
        if not isinstance(type, TensorType) or type.shape is None:
            return "a rank is known only in the call"
        if type.dtype not in COMPUTED:
            return f"{type.dtype!r} is not compiled yet"
    if node.op == "core.matmul":
        return _matmul_legality(graph, node)
    if node.op in MOVES:
        return _move_legality(graph, node)
    if node.op in REDUCTIONS:
        return _reduction_legality(graph, node)
    return _map_legality(graph, node)


def _matmul_legality(graph: Graph, node: Node) -> str | None:
    left, right = (_tensor(graph, value) for value in node.inputs)
    if left.dtype is not DType.F32:
        return f"products of {left.dtype!r} are not compiled yet"
    if len(_shape(right)) != 2 and _shape(left)[:-2] != _shape(right)[:-2]:
        return "the batches of the product are not known to be equal"
    return None


def _move_legality(graph: Graph, node: Node) -> str | None:
    source, result = _shape(_tensor(graph, node.inputs[0])), _shape(_tensor(graph, node.outputs[0]))
    if not result:
        return "a single element is not worth a kernel"
    if node.op == "core.broadcast" and present_axes(source, result) is None:
        return "whether a size broadcasts is known only in the call"
    return None


def _reduction_legality(graph: Graph, node: Node) -> str | None:
    source = _tensor(graph, node.inputs[0])
    rank = len(_shape(source))
    if tuple(node.attrs["axes"]) != (rank - 1,):
        return "only reductions over the last axis are compiled yet"
    if not source.dtype.is_float and source.dtype not in (DType.I32, DType.I64):
        return f"reductions of {source.dtype!r} are not compiled yet"
    return None


def _map_legality(graph: Graph, node: Node) -> str | None:
    name = node.op.removeprefix("core.")
    if node.op == "core.reshape":
        return "it is the same memory under other sizes: no kernel is needed"
    if name not in ELEMENTWISE and name != "cast":
        return f"{node.op} has no lowering yet"
    result = _tensor(graph, node.outputs[0])
    if name in _FLOAT_ONLY and not result.dtype.is_float:
        return f"{node.op} of {result.dtype!r} has no lowering yet"
    if not _shape(result):
        return "a single element is not worth a kernel"
    for value in node.inputs:
        if present_axes(_shape(_tensor(graph, value)), _shape(result)) is None:
            return "whether a size broadcasts is known only in the call"
    return None


def _tensor(graph: Graph, value: ValueId | None) -> TensorType:
    assert value is not None
    type = graph.type(value)
    assert isinstance(type, TensorType)
    return type


def _shape(type: TensorType) -> Shape:
    assert type.shape is not None
    return type.shape


def present_axes(shape: Shape, domain: Shape) -> tuple[bool, ...] | None:
    """For each axis of the domain, whether `shape` has it or repeats along it; None where that is not known."""
    if len(shape) > len(domain):
        return None
    padded: tuple[Dim, ...] = (1,) * (len(domain) - len(shape)) + shape
    present = []
    for own, whole in zip(padded, domain, strict=True):
        if own == whole:
            present.append(True)
        elif own == 1:
            present.append(False)
        else:
            return None
    return tuple(present)


def row_shape(domain: Shape) -> Shape:
    """The shape of one element a row."""
    return (*domain[:-1], 1)


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
        for index, node in enumerate(self._graph.nodes):
            reason = legality(self._graph, node)
            if reason is not None:
                self._refusals[index] = reason
            elif index not in self._group:
                self._place(index, node)
        return Cut(tuple(self._ordered()), self._refusals)

    def _place(self, index: int, node: Node) -> None:
        if node.op == "core.matmul":
            self._matmul(index, node)
            return
        if node.op in MOVES:
            self._group[index] = _Group("move", _shape(_tensor(self._graph, node.outputs[0])), index)
            return
        domain = _shape(_tensor(self._graph, node.inputs[0] if node.op in REDUCTIONS else node.outputs[0]))
        group = _Group("rows", domain, index)
        self._group[index] = group
        for value in node.inputs:
            producer = self._producer.get(value) if value is not None else None
            before = self._group.get(producer) if producer is not None else None
            if before is not None and before is not self._group[index]:
                self._join(before, self._group[index])

    def _matmul(self, index: int, node: Node) -> None:
        """The product and the chain of maps behind it that nobody else looks into."""
        result = node.outputs[0]
        domain = _shape(_tensor(self._graph, result))
        group = _Group("matmul", domain, index)
        self._group[index] = group
        while result is not None and result not in self._graph.outputs and len(self._uses.get(result, ())) == 1:
            following = self._uses[result][0]
            after = self._graph.nodes[following]
            if not self._epilogue(after, domain):
                return
            group.nodes.append(following)
            self._group[following] = group
            result = after.outputs[0]

    def _epilogue(self, node: Node, domain: Shape) -> bool:
        if node.op.removeprefix("core.") not in ELEMENTWISE or legality(self._graph, node) is not None:
            return False
        if _shape(_tensor(self._graph, node.outputs[0])) != domain:
            return False
        shapes = [_shape(_tensor(self._graph, value)) for value in node.inputs]
        return all(shape == domain or shape in ((), (1,)) or shape == domain[-1:] for shape in shapes)

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
            shapes = [_shape(_tensor(self._graph, value)) for value in node.inputs]
            result = _shape(_tensor(self._graph, node.outputs[0]))
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
