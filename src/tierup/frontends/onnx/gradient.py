"""Gradient (ai.onnx.preview.training) names tensors of the graph around it; here its computation becomes a body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tierup.errors import ModelError
from tierup.frontends.onnx.order import needs
from tierup.frontends.onnx.protos import Graph, ValueInfo


def forward_body(nodes: Sequence[Any], xs: Sequence[str], zs: Sequence[str], y: str) -> Any:
    """The nodes that compute `y` from `xs` and `zs`, as a graph with these as its inputs."""
    producers = {name: node for node in nodes for name in node.output if name}
    stops = {*xs, *zs}
    needed: dict[int, Any] = {}
    pending = [y]
    while pending:
        name = pending.pop()
        node = None if name in stops else producers.get(name)
        if node is not None and id(node) not in needed:
            needed[id(node)] = node
            pending.extend(needs(node))
    if not needed:
        raise ModelError(f"asks for the gradient of '{y}', which no node computes from {sorted(stops)}")
    return Graph(
        name="forward",
        input=[ValueInfo(name=name) for name in (*xs, *zs)],
        output=[ValueInfo(name=y)],
        node=[node for node in nodes if id(node) in needed],
    )
