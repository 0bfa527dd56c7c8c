"""Recurrent layers: their type rules, the table of their activations, and rows."""

from __future__ import annotations

from collections.abc import Callable

from tierup.ir.graph import Attrs
from tierup.ir.infer import Infer, InferError, Out, PartialShape
from tierup.ir.ops.nn import same_dim
from tierup.ir.ops.row import Op
from tierup.ir.types import Dim

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
GATES = {"onnx.RNN": 1, "onnx.GRU": 3, "onnx.LSTM": 4}
DEFAULT_ACTIVATIONS = {
    "onnx.RNN": ("Tanh",),
    "onnx.GRU": ("Sigmoid", "Tanh"),
    "onnx.LSTM": ("Sigmoid", "Tanh", "Tanh"),
}
# alpha and beta where the model gives none; an activation takes from the model's lists only what it has a default for
ACTIVATION_DEFAULTS: dict[str, tuple[float, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01,),
    "ThresholdedRelu": (1.0,),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0,),
    "Softsign": (),
    "Softplus": (),
}
_BY_LOWER = {name.lower(): name for name in ACTIVATION_DEFAULTS}

Activation = tuple[str, tuple[float, ...]]


def activations(op: str, attrs: Attrs) -> list[list[Activation]]:
    """For each direction, its activations in order: name, then alpha and beta as far as it takes them."""
    wanted = DEFAULT_ACTIVATIONS[op]
    directions = DIRECTIONS[attrs.get("direction", "forward")]
    names = tuple(attrs.get("activations") or wanted * directions)
    if op == "onnx.RNN":
        names = names[:directions]  # the schema's default has two, also for one direction
    if len(names) != len(wanted) * directions:
        raise InferError(f"there are {len(names)} activations, expected {len(wanted) * directions}")
    alphas, betas = iter(attrs.get("activation_alpha") or ()), iter(attrs.get("activation_beta") or ())
    result: list[Activation] = []
    for given in names:
        name = _BY_LOWER.get(given.lower())
        if name is None:
            raise InferError(f"'{given}' is no activation, expected one of {', '.join(ACTIVATION_DEFAULTS)}")
        defaults = ACTIVATION_DEFAULTS[name]
        result.append((name, tuple(next(source, d) for source, d in zip((alphas, betas), defaults, strict=False))))
    return [result[i : i + len(wanted)] for i in range(0, len(result), len(wanted))]


def _of_rank(ctx: Infer, index: int, rank: int) -> PartialShape:
    shape = ctx.shape(index) if ctx.has(index) else None
    if shape is None:
        return (None,) * rank
    if len(shape) != rank:
        raise InferError(f"input {index} has {len(shape)} axes, expected {rank}")
    return shape


def _agree(what: str, *dims: Dim | None) -> Dim | None:
    """The size that all of `dims` have; a number says more than a sym, which says more than nothing."""
    numbers = [dim for dim in dims if isinstance(dim, int)]
    for number in numbers[1:]:
        same_dim(what, numbers[0], number)
    return numbers[0] if numbers else next((dim for dim in dims if dim is not None), None)


def _recurrent(states: int) -> Callable[[Infer], list[Out]]:
    """The rule of a layer with this many states (hidden, cell)."""

    def rule(ctx: Infer) -> list[Out]:
        direction = ctx.attrs.get("direction", "forward")
        if direction not in DIRECTIONS:
            raise InferError(f"direction is '{direction}', expected one of {', '.join(DIRECTIONS)}")
        activations(ctx.op, ctx.attrs)
        count, hidden = DIRECTIONS[direction], _hidden_size(ctx)
        x, batchwise = _of_rank(ctx, 0, 3), ctx.attrs.get("layout", 0) == 1
        time, batch = (x[1], x[0]) if batchwise else (x[0], x[1])
        _check_inputs(ctx, count, hidden, states, batchwise)
        y: PartialShape = (batch, time, count, hidden) if batchwise else (time, count, batch, hidden)
        state: PartialShape = (batch, count, hidden) if batchwise else (count, batch, hidden)
        return [Out(ctx.dtype(0), y), *[Out(ctx.dtype(0), state)] * states]

    return rule


def _hidden_size(ctx: Infer) -> Dim | None:
    rows = _of_rank(ctx, 1, 3)[1]
    gates = GATES[ctx.op]
    if isinstance(rows, int) and rows % gates:
        raise InferError(f"the weight has {rows} rows, which is no multiple of {gates}")
    by_rows = rows // gates if isinstance(rows, int) else None
    recurrence = _of_rank(ctx, 2, 3)
    return _agree("the hidden size", ctx.attrs.get("hidden_size"), by_rows, recurrence[2])


def _check_inputs(ctx: Infer, directions: int, hidden: Dim | None, states: int, batchwise: bool) -> None:
    gates = GATES[ctx.op]
    rows = gates * hidden if isinstance(hidden, int) else None
    x, w, r = (_of_rank(ctx, index, 3) for index in range(3))
    _agree("the size of an input and the weight's columns", x[2], w[2])
    _agree("the rows of the recurrence weight", r[1], rows)
    bias = _of_rank(ctx, 3, 2)
    _agree("the entries of the bias", bias[1], None if rows is None else 2 * rows)
    _of_rank(ctx, 4, 1)
    _agree("the directions", directions, w[0], r[0], bias[0])
    for index in range(5, 5 + states):
        state = _of_rank(ctx, index, 3)
        _agree("the directions of a first state", directions, state[1 if batchwise else 0])
        _agree("the size of a first state", hidden, state[2])
    if ctx.op == "onnx.LSTM":
        _agree("the entries of the peepholes", _of_rank(ctx, 7, 2)[1], 3 * hidden if isinstance(hidden, int) else None)


OPS: tuple[Op, ...] = (
    Op("onnx.GRU", "A layer of gated recurrent units over a sequence.", _recurrent(1), "recurrent.gru"),
    Op("onnx.LSTM", "A layer of long short-term memory over a sequence.", _recurrent(2), "recurrent.lstm"),
    Op("onnx.RNN", "A layer of plain recurrent units over a sequence.", _recurrent(1), "recurrent.rnn"),
)
