"""Sequences and optionals: types follow from the items' dtype; shapes of items are not part of a type."""

from __future__ import annotations

from tierup.ir.infer import Infer, InferError, Out
from tierup.ir.ops.row import Op
from tierup.ir.types import (
    DType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    dtype_from_code,
    without_dims,
)


def _sequence(ctx: Infer) -> SequenceType:
    type = ctx.inputs[0] if ctx.inputs else None
    if not isinstance(type, SequenceType):
        raise InferError(f"input 0 must be a sequence, but is {type!r}")
    return type


def _same(ctx: Infer) -> list[Type]:
    return [_sequence(ctx)]


def _at(ctx: Infer) -> list[Type]:
    return [_sequence(ctx).elem]


def _insert(ctx: Infer) -> list[Type]:
    sequence, item = _sequence(ctx), ctx.tensor(1)
    if not isinstance(sequence.elem, TensorType) or sequence.elem.dtype is not item.dtype:
        raise InferError(f"{item!r} is put into {sequence!r}")
    return [sequence]


def _construct(ctx: Infer) -> list[Type]:
    dtypes = [ctx.dtype(i) for i in range(len(ctx.inputs))]
    if len(set(dtypes)) != 1:
        raise InferError(f"the items of a sequence must have one dtype, but are {dtypes}")
    return [SequenceType(TensorType(dtypes[0], None))]


def _empty(ctx: Infer) -> list[Type]:
    dtype = dtype_from_code(ctx.attrs.get("dtype", DType.F32.code))
    if dtype is None:
        raise InferError(f"there is no dtype with number {ctx.attrs['dtype']}")
    return [SequenceType(TensorType(dtype, None))]


def _length(ctx: Infer) -> list[Out]:
    _sequence(ctx)
    return [Out(DType.I64, ())]


def _split(ctx: Infer) -> list[Type]:
    type = ctx.tensor(0)
    if type.shape is not None:
        ctx.axis(ctx.attrs["axis"], len(type.shape))
    if ctx.has(1) and (ctx.rank(1) or 0) > 1:
        raise InferError("split must be a scalar or a vector")
    return [SequenceType(TensorType(type.dtype, None))]


def _concat(ctx: Infer) -> list[Out]:
    elem = _sequence(ctx).elem
    if not isinstance(elem, TensorType):
        raise InferError(f"the items must be tensors, but are {elem!r}")
    return [Out(elem.dtype, None)]


def _optional(ctx: Infer) -> list[Type]:
    type = ctx.inputs[0] if ctx.has(0) else ctx.attrs.get("type")
    if not isinstance(type, Type):
        raise InferError("an empty optional needs its type as an attribute")
    return [OptionalType(without_dims(type))]


def _get(ctx: Infer) -> list[Type]:
    type = ctx.inputs[0] if ctx.inputs else None
    if type is None:
        raise InferError("input 0 is missing")
    return [type.elem if isinstance(type, OptionalType) else type]


def _has(ctx: Infer) -> list[Out]:
    return [Out(DType.BOOL, ())]


_WHOLE = "handles whole values, not elements: there is nothing to tile"

OPS: tuple[Op, ...] = tuple(
    Op(f"onnx.{name}", doc, rule, f"sequence.{reference}", core=_WHOLE)
    for name, rule, reference, doc in (
        ("SequenceAt", _at, "at", "the item at a position"),
        ("SequenceConstruct", _construct, "construct", "tensors as one sequence"),
        ("SequenceEmpty", _empty, "empty", "a sequence without items"),
        ("SequenceErase", _same, "erase", "the sequence without one item, the last unless a position is given"),
        ("SequenceInsert", _insert, "insert", "the sequence with one item more, at the end unless a position is given"),
        ("SequenceLength", _length, "length", "how many items there are"),
        ("SplitToSequence", _split, "split", "a tensor cut into a sequence along an axis"),
        ("ConcatFromSequence", _concat, "concat", "the items joined along an axis, or stacked on a new one"),
        ("Optional", _optional, "optional", "a value that may be absent"),
        ("OptionalGetElement", _get, "get", "the value inside an optional"),
        ("OptionalHasElement", _has, "has", "whether there is a value inside"),
    )
)
