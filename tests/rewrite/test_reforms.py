"""Every row of the table of reforms: where it applies, where it must not, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import Build, const, f32, ints, made, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rules.reforms import padded_pool, reformed
from tierup.rewrite.walk import walk

RNG = np.random.default_rng(3)


def reform(build: Build) -> tuple[Graph, Graph, Weights]:
    graph, weights = made(build)
    after = walk(graph, weights, (reformed, padded_pool)).graph
    verify(after, weights)
    return graph, after, weights


def compare(build: Build, *feeds: Any, sums: int = 1) -> list[str]:
    """The ops that are left. Answers may differ by the rounding of sums of so many terms."""
    graph, after, weights = reform(build)
    arrays = list(feeds)
    exact = evaluate(graph, weights, arrays, wide=True)
    for wanted, got, best in zip(
        evaluate(graph, weights, arrays), evaluate(after, weights, arrays), exact, strict=True
    ):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        # a sum of n products of numbers around 1 is off by some √n roundings of its own size, at most n
        bound = 4 * np.sqrt(sums) * np.finfo(np.float32).eps * max(np.abs(best).max(initial=0), 1)
        np.testing.assert_allclose(got, best, rtol=0, atol=bound)
    return ops(after)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op", ["core.pool_sum", "core.pool_max"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I8])
def test_pads_of_pools_are_written_out(op: str, dtype: DType) -> None:
    attrs = Attrs({"kernel_shape": (3, 2), "strides": (2, 1), "dilations": (1, 1)})

    def build(b: GraphBuilder) -> int:
        wanted = [True] if op == "core.pool_sum" else [True, False]
        results = b.node(op, [b.open_input(dtype, ("n", 2, 5, 4)), ints(b, 1, 0, 2, 1)], attrs, outputs=wanted)
        assert results[0] is not None
        return results[0]

    graph, after, weights = reform(build)
    assert ops(after) == ["core.pad", op]
    x = (floats(2, 2, 5, 4) * 9).astype(dtype.numpy)
    if dtype is DType.F32:
        x[0, 0, 0, 0], x[1, 1] = np.nan, -np.inf  # a window of nothing else has the least there is as its largest
    np.testing.assert_array_equal(evaluate(after, weights, [x])[0], evaluate(graph, weights, [x])[0])


def test_pools_that_stay() -> None:
    attrs = Attrs({"kernel_shape": (2,), "strides": (1,), "dilations": (1,)})

    def with_places(b: GraphBuilder) -> list[int]:
        return [v for v in b.node("core.pool_max", [f32(b, 1, 1, 4), ints(b, 1, 1)], attrs, outputs=[True, True]) if v]

    assert ops(reform(with_places)[1]) == ["core.pool_max"]
    plain = reform(lambda b: b.op("core.pool_sum", f32(b, 1, 1, 4), ints(b, 0, 0), **attrs))
    assert ops(plain[1]) == ["core.pool_sum"]


MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_resize_by_tables(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(("nearest", "linear", "cubic")))
    before = [data.draw(st.integers(1, 6)) for _ in range(2)]
    after = [data.draw(st.integers(1, 9)) for _ in range(2)]
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": data.draw(st.sampled_from(MODES)),
        "nearest_mode": data.draw(st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))),
        "antialias": data.draw(st.integers(0, 1)),
        "exclude_outside": data.draw(st.integers(0, 1)),
        "cubic_coeff_a": -0.75,
        "extrapolation_value": 0.5,
    }
    scales = [1.0, 1.0, *(b / a for a, b in zip(before, after, strict=True))]
    roi = [0.0, 0.0, -0.25, 0.25, 1.0, 1.0, 0.75, 1.5]

    def build(b: GraphBuilder) -> int:
        sizes = b.op("core.concat", b.op("core.slice", b.op("core.shape", x := f32(b, "n", 2, *before)), ints(b, 0),
                                         ints(b, 2), axes=(0,), steps=(1,)), ints(b, *after), axis=0)  # fmt: skip
        return b.op("core.resize", x, sizes, const(b, scales, np.float64), const(b, roi, np.float64), **attrs)

    left = compare(build, floats(3, 2, *before), sums=64)
    stays = mode != "nearest" and attrs["antialias"] and min(scales) < 0.5  # many taps
    assert ("core.resize" not in left) or stays


def test_resize_to_sizes_of_the_call_stays() -> None:
    def build(b: GraphBuilder) -> int:
        x, sizes = f32(b, 1, 2, 4), b.open_input(DType.I64, (3,))
        scales, roi = const(b, [1, 1, 2], np.float64), const(b, [0, 0, 0, 1, 1, 1], np.float64)
        attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return b.op("core.resize", x, sizes, scales, roi, **attrs)

    assert ops(reform(build)[1]) == ["core.resize"]
