"""Convolutions and pools: the window's geometry becomes the value `pads`, bias and divisors become maps.

With a bias, narrow floats are convolved in f32 and rounded once behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierup.ir.graph import Attrs, Node, ValueId
from tierup.ir.ops.window import Window, extent, per_axis, transposed_windows, windows
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.elementwise import sigmoid

_FAR = 1 << 20  # elements; a hostile kernel or dilation would have windows walk through nothing but padding


def ranked(b: Core, x: ValueId, rank: int) -> ValueId:
    """x with the number of axes that its op demands, where its type does not know it."""
    if b.out.shape(x) is not None:
        return x
    return b.op("reshape", x, b.gather(b.op("shape", x), b.integers(range(rank)), 0))


def _same(attrs: Attrs) -> bool:
    return str(attrs.get("auto_pad", "NOTSET")).startswith("SAME")


def conv_pads(b: Core, attrs: Attrs, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """Padding before and after each axis. With SAME and stride 1 it does not depend on the size: 1 stands for it."""
    strides = per_axis(attrs, "strides", len(sizes), 1, least=1)
    sizes = [1 if _same(attrs) and stride == 1 else size for size, stride in zip(sizes, strides, strict=True)]
    return [(window.before, window.after) for window in windows(b.dims, attrs, sizes, kernel)]


def pads_value(b: Core, pads: Sequence[tuple[Dim, Dim]]) -> ValueId:
    """Every begin, then every end."""
    if any(isinstance(pad, int) and pad > _FAR for row in pads for pad in row):
        raise Declined("its padding is far wider than any data")
    return b.sizes([*(before for before, _ in pads), *(after for _, after in pads)])


def steps(attrs: Attrs, spatial: int) -> dict[str, tuple[int, ...]]:
    return {name: per_axis(attrs, name, spatial, 1, least=1) for name in ("strides", "dilations")}


def convolve(b: Core, x: ValueId, w: ValueId, attrs: Attrs) -> ValueId:
    """The convolution that the attributes of ONNX's Conv describe."""
    sizes, kernel = b.shape(x)[2:], b.shape(w)[2:]
    pads = pads_value(b, conv_pads(b, attrs, sizes, kernel))
    return b.op("conv", x, w, pads, group=int(attrs.get("group", 1)), **steps(attrs, len(sizes)))


def by_channel(b: Core, parameter: ValueId, rank: int) -> ValueId:
    """One number for each channel, made to broadcast to batch, channels and `rank` - 2 axes; or one number for all."""
    if all(dim == 1 for dim in b.shape(parameter)):
        return b.reshape(parameter, ())
    return b.reshape(parameter, [b.dims.product(b.shape(parameter)), *(1,) * (rank - 2)])


def with_bias(b: Core, y: ValueId, bias: ValueId | None) -> ValueId:
    return y if bias is None else b.add(y, by_channel(b, b.wide(bias), b.rank(y)))


def wide_unless(b: Core, last: bool, *values: ValueId) -> tuple[ValueId, ...]:
    """`values` as they are where nothing is computed behind them, since core ops accumulate narrow floats in f32."""
    return values if last else tuple(map(b.wide, values))


def _conv(b: Core, n: Node) -> ValueId:
    bias, weight = b.given(n, 2), b.input(n, 1)
    x, w = wide_unless(b, bias is None, ranked(b, b.input(n), b.rank(weight)), weight)
    return b.cast(with_bias(b, convolve(b, x, w, n.attrs), bias), b.dtype(b.input(n)))


def _conv_transpose(b: Core, n: Node) -> ValueId:
    bias, weight = b.given(n, 2), b.input(n, 1)
    x, w = wide_unless(b, bias is None, ranked(b, b.input(n), b.rank(weight)), weight)
    return b.cast(with_bias(b, _transposed(b, x, w, n.attrs), bias), b.dtype(b.input(n)))


def _transposed(b: Core, x: ValueId, w: ValueId, attrs: Attrs) -> ValueId:
    sizes, kernel = b.shape(x)[2:], b.shape(w)[2:]
    # With SAME, what is cut off does not depend on the size: 1 stands for it.
    fixed = _same(attrs) and not attrs.get("output_shape")
    slides = transposed_windows(b.dims, attrs, (1,) * len(sizes) if fixed else sizes, kernel)
    extra = per_axis(attrs, "output_padding", len(sizes), 0, least=0)
    pads = pads_value(b, [(window.before, window.after) for window in slides])
    y = b.op(
        "conv_transpose", x, w, pads, group=int(attrs.get("group", 1)), output_padding=extra, **steps(attrs, len(sizes))
    )
    if not fixed and not attrs.get("output_shape"):
        return y
    return _lengthened(b, y, [_missing(b, window, extra[i]) for i, window in enumerate(slides)])


def _missing(b: Core, window: Window, extra: int) -> Dim:
    """How much longer the wanted size is than all that the kernel's copies reach."""
    return b.dims.max(b.dims.sub(window.size, b.dims.add(_reach(b, window), extra)), 0)


def _reach(b: Core, window: Window) -> Dim:
    """How far all windows reach together."""
    return b.dims.add(
        b.dims.mul(b.dims.sub(window.count, 1), window.stride), extent(b.dims, window.kernel, window.dilation)
    )


def _lengthened(b: Core, x: ValueId, missing: Sequence[Dim]) -> ValueId:
    """Zeros behind the last axes."""
    if all(dim == 0 for dim in missing):
        return x
    none: list[Dim] = [0] * b.rank(x)
    pads = b.sizes([*none, *none[len(missing) :], *missing])
    return b.op("pad", x, pads, b.like(0, x), mode="constant")


def _causal_conv(b: Core, n: Node) -> tuple[ValueId, ValueId]:
    """Depthwise over the past and the input; the last positions are handed on."""
    x, w, bias, past = b.input(n), b.input(n, 1), b.given(n, 2), b.given(n, 3)
    batch, channels, _ = b.shape(x)
    groups = channels if isinstance(channels, int) else b.shape(w)[0]
    if not isinstance(groups, int):
        raise Declined("the number of channels, and so of groups, is known only in the call")
    kept = b.dims.sub(b.shape(w)[2], 1)
    if past is None:
        past = b.broadcast(b.like(0, x), (batch, channels, kept))
    sequence = b.concat([past, x], 2)
    data, kernel = wide_unless(b, bias is None, sequence, w)
    y = b.cast(with_bias(b, convolve(b, data, kernel, Attrs({"group": groups})), bias), b.dtype(x))
    if n.attrs.get("activation", "none") != "none":
        y = b.cast(b.mul(b.wide(y), sigmoid(b, b.wide(y))), b.dtype(x))
    total = b.shape(sequence)[2]
    return y, b.part(sequence, 2, b.dims.sub(total, kept), total)


def _pool_windows(b: Core, x: ValueId, attrs: Attrs) -> list[Window]:
    sizes = b.shape(x)[2:]
    return windows(b.dims, attrs, sizes, per_axis(attrs, "kernel_shape", len(sizes), 1, least=1))


def _rounds_up(attrs: Attrs) -> bool:
    return bool(attrs.get("ceil_mode", 0)) and attrs.get("auto_pad", "NOTSET") == "NOTSET"


def _pool_attrs(b: Core, x: ValueId, attrs: Attrs) -> tuple[ValueId, dict[str, tuple[int, ...]]]:
    """The pads and attributes of a core pool; rounding up the number of windows is padding up to the last one's end."""
    slides = _pool_windows(b, x, attrs)
    pads = conv_pads(b, attrs, [s.size for s in slides], [s.kernel for s in slides])
    if _rounds_up(attrs):
        pads = [(s.before, b.dims.max(b.dims.sub(_reach(b, s), b.dims.add(s.size, s.before)), 0)) for s in slides]
    kernel = list(per_axis(attrs, "kernel_shape", len(slides), 1, least=1))
    for axis, slide in enumerate(slides):
        if (size := _seen_whole(slide)) is not None:
            kernel[axis], pads[axis] = size, (0, 0)
    return pads_value(b, pads), {"kernel_shape": tuple(kernel), **steps(attrs, len(slides))}


def _seen_whole(slide: Window) -> int | None:
    """The size of an axis that has one window, which sees all of it: then nothing need be padded to the kernel's
    size. Exporters write global pools with kernels of any size, 1280 for an axis of 7."""
    size, kernel, before = slide.size, slide.kernel, slide.before
    if not (isinstance(size, int) and isinstance(kernel, int) and isinstance(before, int)):
        return None
    return size if slide.count == slide.dilation == 1 and before >= 0 and kernel - before >= size > 0 else None


def pool_sum(b: Core, x: ValueId, attrs: Attrs) -> ValueId:
    pads, options = _pool_attrs(b, x, attrs)
    return b.op("pool_sum", x, pads, **options)


def pool_max(b: Core, x: ValueId, attrs: Attrs) -> tuple[ValueId, ValueId]:
    """The maxima, and where they stand in x."""
    pads, options = _pool_attrs(b, x, attrs)
    return b.pair("pool_max", x, pads, **options)


def average(b: Core, x: ValueId, attrs: Attrs) -> ValueId:
    """Sum over count, axis by axis; where every window counts its whole kernel, by one number."""
    slides = _pool_windows(b, x, attrs)
    padding = bool(attrs.get("count_include_pad", 0))
    y, whole = pool_sum(b, x, attrs), 1
    for place, slide in enumerate(slides):
        if not _rounds_up(attrs) and (padding or (slide.before, slide.after) == (0, 0)):
            whole *= int(attrs["kernel_shape"][place])
            continue
        count = b.shape(y)[2 + place]  # the same number as the window's, by the dim that y has
        counts = b.cast(_counts(b, slide, count, padding), b.dtype(y))
        y = b.div(y, b.reshape(counts, [count, *(1,) * (len(slides) - 1 - place)]))
    return y if whole == 1 else b.div(y, b.like(whole, y))


def _counts(b: Core, s: Window, count: Dim, padding: bool) -> ValueId:
    """How many kernel offsets each window has in the counted range: those below its end less those below its start."""
    before, after = (s.before, s.after) if padding else (0, 0)
    places = b.iota([count], 0)
    starts = b.sub(b.mul(places, b.like(s.stride, places)), b.scalar(s.before, DType.I64))
    end, start = (_below(b, s, starts, edge) for edge in (b.dims.add(s.size, after), b.dims.sub(0, before)))
    return b.sub(end, start)


def _below(b: Core, s: Window, starts: ValueId, edge: Dim) -> ValueId:
    """min(ceil(max(edge - start, 0) / dilation), kernel)"""
    room = b.max(b.sub(b.scalar(edge, DType.I64), starts), b.like(0, starts))
    taps = b.div(b.add(room, b.like(s.dilation - 1, starts)), b.like(s.dilation, starts))
    return b.min(taps, b.scalar(s.kernel, DType.I64))


def _pooled(b: Core, n: Node) -> ValueId:
    """What a pool reads; its kernel says how many axes that has."""
    kernel = n.attrs.get("kernel_shape")
    return b.input(n) if kernel is None else ranked(b, b.input(n), len(kernel) + 2)


def _rounded(function: Callable[[Core, ValueId, Attrs], ValueId]) -> Decomposition:
    """Computed in f32 or better, rounded once."""

    def decomposition(b: Core, n: Node) -> ValueId:
        x = _pooled(b, n)
        return b.cast(function(b, b.wide(x), n.attrs), b.dtype(x))

    return decomposition


def _max_pool(b: Core, n: Node) -> tuple[ValueId, ValueId]:
    x = _pooled(b, n)
    values, index = pool_max(b, x, n.attrs)
    wanted = len(n.outputs) > 1 and n.outputs[1] is not None
    return values, _column_major(b, x, index) if wanted and n.attrs.get("storage_order", 0) == 1 else index


def _column_major(b: Core, x: ValueId, index: ValueId) -> ValueId:
    """Flat positions with the first spatial axis fastest; -1, the place of nothing, stays."""
    sizes = b.shape(x)[2:]
    plane = b.scalar(b.dims.product(sizes), DType.I64)
    result = b.mul(b.div(index, plane), plane)
    rest = index
    for axis in reversed(range(len(sizes))):
        size = b.scalar(sizes[axis], DType.I64)
        place, rest = b.op("mod", rest, size), b.div(rest, size)
        result = b.add(result, b.mul(place, b.scalar(b.dims.product(sizes[:axis]), DType.I64)))
    return b.select(b.lt(index, b.like(0, index)), index, result)


def _power(b: Core, x: ValueId, p: int) -> ValueId:
    size = b.abs(x)
    return size if p == 1 else b.mul(size, size) if p == 2 else b.op("pow", size, b.like(p, size))


def _root(b: Core, total: ValueId, p: int) -> ValueId:
    return total if p == 1 else b.sqrt(total) if p == 2 else b.op("pow", total, b.like(1 / p, total))


def _lp(b: Core, x: ValueId, attrs: Attrs) -> ValueId:
    return _root(b, pool_sum(b, _power(b, x, attrs["p"]), attrs), attrs["p"])


def _spatial(b: Core, x: ValueId) -> range:
    return range(2, b.rank(x))


def _global_lp(b: Core, x: ValueId, attrs: Attrs) -> ValueId:
    return _root(b, b.reduce("sum", _power(b, x, attrs["p"]), _spatial(b, x)), attrs["p"])


def _global_max(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    return b.reduce("max", x, _spatial(b, x))


def _max_unpool(b: Core, n: Node) -> ValueId:
    """Scattered into zeros of the size that the attributes give; a larger wanted size gets zeros behind."""
    x, indices, wanted = b.input(n), b.input(n, 1), b.given(n, 2)
    batch, channels, *sizes = b.shape(x)
    kernel = per_axis(n.attrs, "kernel_shape", len(sizes), 1, least=1)
    shape = [batch, channels, *(window.size for window in transposed_windows(b.dims, n.attrs, sizes, kernel))]
    count = [b.dims.product(b.shape(x))]
    zeros = b.broadcast(b.like(0, x), [b.dims.product(shape)])
    places, values = b.reshape(indices, count), b.reshape(x, count)
    y = b.reshape(b.op("scatter_elements", zeros, places, values, axis=0, reduction="none"), shape)
    if wanted is None:
        return y
    rows = zip(b.elems(wanted, "the shape of the result"), shape, strict=True)
    return _lengthened(b, y, [b.dims.sub(want, have) for want, have in rows])


NN: dict[str, Decomposition] = {
    "onnx.AveragePool": _rounded(average),
    "onnx.CausalConvWithState": _causal_conv,
    "onnx.Conv": _conv,
    "onnx.ConvTranspose": _conv_transpose,
    "onnx.GlobalAveragePool": _rounded(lambda b, x, a: b.mean(x, _spatial(b, x))),
    "onnx.GlobalLpPool": _rounded(_global_lp),
    "onnx.GlobalMaxPool": _global_max,
    "onnx.LpPool": _rounded(_lp),
    "onnx.MaxPool": _max_pool,
    "onnx.MaxUnpool": _max_unpool,
}
