"""Type rules of the core ops (`core.py` has the table): strict, and every size a dim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from tierup.ir.dims import DimBuilder, DimError
from tierup.ir.infer import CONTENT_LIMIT, Infer, InferError, Out, Rule
from tierup.ir.types import Dim, DType, Shape, dtype_from_code

Content = tuple[Dim, ...]
ContentRule = Callable[..., Dim]


def _same_dtype(ctx: Infer, indices: Sequence[int]) -> DType:
    dtypes = [ctx.dtype(i) for i in indices]
    for a, b in pairwise(dtypes):
        if a is not b:
            raise InferError(f"the core ops do not promote, but the inputs are {a!r} and {b!r}")
    return dtypes[0]


def _demand(ctx: Infer, dtype: DType, kinds: str) -> None:
    """`kinds` holds f (floats), i (integers), b (bool): what the op is defined for."""
    fits = ("f" in kinds and dtype.is_float) or ("i" in kinds and dtype.is_integer)
    if not fits and not ("b" in kinds and dtype is DType.BOOL):
        raise InferError(f"{ctx.op} is not defined for {dtype!r}")


def _i64_vector(ctx: Infer, index: int, count: int | None = None) -> Content | None:
    """The dims in a 1-d i64 input; None where even their number is unknown."""
    if ctx.dtype(index) is not DType.I64 or ctx.rank(index) not in (1, None):
        raise InferError(f"input {index} must be a vector of i64, but is {ctx.tensor(index)!r}")
    elems = ctx.elems(index)
    if elems is not None and count is not None and len(elems) != count:
        raise InferError(f"input {index} must have {count} elements, but has {len(elems)}")
    return elems


def _known_rank(ctx: Infer, index: int) -> Shape:
    shape = ctx.shape(index)
    if shape is None:
        raise InferError(f"{ctx.op} needs input {index} with a known rank")
    return shape


def _axis(ctx: Infer, rank: int, name: str = "axis") -> int:
    axis = ctx.attrs.get(name)
    if not isinstance(axis, int) or not 0 <= axis < rank:
        raise InferError(f"{name} {axis} is outside a tensor of rank {rank}")
    return axis


def _axes(ctx: Infer, rank: int) -> tuple[int, ...]:
    axes = tuple(ctx.attrs["axes"])
    if any(not isinstance(axis, int) or not 0 <= axis < rank for axis in axes) or len(set(axes)) != len(axes):
        raise InferError(f"axes {axes} do not fit a tensor of rank {rank}")
    return axes


def _map_content(
    ctx: Infer, rule: ContentRule, indices: Sequence[int], shape: Shape | None, dtype: DType
) -> Content | None:
    """The integers of a map's result, where those of its inputs are known and none leaves the dtype's range."""
    if shape is None or len(shape) > 1 or not (dtype.is_integer or dtype is DType.BOOL):
        return None
    count = shape[0] if shape else 1
    contents = [ctx.content(i) for i in indices]
    if (
        not isinstance(count, int)
        or count > CONTENT_LIMIT
        or any(c is None or len(c) not in (1, count) for c in contents)
    ):
        return None
    rows = [[c[i if len(c) > 1 else 0] for c in contents if c is not None] for i in range(count)]
    try:
        result = tuple(rule(ctx.dims, *row) for row in rows)
    except DimError:
        return None  # the arithmetic wraps or divides by zero: only the value itself can tell
    return result if all(not isinstance(d, int) or _fits(d, dtype) for d in result) else None


def _fits(number: int, dtype: DType) -> bool:
    if dtype is DType.BOOL:
        return number in (0, 1)
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return low <= number < low + (1 << dtype.bits)


def map_(kinds: str, arity: int, content: ContentRule | None = None, result: DType | None = None) -> Rule:
    """A map of `arity` equal dtypes under broadcasting; its result has the same dtype, or `result`."""

    def rule(ctx: Infer) -> list[Out]:
        dtype = _same_dtype(ctx, range(arity))
        _demand(ctx, dtype, kinds)
        shape = ctx.broadcast(*(ctx.shape(i) for i in range(arity)))
        out = result or dtype
        return [Out(out, shape, content and _map_content(ctx, content, range(arity), shape, out))]

    return rule


def select(ctx: Infer) -> list[Out]:
    if ctx.dtype(0) is not DType.BOOL:
        raise InferError(f"the condition must be bool, but is {ctx.dtype(0)!r}")
    dtype = _same_dtype(ctx, (1, 2))
    shape = ctx.broadcast(ctx.shape(0), ctx.shape(1), ctx.shape(2))
    return [Out(dtype, shape, _map_content(ctx, lambda d, c, a, b: d.select(c, a, b), range(3), shape, dtype))]


def _target(ctx: Infer) -> DType:
    dtype = dtype_from_code(ctx.attrs["to"])
    if dtype is None or dtype is DType.STR or ctx.dtype(0) is DType.STR:
        raise InferError(f"{ctx.op} goes from {ctx.dtype(0)!r} to dtype number {ctx.attrs['to']}, which is not numeric")
    return dtype


def cast(ctx: Infer) -> list[Out]:
    source, target, shape = ctx.dtype(0), _target(ctx), ctx.shape(0)
    content: Content | None = None
    if target is DType.BOOL:
        content = _map_content(ctx, lambda d, a: d.sub(1, d.emit("eq", a, 0)), (0,), shape, target)
    elif (source.is_integer and target.bits >= 32) or source is DType.BOOL:
        content = _map_content(ctx, lambda _, a: a, (0,), shape, target)
    return [Out(target, shape, content)]


def bitcast(ctx: Infer) -> list[Out]:
    target = _target(ctx)
    if target.bits != ctx.dtype(0).bits:
        raise InferError(f"{ctx.dtype(0)!r} and {target!r} differ in size")
    return [Out(target, ctx.shape(0))]


def _reduced(ctx: Infer, axes: Sequence[int], shape: Shape) -> tuple[Dim, ...]:
    if ctx.attrs["keepdims"]:
        return tuple(1 if i in axes else dim for i, dim in enumerate(shape))
    return tuple(dim for i, dim in enumerate(shape) if i not in axes)


def reduce(kinds: str, content: Callable[[DimBuilder, Sequence[Dim]], Dim] | None = None) -> Rule:
    def rule(ctx: Infer) -> list[Out]:
        dtype, shape = ctx.dtype(0), _known_rank(ctx, 0)
        _demand(ctx, dtype, kinds)
        axes = _axes(ctx, len(shape))
        known = ctx.content(0) if content and dtype.is_integer and axes == (0,) else None
        try:
            total = None if content is None or known is None else (content(ctx.dims, known),)
        except DimError:
            total = None
        if total is not None and isinstance(total[0], int) and not _fits(total[0], dtype):
            total = None
        return [Out(dtype, _reduced(ctx, axes, shape), total)]

    return rule


def arg_reduce(ctx: Infer) -> list[Out]:
    shape = _known_rank(ctx, 0)
    _demand(ctx, ctx.dtype(0), "fi")
    return [Out(DType.I64, _reduced(ctx, (_axis(ctx, len(shape)),), shape))]


def along(ctx: Infer) -> list[Out]:
    shape = _known_rank(ctx, 0)
    _axis(ctx, len(shape))
    _demand(ctx, ctx.dtype(0), "fi")
    return [Out(ctx.dtype(0), shape)]


def reshape(ctx: Infer) -> list[Out]:
    sizes, shape = _i64_vector(ctx, 1), ctx.shape(0)
    if sizes is not None and shape is not None and all(isinstance(dim, int) for dim in (*sizes, *shape)):
        before, after = ctx.dims.product(shape), ctx.dims.product(sizes)
        if before != after:
            raise InferError(f"{before} elements cannot take the shape {list(sizes)}")
    content = ctx.content(0) if sizes is not None and len(sizes) <= 1 else None
    return [Out(ctx.dtype(0), sizes, content)]


def transpose(ctx: Infer) -> list[Out]:
    shape, perm = _known_rank(ctx, 0), tuple(ctx.attrs["perm"])
    if sorted(perm) != list(range(len(shape))):
        raise InferError(f"{perm} is no order of {len(shape)} axes")
    return [Out(ctx.dtype(0), tuple(shape[axis] for axis in perm), ctx.content(0) if len(perm) <= 1 else None)]


def broadcast(ctx: Infer) -> list[Out]:
    sizes, shape = _i64_vector(ctx, 1), ctx.shape(0)
    if sizes is not None and shape is not None:
        if len(shape) > len(sizes):
            raise InferError(f"a tensor of rank {len(shape)} does not broadcast to {list(sizes)}")
        for have, want in zip(reversed(shape), reversed(sizes), strict=False):
            if isinstance(have, int) and isinstance(want, int) and have not in (1, want):
                raise InferError(f"size {have} does not broadcast to {want}")
    content = None if sizes is None else _map_content(ctx, lambda _, a: a, (0,), sizes, ctx.dtype(0))
    return [Out(ctx.dtype(0), sizes, content)]


def _sliced(content: Content, start: Dim, end: Dim, step: int) -> Content | None:
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    return content[start : None if end < 0 else end : step]


def slice_(ctx: Infer) -> list[Out]:
    shape = list(_known_rank(ctx, 0))
    axes, steps = _axes(ctx, len(shape)), tuple(ctx.attrs["steps"])
    starts, ends = _i64_vector(ctx, 1, len(axes)), _i64_vector(ctx, 2, len(axes))
    if len(steps) != len(axes) or 0 in steps:
        raise InferError(f"steps {steps} do not fit axes {axes}")
    if starts is None or ends is None:
        raise InferError("starts and ends need a known number of elements")
    content = ctx.content(0)
    if axes and content is not None:
        content = _sliced(content, starts[0], ends[0], steps[0])
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        low, high = (start, end) if step > 0 else (end, start)
        shape[axis] = ctx.dims.ceildiv(ctx.dims.sub(high, low), abs(step))
    return [Out(ctx.dtype(0), tuple(shape), content)]


PAD_MODES = ("constant", "edge", "reflect", "wrap")


def pad(ctx: Infer) -> list[Out]:
    shape = _known_rank(ctx, 0)
    _same_dtype(ctx, (0, 2))
    if ctx.attrs["mode"] not in PAD_MODES:
        raise InferError(f"there is no pad mode '{ctx.attrs['mode']}'")
    if ctx.shape(2) not in ((), None):
        raise InferError("the value to pad with must be a scalar")
    rank = len(shape)
    pads = _pads(ctx, 1, rank)
    return [Out(ctx.dtype(0), tuple(ctx.dims.sum((pads[i], dim, pads[rank + i])) for i, dim in enumerate(shape)))]


def _pads(ctx: Infer, index: int, spatial: int) -> Content:
    pads = _i64_vector(ctx, index, 2 * spatial)
    if pads is None:
        raise InferError("pads need a known number of elements")
    if any(isinstance(pad, int) and pad < 0 for pad in pads):
        raise InferError(f"pads must not be negative: {list(pads)}")
    return pads


def concat(ctx: Infer) -> list[Out]:
    indices = range(len(ctx.inputs))
    dtype = _same_dtype(ctx, indices)
    shapes = [_known_rank(ctx, i) for i in indices]
    rank = len(shapes[0])
    axis = _axis(ctx, rank)
    for shape in shapes:
        if len(shape) != rank:
            raise InferError("the inputs of a concat must have one rank")
        for i, (a, b) in enumerate(zip(shapes[0], shape, strict=True)):
            if i != axis and isinstance(a, int) and isinstance(b, int) and a != b:
                raise InferError(f"sizes {a} and {b} differ on axis {i}, which is not the axis {axis} of the concat")
    sizes = list(shapes[0])
    sizes[axis] = ctx.dims.sum([shape[axis] for shape in shapes])
    contents = [ctx.content(i) for i in indices]
    content = None if any(c is None for c in contents) else tuple(dim for c in contents if c for dim in c)
    return [Out(dtype, tuple(sizes), content if rank == 1 else None)]


def _indices(ctx: Infer, index: int) -> Shape:
    if ctx.dtype(index) not in (DType.I32, DType.I64):
        raise InferError(f"indices must be i32 or i64, but are {ctx.dtype(index)!r}")
    return _known_rank(ctx, index)


def _picked(content: Content, where: Content) -> Content | None:
    numbers = [i for i in where if isinstance(i, int) and 0 <= i < len(content)]
    return tuple(content[i] for i in numbers) if len(numbers) == len(where) else None


def gather(ctx: Infer) -> list[Out]:
    shape, indices = _known_rank(ctx, 0), _indices(ctx, 1)
    axis = _axis(ctx, len(shape))
    content, where = ctx.content(0), ctx.content(1)
    picked = _picked(content, where) if content is not None and where is not None and len(indices) <= 1 else None
    return [Out(ctx.dtype(0), (*shape[:axis], *indices, *shape[axis + 1 :]), picked)]


def gather_elements(ctx: Infer) -> list[Out]:
    shape, indices = _known_rank(ctx, 0), _indices(ctx, 1)
    _axis(ctx, len(shape))
    if len(shape) != len(indices):
        raise InferError("data and indices must have one rank")
    return [Out(ctx.dtype(0), indices)]


def _last(shape: Shape, what: str) -> int:
    if not shape or not isinstance(shape[-1], int):
        raise InferError(f"the last size of {what} must be a number, since the rank of the result depends on it")
    return shape[-1]


def gather_nd(ctx: Infer) -> list[Out]:
    shape, indices, batch = _known_rank(ctx, 0), _indices(ctx, 1), ctx.attrs["batch_dims"]
    depth = _last(indices, "the indices")
    if not 0 <= batch < len(indices) or batch + depth > len(shape):
        raise InferError(f"indices of depth {depth} after {batch} batch axes do not fit a tensor of rank {len(shape)}")
    return [Out(ctx.dtype(0), (*indices[:-1], *shape[batch + depth :]))]


REDUCTIONS = ("none", "add", "mul", "min", "max")


def scatter(ctx: Infer) -> list[Out]:
    dtype, shape, _ = _same_dtype(ctx, (0, 2)), _known_rank(ctx, 0), _indices(ctx, 1)
    if ctx.attrs["reduction"] not in REDUCTIONS:
        raise InferError(f"there is no reduction '{ctx.attrs['reduction']}'")
    if ctx.op == "core.scatter_elements":
        _axis(ctx, len(shape))
        if not len(shape) == len(_known_rank(ctx, 1)) == len(_known_rank(ctx, 2)):
            raise InferError("data, indices and updates must have one rank")
    return [Out(dtype, shape)]


def iota(ctx: Infer) -> list[Out]:
    sizes, dtype = _i64_vector(ctx, 0), dtype_from_code(ctx.attrs["dtype"])
    if sizes is None or dtype is None:
        raise InferError("iota needs a shape with a known number of elements, and a dtype")
    _axis(ctx, len(sizes))
    _demand(ctx, dtype, "fi")
    count = sizes[0] if len(sizes) == 1 and dtype.is_integer else None
    small = isinstance(count, int) and 0 <= count <= CONTENT_LIMIT and _fits(max(count - 1, 0), dtype)
    return [Out(dtype, sizes, tuple(range(count)) if small and isinstance(count, int) else None)]


def shape_of(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    return [Out(DType.I64, (None,) if shape is None else (len(shape),), shape)]


def nonzero(ctx: Infer) -> list[Out]:
    return [Out(DType.I64, (len(_known_rank(ctx, 0)), None))]


def topk(ctx: Infer) -> list[Out]:
    shape = list(_known_rank(ctx, 0))
    _demand(ctx, ctx.dtype(0), "fi")
    axis, k = _axis(ctx, len(shape)), _i64_vector(ctx, 1, 1)
    if k is None:
        raise InferError("k must have one element")
    size = shape[axis]
    if isinstance(k[0], int) and isinstance(size, int) and not 0 <= k[0] <= size:
        raise InferError(f"k is {k[0]}, but axis {axis} has {size} elements")
    shape[axis] = k[0]
    return [Out(ctx.dtype(0), tuple(shape)), Out(DType.I64, tuple(shape))]


def top_places(ctx: Infer) -> list[Out]:
    shape = _known_rank(ctx, 0)
    _demand(ctx, ctx.dtype(0), "fi")
    if not shape:
        raise InferError("there is no axis")
    k, size = int(ctx.attrs["k"]), shape[-1]
    if k < 0 or (isinstance(size, int) and k > size):
        raise InferError(f"k is {k}, but the last axis has {size} elements")
    return [Out(DType.I64, (*shape[:-1], k))]


_BYTES = (DType.I8, DType.U8)


def _dot_dtype(ctx: Infer) -> DType:
    """Bytes, signed or not on either side, accumulate and answer in i32; everything else in its own dtype."""
    if ctx.dtype(0) in _BYTES and ctx.dtype(1) in _BYTES:
        return DType.I32
    dtype = _same_dtype(ctx, (0, 1))
    _demand(ctx, dtype, "fi")
    return dtype


def _wide_dtype(ctx: Infer, dtype: DType) -> DType:
    """What a product answers in: f32 where it says so of bf16."""
    if "to" not in ctx.attrs:
        return dtype
    if dtype is not DType.BF16 or ctx.attrs["to"] != DType.F32.code:
        raise InferError(f"a product of {dtype!r} cannot answer in dtype number {ctx.attrs['to']}")
    return DType.F32


def _agree(a: Dim, b: Dim, what: str) -> None:
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise InferError(f"{what}: {a} is not {b}")


def matmul(ctx: Infer) -> list[Out]:
    a, b = _known_rank(ctx, 0), _known_rank(ctx, 1)
    if len(a) < 2 or len(b) < 2:
        raise InferError("both sides of a matmul must have at least two axes")
    _agree(a[-1], b[-2], "the columns of the left side must be the rows of the right side")
    batch = ctx.broadcast(a[:-2], b[:-2]) or ()
    return [Out(_wide_dtype(ctx, _dot_dtype(ctx)), (*batch, a[-2], b[-1]))]


def matmul_blocks(ctx: Infer) -> list[Out]:
    a, w, scales = (_known_rank(ctx, number) for number in range(3))
    if len(a) < 2 or len(w) != 2 or len(scales) != 2:
        raise InferError("a scaled product takes at least two axes by two by two")
    block, size = int(ctx.attrs["block"]), w[0]
    if ctx.dtype(0) is not DType.F32 or ctx.dtype(2) is not DType.F32 or ctx.dtype(1) not in (*_BYTES, DType.I16):
        raise InferError("a scaled product is of f32 by small integers with scales of f32")
    if not isinstance(size, int) or block < 1 or size % block:
        raise InferError(f"{size} rows are no whole blocks of {block}")
    _agree(a[-1], size, "the columns of the left side must be the rows of the right side")
    _agree(scales[0], size // block, "each block of rows must have a row of scales")
    _agree(scales[1], w[1], "each column must have a scale")
    return [Out(DType.F32, (*a[:-1], w[1]))]


def _window_attrs(ctx: Infer, spatial: int, *names: str) -> list[tuple[int, ...]]:
    rows = [tuple(ctx.attrs[name]) for name in names]
    for name, row in zip(names, rows, strict=True):
        if len(row) != spatial or any(number < (0 if name == "output_padding" else 1) for number in row):
            raise InferError(f"{name} {row} does not fit {spatial} spatial axes")
    return rows


def window(dims: DimBuilder, size: Dim, kernel: Dim, stride: int, dilation: int, pads: tuple[Dim, Dim]) -> Dim:
    """Places of a window on a padded axis: (begin + size + end - (kernel - 1) * dilation - 1) // stride + 1."""
    extent = dims.add(dims.mul(dims.sub(kernel, 1), dilation), 1)
    room = dims.sub(dims.sum((pads[0], size, pads[1])), extent)
    return dims.add(dims.floordiv(room, stride), 1)


def conv(ctx: Infer) -> list[Out]:
    x, w = _known_rank(ctx, 0), _known_rank(ctx, 1)
    spatial, group = len(x) - 2, ctx.attrs["group"]
    if spatial < 1 or len(w) != len(x) or group < 1:
        raise InferError(f"a convolution of rank {len(x)} by rank {len(w)} in {group} groups is not possible")
    _agree(x[1], ctx.dims.mul(w[1], group), "channels and the kernel's channels times groups must agree")
    strides, dilations = _window_attrs(ctx, spatial, "strides", "dilations")
    pads = _pads(ctx, 2, spatial)
    sizes = (
        window(ctx.dims, x[2 + i], w[2 + i], strides[i], dilations[i], (pads[i], pads[spatial + i]))
        for i in range(spatial)
    )
    return [Out(_conv_dtype(ctx), (x[0], w[0], *sizes))]


def _conv_dtype(ctx: Infer) -> DType:
    """As a product's. What is around the data stands for zero: another number than 0 only around bytes."""
    dtype = _dot_dtype(ctx)
    if ctx.attrs.get("fill", 0) and dtype is not DType.I32:
        raise InferError("only a convolution of bytes takes another number than 0 for its padding")
    return _wide_dtype(ctx, dtype)


def conv_last(ctx: Infer) -> list[Out]:
    x, w = _known_rank(ctx, 0), _known_rank(ctx, 1)
    spatial, group = len(x) - 2, ctx.attrs["group"]
    if spatial < 1 or len(w) != 2 or group < 1:
        raise InferError(f"a convolution of rank {len(x)} by rank {len(w)} in {group} groups is not possible")
    kernel, strides, dilations = _window_attrs(ctx, spatial, "kernel_shape", "strides", "dilations")
    terms = ctx.dims.mul(w[0], group)
    _agree(ctx.dims.mul(x[-1], math.prod(kernel)), terms, "places times channels and rows of w times groups must agree")
    pads = _pads(ctx, 2, spatial)
    sizes = (
        window(ctx.dims, x[1 + i], kernel[i], strides[i], dilations[i], (pads[i], pads[spatial + i]))
        for i in range(spatial)
    )
    return [Out(_conv_dtype(ctx), (x[0], *sizes, w[1]))]


def conv_transpose(ctx: Infer) -> list[Out]:
    x, w = _known_rank(ctx, 0), _known_rank(ctx, 1)
    spatial, group, dims = len(x) - 2, ctx.attrs["group"], ctx.dims
    if spatial < 1 or len(w) != len(x) or group < 1:
        raise InferError(f"a convolution of rank {len(x)} by rank {len(w)} in {group} groups is not possible")
    _agree(x[1], w[0], "channels and the kernel's channels must agree")
    strides, dilations, extra = _window_attrs(ctx, spatial, "strides", "dilations", "output_padding")
    pads = _pads(ctx, 2, spatial)
    sizes: list[Dim] = []
    for i in range(spatial):
        whole = dims.mul(dims.sub(x[2 + i], 1), strides[i])
        whole = dims.sum((whole, dims.mul(dims.sub(w[2 + i], 1), dilations[i]), 1 + extra[i]))
        sizes.append(dims.sub(whole, dims.add(pads[i], pads[spatial + i])))
    return [Out(_dot_dtype(ctx), (x[0], dims.mul(w[1], group), *sizes))]


def pool(ctx: Infer) -> list[Out]:
    x = _known_rank(ctx, 0)
    spatial = len(x) - 2
    if spatial < 1:
        raise InferError("a pool needs batch, channels and at least one more axis")
    _demand(ctx, ctx.dtype(0), "fi")
    kernel, strides, dilations = _window_attrs(ctx, spatial, "kernel_shape", "strides", "dilations")
    pads = _pads(ctx, 1, spatial)
    sizes = tuple(
        window(ctx.dims, x[2 + i], kernel[i], strides[i], dilations[i], (pads[i], pads[spatial + i]))
        for i in range(spatial)
    )
    values = Out(ctx.dtype(0), (*x[:2], *sizes))
    return [values] if ctx.op == "core.pool_sum" else [values, Out(DType.I64, (*x[:2], *sizes))]


def resize(ctx: Infer) -> list[Out]:
    rank = len(_known_rank(ctx, 0))
    sizes = _i64_vector(ctx, 1, rank)
    if sizes is None:
        raise InferError("the sizes need a known number of elements")
    return [Out(ctx.dtype(0), sizes)]


def recurrent(gates: int, weights: int, states: tuple[int, ...]) -> Rule:
    """Inputs: gates[T, B, gates * H], recurrent weights[H, gates * H] at `weights`, states[B, H]; lengths[B] last."""

    def rule(ctx: Infer) -> list[Out]:
        x, r, lengths = _known_rank(ctx, 0), _known_rank(ctx, weights), _indices(ctx, len(ctx.inputs) - 1)
        dtype = _same_dtype(ctx, range(len(ctx.inputs) - 1))
        if len(x) != 3 or len(r) != 2 or len(lengths) != 1 or any(len(_known_rank(ctx, i)) != 2 for i in states):
            raise InferError("the ranks must be 3 for the gates, 2 for weights and states, 1 for the lengths")
        hidden = r[0]
        _agree(x[2], ctx.dims.mul(hidden, gates), f"the gates must have {gates} times the hidden size")
        _agree(r[1], ctx.dims.mul(hidden, gates), f"the weights must have {gates} times the hidden size")
        state = Out(dtype, (x[1], hidden))
        return [Out(dtype, (*x[:2], hidden)), *(state for _ in states)]

    return rule
