"""Control ops: what their bodies give decides what they give.

A control node's last `captures` inputs are what its bodies use from outside, and each body takes them as its last
inputs. Dims of a body belong to that body's own dim program: what comes out of it are plain numbers, and sizes of what
came in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tierup.ir.graph import Attrs, Graph
from tierup.ir.infer import Infer, InferError, Out
from tierup.ir.ops.row import Kind, Op
from tierup.ir.types import (
    Dim,
    DType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    without_dims,
)

Result = Out | Type


def outside(type: Type, known: Mapping[Dim, Dim] | None = None) -> Result:
    """A body's result as the graph around it sees it; `known` are the body's dims that it has dims for."""
    if not isinstance(type, TensorType):
        return without_dims(type)
    if type.shape is None:
        return Out(type.dtype, None)
    return Out(type.dtype, tuple(dim if isinstance(dim, int) else (known or {}).get(dim) for dim in type.shape))


def _known(body: Graph, place: int, given: Type | None, back: Type | None = None) -> dict[Dim, Dim]:
    """The dims of a body's input at `place` as the graph around has them.

    A value that goes round comes `back`: then those alone that are the same again.
    """
    own = body.type(body.inputs[place])
    if not isinstance(own, TensorType) or not isinstance(given, TensorType) or own.rank != given.rank:
        return {}
    again = own if back is None else back
    if not isinstance(again, TensorType) or again.rank != own.rank:
        return {}
    rows = zip(own.shape or (), again.shape or (), given.shape or (), strict=True)
    return {inner: outer for inner, returned, outer in rows if inner == returned}


def _known_captures(ctx: Infer, body: Graph) -> dict[Dim, Dim]:
    captured = ctx.inputs[_captures(ctx) :]
    known: dict[Dim, Dim] = {}
    for place, type in enumerate(captured, start=len(body.inputs) - len(captured)):
        known |= _known(body, place, type)
    return known


def join(a: Result, b: Result, what: str) -> Result:
    """The type of a value that may be either one. Dims that differ are unknown."""
    if isinstance(a, Out | TensorType) and isinstance(b, Out | TensorType):
        if a.dtype is not b.dtype:
            raise InferError(f"{what} is {a.dtype!r} on one side and {b.dtype!r} on the other")
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return Out(a.dtype, None)
        return Out(a.dtype, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)))
    if isinstance(a, Out | TensorType) or isinstance(b, Out | TensorType) or a != b:
        raise InferError(f"{what} is of different kinds on the two sides: {a!r} and {b!r}")
    return a


def _body(ctx: Infer, name: str, count: int) -> Graph:
    body = dict(ctx.graphs).get(name)
    if body is None:
        raise InferError(f"the body '{name}' is missing")
    if len(body.inputs) != count:
        raise InferError(f"the body '{name}' has {len(body.inputs)} inputs, but {count} are given to it")
    return body


def _captures(ctx: Infer) -> int:
    """Where the captured values begin."""
    count = ctx.attrs.get("captures", 0)
    if not isinstance(count, int) or not 0 <= count <= len(ctx.inputs):
        raise InferError(f"captures is {count}, but there are {len(ctx.inputs)} inputs")
    return len(ctx.inputs) - count


def _one(ctx: Infer, index: int, dtype: DType, what: str) -> None:
    """An input that must hold a single element."""
    type = ctx.tensor(index)
    if type.dtype is not dtype or (type.shape is not None and any(isinstance(d, int) and d != 1 for d in type.shape)):
        raise InferError(f"{what} must be a single {dtype!r}, but is {type!r}")


def _if(ctx: Infer) -> list[Result]:
    if _captures(ctx) != 1:
        raise InferError("If takes a condition and what its branches capture")
    _one(ctx, 0, DType.BOOL, "the condition")
    then, other = (_body(ctx, name, len(ctx.inputs) - 1) for name in ("then_branch", "else_branch"))
    if len(then.outputs) != len(other.outputs):
        raise InferError(f"the branches have {len(then.outputs)} and {len(other.outputs)} outputs")
    first, second = _known_captures(ctx, then), _known_captures(ctx, other)
    pairs = zip(then.outputs, other.outputs, strict=True)
    return [
        join(outside(then.type(a), first), outside(other.type(b), second), f"output {i}")
        for i, (a, b) in enumerate(pairs)
    ]


def _known_in_loop(ctx: Infer, body: Graph, first: Sequence[Type | None], places: tuple[int, int]) -> dict[Dim, Dim]:
    """The dims of a loop's body as the graph around has them: of captures, and of values that go round and keep them.

    `places` are where the latter begin among the body's inputs and outputs, `first` what they are at first.
    """
    known = _known_captures(ctx, body)
    for place, type in enumerate(first):
        known |= _known(body, places[0] + place, type, body.type(body.outputs[places[1] + place]))
    return known


def _all_carried(
    body: Graph, first: Sequence[Type | None], begin: int, known: Mapping[Dim, Dim], runs: bool, what: str
) -> list[Result]:
    """Values that go round: the `first` ones where the body never runs, else the body's outputs from `begin` on."""
    backs = [outside(body.type(value), known) for value in body.outputs[begin : begin + len(first)]]
    return [_carried(type, back, runs, f"{what} {i}") for i, (type, back) in enumerate(zip(first, backs, strict=True))]


def _carried(initial: Type | None, after: Result, runs: bool, what: str) -> Result:
    if initial is None:
        raise InferError(f"{what} has no first value")
    if isinstance(initial, OptionalType) and not isinstance(after, OptionalType):
        initial = initial.elem  # the body turned "perhaps" into a value
    joined = join(initial if isinstance(initial, TensorType) else without_dims(initial), after, what)
    return after if runs else joined


def _surely_runs(ctx: Infer) -> bool:
    """Whether a loop's trip count and condition are known, and let it run."""
    return all(not ctx.has(place) or any(map(ctx.dims.is_positive, _content(ctx, place))) for place in (0, 1))


def _content(ctx: Infer, place: int) -> tuple[Dim, ...]:
    """The one number of an input, where it is known as a size."""
    return ctx.content(place) or ctx.ints(place) or ()


def item_types(attrs: Attrs, body: Graph, first: int) -> list[Type]:
    """What one item of each collected output is where the body never runs; its outputs from `first` on are collected.

    A size that only steps know is 0 then. Rewrites learn more of a body, but an answer may not depend on that, so they
    keep the types that it had at first as `items`.
    """
    kept = attrs.get("items")
    return [body.type(value) for value in body.outputs[first:]] if kept is None else list(kept)


def closed_type(type: Type) -> Type:
    """With 0 for sizes that only steps know; also the rank, where it is not known."""
    if not isinstance(type, TensorType):
        return type
    return TensorType(type.dtype, tuple(dim if isinstance(dim, int) else 0 for dim in type.shape or ()))


def _all_stacked(
    ctx: Infer,
    body: Graph,
    first: int,
    axes: Sequence[int],
    length: Dim | None,
    known: Mapping[Dim, Dim] | None = None,
) -> list[Out]:
    """What the body's outputs from `first` on become, each along its axis; it surely runs where dims are `known`."""
    empty = item_types(ctx.attrs, body, first)
    found = []
    for i, (value, axis) in enumerate(zip(body.outputs[first:], axes, strict=True)):
        type, what = body.type(value), f"scan output {i}"
        if not isinstance(type, TensorType):
            raise InferError(f"{what} is collected over the steps and must be a tensor, but is {type!r}")
        item = outside(type, known)
        assert isinstance(item, Out)
        if known is None:
            item = _common(item, empty[i]) if i < len(empty) else Out(type.dtype, None)
        found.append(_stacked(item, axis, length, what))
    return found


def _common(item: Out, empty: Type) -> Out:
    """Of the sizes in a step those that are the same where there is none."""
    if not isinstance(empty, TensorType) or item.shape is None or empty.shape is None:
        return Out(item.dtype, None)
    if len(item.shape) != len(empty.shape):
        return Out(item.dtype, None)
    return Out(item.dtype, tuple(a if a == b else None for a, b in zip(item.shape, empty.shape, strict=True)))


def _stacked(item: Out, axis: int, length: Dim | None, what: str) -> Out:
    """What a body gives in each step, as one tensor with a new axis."""
    if item.shape is None:
        return item
    rank = len(item.shape) + 1
    if not -rank <= axis < rank:
        raise InferError(f"axis {axis} of {what} is outside a tensor of rank {rank}")
    shape = list(item.shape)
    shape.insert(axis % rank, length)
    return Out(item.dtype, tuple(shape))


def _loop(ctx: Infer) -> list[Result]:
    split = _captures(ctx)
    if split < 2:
        raise InferError("Loop takes a trip count and a condition, which may be absent, before all else")
    if ctx.has(0):
        _one(ctx, 0, DType.I64, "the trip count")
    if ctx.has(1):
        _one(ctx, 1, DType.BOOL, "the condition")
    body, carried = _body(ctx, "body", len(ctx.inputs)), ctx.inputs[2:split]
    if len(body.outputs) < 1 + len(carried):
        raise InferError(f"the body gives {len(body.outputs)} values, but carries {len(carried)} and a condition")
    first = 1 + len(carried)
    known = _known_in_loop(ctx, body, carried, (2, 1))

    def results(runs: bool) -> list[Result]:
        axes = (0,) * (len(body.outputs) - first)
        return [
            *_all_carried(body, carried, 1, known, runs, "carried value"),
            *_all_stacked(ctx, body, first, axes, None, known if runs else None),
        ]

    careful, hopeful = results(runs=False), results(runs=True)
    return hopeful if hopeful != careful and _surely_runs(ctx) else careful


def _per(ctx: Infer, name: str, count: int) -> tuple[int, ...]:
    """An attribute with one integer for each scanned value; 0 where it is absent."""
    numbers = tuple(ctx.attrs.get(name) or (0,) * count)
    if len(numbers) != count:
        raise InferError(f"{name} has {len(numbers)} entries, but there are {count} such values")
    return numbers


def _scan_parts(ctx: Infer, first: int) -> tuple[Graph, tuple[Type | None, ...], range]:
    """The body, the first states, and the indices of the scanned inputs; `first` inputs stand before them all."""
    split, count = _captures(ctx), ctx.attrs["num_scan_inputs"]
    if not 1 <= count <= split - first:
        raise InferError(f"num_scan_inputs is {count}, but there are {split - first} inputs")
    body = _body(ctx, "body", len(ctx.inputs) - first)
    states = ctx.inputs[first : split - count]
    if len(body.outputs) < len(states):
        raise InferError(f"the body gives {len(body.outputs)} values, but has {len(states)} states")
    return body, states, range(split - count, split)


def _scan(ctx: Infer) -> list[Result]:
    if ctx.version < 9:
        return _scan_batched(ctx)
    body, first, scanned = _scan_parts(ctx, 0)
    length: Dim | None = None
    for index, axis in zip(scanned, _per(ctx, "scan_input_axes", len(scanned)), strict=True):
        shape = ctx.shape(index)
        if shape is not None:
            length = _same_length(length, shape[ctx.axis(axis, len(shape))])
    _per(ctx, "scan_input_directions", len(scanned))
    count = len(body.outputs) - len(first)
    axes = _per(ctx, "scan_output_axes", count)
    _per(ctx, "scan_output_directions", count)
    known = _known_in_loop(ctx, body, first, (0, 0))

    def results(runs: bool) -> list[Result]:
        return [
            *_all_carried(body, first, 0, known, runs, "state"),
            *_all_stacked(ctx, body, len(first), axes, length, known if runs else None),
        ]

    careful, hopeful = results(runs=False), results(runs=True)
    return hopeful if hopeful != careful and length is not None and ctx.dims.is_positive(length) else careful


def _same_length(a: Dim | None, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise InferError(f"the scanned inputs have lengths {a} and {b}")
    return a if isinstance(a, int) else b


def _scan_batched(ctx: Infer) -> list[Result]:
    """Scan of opset 8: sequence lengths first, and a batch axis before everything."""
    body, first, scanned = _scan_parts(ctx, 1)
    _per(ctx, "directions", len(scanned))
    batch, length = None, None
    for index in scanned:
        shape = ctx.shape(index)
        if shape is not None:
            if len(shape) < 2:
                raise InferError("scanned inputs have a batch and a time axis")
            batch, length = _same_length(batch, shape[0]), _same_length(length, shape[1])
    results: list[Result] = []
    for i, (given, value) in enumerate(zip(first, body.outputs, strict=False)):
        type = body.type(value)
        if not isinstance(given, TensorType) or not isinstance(type, TensorType):
            raise InferError(f"state {i} must be a tensor")
        state = outside(type)
        assert isinstance(state, Out)
        results.append(join(given, _stacked(state, 0, batch, f"state {i}"), f"state {i}"))
    axes = (0,) * (len(body.outputs) - len(first))
    for row in _all_stacked(ctx, body, len(first), axes, length):
        results.append(row if row.shape is None else Out(row.dtype, (batch, *row.shape)))
    return results


def _sequence_map(ctx: Infer) -> list[Result]:
    body = _body(ctx, "body", len(ctx.inputs))
    if not ctx.inputs or not isinstance(ctx.inputs[0], SequenceType):
        raise InferError(f"the first input must be a sequence, but is {ctx.inputs[:1]}")
    return [SequenceType(without_dims(body.type(value))) for value in body.outputs]


_WHOLE = "runs bodies, which are lowered themselves; programs jump and call"

OPS: tuple[Op, ...] = (
    Op("onnx.If", "one of two bodies, by a condition", _if, kind=Kind.CONTROL, core=_WHOLE),
    Op("onnx.Loop", "a body again and again, by count and condition", _loop, kind=Kind.CONTROL, core=_WHOLE),
    Op("onnx.Scan", "a body for each slice of its scanned inputs", _scan, kind=Kind.CONTROL, core=_WHOLE),
    Op(
        "onnx.SequenceMap",
        "a body for each item of a sequence",
        _sequence_map,
        "control.sequence_map",
        kind=Kind.CONTROL,
        core=_WHOLE,
    ),
)
