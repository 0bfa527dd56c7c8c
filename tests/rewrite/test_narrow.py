"""Products in bf16: which are, which are not, and how far they are off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rewrite.graphs import Build, const, f32, ints, made, ops

from tierup.config import BF16_ERROR_BOUND
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.core_windows import conv_last
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import narrow_products

RANDOM = np.random.default_rng(8)
W = RANDOM.standard_normal((6, 5)).astype(np.float32)


def narrowed(build: Build) -> tuple[Graph, Graph, Weights]:
    graph, weights = made(build)
    after = narrow_products(graph, weights)
    verify(after, weights)
    return graph, after, weights


def test_both_sides_are_rounded_and_the_error_is_as_derived() -> None:
    graph, after, weights = narrowed(lambda b: b.op("core.matmul", f32(b, "n", 6), const(b, W)))
    assert ops(after) == ["core.cast", "core.cast", "core.matmul"]
    assert after.nodes[0].attrs["flush"]  # as the product takes denormals
    x = (RANDOM.standard_normal((400, 6)) * 2.0 ** RANDOM.integers(-9, 9, (400, 6))).astype(np.float32)
    (exact,), (got,) = evaluate(graph, weights, [x], wide=True), evaluate(after, weights, [x])
    assert got.dtype == np.float32
    size = np.abs(x.astype(np.float64)) @ np.abs(W.astype(np.float64))
    off = np.abs(got - exact) / size
    assert off.max() <= BF16_ERROR_BOUND + 10 * 2.0**-23
    assert off.max() > 2.0**-10  # it is bf16


CONV = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "group": 1, "algorithm": "winograd"}


def conv(b: GraphBuilder, channels: int = 6, columns: int = 8, **attrs: Any) -> int:
    w = RANDOM.standard_normal((4 * channels // attrs.get("group", 1), columns)).astype(np.float32)
    x = f32(b, "n", 4, 5, channels)
    return b.op("core.conv_last", x, const(b, w), ints(b, 1, 0, 0, 1), **{**CONV, **attrs})


@pytest.mark.parametrize(
    ("channels", "columns", "put"), [(6, 8, []), (3, 80, ["core.pad"])], ids=["pairs", "three that are worth a fourth"]
)
def test_a_convolution_is_rounded_and_direct(channels: int, columns: int, put: list[str]) -> None:
    graph, after, weights = narrowed(lambda b: conv(b, channels, columns))
    assert ops(after) == ["core.cast", *put, "core.cast", "core.conv_last"]
    assert after.nodes[-1].attrs["algorithm"] == "direct"
    x = RANDOM.standard_normal((40, 4, 5, channels)).astype(np.float32)
    (exact,), (got,) = evaluate(graph, weights, [x], wide=True), evaluate(after, weights, [x])
    assert got.dtype == np.float32
    ((_, digest),) = [(value, digest) for value, digest in graph.weights if value == graph.nodes[0].inputs[1]]
    sizes = [np.abs(array.astype(np.float64)) for array in (x, weights[digest])]
    off = np.abs(got - exact) / conv_last(graph.nodes[0], *sizes, np.array([1, 0, 0, 1]))
    assert off.max() <= BF16_ERROR_BOUND + 24 * 2.0**-23
    assert off.max() > 2.0**-10  # it is bf16


def test_what_two_products_read_is_rounded_once() -> None:
    def build(b: GraphBuilder) -> list[int]:
        x = f32(b, "n", 6)
        return [b.op("core.matmul", x, const(b, W)), b.op("core.matmul", x, const(b, W + 1))]

    _, after, _ = narrowed(build)
    assert sorted(ops(after)) == ["core.cast"] * 3 + ["core.matmul"] * 2


@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.op("core.matmul", f32(b, "n", 6), f32(b, 6, 5)),  # no constant
        lambda b: b.op("core.matmul", f32(b, "n", 5), const(b, W[:5])),  # no pairs
        lambda b: b.op("core.matmul", f32(b, 2, "n", 6), const(b, np.stack([W, W]))),  # a batch of matrices
        lambda b: b.op("core.matmul", b.open_input(DType.F64, ("n", 6)), const(b, W, np.float64)),
        lambda b: b.op("core.matmul", b.open_input(DType.U8, ("n", 6)), const(b, W, np.int8)),
        lambda b: conv(b, 5),  # no pairs of channels
        lambda b: conv(b, 3, 80, strides=(2, 1)),  # too few products for each element of the data
        lambda b: conv(b, 1, 800),  # half of all products would be with zeros
        lambda b: conv(b, 8, group=8),  # every channel by itself
    ],
)
def test_others_stay(build: Build) -> None:
    graph, after, _ = narrowed(build)
    assert ops(after) == ops(graph)


def test_batches_that_are_computed_are_rounded_before_they_are_turned() -> None:
    def build(b: GraphBuilder) -> int:
        k = b.op("core.transpose", f32(b, 2, "n", 6), perm=(0, 2, 1))
        return b.op("core.matmul", f32(b, 2, "m", 6), k)

    graph, after, weights = narrowed(build)
    assert sorted(ops(after)) == ["core.cast", "core.cast", "core.matmul", "core.transpose"]
    assert ops(after).index("core.transpose") > ops(after).index("core.cast")
    k, q = (RANDOM.standard_normal((2, size, 6)).astype(np.float32) for size in (3, 4))
    feeds = [k, q]
    (exact,), (got,) = evaluate(graph, weights, feeds, wide=True), evaluate(after, weights, feeds)
    size = np.abs(q.astype(np.float64)) @ np.abs(k.astype(np.float64)).swapaxes(1, 2)
    assert (np.abs(got - exact) <= (BF16_ERROR_BOUND + 10 * 2.0**-23) * size).all()


def test_a_number_that_multiplies_a_side_multiplies_the_product() -> None:
    def build(b: GraphBuilder) -> int:
        q = b.op("core.mul", f32(b, 2, "m", 6), const(b, 0.3))
        k = b.op("core.div", f32(b, 2, 6, "n"), const(b, 0.7))
        return b.op("core.matmul", q, k)

    graph, after, weights = narrowed(build)
    assert ops(after)[-2:] == ["core.matmul", "core.mul"]
    q, k = RANDOM.standard_normal((2, 3, 6)).astype(np.float32), RANDOM.standard_normal((2, 6, 4)).astype(np.float32)
    (exact,), (got,) = evaluate(graph, weights, [q, k], wide=True), evaluate(after, weights, [q, k])
    size = np.abs(q.astype(np.float64)) @ np.abs(k.astype(np.float64)) * 0.3 / 0.7
    assert (np.abs(got - exact) <= (BF16_ERROR_BOUND + 20 * 2.0**-23) * size).all()


def test_what_is_divided_by_a_side_is_no_factor() -> None:
    _, after, _ = narrowed(
        lambda b: b.op("core.matmul", b.op("core.div", const(b, 2.0), f32(b, 2, "m", 6)), f32(b, 2, 6, "n"))
    )
    assert ops(after)[-1] == "core.matmul"
