"""Lowers ops to the core ops: a table of decompositions, and a table of what stays whole and why.

Every op is core, or has a `decomposition`, or a row in `KEPT`. A decomposition may still decline a node, for
example where a rank is known only in the call; the node then stays, runs in the reference tier, and `reasons` says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.dims import DimError
from tierup.ir.graph import Graph, Node, Weights
from tierup.ir.infer import InferError, Out
from tierup.ir.ops import lookup
from tierup.ir.types import DType, TensorType, Type
from tierup.rewrite.assume import Assumptions
from tierup.rewrite.decompose.core import Core, Declined
from tierup.rewrite.decompose.kept import KEPT
from tierup.rewrite.decompose.table import decomposition
from tierup.rewrite.walk import Rewriter, Rule, Values, walk

_SPLICED = frozenset({"preview.FlexAttention"})  # whose decompositions hold the nodes of their bodies

__all__ = ["KEPT", "decompose", "decompose_all", "reasons"]


def decompose(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """Afterwards: every node is a core op, or stays whole for a reason that `reasons` gives."""
    return walk(decompose_all(graph, weights, assume), weights, (), assume).graph


def decompose_all(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """The same, with what a decomposition wrote before it declined, which nothing uses."""
    lowered = walk(graph, weights, (lower,), assume).graph
    if any(node.op in _SPLICED for _, node in graph.walk()):  # what was in their bodies stands among known ranks now
        lowered = walk(lowered, weights, (lower,), assume).graph
    return lowered


def lower(out: Rewriter, node: Node) -> Values | None:
    """The core ops for one node; None where it stays whole."""
    replaced = attempt(out, node)
    return None if isinstance(replaced, str) else replaced


def attempt(out: Rewriter, node: Node) -> Values | str:
    """The values that replace a node's outputs, or why there are none."""
    row = lookup(node.op)
    if row is not None and row.core:
        return row.core
    if node.op in KEPT:
        return KEPT[node.op]
    decomposed = decomposition(node.op)
    if decomposed is None:
        return "no decomposition is known"
    expected = out.types(node)
    if expected is None:
        return "its types cannot be right"
    given = [out.type(value) for value in node.inputs if value is not None]
    if any(_foreign(type) for type in (*given, *expected)):
        return "no tile program has strings, complex numbers, sequences or maps"
    try:
        answer = decomposed(Core(out), node)
    except (Declined, InferError, DimError) as error:
        return str(error)
    results = [answer] if isinstance(answer, int) else list(answer)
    results += [None] * (len(node.outputs) - len(results))
    return _checked(out, node, results, expected)


def _foreign(type: Out | Type) -> bool:
    if not isinstance(type, Out | TensorType):
        return True
    return type.dtype is DType.STR or type.dtype.is_complex


def _checked(out: Rewriter, node: Node, results: Values, expected: Sequence[Out | Type]) -> Values | str:
    """`results`, if every wanted output is there with the dtype and rank that the node's own rule gives."""
    for wanted, result, type in zip(node.outputs, results, expected, strict=False):
        if wanted is None:
            continue
        if result is None:
            return "one of its outputs has no decomposition"
        have = out.tensor(result)
        assert isinstance(type, Out | TensorType)
        if have is None or have.dtype is not type.dtype:
            return f"its decomposition gives {have!r} instead of {type.dtype!r}"
        if have.shape is not None and type.shape is not None and len(have.shape) != len(type.shape):
            return f"its decomposition has rank {len(have.shape)} instead of {len(type.shape)}"
    return results[: len(node.outputs)]


def reasons(graph: Graph, weights: Weights) -> list[tuple[Node, str]]:
    """Every node, bodies included, that would stay whole, and why."""
    found: list[tuple[Node, str]] = []

    def note(out: Rewriter, node: Node) -> Values | None:
        if not node.op.startswith("core."):
            answer = attempt(out, node)
            if isinstance(answer, str):
                found.append((node, answer))
        return None

    rules: Sequence[Rule] = (note,)
    walk(graph, weights, rules)
    return found
