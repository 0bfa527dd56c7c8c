"""Type rules of the core ops (`core.py` has the table): strict, and every size a dim."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierup.ir.dims import DimBuilder, DimError
from tierup.ir.infer import CONTENT_LIMIT, Infer, InferError, Out, Rule
from tierup.ir.ops.core_demands import (
    Content,
    axes_of,
    axis_of,
    demand,
    i64_vector,
    indices_shape,
    known_rank,
    pads_of,
    same_dtype,
)
from tierup.ir.types import Dim, DType, Shape, dtype_from_code

ContentRule = Callable[..., Dim]


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
        dtype = same_dtype(ctx, range(arity))
        demand(ctx, dtype, kinds)
        shape = ctx.broadcast(*(ctx.shape(i) for i in range(arity)))
        out = result or dtype
        return [Out(out, shape, content and _map_content(ctx, content, range(arity), shape, out))]

    return rule


def select(ctx: Infer) -> list[Out]:
    if ctx.dtype(0) is not DType.BOOL:
        raise InferError(f"the condition must be bool, but is {ctx.dtype(0)!r}")
    dtype = same_dtype(ctx, (1, 2))
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
        dtype, shape = ctx.dtype(0), known_rank(ctx, 0)
        demand(ctx, dtype, kinds)
        axes = axes_of(ctx, len(shape))
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
    shape = known_rank(ctx, 0)
    demand(ctx, ctx.dtype(0), "fi")
    return [Out(DType.I64, _reduced(ctx, (axis_of(ctx, len(shape)),), shape))]


def along(ctx: Infer) -> list[Out]:
    shape = known_rank(ctx, 0)
    axis_of(ctx, len(shape))
    demand(ctx, ctx.dtype(0), "fi")
    return [Out(ctx.dtype(0), shape)]


def reshape(ctx: Infer) -> list[Out]:
    sizes, shape = i64_vector(ctx, 1), ctx.shape(0)
    if sizes is not None and shape is not None and all(isinstance(dim, int) for dim in (*sizes, *shape)):
        before, after = ctx.dims.product(shape), ctx.dims.product(sizes)
        if before != after:
            raise InferError(f"{before} elements cannot take the shape {list(sizes)}")
    content = ctx.content(0) if sizes is not None and len(sizes) <= 1 else None
    return [Out(ctx.dtype(0), sizes, content)]


def transpose(ctx: Infer) -> list[Out]:
    shape, perm = known_rank(ctx, 0), tuple(ctx.attrs["perm"])
    if sorted(perm) != list(range(len(shape))):
        raise InferError(f"{perm} is no order of {len(shape)} axes")
    return [Out(ctx.dtype(0), tuple(shape[axis] for axis in perm), ctx.content(0) if len(perm) <= 1 else None)]


def broadcast(ctx: Infer) -> list[Out]:
    sizes, shape = i64_vector(ctx, 1), ctx.shape(0)
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
    shape = list(known_rank(ctx, 0))
    axes, steps = axes_of(ctx, len(shape)), tuple(ctx.attrs["steps"])
    starts, ends = i64_vector(ctx, 1, len(axes)), i64_vector(ctx, 2, len(axes))
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
    shape = known_rank(ctx, 0)
    same_dtype(ctx, (0, 2))
    if ctx.attrs["mode"] not in PAD_MODES:
        raise InferError(f"there is no pad mode '{ctx.attrs['mode']}'")
    if ctx.shape(2) not in ((), None):
        raise InferError("the value to pad with must be a scalar")
    rank = len(shape)
    pads = pads_of(ctx, 1, rank)
    return [Out(ctx.dtype(0), tuple(ctx.dims.sum((pads[i], dim, pads[rank + i])) for i, dim in enumerate(shape)))]


def concat(ctx: Infer) -> list[Out]:
    indices = range(len(ctx.inputs))
    dtype = same_dtype(ctx, indices)
    shapes = [known_rank(ctx, i) for i in indices]
    rank = len(shapes[0])
    axis = axis_of(ctx, rank)
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


def _picked(content: Content, where: Content) -> Content | None:
    numbers = [i for i in where if isinstance(i, int) and 0 <= i < len(content)]
    return tuple(content[i] for i in numbers) if len(numbers) == len(where) else None


def gather(ctx: Infer) -> list[Out]:
    shape, indices = known_rank(ctx, 0), indices_shape(ctx, 1)
    axis = axis_of(ctx, len(shape))
    content, where = ctx.content(0), ctx.content(1)
    picked = _picked(content, where) if content is not None and where is not None and len(indices) <= 1 else None
    return [Out(ctx.dtype(0), (*shape[:axis], *indices, *shape[axis + 1 :]), picked)]


def gather_elements(ctx: Infer) -> list[Out]:
    shape, indices = known_rank(ctx, 0), indices_shape(ctx, 1)
    axis_of(ctx, len(shape))
    if len(shape) != len(indices):
        raise InferError("data and indices must have one rank")
    return [Out(ctx.dtype(0), indices)]


def _last(shape: Shape, what: str) -> int:
    if not shape or not isinstance(shape[-1], int):
        raise InferError(f"the last size of {what} must be a number, since the rank of the result depends on it")
    return shape[-1]


def gather_nd(ctx: Infer) -> list[Out]:
    shape, indices, batch = known_rank(ctx, 0), indices_shape(ctx, 1), ctx.attrs["batch_dims"]
    depth = _last(indices, "the indices")
    if not 0 <= batch < len(indices) or batch + depth > len(shape):
        raise InferError(f"indices of depth {depth} after {batch} batch axes do not fit a tensor of rank {len(shape)}")
    return [Out(ctx.dtype(0), (*indices[:-1], *shape[batch + depth :]))]


REDUCTIONS = ("none", "add", "mul", "min", "max")


def scatter(ctx: Infer) -> list[Out]:
    dtype, shape, _ = same_dtype(ctx, (0, 2)), known_rank(ctx, 0), indices_shape(ctx, 1)
    if ctx.attrs["reduction"] not in REDUCTIONS:
        raise InferError(f"there is no reduction '{ctx.attrs['reduction']}'")
    if ctx.op == "core.scatter_elements":
        axis_of(ctx, len(shape))
        if not len(shape) == len(known_rank(ctx, 1)) == len(known_rank(ctx, 2)):
            raise InferError("data, indices and updates must have one rank")
    return [Out(dtype, shape)]


def iota(ctx: Infer) -> list[Out]:
    sizes, dtype = i64_vector(ctx, 0), dtype_from_code(ctx.attrs["dtype"])
    if sizes is None or dtype is None:
        raise InferError("iota needs a shape with a known number of elements, and a dtype")
    axis_of(ctx, len(sizes))
    demand(ctx, dtype, "fi")
    count = sizes[0] if len(sizes) == 1 and dtype.is_integer else None
    small = isinstance(count, int) and 0 <= count <= CONTENT_LIMIT and _fits(max(count - 1, 0), dtype)
    return [Out(dtype, sizes, tuple(range(count)) if small and isinstance(count, int) else None)]


def shape_of(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    return [Out(DType.I64, (None,) if shape is None else (len(shape),), shape)]


def nonzero(ctx: Infer) -> list[Out]:
    return [Out(DType.I64, (len(known_rank(ctx, 0)), None))]


def topk(ctx: Infer) -> list[Out]:
    shape = list(known_rank(ctx, 0))
    demand(ctx, ctx.dtype(0), "fi")
    axis, k = axis_of(ctx, len(shape)), i64_vector(ctx, 1, 1)
    if k is None:
        raise InferError("k must have one element")
    size = shape[axis]
    if isinstance(k[0], int) and isinstance(size, int) and not 0 <= k[0] <= size:
        raise InferError(f"k is {k[0]}, but axis {axis} has {size} elements")
    shape[axis] = k[0]
    return [Out(ctx.dtype(0), tuple(shape)), Out(DType.I64, tuple(shape))]


def top_places(ctx: Infer) -> list[Out]:
    shape = known_rank(ctx, 0)
    demand(ctx, ctx.dtype(0), "fi")
    if not shape:
        raise InferError("there is no axis")
    k, size = int(ctx.attrs["k"]), shape[-1]
    if k < 0 or (isinstance(size, int) and k > size):
        raise InferError(f"k is {k}, but the last axis has {size} elements")
    return [Out(DType.I64, (*shape[:-1], k))]


def resize(ctx: Infer) -> list[Out]:
    rank = len(known_rank(ctx, 0))
    sizes = i64_vector(ctx, 1, rank)
    if sizes is None:
        raise InferError("the sizes need a known number of elements")
    return [Out(ctx.dtype(0), sizes)]
