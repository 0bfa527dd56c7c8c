"""Regions whose kernels may not serve -> nodes that compute the same values in the reference.

The cut stays as it is, so that every other kernel of the plan is the one that was proved. A stand-in holds the region's
nodes, and those that its kernel looked through, as a body.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.graph import Graph, Node, Value, ValueId
from tierup.ir.types import TensorType
from tierup.lower.kernel import Kernel
from tierup.plan.program import BODY
from tierup.plan.regions import Region

Unit = tuple[Region | Node, Kernel | None]  # a region with its kernel, or a node on its own


class StandIn(Struct, frozen=True):
    """A node that stands for a region, what it stands for, and why."""

    node: Node
    region: str
    reason: str


def results_of(kernel: Kernel) -> list[ValueId]:
    """The values that a kernel writes."""
    outs = {buffer.name for buffer in kernel.program.buffers if buffer.mode == "out"}
    passed = [buffer.name for buffer in kernel.program.buffers if buffer.mode != "scratch"]
    return [v for name, v in zip(passed, kernel.buffers, strict=True) if name in outs and isinstance(v, int)]


def with_stand_ins(
    graph: Graph, units: Sequence[Unit], why: Callable[[Kernel], str | None]
) -> tuple[list[Unit], list[StandIn]]:
    """The units, with a node in the place of every kernel that `why` has a reason against.

    Kernels that write parts of one value go together; whoever writes last is replaced by what computes it whole.
    """
    written = [_written(unit, kernel) for unit, kernel in units]
    refused = _refused(units, written, why)
    last = {value: position for position, values in enumerate(written) for value in values}
    there = set(graph.inputs)
    kept: list[Unit] = []
    made: list[StandIn] = []
    for position, ((unit, kernel), values) in enumerate(zip(units, written, strict=True)):
        whole = tuple(value for value in values if last[value] == position)
        if position not in refused:
            kept.append((unit, kernel))
        elif whole:
            assert isinstance(unit, Region)
            node = _body(graph, there, whole)
            kept.append((node, None))
            made.append(StandIn(node, _described(graph, unit), refused[position]))
        there.update(whole)
    return kept, made


def _written(unit: Region | Node, kernel: Kernel | None) -> list[ValueId]:
    if kernel is not None:
        return results_of(kernel)
    return [value for value in unit.outputs if value is not None] if isinstance(unit, Node) else []


def _refused(
    units: Sequence[Unit], written: Sequence[list[ValueId]], why: Callable[[Kernel], str | None]
) -> dict[int, str]:
    """Positions of units that are replaced, and why: those that are refused, and who writes the same values."""
    reasons = {p: reason for p, (_, kernel) in enumerate(units) if kernel is not None and (reason := why(kernel))}
    pending = list(reasons)
    while pending:
        position = pending.pop()
        for other, values in enumerate(written):
            if other not in reasons and not set(values).isdisjoint(written[position]):
                reasons[other] = reasons[position]
                pending.append(other)
    return reasons


def _body(graph: Graph, there: Set[ValueId], wanted: tuple[ValueId, ...]) -> Node:
    """A node that computes these values of what lies in memory by now."""
    producers, digests = graph.producers, graph.digests
    found: set[int] = set()
    inputs: dict[ValueId, None] = {}
    weights: dict[ValueId, None] = {}
    pending = list(wanted)
    while pending:
        value = pending.pop()
        if value in digests:
            weights.setdefault(value)
        elif value in there:
            inputs.setdefault(value)
        elif producers[value] not in found:
            found.add(producers[value])
            pending.extend(v for v in graph.nodes[producers[value]].inputs if v is not None)
    nodes = [graph.nodes[index] for index in sorted(found)]
    made = [value for node in nodes for value in node.outputs if value is not None]
    values = [*inputs, *weights, *made]
    places = {value: place for place, value in enumerate(values)}
    body = Graph(
        inputs=tuple(places[value] for value in inputs),
        outputs=tuple(places[value] for value in wanted),
        nodes=tuple(_renumbered(node, places) for node in nodes),
        values=tuple(_without_sizes(graph.values[value]) for value in values),
        weights=tuple((places[value], digests[value]) for value in weights),
        name="stand-in",
    )
    return Node(BODY, 1, tuple(inputs), wanted, graphs=(("graph", body),))


def _renumbered(node: Node, places: dict[ValueId, int]) -> Node:
    def place(values: tuple[ValueId | None, ...]) -> Iterator[ValueId | None]:
        return (None if value is None else places[value] for value in values)

    return replace(node, inputs=tuple(place(node.inputs)), outputs=tuple(place(node.outputs)))


def _without_sizes(value: Value) -> Value:
    """The reference takes shapes from the arrays; a body has no dim program of its own."""
    type = value.type
    return Value(TensorType(type.dtype, None) if isinstance(type, TensorType) else type, value.name)


def _described(graph: Graph, region: Region) -> str:
    ops = Counter(graph.nodes[index].op.removeprefix("core.") for index in region.nodes)
    listed = ", ".join(f"{count} {op}" if count > 1 else op for op, count in ops.items())
    return f"{region.kind} region ({listed})"
