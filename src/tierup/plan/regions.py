"""Regions of a core graph: what runs as one kernel, and why a node is in none.

A *rows* region is maps and reductions over the last axis on one domain: every value in it has the domain's shape, or
that shape with a last size of 1. A *matmul* region is one product and the maps that follow it. A *move* region is one
transpose or broadcast that has to be written out. `legality` says whether a node could be compiled at all; what joins
what is decided by `products` and `cut`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Dim, DType, Shape, TensorType

COMPUTED = frozenset({DType.F32, DType.F64, DType.I32, DType.I64, DType.U8, DType.I8, DType.BOOL})
REDUCTIONS = {"core.reduce_sum": "sum", "core.reduce_prod": "prod", "core.reduce_max": "max", "core.reduce_min": "min"}
# The element-wise core ops that tile programs have maps for; a test keeps the two lists equal.
ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "div", "eq", "erf",
    "exp", "expm1", "floor", "fmod", "le", "log", "log1p", "lt", "max", "min", "mod", "mul", "neg", "not", "or", "pow",
    "round", "select", "shl", "shr", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "xor",
})  # fmt: skip
MOVES = frozenset({"core.transpose", "core.broadcast"})
_FLOAT_ONLY = frozenset({"pow", "fmod"})  # integer forms are not lowered yet


@dataclass(frozen=True)
class Region:
    """Nodes by position in the graph, in an order in which they can run, and the shape they run over."""

    kind: str
    nodes: tuple[int, ...]
    domain: Shape


@dataclass(frozen=True)
class Cut:
    """A graph divided: regions and single nodes, in an order in which they can run, and why nodes stand alone."""

    order: tuple[Region | int, ...]
    refusals: dict[int, str] = field(default_factory=dict)


def legality(graph: Graph, node: Node) -> str | None:
    """Why a node cannot be part of any region; None if it can."""
    if not node.op.startswith("core."):
        return f"{node.op} is no core op"
    for value in (*node.inputs, *node.outputs):
        if value is None:
            continue
        type = graph.type(value)
        if not isinstance(type, TensorType) or type.shape is None:
            return "a rank is known only in the call"
        if type.dtype not in COMPUTED:
            return f"{type.dtype!r} is not compiled yet"
    if node.op == "core.matmul":
        return _matmul_legality(graph, node)
    if node.op in MOVES:
        return _move_legality(graph, node)
    if node.op in REDUCTIONS:
        return _reduction_legality(graph, node)
    return _map_legality(graph, node)


def _matmul_legality(graph: Graph, node: Node) -> str | None:
    left, right = (tensor(graph, value) for value in node.inputs)
    if left.dtype is not DType.F32:
        return f"products of {left.dtype!r} are not compiled yet"
    batch = shape_of(tensor(graph, node.outputs[0]))[:-2]
    if len(shape_of(right)) != 2 and any(present_axes(shape_of(side)[:-2], batch) is None for side in (left, right)):
        return "whether the batches of the product broadcast is known only in the call"
    return None


def _move_legality(graph: Graph, node: Node) -> str | None:
    source, result = shape_of(tensor(graph, node.inputs[0])), shape_of(tensor(graph, node.outputs[0]))
    if not result:
        return "a single element is not worth a kernel"
    if node.op == "core.broadcast" and present_axes(source, result) is None:
        return "whether a size broadcasts is known only in the call"
    return None


def _reduction_legality(graph: Graph, node: Node) -> str | None:
    source = tensor(graph, node.inputs[0])
    rank = len(shape_of(source))
    if tuple(node.attrs["axes"]) != (rank - 1,):
        return "only reductions over the last axis are compiled yet"
    if not source.dtype.is_float and source.dtype not in (DType.I32, DType.I64):
        return f"reductions of {source.dtype!r} are not compiled yet"
    return None


def _map_legality(graph: Graph, node: Node) -> str | None:
    name = node.op.removeprefix("core.")
    if node.op == "core.reshape":
        return "it is the same memory under other sizes: no kernel is needed"
    if name not in ELEMENTWISE and name != "cast":
        return f"{node.op} has no lowering yet"
    result = tensor(graph, node.outputs[0])
    if name in _FLOAT_ONLY and not result.dtype.is_float:
        return f"{node.op} of {result.dtype!r} has no lowering yet"
    if not shape_of(result):
        return "a single element is not worth a kernel"
    for value in node.inputs:
        if present_axes(shape_of(tensor(graph, value)), shape_of(result)) is None:
            return "whether a size broadcasts is known only in the call"
    return None


def tensor(graph: Graph, value: ValueId | None) -> TensorType:
    """The type of a value that is there and is a tensor."""
    assert value is not None
    type = graph.type(value)
    assert isinstance(type, TensorType)
    return type


def shape_of(type: TensorType) -> Shape:
    """The shape of a tensor whose rank is known."""
    assert type.shape is not None
    return type.shape


def present_axes(shape: Shape, domain: Shape) -> tuple[bool, ...] | None:
    """For each axis of the domain, whether `shape` has it or repeats along it; None where that is not known."""
    if len(shape) > len(domain):
        return None
    padded: tuple[Dim, ...] = (1,) * (len(domain) - len(shape)) + shape
    present = []
    for own, whole in zip(padded, domain, strict=True):
        if own == whole:
            present.append(True)
        elif own == 1:
            present.append(False)
        else:
            return None
    return tuple(present)


def row_shape(domain: Shape) -> Shape:
    """The shape of one element a row."""
    return (*domain[:-1], 1)
