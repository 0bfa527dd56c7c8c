"""Scales and limits between sums of bytes and bytes: what is joined, what stays, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.rewrite.graphs import Build, const, made, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, ValueId
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import shorten_scales

RANDOM = np.random.default_rng(12)
SUMS = RANDOM.integers(-(2**20), 2**20, (6, 5)).astype(np.int32)


def scaled(b: GraphBuilder, low: float | None = 0.0, high: float | None = 6.0, factor: float = 42.5) -> ValueId:
    """clip(c · s + b, low, high) · factor, of sums."""
    x = b.op("core.cast", b.open_input(DType.I32, (6, 5)), to=DType.F32.code, saturate=1)
    y = b.op("core.mul", x, const(b, RANDOM.uniform(1e-6, 1e-5, 5)))
    y = b.op("core.add", y, const(b, RANDOM.standard_normal(5)))
    y = y if low is None else b.op("core.max", y, const(b, low))
    y = y if high is None else b.op("core.min", y, const(b, high))
    return b.op("core.mul", y, const(b, factor))


def as_bytes(b: GraphBuilder, y: ValueId, zero: float = 0.0) -> ValueId:
    y, low = b.op("core.round", y), const(b, 0.0)
    y = b.op("core.add", y, const(b, zero)) if zero else y
    kept = b.op("core.select", b.op("core.lt", low, y), y, low)
    return b.op("core.cast", b.op("core.min", kept, const(b, 255.0)), to=DType.U8.code, saturate=1)


def shortened(build: Build, tolerance: float, *feeds: Any) -> Graph:
    graph, weights = made(build)
    after = shorten_scales(graph, weights)
    verify(after, weights)
    (wanted,), (got,) = evaluate(graph, weights, list(feeds)), evaluate(after, weights, list(feeds))
    assert np.abs(got.astype(np.float64) - wanted).max() <= tolerance
    return after


def test_factors_go_into_scales() -> None:
    # three roundings of numbers up to 255 against four
    after = shortened(scaled, 4 * 2.0**-24 * 255 * 4, SUMS)
    assert ops(after) == ["core.cast", "core.mul", "core.add", "core.max", "core.min"]


def test_limits_that_leave_room_are_left_out() -> None:
    after = shortened(lambda b: as_bytes(b, scaled(b)), 1, SUMS)
    assert ops(after).count("core.min") == 1
    assert "core.max" not in ops(after)


@pytest.mark.parametrize(
    ("low", "high", "zero", "left"),
    [
        (0.0, 3.0, 0.0, {"core.min"}),  # 127.5 is below 255, and hides the limit behind it
        (1.0, 6.0, 0.0, {"core.max"}),
        (0.0, 6.0, 10.0, {"core.max"}),  # 0 + 10 is above 0
        (-1.0, 7.0, 10.0, set()),
        (None, 6.0, 0.0, set()),
    ],
)
def test_tighter_limits_stay(low: float | None, high: float, zero: float, left: set[str]) -> None:
    after = shortened(lambda b: as_bytes(b, scaled(b, low, high), zero), 1, SUMS)
    limits = ops(after)[: ops(after).index("core.round")]
    assert left.issubset(limits)
    if not left:
        assert not {"core.max", "core.min"}.intersection(limits)


def test_what_others_read_stays() -> None:
    def build(b: GraphBuilder) -> ValueId:
        x = b.op("core.cast", b.open_input(DType.I32, (6, 5)), to=DType.F32.code, saturate=1)
        y = b.op("core.mul", x, const(b, 1e-5))
        return b.op("core.add", b.op("core.mul", y, const(b, 3.0)), y)

    assert ops(shortened(build, 0, SUMS)).count("core.mul") == 2


@pytest.mark.parametrize("factor", [-2.0, 0.0])
def test_factors_that_turn_limits_over_stay(factor: float) -> None:
    assert ops(shortened(lambda b: scaled(b, factor=factor), 0, SUMS)).count("core.mul") == 2


def test_floats_that_were_no_sums_are_multiplied_as_they_were() -> None:
    def build(b: GraphBuilder) -> ValueId:
        y = b.op("core.mul", b.open_input(DType.F32, (6, 5)), const(b, 1e-5))
        return b.op("core.mul", y, const(b, 3.0))

    assert ops(shortened(build, 0, SUMS.astype(np.float32))).count("core.mul") == 2


def test_nodes_without_inputs_are_passed_over() -> None:
    def build(b: GraphBuilder) -> ValueId:
        b.node("onnx.SequenceEmpty", (), Attrs({"dtype": DType.F32.code}), version=11)
        return scaled(b)

    graph, weights = made(build)
    (empty,) = (node.outputs[0] for node in graph.nodes if node.op == "onnx.SequenceEmpty")
    assert empty is not None
    graph = replace(graph, outputs=(*graph.outputs, empty))
    assert "onnx.SequenceEmpty" in ops(shorten_scales(graph, weights))
