"""Regions of a core graph: what runs as one kernel, and why a node is in none.

A *rows* region is maps, reductions, copies and lookups over one domain: every value in it has the domain's axes, or
some of them, and all its reductions go over the same ones. Movement in front of it is part of its addresses and needs
no kernel. A *matmul* region is one product and the maps that follow it, a *conv* region the same with a convolution,
an *attention* region two products with a softmax between. A *recurrent* region is all steps of one layer. A *scan* runs
along one axis, a *places* region finds the best of one, a *scatter* writes where the data says, and a *known* region
writes down sizes.
`legality` says whether a node could be compiled at all; what joins what is decided by `products` and `cut`.
"""

from __future__ import annotations

from msgspec import Struct, field

from tierup.ir.dims import DimOp
from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.ops.core import ELEMENTWISE as ELEMENTWISE
from tierup.ir.types import Dim, DType, Shape, TensorType
from tierup.plan.sources import Linear, Source
from tierup.plan.spaces import BITS, PARTED, POOLS, is_movement, is_reduction
from tierup.plan.spaces import REDUCTIONS as REDUCTIONS  # read by others beside the lists below

COMPUTED = frozenset({
    DType.F32, DType.F64, DType.F16, DType.BF16, DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16,
    DType.U32, DType.U64, DType.BOOL,
})  # fmt: skip
SMALL_INTEGERS = frozenset({DType.U4, DType.I4, DType.U2, DType.I2})  # one byte an element; cast and moved only
SMALL_FLOATS = frozenset({DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F4E2M1})  # as those
# Registers hold more than these do: a cast to one of them is written, so that it is rounded, and read back. Other
# results of them are rounded where they are written alone: a chain of maps in one region is closer to the exact answer
# than the reference, which rounds after every op, by less than the last digit that either keeps.
NARROW = SMALL_INTEGERS | SMALL_FLOATS | {DType.F16, DType.BF16}
SCANS = {"core.cumsum": "sum", "core.cumprod": "prod"}
PLACES = "core.top_places"
SCATTERS = frozenset({"core.scatter_elements", "core.scatter_nd"})
RECURRENCES = {"core.rnn": 1, "core.gru": 3, "core.lstm": 4}  # and how many gates they have
SAME_MEMORY = "it is the same memory under other sizes: no kernel is needed"
_INDICES = (DType.I32, DType.I64)


class Step(Struct, frozen=True):
    """One node of a rows region, or one part of it, over the region's domain.

    `result` is where its element goes in `target`, with strides of 0 along axes that it does not have. `made` is the
    value that later steps may use; a part makes none, and is always written.
    """

    node: int
    part: int
    arguments: tuple[Source, ...]
    target: ValueId
    result: Linear
    made: ValueId | None
    reduces: bool = False


class Region(Struct, frozen=True):
    """Nodes by position in the graph, in an order in which they can run, and the shape they run over.

    A rows region has its `steps`, the domain's axes that its reductions go over, the values that are needed outside,
    the movement nodes in its addresses, dims without an answer where the sizes of a call do not fit, and for values
    that other rows regions make why those are not part of it. A known region has the `sizes` that it writes, a conv
    region its pads.
    """

    kind: str
    nodes: tuple[int, ...]
    domain: Shape
    steps: tuple[Step, ...] = ()
    reduced: tuple[int, ...] = ()
    stores: tuple[ValueId, ...] = ()
    reads: tuple[int, ...] = ()
    checks: tuple[Dim, ...] = ()
    sizes: tuple[Dim, ...] = ()
    refused: tuple[tuple[ValueId, str], ...] = ()


class Cut(Struct, frozen=True):
    """A graph divided: regions and single nodes, in an order in which they can run, and why nodes stand alone.

    Movement nodes that are in other regions' addresses alone are in no unit. `dims` is the graph's dim program with
    what the regions need beside it.
    """

    order: tuple[Region | int, ...]
    refusals: dict[int, str] = field(default_factory=dict)
    dims: tuple[DimOp, ...] = ()


def legality(graph: Graph, node: Node) -> str | None:
    """Why a node cannot be part of any region; None if it can."""
    if not node.op.startswith("core."):
        return f"{node.op} is no core op"
    for value in (*node.inputs, *node.outputs):
        type = None if value is None else graph.type(value)
        if value is not None and (not isinstance(type, TensorType) or type.shape is None):
            return "a rank is known only in the call"
    if node.op == "core.reshape" and tensor(graph, node.outputs[0]).dtype is not DType.STR:
        return SAME_MEMORY
    if is_movement(node) or node.op in PARTED or node.op == BITS:
        return _move_legality(graph, node)
    known = COMPUTED | SMALL_INTEGERS | SMALL_FLOATS if node.op == "core.cast" else COMPUTED
    for value in (*node.inputs, *node.outputs):
        if value is not None and tensor(graph, value).dtype not in known:
            return f"{tensor(graph, value).dtype!r} is not compiled yet"
    if node.op in ("core.matmul", "core.matmul_blocks", "core.matmul_scaled"):
        return _matmul_legality(graph, node)
    if node.op == "core.conv_last":
        return _conv_legality(graph, node)
    if node.op in RECURRENCES:
        return _recurrent_legality(graph, node)
    if node.op in POOLS and any(value is not None for value in node.outputs[1:]):
        return "the places of the largest in each window are not compiled yet"
    if is_reduction(node) or node.op in SCANS or node.op == PLACES:
        return None
    return _map_legality(graph, node)


def _matmul_legality(graph: Graph, node: Node) -> str | None:
    if node.op == "core.matmul_blocks":
        constants = {value for value, _ in graph.weights}
        return None if constants.issuperset(node.inputs[1:]) else "its integers or scales are known only in the call"
    if node.op == "core.matmul_scaled":
        return None if node.inputs[1] in graph.digests else "its weights are known only in the call"
    left, right = (tensor(graph, value) for value in node.inputs)
    batch = shape_of(tensor(graph, node.outputs[0]))[:-2]
    if len(shape_of(right)) != 2 and any(present_axes(shape_of(side)[:-2], batch) is None for side in (left, right)):
        return "whether the batches of the product broadcast is known only in the call"
    if len(shape_of(right)) != 2 and shape_of(left)[-1] != shape_of(right)[-2]:
        return "whether both sides of the product have as many terms is known only in the call"
    return None


def _conv_legality(graph: Graph, node: Node) -> str | None:
    channels, results = shape_of(tensor(graph, node.inputs[0]))[-1], shape_of(tensor(graph, node.inputs[1]))[-1]
    if not isinstance(channels, int) or not isinstance(results, int):
        return "how many channels there are is known only in the call"
    return None


def _recurrent_legality(graph: Graph, node: Node) -> str | None:
    if tensor(graph, node.inputs[0]).dtype not in (DType.F32, DType.F64):
        return "a recurrence whose state is rounded to 16 bits at every step is not compiled"
    if any(value is None for value in node.outputs):
        return "a recurrence that leaves out a result has no place for its state"
    return None


def _move_legality(graph: Graph, node: Node) -> str | None:
    """Elements are moved as bits, so that all that matters is how many bytes they have."""
    moved = tensor(graph, node.outputs[0]).dtype
    if moved not in COMPUTED and (moved is DType.STR or moved.numpy.itemsize > 8):
        return f"{moved!r} is not moved by kernels"
    if node.op == BITS and moved.bits < 8:
        return "of less than a byte, memory may hold more than its bits"
    if node.op in SCATTERS and node.attrs["reduction"] != "none" and moved not in COMPUTED:
        return f"{moved!r} is not compiled yet"
    if node.op == "core.iota" and moved not in COMPUTED:
        return f"{moved!r} is not compiled yet"
    if node.op.startswith(("core.gather", "core.scatter")) and tensor(graph, node.inputs[1]).dtype not in _INDICES:
        return "indices must be i32 or i64"
    return None


def _map_legality(graph: Graph, node: Node) -> str | None:
    name = node.op.removeprefix("core.")
    if name not in ELEMENTWISE and name != "cast":
        return f"{node.op} has no lowering yet"
    if tensor(graph, node.inputs[0]).dtype is DType.F64 and tensor(graph, node.outputs[0]).dtype in SMALL_FLOATS:
        return "registers would round f64 to f32 first, and then once more"
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
