"""Channels last: convolutions, pools and all that stands between them, with the channels side by side in memory.

A convolution becomes a transpose, a convolution with the channels last, and a transpose back. What reads a value that
was just transposed back is computed with the channels last, too, and transposed back behind it; so the transposes move
through the graph to where the channels are needed first, and those that nobody reads are gone. The result is the same,
up to the order of sums.

Side by side, channels are what vectors hold: every kernel reads and writes memory in order, 1×1 convolutions are plain
products, and no layout is converted in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import numpy as np

from tierup.ir.graph import Attrs, Node, ValueId
from tierup.ir.ops.core import ELEMENTWISE
from tierup.ir.types import Dim, Shape
from tierup.rewrite.decompose.core import Core, Declined
from tierup.rewrite.fold import computed_constant
from tierup.rewrite.rules.reach import (
    FAR,
    MANY_PLACES,
    by_residues,
    is_for_residues,
    is_for_winograd,
    with_zeros,
    without_ends,
)
from tierup.rewrite.rules.row import numbers
from tierup.rewrite.walk import Rewriter, Values

CHANNELED = ("core.conv", "core.pool_max", "core.pool_sum")  # without any, transposes are of no channels
_FEW_RESULTS = 8  # below, convolutions have a kernel that does not waste most of a vector on them, and products none
_MOST_PLACES = 32  # of a pooling window: each is one read in the same loop


def channels_last(out: Rewriter, node: Node) -> Values | None:
    """What a node becomes; None where it stays."""
    rule = _RULES.get(node.op)
    if rule is None or any(value is not None and out.shape(value) is None for value in node.inputs):
        return None
    try:
        return rule(out, node)
    except Declined:
        return None


def _to_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def _to_first(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


def _place(axis: int, rank: int) -> int:
    """Where an axis stands once the channels are last."""
    return _to_last(rank).index(axis)


def _behind(out: Rewriter, value: ValueId | None) -> ValueId | None:
    """The value with its channels last that a value was transposed from."""
    node = out.producer(value)
    if node is None or node.op != "core.transpose" or len(node.attrs["perm"]) < 3:
        return None
    return node.inputs[0] if tuple(node.attrs["perm"]) == _to_first(len(node.attrs["perm"])) else None


def _shape(out: Rewriter, value: ValueId | None) -> Shape:
    shape = out.shape(value)
    assert shape is not None
    return shape


def _last(b: Core, value: ValueId) -> ValueId:
    """A value with its channels last."""
    found, constant = _behind(b.out, value), b.out.constant(value)
    if found is not None:
        return found
    order = _to_last(b.rank(value))
    return b.transpose(value, order) if constant is None else b.weight(np.ascontiguousarray(constant.transpose(order)))


def _first(b: Core, value: ValueId) -> ValueId:
    """A value with its channels where they came from."""
    return b.transpose(value, _to_first(b.rank(value)))


def _convolution(out: Rewriter, node: Node) -> Values | None:
    """conv(x, w) = first(conv_last(last(x), rows of w)); by one place at every step, it is a product."""
    x, w, pads = node.inputs
    assert x is not None
    assert w is not None
    assert pads is not None
    b = Core(out)
    w, pads = without_ends(b, x, w, pads, node)
    shape = _shape(out, w)
    kernel = tuple(size for size in shape[2:] if isinstance(size, int))
    if len(kernel) < len(shape) - 2 or 0 in kernel:
        return None
    data, matrix = _last(b, x), _matrix(b, w)
    group, strides = node.attrs["group"], tuple(node.attrs["strides"])
    if group > 1 and shape[1] == 1 and isinstance(shape[0], int) and 1 < (each := shape[0] // group) <= _FEW_RESULTS:
        data, group = _repeated(b, data, each), group * each
    many = not isinstance(shape[0], int) or shape[0] >= _FEW_RESULTS
    if many and prod(kernel) == prod(strides) == group == 1 and not any(out.content(pads) or (1,)):
        return [_first(b, b.matmul(data, matrix))]
    dilations = tuple(node.attrs["dilations"])
    far = (kernel[-1] - 1) * dilations[-1] >= FAR and not node.attrs.get("fill", 0)
    if many and len(kernel) == group == 1 and far:
        data, pads = with_zeros(b, data, pads, MANY_PLACES)
    if group > 1 and shape[1] == 1 and far and max((numbers(out, pads) or (0,))[len(kernel) - 1 :: len(kernel)]) > FAR:
        data, pads = with_zeros(b, data, pads, 1)
    if is_for_residues(b, w, (kernel, strides, dilations, group), _shape(out, data), out.content(pads)):
        return [_first(b, by_residues(b, data, matrix, dilations))]
    algorithm = "winograd" if is_for_winograd(b, w, kernel, strides, dilations, group) else "direct"
    attrs = {"group": group, "strides": strides, "dilations": dilations, "algorithm": algorithm}
    if node.attrs.get("fill", 0):
        attrs["fill"] = node.attrs["fill"]
    return [_first(b, b.op("conv_last", data, matrix, pads, kernel_shape=kernel, **attrs))]


def _repeated(b: Core, data: ValueId, times: int) -> ValueId:
    """Every channel so many times, one beside the other: several results of one channel each are as many channels with
    one result, which have a kernel with channels along the lanes. The others' would hold the few results of one."""
    *places, channels = b.shape(data)
    spread = b.broadcast(b.reshape(data, (*places, channels, 1)), (*places, channels, times))
    return b.reshape(spread, (*places, b.dims.mul(channels, times)))


def _matrix(b: Core, w: ValueId) -> ValueId:
    """w[M, C, kernel...] as one row for each place and channel, one column for each result."""
    shape, constant = b.shape(w), computed_constant(b.out, w)  # in panels it takes as much, however small it was
    if constant is not None:
        turned = np.moveaxis(constant, (0, 1), (-1, -2)).reshape(-1, len(constant))
        return b.weight(np.ascontiguousarray(turned))
    rows = b.dims.product(shape[1:])
    return b.reshape(b.transpose(w, (*range(2, len(shape)), 1, 0)), (rows, shape[0]))


def _map(out: Rewriter, node: Node) -> Values | None:
    """f(first(x), y) = first(f(x, last(y)))."""
    found = [_behind(out, value) for value in node.inputs]
    rank = max(len(_shape(out, value)) for value in node.inputs)
    if not any(value is not None and len(_shape(out, value)) == rank for value in found):
        return None
    b = Core(out)
    inputs = tuple(_argument(b, value, rank) for value in node.inputs if value is not None)
    (result,) = out.node(node.op, inputs, node.attrs)
    assert result is not None
    return [_first(b, result)]


def _argument(b: Core, value: ValueId, rank: int) -> ValueId:
    """What meets a value with its channels last; axes of one element in front are left out of constants."""
    shape, constant = b.shape(value), b.out.constant(value)
    if all(size == 1 for size in shape):
        return value if len(shape) < rank or constant is None else b.weight(constant.reshape(()))
    missing = (1,) * (rank - len(shape))
    if constant is not None:
        turned = np.ascontiguousarray(constant.reshape(*missing, *constant.shape).transpose(_to_last(rank)))
        used = next(axis for axis, size in enumerate(turned.shape) if size != 1)
        return b.weight(turned.reshape(turned.shape[used:]))
    return _last(b, b.reshape(value, (*missing, *shape)))


def _reduction(out: Rewriter, node: Node) -> Values | None:
    """Over the same axes, wherever they stand."""
    data = _behind(out, node.inputs[0])
    if data is None:
        return None
    b, rank = Core(out), len(_shape(out, data))
    several = "axes" in node.attrs
    axes = [_place(axis, rank) for axis in (node.attrs["axes"] if several else (node.attrs["axis"],))]
    changed = {"axes": tuple(sorted(axes))} if several else {"axis": axes[0]}
    wanted = tuple(value is not None for value in node.outputs)
    results = out.node(node.op, (data, *node.inputs[1:]), Attrs({**node.attrs, **changed}), outputs=wanted)
    return [None if value is None else _restored(b, value, axes, rank, node) for value in results]


def _restored(b: Core, value: ValueId, axes: Sequence[int], rank: int, node: Node) -> ValueId:
    """The result with the axes that are left in the order in which they came."""
    if b.rank(value) == rank:
        return _first(b, value)
    left = [axis for axis in range(rank) if axis not in axes]  # of those with the channels last
    return b.transpose(value, tuple(left.index(place) for place in _to_first(rank) if place in left))


def _join(out: Rewriter, node: Node) -> Values | None:
    if not any(_behind(out, value) is not None for value in node.inputs):
        return None
    b = Core(out)
    parts = [_last(b, value) for value in node.inputs if value is not None]
    return [_first(b, b.concat(parts, _place(node.attrs["axis"], b.rank(parts[0]))))]


def _padding(out: Rewriter, node: Node) -> Values | None:
    data, pads = _behind(out, node.inputs[0]), node.inputs[1]
    widths = None if pads is None else out.content(pads)
    if data is None or widths is None:
        return None
    b, rank = Core(out), len(_shape(out, data))
    order = _to_last(rank)
    turned = [widths[axis] for axis in order] + [widths[rank + axis] for axis in order]
    rest = [value for value in node.inputs[2:] if value is not None]
    return [_first(b, b.op("pad", data, b.sizes(turned), *rest, mode=node.attrs["mode"]))]


def _slice(out: Rewriter, node: Node) -> Values | None:
    data = _behind(out, node.inputs[0])
    if data is None:
        return None
    axes = tuple(_place(axis, len(_shape(out, data))) for axis in node.attrs["axes"])
    attrs = Attrs({**node.attrs, "axes": axes})
    (result,) = out.node(node.op, (data, *node.inputs[1:]), attrs)
    assert result is not None
    return [_first(Core(out), result)]


def _lookup(out: Rewriter, node: Node) -> Values | None:
    data, indices = _behind(out, node.inputs[0]), node.inputs[1]
    if data is None or indices is None or len(_shape(out, indices)) != 1:
        return None
    b = Core(out)
    return [_first(b, b.gather(data, indices, _place(node.attrs["axis"], b.rank(data))))]


def _turn(out: Rewriter, node: Node) -> Values | None:
    """transpose(first(x), p): one transpose, or none."""
    data = _behind(out, node.inputs[0])
    if data is None:
        return None
    order = _to_first(len(node.attrs["perm"]))
    return [Core(out).transpose(data, tuple(order[axis] for axis in node.attrs["perm"]))]


def _reshape(out: Rewriter, node: Node) -> Values | None:
    """Where places are divided anew, or there is but one place: channels may stay last."""
    data, target = _behind(out, node.inputs[0]), None if node.inputs[1] is None else out.content(node.inputs[1])
    if data is None or target is None or any(isinstance(size, int) and size < 0 for size in target):
        return None
    b = Core(out)
    batch, *places, channels = b.shape(data)
    if all(size == 1 for size in places):
        return [b.reshape(data, target)]
    if len(target) < 3 or target[:2] != (batch, channels):
        return None
    return [_first(b, b.reshape(data, (batch, *target[2:], channels)))]


def _pool(out: Rewriter, node: Node) -> Values | None:
    """max or Σ over windows = the same over slices, one for each place in the window."""
    x, pads = node.inputs
    assert x is not None
    assert pads is not None
    kernel = tuple(node.attrs["kernel_shape"])
    widths, data = out.content(pads), _behind(out, x)
    unfit = data is None or widths is None or any(value is not None for value in node.outputs[1:])
    if unfit or prod(kernel) > _MOST_PLACES:
        return None
    b = Core(out)
    assert data is not None
    assert widths is not None
    counts = b.result_shape(node)[2:]
    if any(isinstance(count, int) and count < 1 for count in counts):
        return None
    wide = _surrounded(b, node, data, widths)
    total: ValueId | None = None
    for place in product(*map(range, kernel)):
        part = b.slice(wide, {1 + a: window(b, node, a, place[a], counts[a]) for a in range(len(kernel))})
        total = part if total is None else b.max(total, part) if node.op == "core.pool_max" else b.add(total, part)
    assert total is not None
    return [_first(b, total), *(None for _ in node.outputs[1:])]


def window(b: Core, node: Node, axis: int, place: int, count: Dim) -> tuple[Dim, Dim, int]:
    """Where all windows have their `place`-th element along an axis."""
    start, stride = place * node.attrs["dilations"][axis], node.attrs["strides"][axis]
    return start, b.dims.add(start + 1, b.dims.mul(b.dims.sub(count, 1), stride)), stride


def _surrounded(b: Core, node: Node, data: ValueId, widths: Sequence[Dim]) -> ValueId:
    """The data with what never wins, or adds nothing, around it.

    An element at the edge is in every window that reaches beyond the edge, if windows have no gaps and none lies
    outside: repeating it never changes which is the largest, and repeated elements need no memory of their own.
    """
    n = len(widths) // 2
    around = [0, *widths[:n], 0, 0, *widths[n:], 0]
    if not any(around):
        return data
    kernel = node.attrs["kernel_shape"]
    inside = all(isinstance(width, int) and width < kernel[axis % n] for axis, width in enumerate(widths))
    mode = "edge" if node.op == "core.pool_max" and inside and set(node.attrs["dilations"]) == {1} else "constant"
    dtype = b.dtype(data)
    least = -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    fill = b.weight(np.array(0 if node.op == "core.pool_sum" else least).astype(dtype.numpy))
    return b.op("pad", data, b.sizes(around), fill, mode=mode)


_RULES: dict[str, Callable[[Rewriter, Node], Values | None]] = {
    **dict.fromkeys((f"core.{name}" for name in (*ELEMENTWISE, "cast")), _map),
    **dict.fromkeys((f"core.reduce_{name}" for name in ("sum", "prod", "max", "min")), _reduction),
    **dict.fromkeys(("core.argmax", "core.argmin", "core.cumsum", "core.cumprod"), _reduction),
    **dict.fromkeys(("core.pool_max", "core.pool_sum"), _pool),
    "core.conv": _convolution,
    "core.concat": _join,
    "core.pad": _padding,
    "core.slice": _slice,
    "core.gather": _lookup,
    "core.transpose": _turn,
    "core.reshape": _reshape,
}
