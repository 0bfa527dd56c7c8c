"""Ops that move elements: their sizes come from their own type rules, so that both say the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tierup.ir.graph import Node, ValueId
from tierup.ir.ops.sizes import clamp, never_negative
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Bound, Core, Declined, Decomposition
from tierup.rewrite.decompose.open_axes import OpenAxes


def given_numbers(b: Core, n: Node, name: str, index: int) -> tuple[int, ...] | None:
    """Integers that were an attribute in early opsets and are an input since; None where absent."""
    if name in n.attrs:
        return tuple(n.attrs[name])
    value = b.given(n, index)
    return None if value is None else b.numbers(value, f"'{name}'")


def given_dims(b: Core, n: Node, name: str, index: int) -> tuple[Dim, ...] | None:
    """As `given_numbers`, but what only the call knows is read there."""
    if name in n.attrs:
        return tuple(n.attrs[name])
    value = b.given(n, index)
    return None if value is None else b.elems(value, f"'{name}'")


def _concat(b: Core, n: Node) -> ValueId:
    parts = [b.input(n, i) for i in range(len(n.inputs))]
    return b.concat(parts, b.axis(n.attrs.get("axis", 1), b.rank(parts[0])))


def _shape(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    start, end, _ = slice(n.attrs.get("start", 0), n.attrs.get("end")).indices(b.rank(x))
    return b.part(b.op("shape", x), 0, start, max(start, end))


def _size(b: Core, n: Node) -> ValueId:
    return b.reduce("prod", b.op("shape", b.input(n)), (0,), keepdims=False)


def _reshape(b: Core, n: Node) -> ValueId:
    """Reshape, Flatten, Squeeze, Unsqueeze: one and the same once the sizes are known"""
    x = b.input(n)
    b.shape(x)
    return b.reshape(x, b.result_shape(n))


def _squeeze(b: Core, n: Node) -> ValueId:
    """What has another size than 1 does not fit the result's"""
    axes = _unknown_axes(b, n, 1)
    if axes is None:
        return _reshape(b, n)
    x = b.input(n)
    found = OpenAxes(b.dims, axes, b.rank(x))
    return b.reshape(x, _checked(found, found.left(b.shape(x))))


def _unsqueeze(b: Core, n: Node) -> ValueId:
    axes = _unknown_axes(b, n, 1)
    if axes is None:
        return _reshape(b, n)
    x = b.input(n)
    found = OpenAxes(b.dims, axes, b.rank(x) + len(axes))
    return b.reshape(x, _checked(found, found.joined(b.shape(x))))


def _unknown_axes(b: Core, n: Node, index: int) -> tuple[Dim, ...] | None:
    """Axes that are an input of which only the call knows the numbers; None where they are known, or absent."""
    value = b.given(n, index)
    return None if value is None or b.is_known(value) else b.elems(value, "'axes'")


def _checked(axes: OpenAxes, sizes: Iterable[Dim]) -> list[Dim]:
    """Sizes of a result; they hold no element, and fit nothing, where the axes are none."""
    first, *others = [*sizes] or [1]
    return [axes.checked(first), *others]


def _transpose(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    return b.transpose(x, n.attrs.get("perm", tuple(reversed(range(b.rank(x))))))


def _expand(b: Core, n: Node) -> ValueId:
    x, target = b.input(n), b.elems(b.input(n, 1), "the shape of an Expand")
    shape = b.result_shape(n)
    pairs = zip(reversed(b.shape(x)), reversed(target), strict=False)
    if all(have == want or 1 in (have, want) for have, want in pairs):
        return b.broadcast(x, shape)
    # Either side may be 1, which only the call knows: a select broadcasts all that it is given.
    everywhere = b.op("broadcast", b.number(1, DType.BOOL), b.sizes(target))
    return b.select(everywhere, x, x)


def tile(b: Core, x: ValueId, repeats: Sequence[Dim]) -> ValueId:
    """A new axis before each repeated one, stretched, then joined with it"""
    apart: list[Dim] = []
    stretched: list[Dim] = []
    for size, times in zip(b.shape(x), repeats, strict=True):
        apart += [size] if times == 1 else [1, size]
        stretched += [size] if times == 1 else [times, size]
    joined = [b.dims.mul(size, times) for size, times in zip(b.shape(x), repeats, strict=True)]
    return b.reshape(b.broadcast(b.reshape(x, apart), stretched), joined)


def _tile(b: Core, n: Node) -> ValueId:
    if n.version < 6:
        raise Declined("Tile had other inputs before opset 6")
    return tile(b, b.input(n), b.elems(b.input(n, 1), "the repeats of a Tile"))


def pad(
    b: Core, x: ValueId, begins: Sequence[Dim], ends: Sequence[Dim], fill: ValueId, mode: str = "constant"
) -> ValueId:
    """Negative pads cut first, so that modes repeat only what is kept; then the others add"""
    cuts: dict[int, Bound] = {}
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        low, high = _cut(b, begin), _cut(b, end)
        if (low, high) != (0, 0):
            cuts[axis] = (low, b.dims.sub(b.shape(x)[axis], high), 1)
    kept = b.slice(x, cuts) if cuts else x
    widths = [_grown(b, width) for width in (*begins, *ends)]
    if all(width == 0 for width in widths):
        return kept
    return b.op("pad", kept, b.sizes(widths), fill, mode=mode)


def _cut(b: Core, width: Dim) -> Dim:
    return 0 if never_negative(b.dims, width) else b.dims.max(b.dims.sub(0, width), 0)


def _grown(b: Core, width: Dim) -> Dim:
    return width if never_negative(b.dims, width) else b.dims.max(width, 0)


def _pad(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    rank = b.rank(x)
    widths = given_dims(b, n, "pads", 1)
    axes, unknown = b.given(n, 3), _unknown_axes(b, n, 3)
    known = range(rank) if axes is None else () if unknown is not None else b.numbers(axes, "the axes of a Pad")
    padded = unknown or tuple(b.axis(axis, rank) for axis in known)
    if widths is None or len(widths) != 2 * len(padded):
        raise Declined("the pads do not fit")
    found, halves = OpenAxes(b.dims, padded, rank), (widths[: len(padded)], widths[len(padded) :])
    begins, ends = ([found.pick(place, half, 0) for place in range(rank)] for half in halves)
    if unknown is not None:  # what is cut off is more than there is where the axes are none
        begins[0] = found.checked(begins[0], -_FAR)
    value = b.given(n, 2)
    fill = b.like(n.attrs.get("value", 0), x) if value is None else b.reshape(value, ())
    return pad(b, x, begins, ends, fill, n.attrs.get("mode", "constant"))


def _center_crop_pad(b: Core, n: Node) -> ValueId:
    """Half of what is too much is cut, half of what is missing is added; of an odd one, the smaller half first"""
    x, dims = b.input(n), b.dims
    shape = b.shape(x)
    axes = [b.axis(axis, len(shape)) for axis in n.attrs.get("axes", range(len(shape)))]
    cuts: dict[int, Bound] = {}
    begins: list[Dim] = [0] * len(shape)
    ends: list[Dim] = [0] * len(shape)
    for axis, target in zip(axes, b.elems(b.input(n, 1), "the shape"), strict=True):
        over, under = dims.max(dims.sub(shape[axis], target), 0), dims.max(dims.sub(target, shape[axis]), 0)
        front, begins[axis] = dims.floordiv(over, 2), dims.floordiv(under, 2)
        cuts[axis] = (front, dims.add(front, dims.min(shape[axis], target)), 1)
        ends[axis] = dims.sub(under, begins[axis])
    kept = b.slice(x, cuts) if cuts else x
    return b.op("pad", kept, b.sizes([*begins, *ends]), b.like(0, x), mode="constant")


def clamped(b: Core, size: Dim, start: Dim, end: Dim, step: int) -> Bound:
    """The bounds of ONNX's start:end:step as core.slice wants them: inside the axis, the end not before the start."""
    dims = b.dims
    start, end = _from_front(b, size, start), _from_front(b, size, end)
    if step > 0:
        first = clamp(dims, start, 0, size) if start != 0 else 0
        last = (
            size if end == size else clamp(dims, end, 0, size) if not never_negative(dims, end) else dims.min(end, size)
        )
        return first, last if first == 0 else dims.max(first, last), step
    top = dims.sub(size, 1)
    first = dims.max(clamp(dims, start, 0, top), 0)
    last = dims.min(clamp(dims, end, -1, top), first)
    return first, dims.max(last, dims.sub(first, size)), step  # nothing of an empty axis, else no change


_FAR = 1 << 62  # beyond any axis, and small enough to add a size
_SIZES = frozenset({"of", "add", "sub", "mul", "floordiv", "ceildiv", "truncdiv", "mod", "min", "max", "abs"})


def _from_front(b: Core, size: Dim, index: Dim) -> Dim:
    """A negative index counts from the end; one beyond every axis is cut, so that sums stay in range."""
    if isinstance(index, int):
        index = max(-_FAR, min(index, _FAR))
        return index if index >= 0 else -1 - _FAR if index == -_FAR else b.dims.add(size, index)
    if never_negative(b.dims, index):
        return index
    if b.dims.ops[index.id].op not in _SIZES:  # read in the call, and chosen: it may be as far out as numbers go
        index = clamp(b.dims, index, -_FAR, _FAR)
    return b.dims.select(b.dims.emit("lt", index, 0), b.dims.add(size, index), index)


def _slice(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    shape = b.shape(x)
    starts, ends = given_dims(b, n, "starts", 1), given_dims(b, n, "ends", 2)
    if starts is None or ends is None:
        raise Declined("a slice needs starts and ends")
    given = b.given(n, 4)
    if _unknown_axes(b, n, 3) is not None or (given is not None and not b.is_known(given)):
        return _slice_in_call(b, n, starts, ends)
    axes = given_numbers(b, n, "axes", 3) or tuple(range(len(starts)))
    steps = (1,) * len(axes) if given is None else b.numbers(given, "the step of a slice")
    if not axes:
        return x
    bounds: dict[int, Bound] = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis = b.axis(axis, len(shape))
        if shape[axis] == 0 and step < 0:
            step, start, end = 1, 0, 0  # nothing backwards is nothing
        bounds[axis] = clamped(b, shape[axis], start, end, step)
    return b.slice(x, bounds)


def _slice_in_call(b: Core, n: Node, starts: Sequence[Dim], ends: Sequence[Dim]) -> ValueId:
    """A slice of which only the call knows axes or steps: places start, start + step, … on every axis, looked up"""
    x, dims = b.input(n), b.dims
    shape, axes = b.shape(x), given_dims(b, n, "axes", 3) or tuple(range(len(starts)))
    steps = (1,) * len(axes) if b.given(n, 4) is None else b.elems(b.input(n, 4), "the step of a slice")
    found = OpenAxes(dims, axes, len(shape))
    for place, size in enumerate(shape):
        if found.chosen[place] == 0:
            continue
        step = found.pick(place, steps, 1)
        start, end = (_from_front(b, size, found.pick(place, given, far)) for given, far in ((starts, 0), (ends, size)))
        up, top = dims.emit("lt", 0, step), dims.sub(size, 1)
        first = dims.select(up, clamp(dims, start, 0, size), dims.max(clamp(dims, start, 0, top), 0))
        last = dims.select(up, clamp(dims, end, 0, size), clamp(dims, end, -1, top))
        length = dims.max(dims.select(up, dims.sub(last, first), dims.sub(first, last)), 0)
        count = dims.min(dims.ceildiv(length, dims.max(dims.emit("abs", step), 1)), size)
        count = found.checked(dims.select(dims.emit("eq", step, 0), -1, count), -1)  # without a step there is no end
        places = b.mul(b.iota((count,), 0), b.scalar(step, DType.I64))
        x = b.gather(x, b.add(b.scalar(first, DType.I64), places), place)
    return x


def _split(b: Core, n: Node) -> list[ValueId | None]:
    x = b.input(n)
    axis = b.axis(n.attrs.get("axis", 0), b.rank(x))
    parts: list[ValueId | None] = []
    at: Dim = 0
    for index, wanted in enumerate(n.outputs):
        end = b.dims.add(at, b.result_shape(n, index)[axis])
        parts.append(None if wanted is None else b.part(x, axis, at, end))
        at = end
    return parts


def _depth_to_space(b: Core, n: Node) -> ValueId:
    x, block = b.input(n), n.attrs["blocksize"]
    batch, _, height, width = b.shape(x)
    result = b.result_shape(n)
    if n.attrs.get("mode", "DCR") == "DCR":
        order, apart = (0, 3, 4, 1, 5, 2), (block, block, result[1])
    else:
        order, apart = (0, 1, 4, 2, 5, 3), (result[1], block, block)
    return b.reshape(b.transpose(b.reshape(x, (batch, *apart, height, width)), order), result)


def _space_to_depth(b: Core, n: Node) -> ValueId:
    x, block = b.input(n), n.attrs["blocksize"]
    batch, depth, _, _ = b.shape(x)
    result = b.result_shape(n)
    order = (0, 3, 5, 1, 2, 4) if n.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    apart = b.reshape(x, (batch, depth, result[2], block, result[3], block))
    return b.reshape(b.transpose(apart, order), result)


def _reverse_sequence(b: Core, n: Node) -> ValueId:
    """Step t of a sequence of length l is step l - 1 - t where t < l, else itself"""
    x = b.input(n)
    shape, batch, time = b.shape(x), n.attrs.get("batch_axis", 1), n.attrs.get("time_axis", 0)
    across = [dim if axis == batch else 1 for axis, dim in enumerate(shape)]
    ends = b.reshape(b.cast(b.input(n, 1), DType.I64), across)
    step = b.iota([dim if axis == time else 1 for axis, dim in enumerate(shape)], time)
    turned = b.sub(b.sub(ends, b.like(1, ends)), step)
    places = b.select(b.lt(step, ends), turned, step)
    return b.op("gather_elements", x, b.broadcast(places, shape), axis=time)


def triangle(b: Core, x: ValueId, offset: ValueId, upper: bool) -> ValueId:
    """x where column - row is at least (upper) or at most (lower) the offset, else 0"""
    shape = b.shape(x)
    row, column = b.iota((shape[-2], 1), 0), b.iota((1, shape[-1]), 1)
    distance = b.sub(column, row)
    keep = b.le(offset, distance) if upper else b.le(distance, offset)
    return b.select(keep, x, b.like(0, x))


def _trilu(b: Core, n: Node) -> ValueId:
    k = b.given(n, 1)
    offset = b.number(0, DType.I64) if k is None else b.reshape(k, ())
    return triangle(b, b.input(n), offset, bool(n.attrs.get("upper", 1)))


def _col2im(b: Core, n: Node) -> ValueId:
    """Each column element is added to its place: count · stride + offset · dilation on every axis, padding cut off"""
    x, dims = b.input(n), b.dims
    image = b.elems(b.input(n, 1), "the shape of the picture")
    block = b.numbers(b.input(n, 2), "the shape of a block")
    rank = len(image)
    strides, dilations = (n.attrs.get(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = n.attrs.get("pads", (0,) * (2 * rank))
    padded = [dims.sum((image[i], pads[i], pads[rank + i])) for i in range(rank)]
    counts = [_windows(b, padded[i], block[i], strides[i], dilations[i]) for i in range(rank)]
    grid: Sequence[Dim] = (*block, *counts)
    flat = b.number(0, DType.I64)
    for i in range(rank):
        at_block = b.iota([size if axis == i else 1 for axis, size in enumerate(grid)], i)
        at_count = b.iota([size if axis == rank + i else 1 for axis, size in enumerate(grid)], rank + i)
        place = b.add(b.mul(at_block, b.like(dilations[i], flat)), b.mul(at_count, b.like(strides[i], flat)))
        flat = b.add(b.mul(flat, b.scalar(padded[i], DType.I64)), place)
    result = b.result_shape(n)
    rows = dims.mul(result[0], result[1])
    places = b.reshape(b.broadcast(flat, grid), (1, dims.product(grid)))
    values = b.reshape(b.wide(x), (rows, dims.product(grid)))
    empty = b.broadcast(b.like(0, values), (rows, dims.product(padded)))
    indices = b.broadcast(places, (rows, dims.product(grid)))
    summed = b.op("scatter_elements", empty, indices, values, axis=1, reduction="add")
    picture = b.reshape(summed, (*result[:2], *padded))
    inside = b.slice(picture, {2 + i: (pads[i], dims.add(pads[i], image[i]), 1) for i in range(rank)})
    return b.cast(inside, b.dtype(x))


def _windows(b: Core, size: Dim, block: int, stride: int, dilation: int) -> Dim:
    return b.dims.add(b.dims.floordiv(b.dims.sub(size, dilation * (block - 1) + 1), stride), 1)


MOVEMENT: dict[str, Decomposition] = {
    "onnx.CenterCropPad": _center_crop_pad,
    "onnx.Col2Im": _col2im,
    "onnx.Concat": _concat,
    "onnx.DepthToSpace": _depth_to_space,
    "onnx.Expand": _expand,
    "onnx.Flatten": _reshape,
    "onnx.Pad": _pad,
    "onnx.Reshape": _reshape,
    "onnx.ReverseSequence": _reverse_sequence,
    "onnx.Shape": _shape,
    "onnx.Size": _size,
    "onnx.Slice": _slice,
    "onnx.SpaceToDepth": _space_to_depth,
    "onnx.Split": _split,
    "onnx.Squeeze": _squeeze,
    "onnx.Tile": _tile,
    "onnx.Transpose": _transpose,
    "onnx.Trilu": _trilu,
    "onnx.Unsqueeze": _unsqueeze,
}
