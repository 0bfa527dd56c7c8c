"""Windows that slide over spatial axes: attributes and sizes in, the place of every window out.

Convolutions and poolings, their type rules and their reference functions all take their geometry from here. Sizes are
dims; given plain numbers, everything that comes out is a plain number.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Attrs
from tierup.ir.infer import InferError
from tierup.ir.types import Dim

_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


class Window(Struct, frozen=True):
    """One axis: window o covers positions o·stride + t·dilation − before, t from 0 to kernel − 1; there are `count`."""

    size: Dim
    kernel: Dim
    stride: int
    dilation: int
    before: Dim
    after: Dim
    count: Dim


class Spatial(Struct, frozen=True):
    """The attributes that windows are made from, one entry for each spatial axis."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    auto_pad: str
    ceil: bool


def spatial(attrs: Attrs, rank: int) -> Spatial:
    """The window attributes of a node with `rank` spatial axes, checked."""
    auto_pad = attrs.get("auto_pad", "NOTSET")
    if auto_pad not in _AUTO_PADS:
        raise InferError(f"auto_pad is '{auto_pad}', expected one of {', '.join(_AUTO_PADS)}")
    pads = per_axis(attrs, "pads", 2 * rank, 0, least=0)
    if auto_pad != "NOTSET":
        pads = (0,) * (2 * rank)
    return Spatial(
        strides=per_axis(attrs, "strides", rank, 1, least=1),
        dilations=per_axis(attrs, "dilations", rank, 1, least=1),
        pads=tuple(zip(pads[:rank], pads[rank:], strict=True)),
        auto_pad=auto_pad,
        ceil=bool(attrs.get("ceil_mode", 0)),
    )


def per_axis(attrs: Attrs, name: str, count: int, default: int, least: int) -> tuple[int, ...]:
    """A list attribute with `count` entries of at least `least`; left out or empty, all are `default`."""
    values: tuple[int, ...] = tuple(attrs.get(name) or (default,) * count)
    if len(values) != count:
        raise InferError(f"{name} has {len(values)} entries, expected {count}")
    if any(value < least for value in values):
        raise InferError(f"{name} is {list(values)}, but no entry may be below {least}")
    return values


def extent(dims: DimBuilder, kernel: Dim, dilation: int) -> Dim:
    """How far a dilated kernel reaches."""
    return dims.add(dims.mul(dims.sub(kernel, 1), dilation), 1)


def windows(dims: DimBuilder, attrs: Attrs, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[Window]:
    """The windows of a convolution or pooling over spatial axes of these sizes."""
    options = spatial(attrs, len(sizes))
    return [_window(dims, options, axis, size, kernel[axis]) for axis, size in enumerate(sizes)]


def _window(dims: DimBuilder, options: Spatial, axis: int, size: Dim, kernel: Dim) -> Window:
    stride, dilation = options.strides[axis], options.dilations[axis]
    before: Dim
    after: Dim
    before, after = options.pads[axis]
    reach = extent(dims, kernel, dilation)
    if options.auto_pad.startswith("SAME"):
        count = dims.ceildiv(size, stride)
        needed = dims.add(dims.mul(dims.sub(count, 1), stride), reach)
        before, after = split_padding(dims, dims.max(dims.sub(needed, size), 0), options.auto_pad == "SAME_UPPER")
    else:
        room = dims.sub(dims.add(size, before + after), reach)
        ceil = options.ceil and options.auto_pad == "NOTSET"  # VALID rounds down in both modes
        count = dims.add((dims.ceildiv if ceil else dims.floordiv)(room, stride), 1)
        if ceil:
            # a window that would start in the padding behind the data is left out
            starts_inside = dims.emit("lt", dims.mul(dims.sub(count, 1), stride), dims.add(size, before))
            count = dims.select(starts_inside, count, dims.sub(count, 1))
    return Window(size, kernel, stride, dilation, before, after, count)


def transposed_windows(dims: DimBuilder, attrs: Attrs, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[Window]:
    """The windows of a transposed convolution: `count` is the size of its input, `size` that of its result."""
    options = spatial(attrs, len(sizes))
    extra = per_axis(attrs, "output_padding", len(sizes), 0, least=0)
    wanted = tuple(attrs.get("output_shape") or ())[-len(sizes) :]
    if wanted and (len(wanted) != len(sizes) or min(wanted) < 0):
        raise InferError(f"output_shape is {list(wanted)}, expected {len(sizes)} sizes")
    result = []
    for axis, count in enumerate(sizes):
        stride, dilation = options.strides[axis], options.dilations[axis]
        full = dims.add(dims.mul(dims.sub(count, 1), stride), extent(dims, kernel[axis], dilation))
        full = dims.add(full, extra[axis])
        before: Dim
        after: Dim
        before, after = options.pads[axis]
        size = dims.sub(full, before + after)
        if wanted or options.auto_pad.startswith("SAME"):
            size = wanted[axis] if wanted else dims.mul(count, stride)
            total = dims.max(dims.sub(full, size), 0)
            before, after = split_padding(dims, total, options.auto_pad == "SAME_UPPER")
        result.append(Window(size, kernel[axis], stride, dilation, before, after, count))
    return result


def split_padding(dims: DimBuilder, total: Dim, upper: bool) -> tuple[Dim, Dim]:
    """Half of the padding on each side; the odd one goes behind (`upper`) or in front."""
    half = dims.floordiv(total, 2)
    rest = dims.sub(total, half)
    return (half, rest) if upper else (rest, half)
