"""A plan, a machine and one call -> the explanation: regions with work and time, what runs alone, what was refused.

Everything in it is plain data: the command line prints it, `--json` writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tierup.adapt.planning import Planned
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.objects import ENTRY, assembly
from tierup.cost.roofline import Work, border, bytes_of, roofline, work
from tierup.explain.probe import Probes, Sizes, Sounding, Times, Unknown
from tierup.explain.recipe import Recipe, recipe_of
from tierup.explain.traffic import Elements, traffic
from tierup.ir.dims import READS, DimOp
from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Dim, Sym, TensorType
from tierup.lower.text import print_program
from tierup.plan.borders import borders
from tierup.plan.memory import Request, lower_bound
from tierup.plan.program import BODY
from tierup.profile.machine import Machine
from tierup.rewrite.decompose import reasons
from tierup.runtime.compiled import Function
from tierup.runtime.steps import Placed


class Operation(msgspec.Struct, frozen=True):
    """A node of a region: its core op, the types it reads and writes, and the model's node that it came from."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node: str


class Region(msgspec.Struct, frozen=True):
    """A region that runs as one kernel. Figures that the call did not give are None.

    `kernel` is the slot of its code, which `shared_by` regions have in common. `domain` is as this call has it, `open`
    names those of its sizes that are open. `body` is the body of control flow that it is in, by name; there it may run
    more than once, or not at all: `runs` times in this call. `work` is that of one run, times are those of all.
    """

    number: int
    body: str | None
    runs: int
    kind: str
    ops: tuple[str, ...]
    domain: tuple[int | None, ...]
    open: tuple[str | None, ...]
    kernel: int
    shared_by: int
    work: Work | None
    measured_us: float | None
    roofline_us: float | None
    bound: str | None
    share_of_roofline: float | None
    share_of_call: float | None
    operations: tuple[Operation, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    recipe: Recipe


class Alone(msgspec.Struct, frozen=True):
    """A node that runs in the reference tier, and why."""

    op: str
    node: str
    reason: str
    measured_us: float | None
    share_of_call: float | None


class Refused(msgspec.Struct, frozen=True):
    """Two regions, by number, that are not one, and why; `values` are what the second reads of the first."""

    producer: int
    consumer: int
    values: tuple[str, ...]
    reason: str
    detail: str


class Memory(msgspec.Struct, frozen=True):
    """The arena: its bytes in this call, the bytes that are alive together at the busiest step, and how many values."""

    arena_bytes: int | None
    lower_bound_bytes: int | None
    values: int


class Explanation(msgspec.Struct, frozen=True):
    """What became of a model.

    A call took `call_us`; regions, nodes alone and the rest (inputs, sizes, copies, results), each timed by itself, add
    up to `parts_us`, of which `share_of_call` is a share. `holds` is whether the plan's guard let the call through to
    its kernels; `broken` says which sizes were taken to be equal and are not. `views` are nodes that look at the same
    memory under other sizes, `not_needed` those that run nowhere.
    """

    target: str
    threads: int
    calls: int
    call_us: float
    parts_us: float
    rest_us: float
    holds: bool
    broken: tuple[str, ...]
    kernels: int
    regions: tuple[Region, ...]
    alone: tuple[Alone, ...]
    views: int
    not_needed: int
    refused: tuple[Refused, ...]
    memory: Memory

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` writes it."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class Code(msgspec.Struct, frozen=True):
    """The texts of one region's kernel; LLVM's and the assembly where they were asked for."""

    program: str
    llvm: str | None
    assembly: str | None


def explain(
    planned: Planned,
    machine: Machine,
    threads: int,
    probes: Probes,
    soundings: dict[int, Sounding],
    times: Times,
    functions: Sequence[Function] = (),
) -> Explanation:
    """Explain a plan by calls that were probed. `functions` are those that they ran, if not as they were probed."""
    parts: list[_Explainer] = []
    footprint_bytes, number = 0, 0
    functions = functions or probes.functions
    slots = Counter(placed.slot for function in functions for placed in function.kernels)
    for function in functions:
        sounding, inside = soundings[function.number], function is not functions[0]
        part = _Explainer(planned, machine, threads, function, probes, sounding, times, number, slots, inside)
        footprint_bytes += part.footprint_bytes
        number += len(function.kernels)
        parts.append(part)
    return Explanation(
        target=planned.target.name,
        threads=threads,
        calls=times.calls,
        call_us=times.call_us,
        parts_us=times.parts_us,
        rest_us=times.rest_us,
        holds=parts[0].ran,
        broken=tuple(parts[0].broken()),
        kernels=len(slots),
        regions=tuple(region for part in parts for region in part.regions(footprint_bytes)),
        alone=tuple(alone for part in parts for alone in part.alone()),
        views=sum(part.views for part in parts),
        not_needed=sum(part.not_needed for part in parts),
        refused=tuple(refused for part in parts for refused in part.refused()),
        memory=_all_memory([part.memory() for part in parts]),
    )


def _all_memory(memories: Sequence[Memory]) -> Memory:
    """Every function that runs has an arena of its own."""
    arenas = [memory.arena_bytes for memory in memories if memory.arena_bytes is not None]
    least = [memory.lower_bound_bytes for memory in memories if memory.lower_bound_bytes is not None]
    known = memories[0].arena_bytes is not None
    return Memory(
        sum(arenas) if known else None,
        sum(least) if known and len(least) == len(arenas) else None,
        sum(memory.values for memory in memories),
    )


def code_of(planned: Planned, region: Region, llvm: bool, asm: bool) -> Code:
    """What was generated for a region."""
    program = planned.compiled.programs[region.kernel]
    text = emit_llvm(replace(program, name=ENTRY), planned.target) if llvm or asm else ""
    return Code(print_program(program), text if llvm else None, assembly(text, planned.target) if asm else None)


_INFIX = {"add": "+", "sub": "-", "mul": "·", "floordiv": "÷", "truncdiv": "÷", "mod": "mod"}
_DEPTH = 6  # operations within each other that are written out


def dim_text(graph: Graph, dims: Sequence[DimOp], dim: Dim, depth: int = _DEPTH) -> str:
    """A size as an expression in the model's own names."""
    if not isinstance(dim, Sym):
        return str(dim)
    name = dict(graph.dim_names).get(dim.id)
    if name or not depth:
        return name or "…"
    op = dims[dim.id]
    if op.op in READS:
        value, index = op.args
        assert isinstance(value, int)
        return f"{graph.value_name(value)}{'.shape' if op.op == 'of' else ''}[{index}]"
    parts = [dim_text(graph, dims, arg, depth - 1) for arg in op.args]
    return f"({parts[0]} {_INFIX[op.op]} {parts[1]})" if op.op in _INFIX else f"{op.op}({', '.join(parts)})"


class _Explainer:
    """Explains one function; its regions are numbered from `first` on. `slots` says how many regions share a kernel,
    `inside` whether it is a body of control flow."""

    def __init__(
        self,
        planned: Planned,
        machine: Machine,
        threads: int,
        function: Function,
        probes: Probes,
        sounding: Sounding,
        times: Times,
        first: int,
        slots: Mapping[int, int],
        inside: bool,
    ) -> None:
        self._planned, self._machine, self._threads = planned, machine, threads
        self._function, self._sounding, self._times, self._first = function, sounding, times, first
        self._slots, self._inside = slots, inside
        self._graph: Graph = function.graph
        self._alone_at = sorted(index for number, index in probes.node_spans if number == function.number)
        self._sizes = Sizes(function.dims, sounding)
        self._names = dict(self._graph.dim_names)
        self.ran = bool(sounding.kernels) or not function.kernels
        self._moved = [self._traffic(placed) for placed in function.kernels]
        self._works = [self._work(*pair) for pair in zip(function.kernels, self._moved, strict=True)]

    def broken(self) -> Iterator[str]:
        """The assumptions that do not hold in this call."""
        for pair in self._function.assumed:
            left, right = map(self._sizes.known, pair)
            if left != right:
                texts = (dim_text(self._graph, self._function.dims, dim) for dim in pair)
                yield " and ".join(
                    text if text == str(number) else f"{text}, which is {number},"
                    for text, number in zip(texts, (left, right), strict=True)
                ).removesuffix(",")

    def regions(self, footprint_bytes: int) -> Iterator[Region]:
        """All regions; a call goes through so many bytes."""
        return (self._region(position, footprint_bytes) for position in range(len(self._function.kernels)))

    def _region(self, position: int, footprint_bytes: int) -> Region:
        placed, done = self._function.kernels[position], self._works[position]
        region, kernel, place = placed.region, placed.kernel, (self._function.number, position)
        nodes = [self._graph.nodes[index] for index in dict.fromkeys(region.nodes)]
        measured_us, runs = self._times.kernels_us.get(place), self._times.runs.get(place, 0)
        least = roofline(done, self._machine, self._threads, footprint_bytes) if done else None
        least_us = least.time_us * max(runs, 1) if least else None
        reads, writes = self._moved[position] or border(self._graph, region.nodes)
        return Region(
            number=self._first + position,
            body=self._graph.name or "body" if self._inside else None,
            runs=runs,
            kind=region.kind,
            ops=tuple(node.op.removeprefix("core.") for node in nodes),
            domain=tuple(self._known(dim) for dim in region.domain),
            open=tuple(self._open_name(dim) for dim in region.domain),
            kernel=placed.slot,
            shared_by=self._slots[placed.slot],
            work=done,
            measured_us=measured_us,
            roofline_us=least_us,
            bound=least.bound if least else None,
            share_of_roofline=least_us / measured_us if least_us is not None and measured_us else None,
            share_of_call=self._share(measured_us),
            operations=tuple(map(self._operation, nodes)),
            reads=tuple(map(self._typed, reads)),
            writes=tuple(map(self._typed, writes)),
            recipe=recipe_of(self._graph, kernel, self._sounding.kernels.get(position), self._threads),
        )

    def _traffic(self, placed: Placed) -> tuple[Elements, Elements] | None:
        if not self.ran:  # sizes that were taken to be equal may not be
            return None
        try:
            return traffic(self._graph, placed.region, placed.kernel, self._sizes)
        except Unknown:
            return None

    def _work(self, placed: Placed, moved: tuple[Elements, Elements] | None) -> Work | None:
        try:
            return work(self._graph, placed.region.nodes, self._sizes, *moved) if moved else None
        except Unknown:
            return None

    @property
    def footprint_bytes(self) -> int:
        """What a call goes through: all constants of its kernels, and the arena."""
        return sum(done.constant_bytes for done in self._works if done) + self._sounding.arena_bytes

    def _share(self, measured_us: float | None) -> float | None:
        return None if measured_us is None else measured_us / self._times.parts_us

    def _known(self, dim: Dim) -> int | None:
        return self._sizes.known(dim) if self.ran or isinstance(dim, int) else None

    def _open_name(self, dim: Dim) -> str | None:
        return self._names.get(dim.id, repr(dim)) if isinstance(dim, Sym) else None

    def _show(self, dim: Dim) -> str:
        known = self._known(dim)
        return str(known) if known is not None else self._open_name(dim) or "?"

    def _show_open(self, dim: Dim) -> str:
        """With its name: two open sizes may be one number in this call, and not be known to be one size."""
        name, known = self._open_name(dim), self._known(dim)
        return str(dim) if name is None else name if known is None else f"{name}={known}"

    def _operation(self, node: Node) -> Operation:
        return Operation(
            op=node.op,
            inputs=tuple("" if value is None else self._typed(value) for value in node.inputs),
            outputs=tuple("" if value is None else self._typed(value) for value in node.outputs),
            node=node.name,
        )

    def _typed(self, value: ValueId) -> str:
        """Name and type, with the sizes of this call."""
        type = self._graph.type(value)
        if not isinstance(type, TensorType) or type.shape is None:
            return f"{self._graph.value_name(value)}: {type!r}"
        shape = ", ".join(map(self._show, type.shape))
        return f"{self._graph.value_name(value)}: {type.dtype!r}[{shape}]"

    def alone(self) -> list[Alone]:
        """The nodes that call out."""
        whole = self._reasons()
        found = []
        for index in self._alone_at:
            node, us = self._graph.nodes[index], self._times.nodes_us.get((self._function.number, index))
            reason = whole.get((node.op, node.name)) or self._function.cut.refusals.get(index, "")
            found.append(Alone(node.op, node.name, reason, us, self._share(us)))
        return found

    def _reasons(self) -> dict[tuple[str, str], str]:
        """Why ops that are no core ops stayed whole."""
        if all(self._graph.nodes[index].op.startswith(("core.", BODY)) for index in self._alone_at):
            return {}
        return {(node.op, node.name): reason for node, reason in reasons(self._graph, self._planned.weights)}

    @property
    def views(self) -> int:
        return sum(node.op == "core.reshape" for node in self._graph.nodes)

    @property
    def not_needed(self) -> int:
        """Nodes that run nowhere: only sizes need them, or kernels read through them."""
        running = {index for placed in self._function.kernels for index in placed.region.nodes}
        running.update(self._alone_at)
        return sum(
            index not in running and not node.graphs and node.op != "core.reshape"
            for index, node in enumerate(self._graph.nodes)
        )

    def refused(self) -> list[Refused]:
        """Neighbours that are not one region, and why."""
        regions = [placed.region for placed in self._function.kernels]
        control = [index for index, node in enumerate(self._graph.nodes) if node.graphs]
        return [
            Refused(
                self._first + found.producer,
                self._first + found.consumer,
                tuple(self._graph.value_name(value) for value in found.values),
                found.reason,
                found.detail,
            )
            for found in borders(self._graph, regions, [*self._alone_at, *control], self._show_open)
        ]

    def memory(self) -> Memory:
        requests = self._function.arena
        if not self.ran:
            return Memory(None, None, len(requests))
        try:
            sizes = {request.size: self._bytes(request) for request in requests}
        except Unknown:
            return Memory(self._sounding.arena_bytes, None, len(requests))
        return Memory(self._sounding.arena_bytes, lower_bound(requests, sizes.__getitem__), len(requests))

    def _bytes(self, request: Request) -> int:
        return bytes_of(self._graph, request.key, self._sizes)
