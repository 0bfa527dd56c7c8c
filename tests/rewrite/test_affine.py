"""Constants behind a product: what is joined, what stays, and that the numbers stay within the rounding of a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rewrite.graphs import Build, const, f32, ints, made, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph, ValueId
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import prune
from tierup.rewrite.rules.affine import joined_constants
from tierup.rewrite.walk import walk

RANDOM = np.random.default_rng(3)
CONV = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "group": 1, "algorithm": "direct"}
# A few roundings of sums of at most 72 products, of which none is above ten.
ATOL = 72 * 10 * 2.0**-23


def floats(*shape: int) -> Any:
    return RANDOM.uniform(-2, 2, shape).astype(np.float32)


def joined(build: Build) -> Graph:
    """The graph behind the rule; it gives what it gave, in float64 and in f32."""
    graph, weights = made(build)
    rule = joined_constants(graph)
    after = prune(walk(graph, weights, () if rule is None else (rule,)).graph, weights)
    verify(after, weights)
    inputs = [floats(*(3 if not isinstance(d, int) else d for d in graph.type(v).shape)) for v in graph.inputs]  # type: ignore[union-attr]  # they are tensors
    for wide in (False, True):
        old, new = (evaluate(each, weights, inputs, wide=wide) for each in (graph, after))
        for a, b in zip(old, new, strict=True):
            np.testing.assert_allclose(b, a, rtol=0, atol=ATOL)
    return after


def product(b: GraphBuilder) -> ValueId:
    return b.op("core.matmul", f32(b, "n", 5, 8), const(b, floats(8, 6)))


def norm(b: GraphBuilder, x: ValueId, *shape: int) -> ValueId:
    """(x - mean) · factor + shift"""
    less = b.op("core.sub", x, const(b, floats(*shape)))
    return b.op("core.add", b.op("core.mul", less, const(b, floats(*shape))), const(b, floats(*shape)))


@pytest.mark.parametrize("shape", [(6,), (1, 1, 6), (), (1,)])
def test_a_normalisation_behind_a_product(shape: tuple[int, ...]) -> None:
    assert ops(joined(lambda b: norm(b, product(b), *shape))) == ["core.matmul", "core.add"]


@pytest.mark.parametrize("group", [1, 8])
def test_a_bias_and_a_normalisation_behind_a_convolution(group: int) -> None:
    def build(b: GraphBuilder) -> ValueId:
        matrix, columns = ((9, 8), 8) if group > 1 else ((72, 6), 6)
        data = f32(b, 1, 5, 6, 8)
        conv = b.op("core.conv_last", data, const(b, floats(*matrix)), ints(b, 1, 1, 1, 1), **{**CONV, "group": group})
        return norm(b, b.op("core.add", const(b, floats(columns)), conv), columns)

    assert ops(joined(build)) == ["core.conv_last", "core.add"]


def test_a_factor_alone_leaves_nothing_behind() -> None:
    assert ops(joined(lambda b: b.op("core.mul", const(b, 0.5), product(b)))) == ["core.matmul"]


def test_what_is_not_constant_ends_the_chain() -> None:
    def build(b: GraphBuilder) -> ValueId:
        scaled = b.op("core.mul", product(b), const(b, floats(6)))
        return b.op("core.mul", b.op("core.add", scaled, f32(b, 6)), const(b, floats(6)))

    assert ops(joined(build)) == ["core.matmul", "core.add", "core.mul"]


def _read_twice(b: GraphBuilder) -> ValueId:
    x = product(b)
    return b.op("core.add", b.op("core.mul", x, const(b, floats(6))), x)


def _answered(b: GraphBuilder) -> list[ValueId]:
    x = product(b)
    return [x, b.op("core.mul", x, const(b, floats(6)))]


def _one_for_each_row(b: GraphBuilder) -> ValueId:
    return b.op("core.mul", product(b), const(b, floats(5, 1)))


def _stretched(b: GraphBuilder) -> ValueId:
    return b.op("core.mul", b.op("core.matmul", f32(b, "n", 8), const(b, floats(8, 1))), const(b, floats(6)))


def _taken_from_a_constant(b: GraphBuilder) -> ValueId:
    return b.op("core.mul", b.op("core.sub", const(b, floats(6)), product(b)), const(b, 2.0))


def _open_weights(b: GraphBuilder) -> ValueId:
    return b.op("core.mul", b.op("core.matmul", f32(b, "n", 8), f32(b, 8, 6)), const(b, floats(6)))


def _zero(b: GraphBuilder) -> ValueId:
    return b.op("core.mul", product(b), const(b, [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]))


def _tiny(b: GraphBuilder) -> ValueId:
    return b.op("core.mul", b.op("core.mul", product(b), const(b, 1e-30)), const(b, 1e-12))


def _one_bias(b: GraphBuilder) -> ValueId:
    return b.op("core.add", product(b), const(b, floats(6)))


@pytest.mark.parametrize(
    "build",
    [
        _read_twice, _answered, _one_for_each_row, _stretched, _taken_from_a_constant, _open_weights, _zero, _tiny,
        _one_bias,
    ],
)  # fmt: skip
def test_what_stays(build: Build) -> None:
    before, _ = made(build)
    assert ops(joined(build)) == ops(before)


def test_integers_stay() -> None:
    def build(b: GraphBuilder) -> ValueId:
        total = b.op("core.matmul", b.open_input(DType.I32, (4, 3)), const(b, np.ones((3, 2)), np.int32))
        return b.op("core.mul", total, const(b, 3, np.int32))

    graph, _ = made(build)
    assert joined_constants(graph) is None
