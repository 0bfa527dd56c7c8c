"""Which nodes run together with a product or convolution: attention, and the maps behind it that nobody else needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from msgspec import Struct

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import DType, Shape
from tierup.plan.attention import attention, factors
from tierup.plan.regions import ELEMENTWISE, NARROW, Region, legality, present_axes, shape_of, tensor

EPILOGUE = ELEMENTWISE | {"cast"}  # what a product takes in behind it

_KINDS = {
    "core.matmul": "matmul", "core.matmul_blocks": "matmul", "core.matmul_scaled": "matmul", "core.conv_last": "conv",
}  # fmt: skip


def products(graph: Graph) -> list[Region]:
    """A region for every product that can be compiled; none share a node."""
    small = _Bytes(graph)
    taken: set[int] = set()
    regions = []
    for index, node in enumerate(graph.nodes):
        found = attention(graph, index) if node.op == "core.matmul" else None
        if found is not None and not taken.intersection(found.nodes):
            taken.update(found.nodes)
            regions.append(found)
    passed = {index for region in regions for index in factors(graph, region)}
    for index, node in enumerate(graph.nodes):
        kind = _KINDS.get(node.op)
        if kind is not None and index not in taken and legality(graph, node) is None:
            domain = shape_of(tensor(graph, node.outputs[0]))
            nodes = tuple(_with_epilogue(graph, small, index, domain, taken | passed))
            taken.update(nodes)
            regions.append(Region(kind, nodes, domain))
    return regions


def _with_epilogue(graph: Graph, small: _Bytes, product: int, domain: Shape, taken: set[int]) -> Iterator[int]:
    """The product, and maps that read nothing but its results and what lies outside; one value leaves, and maybe the
    same rounded for the next product.

    Maps are taken up to a point at which a single value is still in use: what gelu computes from its argument in two
    ways comes together again. What a map reads beside them may be computed from bytes: then so it is here.
    """
    nodes, best = [product], [product]
    by_row = _KINDS[graph.nodes[product].op] == "matmul"  # whose rows lie one after the other
    inside = set(graph.nodes[product].outputs)
    pending = {use for value in graph.nodes[product].outputs if value is not None for use in graph.users.get(value, ())}
    while pending:
        index = min(pending)
        pending.discard(index)
        node = graph.nodes[index]
        if index in taken or not _is_epilogue(graph, node, inside, domain, by_row):
            break
        for added in (*small.behind(index, taken.union(nodes), domain, by_row), index):
            nodes.append(added)
            inside.update(graph.nodes[added].outputs)
        pending.update(use for value in node.outputs if value is not None for use in graph.users.get(value, ()))
        pending -= set(nodes)
        if len(_leaving(graph, nodes)) == 1 or _leaves_rounded_too(graph, nodes):
            best = list(nodes)
    return iter(best)


class _Bytes:
    """Finds maps that lead from bytes to floats and that one node alone needs: it reads the bytes instead."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._uses = graph, graph.users
        self._producers = graph.producers

    def behind(self, reader: int, taken: Set[int], domain: Shape, by_row: bool) -> Iterator[int]:
        """The maps behind what a node reads, in order."""
        for value in dict.fromkeys(self._graph.nodes[reader].inputs):
            chain: list[int] = []
            at, user = value, reader
            while at is not None and not self._is_bytes(at):
                index = self._producers.get(at)
                alone = self._uses[at] == [user] and at not in self._graph.outputs
                if index is None or index in taken or not alone:
                    break
                node = self._graph.nodes[index]
                if not _is_epilogue(self._graph, node, set(), domain, by_row):
                    break
                whole = [given for given in node.inputs if shape_of(tensor(self._graph, given)) == domain]
                if len(whole) != 1:
                    break
                chain.append(index)
                (at,), user = whole, index
            else:
                yield from reversed(chain)

    def _is_bytes(self, value: ValueId) -> bool:
        return tensor(self._graph, value).dtype in (DType.I8, DType.U8)


def _leaving(graph: Graph, nodes: list[int]) -> list[ValueId]:
    """The values that something outside needs."""
    return [
        value
        for index in nodes
        for value in graph.nodes[index].outputs
        if value is not None and (value in graph.outputs or any(use not in nodes for use in graph.users.get(value, ())))
    ]


def _leaves_rounded_too(graph: Graph, nodes: list[int]) -> bool:
    """Whether two values leave, the second of them the first in bf16. The region runs where the second is computed, so
    nobody may need the first before that."""
    last = graph.nodes[nodes[-1]]
    value, rounded = last.inputs[0], last.outputs[0]
    if last.op != "core.cast" or tensor(graph, rounded).dtype is not DType.BF16:
        return False
    if _leaving(graph, nodes) != [value, rounded]:
        return False
    return value is not None and all(use >= nodes[-1] for use in graph.users.get(value, ()))


def leaving(graph: Graph, nodes: Sequence[int]) -> list[ValueId]:
    """The values of a product's region that something outside needs."""
    *_, last = nodes
    rounding = graph.nodes[last]
    result, value = rounding.outputs[0], rounding.inputs[0]
    assert result is not None
    made = {value for index in nodes[:-1] for value in graph.nodes[index].outputs}
    if value is None or value not in made:
        return [result]
    needed = value in graph.outputs or any(index not in nodes for index in graph.users.get(value, ()))
    return [value, result] if needed else [result]


def is_taken_in(graph: Graph, node: Node) -> bool:
    """Whether a product takes in such a map. Narrow floats are rounded after every op, and products only where they
    write: they take in the last rounding."""
    if node.op.removeprefix("core.") not in EPILOGUE or legality(graph, node) is not None:
        return False
    types = [tensor(graph, value).dtype for value in (*node.inputs, *node.outputs)]
    rounds = node.op == "core.cast" and types[0] is DType.F32 and types[1] in (DType.F16, DType.BF16)
    return rounds or not NARROW.intersection(types)


def _is_epilogue(graph: Graph, node: Node, inside: set[ValueId | None], domain: Shape, by_row: bool) -> bool:
    if not is_taken_in(graph, node):
        return False
    if shape_of(tensor(graph, node.outputs[0])) != domain:
        return False
    shapes = [shape_of(tensor(graph, value)) for value in node.inputs if value not in inside]
    refused = (None,) if by_row else (None, (True, False))
    return all(operand_reach(shape, domain) not in refused for shape in shapes)


def operand_reach(shape: Shape, domain: Shape) -> tuple[bool, bool] | None:
    """Whether an operand of a map behind a product has the rows and the columns of the product; None where it is
    neither whole, nor one for each row or column, nor a single element."""
    present = present_axes(shape, domain)
    if present is None:
        return None
    rows = [there for there, size in zip(present[:-1], domain[:-1], strict=True) if size != 1]
    if any(rows) and not all(rows):
        return None
    return any(rows), present[-1] and domain[-1] != 1


class Right(Struct, frozen=True):
    """A constant right side: the matrix that lies in memory, which may have to be cast, and where it is scaled in
    blocks of `block` rows, the scales, one for each block and column."""

    value: ValueId
    scales: ValueId | None = None
    block: int = 0


def constant_right(graph: Graph, product: Node) -> Right | None:
    """The right side of a product as a constant, or as the cast of one."""
    constants = {constant for constant, _ in graph.weights}
    value, *more = product.inputs[1:]
    assert value is not None
    if product.op == "core.matmul_blocks":
        return Right(value, more[0], int(product.attrs["block"]))
    if value in constants:
        return Right(value)
    casts = (node.inputs[0] for node in graph.nodes if node.op == "core.cast" and node.outputs[0] == value)
    source = next(casts, None)
    return Right(source) if source is not None and source in constants else None
