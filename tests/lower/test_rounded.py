"""Products whose result leaves twice, as it is and rounded for the next product: the interpreter against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.lower.cuts import CutRun
from tests.rewrite.graphs import Build, const, f32, ints, made

from tierup.ir.build import GraphBuilder
from tierup.ir.types import Array, DType
from tierup.lower.kernel import Kernel
from tierup.reference.evaluate import evaluate

RANDOM = np.random.default_rng(12)
SHAPE = (2, 9, 8, 16)
EPS = 2.0**-23


def random(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def matmul(b: GraphBuilder, x: int) -> int:
    return b.op("core.matmul", x, const(b, random(16, 20)))


def conv(b: GraphBuilder, x: int, rows: int, columns: int, **attrs: Any) -> int:
    around = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "group": 1, "algorithm": "direct"}
    return b.op("core.conv_last", x, const(b, random(rows, columns)), ints(b, 1, 1, 1, 1), **{**around, **attrs})


PRODUCTS = {
    "matmul": matmul,
    "direct": lambda b, x: conv(b, x, 144, 20),
    "winograd": lambda b, x: conv(b, x, 144, 20, algorithm="winograd"),
    "few": lambda b, x: conv(b, x, 144, 2),
    "depthwise": lambda b, x: conv(b, x, 9, 16, group=16),
}


def cast(b: GraphBuilder, x: int) -> int:
    return b.op("core.cast", x, to=DType.BF16.code, saturate=1, flush=1)


def kernels(build: Build) -> tuple[list[Array], list[Array], list[Kernel]]:
    """What the kernels answer, what is right in f64, and the kernels."""
    graph, weights = made(build)
    x = random(*SHAPE)
    done = CutRun(graph, weights, [x], frozenset())
    return done.outputs(), evaluate(graph, weights, [x], wide=True), [kernel for _, kernel in done.kernels]


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_one_kernel_writes_both(product: Any) -> None:
    def build(b: GraphBuilder) -> list[int]:
        y = b.op("core.max", product(b, f32(b, *SHAPE)), const(b, -1.0))
        return [y, cast(b, y)]

    (plain, rounded), (wanted, _), (kernel,) = kernels(build)
    assert [(each.name, each.dtype) for each in kernel.program.buffers if each.mode == "out"] == [
        ("out", DType.F32), ("rounded", DType.BF16),
    ]  # fmt: skip
    assert np.abs(plain - wanted).max() <= EPS * 16 * 144  # sums of at most 144 products of normal numbers
    np.testing.assert_array_equal(rounded, plain.astype(DType.BF16.numpy))


def test_what_is_needed_before_it_is_rounded_leaves_alone() -> None:
    """The region would run where the rounding stands, and the sum in between reads the product."""

    def build(b: GraphBuilder) -> list[int]:
        y = b.op("core.max", matmul(b, f32(b, *SHAPE)), const(b, -1.0))
        total = b.op("core.reduce_sum", y, axes=(0,), keepdims=1)
        return [total, cast(b, y)]

    (total, rounded), (wanted, plain), (product, *_) = kernels(build)
    assert [each.dtype for each in product.program.buffers if each.mode == "out"] == [DType.F32]
    np.testing.assert_allclose(total, wanted, atol=EPS * 16 * 32)
    np.testing.assert_allclose(rounded.astype(np.float64), plain, rtol=2.0**-8, atol=EPS * 16)
