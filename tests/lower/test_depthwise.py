"""Convolutions of every channel by itself: what threads divide, and that each result is computed where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.lower.cuts import CutRun
from tests.rewrite.graphs import const, f32, ints, made

from tierup.ir.build import GraphBuilder
from tierup.reference.core_windows import conv_last
from tierup.reference.evaluate import evaluate

RANDOM = np.random.default_rng(9)
EPS = 2.0**-23
AROUND = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "algorithm": "direct"}


@pytest.mark.parametrize(
    ("shape", "attrs", "pads", "axes"),
    [
        ((1, 8, 9, 80), {}, (1, 1, 1, 1), "nhbo0"),  # many channels: halves of the rows, and channels in them
        ((2, 8, 9, 150), {}, (1, 1, 1, 1), "nhjo0"),  # channels that fill no blocks
        ((1, 18, 19, 80), {"strides": (2, 2)}, (0, 0, 0, 0), "nhbo0"),  # nothing around the data
        ((1, 7, 10, 80), {}, (1, 1, 1, 1), "no0b"),  # rows that have no halves
        ((1, 8, 9, 64), {}, (1, 1, 1, 1), "no0b"),  # more places than channels
        ((1, 6, 9, 80), {}, (1, 1, 1, 1), "nbo0"),  # few places
        ((1, "h", 9, 80), {}, (1, 1, 1, 1), "no0b"),  # a number of rows that is open
    ],
)
def test_what_threads_divide(shape: tuple[Any, ...], attrs: dict[str, Any], pads: tuple[int, ...], axes: str) -> None:
    """Sums of nine products, within their rounding."""
    channels = shape[-1]
    w = RANDOM.standard_normal((9, channels)).astype(np.float32)

    def build(b: GraphBuilder) -> int:
        given = {**AROUND, "group": channels, **attrs}
        return b.op("core.conv_last", f32(b, *shape), const(b, w), ints(b, *pads), **given)

    graph, weights = made(build)
    x = RANDOM.standard_normal([8 if size == "h" else size for size in shape]).astype(np.float32)
    done = CutRun(graph, weights, [x])
    (got,), (wanted,) = done.outputs(), evaluate(graph, weights, [x], wide=True)
    size = conv_last(graph.nodes[0], np.abs(x).astype(np.float64), np.abs(w).astype(np.float64), np.array(pads))
    assert (np.abs(got - wanted) <= EPS * (4 + 3) * size).all()
    ((_, kernel),) = done.kernels
    assert "".join(dimension.axis for dimension in kernel.program.grid) == axes
