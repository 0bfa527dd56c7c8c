"""Optimisers and gradients (ai.onnx.preview.training)."""

from __future__ import annotations

from tierup.ir.infer import Infer, InferError, Rule
from tierup.ir.ops.row import Op
from tierup.ir.types import Type


def _optimizer(states: int) -> Rule:
    """Inputs: rate, step, then all tensors, all gradients, `states` kinds of state; results: tensors and states."""

    def rule(ctx: Infer) -> list[Type]:
        rest = len(ctx.inputs) - 2
        if rest < 1 or rest % (2 + states):
            raise InferError(f"{rest} tensors, gradients and states are not {2 + states} for each tensor")
        count = rest // (2 + states)
        tensors = [ctx.tensor(2 + i) for i in range(rest)]
        for i, type in enumerate(tensors):
            if type.dtype is not tensors[i % count].dtype:
                raise InferError(f"input {2 + i} is {type.dtype!r}, but its tensor is {tensors[i % count].dtype!r}")
        return [tensors[i % count] for i in range(count * (1 + states))]

    return rule


def _gradient(ctx: Infer) -> list[Type]:
    """The body `forward` takes the values of xs, then of zs, then what it captures, and gives y."""
    xs, zs = ctx.attrs["xs"], ctx.attrs.get("zs") or ()
    body = dict(ctx.graphs).get("forward")
    if body is None:
        raise InferError("the computation from xs and zs to y is missing")
    given = len(xs) + len(zs) + ctx.attrs.get("captures", 0)
    if not xs or len(ctx.inputs) != given or len(body.inputs) != given or len(body.outputs) != 1:
        raise InferError(f"{len(ctx.inputs)} values do not fit {len(xs)} xs and {len(zs)} zs")
    types = [ctx.tensor(i) for i in range(len(xs))]
    if not all(type.dtype.is_float for type in types):
        raise InferError("only floats have gradients")
    return list(types)


_WHOLE = "a training step: it runs once in a call and is no part of inference"

OPS: tuple[Op, ...] = (
    Op("training.Adagrad", "one step of Adagrad", _optimizer(1), "training.adagrad", core=_WHOLE),
    Op("training.Adam", "one step of Adam", _optimizer(2), "training.adam", core=_WHOLE),
    Op(
        "training.Momentum",
        "one step of stochastic gradient descent with momentum",
        _optimizer(1),
        "training.momentum",
        core=_WHOLE,
    ),
    Op("training.Gradient", "derivatives of y by each of xs", _gradient, "training.gradient", core=_WHOLE),
)
