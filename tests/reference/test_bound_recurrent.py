"""Error bounds of recurrences: those of the maps that a step consists of, and f32 keeps them over many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Weights
from tierup.ir.ops.recurrent import ACTIVATION_DEFAULTS
from tierup.ir.types import Array, DType, dtype_from_numpy
from tierup.reference.bounds import Bounded, evaluate_bounded, evaluate_plainly, longest_sum, tolerance, within

HIDDEN, BATCH = 5, 3
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
FUNCTIONS = {"rnn": ("Tanh",), "gru": ("Sigmoid", "Tanh"), "lstm": ("Sigmoid", "Tanh", "Tanh")}
OPTIONS: dict[str, dict[str, Any]] = {"rnn": {}, "gru": {"linear_before_reset": 0}, "lstm": {"input_forget": 0}}
UNIT = tolerance(HIDDEN)


class Layer:
    """A recurrence on drawn inputs."""

    def __init__(self, op: str, time: int, lengths: list[int] | None = None, **attrs: Any) -> None:
        draw = np.random.default_rng(time)
        extra = {"rnn": (), "gru": (HIDDEN,), "lstm": (3 * HIDDEN,)}[op]
        shapes = [(time, BATCH, GATES[op] * HIDDEN), (HIDDEN, GATES[op] * HIDDEN), *([extra] if extra else [])]
        shapes += [(BATCH, HIDDEN)] * (2 if op == "lstm" else 1)
        self.arrays: list[Array] = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
        self.arrays[1] /= 2
        self.arrays.append(np.array(lengths or [], np.int64))
        self.weights = Weights()
        builder = GraphBuilder(self.weights)
        inputs = [builder.open_input(dtype_from_numpy(a.dtype) or DType.F32, a.shape) for a in self.arrays]
        count = len(FUNCTIONS[op])
        full = {
            "activations": FUNCTIONS[op], "alphas": (0.25,) * count, "betas": (0.5,) * count, "clip": 0.0,
            "reverse": 0, **OPTIONS[op], **attrs,
        }  # fmt: skip
        results = builder.node(f"core.{op}", inputs, Attrs(full), outputs=(True,) * (3 if op == "lstm" else 2))
        self.graph = builder.finish([result for result in results if result is not None])

    def bounded(self) -> list[Bounded]:
        return evaluate_bounded(self.graph, self.weights, self.arrays, UNIT)

    def plain(self) -> list[Array]:
        return evaluate_plainly(self.graph, self.weights, self.arrays)


def test_a_step_is_bounded_as_its_maps_are() -> None:
    layer = Layer("rnn", 1)
    gates, r, h, _ = layer.arrays
    builder = GraphBuilder(layer.weights)
    x, w, state = (builder.weight(array) for array in (gates[0], r, h))
    maps = builder.op("core.tanh", builder.op("core.add", x, builder.op("core.matmul", state, w)))
    (expected,) = evaluate_bounded(builder.finish([maps]), layer.weights, [], UNIT)
    y, last = layer.bounded()
    np.testing.assert_array_equal(y.own[0], expected.own)
    np.testing.assert_array_equal(last.own, expected.own)
    np.testing.assert_allclose(last.value, expected.value, rtol=1e-14)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_f32_keeps_the_bounds(op: str, reverse: int) -> None:
    layer = Layer(op, 12, [12, 4, 0], reverse=reverse)
    for wanted, got in zip(layer.bounded(), layer.plain(), strict=True):
        assert got.dtype == np.float32
        assert within(got, wanted, UNIT).all()
        assert np.isfinite(wanted.own).all()
        off = got + np.float32(4 * UNIT) * wanted.own.astype(np.float32)
        assert not within(off, wanted, UNIT)[wanted.own > 0].any()


@pytest.mark.parametrize("name", ACTIVATION_DEFAULTS)
def test_f32_keeps_the_bounds_of_activations(name: str) -> None:
    for op, names in FUNCTIONS.items():
        layer = Layer(op, 3, activations=(name,) * len(names), clip=1.5)
        for wanted, got in zip(layer.bounded(), layer.plain(), strict=True):
            assert within(got, wanted, UNIT).all()


def test_rows_that_are_over_are_exact() -> None:
    """They give zeros; a row without any step keeps the state that came in."""
    y, last = Layer("gru", 4, [4, 2, 0]).bounded()
    assert (y.own[:, 0] > 0).all()
    assert (y.own[:2, 1] > 0).all()
    assert not y.own[2:, 1].any()
    assert not y.value[2:, 1].any()
    assert not y.own[:, 2].any()
    assert not last.own[2].any()
    np.testing.assert_array_equal(last.own[:2], [y.own[3, 0], y.own[1, 1]])


def test_errors_grow_from_step_to_step() -> None:
    y, _ = Layer("rnn", 6, activations=("Affine",)).bounded()
    sizes = y.own.mean(axis=(1, 2))
    assert (np.diff(sizes) > 0).all()


def test_the_longest_sum_is_that_of_the_state() -> None:
    layer = Layer("lstm", 2)
    assert longest_sum(layer.graph, lambda value: layer.arrays[value].shape) == HIDDEN
