"""What a compiled function runs, in order: which units an output needs, and what memory lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tierup.ir.dims import DimBuilder, values_read
from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Dim, DType, Shape, TensorType
from tierup.lower.kernel import Kernel, Panels
from tierup.plan.memory import Request
from tierup.runtime.standins import Unit, results_of


def is_view(graph: Graph, node: Node) -> bool:
    """Whether a node is the same memory under other sizes."""
    if node.op != "core.reshape":
        return False
    types = [graph.type(value) for value in (node.inputs[0], node.outputs[0]) if value is not None]
    return all(isinstance(t, TensorType) and t.shape is not None and t.dtype is not DType.STR for t in types)


def needed_units(graph: Graph, dims: DimBuilder, units: Sequence[Unit]) -> list[Unit]:
    """Those that an output depends on. Sizes are dim code, so what only computed shapes is not needed."""
    needed: set[ValueId] = set()

    def need(values: Iterable[ValueId | None], sizes: Iterable[Dim]) -> None:
        needed.update(value for value in values if value is not None)
        for size in sizes:
            needed.update(values_read(dims.ops, size))

    def shape_of(value: ValueId) -> Shape:
        type = graph.type(value)
        return (type.shape or ()) if isinstance(type, TensorType) else ()

    need(graph.outputs, (dim for value in graph.outputs for dim in shape_of(value)))
    kept: list[Unit] = []
    for unit, kernel in reversed(units):
        results = list(_written(unit, kernel))
        if not needed.intersection(results):
            continue
        kept.append((unit, kernel))
        sizes = [dim for value in results for dim in shape_of(value)]
        if kernel is not None:
            values: list[ValueId | None] = [b.value if isinstance(b, Panels) else b for b in kernel.buffers]
            sizes += [*kernel.sizes, *(extent for extent, _ in kernel.steps)]
            sizes += [dim for value in values if value is not None for dim in shape_of(value)]
        else:
            assert isinstance(unit, Node)
            values = list(unit.inputs[:1] if is_view(graph, unit) else unit.inputs)
        need(values, sizes)
    return kept[::-1]


def _written(unit: object, kernel: Kernel | None) -> Iterator[ValueId]:
    if kernel is not None:
        yield from results_of(kernel)
    elif isinstance(unit, Node):
        yield from (value for value in unit.outputs if value is not None)


def _read(unit: object, kernel: Kernel | None) -> Iterator[ValueId]:
    if kernel is not None:
        yield from (buffer for buffer in kernel.buffers if isinstance(buffer, int))
    elif isinstance(unit, Node):
        yield from (value for value in unit.inputs if value is not None)


def arena_requests(
    graph: Graph, dims: DimBuilder, units: Sequence[Unit], passed_on: Callable[[Node], Sequence[ValueId | None]]
) -> tuple[Request, ...]:
    """The values between kernels that may lie in the arena; outputs, and what has no size yet when the call begins, lie
    on the heap. `passed_on` are inputs that may come out of a node as they are."""
    owner = _owners(graph, units)
    last: dict[ValueId, int] = {}
    for position, (unit, kernel) in enumerate(units):
        for value in _read(unit, kernel):
            last[owner.get(value, value)] = position
    for value in graph.outputs:  # handed out as they are when the call ends
        last[owner.get(value, value)] = len(units)
    read_late = [op.args[0] for op in dims.ops if op.op == "elem" and isinstance(op.args[0], int)]
    singles = [unit for unit, _ in units if isinstance(unit, Node)]
    passed = [value for node in singles for value in passed_on(node) if value is not None]
    beyond = {*graph.outputs, *(owner.get(value, value) for value in (*read_late, *passed))}
    produced = {value for node in graph.nodes for value in node.outputs if value is not None}
    requests = []
    for position, (_, kernel) in enumerate(units):
        if kernel is None:
            continue
        operands = [owner.get(b, b) for b in kernel.buffers if isinstance(b, int)]
        for value in results_of(kernel):
            size = _bytes(graph, dims, value)
            if value not in beyond and not values_read(dims.ops, size) & produced:
                # Memory that the kernel reads under two names may be read otherwise under the second.
                reuses = tuple(v for v in kernel.replaces(value) if operands.count(v) == 1)
                requests.append(Request(value, size, position, last.get(value, position), reuses))
    return tuple(requests)


def _owners(graph: Graph, units: Sequence[Unit]) -> dict[ValueId, ValueId]:
    """Views, and the values whose memory they look at."""
    owner: dict[ValueId, ValueId] = {}
    for unit, _ in units:
        if isinstance(unit, Node) and is_view(graph, unit):
            source, result = unit.inputs[0], unit.outputs[0]
            if source is not None and result is not None:
                owner[result] = owner.get(source, source)
    return owner


def _bytes(graph: Graph, dims: DimBuilder, value: ValueId) -> Dim:
    type = graph.type(value)
    assert isinstance(type, TensorType)
    assert type.shape is not None
    return dims.mul(dims.product(type.shape), type.dtype.numpy.itemsize)
