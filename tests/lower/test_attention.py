"""Attention in bf16, in the interpreter: on words and on floats, against the reference of the same graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.lower.cuts import CutRun
from tests.rewrite.graphs import const, made

from tierup.ir.build import GraphBuilder
from tierup.ir.types import DType
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import narrow_products

RANDOM = np.random.default_rng(4)
HEADS, WIDTH = 2, 6


def attention(length: Any, *, scaled_sides: bool = False, turned: bool = True) -> Any:
    """Core nodes of attention over heads that lie side by side; `scaled_sides`: q and k are multiplied, not scores."""

    def build(b: GraphBuilder) -> int:
        def heads(name: str) -> int:
            x = b.open_input(DType.F32, (2, length, HEADS, WIDTH), name)
            return b.op("core.transpose", x, perm=(0, 2, 1, 3))

        q, k, v = heads("q"), heads("k"), heads("v")
        k = b.op("core.transpose", k, perm=(0, 1, 3, 2))
        if scaled_sides:
            q, k = (b.op("core.mul", side, const(b, np.float32(0.6))) for side in (q, k))
        scores = b.op("core.matmul", q, k)
        if not scaled_sides:
            scores = b.op("core.mul", scores, const(b, np.float32(0.4)))
        top = b.op("core.reduce_max", scores, axes=(3,), keepdims=1)
        weights = b.op("core.exp", b.op("core.sub", scores, top))
        total = b.op("core.reduce_sum", weights, axes=(3,), keepdims=1)
        mixed = b.op("core.matmul", b.op("core.div", weights, total), v)
        return b.op("core.transpose", mixed, perm=(0, 2, 1, 3)) if turned else mixed

    return build


@pytest.mark.parametrize("dots", [frozenset(), frozenset({"dot_bf16"})], ids=["floats", "words"])
@pytest.mark.parametrize("scaled_sides", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5, 8, 23])
@pytest.mark.parametrize("known", [False, True])
def test_bf16(length: int, scaled_sides: bool, known: bool, dots: frozenset[str]) -> None:
    """Weights that lie between two of bf16 may go to either: a row is off by 2^-8 of one, here and there."""
    graph, weights = made(attention(length if known else "n", scaled_sides=scaled_sides))
    graph = narrow_products(graph, weights)
    x = [RANDOM.standard_normal((2, length, HEADS, WIDTH)).astype(np.float32) for _ in range(3)]
    (wanted,) = evaluate(graph, weights, x)
    run = CutRun(graph, weights, x, dots)
    (got,) = run.outputs()
    attentions = [kernel for region, kernel in run.kernels if region.kind == "attention"]
    assert len(attentions) == 1
    assert ("dot_bf16" in repr(attentions[0].program)) is bool(dots)
    off = np.abs(got.astype(np.float64) - wanted)
    assert off.max() <= 2.0**-8 * np.abs(x[2]).max()
    assert (off > 4e-6).any(-1).sum() <= 2 + 0.02 * off.size // WIDTH


def test_odd_widths_are_multiplied_as_floats() -> None:
    """Pairs would begin amid words."""

    def build(b: GraphBuilder) -> int:
        q, k, v = (b.open_input(DType.F32, (2, 4, 5), name) for name in "qkv")
        scores = b.op("core.matmul", q, b.op("core.transpose", k, perm=(0, 2, 1)))
        top = b.op("core.reduce_max", scores, axes=(2,), keepdims=1)
        weights = b.op("core.exp", b.op("core.sub", scores, top))
        total = b.op("core.reduce_sum", weights, axes=(2,), keepdims=1)
        return b.op("core.matmul", b.op("core.div", weights, total), v)

    graph, weights = made(build)
    graph = narrow_products(graph, weights)
    x = [RANDOM.standard_normal((2, 4, 5)).astype(np.float32) for _ in range(3)]
    run = CutRun(graph, weights, x, frozenset({"dot_bf16"}))
    (got,) = run.outputs()
    (kernel,) = (kernel for region, kernel in run.kernels if region.kind == "attention")
    assert "dot_bf16" not in repr(kernel.program)
    np.testing.assert_allclose(got, evaluate(graph, weights, x)[0], atol=2.0**-8 * np.abs(x[2]).max())
