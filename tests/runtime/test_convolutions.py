"""Convolutions as kernels: every geometry against the reference in float64, open and closed sizes, what is fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.runtime.answers import compiled

import tierup
from tierup.codegen.target import target_of
from tierup.frontends.onnx import load_onnx
from tierup.profile.identity import identify
from tierup.reference.conv import convolve
from tierup.runtime.compiled import compile_plan

EPS = np.finfo(np.float32).eps


def floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(
    x: Any, w: Any, opened: bool, tail: tuple[str, ...] = (), *, last: bool = False, **attrs: Any
) -> onnx.ModelProto:
    """y = tail(conv(x, w) + b), with every size but the channels open or none; `last`: x comes with those last."""
    order = (0, *range(2, x.ndim), 1) if last else range(x.ndim)
    sizes = [f"d{axis}" if opened and axis != 1 else x.shape[axis] for axis in order]
    turn = helper.make_node("Transpose", ["x"], ["t"], perm=[order.index(axis) for axis in range(x.ndim)])
    conv = helper.make_node("Conv", ["t" if last else "x", "w", "b"], ["c"], **attrs)
    nodes = [turn, conv] if last else [conv]
    for number, op in enumerate(tail):
        nodes.append(helper.make_node(op, [nodes[-1].output[0]], [f"t{number}"]))
    nodes[-1].output[0] = "y"
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(floats(5, len(w)), "b")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "conv", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def assert_close(got: Any, x: Any, w: Any, attrs: dict[str, Any]) -> None:
    """Within the rounding of a sum of so many products, each as large as that of absolute values says."""
    from tierup.ir.graph import Attrs

    bias = floats(5, len(w)).reshape(-1, *(1,) * (x.ndim - 2))
    exact = convolve(Attrs(attrs), x.astype(np.float64), w.astype(np.float64)) + bias
    size = convolve(Attrs(attrs), np.abs(x).astype(np.float64), np.abs(w).astype(np.float64)) + np.abs(bias)
    terms = int(np.prod(w.shape[1:]))
    assert got.shape == exact.shape
    assert (np.abs(got - exact) <= EPS * (4 + np.sqrt(terms)) * size).all()


GEOMETRIES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 16, 10, 12), (32, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 16, 10, 13), (33, 16, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 3, 20, 21), (24, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),  # few channels, which lie apart
    ((1, 8, 9, 9), (48, 8, 3, 3), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    ((1, 8, 9, 9), (48, 8, 3, 3), {}),
    ((1, 40, 9, 9), (40, 1, 3, 3), {"group": 40, "pads": [1, 1, 1, 1]}),
    ((2, 33, 9, 11), (33, 1, 3, 3), {"group": 33, "pads": [0, 1, 2, 1], "strides": [2, 2]}),
    ((1, 32, 14, 14), (32, 1, 7, 7), {"group": 32, "pads": [3, 3, 3, 3]}),
    ((1, 32, 9, 9), (64, 8, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((2, 48, 9, 11), (48, 8, 3, 3), {"group": 6, "pads": [1, 0, 0, 1], "strides": [2, 2]}),  # half a vector each
    ((1, 32, 7, 9), (32, 4, 3, 3), {"group": 8, "pads": [2, 2, 2, 2], "dilations": [2, 2]}),  # a quarter
    ((1, 60, 5, 5), (72, 20, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),  # one and a half, of ragged channels
    ((1, 16, 2, 3), (16, 8, 5, 5), {"group": 2, "pads": [4, 4, 4, 4]}),  # windows that lie outside altogether
    ((1, 6, 5, 5), (12, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),  # two results for each channel
    ((1, 4, 50), (20, 4, 5), {"pads": [2, 2]}),
    ((2, 300, 37), (64, 300, 7), {"pads": [2, 4], "strides": [3]}),  # sums long enough to be taken in blocks
    ((1, 16, 50), (16, 1, 5), {"pads": [2, 2], "group": 16}),
    ((1, 4, 5, 6, 7), (8, 4, 3, 3, 3), {"pads": [1] * 6}),
    ((1, 64, 7, 7), (128, 64, 1, 1), {"strides": [2, 2]}),
    ((1, 20, 9, 8), (24, 20, 1, 1), {}),  # more rows than columns, in panels of half vectors; ragged ones
    ((2, 20, 7, 9), (43, 20, 1, 1), {}),
    ((1, 256, 7, 7), (64, 256, 3, 3), {"pads": [1] * 4}),
    ((1, 2, 4, 4), (3, 2, 5, 5), {"pads": [3] * 4}),
    ((1, 20, 4, 4), (20, 1, 5, 5), {"pads": [4] * 4, "group": 20}),  # windows that lie outside altogether
    ((0, 4, 5, 5), (8, 4, 3, 3), {"pads": [1] * 4}),
    ((2, 20, 37, 1), (24, 20, 5, 1), {}),  # an axis of one place, inside and last, alone and padded
    ((2, 20, 1, 37), (24, 20, 1, 5), {"strides": [2, 2], "pads": [0, 2, 0, 1]}),
    ((1, 20, 6, 1, 7), (20, 1, 3, 1, 3), {"group": 20, "pads": [1, 0, 1, 1, 0, 1]}),
    ((2, 20, 1, 1), (24, 20, 1, 1), {"strides": [2, 1]}),
    ((2, 20, 7, 1), (24, 20, 3, 1), {"pads": [1, 1, 1, 1]}),
    # 3×3 with an axis before: planes beyond the data, a stride and gaps between planes, one plane, none
    ((2, 16, 4, 7, 9), (33, 16, 3, 3, 3), {"pads": [1] * 6}),
    ((1, 16, 9, 6, 5), (48, 16, 3, 3, 3), {"pads": [2, 1, 0, 0, 1, 1], "strides": [2, 1, 1], "dilations": [2, 1, 1]}),
    ((1, 20, 3, 8, 8), (16, 20, 1, 3, 3), {"pads": [1, 1, 1, 0, 1, 1]}),
    ((1, 16, 2, 5, 5), (16, 16, 7, 3, 3), {"pads": [3, 0, 0, 3, 0, 0]}),
    ((1, 16, 1, 7, 7), (24, 16, 3, 3, 3), {"pads": [1] * 6}),
    # dilated: pictures of every second or third place, of the same size or not
    ((2, 16, 12, 12), (24, 16, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    ((1, 16, 13, 31), (40, 16, 3, 3), {"pads": [2, 3, 2, 3], "dilations": [2, 3]}),
    # kernels that reach far beyond the data: places under some results only, under none
    ((1, 16, 33, 33), (40, 16, 3, 3), {"pads": [12] * 4, "dilations": [12, 12]}),
    ((1, 16, 20, 31), (40, 16, 3, 3), {"pads": [24] * 4, "dilations": [24, 24]}),
    ((2, 16, 1, 5), (40, 16, 3, 3), {"pads": [1] * 4}),
    ((1, 16, 90), (24, 16, 3), {"pads": [40, 40], "dilations": [40]}),
    ((1, 16, 90), (24, 16, 3), {"pads": [40, 40], "dilations": [40], "strides": [2]}),
]
# So few results that the lanes lie along the sum.
FEW: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 64, 9, 23), (1, 64, 3, 3), {"pads": [1] * 4}),
    ((2, 33, 6, 20), (1, 33, 7, 3), {"pads": [3, 1, 3, 1]}),  # runs that end within a vector
    ((2, 8, 7, 19), (2, 8, 5, 5), {"pads": [2, 1, 0, 3], "strides": [1, 2]}),
    ((1, 8, 6, 40), (8, 8, 3, 39), {"pads": [1, 19, 1, 19]}),
    ((1, 16, 9, 21), (3, 16, 3, 3), {"pads": [2] * 4, "dilations": [2, 2], "strides": [2, 1]}),
    ((1, 12, 8, 9), (5, 12, 2, 2), {}),
    ((1, 32, 5, 9), (6, 32, 3, 3), {"pads": [1] * 4}),
    ((1, 32, 5, 9), (7, 32, 3, 3), {"pads": [2, 0, 2, 0]}),  # no column outside, but rows
    ((1, 32, 5, 9), (20, 32, 2, 3), {"pads": [0, 2, 0, 2]}),  # more than fill a vector, and few more
    ((1, 1, 700), (1, 1, 256), {"strides": [2]}),
    ((3, 24, 50), (4, 24, 7), {}),
    ((1, 4, 1, 90), (1, 4, 1, 31), {"strides": [1, 3]}),
    ((1, 64, 6, 20), (4, 32, 3, 3), {"group": 2}),
    ((1, 64, 6, 20), (4, 32, 3, 3), {"group": 2, "pads": [1, 0, 1, 0]}),
    ((1, 8, 4, 5, 18), (2, 8, 3, 3, 3), {"pads": [1] * 6}),
    ((1, 16, 2, 3), (1, 16, 5, 5), {"pads": [4] * 4}),  # windows that lie outside altogether, none that lies inside
    ((0, 16, 5, 5), (1, 16, 3, 3), {"pads": [1] * 4}),
    ((2, 16, 0, 5), (1, 16, 3, 3), {"pads": [2] * 4}),  # no data: all is padding
    ((2, 16, 5, 0), (1, 16, 3, 3), {"pads": [2] * 4}),
]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(("x", "w", "attrs"), GEOMETRIES)
def test_geometries(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], opened: bool) -> None:
    data, weight = floats(1, *x), floats(2, *w)
    assert_close(compiled(model(data, weight, opened, **attrs), data), data, weight, attrs)


def program_name(proto: onnx.ModelProto) -> str:
    """Of the kernel of a model's convolution."""
    imported, target = load_onnx(proto), target_of(identify())
    assert target is not None
    plan = compile_plan(imported.graph, imported.weights, target)
    (conv,) = [placed for placed in plan.functions[0].kernels if placed.region.kind == "conv"]
    return conv.kernel.program.name


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(("x", "w", "attrs"), FEW)
def test_few_results(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], opened: bool) -> None:
    data, weight = floats(1, *x), floats(2, *w)
    proto = model(data, weight, opened, last=True, **attrs)
    if 0 not in x:
        assert program_name(proto) == "few"
    got = compiled(proto, np.ascontiguousarray(np.moveaxis(data, 1, -1)))
    assert_close(got, data, weight, attrs)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 64, 9, 9), (32, 64, 2, 3), {}),  # results fill their vectors
        ((1, 4, 9, 9), (4, 4, 1, 3), {"dilations": [1, 2]}),  # sums do not
        ((1, 16, 40), (1, 16, 3), {"pads": [1, 1]}),  # a padded row alone
    ],
)
def test_lanes_along_results(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    assert program_name(model(floats(1, *x), floats(2, *w), False, last=True, **attrs)) == "conv"


@st.composite
def geometries(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool]:
    n = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(n)]
    dilations = [draw(st.integers(1, 2)) for _ in range(n)]
    pads = [draw(st.integers(0, 4)) for _ in range(2 * n)]
    least = [(k - 1) * d + 1 - pads[a] - pads[n + a] for a, (k, d) in enumerate(zip(kernel, dilations, strict=True))]
    sizes = [max(1, low) + draw(st.integers(0, 9)) for low in least]
    group, channels, results = (draw(st.integers(1, most)) for most in (3, 9, 20))
    attrs = {
        "group": group, "dilations": dilations, "pads": pads, "strides": [draw(st.integers(1, 3)) for _ in range(n)],
    }  # fmt: skip
    x = (draw(st.integers(1, 2)), group * channels, *sizes)
    return x, (group * results, channels, *kernel), attrs, draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(geometries(), st.booleans())
def test_any_geometry(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool], last: bool) -> None:
    x, w, attrs, opened = case
    data, weight = floats(3, *x), floats(4, *w)
    given = np.ascontiguousarray(np.moveaxis(data, 1, -1)) if last else data
    assert_close(compiled(model(data, weight, opened, last=last, **attrs), given), data, weight, attrs)


@st.composite
def rows_of_windows(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Convolutions of every channel by itself, most of them with windows at both edges and inside."""
    kernel, dilation, stride = draw(st.integers(1, 7)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    before, after = (draw(st.integers(0, kernel)) for _ in range(2))
    width = max(1, (kernel - 1) * dilation + 1 - before - after) + draw(st.integers(0, 40))
    channels = draw(st.sampled_from([3, 16, 48, 50, 144]))
    attrs = {
        "group": channels, "dilations": [1, dilation], "pads": [1, before, 0, after], "strides": [1, stride],
    }  # fmt: skip
    return (1, channels, 4, width), (channels, 1, 3, kernel), attrs


@settings(max_examples=40, deadline=None)
@given(rows_of_windows(), st.booleans())
def test_any_row_of_windows(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], opened: bool) -> None:
    x, w, attrs = case
    data, weight = floats(3, *x), floats(4, *w)
    assert_close(compiled(model(data, weight, opened, ("Identity",), **attrs), data), data, weight, attrs)


@pytest.mark.parametrize(("results", "group"), [(16, 16), (2, 1)])
def test_infinities_beyond_the_edge_stay_there(results: int, group: int) -> None:
    """Padding is zero, not some element times zero."""
    x, w = floats(1, 1, 16, 6, 6), floats(2, results, 16 // group, 3, 3)
    x[0, :, 0, 0], x[0, :, 5, 5] = np.inf, np.nan
    attrs = {"pads": [1] * 4, "group": group}
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    got = compiled(model(x, w, False, last=True, **attrs), given)
    assert np.isfinite(got[0, :, 3, :2]).all()
    assert np.isfinite(got[0, :, 0, 3:]).all()
    with tierup.load(model(x, w, False, **attrs), config=tierup.Config(force_tier=0)) as baseline:
        wanted = baseline(x=x)["y"]
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))


def test_many_channels_are_put_side_by_side_once() -> None:
    """Few channels that lie apart are gathered by the convolution itself; many would be, for each panel anew."""

    def kernels(x: tuple[int, ...], w: tuple[int, ...]) -> list[str]:
        imported, target = load_onnx(model(floats(1, *x), floats(2, *w), False)), target_of(identify())
        assert target is not None
        return [
            placed.region.kind for placed in compile_plan(imported.graph, imported.weights, target).functions[0].kernels
        ]

    assert kernels((1, 3, 40), (96, 3, 5)) == ["conv", "rows"]
    assert kernels((1, 96, 40), (96, 96, 5)) == ["rows", "conv", "rows"]


def test_maps_behind_a_convolution_are_part_of_it() -> None:
    proto = model(floats(1, 1, 8, 6, 6), floats(2, 16, 8, 3, 3), False, ("Relu", "Neg"), pads=[1] * 4)
    imported, target = load_onnx(proto), target_of(identify())
    assert target is not None
    plan = compile_plan(imported.graph, imported.weights, target)
    (conv,) = [placed for placed in plan.functions[0].kernels if placed.region.kind == "conv"]
    assert len(conv.region.nodes) == 4  # convolution, bias, relu, negation


def test_two_convolutions_into_one_sum() -> None:
    """The sum is part of one of them, not of both."""
    x = floats(1, 1, 8, 6, 6)
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Conv", ["x", "w"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(floats(2, 16, 8, 3, 3), "v"),
        numpy_helper.from_array(floats(3, 16, 8, 1, 1), "w"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    proto = helper.make_model(
        helper.make_graph(nodes, "sum", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with tierup.load(proto, config=tierup.Config(force_tier=0)) as baseline:
        np.testing.assert_allclose(compiled(proto, x), baseline(x=x)["y"], rtol=0, atol=2e-5)  # 80 terms of order 1


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("size", [(7, 9), (8, 8), (1, 5), (14, 3)])
def test_transformed_tiles_of_what_is_not_finite(size: tuple[int, int], opened: bool) -> None:
    """Infinities stay infinite, though tiles are made of differences, and no other result is touched."""
    x, w = floats(1, 2, 16, *size), floats(2, 40, 16, 3, 3)
    proto = model(x, w, opened, pads=[1] * 4)
    assert_close(compiled(proto, x), x, w, {"pads": [1] * 4})
    x[0, 3, size[0] // 2, size[1] // 2], x[1, 1, -1, 0], x[1, 0, 0, -1] = np.inf, np.nan, 3e38
    with tierup.load(proto, config=tierup.Config(force_tier=0)) as baseline, np.errstate(all="ignore"):
        wanted = baseline(x=x)["y"]
    got = compiled(proto, x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(got[np.isinf(wanted)], wanted[np.isinf(wanted)])
    assert (np.isfinite(got) == np.isfinite(wanted)).all()


def test_which_convolutions_are_transformed() -> None:
    def kinds(x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> set[str]:
        imported, target = load_onnx(model(floats(1, *x), floats(2, *w), False, **attrs)), target_of(identify())
        assert target is not None
        plan = compile_plan(imported.graph, imported.weights, target)
        return {program.name for program in plan.programs} - {"rows"}

    assert kinds((1, 16, 8, 8), (16, 16, 3, 3)) == {"winograd"}
    assert kinds((1, 8, 8, 8), (16, 8, 3, 3)) == {"conv"}  # too few channels to pay for it
    assert kinds((1, 16, 8, 8), (16, 16, 3, 3), strides=[2, 2]) == {"conv"}
    assert kinds((1, 16, 8, 8), (16, 16, 3, 3), dilations=[2, 2]) == {"conv"}  # not the size of the data
    assert kinds((1, 16, 8, 8), (16, 16, 3, 3), dilations=[2, 2], pads=[2] * 4) == {"winograd"}
    assert kinds((1, 16, 9, 9), (16, 16, 3, 3), dilations=[4, 4], pads=[4] * 4) == {"conv"}  # twice as many results
    assert kinds((1, 16, 4, 8, 8), (16, 16, 3, 3, 3), pads=[1] * 6) == {"winograd"}
    assert kinds((1, 16, 4, 8, 8), (16, 16, 3, 3, 3), strides=[2, 1, 1]) == {"winograd"}
    assert kinds((1, 16, 4, 8, 8), (16, 16, 3, 3, 3), strides=[1, 1, 2]) == {"conv"}
    assert kinds((1, 16, 9, 8, 8), (16, 16, 9, 3, 3)) == {"conv"}  # more planes than are held at once
    assert kinds((1, 16, 8, 8), (16, 16, 5, 3)) == {"conv"}
    assert kinds((1, 32, 8, 8), (32, 16, 3, 3), group=2) == {"conv"}


@pytest.mark.parametrize("plane", [0, 2])
def test_planes_of_what_is_not_finite(plane: int) -> None:
    x, w = floats(1, 1, 16, 3, 5, 6), floats(2, 24, 16, 3, 3, 3)
    proto = model(x, w, False, pads=[1] * 6)
    x[0, 3, plane, 2, 2] = np.inf
    with tierup.load(proto, config=tierup.Config(force_tier=0)) as baseline, np.errstate(all="ignore"):
        wanted = baseline(x=x)["y"]
    np.testing.assert_array_equal(compiled(proto, x)[~np.isfinite(wanted)], wanted[~np.isfinite(wanted)])


def test_ends_of_kernels_beyond_the_data_are_left_out() -> None:
    """But where they are not finite: zeros times infinity are no zeros."""

    def kernel_shapes(w: Any, x: tuple[int, ...], **attrs: Any) -> list[Any]:
        imported, target = load_onnx(model(floats(1, *x), w, False, **attrs)), target_of(identify())
        assert target is not None
        plan = compile_plan(imported.graph, imported.weights, target)
        (conv,) = [placed for placed in plan.functions[0].kernels if placed.region.kind in ("conv", "matmul")]
        node = plan.functions[0].graph.nodes[conv.region.nodes[0]]
        return list(node.attrs.get("kernel_shape", (1, 1)))

    w = floats(2, 16, 16, 3, 3)
    assert kernel_shapes(w, (1, 16, 9, 9), dilations=[12, 12], pads=[12] * 4) == [1, 1]
    assert kernel_shapes(w, (1, 16, 1, 9), pads=[1] * 4) == [1, 3]
    assert kernel_shapes(w, (1, 16, 2, 9), pads=[1] * 4) == [3, 3]
    assert kernel_shapes(w, (1, 16, 1, 9), pads=[2, 1, 2, 1]) == [3, 3]  # each lies on the data somewhere
    w[0, 0, 0, 0] = np.inf
    assert kernel_shapes(w, (1, 16, 1, 9), pads=[1] * 4) == [3, 3]
