"""The integers that small tensors hold, as dims: shapes, bounds and indices that a model computes from sizes.

A graph keeps the sizes of its values, not their contents. The type rules know those, too: here they are asked again,
node by node, with the dims that the graph already has.
"""

from __future__ import annotations

from tierup.ir.dims import READS, DimBuilder, DimError
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.infer import CONTENT_LIMIT, Infer, InferError, Out
from tierup.ir.ops import lookup
from tierup.ir.types import Dim, DType, Sym, TensorType

Contents = dict[ValueId, tuple[Dim, ...]]
_DIVISIONS = ("floordiv", "ceildiv", "truncdiv", "mod")


def contents(graph: Graph, weights: Weights | None, dims: DimBuilder) -> Contents:
    """What each small integer tensor holds, where that is known as dims; new ones are written into `dims`."""
    found: Contents = {}
    constants = {} if weights is None else {value: weights[digest] for value, digest in graph.weights}
    for value, array in constants.items():
        if _is_small(graph.type(value)) and array.size <= CONTENT_LIMIT:
            found[value] = tuple(int(v) for v in array.reshape(-1))

    for node in graph.nodes:
        if node.op.startswith("core.") and any(v is not None and _is_small(graph.type(v)) for v in node.outputs):
            context = Infer(
                op=node.op,
                version=node.version,
                attrs=node.attrs,
                inputs=tuple(None if v is None else graph.type(v) for v in node.inputs),
                wanted=tuple(v is not None for v in node.outputs),
                dims=dims,
                graphs=node.graphs,
                ids=node.inputs,
                contents=tuple(None if v is None else found.get(v) for v in node.inputs),
                constants=constants.get,
            )
            found.update(_answers(node, context))
    return found


def _is_small(type: object) -> bool:
    """An integer or bool tensor of at most one axis."""
    if not isinstance(type, TensorType) or type.shape is None or len(type.shape) > 1:
        return False
    return type.dtype.is_integer or type.dtype is DType.BOOL


def _answers(node: Node, context: Infer) -> Contents:
    row = lookup(node.op)
    if row is None:
        return {}
    try:
        results = row.infer(context)
    except (InferError, DimError):
        return {}
    pairs = zip(node.outputs, results, strict=False)
    return {v: r.content for v, r in pairs if v is not None and isinstance(r, Out) and r.content is not None}


def is_exact(dim: Dim, dims: DimBuilder) -> bool:
    """Whether a dim program gives what the tensor's own arithmetic gives: it divides by numbers other than 0 alone."""
    pending, seen = [dim], set[Dim]()
    while pending:
        current = pending.pop()
        if isinstance(current, Sym) and current not in seen:
            seen.add(current)
            op = dims.ops[current.id]
            if op.op in _DIVISIONS and (not isinstance(op.args[1], int) or op.args[1] == 0):
                return False
            pending.extend(() if op.op in READS else op.args)
    return True
