"""Every row of the table of reforms: where it applies, where it must not, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from tests.rewrite.graphs import Build, const, f32, ints, made, ops

from tierup.errors import InputError
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.plan.attention import attention
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import lower_to_core, simplify
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


def conv_transpose(b: GraphBuilder, x: int, w: int, pads: int, **other: Any) -> int:
    n = len(b.type(w).shape) - 2  # type: ignore[union-attr,arg-type]  # a tensor of a known rank
    attrs = {"group": 1, "strides": (1,) * n, "dilations": (1,) * n, "output_padding": (0,) * n, **other}
    return b.op("core.conv_transpose", x, w, pads, **attrs)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_transposed_convolutions_are_convolutions_of_phases(data: st.DataObject) -> None:
    n, group = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))

    def each(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(n)]

    sizes, kernel, strides, dilations = each(1, 4), each(1, 5), each(1, 4), each(1, 3)
    extra = [data.draw(st.integers(0, step - 1)) for step in strides]
    rows = zip(sizes, kernel, strides, dilations, extra, strict=True)
    whole = [(size - 1) * s + (k - 1) * d + 1 + e for size, k, s, d, e in rows]
    before = [data.draw(st.integers(0, size - 1)) for size in whole]
    after = [data.draw(st.integers(0, size - 1 - cut)) for size, cut in zip(whole, before, strict=True)]
    w, x = floats(2 * group, 3, *kernel), floats(2, 2 * group, *sizes)
    is_open = data.draw(st.booleans())

    def build(b: GraphBuilder) -> int:
        given = f32(b, "n", 2 * group, *(("h", "w")[:n] if is_open else sizes))
        attrs = {"group": group, "strides": tuple(strides), "dilations": tuple(dilations)}
        return conv_transpose(b, given, const(b, w), ints(b, *before, *after), output_padding=tuple(extra), **attrs)

    left = compare(build, x, sums=2 * int(np.prod(kernel)))
    assert "core.conv_transpose" not in left
    # phases that read alike are one convolution
    assert left.count("core.conv") <= int(np.prod([min(s, k) for s, k in zip(strides, kernel, strict=True)]))


def test_phases_of_equal_windows_are_one_convolution() -> None:
    def build(b: GraphBuilder) -> int:
        return conv_transpose(b, f32(b, 1, 3, "h", "w"), const(b, floats(3, 5, 2, 2)), ints(b, 0, 0, 0, 0),
                              strides=(2, 2))  # fmt: skip

    _, after, weights = reform(build)
    left = ops(simplify(after, weights))
    assert left.count("core.conv") == 1
    assert left[-2:] == ["core.reshape", "core.transpose"]  # nothing is cut off behind it


def test_phases_are_interleaved_with_the_channels_last() -> None:
    """Between the layout of the input and that of the result, every move leaves the channels side by side."""

    def build(b: GraphBuilder) -> int:
        return conv_transpose(b, f32(b, 1, 3, "h", "w"), const(b, floats(3, 16, 3, 3)), ints(b, 1, 1, 1, 1),
                              strides=(2, 2), output_padding=(1, 1))  # fmt: skip

    graph, weights = made(build)
    lowered = lower_to_core(graph, weights)
    turns = [node.attrs["perm"] for node in lowered.nodes if node.op == "core.transpose"]
    assert (turns[0], turns[-1]) == ((0, 2, 3, 1), (0, 3, 1, 2))
    assert len(turns) > 2
    assert all(perm[-1] == len(perm) - 1 for perm in turns[1:-1])


def test_infinities_stay_where_they_were() -> None:
    x = floats(1, 1, 4)
    x[0, 0, 1] = np.inf
    w = np.abs(floats(1, 1, 3)) + 1
    graph, after, weights = reform(
        lambda b: conv_transpose(b, f32(b, 1, 1, 4), const(b, w), ints(b, 0, 0), strides=(2,))
    )
    got, wanted = evaluate(after, weights, [x])[0], evaluate(graph, weights, [x])[0]
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))
    assert np.isinf(got).sum() == 3


def test_transposed_convolutions_of_bytes_give_wide_zeros() -> None:
    x, w = RNG.integers(0, 9, (1, 2, 3)).astype(np.uint8), RNG.integers(0, 9, (2, 1, 2)).astype(np.uint8)

    def build(b: GraphBuilder) -> int:
        given = b.open_input(DType.U8, (1, 2, 3))
        return conv_transpose(b, given, const(b, w, np.uint8), ints(b, 0, 0), strides=(3,), output_padding=(2,))

    graph, after, weights = reform(build)
    assert "core.conv_transpose" not in ops(after)
    (wanted,), (got,) = evaluate(graph, weights, [x]), evaluate(after, weights, [x])
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "build",
    [
        lambda b: conv_transpose(b, f32(b, 1, 2, 4), const(b, floats(2, 3, 2)), b.open_input(DType.I64, (2,))),
        lambda b: conv_transpose(b, f32(b, 1, 2, 4), f32(b, 2, 3, "k"), ints(b, 0, 0)),
    ],
)
def test_kernels_and_pads_of_the_call_stay(build: Build) -> None:
    assert ops(reform(build)[1]) == ["core.conv_transpose"]


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


RESIZED = (DType.F32, DType.F64, DType.F16, DType.U8, DType.I32)


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

    assert "core.resize" not in compare(build, floats(3, 2, *before), sums=64)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_resize_to_sizes_of_the_call(data: st.DataObject) -> None:
    """Positions, indices and weights as the reference has them; scales and crops that are data too."""
    mode, dtype = data.draw(st.sampled_from(("nearest", "linear", "cubic"))), data.draw(st.sampled_from(RESIZED))
    before = [data.draw(st.integers(1, 6)) for _ in range(2)]
    after = [data.draw(st.integers(1, 9)) for _ in range(2)]
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": data.draw(st.sampled_from((*MODES, "tf_half_pixel_for_nn"))),
        "nearest_mode": data.draw(st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))),
        "antialias": 0,
        "exclude_outside": data.draw(st.integers(0, 1)),
        "cubic_coeff_a": -0.75,
        "extrapolation_value": 0.5,
    }
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    scales = np.array([1.0, *(data.draw(st.sampled_from((ratio, 1.0, 0.6))) for ratio in ratios)])
    crop = data.draw(st.sampled_from(((-0.25, 0.25, 0.75, 1.5), (0.0, 0.0, 1.0, 1.0))))
    roi = np.array([0.0, *crop[:2], 1.0, *crop[2:]])
    is_fixed = data.draw(st.booleans())

    def build(b: GraphBuilder) -> int:
        x, sizes = b.open_input(dtype, ("n", "h", "w")), b.open_input(DType.I64, (3,))
        if is_fixed:
            return b.op("core.resize", x, sizes, const(b, scales, np.float64), const(b, roi, np.float64), **attrs)
        return b.op("core.resize", x, sizes, b.open_input(DType.F64, (3,)), b.open_input(DType.F64, (6,)), **attrs)

    x = (floats(2, *before) * (1 if dtype.is_float else 50)).astype(dtype.numpy)
    feeds = [x, np.array([2, *after]), *([] if is_fixed else [scales, roi])]
    if dtype is DType.F32 and mode != "nearest":
        assert "core.resize" not in compare(build, *feeds, sums=64)
        return
    graph, left, weights = reform(build)
    assert "core.resize" not in ops(left)
    (wanted,), (got,) = evaluate(graph, weights, feeds), evaluate(left, weights, feeds)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def test_resize_keeps_what_it_does_not_change() -> None:
    """Sizes that are equal by name need no lookup, where the scales are their ratios."""

    def build(b: GraphBuilder) -> int:
        x = f32(b, "n", 2, "h")
        shape = b.op("core.shape", x)
        double = b.op("core.mul", shape, ints(b, 1, 1, 2))
        wide, narrow = (b.op("core.cast", value, to=DType.F64.code, saturate=1) for value in (double, shape))
        scales, roi = b.op("core.div", wide, narrow), const(b, [0, 0, 0, 1, 1, 1], np.float64)
        attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return b.op("core.resize", x, double, scales, roi, **attrs)

    assert compare(build, floats(2, 2, 5)).count("core.gather") == 1


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_filters_whose_width_the_call_decides(data: st.DataObject) -> None:
    mode, is_fixed = data.draw(st.sampled_from(("linear", "cubic"))), data.draw(st.booleans())
    before, after = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 12))
    scale = data.draw(st.sampled_from((after / before, 1.0, 0.3)))
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": data.draw(st.sampled_from(("half_pixel", "asymmetric", "align_corners"))),
        "antialias": 1,
        "exclude_outside": data.draw(st.integers(0, 1)),
    }

    def build(b: GraphBuilder) -> int:
        x, sizes = f32(b, "n", "h", 2), b.open_input(DType.I64, (3,))
        scales = const(b, [1, scale, 1], np.float64) if is_fixed else b.open_input(DType.F64, (3,))
        return b.op("core.resize", x, sizes, scales, const(b, [0, 0, 0, 1, 1, 1], np.float64), **attrs)

    feeds = [floats(2, before, 2), np.array([2, after, 2]), *([] if is_fixed else [np.array([1, scale, 1])])]
    assert "core.resize" not in compare(build, *feeds, sums=64)


def topk(b: GraphBuilder, x: int, k: int, axis: int, largest: int) -> list[int]:
    attrs = Attrs({"axis": axis, "largest": largest, "sorted": 1})
    return [value for value in b.node("core.topk", [x, k], attrs, outputs=[True, True]) if value is not None]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_best_of_a_short_axis_are_counted_out(data: st.DataObject) -> None:
    """Few different numbers, so that many are equal; NaN and infinities among them."""
    dtype = data.draw(st.sampled_from((DType.F32, DType.F16, DType.I64, DType.U8)))
    axis, size = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 9))
    k, largest = data.draw(st.integers(1, size)), data.draw(st.integers(0, 1))
    shape = [2, 3]
    shape.insert(axis, size)
    pool = [0, 1, 2, 5] + ([np.nan, np.inf, -np.inf, -0.0] if dtype.is_float else [])
    x = RNG.choice(np.array(pool, np.float64), shape).astype(dtype.numpy)

    is_open = data.draw(st.booleans())
    feeds = [x, np.array([k])] if is_open else [x]

    def build(b: GraphBuilder) -> list[int]:
        dims = [dim if place == axis else f"d{place}" for place, dim in enumerate(shape)]
        given = b.open_input(dtype, dims)
        return topk(b, given, b.open_input(DType.I64, (1,)) if is_open else ints(b, k), axis, largest)

    graph, after, weights = reform(build)
    assert "core.topk" not in ops(after)
    for wanted, got in zip(evaluate(graph, weights, feeds), evaluate(after, weights, feeds), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype.kind != "f" or np.array_equal(np.signbit(got), np.signbit(wanted))


@pytest.mark.parametrize("size", [100, "n"])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_best_of_a_long_axis_are_found_one_after_another(size: Any, axis: int) -> None:
    shape = [3, 3]
    shape[axis] = size

    graph, after, weights = reform(lambda b: topk(b, f32(b, *shape), ints(b, 4), axis, 0))
    assert [op for op in ops(after) if op.startswith("core.top")] == ["core.top_places"]
    x = floats(*(100 if dim in (100, "n") else dim for dim in shape))
    for wanted, got in zip(evaluate(graph, weights, [x]), evaluate(after, weights, [x]), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_more_than_there_are_cannot_be_the_best() -> None:
    _, after, weights = reform(lambda b: topk(b, f32(b, 2, 3), b.open_input(DType.I64, (1,)), 1, 1))
    with pytest.raises(InputError):
        evaluate(after, weights, [floats(2, 3), np.array([4])])


@pytest.mark.parametrize(
    "build",
    [
        lambda b: topk(b, f32(b, 2, 10_000), ints(b, 9000), 1, 1),  # many of many
        lambda b: topk(b, f32(b, 2, "n"), b.open_input(DType.I64, (1,)), 1, 1),
        lambda b: topk(b, f32(b, 2, 8), ints(b, 0), 1, 1),
    ],
)
def test_other_tops_stay(build: Build) -> None:
    assert "core.topk" in ops(reform(build)[1])


def pool_with_places(b: GraphBuilder, x: int, pads: int, kernel: tuple[int, ...], **attrs: Any) -> list[int]:
    rank = len(kernel)
    options = Attrs({"kernel_shape": kernel, "strides": (1,) * rank, "dilations": (1,) * rank, **attrs})
    return [value for value in b.node("core.pool_max", [x, pads], options, outputs=[True, True]) if value is not None]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_places_of_maxima_are_found_place_by_place(data: st.DataObject) -> None:
    """Few different numbers, NaN and what is as small as padding among them; windows that lie in the padding alone."""
    dtype, rank = data.draw(st.sampled_from((DType.F32, DType.I32, DType.U8))), data.draw(st.integers(1, 2))
    kernel, strides, dilations = (tuple(data.draw(st.integers(1, most)) for _ in range(rank)) for most in (3, 3, 2))
    pads = [data.draw(st.integers(0, 4)) for _ in range(2 * rank)]
    sizes = [data.draw(st.integers(5, 7)) for _ in range(rank)]
    pool = [0, 1, 2] + ([np.nan, -np.inf] if dtype.is_float else [])
    x = RNG.choice(np.array(pool, np.float64), [2, 3, *sizes]).astype(dtype.numpy)
    is_open = data.draw(st.booleans())

    def build(b: GraphBuilder) -> list[int]:
        given = b.open_input(dtype, ["n", 3, *(f"d{axis}" if is_open else size for axis, size in enumerate(sizes))])
        return pool_with_places(b, given, ints(b, *pads), kernel, strides=strides, dilations=dilations)

    graph, after, weights = reform(build)
    assert "core.pool_max" not in ops(after)
    for wanted, got in zip(evaluate(graph, weights, [x]), evaluate(after, weights, [x]), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(got, wanted)


def test_places_in_large_windows_stay() -> None:
    large = reform(lambda b: pool_with_places(b, f32(b, 1, 2, 50), ints(b, 0, 0), (40,)))
    assert "core.pool_max" in ops(large[1])


def one_hot(
    b: GraphBuilder, matrix: Any, *, classes: Any = (0, 1, 2, 3), on: float | None = None, turned: bool = False
) -> int:
    """The product of one-hot rows of an input [2, 3, 1] and a matrix; `on`: as a select, not as a cast."""
    index, counted = b.open_input(DType.I64, (2, "n", 1)), const(b, classes, np.int64)
    hot = b.op("core.eq", *((counted, index) if turned else (index, counted)))
    if on is None:
        rows = b.op("core.cast", hot, to=TensorProto.FLOAT, saturate=1)
    else:
        rows = b.op("core.select", hot, const(b, on), const(b, 0.0))
    return b.op("core.matmul", rows, const(b, matrix))


PLACES = np.array([[[0], [3], [-1]], [[4], [2], [2**40]]])


@pytest.mark.parametrize("form", [{}, {"on": 1.0}, {"turned": True}, {"classes": [[0, 1, 2, 3]]}])
def test_one_hot_rows_pick_rows_of_a_matrix(form: dict[str, Any]) -> None:
    left = compare(lambda b: one_hot(b, floats(4, 5), **form), PLACES)
    assert "core.gather" in left
    assert "core.matmul" not in left


@pytest.mark.parametrize("form", [{"on": 2.0}, {"classes": (0, 1, 3, 2)}, {"classes": (1, 2, 3, 4)}])
def test_other_rows_are_multiplied(form: dict[str, Any]) -> None:
    assert "core.matmul" in compare(lambda b: one_hot(b, floats(4, 5), **form), PLACES, sums=4)


def test_zeros_times_infinity_are_no_zeros() -> None:
    _, after, _ = reform(lambda b: one_hot(b, np.full((4, 5), np.inf)))
    assert "core.matmul" in ops(after)


@pytest.mark.parametrize(
    ("left", "right"), [((3, 4, 5), (3, 5, 1)), ((4, 5), (3, 5, 1)), ((2, 1, 4, 5), (3, 5, 1)), ((3, 4, 0), (3, 0, 1))]
)
def test_a_product_with_a_single_column_is_a_sum(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    left_ops = compare(
        lambda b: b.op("core.matmul", f32(b, *left), f32(b, *right)), floats(*left), floats(*right), sums=5
    )
    assert "core.reduce_sum" in left_ops
    assert "core.matmul" not in left_ops


@pytest.mark.parametrize(("left", "right"), [((3, 4, 5), (3, 5, 2)), ((3, 4, 5), (5, 1))])
def test_other_products_stay(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Of a matrix for all batches, a product reads each row once."""
    feeds = (floats(*left), floats(*right))
    assert compare(lambda b: b.op("core.matmul", f32(b, *left), f32(b, *right)), *feeds, sums=5) == ["core.matmul"]


def softmax(b: GraphBuilder, scores: int) -> int:
    top = b.op("core.reduce_max", scores, axes=(3,), keepdims=1)
    above = b.op("core.exp", b.op("core.sub", scores, top))
    return b.op("core.div", above, b.op("core.reduce_sum", above, axes=(3,), keepdims=1))


def test_weights_of_attention_go_to_the_left() -> None:
    """As models write it whose channels come first; the region is then one of attention."""

    def build(b: GraphBuilder) -> int:
        q, k, v = f32(b, 1, 2, 8, "n"), f32(b, 1, 2, 8, "n"), f32(b, 1, 2, 8, "n")
        scores = b.op("core.matmul", b.op("core.transpose", q, perm=(0, 1, 3, 2)), k)
        weights = b.op("core.transpose", softmax(b, scores), perm=(0, 1, 3, 2))
        return b.op("core.matmul", v, weights)

    left = compare(build, *(floats(1, 2, 8, 5) for _ in range(3)), sums=5)
    assert left[-3:] == ["core.transpose", "core.matmul", "core.transpose"]
    after = lower_to_core(*made(build))
    (last,) = (i for i, node in enumerate(after.nodes) if node.op == "core.matmul" and i > 4)
    assert attention(after, last) is not None


def test_other_products_with_something_transposed_stay() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.matmul", f32(b, 1, 2, 8, 5), b.op("core.transpose", f32(b, 1, 2, 7, 5), perm=(0, 1, 3, 2)))

    assert compare(build, floats(1, 2, 8, 5), floats(1, 2, 7, 5), sums=5) == ["core.transpose", "core.matmul"]
