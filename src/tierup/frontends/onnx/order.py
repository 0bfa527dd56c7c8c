"""Names and order: which names a graph takes from outside, and an order in which its nodes can run."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from tierup.errors import ModelError


def _check_text(node: Any, graph: str) -> None:
    """protobuf hands out strings that are not UTF-8 as bytes."""
    texts = [node.name, node.op_type, node.domain, node.overload, *node.input, *node.output]
    texts += [attribute.name for attribute in node.attribute] + [a.ref_attr_name for a in node.attribute]
    for text in texts:
        if not isinstance(text, str):
            raise ModelError(f"a node of graph '{graph}' has the name {text!r}, which is not UTF-8")


def bodies_of(node: Any) -> list[Any]:
    """The graphs in a node's attributes."""
    return [a.g for a in node.attribute if a.type == a.GRAPH] + [
        g for a in node.attribute if a.type == a.GRAPHS for g in a.graphs
    ]


def free_names(graphs: Iterable[Any]) -> list[str]:
    """Names that these bodies use but do not define, in order of appearance, each once."""
    found: dict[str, None] = {}
    for graph in graphs:
        defined = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        defined |= {s.values.name for s in graph.sparse_initializer}
        defined |= {name for node in graph.node for name in node.output}
        for name in _used(graph):
            if name and name not in defined:
                found.setdefault(name)
    return list(found)


def _used(graph: Any) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        yield from free_names(bodies_of(node))
    for value in graph.output:
        yield value.name


def needs(node: Any) -> list[str]:
    """Names that must exist before `node` can run."""
    return [name for name in node.input if name] + free_names(bodies_of(node))


def in_order(nodes: Sequence[Any], defined: Container[str], graph: str) -> list[Any]:
    """`nodes` so that each comes after what it needs: file order where that works, as exporters write it."""
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        _check_text(node, graph)
        for name in node.output:
            if name and producers.setdefault(name, index) != index:
                raise ModelError(f"value '{name}' of graph '{graph}' is defined twice")
    waiting: list[int] = []
    consumers: dict[int, list[int]] = {}
    ready: deque[int] = deque()
    sorted_already = True
    for index, node in enumerate(nodes):
        sources = set()
        for name in needs(node):
            source = producers.get(name)
            if source is not None and (source != index or name not in defined):
                sources.add(source)
                sorted_already &= source < index
            elif source is None and name not in defined:
                raise ModelError(
                    f"node '{node.name or node.output[0] if node.output else node.name}' ({node.op_type}) of graph "
                    f"'{graph}' uses '{name}', which nothing defines"
                )
        waiting.append(len(sources))
        for source in sources:
            consumers.setdefault(source, []).append(index)
        if not sources:
            ready.append(index)
    if sorted_already:
        return list(nodes)
    order = []
    while ready:
        index = ready.popleft()
        order.append(nodes[index])
        for consumer in consumers.get(index, ()):
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                ready.append(consumer)
    if len(order) < len(nodes):
        stuck = next(node for index, node in enumerate(nodes) if waiting[index] > 0)
        raise ModelError(f"graph '{graph}' has a cycle through node '{stuck.name}' ({stuck.op_type})")
    return order
