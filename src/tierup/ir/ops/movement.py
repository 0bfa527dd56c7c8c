"""Ops that move elements without computing: reshapes, slices, joins, pads. They also carry the shape arithmetic of
exported models, so their rules pass on what small integer tensors hold."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.infer import CONTENT_LIMIT, Infer, InferError, Out, PartialShape
from tierup.ir.ops.row import Op
from tierup.ir.ops.sizes import quotient, reshaped, same, slice_length
from tierup.ir.types import Dim, DType, Shape

RANK_LIMIT = 64  # what NumPy can hold
PAD_MODES = ("constant", "reflect", "edge", "wrap")

Content = tuple[Dim, ...]


def as_input(ctx: Infer) -> list[Out]:
    """One result that is like input 0."""
    return [Out(ctx.dtype(0), ctx.shape(0))]


def replaced(shape: PartialShape, sizes: dict[int, Dim | None]) -> PartialShape:
    """`shape` with the axes in `sizes` changed."""
    return tuple(sizes.get(axis, dim) for axis, dim in enumerate(shape))


def given(ctx: Infer, name: str, index: int) -> tuple[int, ...] | None:
    """Integers that were an attribute in early opsets and are an input since; None where unknown or absent."""
    values = ctx.attrs.get(name)
    return tuple(values) if values is not None else ctx.ints(index)


def count_of(ctx: Infer, index: int) -> int | None:
    """How many elements the vector input `index` has."""
    shape = ctx.shape(index)
    if shape is not None and len(shape) > 1:
        raise InferError(f"input {index} must be a vector, but is {ctx.tensor(index)!r}")
    count = None if shape is None else shape[0] if shape else 1
    return count if isinstance(count, int) else None


def _flat_content(ctx: Infer, shape: PartialShape | None) -> Content | None:
    """What input 0 holds, if the result still has rank 0 or 1."""
    return ctx.content(0) if shape is not None and len(shape) <= 1 else None


def _at_least(ctx: Infer, index: int, rank: int) -> Shape | None:
    shape = ctx.shape(index)
    if shape is not None and len(shape) < rank:
        raise InferError(f"input {index} must have at least rank {rank}, but is {ctx.tensor(index)!r}")
    return shape


def _concat(ctx: Infer) -> list[Out]:
    shapes = [ctx.shape(i) for i in range(len(ctx.inputs))]
    known = [shape for shape in shapes if shape is not None]
    if not known:
        return [Out(ctx.dtype(0), None)]
    rank = len(known[0])
    if any(len(shape) != rank for shape in known):
        raise InferError(f"all inputs must have one rank, but the ranks are {sorted({len(s) for s in known})}")
    axis = ctx.axis(ctx.attrs.get("axis", 1), rank)
    result: list[Dim | None] = list(known[0])
    for at in range(rank):
        if at != axis:
            size = known[0][at]
            for shape in known[1:]:
                size = same(size, shape[at])
            result[at] = size
    result[axis] = ctx.dims.sum([shape[axis] for shape in known]) if len(known) == len(shapes) else None
    return [Out(ctx.dtype(0), tuple(result), _joined(ctx) if rank == 1 else None)]


def _joined(ctx: Infer) -> Content | None:
    """The parts one after the other. Where at least one is known, the others are read when they exist."""
    count = len(ctx.inputs)
    if count > CONTENT_LIMIT or all(ctx.content(i) is None for i in range(count)):
        return None
    parts = [ctx.elems(i) for i in range(count)]
    joined = tuple(dim for part in parts if part is not None for dim in part)
    return None if any(part is None for part in parts) or len(joined) > CONTENT_LIMIT else joined


def _shape(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if shape is None:
        return [Out(DType.I64, (None,))]
    part = shape[ctx.attrs.get("start", 0) : ctx.attrs.get("end")]
    return [Out(DType.I64, (len(part),), part)]


def _size(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    return [Out(DType.I64, (), None if shape is None else (ctx.dims.product(shape),))]


def _reshape(ctx: Infer) -> list[Out]:
    count = count_of(ctx, 1)
    target = ctx.elems(1)
    if target is None:
        return [Out(ctx.dtype(0), None if count is None or count > RANK_LIMIT else (None,) * count)]
    shape = reshaped(ctx.dims, ctx.shape(0), target, bool(ctx.attrs.get("allowzero", 0)))
    return [Out(ctx.dtype(0), shape, _flat_content(ctx, shape))]


def _flatten(ctx: Infer) -> list[Out]:
    shape, axis = ctx.shape(0), ctx.attrs.get("axis", 1)
    if shape is None:
        return [Out(ctx.dtype(0), (None, None))]
    if not -len(shape) <= axis <= len(shape):
        raise InferError(f"axis {axis} is outside a tensor of rank {len(shape)}")
    axis += len(shape) if axis < 0 else 0
    return [Out(ctx.dtype(0), (ctx.dims.product(shape[:axis]), ctx.dims.product(shape[axis:])))]


def _squeeze(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    result = None if shape is None else _squeezed(ctx, shape)
    return [Out(ctx.dtype(0), result, _flat_content(ctx, result))]


def _squeezed(ctx: Infer, shape: Shape) -> PartialShape | None:
    if "axes" not in ctx.attrs and not ctx.has(1):
        all_known = all(isinstance(dim, int) for dim in shape)
        return tuple(dim for dim in shape if dim != 1) if all_known else None
    axes = given(ctx, "axes", 1)
    if axes is None:
        count = count_of(ctx, 1)
        return None if count is None or count > len(shape) else (None,) * (len(shape) - count)
    dropped = ctx.axes(axes, len(shape))
    for axis in dropped:
        size = shape[axis]
        if isinstance(size, int) and size != 1:
            raise InferError(f"axis {axis} has size {size}; only axes of size 1 can be squeezed out")
    return tuple(dim for axis, dim in enumerate(shape) if axis not in dropped)


def _unsqueeze(ctx: Infer) -> list[Out]:
    shape, axes = ctx.shape(0), given(ctx, "axes", 1)
    count = len(axes) if axes is not None else count_of(ctx, 1)
    if shape is None or count is None:
        return [Out(ctx.dtype(0), None)]
    rank = len(shape) + count
    if rank > RANK_LIMIT:
        raise InferError(f"a result would have rank {rank}; at most {RANK_LIMIT} is possible")
    if axes is None:
        return [Out(ctx.dtype(0), (None,) * rank)]
    inserted, rest = ctx.axes(axes, rank), iter(shape)
    result = tuple(1 if axis in inserted else next(rest) for axis in range(rank))
    return [Out(ctx.dtype(0), result, _flat_content(ctx, result))]


def _transpose(ctx: Infer) -> list[Out]:
    shape, perm = ctx.shape(0), ctx.attrs.get("perm")
    if shape is None:
        return [Out(ctx.dtype(0), None if perm is None else (None,) * len(perm))]
    order = tuple(reversed(range(len(shape)))) if perm is None else perm
    if sorted(order) != list(range(len(shape))):
        raise InferError(f"perm {order} is no permutation of the axes of a tensor of rank {len(shape)}")
    return [Out(ctx.dtype(0), tuple(shape[axis] for axis in order), _flat_content(ctx, shape))]


def _expand(ctx: Infer) -> list[Out]:
    count_of(ctx, 1)
    target, data = ctx.elems(1), ctx.shape(0)
    if target is None or data is None:
        return [Out(ctx.dtype(0), None)]
    if any(isinstance(size, int) and size < 0 for size in target):
        raise InferError(f"a tensor cannot be expanded to the shape {target}")
    shape = ctx.broadcast(data, target)
    return [Out(ctx.dtype(0), shape, _repeated(ctx, shape))]


def _repeated(ctx: Infer, shape: PartialShape | None) -> Content | None:
    """What input 0 holds, over and over, as long as the result."""
    content = ctx.content(0)
    if content is None or shape is None or len(shape) > 1:
        return None
    count = shape[0] if shape else 1
    if not isinstance(count, int) or not 0 <= count <= CONTENT_LIMIT:
        return None
    return content * (count // len(content)) if content else ()


def _tile(ctx: Infer) -> list[Out]:
    repeats, shape = ctx.elems(1), ctx.shape(0)
    count = count_of(ctx, 1)
    if shape is None:
        return [Out(ctx.dtype(0), None if count is None or count > RANK_LIMIT else (None,) * count)]
    if repeats is None:
        return [Out(ctx.dtype(0), (None,) * len(shape))]
    if len(repeats) != len(shape):
        raise InferError(f"there are {len(repeats)} repeats for a tensor of rank {len(shape)}")
    result = tuple(ctx.dims.mul(dim, times) for dim, times in zip(shape, repeats, strict=True))
    return [Out(ctx.dtype(0), result, _repeated(ctx, result))]


def _pad(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if ctx.attrs.get("mode", "constant") not in PAD_MODES:
        raise InferError(f"mode '{ctx.attrs['mode']}' is none of {', '.join(PAD_MODES)}")
    if shape is None:
        return [Out(ctx.dtype(0), None)]
    axes = ctx.ints(3) if ctx.has(3) else tuple(range(len(shape)))
    pads: Sequence[Dim] | None = ctx.attrs.get("pads")
    if pads is None and ctx.version >= 11:
        pads = ctx.elems(1)
    if axes is None:
        return [Out(ctx.dtype(0), (None,) * len(shape))]
    padded = ctx.axes(axes, len(shape))
    if pads is None:
        return [Out(ctx.dtype(0), replaced(shape, dict.fromkeys(padded)))]
    if len(pads) != 2 * len(padded):
        raise InferError(f"{len(padded)} axes need {2 * len(padded)} pads, but there are {len(pads)}")
    both = zip(padded, pads[: len(padded)], pads[len(padded) :], strict=True)
    return [Out(ctx.dtype(0), replaced(shape, {axis: ctx.dims.sum([shape[axis], a, b]) for axis, a, b in both}))]


def _slice(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if shape is None:
        return [Out(ctx.dtype(0), None)]
    bounds = _slice_bounds(ctx, len(shape))
    if bounds is None:
        return [Out(ctx.dtype(0), (None,) * len(shape))]
    sizes = {axis: _cut(ctx, shape[axis], *bound) for axis, bound in bounds.items()}
    return [Out(ctx.dtype(0), replaced(shape, sizes), _cut_content(ctx, bounds))]


Bounds = dict[int, tuple[Dim | None, Dim | None, int | None]]


def _cut(ctx: Infer, size: Dim, start: Dim | None, end: Dim | None, step: int | None) -> Dim | None:
    if start is None or end is None or step is None:
        return None
    return slice_length(ctx.dims, size, start, end, step)


def _slice_bounds(ctx: Infer, rank: int) -> Bounds | None:
    """Start, end and step of each sliced axis, None where unknown; None where not even the axes are known."""
    starts: Sequence[Dim | None] | None = ctx.attrs.get("starts") if ctx.version < 10 else ctx.elems(1)
    ends: Sequence[Dim | None] | None = ctx.attrs.get("ends") if ctx.version < 10 else ctx.elems(2)
    axes = given(ctx, "axes", 3)
    named = "axes" in ctx.attrs or ctx.has(3)
    count = next((len(known) for known in (starts, ends, axes) if known is not None), None)
    if count is None or (axes is None and named):
        return None
    steps: Sequence[int | None] | None = ctx.ints(4) if ctx.has(4) else (1,) * min(count, RANK_LIMIT)
    sliced = ctx.axes(axes if axes is not None else range(min(count, RANK_LIMIT)), rank)
    columns = [column if column is not None else (None,) * len(sliced) for column in (starts, ends, steps)]
    if any(len(column) != len(sliced) for column in columns):
        raise InferError("starts, ends, axes and steps must have one length")
    return dict(zip(sliced, zip(*columns, strict=True), strict=True))


def _cut_content(ctx: Infer, bounds: Bounds) -> Content | None:
    content = ctx.content(0)
    if content is None or not bounds:
        return content
    start, end, step = bounds[0]
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
        return None
    return content[clamped_slice(len(content), start, end, step)]


def clamped_slice(size: int, start: int, end: int, step: int) -> slice:
    """The Python slice for ONNX's `start:end:step`. They differ where a backward slice starts before the front."""
    if step > 0:
        return slice(start, end, step)
    start = min(max(start + size if start < 0 else start, 0), size - 1)
    end = min(max(end + size if end < 0 else end, -1), size - 1)
    return slice(start, None if end < 0 else end, step) if start >= 0 else slice(0, 0, 1)


def _split(ctx: Infer) -> list[Out]:
    shape, parts = ctx.shape(0), len(ctx.wanted)
    if shape is None:
        return [Out(ctx.dtype(0), None)] * parts
    axis = ctx.axis(ctx.attrs.get("axis", 0), len(shape))
    sizes = _part_sizes(ctx, shape[axis], parts)
    contents = _part_contents(ctx, sizes)
    return [
        Out(ctx.dtype(0), replaced(shape, {axis: size}), content) for size, content in zip(sizes, contents, strict=True)
    ]


def _part_sizes(ctx: Infer, size: Dim, parts: int) -> Sequence[Dim | None]:
    sizes: Sequence[Dim] | None = ctx.attrs.get("split")
    if sizes is None and ctx.has(1):
        count_of(ctx, 1)
        sizes = ctx.elems(1)
        if sizes is None:
            return (None,) * parts
    if sizes is None:
        return _equal_parts(ctx, size, parts)
    if len(sizes) != parts:
        raise InferError(f"'split' has {len(sizes)} sizes, but there are {parts} outputs")
    if all(isinstance(dim, int) for dim in (size, *sizes)) and ctx.dims.sum(sizes) != size:
        raise InferError(f"the parts {tuple(sizes)} do not add up to the size {size}")
    return sizes


def _equal_parts(ctx: Infer, size: Dim, parts: int) -> Sequence[Dim]:
    if ctx.version >= 18:
        if ctx.attrs.get("num_outputs", parts) != parts:
            raise InferError(f"num_outputs is {ctx.attrs['num_outputs']}, but there are {parts} outputs")
        chunk = ctx.dims.ceildiv(size, parts)
        return [chunk] * (parts - 1) + [ctx.dims.sub(size, ctx.dims.mul(chunk, parts - 1))]
    return [quotient(ctx.dims, [size], [parts])] * parts


def _part_contents(ctx: Infer, sizes: Sequence[Dim | None]) -> Sequence[Content | None]:
    content = ctx.content(0)
    if content is None:
        return [None] * len(sizes)
    result: list[Content | None] = []
    at = 0
    for size in sizes:
        if not isinstance(size, int):
            return [None] * len(sizes)
        result.append(content[at : at + size])
        at += size
    return result


def _depth_to_space(ctx: Infer) -> list[Out]:
    block, shape = _block(ctx), _pictures(ctx)
    if shape is None:
        return [Out(ctx.dtype(0), (None,) * 4)]
    batch, depth, height, width = shape
    depth = quotient(ctx.dims, [depth], [block * block])
    return [Out(ctx.dtype(0), (batch, depth, ctx.dims.mul(height, block), ctx.dims.mul(width, block)))]


def _space_to_depth(ctx: Infer) -> list[Out]:
    block, shape = _block(ctx), _pictures(ctx)
    if shape is None:
        return [Out(ctx.dtype(0), (None,) * 4)]
    batch, depth, height, width = shape
    height, width = (quotient(ctx.dims, [size], [block]) for size in (height, width))
    return [Out(ctx.dtype(0), (batch, ctx.dims.mul(depth, block * block), height, width))]


def _block(ctx: Infer) -> int:
    block = ctx.attrs["blocksize"]
    if not 1 <= block < 1 << 31:
        raise InferError(f"blocksize must be 1 or more, but is {block}")
    if ctx.attrs.get("mode", "DCR") not in ("DCR", "CRD"):
        raise InferError(f"mode '{ctx.attrs['mode']}' is neither DCR nor CRD")
    return int(block)


def _pictures(ctx: Infer) -> Shape | None:
    shape = ctx.shape(0)
    if shape is not None and len(shape) != 4:
        raise InferError(f"input 0 must have rank 4, but is {ctx.tensor(0)!r}")
    return shape


def _center_crop_pad(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    count = count_of(ctx, 1)
    if shape is None:
        return [Out(ctx.dtype(0), None)]
    axes = ctx.axes(ctx.attrs.get("axes", range(len(shape))), len(shape))
    sizes = ctx.elems(1)
    if count is not None and count != len(axes):
        raise InferError(f"{len(axes)} axes need as many sizes, but there are {count}")
    new: dict[int, Dim | None] = dict(zip(axes, sizes or [None] * len(axes), strict=True))
    return [Out(ctx.dtype(0), replaced(shape, new))]


def _col2im(ctx: Infer) -> list[Out]:
    shape, image, block = ctx.shape(0), ctx.elems(1), ctx.elems(2)
    rank = next((n for n in (count_of(ctx, 1), count_of(ctx, 2)) if n is not None), None)
    if shape is not None and len(shape) != 3:
        raise InferError(f"input 0 must have rank 3, but is {ctx.tensor(0)!r}")
    if rank is None or rank > RANK_LIMIT - 2:
        return [Out(ctx.dtype(0), None)]
    for name, count in (("dilations", rank), ("pads", 2 * rank), ("strides", rank)):
        if len(ctx.attrs.get(name, (1,) * count)) != count:
            raise InferError(f"a picture with {rank} axes needs {count} {name}")
    batch = None if shape is None else shape[0]
    channels = None if shape is None or block is None else quotient(ctx.dims, [shape[1]], block)
    return [Out(ctx.dtype(0), (batch, channels, *(image if image is not None else (None,) * rank)))]


def _reverse_sequence(ctx: Infer) -> list[Out]:
    shape, lengths = _at_least(ctx, 0, 2), ctx.shape(1)
    axes = {ctx.attrs.get("batch_axis", 1), ctx.attrs.get("time_axis", 0)}
    if axes != {0, 1}:
        raise InferError("one of batch_axis and time_axis must be 0 and the other 1")
    if shape is not None and lengths is not None:
        if len(lengths) != 1:
            raise InferError(f"input 1 must be a vector, but is {ctx.tensor(1)!r}")
        same(shape[ctx.attrs.get("batch_axis", 1)], lengths[0])
    return as_input(ctx)


def _trilu(ctx: Infer) -> list[Out]:
    _at_least(ctx, 0, 2)
    return as_input(ctx)


OPS = (
    Op(
        "onnx.CenterCropPad",
        "Crops or zero-pads axes to given sizes, keeping the middle.",
        _center_crop_pad,
        "movement.center_crop_pad",
    ),
    Op("onnx.Col2Im", "Adds sliding blocks back into the picture they were taken from.", _col2im, "movement.col2im"),
    Op("onnx.Concat", "Joins tensors along one axis.", _concat, "movement.concat"),
    Op("onnx.DepthToSpace", "Spreads channels over blocks of pixels.", _depth_to_space, "movement.depth_to_space"),
    Op("onnx.Expand", "Broadcasts a tensor to a shape.", _expand, "movement.expand"),
    Op("onnx.Flatten", "Makes a matrix: the axes before `axis`, and the rest.", _flatten, "movement.flatten"),
    Op("onnx.Pad", "Adds (or, where negative, removes) elements at the ends of axes.", _pad, "movement.pad"),
    Op(
        "onnx.Reshape",
        "The same elements in a new shape; 0 copies a size, -1 is what is left.",
        _reshape,
        "movement.reshape",
    ),
    Op(
        "onnx.ReverseSequence",
        "Reverses the first elements of each sequence in a batch.",
        _reverse_sequence,
        "movement.reverse_sequence",
    ),
    Op("onnx.Shape", "The sizes of a tensor, or of a run of its axes.", _shape, "movement.shape"),
    Op("onnx.Size", "The number of elements of a tensor.", _size, "movement.size"),
    Op("onnx.Slice", "Takes start:end:step from axes.", _slice, "movement.slice_"),
    Op("onnx.SpaceToDepth", "Gathers blocks of pixels into channels.", _space_to_depth, "movement.space_to_depth"),
    Op("onnx.Split", "Cuts a tensor into parts along one axis.", _split, "movement.split"),
    Op("onnx.Squeeze", "Drops axes of size 1.", _squeeze, "movement.squeeze"),
    Op("onnx.Tile", "Repeats a tensor along its axes.", _tile, "movement.tile"),
    Op("onnx.Transpose", "Permutes axes.", _transpose, "movement.transpose"),
    Op("onnx.Trilu", "Keeps the upper or lower triangle of matrices; the rest is zero.", _trilu, "movement.trilu"),
    Op("onnx.Unsqueeze", "Inserts axes of size 1.", _unsqueeze, "movement.unsqueeze"),
)
