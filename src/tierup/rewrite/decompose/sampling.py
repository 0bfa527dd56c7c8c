"""Images read at computed points: GridSample, RoiAlign, DeformConv. Each is a few gathers of the pixels around a point,
times weights that are the same for all channels; addresses are clamped first, so that every gather stays inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from msgspec import Struct

from tierup.ir.graph import Node, ValueId
from tierup.ir.ops.window import Window, windows
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.nn import with_bias

_FAR = float(1 << 40)  # coordinates beyond this are outside any image, and still convert to integers
_FILTERS = {"bilinear": "linear", "bicubic": "cubic"}  # the names in version 16
Weights = Callable[[Core, ValueId], list[ValueId]]  # of the taps around a point, by its distance from the one before


def _outside(b: Core, at: ValueId, low: ValueId, high: ValueId) -> ValueId:
    return b.either(b.lt(at, low), b.lt(high, at))


def _within(b: Core, place: ValueId, size: ValueId) -> ValueId:
    return b.both(b.le(b.like(0, place), place), b.lt(place, size))


def _last(b: Core, size: ValueId) -> ValueId:
    return b.sub(size, b.like(1, size))


class Sampler(Struct, frozen=True):
    """How coordinates become pixels: the options of a GridSample and the sizes of its image."""

    b: Core
    sizes: Sequence[Dim]
    padding: str
    corners: bool

    def size(self, axis: int, dtype: DType) -> ValueId:
        return self.b.scalar(self.sizes[axis], dtype)

    def borders(self, axis: int, dtype: DType) -> tuple[ValueId, ValueId]:
        b, size = self.b, self.size(axis, dtype)
        if self.corners:
            return b.number(0, dtype), _last(b, size)
        return b.number(-0.5, dtype), b.sub(size, b.number(0.5, dtype))

    def pixels(self, place: ValueId, axis: int, mode: str) -> ValueId:
        """Coordinates in pixels, brought inside where the padding says so."""
        b, size = self.b, self.size(axis, self.b.dtype(place))
        one, two = b.like(1, place), b.like(2, place)
        if self.corners:
            at = b.mul(b.div(b.add(place, one), two), _last(b, size))
        else:
            at = b.div(b.sub(b.mul(b.add(place, one), size), one), two)
        far, near = b.like(_FAR, at), b.like(-_FAR, at)
        at = b.select(b.eq(at, at), b.clamp(at, near, far), near)  # NaN is outside
        if mode == "cubic":
            return at  # only the pixels around are brought inside
        at = b.op("round", at) if mode == "nearest" else at
        low, high = self.borders(axis, b.dtype(at))
        if self.padding == "border":
            return b.select(_outside(b, at, low, high), b.clamp(at, b.like(0, at), _last(b, size)), at)
        return self.reflected(at, axis) if self.padding == "reflection" else at

    def reflected(self, at: ValueId, axis: int) -> ValueId:
        """`at` mirrored at the borders until it lies between them."""
        b = self.b
        low, high = self.borders(axis, b.dtype(at))
        span, below = b.sub(high, low), b.lt(at, low)
        out = b.select(below, b.sub(low, at), b.sub(at, high))
        turns = b.op("floor", b.div(out, span))
        rest = b.sub(out, b.mul(turns, span))
        even = b.eq(b.op("fmod", turns, b.like(2, at)), b.like(0, at))
        # from below, the first mirror image runs forward from `low`; from above, backward from `high`
        mirrored = b.select(b.eq(even, below), b.add(low, rest), b.sub(high, rest))
        result = b.select(_outside(b, at, low, high), mirrored, at)
        return b.select(b.lt(b.like(0, at), span), result, low)

    def index(self, places: Sequence[ValueId]) -> tuple[ValueId, ValueId | None]:
        """Flat indices of pixels, all of them readable, and which are inside; None where all count as inside."""
        b = self.b
        index, inside = b.number(0, DType.I64), None
        for axis, place in enumerate(places):
            size = self.size(axis, DType.I64)
            if self.padding == "zeros":
                here = _within(b, place, size)
                inside = here if inside is None else b.both(inside, here)
            elif self.padding == "reflection":
                place = b.cast(self.reflected(b.cast(place, DType.F64), axis), DType.I64)
            zero = b.number(0, DType.I64)
            index = b.add(b.mul(index, size), b.clamp(place, zero, b.max(_last(b, size), zero)))
        return index, inside


def _linear_weights(b: Core, near: ValueId) -> list[ValueId]:
    return [b.sub(b.like(1, near), near), near]


def _cubic_weights(b: Core, near: ValueId, a: float = -0.75) -> list[ValueId]:
    def polynomial(d: ValueId, *factors: float) -> ValueId:
        result = b.like(factors[0], d)
        for factor in factors[1:]:
            result = b.add(b.mul(result, d), b.like(factor, d))
        return result

    one, two = b.like(1, near), b.like(2, near)
    inner, outer = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    distances = (b.add(near, one), near, b.sub(one, near), b.sub(two, near))
    return [polynomial(d, *f) for d, f in zip(distances, (outer, inner, inner, outer), strict=True)]


_TAPS: dict[str, tuple[tuple[int, ...], Weights]] = {
    "linear": ((0, 1), _linear_weights),
    "cubic": ((-1, 0, 1, 2), _cubic_weights),
}


def _readable(b: Core, image: ValueId, sizes: Sequence[Dim]) -> ValueId:
    """Image (…, elements), with one more element where it may have none: a gather must find something to read."""
    if 0 in sizes:
        raise Declined("an image without pixels")
    if all(isinstance(size, int) for size in sizes):
        return image
    pads = [0] * (2 * b.rank(image) - 1)
    return b.op("pad", image, b.integers([*pads, 1]), b.like(0, image), mode="constant")


def _read(b: Core, image: ValueId, index: ValueId) -> ValueId:
    """The elements of image (…, channels, elements) at index (…, 1, points)."""
    count = b.shape(image)[-1]
    if not isinstance(count, int):  # with one empty axis, an index counts on along the others
        index = b.min(index, _last(b, b.scalar(count, DType.I64)))
    shape = (*b.shape(image)[:-1], b.shape(index)[-1])
    return b.op("gather_elements", image, b.broadcast(index, shape), axis=len(shape) - 1)


def _grid_sample(b: Core, n: Node) -> ValueId:
    x, grid = b.input(n), b.input(n, 1)
    shape, places = b.shape(x), b.shape(grid)
    mode = _FILTERS.get(n.attrs["mode"], n.attrs["mode"])
    sizes, count = shape[2:], b.dims.product(places[1:-1])
    sampler = Sampler(b, sizes, n.attrs["padding_mode"], bool(n.attrs.get("align_corners", 0)))
    points = b.reshape(b.wide(grid), (places[0], 1, count, len(sizes)))
    at = []
    for axis in range(len(sizes)):
        own = len(sizes) - 1 - axis  # x comes first, which is the last axis
        line = b.reshape(b.part(points, 3, own, own + 1), (places[0], 1, count))
        at.append(sampler.pixels(line, axis, mode))
    image = _readable(b, b.reshape(x, (*shape[:2], b.dims.product(sizes))), sizes)
    y = _nearest(sampler, image, at) if mode == "nearest" else _filtered(sampler, image, at, mode)
    return b.cast(b.reshape(y, (*shape[:2], *places[1:-1])), b.dtype(x))


def _nearest(sampler: Sampler, image: ValueId, at: Sequence[ValueId]) -> ValueId:
    b = sampler.b
    index, inside = sampler.index([b.cast(place, DType.I64) for place in at])
    pixels = _read(b, image, index)
    return pixels if inside is None else b.select(inside, pixels, b.like(0, pixels))


def _filtered(sampler: Sampler, image: ValueId, at: Sequence[ValueId], mode: str) -> ValueId:
    b = sampler.b
    image = b.wide(image) if b.dtype(image).is_float else b.cast(image, DType.F64)
    taps, kernel = _TAPS[mode]
    low = [b.op("floor", place) for place in at]
    weights = [kernel(b, b.sub(place, floor)) for place, floor in zip(at, low, strict=True)]
    first = [b.cast(floor, DType.I64) for floor in low]
    result: ValueId | None = None
    for offset in product(range(len(taps)), repeat=len(at)):
        index, inside = sampler.index([b.add(f, b.like(taps[o], f)) for f, o in zip(first, offset, strict=True)])
        part = b.mul(_read(b, image, index), b.cast(_product(b, weights, offset), b.dtype(image)))
        part = part if inside is None else b.select(inside, part, b.like(0, part))
        result = part if result is None else b.add(result, part)
    assert result is not None
    return result


def _product(b: Core, weights: Sequence[Sequence[ValueId]], offset: Sequence[int]) -> ValueId:
    first, *rest = (row[o] for row, o in zip(weights, offset, strict=True))
    for weight in rest:
        first = b.mul(first, weight)
    return first


Line = list[tuple[ValueId, ValueId]]  # the two pixels around each sample of each region, with their weights


def _roi_align(b: Core, n: Node) -> ValueId:
    """Regions (R, 4) of x (N, C, H, W): samples of the pixels around each point, pooled over each cell."""
    x, rois, attrs = b.input(n), b.wide(b.input(n, 1)), n.attrs
    count, ratio = b.shape(rois)[0], int(attrs["sampling_ratio"])
    if not ratio:
        raise Declined("how many samples a region takes depends on its size, which is known only in the call")
    batch, channels, height, width = b.shape(x)
    pooled = (int(attrs["output_height"]), int(attrs["output_width"]))
    aligned = n.version >= 16 and attrs["coordinate_transformation_mode"] == "half_pixel"
    corners = b.mul(rois, b.like(attrs["spatial_scale"], rois))
    corners = b.sub(corners, b.like(0.5, rois)) if aligned else corners
    x1, y1, x2, y2 = (b.part(corners, 1, i, i + 1) for i in range(4))
    rows = _line(b, y1, _length(b, y1, y2, aligned), pooled[0], ratio, height)
    columns = _line(b, x1, _length(b, x1, x2, aligned), pooled[1], ratio, width)
    pixels = b.reshape(b.transpose(b.wide(x), (0, 2, 3, 1)), (b.dims.product((batch, height, width)), channels))
    images = b.mul(b.cast(b.input(n, 2), DType.I64), b.scalar(b.dims.mul(height, width), DType.I64))
    base = b.reshape(images, (count, 1, 1))
    values = [_weighed(b, pixels, base, row, column, width) for row, column in product(rows, columns)]
    name = "sum" if attrs["mode"] == "avg" else "max"
    total = values[0]
    for value in values[1:]:
        total = b.add(total, value) if name == "sum" else b.max(total, value)
    cells = b.reshape(total, (count, pooled[0], ratio, pooled[1], ratio, channels))
    result = b.transpose(b.reduce(name, cells, (2, 4), keepdims=False), (0, 3, 1, 2))
    return b.cast(b.div(result, b.like(ratio * ratio, result)) if name == "sum" else result, b.dtype(x))


def _length(b: Core, start: ValueId, end: ValueId, aligned: bool) -> ValueId:
    length = b.sub(end, start)
    return length if aligned else b.max(length, b.like(1, length))


def _line(b: Core, start: ValueId, length: ValueId, cells: int, samples: int, size: Dim) -> Line:
    """start and length: (regions, 1); pixels and weights: (regions, cells · samples)."""
    cell = b.div(length, b.like(cells, length))
    step = b.iota((1, cells * samples), 1)
    each = b.like(samples, step)
    place, sample = (b.cast(b.op(name, step, each), b.dtype(start)) for name in ("div", "mod"))
    inner = b.div(b.mul(b.add(sample, b.like(0.5, cell)), cell), b.like(samples, cell))
    at = b.add(b.add(start, b.mul(place, cell)), inner)
    whole = b.scalar(size, b.dtype(at))
    inside = b.both(b.le(b.like(-1, at), at), b.le(at, whole))
    at = b.clamp(b.select(inside, at, b.like(0, at)), b.like(0, at), _last(b, whole))
    low = b.op("floor", at)
    near = b.sub(at, low)
    first = b.cast(low, DType.I64)
    second = b.min(b.add(first, b.like(1, first)), _last(b, b.scalar(size, DType.I64)))
    weights = (b.select(inside, w, b.like(0, w)) for w in _linear_weights(b, near))
    return list(zip((first, second), weights, strict=True))


def _weighed(
    b: Core, pixels: ValueId, base: ValueId, row: tuple[ValueId, ValueId], column: tuple[ValueId, ValueId], width: Dim
) -> ValueId:
    """One of the four neighbours of every sample, times its weight: (regions, rows, columns, channels)."""
    lines = b.mul(b.unsqueeze(row[0], 2), b.scalar(width, DType.I64))
    index = b.add(base, b.add(lines, b.unsqueeze(column[0], 1)))
    weight = b.cast(b.mul(b.unsqueeze(row[1], 2), b.unsqueeze(column[1], 1)), b.dtype(pixels))
    return b.mul(b.gather(pixels, index, 0), b.unsqueeze(weight, 3))


def _deform_conv(b: Core, n: Node) -> ValueId:
    """The columns of a convolution, read where the offsets say, times the weight."""
    x, w, bias, mask = b.wide(b.input(n)), b.wide(b.input(n, 1)), b.given(n, 3), b.given(n, 4)
    (batch, channels, *sizes), (outputs, share, *kernel) = b.shape(x), b.shape(w)
    group, parts = int(n.attrs.get("group", 1)), int(n.attrs.get("offset_group", 1))
    slides = windows(b.dims, n.attrs, sizes, kernel)
    out = [slide.count for slide in slides]
    places, points = b.dims.product(out), b.dims.product(kernel)
    moves = b.reshape(b.wide(b.input(n, 2)), (batch, parts, points, len(sizes), places))
    at = []
    for axis, slide in enumerate(slides):
        moved = b.reshape(b.part(moves, 3, axis, axis + 1), (batch, parts, points, places))
        rest = _resting(b, slide, axis, kernel, out, b.dtype(x))
        at.append(b.reshape(b.add(moved, rest), (batch, parts, 1, b.dims.mul(points, places))))
    image = b.reshape(x, (batch, parts, b.dims.floordiv(channels, parts), b.dims.product(sizes)))
    columns = _sampled(b, _readable(b, image, sizes), at, sizes)
    if mask is not None:
        columns = b.mul(columns, b.reshape(b.wide(mask), (batch, parts, 1, b.dims.mul(points, places))))
    rows = b.dims.mul(share, points)
    weight = b.reshape(w, (group, b.dims.floordiv(outputs, group), rows))
    y = b.matmul(weight, b.reshape(columns, (batch, group, rows, places)))
    return b.cast(with_bias(b, b.reshape(y, (batch, outputs, *out)), bias), b.dtype(b.input(n)))


def _resting(b: Core, slide: Window, axis: int, kernel: Sequence[Dim], out: Sequence[Dim], dtype: DType) -> ValueId:
    """Where each kernel point of each window lies on one axis before it is moved: (points, places)."""
    point = b.reshape(b.broadcast(_along(b, kernel, axis), kernel), (b.dims.product(kernel), 1))
    place = b.reshape(b.broadcast(_along(b, out, axis), out), (1, b.dims.product(out)))
    offset = b.sub(b.mul(point, b.like(slide.dilation, point)), b.scalar(slide.before, DType.I64))
    return b.cast(b.add(offset, b.mul(place, b.like(slide.stride, place))), dtype)


def _along(b: Core, dims: Sequence[Dim], axis: int) -> ValueId:
    return b.iota([dim if i == axis else 1 for i, dim in enumerate(dims)], axis)


def _sampled(b: Core, image: ValueId, at: Sequence[ValueId], sizes: Sequence[Dim]) -> ValueId:
    """Linear interpolation; what lies outside has no weight, and what has none is not read as NaN."""
    low = [b.op("floor", place) for place in at]
    weights = [_linear_weights(b, b.sub(place, floor)) for place, floor in zip(at, low, strict=True)]
    result: ValueId | None = None
    zero = b.like(0, image)
    for corner in product((0, 1), repeat=len(at)):
        index, weight = b.number(0, DType.I64), b.like(1, image)
        for axis, up in enumerate(corner):
            place, size = b.add(low[axis], b.like(up, low[axis])), b.scalar(sizes[axis], b.dtype(image))
            inside = _within(b, place, size)
            weight = b.mul(weight, b.select(inside, weights[axis][up], zero))
            safe = b.cast(b.select(inside, place, zero), DType.I64)
            index = b.add(b.mul(index, b.scalar(sizes[axis], DType.I64)), safe)
        part = b.select(b.eq(weight, zero), zero, b.mul(_read(b, image, index), weight))
        result = part if result is None else b.add(result, part)
    assert result is not None
    return result


SAMPLING: dict[str, Decomposition] = {
    "onnx.DeformConv": _deform_conv,
    "onnx.GridSample": _grid_sample,
    "onnx.RoiAlign": _roi_align,
}
