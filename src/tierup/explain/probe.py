"""Looks into a call: what a plan passes to each kernel, how large its values are, and where its time goes.

In: a plan with one compiled function. Out: the same plan with call-outs of ours between its steps, run in the process's
own thread pool. Kernels are timed inside whole calls, so that each meets the data, the caches and the threads that it
meets when the model serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from tierup import _native
from tierup.adapt.planning import Planned
from tierup.codegen.objects import build
from tierup.explain.steps import Insertion, Step, kernel_registers, operands, written
from tierup.ir.dims import READS, DimError, DimOp, apply
from tierup.ir.graph import Graph, ValueId
from tierup.ir.types import Array, Dim, Sym
from tierup.plan.program import BASELINE, Function, StepCode
from tierup.reference.evaluate import evaluate
from tierup.runtime.constants import bind_constants
from tierup.runtime.executable import Callout, bind_node
from tierup.runtime.kernels import load_code

_SMALL = 4096  # elements; integers that sizes are read from are far fewer
_CONTROL = ("onnx.If", "onnx.Loop", "onnx.Scan")
_LEAST_CALLS, _MOST_CALLS = 3, 300
_WARM_S, _TIMING_S = 0.2, 2.0

_NOTHING = -1  # stands for a node that does nothing

Run = Callable[[_native.Program], Any]


@dataclass(frozen=True)
class Passed:
    """What a call passes to a kernel: its size arguments, scratch for each thread, grid steps, and steps in a piece."""

    sizes: tuple[int, ...]
    scratch_bytes: int
    steps: int
    grain: int


@dataclass
class Sounding:
    """What one call looked like. `kernels` is by position; it is empty where a guard turned the call away."""

    kernels: dict[int, Passed] = field(default_factory=dict)
    shapes: dict[ValueId, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[ValueId, Array] = field(default_factory=dict)
    arena_bytes: int = 0


@dataclass(frozen=True)
class Times:
    """Medians over calls: the whole call as it is; each kernel by position, each node that runs alone by index; and all
    that is between those together. Other work on the machine lengthens the first more than the sum of the others, since
    what interrupts a call is in few of its parts."""

    calls: int
    call_us: float
    kernels_us: dict[int, float]
    nodes_us: dict[int, float]
    rest_us: float

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


@dataclass(frozen=True)
class Span:
    """Some steps of a function, from `begin` to before `end`."""

    begin: int
    end: int


class Probes:
    """A plan, ready to run as it is and with probes. Building its kernels takes some tenths of a second."""

    def __init__(self, planned: Planned, threads: int) -> None:
        self._plan, self._compiled = planned.compiled.plan, planned.compiled.functions[0]
        self._graph = self._compiled.graph
        weights = planned.weights
        constants = [(entry,) if isinstance(entry, str) else entry for entry in self._plan.constants]
        self._constants = list(bind_constants(constants, weights, threads).values())

        def run_graph(body: Graph, inputs: Sequence[Any]) -> list[Any]:
            return evaluate(body, weights, inputs)

        self._callouts: list[Callout] = [bind_node(node, run_graph) for node in self._plan.callouts]
        self._kernels = dict(enumerate(load_code(build(planned.compiled.programs, planned.target), planned.target)))
        self.kernel_spans = _kernel_spans(self._steps)
        self.node_spans = {**self._callout_spans(), **self._control_spans()}

    @property
    def _steps(self) -> tuple[Step, ...]:
        return self._plan.functions[0].steps

    def sound(self, run: Run) -> Sounding:
        """Run one call and note everything about it but its time."""
        found, out = Sounding(), Insertion(self._plan.functions[0], len(self._callouts))
        for number, span in enumerate(self.kernel_spans):
            self._note_kernel(out, found, number, span.begin)
        self._note_arena(out, found)
        read = {value for op in self._graph.dims if op.op in READS and isinstance(value := op.args[0], int)}
        for position, step in enumerate(self._steps):
            given = operands(step) if step[0] == StepCode.KERNEL else ()
            for value in read.intersection((*written(step), *given)).difference(self._graph.inputs):
                out.callout(position + 1, _Keep(found, value), [value])
        for value in read.intersection(self._graph.inputs):
            out.callout(len(self._steps), _Keep(found, value), [value])
        run(self._program(out.finish(), out.callouts))
        return found

    def _note_arena(self, out: Insertion, found: Sounding) -> None:
        def note(total: Any) -> tuple[()]:
            found.arena_bytes = int(total)
            return ()

        for position, step in enumerate(self._steps):
            if step[0] == StepCode.ARENA:
                out.dims(position, step[1:], note)

    def _note_kernel(self, out: Insertion, found: Sounding, number: int, position: int) -> None:
        sizes, (scratch, steps, grain) = kernel_registers(self._steps[position])
        has_scratch = scratch >= 0

        def note(*values: Any) -> tuple[()]:
            *given, total, least = map(int, values)
            room = given.pop() if has_scratch else 0
            found.kernels[number] = Passed(tuple(given), room, total, max(least, 1))
            return ()

        out.dims(position, [*sizes, *([scratch] if has_scratch else []), steps, grain], note)

    def time(self, run: Run, timing_s: float = _TIMING_S) -> Times:
        """Run calls in turn as they are and with clocks, for about so long: native ones at kernels, ours at nodes."""
        plain, out = self._program(self._plan.functions[0], []), Insertion(self._plan.functions[0], len(self._callouts))
        clocks = self._add_clocks(out)
        timed = self._program(out.finish(), out.callouts)
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

    def _add_clocks(self, out: Insertion) -> dict[int, _Clock]:
        """A clock for each node that runs alone, and one with nothing in it, which shows what a clock itself takes."""
        spans = dict(sorted(self.node_spans.items(), key=lambda item: item[1].begin))
        clocks = {index: _Clock() for index in spans}
        for index, span in spans.items():
            out.callout(span.end, clocks[index].stop)
        if spans:
            # In the midst of the others, where caches are as they are for those.
            middle = list(spans.values())[len(spans) // 2].begin
            clocks[_NOTHING] = _Clock()
            out.callout(middle, clocks[_NOTHING].start)
            out.callout(middle, clocks[_NOTHING].stop)
        for index, span in spans.items():  # last: where one ends and the next begins, the first stops first
            out.callout(span.begin, clocks[index].start)
        return clocks

    def _program(self, function: Function, callouts: Sequence[Callout]) -> _native.Program:
        functions = [function, *self._plan.functions[1:]]
        program = _native.Program(
            functions=[function.native() for function in functions],
            callouts=[*self._callouts, *callouts],
            constants=self._constants,
            slots=self._plan.slots,
        )
        program.publish(self._kernels)
        return program

    def _callout_spans(self) -> dict[int, Span]:
        """Where each node that calls out does so, by its position in the graph."""
        indices = {id(node): index for index, node in enumerate(self._graph.nodes)}
        return {
            indices[id(node)]: Span(position, position + 1)
            for position, step in enumerate(self._steps)
            if step[0] == StepCode.CALLOUT and (node := self._plan.callouts[step[1]]).op != BASELINE
        }

    def _control_spans(self) -> dict[int, Span]:
        """The steps of each node of control flow that is jumps and calls: back from where its results are written."""
        found = {}
        for index, node in enumerate(self._graph.nodes):
            if node.op not in _CONTROL:
                continue
            results = {value for value in node.outputs if value is not None}
            ends = [position for position, step in enumerate(self._steps) if results.intersection(written(step))]
            if not ends or self._steps[ends[-1]][0] == StepCode.CALLOUT:
                continue
            begin = ends[-1]
            while begin and not self._is_of_others(self._steps[begin - 1], results):
                begin -= 1
            found[index] = Span(begin, ends[-1] + 1)
        return found

    def _is_of_others(self, step: Step, results: set[ValueId]) -> bool:
        """Whether a step writes a value of the graph that is not among `results`."""
        if step[0] in (StepCode.KERNEL, StepCode.CALLOUT, StepCode.DEFAULT, StepCode.CONSTANT, StepCode.ARENA):
            return True
        return any(value < len(self._graph.values) and value not in results for value in written(step))


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
    """Two moments of a call."""

    def __init__(self) -> None:
        self.began_ns = self.ended_ns = 0

    def start(self) -> tuple[()]:
        self.began_ns = time.perf_counter_ns()
        return ()

    def stop(self) -> tuple[()]:
        self.ended_ns = time.perf_counter_ns()
        return ()


@dataclass(frozen=True)
class _Sample:
    """Nanoseconds of one call as it is; and of one with clocks: kernels by position, nodes by index, all of it."""

    call_ns: int
    kernels_ns: dict[int, int]
    nodes_ns: dict[int, int]
    timed_ns: int


def _sample(run: Run, timed: _native.Program, clocks: dict[int, _Clock], call_ns: int) -> _Sample:
    timed.time_kernels(True)  # from zero
    began_ns = time.perf_counter_ns()
    run(timed)
    ended_ns = time.perf_counter_ns()
    steps = [(step, taken_ns) for function, step, _, taken_ns in timed.kernel_times() if function == 0]
    # Either all kernels ran, or a guard turned the call away; a clock that did not run shows an earlier call's time.
    kernels_ns = {number: taken_ns for number, (_, taken_ns) in enumerate(sorted(steps))}
    nodes_ns = {index: clock.ended_ns - clock.began_ns for index, clock in clocks.items() if clock.began_ns >= began_ns}
    return _Sample(call_ns, kernels_ns, nodes_ns, ended_ns - began_ns)


def _times(samples: Sequence[_Sample]) -> Times:
    """Medians, without what the clocks took: each takes its time once inside and once outside."""
    last = samples[-1]
    clock_us = _median_us(sample.nodes_ns[_NOTHING] for sample in samples) if _NOTHING in last.nodes_ns else 0.0
    kernels_us = {number: _median_us(sample.kernels_ns[number] for sample in samples) for number in last.kernels_ns}
    nodes_us = {index: _median_us(sample.nodes_ns[index] for sample in samples) for index in last.nodes_ns}
    rest_us = _median_us(
        sample.timed_ns - sum(sample.kernels_ns.values()) - sum(sample.nodes_ns.values()) for sample in samples
    )
    return Times(
        calls=len(samples),
        call_us=_median_us(sample.call_ns for sample in samples),
        kernels_us=kernels_us,
        nodes_us={index: max(us - clock_us, 0.0) for index, us in nodes_us.items() if index != _NOTHING},
        rest_us=max(rest_us - clock_us * len(nodes_us), 0.0),
    )


def _median_us(times_ns: Iterable[int]) -> float:
    return median(times_ns) / 1e3


def _kernel_spans(steps: Sequence[Step]) -> list[Span]:
    return [Span(position, position + 1) for position, step in enumerate(steps) if step[0] == StepCode.KERNEL]
