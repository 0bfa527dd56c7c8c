"""Weights of small integers: what becomes of them, what stays as it is, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rewrite.graphs import Build, const, f32, made

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import prune
from tierup.rewrite.rules.reforms import reformed
from tierup.rewrite.walk import walk

RANDOM = np.random.default_rng(5)
W = RANDOM.integers(-128, 128, (6, 4)).astype(np.int8)
COLUMNS = RANDOM.standard_normal(4).astype(np.float32)


def cast(b: GraphBuilder, value: int, to: DType = DType.F32) -> int:
    return b.op("core.cast", value, to=to.code, saturate=1)


def compare(build: Build) -> tuple[Graph, list[str]]:
    """The graph afterwards and the ops from the product on; answers differ by roundings alone."""
    graph, weights = made(build)
    after = prune(walk(graph, weights, (reformed,)).graph, weights)
    verify(after, weights)
    x = RANDOM.standard_normal((5, 6)).astype(np.float32)
    (exact,), (got,) = evaluate(graph, weights, [x], wide=True), evaluate(after, weights, [x])
    np.testing.assert_allclose(got, exact, rtol=0, atol=8 * 2.0**-23 * np.abs(exact).max(initial=1) * 6)
    found = [node.op for node in after.nodes]
    return after, found[found.index("core.matmul") :]


@pytest.mark.parametrize("scale", [COLUMNS, COLUMNS[None], COLUMNS[:1], COLUMNS[0]], ids=["N", "1N", "1", "one"])
@pytest.mark.parametrize("swapped", [False, True])
def test_scales_of_columns_move_behind_the_product(scale: Any, swapped: bool) -> None:
    def build(b: GraphBuilder) -> int:
        sides = [cast(b, const(b, W, np.int8)), const(b, scale)]
        return b.op("core.matmul", f32(b, "n", 6), b.op("core.mul", *(sides[::-1] if swapped else sides)))

    after, ops = compare(build)
    assert ops == ["core.matmul", "core.mul"]
    assert [after.type(value).dtype for value, _ in after.weights] == [DType.I8, DType.F32]  # type: ignore[union-attr]


def test_a_turned_weight_is_turned_now() -> None:
    def build(b: GraphBuilder) -> int:
        turned = np.ascontiguousarray(W.T)
        real = b.op("core.mul", cast(b, const(b, turned, np.int8)), const(b, COLUMNS[:, None]))
        return b.op("core.matmul", f32(b, "n", 6), b.op("core.transpose", real, perm=(1, 0)))

    assert compare(build)[1] == ["core.matmul", "core.mul"]


@pytest.mark.parametrize(("kind", "zero", "kept"), [(np.uint8, 128, DType.I8), (np.uint8, 3, DType.I16),
                                                   (np.int8, -5, DType.I16)])  # fmt: skip
def test_zero_points_are_taken_off_now(kind: Any, zero: int, kept: DType) -> None:
    whole = np.array([0, 255, 9, 128, 7, 200] if kind is np.uint8 else [-128, 127, 0, 5, 9, 1])

    def build(b: GraphBuilder) -> int:
        w = const(b, np.repeat(whole[:, None], 4, 1), kind)
        less = b.op("core.sub", cast(b, w, DType.I32), cast(b, const(b, zero, kind), DType.I32))
        return b.op("core.matmul", f32(b, "n", 6), b.op("core.mul", cast(b, less), const(b, COLUMNS)))

    after, ops = compare(build)
    assert ops == ["core.matmul", "core.mul"]
    assert kept in [after.type(value).dtype for value, _ in after.weights]  # type: ignore[union-attr]


@pytest.mark.parametrize("scale", [np.arange(6)[:, None], np.arange(24).reshape(6, 4)], ids=["rows", "elements"])
def test_other_scales_stay(scale: Any) -> None:
    def build(b: GraphBuilder) -> int:
        real = b.op("core.mul", cast(b, const(b, W, np.int8)), const(b, scale))
        return b.op("core.matmul", f32(b, "n", 6), real)

    assert compare(build)[1] == ["core.matmul"]


def test_wide_integers_stay() -> None:
    def build(b: GraphBuilder) -> int:
        real = b.op("core.mul", cast(b, const(b, W, np.int32)), const(b, COLUMNS))
        return b.op("core.matmul", f32(b, "n", 6), real)

    assert compare(build)[1] == ["core.matmul"]
