"""Variants of an open function's kernels: the same regions, with the sizes of one signature as numbers.

A variant hangs in the slot of the open kernel and is called in its place, with the same buffers, where the step's sizes
are those that it was made for. So its buffers must be the open kernel's, packed alike, and what may lie in one memory
for the open kernel must be allowed to for it.

With facts there are further ones: what each kernel of that signature becomes where they hold (`lower/facts.py`). Their
keys have the facts, too.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.dims import READS, DimBuilder, DimError, DimOp, apply
from tierup.ir.facts import Fact
from tierup.ir.graph import Graph, Value, ValueId
from tierup.ir.types import Dim, Sym, TensorType
from tierup.lower.facts import unread, with_facts
from tierup.lower.kernel import Kernel
from tierup.lower.work import work
from tierup.plan.program import Variant
from tierup.plan.regions import Region, tensor
from tierup.plan.uniform import Uniform, uniform_values
from tierup.rewrite.assume import Pair
from tierup.runtime.progress import Signature
from tierup.runtime.standins import results_of
from tierup.runtime.steps import KernelFunction, Placed

_MEMORY = "plan.memory"  # whatever made a value that lies in memory
_Made = dict[int, tuple[Placed, Variant]]  # by the position of the place among the open ones


class Closed(Struct, frozen=True):
    """The variants of one function for one signature: the graph with numbers for sizes, its dims, and the kernels, each
    placed at its number among the plan's. `uniform` are values that are one number where facts hold that these rely on,
    and `saved` the share of all kernels' work that is then left out, as far as statements tell."""

    signature: Signature
    graph: Graph
    dims: tuple[DimOp, ...]
    kernels: tuple[Placed, ...]
    variants: tuple[Variant, ...]
    uniform: tuple[tuple[ValueId, float], ...] = ()
    saved: float = 0.0


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
        if isinstance(thing, Struct):
            return replace(thing, **{name: self.closed(getattr(thing, name)) for name in thing.__struct_fields__})
        return thing

    def agree(self, pairs: Sequence[Pair]) -> bool:
        """Whether both sizes of every pair are known, and equal."""
        return all(self.of(a) is not None and self.of(a) == self.of(b) for a, b in pairs)

    @property
    def ops(self) -> tuple[DimOp, ...]:
        """The instructions, with numbers as arguments where they are known."""
        return tuple(op if op.op in READS else DimOp(op.op, self.closed(op.args)) for op in self._ops)


def _read(op: DimOp, shapes: dict[int, tuple[int, ...]]) -> int | None:
    value, axis = op.args
    if op.op != "of" or not isinstance(value, int) or not isinstance(axis, int) or value not in shapes:
        return None
    shape = shapes[value]
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def close_kernels(
    written: KernelFunction, signature: Signature, facts: Sequence[Fact] = (), shared: Collection[int] = ()
) -> list[Closed]:
    """The variants of a function's kernels for a signature: those that fit their slots and may serve; then those that
    also rely on facts, if there are any. Slots that are `shared` with other functions get none of the latter: facts may
    say nothing of what is read there."""
    sizes = Sizes(written.dims, written.graph, signature)
    graph = replace(written.graph, values=tuple(_closed_value(sizes, value) for value in written.graph.values))
    dims, compiler = DimBuilder(sizes.ops), written.compiler
    lowered: list[Placed] = []
    for placed in written.placed if _is_sound(graph) else ():
        region: Region = sizes.closed(placed.region)
        kernel = compiler.lowered(_with_memory(graph, placed), region, dims)
        lowered.append(replace(placed, region=region, kernel=kernel))
    made = _made(written, lowered, sizes)
    closed = _closed(_unambiguous(_whole(written.placed, made)), signature, graph, dims)
    return [closed, *_under_facts(written, lowered, sizes, closed, facts, dims, shared)]


def _made(
    written: KernelFunction, lowered: Sequence[Placed], sizes: Sizes, needs: Mapping[int, int] | None = None
) -> _Made:
    """The variants among these kernels, which stand in the order of the open ones: those that may take their places.
    With `needs`, only those at these positions, which rely on these facts."""
    compiler, made = written.compiler, _Made()
    for position, (placed, closed) in enumerate(zip(written.placed, lowered, strict=True) if lowered else ()):
        if needs is not None and position not in needs:
            continue
        call = _call(placed, closed.kernel, sizes)
        if call is not None and compiler.why_refused(closed.kernel) is None:
            number = compiler.variant_program(closed.kernel.program)
            key = call.key if needs is None else (*call.key, needs[position])
            made[position] = replace(closed, slot=number), replace(call, kernel=number, key=key)
    return made


def _closed(kept: Sequence[tuple[Placed, Variant]], signature: Signature, graph: Graph, dims: DimBuilder) -> Closed:
    variants = tuple(dict.fromkeys(variant for _, variant in kept))
    return Closed(signature, graph, tuple(dims.ops), tuple(placed for placed, _ in kept), variants)


def _under_facts(
    written: KernelFunction,
    lowered: Sequence[Placed],
    sizes: Sizes,
    closed: Closed,
    facts: Sequence[Fact],
    dims: DimBuilder,
    shared: Collection[int],
) -> Iterator[Closed]:
    """What the kernels of a signature become where facts hold, if any of them becomes simpler."""
    graph = closed.graph
    uniform = uniform_values(graph, written.compiler.weight_table, facts, dims) if facts and lowered else {}
    numbers = {value: found.number for value, found in uniform.items()}
    dtypes = {value: tensor(graph, value).dtype for value in uniform}
    folded = [replace(one, kernel=with_facts(one.kernel, numbers, dtypes)) for one in lowered]
    needs = {
        position: _relied_on(before.kernel, uniform)
        for position, (before, after) in enumerate(zip(lowered, folded, strict=True))
        if before.kernel.program != after.kernel.program and before.slot not in shared
    }
    made = _whole(written.placed, _made(written, folded, sizes, needs))
    kept = _everywhere(written.placed, made, sizes)
    if not kept:
        return
    before_work, after_work = (sum(work(one.kernel.program) for one in found) for found in (lowered, folded))
    found = _closed(kept, closed.signature, graph, dims)
    yield replace(found, uniform=tuple(numbers.items()), saved=1 - after_work / before_work if before_work else 0.0)


def _relied_on(kernel: Kernel, uniform: Mapping[ValueId, Uniform]) -> int:
    """The facts that decide what a kernel reads."""
    needs = [uniform[value].needs for value in kernel.buffers if isinstance(value, int) and value in uniform]
    return functools.reduce(operator.or_, needs, 0)


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
    if any(not set(open_one.replaces(v)) <= _may_replace(closed, v) for v in results_of(open_one)):
        return None
    key = _key(open_one, sizes)
    amounts = sizes.numbers([closed.grain, closed.scratch_bytes, *(extent for extent, _ in closed.steps)])
    if key is None or amounts is None or (closed.rounds is None) != (open_one.rounds is None):
        return None
    grain, scratch, *_ = amounts
    first = 0 if open_one.rounds is None else 2  # the numbers of the round and of the next
    return Variant(placed.slot, -1, first, key, _range(closed, sizes), grain, scratch)


def _key(open_one: Kernel, sizes: Sizes) -> tuple[int, ...] | None:
    """What a step passes to its kernel, and its range; None if that is known only in the call."""
    rounds = [] if open_one.rounds is None else [open_one.rounds]
    numbers = sizes.numbers([*open_one.sizes, *rounds, *(extent for extent, _ in open_one.steps)])
    return None if numbers is None else (*numbers[: len(open_one.sizes)], _range(open_one, sizes))


def _may_replace(kernel: Kernel, result: ValueId) -> set[ValueId]:
    """What a result may be written over: also what the kernel does not read at all."""
    passed = [buffer.name for buffer in kernel.program.buffers if buffer.mode != "scratch"]
    names = unread(kernel.program)
    idle = {value for name, value in zip(passed, kernel.buffers, strict=True) if name in names}
    return {*kernel.replaces(result), *(value for value in idle if isinstance(value, int))}


def _range(kernel: Kernel, sizes: Sizes) -> int:
    return math.prod(-(-(sizes.of(extent) or 0) // step) for extent, step in kernel.steps)


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


def _everywhere(placed: Sequence[Placed], made: _Made, sizes: Sizes) -> list[tuple[Placed, Variant]]:
    """Without those whose slot and sizes another place shares that does not have the same variant: it may read other
    values, of which the facts say nothing, and steps are told apart by their keys alone."""
    others: dict[tuple[int, tuple[int, ...] | None], set[Variant | None]] = {}
    for position, one in enumerate(placed):
        variant = made[position][1] if position in made else None
        others.setdefault((one.slot, _key(one.kernel, sizes)), set()).add(variant)
    return [
        (one, variant)
        for position, (one, variant) in made.items()
        if others[placed[position].slot, _key(placed[position].kernel, sizes)] == {variant}
    ]


def _unambiguous(made: _Made) -> list[tuple[Placed, Variant]]:
    """Without those that have one key and differ all the same: places with one slot may not be told apart."""
    by_key: dict[tuple[int, tuple[int, ...]], set[Variant]] = {}
    for _, variant in made.values():
        by_key.setdefault((variant.slot, variant.key), set()).add(variant)
    return [(placed, variant) for placed, variant in made.values() if len(by_key[variant.slot, variant.key]) == 1]
