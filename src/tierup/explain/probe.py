"""Looks into a call: what a plan passes to each kernel, how large its values are, and where its time goes.

In: a plan. Out: the same plan with call-outs of ours between the steps of its functions, the model's and
those of bodies, run in the process's own thread pool. Kernels are timed inside whole calls, so that each meets the
data, the caches and the threads that it meets when the model serves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct, field

from tierup import _native
from tierup.adapt.planning import Planned
from tierup.codegen.objects import build
from tierup.explain.steps import Insertion, Step, kernel_registers, operands, written
from tierup.ir.dims import READS, DimError, DimOp, apply
from tierup.ir.facts import native_facts
from tierup.ir.graph import Graph, ValueId
from tierup.ir.types import Array, Dim, Sym
from tierup.plan.program import BASELINE, Function, StepCode
from tierup.reference.evaluate import evaluate
from tierup.runtime.compiled import Function as Compiled
from tierup.runtime.constants import bind_constants
from tierup.runtime.executable import Callout, bind_node
from tierup.runtime.kernels import load_code, publish_loaded

_SMALL = 4096  # elements; integers that sizes are read from are far fewer
_LEAST_CALLS, _MOST_CALLS = 3, 300
_WARM_S, _TIMING_S = 0.2, 2.0

Place = tuple[int, int]  # the number of a function in the plan; the position of a kernel in it, or of a node
_NOTHING: Place = (-1, -1)  # stands for a node that does nothing

Run = Callable[[_native.Program], Any]


class Passed(Struct, frozen=True):
    """What a call passes to a kernel: its size arguments, scratch for each thread, grid steps, and steps in a piece."""

    sizes: tuple[int, ...]
    scratch_bytes: int
    steps: int
    grain: int


class Sounding(Struct):
    """What one function looked like in a call, when it ran first.

    `kernels` is by position; it is empty where the function did not run, or a guard turned the call away.
    """

    kernels: dict[int, Passed] = field(default_factory=dict)
    shapes: dict[ValueId, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[ValueId, Array] = field(default_factory=dict)
    arena_bytes: int = 0


class Times(Struct, frozen=True):
    """Medians over calls: the whole call as it is; each kernel and each node that runs alone, all its runs in a call
    together; and all that is between those. `runs` is how often a kernel ran. Other work on the machine lengthens the
    first more than the sum of the others, since what interrupts a call is in few of its parts."""

    calls: int
    call_us: float
    kernels_us: dict[Place, float]
    nodes_us: dict[Place, float]
    rest_us: float
    runs: dict[Place, int]

    @property
    def parts_us(self) -> float:
        """What kernels, nodes and the rest add up to."""
        return sum(self.kernels_us.values()) + sum(self.nodes_us.values()) + self.rest_us


class Unknown(LookupError):
    """A size that a call did not come to."""


class Sizes:
    """The sizes of a dim program as they were in one call; Unknown for one that it did not need."""

    def __init__(self, dims: Sequence[DimOp], sounding: Sounding) -> None:
        self._results: list[int | None] = []
        for op in dims:
            if op.op in READS:
                self._results.append(_read(sounding, op.op, *op.args))
            else:
                self._results.append(self._apply(op.op, op.args))

    def known(self, dim: Dim) -> int | None:
        return self._results[dim.id] if isinstance(dim, Sym) else dim

    def __call__(self, dim: Dim) -> int:
        number = self.known(dim)
        if number is None:
            raise Unknown(f"the call did not need the size {dim!r}")
        return number

    def _apply(self, op: str, args: tuple[Dim, ...]) -> int | None:
        numbers = [number for arg in args if (number := self.known(arg)) is not None]
        try:
            return apply(op, *numbers) if len(numbers) == len(args) else None
        except DimError:
            return None


def _read(sounding: Sounding, op: str, value: Dim, index: Dim) -> int | None:
    assert isinstance(value, int)
    assert isinstance(index, int)
    if op == "of":
        shape = sounding.shapes.get(value, ())
        return shape[index] if -len(shape) <= index < len(shape) else None
    numbers = sounding.numbers.get(value)
    return int(numbers.reshape(-1)[index]) if numbers is not None and index < numbers.size else None


class Span(Struct, frozen=True):
    """Some steps of a function, from `begin` to before `end`."""

    begin: int
    end: int


class Probes:
    """A plan, ready to run as it is and with probes. Building its kernels takes some tenths of a second.

    `functions` are those that calls run, the outermost first: where the plan is closed to a signature and has a
    function of its own for that, or one for calls in which less may be assumed of sizes, this one. `node_spans` are the
    steps of each node that calls out.
    """

    def __init__(self, planned: Planned, threads: int) -> None:
        self._plan = planned.compiled.plan
        first, closed = planned.compiled.functions[0], planned.compiled.functions[-1]
        opened = next((function for function in planned.compiled.functions if function.strays), first)
        outermost = opened if closed.number == opened.number else closed
        self.functions = (outermost, *outermost.bodies)
        weights = planned.weights
        constants = [(entry,) if isinstance(entry, str) else entry for entry in self._plan.constants]
        self._constants = list(bind_constants(constants, weights, threads).values())

        def run_graph(body: Graph, inputs: Sequence[Any]) -> list[Any]:
            return evaluate(body, weights, inputs)

        self._callouts: list[Callout] = [bind_node(node, run_graph) for node in self._plan.callouts]
        self._kernels = load_code(build(planned.compiled.programs, planned.target), planned.target)
        self.node_spans = {place: span for function in self.functions for place, span in self._callout_spans(function)}

    def sound(self, run: Run) -> dict[int, Sounding]:
        """Run one call and note everything about its functions, by number, but their times."""
        found = {function.number: Sounding() for function in self.functions}
        changed, callouts = {}, list[Callout]()
        for function in self.functions:
            out = Insertion(self._plan.functions[function.number], len(self._callouts) + len(callouts))
            self._note(out, found[function.number], function)
            changed[function.number] = out.finish()
            callouts += out.callouts
        run(self._program(changed, callouts))
        return found

    def _steps(self, function: Compiled) -> tuple[Step, ...]:
        return self._plan.functions[function.number].steps

    def _note(self, out: Insertion, found: Sounding, function: Compiled) -> None:
        steps, graph = self._steps(function), function.graph
        for number, span in enumerate(_kernel_spans(steps)):
            self._note_kernel(out, found, number, span.begin, steps)
        self._note_arena(out, found, steps)
        read = {value for op in graph.dims if op.op in READS and isinstance(value := op.args[0], int)}
        for position, step in enumerate(steps):
            given = operands(step) if step[0] == StepCode.KERNEL else ()
            for value in read.intersection((*written(step), *given)).difference(graph.inputs):
                out.callout(position + 1, _Keep(found, value), [value])
        for value in read.intersection(graph.inputs):
            out.callout(len(steps), _Keep(found, value), [value])

    def _note_arena(self, out: Insertion, found: Sounding, steps: Sequence[Step]) -> None:
        def note(total: Any) -> tuple[()]:
            found.arena_bytes = max(found.arena_bytes, int(total))
            return ()

        for position, step in enumerate(steps):
            if step[0] == StepCode.ARENA:
                out.dims(position, step[1:], note)

    def _note_kernel(self, out: Insertion, found: Sounding, number: int, position: int, steps: Sequence[Step]) -> None:
        sizes, (scratch, extent, grain) = kernel_registers(steps[position])
        has_scratch = scratch >= 0

        def note(*values: Any) -> tuple[()]:
            *given, total, least = map(int, values)
            room = given.pop() if has_scratch else 0
            found.kernels.setdefault(number, Passed(tuple(given), room, total, max(least, 1)))
            return ()

        out.dims(position, [*sizes, *([scratch] if has_scratch else []), extent, grain], note)

    def time(self, run: Run, timing_s: float = _TIMING_S) -> Times:
        """Run calls in turn as they are and with clocks, for about so long: native ones at kernels, ours at nodes."""
        plain = self._program({}, [])
        clocks = {place: _Clock() for place in (*self.node_spans, *([_NOTHING] if self.node_spans else []))}
        timed = self._with_clocks(clocks)
        began_s = time.perf_counter()
        while time.perf_counter() < began_s + _WARM_S:
            run(plain)
            run(timed)
        samples: list[_Sample] = []
        end_s = time.perf_counter() + timing_s
        while len(samples) < _LEAST_CALLS or (time.perf_counter() < end_s and len(samples) < _MOST_CALLS):
            began_ns = time.perf_counter_ns()
            run(plain)
            call_ns = time.perf_counter_ns() - began_ns
            samples.append(_sample(run, timed, clocks, call_ns))
        return _times(samples)

    def _with_clocks(self, clocks: dict[Place, _Clock]) -> _native.Program:
        """A clock for each node that runs alone, and one with nothing in it, which shows what a clock itself takes."""
        changed, callouts = {}, list[Callout]()
        middle = list(self.node_spans)[len(self.node_spans) // 2] if self.node_spans else None
        for function in self.functions:
            out = Insertion(self._plan.functions[function.number], len(self._callouts) + len(callouts))
            spans = {place: span for place, span in self.node_spans.items() if place[0] == function.number}
            spans = dict(sorted(spans.items(), key=lambda item: item[1].begin))
            for place, span in spans.items():
                out.callout(span.end, clocks[place].stop)
            if middle in spans:
                # In the midst of the others, where caches are as they are for those.
                out.callout(spans[middle].begin, clocks[_NOTHING].start)
                out.callout(spans[middle].begin, clocks[_NOTHING].stop)
            for place, span in spans.items():  # last: where one ends and the next begins, the first stops first
                out.callout(span.begin, clocks[place].start)
            changed[function.number] = out.finish()
            callouts += out.callouts
        return self._program(changed, callouts)

    def _program(self, changed: Mapping[int, Function], callouts: Sequence[Callout]) -> _native.Program:
        functions = [changed.get(number, function) for number, function in enumerate(self._plan.functions)]
        program = _native.Program(
            functions=[function.native() for function in functions],
            callouts=[*self._callouts, *callouts],
            constants=self._constants,
            slots=self._plan.slots,
            facts=native_facts(self._plan.facts),
        )
        publish_loaded(program, self._kernels, self._plan.variants)
        return program

    def _callout_spans(self, function: Compiled) -> Iterator[tuple[Place, Span]]:
        """Where each node that calls out does so, by its position in the graph."""
        indices = {id(node): index for index, node in enumerate(function.graph.nodes)}
        for position, step in enumerate(self._steps(function)):
            if step[0] == StepCode.CALLOUT and (node := self._plan.callouts[step[1]]).op != BASELINE:
                yield (function.number, indices[id(node)]), Span(position, position + 1)


class _Keep:
    """Keeps a value's shape, and its content if it is a few integers; what was seen first stays."""

    def __init__(self, found: Sounding, value: ValueId) -> None:
        self._found, self._value = found, value

    def __call__(self, given: Any) -> tuple[()]:
        if isinstance(given, np.ndarray):
            self._found.shapes.setdefault(self._value, given.shape)
            if given.dtype.kind in "iub" and given.size <= _SMALL:
                self._found.numbers.setdefault(self._value, given.copy())
        return ()


class _Clock:
    """The time between two moments of a call, added up where they come again."""

    def __init__(self) -> None:
        self.total_ns = self.stops = self._began_ns = 0

    def reset(self) -> None:
        self.total_ns = self.stops = 0

    def start(self) -> tuple[()]:
        self._began_ns = time.perf_counter_ns()
        return ()

    def stop(self) -> tuple[()]:
        self.total_ns += time.perf_counter_ns() - self._began_ns
        self.stops += 1
        return ()


class _Sample(Struct, frozen=True):
    """Nanoseconds of one call as it is; and of one with clocks: kernels and nodes by place, with how often they ran;
    and all of it."""

    call_ns: int
    kernels: dict[Place, tuple[int, int]]
    nodes: dict[Place, tuple[int, int]]
    timed_ns: int


def _sample(run: Run, timed: _native.Program, clocks: dict[Place, _Clock], call_ns: int) -> _Sample:
    for clock in clocks.values():
        clock.reset()
    timed.time_kernels(True)  # from zero
    began_ns = time.perf_counter_ns()
    run(timed)
    ended_ns = time.perf_counter_ns()
    # Where a function ran all its kernels did, unless a guard turned the call away.
    kernels, positions = {}, Counter[int]()
    for function, _, runs, taken_ns in sorted(timed.kernel_times()):
        kernels[function, positions[function]] = (taken_ns, runs)
        positions[function] += 1
    nodes = {place: (clock.total_ns, clock.stops) for place, clock in clocks.items() if clock.stops}
    return _Sample(call_ns, kernels, nodes, ended_ns - began_ns)


def _times(samples: Sequence[_Sample]) -> Times:
    """Medians, without what the clocks took: each takes its time once inside and once outside."""
    last = samples[-1]
    clock_us = (
        _median_us(sample.nodes[_NOTHING][0] / sample.nodes[_NOTHING][1] for sample in samples)
        if _NOTHING in last.nodes
        else 0.0
    )
    kernels_us = {place: _median_us(sample.kernels[place][0] for sample in samples) for place in last.kernels}
    nodes_us = {place: _median_us(sample.nodes[place][0] for sample in samples) for place in last.nodes}
    rest_us = _median_us(
        sample.timed_ns - sum(ns for ns, _ in (*sample.kernels.values(), *sample.nodes.values())) for sample in samples
    )
    stops = sum(stops for _, stops in last.nodes.values())
    return Times(
        calls=len(samples),
        call_us=_median_us(sample.call_ns for sample in samples),
        kernels_us=kernels_us,
        nodes_us={p: max(us - clock_us * last.nodes[p][1], 0.0) for p, us in nodes_us.items() if p != _NOTHING},
        rest_us=max(rest_us - clock_us * stops, 0.0),
        runs={place: runs for place, (_, runs) in last.kernels.items()},
    )


def _median_us(times_ns: Iterable[float]) -> float:
    return median(times_ns) / 1e3


def _kernel_spans(steps: Sequence[Step]) -> list[Span]:
    return [Span(position, position + 1) for position, step in enumerate(steps) if step[0] == StepCode.KERNEL]
