"""Finds attention: softmax(q · kᵀ, scaled and masked) · v, in the ways that exporters write it.

The scores are a product, maps follow, a softmax over the last axis, and a second product with the weights on its left.
Nothing between is used elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import DType, Shape
from tierup.plan.forms import VIEWS
from tierup.plan.regions import ELEMENTWISE, Region, legality, present_axes, shape_of, tensor


class Roles(Struct, frozen=True):
    """What the parts of an attention region are.

    `key` is given as kᵀ. `maps` act on the scores, `shift` on the largest of a row, `divisor` on the sum of a row's
    weights, `after` on the weights, whose value is `weights`. `rounded`: then they are rounded to bf16. `order` is how
    the result is transposed; it may be rounded, too.
    """

    query: ValueId
    key: ValueId
    value: ValueId
    scores: ValueId
    maps: tuple[Node, ...]
    shift: tuple[Node, ...]
    divisor: tuple[Node, ...]
    weights: ValueId
    after: tuple[Node, ...]
    rounded: bool
    result: ValueId
    order: tuple[int, ...]


def attention(graph: Graph, product: int) -> Region | None:
    """The region around a product of weights and values, if it is one of attention."""
    found = _Finder(graph).find(product)
    if found is None:
        return None
    nodes, domain = found
    return Region("attention", tuple(nodes), domain)


def factors(graph: Graph, region: Region) -> set[int]:
    """The nodes that multiply all of q or k by one number: the region does that to the scores, and reads what is behind
    them."""
    found: set[int] = set()
    scores = next(index for index in region.nodes if graph.nodes[index].op == "core.matmul")
    pending = list(graph.nodes[scores].inputs)
    while pending:
        value = pending.pop()
        index = None if value is None else graph.producers.get(value)
        if index is None:
            continue
        node = graph.nodes[index]
        if node.op in VIEWS:
            pending.append(node.inputs[0])
        elif is_scaled(graph, node):
            pending.extend(node.inputs)
            found.add(index)
    return found


def is_scaled(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies or divides everything by one constant."""
    return node.op in ("core.mul", "core.div") and any(
        value in graph.digests and all(size == 1 for size in shape_of(tensor(graph, value))) for value in node.inputs
    )


def roles(graph: Graph, region: Region) -> Roles:
    """The parts of an attention region. Each depends on the one before, so their order tells them apart."""
    nodes = [graph.nodes[index] for index in region.nodes]
    ops = [node.op for node in nodes]
    first, last = ops.index("core.matmul"), len(ops) - 1 - ops[::-1].index("core.matmul")
    top, exp, total = (ops.index(op, first) for op in ("core.reduce_max", "core.exp", "core.reduce_sum"))
    div = next(n for n in range(total, last) if ops[n] == "core.div" and nodes[n].inputs[0] == nodes[exp].outputs[0])
    rounded = tensor(graph, nodes[last].inputs[0]).dtype is DType.BF16
    return Roles(
        query=_given(nodes[first].inputs[0]),
        key=_given(nodes[first].inputs[1]),
        value=_given(nodes[last].inputs[1]),
        scores=_given(nodes[first].outputs[0]),
        maps=tuple(nodes[first + 1 : top]),
        shift=tuple(nodes[top + 1 : exp - 1]),
        divisor=tuple(nodes[total + 1 : div]),
        weights=_given(nodes[div].outputs[0]),
        after=tuple(nodes[div + 1 : last - rounded]),
        rounded=rounded,
        result=_given(nodes[-1].outputs[0]),
        order=tuple(nodes[-1].attrs["perm"]) if ops[-1] == "core.transpose" else (),
    )


def _given(value: ValueId | None) -> ValueId:
    assert value is not None
    return value


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._graph, self._uses = graph, graph.users
        self._producer = graph.producers

    def find(self, product: int) -> tuple[list[int], Shape] | None:
        second = self._graph.nodes[product]
        if not self._is_product(product):
            return None
        weights, user, rounding = second.inputs[0], product, self._behind(second.inputs[0])
        if rounding is not None and self._rounds(rounding) and self._only(weights, [product]):
            weights, user = self._graph.nodes[rounding].inputs[0], rounding
        after = self._between(weights, user, lambda index: self._graph.nodes[index].op == "core.div")
        softmax = self._softmax(after[0]) if after is not None else None
        if after is None or softmax is None:
            return None
        scores = self._graph.nodes[softmax[0]].inputs[0]
        maps = self._maps(scores)
        if maps is None:
            return None
        nodes = {*maps, *softmax, *after, user, product, *self._behind_product(second)}
        return sorted(nodes), shape_of(tensor(self._graph, scores))

    def _is_product(self, index: int) -> bool:
        node = self._graph.nodes[index]
        if node.op != "core.matmul" or tensor(self._graph, node.outputs[0]).dtype is not DType.F32:
            return False
        shapes = [shape_of(tensor(self._graph, value)) for value in (*node.outputs, *node.inputs)]
        batch, *sides = (shape[:-2] for shape in shapes)
        whole = len({len(shape) for shape in shapes}) == 1 and shapes[1][-1] == shapes[2][-2]
        return whole and all(present_axes(side, batch) is not None for side in sides)  # heads may share keys

    def _behind(self, value: ValueId | None) -> int | None:
        """The node that computes a value."""
        return None if value is None else self._producer.get(value)

    def _only(self, value: ValueId | None, users: Sequence[int]) -> bool:
        """Whether a value is used by these nodes alone."""
        return value is not None and value not in self._graph.outputs and self._uses.get(value, []) == sorted(users)

    def _softmax(self, div: int) -> list[int] | None:
        """max, sub, exp, sum, div over the last axis; rows' maximum and sum may go through maps of their own."""
        nodes = self._graph.nodes
        exp, total = self._behind(nodes[div].inputs[0]), self._reduced(nodes[div].inputs[1], "core.reduce_sum", div)
        if exp is None or total is None or nodes[exp].op != "core.exp":
            return None
        sub = self._behind(nodes[exp].inputs[0])
        top = self._reduced(nodes[sub].inputs[1], "core.reduce_max", sub) if sub is not None else None
        if sub is None or top is None or nodes[sub].op != "core.sub":
            return None
        fits = (
            nodes[total[0]].inputs[0] == nodes[exp].outputs[0]
            and nodes[top[0]].inputs[0] == nodes[sub].inputs[0]
            and self._only(nodes[exp].outputs[0], [total[0], div])
            and self._only(nodes[sub].outputs[0], [exp])
            and self._only(nodes[sub].inputs[0], [top[0], sub])
        )
        return [*top, sub, exp, *total, div] if fits else None

    def _reduced(self, value: ValueId | None, op: str, user: int) -> list[int] | None:
        """A reduction over the last axis and the maps between it and `value`, in order; nobody else looks at them."""
        found = self._between(value, user, lambda index: self._graph.nodes[index].op == op)
        if found is None:
            return None
        reduction = self._graph.nodes[found[0]]
        rank = len(shape_of(tensor(self._graph, reduction.inputs[0])))
        last = tuple(reduction.attrs["axes"]) == (rank - 1,) and reduction.attrs["keepdims"]
        return found if last else None

    def _between(self, value: ValueId | None, user: int, ends: Callable[[int], bool]) -> list[int] | None:
        """One node for which `ends` holds and the maps between it and `value`, in order; nobody else looks at them."""
        found: set[int] = set()
        pending, users = [value], {value: [user]}
        while pending:
            index = self._behind(pending.pop())
            if index is None:
                return None
            node = self._graph.nodes[index]
            found.add(index)
            if ends(index):
                continue
            if node.op.removeprefix("core.") not in ELEMENTWISE or legality(self._graph, node) is not None:
                return None
            for given in node.inputs:
                if self._behind(given) is not None:
                    users.setdefault(given, []).append(index)
                    pending.append(given)
                elif not self._is_number(given):
                    return None
        alone = all(self._only(given, sorted(set(by))) for given, by in users.items())
        return sorted(found) if alone and sum(map(ends, found)) == 1 and ends(min(found)) else None

    def _is_number(self, value: ValueId | None) -> bool:
        """Whether a value is a constant of one element."""
        type = tensor(self._graph, value)
        return value in self._graph.digests and math.prod(d for d in type.shape or () if isinstance(d, int)) == 1

    def _maps(self, scores: ValueId | None) -> list[int] | None:
        """The product behind the scores and the maps between; None where something else stands there."""
        if scores is None:
            return None
        domain, found = shape_of(tensor(self._graph, scores)), list[int]()
        while True:
            index = self._producer.get(scores)
            if index is None:
                return None
            node = self._graph.nodes[index]
            found.append(index)
            if node.op == "core.matmul":
                return found if self._is_product(index) and legality(self._graph, node) is None else None
            following = self._chain(node, domain)
            if following is None or not self._only(following, [index]):
                return None
            scores = following

    def _chain(self, node: Node, domain: Shape) -> ValueId | None:
        """The input of a map that leads on to the product: one of the domain's shape, computed for this alone."""
        if node.op.removeprefix("core.") not in ELEMENTWISE or legality(self._graph, node) is not None:
            return None
        if shape_of(tensor(self._graph, node.outputs[0])) != domain:
            return None
        shapes = [shape_of(tensor(self._graph, value)) for value in node.inputs]
        if any(present_axes(shape, domain) is None for shape in shapes):
            return None
        leading = [v for v, shape in zip(node.inputs, shapes, strict=True) if shape == domain and self._leads(v)]
        return leading[0] if len(leading) == 1 else None

    def _leads(self, value: ValueId | None) -> bool:
        """Whether a product is behind a value, a few maps away."""
        for _ in range(8):
            index = self._behind(value)
            if index is None:
                return False
            node = self._graph.nodes[index]
            if node.op == "core.matmul":
                return True
            if node.op.removeprefix("core.") not in ELEMENTWISE:
                return False
            shape = shape_of(tensor(self._graph, node.outputs[0]))
            same = [v for v in node.inputs if shape_of(tensor(self._graph, v)) == shape]
            value = next((v for v in same if v in self._producer), None)
        return False

    def _behind_product(self, product: Node) -> list[int]:
        """A rounding to bf16 behind the product and then a transpose that leaves rows whole, if nothing else reads what
        is between."""
        found: list[int] = []
        following = self._single_use(product)
        if following is not None and self._rounds(following):
            found.append(following)
            following = self._single_use(self._graph.nodes[following])
        if following is not None and self._turns(following):
            found.append(following)
        return found

    def _single_use(self, node: Node) -> int | None:
        """The one that reads a node's result, if nobody else does."""
        result = node.outputs[0]
        users = self._uses.get(result, []) if result is not None else []
        return users[0] if len(users) == 1 and self._only(result, users) else None

    def _rounds(self, index: int) -> bool:
        node = self._graph.nodes[index]
        return node.op == "core.cast" and tensor(self._graph, node.outputs[0]).dtype is DType.BF16

    def _turns(self, index: int) -> bool:
        node = self._graph.nodes[index]
        if node.op != "core.transpose" or legality(self._graph, node) is not None:
            return False
        *_, last = order = tuple(node.attrs["perm"])
        return bool(last == len(order) - 1)
