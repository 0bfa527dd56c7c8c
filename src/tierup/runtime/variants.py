"""Variants of an open function's kernels: the same regions, with the sizes of one signature as numbers.

A variant hangs in the slot of the open kernel and is called in its place, with the same buffers, where the step's sizes
are those that it was made for. So its buffers must be the open kernel's, packed alike, and what may lie in one memory
for the open kernel must be allowed to for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from tierup.ir.dims import READS, DimBuilder, DimError, DimOp, apply
from tierup.ir.graph import Graph, Value
from tierup.ir.types import Dim, Sym, TensorType
from tierup.lower.kernel import Kernel
from tierup.plan.program import Variant
from tierup.plan.regions import Region
from tierup.runtime.progress import Signature
from tierup.runtime.standins import results_of
from tierup.runtime.steps import KernelFunction, Placed

_MEMORY = "plan.memory"  # whatever made a value that lies in memory


@dataclass(frozen=True)
class Closed:
    """The variants of one function for one signature: the graph with numbers for sizes, its dims, and the kernels, each
    placed at its number among the plan's."""

    signature: Signature
    graph: Graph
    dims: tuple[DimOp, ...]
    kernels: tuple[Placed, ...]
    variants: tuple[Variant, ...]


class Sizes:
    """The numbers that the dims of a function have in calls with one signature, as far as inputs decide them."""

    def __init__(self, ops: Sequence[DimOp], graph: Graph, signature: Signature) -> None:
        self._ops = ops
        shapes = dict(zip(graph.inputs, signature, strict=True))
        self._known: dict[Sym, int] = {}
        for number, op in enumerate(ops):
            if op.op in READS:
                found = _read(op, shapes)
            else:
                arguments = [self.of(argument) for argument in op.args]
                try:
                    found = None if None in arguments else apply(op.op, *arguments)  # type: ignore[arg-type]
                except DimError:  # calls with these sizes fail, or go another way
                    found = None
            if found is not None:
                self._known[Sym(number)] = found

    def of(self, dim: Dim) -> int | None:
        """The number of a dim; None if it is known only in the call."""
        return self._known.get(dim) if isinstance(dim, Sym) else dim

    def numbers(self, dims: Sequence[Dim]) -> list[int] | None:
        """The numbers of all of them, or None."""
        found = [number for dim in dims if (number := self.of(dim)) is not None]
        return found if len(found) == len(dims) else None

    def closed(self, thing: Any) -> Any:
        """Something that is made of dims, with numbers in place of those that are known."""
        if isinstance(thing, Sym):
            return self._known.get(thing, thing)
        if isinstance(thing, tuple):
            return tuple(map(self.closed, thing))
        if is_dataclass(thing) and not isinstance(thing, type):
            return replace(thing, **{field.name: self.closed(getattr(thing, field.name)) for field in fields(thing)})
        return thing

    @property
    def ops(self) -> tuple[DimOp, ...]:
        """The instructions, with numbers as arguments where they are known."""
        return tuple(op if op.op in READS else replace(op, args=self.closed(op.args)) for op in self._ops)


def _read(op: DimOp, shapes: dict[int, tuple[int, ...]]) -> int | None:
    value, axis = op.args
    if op.op != "of" or not isinstance(value, int) or not isinstance(axis, int) or value not in shapes:
        return None
    shape = shapes[value]
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def close_kernels(written: KernelFunction, signature: Signature) -> Closed:
    """The variants of a function's kernels for a signature: those that fit their slots and may serve."""
    sizes = Sizes(written.dims, written.graph, signature)
    graph = replace(written.graph, values=tuple(_closed_value(sizes, value) for value in written.graph.values))
    dims, compiler = DimBuilder(sizes.ops), written.compiler
    made: dict[int, tuple[Placed, Variant]] = {}
    for position, placed in enumerate(written.placed if _is_sound(graph) else ()):
        region: Region = sizes.closed(placed.region)
        given = _with_memory(graph, placed)
        kernel = compiler.lowered(given, region, dims)
        call = _call(placed, kernel, sizes)
        if call is not None and compiler.why_refused(kernel) is None:
            number = compiler.variant_program(kernel.program)
            made[position] = replace(placed, region=region, kernel=kernel, slot=number), replace(call, kernel=number)
    kept = _unambiguous(_whole(written.placed, made))
    return Closed(
        signature, graph, tuple(dims.ops), tuple(p for p, _ in kept), tuple(dict.fromkeys(v for _, v in kept))
    )


def _is_sound(graph: Graph) -> bool:
    """Whether calls with these sizes can be answered: signatures of calls that failed may have been counted, too."""
    shapes = (value.type.shape or () for value in graph.values if isinstance(value.type, TensorType))
    return all(dim >= 0 for shape in shapes for dim in shape if isinstance(dim, int))


def _with_memory(graph: Graph, placed: Placed) -> Graph:
    """The graph as a kernel sees it whose buffers are decided: what made them is not looked through."""
    buffers, inside = set(placed.kernel.buffers), set(placed.region.nodes)
    nodes = tuple(
        replace(node, op=_MEMORY) if index not in inside and buffers.intersection(node.outputs) else node
        for index, node in enumerate(graph.nodes)
    )
    return replace(graph, nodes=nodes)


def _closed_value(sizes: Sizes, value: Value) -> Value:
    type = value.type
    if not isinstance(type, TensorType) or type.shape is None:
        return value
    return replace(value, type=TensorType(type.dtype, sizes.closed(type.shape)))


def _call(placed: Placed, closed: Kernel, sizes: Sizes) -> Variant | None:
    """How a closed kernel is called in the place of an open one, but for its number; None if it cannot be."""
    open_one = placed.kernel
    if closed.program == open_one.program or closed.buffers != open_one.buffers or closed.sizes:
        return None
    if any(not set(open_one.replaces(v)) <= set(closed.replaces(v)) for v in results_of(open_one)):
        return None
    rounds = [] if open_one.rounds is None else [open_one.rounds]
    key = sizes.numbers([*open_one.sizes, *rounds, *(extent for extent, _ in open_one.steps)])
    work = sizes.numbers([closed.grain, closed.scratch_bytes, *(extent for extent, _ in closed.steps)])
    if key is None or work is None or (closed.rounds is None) != (open_one.rounds is None):
        return None
    passed, (grain, scratch, *_) = key[: len(open_one.sizes)], work
    first = 0 if open_one.rounds is None else 2  # the numbers of the round and of the next
    ranges = [_range(kernel, sizes) for kernel in (open_one, closed)]
    return Variant(placed.slot, -1, first, (*passed, ranges[0]), ranges[1], grain, scratch)


def _range(kernel: Kernel, sizes: Sizes) -> int:
    return math.prod(-(-(sizes.of(extent) or 0) // step) for extent, step in kernel.steps)


_Made = dict[int, tuple[Placed, Variant]]


def _whole(placed: Sequence[Placed], made: _Made) -> _Made:
    """Without those that write a part of a value whose other parts open kernels write: they are proved together."""
    kept = dict(made)
    again = True
    while again:
        open_ones = {v for at, one in enumerate(placed) if at not in kept for v in results_of(one.kernel)}
        parted = [at for at in kept if open_ones.intersection(results_of(placed[at].kernel))]
        for at in parted:
            del kept[at]
        again = bool(parted)
    return kept


def _unambiguous(made: _Made) -> list[tuple[Placed, Variant]]:
    """Without those that have one key and differ all the same: places with one slot may not be told apart."""
    by_key: dict[tuple[int, tuple[int, ...]], set[Variant]] = {}
    for _, variant in made.values():
        by_key.setdefault((variant.slot, variant.key), set()).add(variant)
    return [(placed, variant) for placed, variant in made.values() if len(by_key[variant.slot, variant.key]) == 1]
