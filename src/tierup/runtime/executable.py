"""Plan -> native program: binds call-outs to reference functions and constants to weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tierup import _native
from tierup.ir.graph import Graph, Node, Weights
from tierup.ir.types import Array
from tierup.plan.program import BASELINE, Constant, Plan
from tierup.reference.bind import bind
from tierup.reference.control import CONTROL
from tierup.reference.evaluate import evaluate


def executable(plan: Plan, weights: Weights) -> _native.Program:
    """The program that runs `plan`; it holds the weights it uses."""

    def run_graph(body: Graph, inputs: Sequence[Any]) -> list[Any]:
        return evaluate(body, weights, inputs)

    return _native.Program(
        functions=[function.native() for function in plan.functions],
        callouts=[_callout(node, run_graph) for node in plan.callouts],
        constants=[_constant(constant, weights) for constant in plan.constants],
        slots=plan.slots,
    )


def _callout(node: Node, run_graph: Callable[[Graph, Sequence[Any]], list[Any]]) -> Callable[..., tuple[Any, ...]]:
    """A node as a Python function; control flow that native steps cannot express runs in the evaluator's way."""
    if node.op == BASELINE:
        return lambda *inputs: tuple(run_graph(node.graphs[0][1], inputs))
    control = CONTROL.get(node.op)
    if control is None:
        return bind(node, run_graph)

    def call(*inputs: Any) -> tuple[Any, ...]:
        return tuple(control(node, list(inputs), run_graph))[: len(node.outputs)]

    return call


def _constant(constant: Constant, weights: Weights) -> Array:
    if isinstance(constant, str):
        return _aligned(weights[constant])
    digest, width = constant
    return pack_panels(weights[digest], width)


def pack_panels(matrix: Array, width: int) -> Array:
    """[K, N] as [panels, K, width], the last panel filled up with zeros, on a 64-byte border."""
    rows, columns = matrix.shape
    panels = -(-columns // width)
    raw = np.zeros(panels * rows * width * matrix.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    packed = raw[start : raw.size - 64 + start].view(matrix.dtype).reshape(panels, rows, width)
    whole = columns // width
    packed[:whole] = matrix[:, : whole * width].reshape(rows, whole, width).transpose(1, 0, 2)
    if whole < panels:
        packed[whole, :, : columns - whole * width] = matrix[:, whole * width :]
    return packed


def _aligned(array: Array) -> Array:
    """A mapped weight may start at any byte; NumPy copies such an array in every product, so copy it once."""
    return array if array.flags.aligned else np.array(array)
