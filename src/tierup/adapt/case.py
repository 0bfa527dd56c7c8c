"""Kernels in their places -> cases: a kernel alone, with its region as a closed graph.

The graph's inputs are what the kernel reads, in the order of its buffers, then integers that are known as sizes (the
shapes that reshapes take), and last one vector that holds every open size: the dim program of a case reads its elements
and nothing else. Its outputs are what the kernel writes. Kernels may read values that lie behind transposes, reshapes
and slices outside their region; those nodes are part of the graph. Constants are inputs, to be drawn as any other, but
for those that the kernel's code has in it. A value that several kernels write, each a part of it, makes one case of
them all. Names are gone and everything is numbered anew, so that equal regions give equal cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from tierup.errors import TierupError
from tierup.ir.dims import READS, DimBuilder, DimOp
from tierup.ir.graph import Graph, Node, Value, ValueId, Weights
from tierup.ir.types import Dim, DType, Shape, Sym, TensorType
from tierup.lower.kernel import Kernel, Panels
from tierup.plan.contents import Contents, contents
from tierup.rewrite.assume import Pair
from tierup.runtime.compiled import Function
from tierup.runtime.steps import Placed

CONSTANT_LIMIT_ELEMS = 64  # what code has in it are single numbers and the starts of slices


class NotAlone(TierupError):
    """A kernel cannot be run by itself; the message says what it needs beside its buffers."""


class Case(Struct, frozen=True, dict=True):
    """Kernels, mostly one, whose values and sizes are those of `graph`.

    `known` are inputs with the sizes that they hold. Sizes that are `assumed` to be equal are so in every call.
    `fixed` are integer inputs that are constants of the model: what they hold was looked at when it was compiled.
    `uniform` are inputs whose elements are all this number, since the kernels rely on facts.
    """

    graph: Graph
    weights: Weights
    kernels: tuple[Kernel, ...]
    known: tuple[tuple[ValueId, tuple[Dim, ...]], ...] = ()
    assumed: tuple[Pair, ...] = ()
    fixed: tuple[ValueId, ...] = ()
    uniform: tuple[tuple[ValueId, float], ...] = ()

    @property
    def open_sizes(self) -> int:
        """How many sizes are open."""
        type = self.graph.type(self.graph.inputs[-1])
        assert isinstance(type, TensorType)
        assert type.shape is not None
        assert isinstance(type.shape[0], int)
        return type.shape[0]

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all values."""
        types = [value.type for value in self.graph.values]
        shapes = [type.shape for type in types if isinstance(type, TensorType) and type.shape is not None]
        assert len(shapes) == len(types)  # whose kernels could not be called with their sizes
        return tuple(shapes)


def bound_values(kernel: Kernel, mode: str) -> list[ValueId]:
    """The values that a kernel reads ("in") or writes ("out"), each once."""
    passed = (buffer for buffer in kernel.program.buffers if buffer.mode != "scratch")
    pairs = zip(passed, kernel.buffers, strict=True)
    return list(dict.fromkeys(value_of(bound) for buffer, bound in pairs if buffer.mode == mode))


def values_read(kernels: Sequence[Kernel]) -> list[ValueId]:
    """What kernels that run one after the other read and have not written before."""
    found: dict[ValueId, None] = {}
    written: set[ValueId] = set()
    for kernel in kernels:
        found.update((value, None) for value in bound_values(kernel, "in") if value not in written)
        written.update(bound_values(kernel, "out"))
    return list(found)


def values_written(kernels: Sequence[Kernel]) -> list[ValueId]:
    """What they write."""
    return list(dict.fromkeys(value for kernel in kernels for value in bound_values(kernel, "out")))


def sizes_of(kernel: Kernel) -> list[Dim]:
    """Every size that a call computes for a kernel."""
    rounds = [] if kernel.rounds is None else [kernel.rounds]
    return [*kernel.sizes, *(extent for extent, _ in kernel.steps), kernel.grain, kernel.scratch_bytes, *rounds]


def value_of(buffer: ValueId | Panels) -> ValueId:
    """The value behind a buffer."""
    return buffer.value if isinstance(buffer, Panels) else buffer


def cases_of(function: Function, weights: Weights) -> list[tuple[tuple[Placed, ...], Case | NotAlone]]:
    """Every kernel of a function in one case, with those that write parts of the same values; or why there is none."""
    dims = DimBuilder(function.dims)
    known = contents(function.graph, weights, dims)
    found: list[tuple[tuple[Placed, ...], Case | NotAlone]] = []
    for group in _groups(function.kernels):
        try:
            kernels = tuple(placed.kernel for placed in group)
            uniform = dict(function.uniform)
            case = isolate(function.graph, weights, kernels, dims.ops, known, function.assumed, uniform)
            found.append((group, case))
        except NotAlone as reason:
            found.append((group, reason))
    return found


def _groups(kernels: Sequence[Placed]) -> list[tuple[Placed, ...]]:
    """Kernels that write parts of one value belong together."""
    groups: dict[ValueId, list[Placed]] = {}  # by each value that one of them writes
    for placed in kernels:
        written = bound_values(placed.kernel, "out")
        meeting = {id(groups[value]): groups[value] for value in written if value in groups}
        group = [*(other for found in meeting.values() for other in found), placed]
        values = {value for other in group for value in bound_values(other.kernel, "out")} if meeting else written
        groups.update(dict.fromkeys(values, group))
    return list({id(group): tuple(group) for group in groups.values()}.values())


def isolate(
    graph: Graph,
    weights: Weights,
    kernels: Sequence[Kernel],
    dims: Sequence[DimOp],
    known: Contents | None = None,
    assumed: Sequence[Pair] = (),
    uniform: Mapping[ValueId, float] | None = None,
) -> Case:
    """The case of kernels of `graph`. `dims` are the instructions that their sizes refer to, `known` the integers that
    values hold, `uniform` values with one number in all elements. NotAlone if they need more than their buffers."""
    return _Isolation(graph, weights, tuple(kernels), DimBuilder(dims), known or {}).case(assumed, uniform or {})


class _Isolation:
    def __init__(
        self, graph: Graph, weights: Weights, kernels: tuple[Kernel, ...], dims: DimBuilder, known: Contents
    ) -> None:
        self._graph, self._weights, self._kernels = graph, weights, kernels
        self._builder, self._contents = dims, known
        self._reads, self._writes = values_read(kernels), values_written(kernels)
        self._digests, self._producers = graph.digests, graph.producers
        self._holding = self._looked_into()
        self._unread: dict[ValueId, None] = {}
        self._known = self._sizes_among(self._reads)
        self._constants: dict[ValueId, None] = {}
        self._nodes = [graph.nodes[index] for index in sorted(self._needed())]

    def _needed(self) -> set[int]:
        """The nodes between what is read and what is written."""
        found: set[int] = set()
        pending = list(self._writes)
        while pending:
            value = pending.pop()
            index = self._producers.get(value)
            if index is None:
                raise NotAlone(f"the kernel computes with value {self._graph.value_name(value)}, but does not read it")
            if index not in found:
                found.add(index)
                pending.extend(self._followed(self._graph.nodes[index]))
        return found

    def _followed(self, node: Node) -> Iterator[ValueId]:
        """The inputs of a node that are computed here; the others are noted for what they are."""
        if node.graphs:
            raise NotAlone(f"{node.label} has a graph inside")
        for position, value in enumerate(node.inputs):
            if value is None:
                raise NotAlone(f"{node.label} leaves an input out")
            if value in self._reads or value in self._known or value in self._unread:
                continue
            if value in self._writes:
                yield value
            elif value in self._digests:
                self._keep_constant(value)
            elif (sizes := self._sizes_in(value) or self._implied(node, position)) is not None:
                self._known[value] = sizes
            elif node.op == "core.shape":  # it looks at no element
                self._unread[value] = None
            else:
                yield value

    def _looked_into(self) -> set[Dim]:
        """The values whose elements are sizes of the kernels, or of what they read and write."""
        used = [dim for kernel in self._kernels for dim in sizes_of(kernel)]
        used += [dim for value in (*self._reads, *self._writes) for dim in self._shape(value)]
        return self._behind(used).looked_into()

    def _behind(self, dims: Iterable[Dim]) -> _Dims:
        found = _Dims(self._builder.ops, 0)
        found.need(dims)
        return found

    def _sizes_among(self, values: Sequence[ValueId]) -> dict[ValueId, tuple[Dim, ...]]:
        """What is read from these is what sizes say."""
        found = {value: self._sizes_in(value) for value in values}
        return {value: sizes for value, sizes in found.items() if sizes is not None}

    def _sizes_in(self, value: ValueId) -> tuple[Dim, ...] | None:
        """What a value holds, where that is known as sizes, or sizes are read from it element by element.

        What is known only when these kernels have run is no size that they were called with.
        """
        shape = self._shape(value)
        if value in self._contents:
            sizes = self._contents[value]
            return None if self._behind(sizes).looked_into() & set(self._writes) else sizes
        is_looked_into = value in self._holding or (value not in self._producers and value not in self._reads)
        if not is_looked_into or len(shape) > 1 or not all(isinstance(size, int) for size in shape):
            return None
        return tuple(self._builder.elem(value, place) for place in range(math.prod(map(int, shape))))  # type: ignore[arg-type]

    def _implied(self, node: Node, position: int) -> tuple[Dim, ...] | None:
        """What a size must be, seen from the result."""
        if node.op in ("core.reshape", "core.broadcast") and position == 1:
            return self._shape(_result(node))
        if node.op != "core.slice" or position != 2:
            return None
        first, dims = node.inputs[1], self._builder
        assert first is not None
        starts: Sequence[Dim] | None = self._known.get(first)
        if first in self._digests:
            starts = self._weights[self._digests[first]].tolist()
        if starts is None or any(step < 1 for step in node.attrs["steps"]):
            return None
        shape = self._shape(_result(node))
        rows = zip(node.attrs["axes"], node.attrs["steps"], starts, strict=True)
        # the first position behind the last that is taken
        return tuple(
            dims.add(start, dims.max(dims.sub(dims.mul(shape[axis], step), step - 1), 0)) for axis, step, start in rows
        )

    def _keep_constant(self, value: ValueId) -> None:
        count = self._weights[self._digests[value]].size
        if count > CONSTANT_LIMIT_ELEMS:
            raise NotAlone(f"the kernel's code holds a constant of {count} elements")
        self._constants.setdefault(value)

    def case(self, assumed: Sequence[Pair], uniform: Mapping[ValueId, float]) -> Case:
        met = [value for node in self._nodes for value in node.inputs]
        others = [value for value in dict.fromkeys(met) if value in self._known or value in self._unread]
        inputs = list(dict.fromkeys([*self._reads, *(value for value in others if value is not None)]))
        vector = len(inputs)
        made = [value for node in self._nodes for value in node.outputs if value is not None]
        kept = [*inputs, *(value for value in dict.fromkeys(met) if value in self._constants), *made]
        kept = [value for value in kept if value is not None]
        places = {value: place + (place >= vector) for place, value in enumerate(kept)}
        dims = self._renumbered_dims(kept, vector, assumed)
        values = [self._renumbered(value, dims) for value in kept]
        values.insert(vector, Value(TensorType(DType.I64, (dims.count,))))
        weights = Weights()
        for value in self._constants:
            weights.add(self._weights[self._digests[value]], self._digests[value])
        return Case(
            Graph(
                inputs=(*(places[value] for value in inputs), vector),
                outputs=tuple(places[value] for value in self._writes),
                nodes=tuple(_placed(node, places) for node in self._nodes),
                values=tuple(values),
                dims=tuple(dims.out.ops),
                weights=tuple((places[value], self._digests[value]) for value in kept if value in self._constants),
            ),
            weights,
            tuple(_rebound(kernel, places, dims) for kernel in self._kernels),
            tuple((places[value], tuple(map(dims.of, self._known[value]))) for value in inputs if value in self._known),
            tuple((dims.of(a), dims.of(b)) for a, b in assumed if dims.has(a) and dims.has(b)),
            tuple(places[value] for value in inputs if value in self._digests and self._is_integer(value)),
            tuple((places[value], uniform[value]) for value in inputs if value in uniform),
        )

    def _renumbered_dims(self, kept: Sequence[ValueId], vector: int, assumed: Sequence[Pair]) -> _Dims:
        dims = _Dims(self._builder.ops, vector)
        dims.need(dim for value in kept for dim in self._shape(value))
        dims.need(dim for value in kept for dim in self._known.get(value, ()))
        dims.need(dim for kernel in self._kernels for dim in sizes_of(kernel))
        dims.need(dim for pair in assumed if dims.reads_nothing_else(pair) for dim in pair)
        dims.renumber()
        return dims

    def _shape(self, value: ValueId) -> tuple[Dim, ...]:
        type = self._graph.type(value)
        if not isinstance(type, TensorType) or type.shape is None:
            raise NotAlone(f"the rank of value {self._graph.value_name(value)} is known only in the call")
        return type.shape

    def _is_integer(self, value: ValueId) -> bool:
        type = self._graph.type(value)
        return isinstance(type, TensorType) and type.dtype.is_integer

    def _renumbered(self, value: ValueId, dims: _Dims) -> Value:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return Value(TensorType(type.dtype, tuple(map(dims.of, self._shape(value)))))


def _result(node: Node) -> ValueId:
    (value,) = (value for value in node.outputs if value is not None)
    return value


def _placed(node: Node, places: dict[ValueId, int]) -> Node:
    def place(values: Iterable[ValueId | None]) -> tuple[ValueId | None, ...]:
        return tuple(None if value is None else places[value] for value in values)

    return replace(node, inputs=place(node.inputs), outputs=place(node.outputs), name="")


def _rebound(kernel: Kernel, places: dict[ValueId, int], dims: _Dims) -> Kernel:
    return replace(
        kernel,
        buffers=tuple(
            replace(b, value=places[b.value]) if isinstance(b, Panels) else places[b] for b in kernel.buffers
        ),
        sizes=tuple(map(dims.of, kernel.sizes)),
        steps=tuple((dims.of(extent), step) for extent, step in kernel.steps),
        grain=dims.of(kernel.grain),
        scratch_bytes=dims.of(kernel.scratch_bytes),
        rounds=None if kernel.rounds is None else dims.of(kernel.rounds),
    )


class _Dims:
    """The part of a dim program that is needed, with everything that was read now an element of one vector."""

    def __init__(self, ops: Sequence[DimOp], vector: ValueId) -> None:
        self._ops, self._vector = ops, vector
        self._needed: set[int] = set()
        self._numbers: dict[int, Dim] = {}
        self.out = DimBuilder()
        self.count = 0

    def _behind(self, dims: Iterable[Dim]) -> set[int]:
        """The instructions that some dims are computed by."""
        found: set[int] = set()
        pending = [dim.id for dim in dims if isinstance(dim, Sym)]
        while pending:
            number = pending.pop()
            if number not in found:
                found.add(number)
                op = self._ops[number]
                pending.extend(arg.id for arg in op.args if isinstance(arg, Sym) and op.op not in READS)
        return found

    def need(self, dims: Iterable[Dim]) -> None:
        self._needed |= self._behind(dims)

    def reads_nothing_else(self, dims: Iterable[Dim]) -> bool:
        """Whether the sizes behind these are all needed already."""
        return all(number in self._needed for number in self._behind(dims) if self._ops[number].op in READS)

    def looked_into(self) -> set[Dim]:
        """The values whose elements are needed."""
        return {self._ops[number].args[0] for number in self._needed if self._ops[number].op == "elem"}

    def renumber(self) -> None:
        for number in sorted(self._needed):
            op = self._ops[number]
            if op.op in READS:
                self._numbers[number] = self.out.elem(self._vector, self.count)
                self.count += 1
            else:
                self._numbers[number] = self.out.record(op.op, *map(self.of, op.args))

    def has(self, dim: Dim) -> bool:
        return not isinstance(dim, Sym) or dim.id in self._numbers

    def of(self, dim: Dim) -> Dim:
        return self._numbers[dim.id] if isinstance(dim, Sym) else dim
