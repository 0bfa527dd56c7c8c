"""Simplifications of transfers: what moves nothing goes, and two moves become one."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tierup.ir.graph import Attrs, Node
from tierup.ir.infer import CONTENT_LIMIT
from tierup.ir.types import Array, Dim
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.fold import constant_bytes
from tierup.rewrite.rules.row import Simplification, keeps_shape, numbers, same_shape
from tierup.rewrite.walk import Rewriter, Values

_RESHAPES = ("onnx.Reshape", "onnx.Flatten", "onnx.Squeeze", "onnx.Unsqueeze", "core.reshape")
_TRANSPOSES = ("onnx.Transpose", "core.transpose")


def _unchanged(out: Rewriter, node: Node) -> Values | None:
    x = node.inputs[0]
    return [x] if same_shape(out, node, x) else None


def _reshape_of_reshape(out: Rewriter, node: Node) -> Values | None:
    inner = out.producer(node.inputs[0])
    if inner is None or inner.op not in _RESHAPES:
        return None
    if node.op == "onnx.Reshape" and not _absolute(out, node):
        return None
    return out.add(replace(node, inputs=(inner.inputs[0], *node.inputs[1:])))


def _absolute(out: Rewriter, node: Node) -> bool:
    """Whether the target shape means the same for any tensor with so many elements: no size is copied."""
    content = None if node.inputs[1] is None else out.content(node.inputs[1])
    if node.attrs.get("allowzero"):
        return True
    return content is not None and all(isinstance(size, int) and size != 0 for size in content)


def _perm(out: Rewriter, node: Node) -> tuple[int, ...] | None:
    perm, shape = node.attrs.get("perm"), out.shape(node.inputs[0])
    if perm is not None:
        return tuple(perm)
    return None if shape is None else tuple(reversed(range(len(shape))))


def _identity_transpose(out: Rewriter, node: Node) -> Values | None:
    perm = _perm(out, node)
    return [node.inputs[0]] if perm is not None and perm == tuple(range(len(perm))) else None


def _transpose_of_transpose(out: Rewriter, node: Node) -> Values | None:
    inner = out.producer(node.inputs[0])
    if inner is None or inner.op not in _TRANSPOSES:
        return None
    first, second = _perm(out, inner), _perm(out, node)
    if first is None or second is None or len(first) != len(second):
        return None
    perm = tuple(first[axis] for axis in second)
    return out.add(replace(node, inputs=inner.inputs, attrs=Attrs({**node.attrs, "perm": perm})))


def _transpose_of_single(out: Rewriter, node: Node) -> Values | None:
    """Axes of one element may stand anywhere: if the others keep their order, no element moves."""
    x, shape = node.inputs[0], out.shape(node.inputs[0])
    if x is None or shape is None:
        return None
    moved = [axis for axis in node.attrs["perm"] if shape[axis] != 1]
    if moved != sorted(moved):
        return None
    b = Core(out)
    return [b.reshape(x, [shape[axis] for axis in node.attrs["perm"]])]


def _target(out: Rewriter, node: Node) -> tuple[Dim, ...] | None:
    return None if node.inputs[1] is None else out.content(node.inputs[1])


def _broadcast_to_itself(out: Rewriter, node: Node) -> Values | None:
    x = node.inputs[0]
    return [x] if keeps_shape(out.shape(x), _target(out, node)) else None


def _broadcast_of_broadcast(out: Rewriter, node: Node) -> Values | None:
    inner = out.producer(node.inputs[0])
    if inner is None or inner.op != node.op:
        return None
    return out.add(replace(node, inputs=(inner.inputs[0], node.inputs[1])))


def _tile_once(out: Rewriter, node: Node) -> Values | None:
    repeats = _target(out, node)
    return [node.inputs[0]] if repeats is not None and all(times == 1 for times in repeats) else None


def _slice_of_all(out: Rewriter, node: Node) -> Values | None:
    steps: tuple[Dim, ...] | None = node.attrs.get("steps", (1,))
    if node.op == "onnx.Slice" and len(node.inputs) > 4 and node.inputs[4] is not None:
        steps = out.content(node.inputs[4])
    forward = steps is not None and all(isinstance(step, int) and step > 0 for step in steps)
    return _unchanged(out, node) if forward else None


def _split_in_one(out: Rewriter, node: Node) -> Values | None:
    return _unchanged(out, node) if len(node.outputs) == 1 else None


def _pad_by_nothing(out: Rewriter, node: Node) -> Values | None:
    pads = node.attrs.get("pads")
    if pads is None:
        pads = _target(out, node)
    return [node.inputs[0]] if pads is not None and all(pad == 0 for pad in pads) else None


def _reduce_nothing(out: Rewriter, node: Node) -> Values | None:
    x = node.inputs[0]
    dtype = out.dtype(x)
    if node.attrs["axes"] or dtype is None:
        return None
    signed_zeros = node.op == "core.reduce_sum" and not dtype.is_integer  # the sum of -0.0 alone is 0 + -0.0
    return None if signed_zeros else [x]


_LIST_MOVES = ("core.reshape", "core.transpose", "core.slice")


def _list_by_places(out: Rewriter, node: Node) -> Values | None:
    """Exporters turn pads around as a matrix with two columns. What lists hold is known, what matrices hold is not."""
    moves, value = list[Node](), node.inputs[0]
    while (inner := out.producer(value)) is not None and inner.op in _LIST_MOVES and len(out.shape(value) or ()) > 1:
        moves.append(inner)
        value = inner.inputs[0]
    shape, dtype, sizes = out.shape(value), out.dtype(value), numbers(out, node.inputs[1])
    if value is None or shape is None or len(shape) != 1 or dtype is None or not dtype.is_integer:
        return None
    if not moves or not isinstance(shape[0], int) or shape[0] > CONTENT_LIMIT or sizes is None or len(sizes) != 1:
        return None
    places: Array | None = np.arange(shape[0])
    for move in reversed(moves):
        places = None if places is None else _moved(out, move, places)
    b = Core(out)
    return None if places is None else [b.op("gather", value, b.integers(places.reshape(-1).tolist()), axis=0)]


def _moved(out: Rewriter, move: Node, places: Array) -> Array | None:
    """What a move of integers makes of these; None where that is known only in the call."""
    if move.op == "core.transpose":
        return places.transpose(move.attrs["perm"])
    if move.op == "core.reshape":
        sizes = numbers(out, move.inputs[1])
        return None if sizes is None else places.reshape(sizes)
    starts, ends = (numbers(out, value) for value in move.inputs[1:])
    if starts is None or ends is None:
        return None
    cut = [slice(None)] * places.ndim
    for axis, start, end, step in zip(move.attrs["axes"], starts, ends, move.attrs["steps"], strict=True):
        cut[axis] = slice(start, None if end < 0 else end, step)
    return places[tuple(cut)]


_MAPS = frozenset({"core.cast", "core.neg", "core.add", "core.sub", "core.mul", "core.div"})


def _transpose_of_cast_weight(out: Rewriter, node: Node) -> Values | None:
    """The weight is turned once and for all, where its cast is too large to keep."""
    inner = out.producer(node.inputs[0])
    source = None if inner is None or inner.op not in ("core.cast", "onnx.Cast") else inner.inputs[0]
    if inner is None or source is None or out.digest_of(source) is None:
        return None
    (turned,) = out.add(replace(node, inputs=(source,)))
    return out.add(replace(inner, inputs=(turned,), outputs=node.outputs))


def _gather_of_mapped_weight(out: Rewriter, node: Node) -> Values | None:
    """Rows are picked first: a table that is dequantised whole would be computed anew in each call."""
    x, indices = node.inputs
    inner, shape, axis = out.producer(x), out.shape(x), node.attrs["axis"]
    if x is None or inner is None or inner.op not in _MAPS or shape is None or constant_bytes(out, x) is None:
        return None
    shapes = [out.shape(value) or () for value in inner.inputs]
    along = [len(own) == len(shape) and own[axis] == shape[axis] for own in shapes]
    if any(not has and len(own) >= len(shape) - axis for has, own in zip(along, shapes, strict=True)):
        return None  # it has the axis with size 1, which the picked rows would not match
    inputs = tuple(
        out.add(replace(node, inputs=(value, indices)))[0] if has else value
        for has, value in zip(along, inner.inputs, strict=True)
    )
    return out.add(replace(inner, inputs=inputs, outputs=node.outputs))


MOVEMENT = (
    Simplification("reshape to itself", _RESHAPES, "reshape(x, shape(x)) = x", _unchanged),
    Simplification("reshape of reshape", ("onnx.Reshape", "core.reshape"),
                   "reshape(reshape(x, s), t) = reshape(x, t) where t copies no size", _reshape_of_reshape),
    Simplification("list by places", ("core.reshape",),
                   "reshape(transpose(reshape(x, s)[::-1]), n) = x[places] where x is a short list", _list_by_places),
    Simplification("identity transpose", _TRANSPOSES, "transpose(x, 0 1 2 ...) = x", _identity_transpose),
    Simplification("transpose of transpose", _TRANSPOSES, "transpose(transpose(x, p), q) = transpose(x, p[q])",
                   _transpose_of_transpose),
    Simplification("transpose of single", ("core.transpose",),
                   "transpose(x, p) = reshape(x) where only axes of one element change places", _transpose_of_single),
    Simplification("transpose of cast weight", _TRANSPOSES, "transpose(cast(w), p) = cast(transpose(w, p))",
                   _transpose_of_cast_weight),
    Simplification("broadcast to itself", ("onnx.Expand", "core.broadcast"), "broadcast(x, shape(x)) = x",
                   _broadcast_to_itself),
    Simplification("broadcast of broadcast", ("core.broadcast",), "broadcast(broadcast(x, s), t) = broadcast(x, t)",
                   _broadcast_of_broadcast),
    Simplification("tile once", ("onnx.Tile",), "tile(x, 1 1 ...) = x", _tile_once),
    Simplification("slice of all", ("onnx.Slice", "core.slice"), "x[0:n:1] = x where x has n elements",
                   _slice_of_all),
    Simplification("split in one", ("onnx.Split",), "split(x) = x where there is one part", _split_in_one),
    Simplification("pad by nothing", ("onnx.Pad", "core.pad"), "pad(x, 0 0 ...) = x", _pad_by_nothing),
    Simplification("gather of mapped weight", ("core.gather",), "f(w)[i] = f(w[i]) where f maps elements",
                   _gather_of_mapped_weight),
    Simplification("reduce nothing", ("core.reduce_sum", "core.reduce_prod", "core.reduce_max", "core.reduce_min"),
                   "max, min, Π over no axes of x = x; of integers Σ too", _reduce_nothing),
)  # fmt: skip
