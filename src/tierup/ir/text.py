"""Graphs as text and back: `parse_graph(print_graph(graph)) == graph`, names included.

    graph "main" {
      input %0 "x" : f32[d0, 64]
      weight %1 "w" : f32[64, 128] @5feceb66
      dim d0 = of %0 0 "batch"
      %2 "h" : f32[d0, 128] = onnx.Gemm@13(%0, %1, _) {alpha=1.0} "node name"
      %3 : f32[d0, 128], _ = onnx.If@16(%2) {captures=1}
        body then_branch = graph "then" {
          ...
        }
      return %3
    }

One statement is one line. `_` is an absent input or output, `value` a value that nothing produces, `default` the
weight that stands in for an input. Strings are JSON. Without names, the text holds nothing but the content: digests
are made of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tierup.ir.graph import Attr, Graph, Node, ValueId
from tierup.ir.parse import DEPTH_LIMIT, parse_graph

__all__ = ["parse_graph", "print_graph"]

_WORD = re.compile(r"(?!(?:inf|nan)$)[A-Za-z_][A-Za-z0-9_.]*")
_DIGEST = re.compile(r"[0-9A-Za-z_]+")


def print_graph(graph: Graph, names: bool = True) -> str:
    """The text of `graph`; without `names`, values, nodes, dims and graphs are left unnamed."""
    lines: list[str] = []
    open_graphs: list[Iterator[str | tuple[str, Graph]]] = [_statements("", graph, names)]
    while open_graphs:
        item = next(open_graphs[-1], None)
        if item is None:
            open_graphs.pop()
        elif isinstance(item, str):
            depth = len(open_graphs) - 1
            inner = 0 if item == "}" or item.startswith(("graph", "body")) else 1
            lines.append("  " * (2 * depth + inner) + item)
        else:
            head, body = item
            open_graphs.append(_statements(head, body, names))
    return "\n".join(lines) + "\n"


def _statements(head: str, graph: Graph, names: bool) -> Iterator[str | tuple[str, Graph]]:
    """The lines of one graph; a body comes as what stands before it, and the graph."""
    yield f"{head}graph{_name(graph.name, names)} {{"
    yield from (f"input {_typed(graph, value, names)}" for value in graph.inputs)
    yield from (f"weight {_typed(graph, value, names)} {_digest(digest)}" for value, digest in graph.weights)
    yield from (f"default %{value} {_digest(digest)}" for value, digest in graph.defaults)
    yield from (f"value {_typed(graph, value, names)}" for value in _unproduced(graph))
    dim_names = dict(graph.dim_names)
    for index, op in enumerate(graph.dims):
        yield f"dim d{index} = {op!r}{_name(dim_names.get(index, ''), names)}"
    for node in graph.nodes:
        yield _node_text(graph, node, names)
        yield from ((f"body {_word(name)} = ", body) for name, body in node.graphs)
    yield f"return {', '.join(f'%{value}' for value in graph.outputs)}".rstrip()
    yield "}"


def _unproduced(graph: Graph) -> list[ValueId]:
    produced = {*graph.inputs, *(value for value, _ in graph.weights)}
    produced.update(value for node in graph.nodes for value in node.outputs if value is not None)
    return [value for value in range(len(graph.values)) if value not in produced]


def _node_text(graph: Graph, node: Node, names: bool) -> str:
    results = ", ".join("_" if value is None else _typed(graph, value, names) for value in node.outputs)
    inputs = ", ".join("_" if value is None else f"%{value}" for value in node.inputs)
    attrs = ", ".join(f"{_word(name)}={_attr(value)}" for name, value in node.attrs.items())
    braces = f" {{{attrs}}}" if attrs else ""
    return f"{results or '()'} = {_word(node.op)}@{node.version}({inputs}){braces}{_name(node.name, names)}"


def _typed(graph: Graph, value: ValueId, names: bool) -> str:
    return f"%{value}{_name(graph.values[value].name, names)} : {graph.values[value].type!r}"


def _name(name: str, names: bool) -> str:
    return f" {json.dumps(name)}" if name and names else ""


def _word(word: str) -> str:
    return word if _WORD.fullmatch(word) else json.dumps(word)


def _digest(digest: str) -> str:
    return f"@{digest}" if _DIGEST.fullmatch(digest) else f"@{json.dumps(digest)}"


def _attr(value: Attr, depth: int = 0) -> str:
    if depth > DEPTH_LIMIT:
        raise ValueError(f"an attribute is nested more than {DEPTH_LIMIT} deep")
    if isinstance(value, tuple):
        return f"[{', '.join(_attr(item, depth + 1) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float.__repr__(value)
    return int.__repr__(value) if isinstance(value, int) else repr(value)
