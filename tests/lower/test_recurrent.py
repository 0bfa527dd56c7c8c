"""Kernels of recurrent layers in the interpreter, step by step and in rounds, against the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.lower.cuts import CutRun

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.ops.recurrent import ACTIVATION_DEFAULTS
from tierup.ir.types import Array, DType
from tierup.lower import recurrent
from tierup.lower.kernel import Panels
from tierup.lower.recurrent_cells import ACTIVATIONS
from tierup.plan.cut import cut
from tierup.plan.regions import RECURRENCES, Region
from tierup.reference.evaluate import evaluate

FUNCTIONS = {"rnn": ("Tanh",), "gru": ("Sigmoid", "Tanh"), "lstm": ("Sigmoid", "Tanh", "Tanh")}
OPTIONS: dict[str, dict[str, Any]] = {"rnn": {}, "gru": {"linear_before_reset": 1}, "lstm": {"input_forget": 0}}
HIDDEN = 6


def floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def layer(
    op: str, *, lengths: bool, constant: bool = True, peepholes: bool = True, dtype: DType = DType.F32, **attrs: Any
) -> tuple[Graph, Weights]:
    """gates, first states and perhaps lengths and weights come with the call; time and batch are open."""
    b, gates = GraphBuilder(Weights()), RECURRENCES[f"core.{op}"]
    x = b.open_input(dtype, ["t", "b", gates * HIDDEN])
    states = [b.open_input(dtype, ["b", HIDDEN]) for _ in range(2 if op == "lstm" else 1)]
    rows = b.open_input(DType.I32, ["b"]) if lengths else b.weight(np.zeros(0, np.int64))
    matrix = (floats(1, HIDDEN, gates * HIDDEN) / 2).astype(dtype.numpy)
    weights = b.weight(matrix) if constant else b.open_input(dtype, matrix.shape)
    extra = {"rnn": (), "gru": (HIDDEN,), "lstm": (3 * HIDDEN if peepholes else 0,)}[op]
    extras = [b.weight(floats(2, *extra).astype(dtype.numpy))] if extra else []
    count = len(FUNCTIONS[op])
    full = {
        "activations": FUNCTIONS[op], "alphas": (0.25,) * count, "betas": (0.5,) * count, "clip": 0.0, "reverse": 0,
        **OPTIONS[op], **attrs,
    }  # fmt: skip
    outputs = (True,) * (1 + len(states))
    results = b.node(f"core.{op}", [x, weights, *extras, *states, rows], Attrs(full), outputs=outputs)
    return b.finish([result for result in results if result is not None]), b.weights


def feeds(graph: Graph, time: int, batch: int) -> list[Array]:
    """Lengths between none and one more than there are steps."""
    drawn: list[Array] = []
    for number, value in enumerate(graph.inputs):
        type = graph.type(value)
        axes = type.shape  # type: ignore[union-attr]
        shape = [HIDDEN if axis == HIDDEN else axis if isinstance(axis, int) else batch for axis in axes]
        if type.dtype is DType.I32:  # type: ignore[union-attr]
            drawn.append(np.arange(batch, dtype=np.int32) % (time + 2))
        else:
            shape = [time, *shape[1:]] if len(shape) == 3 else shape
            drawn.append(floats(number, *shape).astype(type.dtype.numpy))  # type: ignore[union-attr]
    return drawn


def check(graph: Graph, weights: Weights, *sizes: tuple[int, int]) -> CutRun:
    """A step's sums have HIDDEN terms and some maps behind them; what it is off by goes into the next, and shrinks."""
    for time, batch in sizes:
        given = feeds(graph, time, batch)
        call = CutRun(graph, weights, given)
        outputs = call.outputs()
        assert not call.cut.refusals
        for got, wanted in zip(outputs, evaluate(graph, weights, given, wide=True), strict=True):
            assert got.shape == wanted.shape
            eps = np.finfo(got.dtype).eps
            np.testing.assert_allclose(got, wanted, rtol=32 * eps, atol=32 * eps * (1 + time))
    return call


SIZES = ((4, 3), (1, 1), (3, 9), (0, 2), (2, 0))


@pytest.fixture(params=["serial", "rounds"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(recurrent, "_ROUND_FLOPS", 0 if request.param == "rounds" else 1 << 60)
    return str(request.param)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_directions_and_lengths(op: str, reverse: int, lengths: bool, mode: str) -> None:
    call = check(*layer(op, lengths=lengths, reverse=reverse), *SIZES)
    ((_, kernel),) = call.kernels
    assert (kernel.rounds is None) == (mode == "serial")
    assert any(isinstance(buffer, Panels) for buffer in kernel.buffers)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_weights_that_come_with_the_call(op: str, mode: str) -> None:
    call = check(*layer(op, lengths=True, constant=False), *SIZES)
    assert not any(isinstance(buffer, Panels) for buffer in call.kernels[0][1].buffers)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_reset_before_the_product_needs_all_units_of_a_row(lengths: bool, reverse: int, mode: str) -> None:
    call = check(*layer("gru", lengths=lengths, reverse=reverse, linear_before_reset=0), *SIZES)
    assert call.kernels[0][1].rounds is None


def test_options_of_an_lstm(mode: str) -> None:
    check(*layer("lstm", lengths=True, peepholes=False), *SIZES)
    check(*layer("lstm", lengths=True, input_forget=1), *SIZES)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_clip(op: str, mode: str) -> None:
    check(*layer(op, lengths=True, clip=0.5), *SIZES)


def test_f64(mode: str) -> None:
    check(*layer("lstm", lengths=True, dtype=DType.F64), *SIZES)


@pytest.mark.parametrize("name", ACTIVATION_DEFAULTS)
def test_activations(name: str) -> None:
    for op, names in FUNCTIONS.items():
        check(*layer(op, lengths=False, activations=(name,) * len(names)), (3, 2))


def test_every_activation_is_known() -> None:
    assert ACTIVATIONS.keys() == ACTIVATION_DEFAULTS.keys()


def test_a_state_in_sixteen_bits_is_refused() -> None:
    graph, weights = layer("gru", lengths=False, dtype=DType.F16)
    divided = cut(graph, weights)
    assert not any(isinstance(unit, Region) for unit in divided.order)
    assert list(divided.refusals.values()) == [
        "a recurrence whose state is rounded to 16 bits at every step is not compiled"
    ]


def test_small_steps_are_one_loop_and_large_ones_rounds() -> None:
    """Of a row: 2 · 4 · 6² operations are less than a round costs."""
    graph, weights = layer("lstm", lengths=False)
    assert check(graph, weights, (2, 2)).kernels[0][1].rounds is None
