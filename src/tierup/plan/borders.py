"""Why two regions are two: the reason for every border across which one reads what another wrote.

In: a graph, the regions that run, and the nodes that run alone. Out: a `Border` for each pair of neighbours. The cut
itself records why a node is in no region, and why two regions of rows are two; what is told here of products follows
from the rules by which `products` and `attention` join nodes, asked once more of the regions as they turned out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Dim, Shape
from tierup.plan.forms import VIEWS
from tierup.plan.products import is_taken_in, operand_reach
from tierup.plan.regions import Region, present_axes, shape_of, tensor
from tierup.plan.sources import Read, reads
from tierup.plan.spaces import is_movement, is_reduction

_PRODUCTS = ("matmul", "attention")
_BY_ITSELF = {
    "recurrent": "a recurrence goes step by step through time, by itself",
    "known": "sizes are written down by themselves",
    "scan": "a running sum or product goes along its axis by itself",
    "places": "the places of the best are found one after another, by themselves",
    "scatter": "a scatter writes where the data says, and into what is already there",
}


class Border(Struct, frozen=True):
    """Two regions, by position: what the second reads of the first, and why they are not one.

    `reason` is the same wherever the same rule parts two regions; `detail` says what it was here.
    """

    producer: int
    consumer: int
    values: tuple[ValueId, ...]
    reason: str
    detail: str = ""


def borders(
    graph: Graph,
    regions: Sequence[Region],
    alone: Collection[int] = (),
    show: Callable[[Dim], object] = repr,
) -> list[Border]:
    """Every pair of neighbours, in running order. Nodes that are in no region and not `alone` are looked through.

    `show` says how details write a size.
    """
    return list(_Borders(graph, regions, alone, show).found())


def written(graph: Graph, region: Region) -> list[ValueId]:
    """The values that a region computes; of rows, those that it writes to memory."""
    if region.kind == "rows":
        return list(dict.fromkeys(s.target for s in region.steps if s.made is None or s.made in region.stores))
    return [value for index in region.nodes for value in graph.nodes[index].outputs if value is not None]


class _Edge(Struct, frozen=True):
    """What a region reads, and the region that wrote it, or wrote what it is made of."""

    producer: int
    consumer: int
    written: ValueId
    read: ValueId


class _Borders:
    def __init__(
        self, graph: Graph, regions: Sequence[Region], alone: Collection[int], show: Callable[[Dim], object]
    ) -> None:
        self._graph, self._regions, self._alone, self._show = graph, regions, frozenset(alone), show
        self._producer, self._uses = graph.producers, graph.users
        self._writers: dict[ValueId, list[int]] = {}
        for number, region in enumerate(regions):
            for value in written(graph, region):
                self._writers.setdefault(value, []).append(number)
        self._readers = self._find_readers()

    def _find_readers(self) -> dict[int, set[int]]:
        """Who reads what something wrote: regions by position, nodes that run alone as -1 - index."""
        found: dict[int, set[int]] = {}
        for number, region in enumerate(self._regions):
            for value in self._read_by(region):
                for origin, _ in self._origins(value):
                    found.setdefault(origin, set()).add(number)
        for index in self._alone:
            for given in self._graph.nodes[index].inputs:
                for origin, _ in self._origins(given) if given is not None else ():
                    found.setdefault(origin, set()).add(-1 - index)
        return found

    def found(self) -> Iterator[Border]:
        pairs: dict[tuple[int, int], list[_Edge]] = {}
        for consumer, region in enumerate(self._regions):
            for value in self._read_by(region):
                for origin, base in self._origins(value):
                    if origin >= 0 and origin != consumer:
                        pairs.setdefault((origin, consumer), []).append(_Edge(origin, consumer, base, value))
        for (producer, consumer), edges in pairs.items():
            reason, detail = self._reason(edges[0])
            values = dict.fromkeys(edge.written for edge in edges)
            yield Border(producer, consumer, tuple(values), reason, detail)

    def _read_by(self, region: Region) -> list[ValueId]:
        """The values that a region takes from outside; of rows, those in its addresses."""
        if region.kind == "rows":
            made = {step.made for step in region.steps}
            return list(dict.fromkeys(read.base for read in _reads(region) if read.base not in made))
        nodes = [self._graph.nodes[index] for index in region.nodes]
        inside = {value for node in nodes for value in node.outputs}
        return list(dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and v not in inside))

    def _origins(self, value: ValueId) -> Iterator[tuple[int, ValueId]]:
        """Who wrote a value, or what it is made of where nobody wrote it, and what they wrote."""
        pending, seen = [value], {value}
        while pending:
            current = pending.pop()
            index = self._producer.get(current)
            if current in self._writers:
                yield from ((number, current) for number in self._writers[current])
            elif index is not None and index in self._alone:
                yield -1 - index, current
            elif index is not None:
                node = self._graph.nodes[index]
                read = node.inputs[:1] if node.op in VIEWS else node.inputs  # the others of a view are sizes
                given = [v for v in read if v is not None and v not in seen]
                seen.update(given)
                pending.extend(given)

    def _reason(self, edge: _Edge) -> tuple[str, str]:
        before, after = self._regions[edge.producer], self._regions[edge.consumer]
        for region in (after, before):
            if region.kind in _BY_ITSELF:
                return _BY_ITSELF[region.kind], ""
        if after.kind in _PRODUCTS:
            return self._before_product(before, after, edge.read)
        if before.kind == "attention":
            return "attention takes in nothing behind it but a transpose that leaves rows whole", ""
        if (before.kind, after.kind) == ("matmul", "rows"):
            return self._behind_product(before, edge.written)
        if (before.kind, after.kind) == ("rows", "rows"):
            return self._between_rows(edge, before, after)
        return f"a region of kind {before.kind} and one of kind {after.kind} are never joined", ""

    def _before_product(self, before: Region, after: Region, value: ValueId) -> tuple[str, str]:
        """A region with a product begins with the product; maps that follow it may read what others wrote."""
        nodes = [self._graph.nodes[index] for index in after.nodes]
        if not any(value in node.inputs for node in nodes if node.op == "core.matmul"):
            return "it is read by the maps behind a product, and has to be there before the product begins", ""
        refusal = self._no_attention(after.nodes[0]) if self._is_softmax(before) and after.kind == "matmul" else None
        if refusal is not None:
            return "a softmax and the product with its weights are one region only in attention", refusal
        if before.kind in _PRODUCTS:
            return "two products are one region only in attention", ""
        return "a product takes in what follows it, not what computes its sides", ""

    def _is_softmax(self, region: Region) -> bool:
        ops = {self._graph.nodes[index].op for index in region.nodes}
        return region.kind == "rows" and {"core.reduce_max", "core.exp", "core.reduce_sum", "core.div"} <= ops

    def _no_attention(self, product: int) -> str | None:
        """What is missing for attention around a product of weights and values, as far as the product shows it."""
        left, right = self._graph.nodes[product].inputs
        behind = self._producer.get(left) if left is not None else None
        if left is None or behind is None:
            return None
        node = self._graph.nodes[behind]
        if is_movement(node):
            return f"a {_name(node)} stands between softmax and product"
        if node.op != "core.div":
            return f"{_name(node)} follows the softmax, where the product has to"
        if left in self._graph.outputs or self._uses.get(left, []) != [product]:
            return "the weights are used elsewhere"
        shapes = [shape_of(tensor(self._graph, value)) for value in (left, right)]
        if len(shapes[0]) != len(shapes[1]) or present_axes(shapes[1][:-2], shapes[0][:-2]) is None:
            return f"the batches of weights {self._text(shapes[0])} and values {self._text(shapes[1])} differ"
        return "the scores are no product with maps behind it, or something between is used elsewhere"

    def _behind_product(self, before: Region, result: ValueId) -> tuple[str, str]:
        """Why the first node that reads what a product's region writes is not part of it."""
        inside = {value for index in before.nodes for value in self._graph.nodes[index].outputs}
        uses = [use for use in self._uses.get(result, ()) if self._graph.nodes[use].op != "core.shape"]
        refused = self._not_behind(self._graph.nodes[uses[0]], inside, before.domain)
        if refused is not None:
            return refused
        times = "once" if len(uses) == 1 else f"{len(uses)} times"
        given = " and is an output of the model" if result in self._graph.outputs else ""
        counts = f"{self._graph.value_name(result)} is read {times}{given}"
        return "more than one value would leave the product's region", counts

    def _not_behind(self, node: Node, inside: set[ValueId | None], domain: Shape) -> tuple[str, str] | None:
        """The rules for what follows a product in its region."""
        if is_reduction(node):
            return "a reduction follows the product, which takes in maps only", _name(node)
        if not is_taken_in(self._graph, node):
            return f"{_name(node)} follows the product, which does not take it in", ""
        shape = shape_of(tensor(self._graph, node.outputs[0]))
        if shape != domain:
            return "the map behind the product has another shape", f"{self._text(domain)} and {self._text(shape)}"
        for value in node.inputs:
            other = shape_of(tensor(self._graph, value))
            if value not in inside and operand_reach(other, domain) is None:
                reason = (
                    "the map's other operand is neither whole, nor one for each row or column, nor a single element"
                )
                return reason, f"{_name(node)} with {self._text(other)}"
        return None

    def _between_rows(self, edge: _Edge, before: Region, after: Region) -> tuple[str, str]:
        """Why the cut did not join two regions of rows, which it records itself."""
        detail = self._path_outside(edge.producer, edge.consumer)
        if detail is None:
            detail = f"{self._text(before.domain)} and {self._text(after.domain)}"
        told = dict(after.refused).get(edge.written)
        if told is not None:
            return told, detail
        if all(is_movement(self._graph.nodes[index]) for index in after.nodes):
            return "a copy for products is a region by itself: where they look through it, it is not needed", ""
        return "the cut goes from the front, and had joined others before these two met", detail

    def _path_outside(self, before: int, after: int) -> str | None:
        """Something outside both that depends on the first and that the second needs."""
        pending = [user for user in self._readers.get(before, ()) if user != after]
        seen = {before, *pending}
        while pending:
            current = pending.pop()
            readers = self._readers.get(current, set())
            if after in readers:
                node = -1 - current if current < 0 else self._regions[current].nodes[0]
                return f"through {_name(self._graph.nodes[node])}"
            pending.extend(readers - seen)
            seen |= readers
        return None

    def _text(self, shape: Shape) -> str:
        return f"[{', '.join(str(self._show(dim)) for dim in shape)}]"


def _name(node: Node) -> str:
    return node.op.removeprefix("core.")


def _reads(region: Region) -> list[Read]:
    """Everything that a rows region reads."""
    return [read for step in region.steps for source in step.arguments for read in reads(source)]
