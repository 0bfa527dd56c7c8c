"""What the type rules of core ops demand of inputs and attributes; what does not hold is an InferError."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tierup.ir.infer import Infer, InferError
from tierup.ir.types import Dim, DType, Shape

Content = tuple[Dim, ...]


def same_dtype(ctx: Infer, indices: Sequence[int]) -> DType:
    """The dtype that all of these inputs have."""
    dtypes = [ctx.dtype(i) for i in indices]
    for a, b in pairwise(dtypes):
        if a is not b:
            raise InferError(f"the core ops do not promote, but the inputs are {a!r} and {b!r}")
    return dtypes[0]


def demand(ctx: Infer, dtype: DType, kinds: str) -> None:
    """`kinds` holds f (floats), i (integers), b (bool): what the op is defined for."""
    fits = ("f" in kinds and dtype.is_float) or ("i" in kinds and dtype.is_integer)
    if not fits and not ("b" in kinds and dtype is DType.BOOL):
        raise InferError(f"{ctx.op} is not defined for {dtype!r}")


def i64_vector(ctx: Infer, index: int, count: int | None = None) -> Content | None:
    """The dims in a 1-d i64 input; None where even their number is unknown."""
    if ctx.dtype(index) is not DType.I64 or ctx.rank(index) not in (1, None):
        raise InferError(f"input {index} must be a vector of i64, but is {ctx.tensor(index)!r}")
    elems = ctx.elems(index)
    if elems is not None and count is not None and len(elems) != count:
        raise InferError(f"input {index} must have {count} elements, but has {len(elems)}")
    return elems


def known_rank(ctx: Infer, index: int) -> Shape:
    """The shape of an input whose rank must be known."""
    shape = ctx.shape(index)
    if shape is None:
        raise InferError(f"{ctx.op} needs input {index} with a known rank")
    return shape


def axis_of(ctx: Infer, rank: int, name: str = "axis") -> int:
    """An attribute that names an axis, counted from the front."""
    axis = ctx.attrs.get(name)
    if not isinstance(axis, int) or not 0 <= axis < rank:
        raise InferError(f"{name} {axis} is outside a tensor of rank {rank}")
    return axis


def axes_of(ctx: Infer, rank: int) -> tuple[int, ...]:
    """The attribute `axes`: each once, counted from the front."""
    axes = tuple(ctx.attrs["axes"])
    if any(not isinstance(axis, int) or not 0 <= axis < rank for axis in axes) or len(set(axes)) != len(axes):
        raise InferError(f"axes {axes} do not fit a tensor of rank {rank}")
    return axes


def pads_of(ctx: Infer, index: int, spatial: int) -> Content:
    """What an input says is put before and behind the spatial axes."""
    pads = i64_vector(ctx, index, 2 * spatial)
    if pads is None:
        raise InferError("pads need a known number of elements")
    if any(isinstance(pad, int) and pad < 0 for pad in pads):
        raise InferError(f"pads must not be negative: {list(pads)}")
    return pads


def indices_shape(ctx: Infer, index: int) -> Shape:
    """The shape of an input of indices."""
    if ctx.dtype(index) not in (DType.I32, DType.I64):
        raise InferError(f"indices must be i32 or i64, but are {ctx.dtype(index)!r}")
    return known_rank(ctx, index)
