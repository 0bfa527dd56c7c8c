"""What some nodes must compute and move at given sizes, and how soon this machine could have done that at best.

In: a core graph, nodes of it that run as one kernel, and a number for every size. Out: their `Work`, counted from the
nodes alone; and with a measured machine, the `Roofline` time below which no kernel for them can get.

A product of [M, K] and [K, N] is 2·M·N·K operations, a map one for each element of its result, whatever it computes:
exp counts as one, and `functions` says how many there are of those. A reduction is one for each element that goes in,
and what only moves elements is none. Bytes are those of the values that cross the border of the nodes, each once; the
weights of a recurrence are more than registers hold, and read again for every step of time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.ops import Kind, lookup
from tierup.ir.types import Dim, TensorType
from tierup.profile.machine import Machine
from tierup.profile.measured import Bandwidth

Size = Callable[[Dim], int]

# Maps that take a polynomial or more: one operation of the count stands for ten to thirty instructions.
FUNCTIONS = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1", "log", "log1p", "pow",
    "sin", "sinh", "tan", "tanh",
})  # fmt: skip
_MOVING = frozenset({
    "bitcast", "gather", "gather_elements", "gather_nd", "iota", "scatter_elements", "scatter_nd", "shape",
})  # fmt: skip
_GOING_IN = frozenset({
    "argmax", "argmin", "cumprod", "cumsum", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum", "top_places",
    "topk",
})  # fmt: skip

# How often a cell uses each of its activations, and the functions that are in them.
_RECURRENCES = {"rnn": (1,), "gru": (2, 1), "lstm": (3, 1, 1)}
_IN_ACTIVATIONS = {
    "Tanh": ("tanh",), "ScaledTanh": ("tanh",), "Sigmoid": ("exp",), "Elu": ("expm1",), "Softplus": ("exp", "log1p"),
}  # fmt: skip


class Work(Struct, frozen=True):
    """Operations, and bytes that cross the border: values read, constants read, values written.

    `again_bytes` are read again of `kept_bytes` that are among them.
    """

    flops: int
    read_bytes: int
    constant_bytes: int
    written_bytes: int
    functions: dict[str, int] = field(default_factory=dict)
    kept_bytes: int = 0
    again_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.constant_bytes + self.written_bytes


class Roofline(Struct, frozen=True):
    """The least time that computing takes, the least that moving takes, and from where most of that time is read."""

    compute_us: float
    memory_us: float
    level: str

    @property
    def time_us(self) -> float:
        return max(self.compute_us, self.memory_us)

    @property
    def bound(self) -> str:
        """What limits it: "compute", or a level of memory."""
        return "compute" if self.compute_us >= self.memory_us else self.level


def border(graph: Graph, nodes: Sequence[int]) -> tuple[list[ValueId], list[ValueId]]:
    """The values that some nodes read from outside, and those that something outside reads from them."""
    inside = set(nodes)
    made = dict.fromkeys(value for index in nodes for value in graph.nodes[index].outputs if value is not None)
    given = dict.fromkeys(value for index in nodes for value in graph.nodes[index].inputs if value is not None)
    wanted = set(graph.outputs)
    for index, node in enumerate(graph.nodes):
        if index not in inside:
            wanted.update(value for value in node.inputs if value is not None)
    return [value for value in given if value not in made], [value for value in made if value in wanted]


def work(
    graph: Graph,
    nodes: Sequence[int],
    size: Size,
    reads: Mapping[ValueId, int] | None = None,
    writes: Mapping[ValueId, int] | None = None,
) -> Work:
    """The work of some nodes. `reads` and `writes` are elements of values, where these are not all those of the values
    that cross the border: a kernel may read what lies behind a broadcast, a slice, or some rows of a table."""
    given, leaving = border(graph, nodes)
    reads = {value: elements(graph, value, size) for value in given} if reads is None else reads
    writes = {value: elements(graph, value, size) for value in leaving} if writes is None else writes
    constants = {value for value, _ in graph.weights}
    distinct = [graph.nodes[index] for index in dict.fromkeys(nodes)]
    functions: Counter[str] = Counter()
    kept_bytes = again_bytes = 0
    for node in distinct:
        name = node.op.removeprefix("core.")
        if name in FUNCTIONS:
            functions[name] += elements(graph, node.outputs[0], size)
        if name in _RECURRENCES:
            weights_bytes = elements(graph, node.inputs[1], size) * _itemsize(graph, node.inputs[1])
            kept_bytes += weights_bytes
            again_bytes += weights_bytes * max(_extent(graph, node.inputs[0], 0, size) - 1, 0)
            for function, count in _functions_of_cell(node).items():
                functions[function] += count * elements(graph, node.outputs[0], size)
    return Work(
        flops=sum(flops(graph, node, size) for node in distinct),
        read_bytes=sum(n * _itemsize(graph, value) for value, n in reads.items() if value not in constants),
        constant_bytes=sum(n * _itemsize(graph, value) for value, n in reads.items() if value in constants),
        written_bytes=sum(n * _itemsize(graph, value) for value, n in writes.items()),
        functions=dict(functions),
        kept_bytes=kept_bytes,
        again_bytes=again_bytes,
    )


def _functions_of_cell(node: Node) -> Counter[str]:
    """The functions that a recurrence computes for one hidden unit at one step."""
    uses = [*_RECURRENCES[node.op.removeprefix("core.")]]
    if node.attrs.get("input_forget"):
        uses[0] -= 1
    found: Counter[str] = Counter()
    for name, count in zip(node.attrs["activations"], uses, strict=True):
        for function in _IN_ACTIVATIONS.get(name, ()):
            found[function] += count
    return found


def flops(graph: Graph, node: Node, size: Size) -> int:
    """The operations of one core node."""
    name, result = node.op.removeprefix("core."), node.outputs[0]
    row = lookup(node.op)
    if name in _MOVING or (row is not None and row.kind is Kind.TRANSFER):
        return 0
    if name in _GOING_IN:
        return elements(graph, node.inputs[0], size)
    count = elements(graph, result, size)
    match name:
        case "matmul" | "matmul_blocks" | "matmul_scaled":
            return 2 * count * _extent(graph, node.inputs[0], -1, size)
        case "conv_last":  # w[places · C / group, M]
            return 2 * count * _extent(graph, node.inputs[1], 0, size)
        case "conv":  # w[M, C / group, …]: each element of the result is a sum over all but M
            return 2 * count * elements(graph, node.inputs[1], size) // max(_extent(graph, node.inputs[1], 0, size), 1)
        case "conv_transpose":  # w[C, M / group, …]: each element of x goes into all but C
            kernel = elements(graph, node.inputs[1], size) // max(_extent(graph, node.inputs[1], 0, size), 1)
            return 2 * elements(graph, node.inputs[0], size) * kernel
        case "pool_max" | "pool_sum":
            return count * math.prod(map(int, node.attrs["kernel_shape"]))
        case _ if name in _RECURRENCES:  # gates[T, B, G] and r[H, G]
            return 2 * elements(graph, node.inputs[0], size) * _extent(graph, node.inputs[1], 0, size)
    return count


def bytes_of(graph: Graph, value: ValueId, size: Size) -> int:
    """What a tensor takes in memory."""
    return elements(graph, value, size) * _itemsize(graph, value)


def _itemsize(graph: Graph, value: ValueId | None) -> int:
    return _tensor(graph, value).dtype.numpy.itemsize


def elements(graph: Graph, value: ValueId | None, size: Size) -> int:
    """How many elements a tensor has."""
    return math.prod(size(dim) for dim in _tensor(graph, value).shape or ())


def _extent(graph: Graph, value: ValueId | None, axis: int, size: Size) -> int:
    shape = _tensor(graph, value).shape
    assert shape is not None
    return size(shape[axis])


def _tensor(graph: Graph, value: ValueId | None) -> TensorType:
    assert value is not None
    type = graph.type(value)
    assert isinstance(type, TensorType)
    assert type.shape is not None
    return type


def roofline(work: Work, machine: Machine, threads: int, footprint_bytes: int) -> Roofline:
    """The time of `work` if all threads computed at the peak of f32, and nothing was read twice.

    Constants come from the level that holds `footprint_bytes`, all that a call touches, since that is what the caches
    see between two uses of them; other values were just written, and come from the level that holds those of this work.
    What is read again comes from the level that holds it, since little else is touched in between.
    """
    values_bytes = work.read_bytes + work.written_bytes
    parts = [
        _reading(machine, threads, work.constant_bytes, footprint_bytes),
        _reading(machine, threads, values_bytes, values_bytes),
        _reading(machine, threads, work.again_bytes, work.kept_bytes),
    ]
    slowest = max(parts, key=lambda part: part[0])
    compute_us = work.flops / peak_gflops(machine, threads) / 1e3
    return Roofline(compute_us, sum(time_us for time_us, _ in parts), slowest[1])


def peak_gflops(machine: Machine, threads: int) -> float:
    """The peak of so many threads, in f32 and with fused multiply-adds."""
    peak = _share(machine.measured.fma_gflops_one, machine.measured.fma_gflops_all, machine, threads)
    assert peak is not None
    return peak


def _reading(machine: Machine, threads: int, amount_bytes: int, held_bytes: int) -> tuple[float, str]:
    """Microseconds for so many bytes from the level that holds so many, and its name."""
    found = None
    for bandwidth in machine.measured.bandwidths:
        rate = _rate(bandwidth, machine, threads)
        if rate is not None:
            found = (amount_bytes / rate / 1e3, bandwidth.level)
            if held_bytes <= _holds(machine, bandwidth.level, threads):
                break
    return found or (0.0, "memory")


def _rate(bandwidth: Bandwidth, machine: Machine, threads: int) -> float | None:
    return _share(bandwidth.read_gbytes_per_s_one, bandwidth.read_gbytes_per_s_all, machine, threads)


def _share(one: float | None, everyone: float | None, machine: Machine, threads: int) -> float | None:
    """What so many threads reach together, of a rate that was measured for one and for all."""
    if threads <= 1 or one is None or everyone is None:
        return one if threads <= 1 or everyone is None else everyone
    return everyone if threads >= machine.measured.threads else min(one * threads, everyone)


def _holds(machine: Machine, level: str, threads: int) -> float:
    """What a level has room for when so many threads share the work."""
    for cache in machine.identity.caches:
        if f"L{cache.level}" == level:
            return cache.size_bytes * -(-threads // cache.shared_by)
    return math.inf
