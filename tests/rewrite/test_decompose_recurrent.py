"""RNN, GRU and LSTM: directions, layouts, lengths, states, and what each of them has besides."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.rewrite.lowered import check, f, lowered, single

from tierup.ir.ops.recurrent import ACTIVATION_DEFAULTS, DEFAULT_ACTIVATIONS, DIRECTIONS
from tierup.ir.types import Array

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
TIME, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6


def layer(
    op: str, direction: str = "forward", *, layout: int = 0, full: bool = False, dtype: Any = np.float32
) -> list[Array | None]:
    """The inputs of a layer; with `full`, all that it can have."""
    d, gates = DIRECTIONS[direction], GATES[op]
    x = f(*((BATCH, TIME) if layout else (TIME, BATCH)), INPUTS, dtype=dtype)
    inputs: list[Array | None] = [
        x,
        f(d, gates * HIDDEN, INPUTS, dtype=dtype),
        f(d, gates * HIDDEN, HIDDEN, scale=0.5, dtype=dtype),
    ]
    if not full:
        return inputs
    shape = (BATCH, d, HIDDEN) if layout else (d, BATCH, HIDDEN)
    states = [f(*shape, dtype=dtype) for _ in range(STATES[op])]
    peepholes = [f(d, 3 * HIDDEN, dtype=dtype)] if op == "LSTM" else []
    return [*inputs, f(d, 2 * gates * HIDDEN, dtype=dtype), np.array([5, 2, 0], np.int32), *states, *peepholes]


def verdict(op: str, inputs: list[Array | None], **attrs: Any) -> None:
    outputs = 1 + STATES[op]
    check(op, *inputs, constants=(1, 2, 3, 7), outputs=outputs, hidden_size=HIDDEN, **attrs)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("full", [False, True])
def test_directions_and_layouts(op: str, direction: str, layout: int, full: bool) -> None:
    verdict(op, layer(op, direction, layout=layout, full=full), direction=direction, layout=layout)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("opset", [7, 14, 22])
def test_versions(op: str, opset: int) -> None:
    verdict(op, layer(op, full=True), opset=opset)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name", ACTIVATION_DEFAULTS)
def test_activations(op: str, name: str) -> None:
    """Affine and the like take numbers of their own; each direction has its own functions."""
    names = (*DEFAULT_ACTIVATIONS[f"onnx.{op}"], *(name,) * len(DEFAULT_ACTIVATIONS[f"onnx.{op}"]))
    attrs = {"activations": names, "activation_alpha": (0.25,), "activation_beta": (0.125,)}
    verdict(op, layer(op, "bidirectional"), direction="bidirectional", **attrs)


@pytest.mark.parametrize("op", GATES)
def test_clip(op: str) -> None:
    verdict(op, layer(op, full=True), clip=0.5)


def test_flags() -> None:
    verdict("LSTM", layer("LSTM", full=True), input_forget=1)
    verdict("GRU", layer("GRU", full=True), linear_before_reset=1)
    verdict("GRU", layer("GRU"), linear_before_reset=1)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_narrow_states_do_not_drift(op: str, dtype: Any) -> None:
    verdict(op, layer(op, "bidirectional", full=True, dtype=dtype), direction="bidirectional")


@pytest.mark.parametrize("op", GATES)
def test_the_rank_is_known_from_the_op(op: str) -> None:
    inputs = layer(op, full=True)
    check(op, *inputs[:3], constants=(1, 2), forms=["unranked"], outputs=1 + STATES[op], hidden_size=HIDDEN)


@pytest.mark.parametrize("op", GATES)
def test_the_inputs_of_both_directions_are_one_product(op: str) -> None:
    graph, weights, _ = single(
        f"onnx.{op}", layer(op, "bidirectional", full=True), direction="bidirectional", hidden_size=HIDDEN
    )
    ops = [node.op for node in lowered(graph, weights).nodes]
    assert ops.count("core.matmul") == 1
    assert ops.count(f"core.{op.lower()}") == 2
