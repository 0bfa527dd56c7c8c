"""Pads that repeat: which are taken to pieces, and that no element changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rewrite.graphs import const, f32, ints, made, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rules.bent import bent_pads
from tierup.rewrite.walk import walk


def padded(shape: tuple[Any, ...], widths: tuple[int, ...], mode: str) -> list[str]:
    """The ops that are left; every element is the one of before."""

    def build(b: GraphBuilder) -> int:
        return b.op("core.pad", f32(b, *shape), ints(b, *widths), const(b, 0.0), mode=mode)

    graph, weights = made(build)
    rule = bent_pads(graph)
    if rule is None:
        return ops(graph)
    after = walk(graph, weights, (rule,)).graph
    verify(after, weights)
    sizes = [size if isinstance(size, int) else 200 for size in shape]
    x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    for wanted, got in zip(evaluate(graph, weights, [x]), evaluate(after, weights, [x]), strict=True):
        np.testing.assert_array_equal(got, wanted)
    return ops(after)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((2, 200), (0, 3, 0, 5)),
        ((2, 3, 128), (0, 0, 0, 0, 0, 126)),
        ((2, 3, 128), (0, 0, 126, 0, 0, 0)),
        ((3, 4, 150), (0, 2, 7, 0, 3, 1)),
        (("n", 130), (0, 1, 0, 1)),
    ],
)
def test_long_rows_are_copied_between_their_ends(shape: tuple[Any, ...], widths: tuple[int, ...], mode: str) -> None:
    assert "core.concat" in padded(shape, widths, mode)


@pytest.mark.parametrize(
    ("shape", "widths", "mode"),
    [
        ((2, 200), (0, 3, 0, 5), "constant"),
        ((2, 127), (0, 3, 0, 5), "reflect"),  # short
        ((2, "n"), (0, 3, 0, 5), "reflect"),  # the call knows how long
        ((200, 200), (3, 0, 5, 0), "reflect"),  # nothing on the last axis
        ((2, 128), (0, 127, 0, 0), "reflect"),  # nearly all of it, or more than once
        ((2, 128), (0, 300, 0, 0), "wrap"),
    ],
)
def test_other_pads_stay(shape: tuple[Any, ...], widths: tuple[int, ...], mode: str) -> None:
    assert padded(shape, widths, mode) == ["core.pad"]
