"""Ops that pick or place elements by index or condition: gathers, scatters, top-k, unique."""

from __future__ import annotations

from tierup.ir.infer import Infer, InferError, Out, PartialShape
from tierup.ir.ops.movement import as_input, replaced
from tierup.ir.ops.row import Op
from tierup.ir.ops.sizes import same
from tierup.ir.types import Dim, DType, Shape

_REDUCTIONS = ("none", "add", "mul", "max", "min")

Content = tuple[Dim, ...]


def _with_rank(ctx: Infer, index: int, rank: int) -> Shape | None:
    shape = ctx.shape(index)
    if shape is not None and len(shape) < rank:
        raise InferError(f"input {index} must have at least rank {rank}, but is {ctx.tensor(index)!r}")
    return shape


def _index(index: int, size: Dim) -> int:
    if isinstance(size, int) and not -size <= index < size:
        raise InferError(f"index {index} is outside an axis of size {size}")
    return index


def _compress(ctx: Infer) -> list[Out]:
    axis, shape = ctx.attrs.get("axis"), _with_rank(ctx, 0, 1)
    picked, content = ctx.ints(1), ctx.content(0)
    count = None if picked is None else sum(map(bool, picked))
    kept = None
    if picked is not None and content is not None and len(picked) <= len(content):
        kept = tuple(dim for dim, keep in zip(content, picked, strict=False) if keep)
    if axis is None:
        return [Out(ctx.dtype(0), (count,), kept)]
    if shape is None:
        return [Out(ctx.dtype(0), None)]
    return [Out(ctx.dtype(0), replaced(shape, {ctx.axis(axis, len(shape)): count}), kept)]


def _gather(ctx: Infer) -> list[Out]:
    data, indices = _with_rank(ctx, 0, 1), ctx.shape(1)
    if data is None or indices is None:
        return [Out(ctx.dtype(0), None)]
    axis = ctx.axis(ctx.attrs.get("axis", 0), len(data))
    return [Out(ctx.dtype(0), (*data[:axis], *indices, *data[axis + 1 :]), _picked(ctx, data[axis]))]


def _picked(ctx: Infer, size: Dim) -> Content | None:
    """What is gathered from a vector whose elements are known."""
    places, content = ctx.content(1), ctx.content(0)
    if places is None:
        return None
    known = [_index(place, size) for place in places if isinstance(place, int)]
    return None if content is None or len(known) < len(places) else tuple(content[place] for place in known)


def _gather_elements(ctx: Infer) -> list[Out]:
    data, indices = _with_rank(ctx, 0, 1), ctx.shape(1)
    _same_rank(ctx, 0, 1)
    if data is not None:
        ctx.axis(ctx.attrs.get("axis", 0), len(data))
    return [Out(ctx.dtype(0), indices)]


def _same_rank(ctx: Infer, first: int, second: int) -> None:
    a, b = ctx.rank(first), ctx.rank(second)
    if a is not None and b is not None and a != b:
        raise InferError(f"inputs {first} and {second} must have one rank, but have {a} and {b}")


def _gather_nd(ctx: Infer) -> list[Out]:
    data, indices, batch = _with_rank(ctx, 0, 1), _with_rank(ctx, 1, 1), ctx.attrs.get("batch_dims", 0)
    depth = _depth(ctx, data, indices, batch)
    if data is None or indices is None or depth is None:
        return [Out(ctx.dtype(0), None)]
    shared = [same(a, b) for a, b in zip(data[:batch], indices[:batch], strict=True)]
    return [Out(ctx.dtype(0), (*shared, *indices[batch:-1], *data[batch + depth :]))]


def _depth(ctx: Infer, data: Shape | None, indices: Shape | None, batch: int) -> int | None:
    """How many axes of the data each index tuple names."""
    if batch < 0 or any(shape is not None and batch >= len(shape) for shape in (data, indices)):
        raise InferError(f"batch_dims {batch} must be under the rank of both inputs")
    depth = None if indices is None else indices[-1]
    if isinstance(depth, int) and data is not None and batch + depth > len(data):
        raise InferError(f"index tuples of {depth} are too long for a tensor of rank {len(data)}")
    return depth if isinstance(depth, int) else None


def _scatter_elements(ctx: Infer) -> list[Out]:
    data = _with_rank(ctx, 0, 1)
    _reduction(ctx)
    _same_rank(ctx, 0, 1)
    _same_rank(ctx, 1, 2)
    indices, updates = ctx.shape(1), ctx.shape(2)
    for a, b in zip(indices or (), updates or (), strict=False):
        same(a, b)
    if data is not None:
        ctx.axis(ctx.attrs.get("axis", 0), len(data))
    return as_input(ctx)


def _reduction(ctx: Infer) -> None:
    if ctx.attrs.get("reduction", "none") not in _REDUCTIONS:
        raise InferError(f"reduction '{ctx.attrs['reduction']}' is none of {', '.join(_REDUCTIONS)}")


def _scatter_nd(ctx: Infer) -> list[Out]:
    data, indices, updates = _with_rank(ctx, 0, 1), _with_rank(ctx, 1, 1), ctx.shape(2)
    _reduction(ctx)
    depth = _depth(ctx, data, indices, 0)
    if data is not None and indices is not None and updates is not None and depth is not None:
        wanted = (*indices[:-1], *data[depth:])
        if len(wanted) != len(updates):
            raise InferError(f"updates must have rank {len(wanted)}, but have {len(updates)}")
        for a, b in zip(wanted, updates, strict=True):
            same(a, b)
    return as_input(ctx)


def _tensor_scatter(ctx: Infer) -> list[Out]:
    cache, update = _with_rank(ctx, 0, 2), ctx.shape(1)
    if ctx.attrs.get("mode", "linear") not in ("linear", "circular"):
        raise InferError(f"mode '{ctx.attrs['mode']}' is neither linear nor circular")
    _same_rank(ctx, 0, 1)
    if cache is not None:
        axis = ctx.axis(ctx.attrs.get("axis", -2), len(cache))
        if axis == 0:
            raise InferError("axis cannot be 0, which is the batch")
        for at, (a, b) in enumerate(zip(cache, update or (), strict=False)):
            if at != axis:
                same(a, b)
            elif isinstance(a, int) and isinstance(b, int) and b > a:
                raise InferError(f"an update of {b} steps does not fit a cache of {a}")
    return as_input(ctx)


def _non_zero(ctx: Infer) -> list[Out]:
    content = ctx.ints(0) if ctx.content(0) is not None else None
    count = None if content is None else sum(value != 0 for value in content)
    return [Out(DType.I64, (ctx.rank(0), count))]


def _one_hot(ctx: Infer) -> list[Out]:
    indices = ctx.shape(0)
    if indices is None:
        return [Out(ctx.dtype(2), None)]
    axis = ctx.axis(ctx.attrs.get("axis", -1), len(indices) + 1)
    return [Out(ctx.dtype(2), (*indices[:axis], _scalar(ctx, 1), *indices[axis:]))]


def _scalar(ctx: Infer, index: int) -> Dim | None:
    """The one number that input `index` holds, if that can be known before the op runs."""
    elems = ctx.elems(index)
    if elems is None and (known := ctx.constant(index)) is not None and known.size == 1:
        value = float(known.reshape(-1)[0])
        return int(value) if abs(value) < 1 << 62 else None
    if elems is not None and len(elems) != 1:
        raise InferError(f"input {index} must hold one number, but holds {len(elems)}")
    return None if elems is None else elems[0]


def _top_k(ctx: Infer) -> list[Out]:
    shape = _with_rank(ctx, 0, 1)
    k = ctx.attrs["k"] if ctx.version < 10 else _scalar(ctx, 1)
    result: PartialShape | None = None
    if shape is not None:
        axis = ctx.axis(ctx.attrs.get("axis", -1), len(shape))
        size = shape[axis]
        if isinstance(k, int) and (k < 0 or (isinstance(size, int) and k > size)):
            raise InferError(f"the top {k} cannot be taken of an axis of size {size}")
        result = replaced(shape, {axis: k})
    return [Out(ctx.dtype(0), result), Out(DType.I64, result)]


def _unique(ctx: Infer) -> list[Out]:
    axis, shape = ctx.attrs.get("axis"), ctx.shape(0)
    places = Out(DType.I64, (None,))
    if axis is None:
        inverse = None if shape is None else ctx.dims.product(shape)
        return [Out(ctx.dtype(0), (None,)), places, Out(DType.I64, (inverse,)), places]
    if shape is None:
        return [Out(ctx.dtype(0), None), places, places, places]
    axis = ctx.axis(axis, len(shape))
    return [Out(ctx.dtype(0), replaced(shape, {axis: None})), places, Out(DType.I64, (shape[axis],)), places]


OPS = (
    Op("onnx.Compress", "Keeps the slices of an axis where a condition is true.", _compress, "select.compress"),
    Op("onnx.Gather", "Picks slices of one axis by index.", _gather, "select.gather"),
    Op(
        "onnx.GatherElements",
        "Picks single elements along one axis by index.",
        _gather_elements,
        "select.gather_elements",
    ),
    Op("onnx.GatherND", "Picks slices by tuples of indices.", _gather_nd, "select.gather_nd"),
    Op("onnx.NonZero", "The indices of all elements that are not zero.", _non_zero, "select.non_zero"),
    Op("onnx.OneHot", "One value where an index points, another everywhere else.", _one_hot, "select.one_hot"),
    Op(
        "onnx.Scatter",
        "Places single elements along one axis by index (older name).",
        _scatter_elements,
        "select.scatter_elements",
    ),
    Op(
        "onnx.ScatterElements",
        "Places single elements along one axis by index.",
        _scatter_elements,
        "select.scatter_elements",
    ),
    Op("onnx.ScatterND", "Places slices by tuples of indices.", _scatter_nd, "select.scatter_nd"),
    Op(
        "onnx.TensorScatter",
        "Writes steps into a cache, from a given step on for each sample.",
        _tensor_scatter,
        "select.tensor_scatter",
    ),
    Op("onnx.TopK", "The k largest or smallest elements of an axis, and where they are.", _top_k, "select.top_k"),
    Op("onnx.Unique", "The distinct elements or slices, where they are and how often.", _unique, "select.unique"),
)
