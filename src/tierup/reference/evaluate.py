"""Runs a graph node by node in Python: the oracle of tests and proofs, in f32 or with every float widened to f64.

Sessions run the same reference functions from the native program; this evaluator needs nothing but the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tierup.errors import InputError
from tierup.ir.graph import Graph, Node, Weights
from tierup.reference.bind import bind, widen
from tierup.reference.control import CONTROL


def evaluate(graph: Graph, weights: Weights, inputs: Sequence[Any], *, wide: bool = False) -> list[Any]:
    """The outputs of `graph` for `inputs`, given in the order of `graph.inputs`."""
    if len(inputs) != len(graph.inputs):
        raise InputError(f"graph '{graph.name}' has {len(graph.inputs)} inputs, but {len(inputs)} were given")

    def run_graph(body: Graph, arguments: Sequence[Any]) -> list[Any]:
        return evaluate(body, weights, arguments, wide=wide)

    def enter(value: Any) -> Any:
        return widen(value) if wide else value

    values: dict[int, Any] = {value: enter(weights[digest]) for value, digest in graph.weights}
    values.update(zip(graph.inputs, map(enter, inputs), strict=True))
    uses = _uses(graph)
    for node in graph.nodes:
        arguments = [None if value is None else values[value] for value in node.inputs]
        for value, result in zip(node.outputs, _compute(node, arguments, run_graph, wide), strict=False):
            if value is not None:
                values[value] = np.asarray(result) if isinstance(result, np.generic) else result
        _release(node, values, uses)
    return [values[value] for value in graph.outputs]


def _compute(node: Node, arguments: list[Any], run_graph: Any, wide: bool) -> Sequence[Any]:
    control = CONTROL.get(node.op)
    if control is not None:
        results = control(node, arguments, run_graph)
        return list(map(widen, results)) if wide else results  # a loop of no steps gives empty tensors of narrow types
    return bind(node, run_graph, wide=wide)(*arguments)


def _uses(graph: Graph) -> dict[int, int]:
    """How often each value is read; outputs and what bodies hold count as one more, so they are never dropped."""
    uses = dict.fromkeys(graph.outputs, 1)
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                uses[value] = uses.get(value, 0) + 1
    return uses


def _release(node: Node, values: dict[int, Any], uses: dict[int, int]) -> None:
    for value in node.inputs:
        if value is not None:
            uses[value] -= 1
            if uses[value] == 0:
                values.pop(value, None)
