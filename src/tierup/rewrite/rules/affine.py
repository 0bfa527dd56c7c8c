"""Constants behind a product with constant weights, as exporters leave of normalisations:

    (x · w + a) · b + c = x · (w · b) + (a · b + c), where a, b and c have one element, or one for each column

Computed in float64 and rounded once. This is no worse than what it replaces, which rounds after each step: w · b is off
by half an ulp, as every product x · w was. What does not stay a normal number is left as it is.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Array, DType, TensorType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Rule, Values

_PRODUCTS = ("core.matmul", "core.conv_last")
_STEPS = ("core.add", "core.sub", "core.mul")


class _Chain(Struct, frozen=True):
    """The nodes from a product to the last of the steps behind it."""

    product: Node
    steps: tuple[Node, ...]


def joined_constants(graph: Graph) -> Rule | None:
    """The rule for one graph; bodies of control nodes stay as they are. None where it would find nothing."""
    chains = _chains(graph)
    if not chains:
        return None

    def rule(out: Rewriter, node: Node) -> Values | None:
        chain = chains.get(node.outputs[0]) if out.source is graph else None
        return None if chain is None else _joined(out, node, chain)

    return rule


def _chains(graph: Graph) -> dict[ValueId | None, _Chain]:
    """Chains by the value that leaves them: as long as can be, with something to join."""
    readers: dict[ValueId | None, list[Node]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            readers.setdefault(value, []).append(node)
    constants = {value for value, _ in graph.weights}
    found: dict[ValueId | None, _Chain] = {}
    for node in graph.nodes:
        if node.op not in _PRODUCTS or node.inputs[1] not in constants or not _is_float(graph, node.outputs[0]):
            continue
        steps: list[Node] = []
        value = node.outputs[0]
        while value not in graph.outputs and len(readers.get(value, ())) == 1:
            (step,) = readers[value]
            if step.op not in _STEPS or not _is_step(graph, step, value, constants):
                break
            steps.append(step)
            value = step.outputs[0]
        if len(steps) > 1 or any(step.op == "core.mul" for step in steps):
            found[value] = _Chain(node, tuple(steps))
    return found


def _is_float(graph: Graph, value: ValueId | None) -> bool:
    type = None if value is None else graph.type(value)
    return isinstance(type, TensorType) and type.dtype in (DType.F32, DType.F64) and type.shape is not None


def _is_step(graph: Graph, step: Node, value: ValueId | None, constants: set[ValueId]) -> bool:
    """Whether a step has a constant of one element, or one for each column, beside `value`, and gives its shape."""
    first, second = step.inputs
    other = second if first == value else first
    if other not in constants or first == second or (step.op == "core.sub" and first != value):
        return False
    kind, given, made = (graph.type(each) for each in (other, value, step.outputs[0]) if each is not None)
    assert isinstance(kind, TensorType)
    assert isinstance(given, TensorType)
    assert isinstance(made, TensorType)
    if kind.shape is None or not given.shape or made.shape != given.shape:
        return False
    return all(size == 1 for size in kind.shape[:-1]) and kind.shape[-1:] in ((), (1,), given.shape[-1:])


def _joined(out: Rewriter, node: Node, chain: _Chain) -> Values | None:
    """The chain that ends with `node` as one product and one sum."""
    numbers: list[tuple[str, Array]] = []
    current: Node | None = node
    for step in reversed(chain.steps):
        if current is None or current.op != step.op:
            return None
        constants = [None if value is None else out.constant(value) for value in current.inputs]
        beside = next((array for array in constants if array is not None), None)
        if beside is None:
            return None
        numbers.append((step.op, beside.astype(np.float64).reshape(-1)))
        current = out.producer(current.inputs[0] if constants[0] is None else current.inputs[1])
    if current is None or current.op != chain.product.op or current.inputs[1] is None:
        return None
    matrix = out.constant(current.inputs[1])
    if matrix is None or matrix.ndim != 2:
        return None
    return _written(out, current, matrix, *_summed(numbers))


def _summed(numbers: list[tuple[str, Array]]) -> tuple[Array, Array | None]:
    """y · scale + shift, of steps from the last to the first; no shift where nothing is added."""
    scale, shift = np.ones(1), None
    for op, array in reversed(numbers):
        if op == "core.mul":
            scale, shift = scale * array, None if shift is None else shift * array
        else:
            signed = array if op == "core.add" else -array
            shift = signed if shift is None else shift + signed
    return scale, shift


def _written(out: Rewriter, product: Node, matrix: Array, scale: Array, shift: Array | None) -> Values | None:
    with np.errstate(all="ignore"):
        scaled = (matrix * scale).astype(matrix.dtype)
        moved = None if shift is None else shift.astype(matrix.dtype)
    if not _is_normal(scaled, matrix) or (moved is not None and not np.isfinite(moved).all()):
        return None
    b = Core(out)
    weights = product.inputs[1] if np.array_equal(scaled, matrix) else b.weight(scaled)
    (result,) = out.node(product.op, (product.inputs[0], weights, *product.inputs[2:]), product.attrs)
    assert result is not None
    return [result if moved is None else b.add(result, b.weight(moved))]


def _is_normal(scaled: Array, matrix: Array) -> bool:
    least = np.finfo(matrix.dtype).tiny
    return bool(np.isfinite(scaled).all() and ((np.abs(scaled) >= least) | (matrix == 0)).all())
