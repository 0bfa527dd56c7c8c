"""Ops on images and boxes: reference functions against ONNX Runtime and onnx.reference, rules against results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx.reference.ops.op_affine_grid import apply_affine_transform, construct_original_grid
from onnx.reference.ops.op_resize import _cubic_coeffs_antialias, _interpolate_nd, _linear_coeffs_antialias
from tests.oracle.cases import agree, assert_close, build, from_onnxruntime, one, random, run, unknown_dims, widened

from tierup.errors import InputError
from tierup.ir.dims import DimBuilder
from tierup.ir.infer import InferError
from tierup.ir.ops.resizing import scaled
from tierup.ir.types import Array, DType, Sym

COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SIZES = [(1, 2, 9, 10), (1, 2, 3, 4), (1, 2, 4, 1), (1, 2, 7, 13)]  # ONNX Runtime does not crop an axis of one size


def _f32(*values: float) -> Array:
    return np.array(values, np.float32)


def _sizes(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("size", SIZES)
def test_resize_to_sizes(coordinates: str, size: tuple[int, ...]) -> None:
    roi = _f32(0, 0, 0.1, -0.2, 1, 1, 0.9, 1.1)
    inputs = [random(1, 2, 5, 6), roi, None, _sizes(*size)]
    common = {"coordinate_transformation_mode": coordinates, "extrapolation_value": 7.0}
    cases: list[dict[str, Any]] = [{"mode": "nearest", "nearest_mode": nearest} for nearest in NEAREST]
    cases += [{"mode": "linear"}, {"mode": "cubic"}, {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}]
    for case in cases:
        if coordinates == "tf_crop_and_resize" and case.get("exclude_outside"):
            continue  # nothing is outside there
        agree("Resize", *inputs, version=13, **common, **case)


@pytest.mark.parametrize("coordinates", ["half_pixel", "half_pixel_symmetric", "asymmetric"])
@pytest.mark.parametrize("scales", [(2, 2), (0.5, 3), (1.5, 0.25), (1 / 3, 0.6), (2.3, 1)])
def test_resize_by_scales(coordinates: str, scales: tuple[float, float]) -> None:
    inputs = [random(1, 2, 8, 9), None, _f32(1, 1, *scales)]
    for mode in ("nearest", "linear", "cubic"):
        attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
        agree("Resize", *inputs, version=19, **attrs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("size", [(3, 4), (9, 2), (1, 1), (13, 17)])
def test_resize_antialias(mode: str, exclude: int, size: tuple[int, int]) -> None:
    x = random(11, 12)
    y = one("Resize", x, None, None, _sizes(*size), version=18, mode=mode, antialias=1, exclude_outside=exclude)
    coefficients = {"linear": _linear_coeffs_antialias, "cubic": _cubic_coeffs_antialias}[mode]
    expected = _interpolate_nd(x, coefficients, output_size=list(size), exclude_outside=bool(exclude))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("policy", "result"), [("stretch", (7, 8)), ("not_larger", (7, 7)), ("not_smaller", (8, 8))])
def test_resize_keeps_the_aspect_ratio(policy: str, result: tuple[int, int]) -> None:
    inputs = [random(1, 2, 4, 4), None, None, _sizes(8, 7)]
    attrs = {"axes": [3, -2], "keep_aspect_ratio_policy": policy, "mode": "nearest"}
    y = one("Resize", *inputs, version=18, **attrs)
    assert y.shape[2:] == result
    inputs[3] = _sizes(7, 8)  # ONNX Runtime wants axes in order
    assert_close([y], from_onnxruntime("Resize", *inputs, version=18, **attrs | {"axes": [2, 3]}))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.6, 0.5), (1.0, 1.5)])
def test_resize_and_upsample_before_11(mode: str, scales: tuple[float, float]) -> None:
    x, factors = random(1, 2, 4, 5), _f32(1, 1, *scales)
    agree("Resize", x, factors, version=10, mode=mode)
    if min(scales) >= 1:
        expected = from_onnxruntime("Upsample", x, factors, version=9, mode=mode)
        assert_close(run("Upsample", x, factors, version=9, mode=mode), expected)
        assert_close(run("Upsample", x, version=7, mode=mode, scales=factors.tolist()), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.int64, np.bool_])
def test_resize_of_integers(dtype: Any) -> None:
    x = np.array([[0, 1, 100, 127]]).astype(dtype)
    near = one("Resize", x, None, _f32(1, 2), coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    np.testing.assert_array_equal(near, np.repeat(x, 2, axis=1))
    cubic = one("Resize", x, None, _f32(1, 2), mode="cubic")
    wide = one("Resize", x.astype(np.float64), None, _f32(1, 2), mode="cubic")
    if dtype != np.bool_:
        limits = np.iinfo(dtype)
        np.testing.assert_array_equal(cubic, np.clip(np.rint(wide), limits.min, limits.max).astype(dtype))


def test_resize_of_strings_and_narrow_floats() -> None:
    text = one("Resize", np.array([["a", "b"]], object), None, _f32(2, 1))
    assert text.tolist() == [["a", "b"], ["a", "b"]]
    x = random(4, 4, dtype=ml_dtypes.bfloat16)
    y = one("Resize", x, None, None, _sizes(7, 3), mode="linear")
    (wide,) = widened("Resize", x, None, None, _sizes(7, 3), mode="linear")
    np.testing.assert_allclose(y.astype(np.float64), wide, rtol=1e-2, atol=1e-2)


def test_resize_edges() -> None:
    y = one("Resize", random(0, 2, 3), None, _f32(1, 1, 2), mode="linear")
    assert y.shape == (0, 2, 6)
    y = one("Resize", random(2, 3), None, _f32(1, 0.25), mode="cubic", antialias=1)
    assert y.shape == (2, 0)
    y = one("Resize", random(2, 3), _f32(), _f32(), _sizes(4, 3), version=11)  # empty stands for "not given"
    assert y.shape == (4, 3)
    with pytest.raises(InputError, match="empty"):
        run("Resize", random(2, 0), None, None, _sizes(2, 3))


def test_scaled_sizes_are_programs_where_the_scale_is_a_short_ratio() -> None:
    dims = DimBuilder()
    size = dims.of(0, 0)
    assert scaled(dims, size, 1.0) == size
    assert isinstance(scaled(dims, size, 1.5), Sym)
    assert scaled(dims, size, 0.7) is None
    assert scaled(dims, 10, 0.7) == 7  # 6.9999999 in f64, 7 in f32
    assert [scaled(dims, n, 0.5) for n in (7, 8)] == [3, 4]
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InferError, match="scale"):
            scaled(dims, 10, bad)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("opset", "mode"), [(16, "bilinear"), (16, "nearest"), (16, "bicubic"), (20, "linear"), (20, "cubic")]
)
def test_grid_sample(opset: int, mode: str, padding: str, corners: int) -> None:
    inputs = [random(2, 3, 4, 5), random(2, 6, 7, 2, seed=1) * np.float32(1.5)]
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    agree("GridSample", *inputs, version=opset, **attrs, atol=1e-4)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes(mode: str, padding: str, corners: int) -> None:
    inputs = [random(1, 2, 3, 4, 5), random(1, 2, 3, 4, 3, seed=1) * np.float32(1.5)]
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    agree("GridSample", *inputs, version=20, **attrs, atol=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_reads_nothing_outside(mode: str, padding: str) -> None:
    grid = np.array([[[[np.nan, 0], [np.inf, 0], [-np.inf, 1e30], [-1e38, 0]]]], np.float32)
    for shape in ((1, 1, 3, 3), (1, 1, 1, 1), (1, 1, 0, 2)):
        for corners in (0, 1):
            run("GridSample", np.ones(shape, np.float32), grid, mode=mode, padding_mode=padding, align_corners=corners)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int32, np.uint8, np.complex64, np.object_])
def test_grid_sample_dtypes(dtype: Any) -> None:
    x = np.arange(6).reshape(1, 1, 2, 3).astype(str if dtype is np.object_ else dtype).astype(dtype)
    centres = np.stack(np.meshgrid([-2 / 3, 0, 2 / 3], [-0.5, 0.5]), axis=-1)[None].astype(np.float32)
    for mode in ("nearest",) if dtype is np.object_ else ("nearest", "cubic"):
        y = one("GridSample", x, centres, mode=mode)
        assert y.dtype == x.dtype
        if mode == "nearest":
            assert (y == x).all()


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 3, 4, 5)])
def test_affine_grid(size: tuple[int, ...], corners: int) -> None:
    axes = len(size) - 2
    theta = random(2, axes, axes + 1)
    grid = one("AffineGrid", theta, _sizes(*size), align_corners=corners)
    expected = apply_affine_transform(theta, construct_original_grid(size[2:], corners))
    np.testing.assert_allclose(grid, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("opset", "mode"), [(10, "avg"), (16, "avg"), (16, "max"), (10, "max")])
@pytest.mark.parametrize("ratio", [0, 1, 3])
def test_roi_align(opset: int, mode: str, ratio: int) -> None:
    rois = _f32(0, 0, 9, 9, 3.3, 1.2, 7.9, 15.5, -4, -3, 30, 5, 5, 5, 5, 5).reshape(4, 4)
    inputs = [random(2, 3, 10, 12), rois, np.array([0, 1, 1, 0])]
    attrs = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2, "spatial_scale": 0.8}
    for transformation in ("half_pixel", "output_half_pixel") if opset >= 16 else (None,):
        extra = attrs | ({"coordinate_transformation_mode": transformation} if transformation else {})
        agree("RoiAlign", *inputs, version=opset, **extra)


def test_roi_align_bounds_what_a_region_may_cost() -> None:
    inputs = [random(1, 1, 4, 4), _f32(0, 0, 1e9, 1e9).reshape(1, 4), np.array([0])]
    with pytest.raises(InputError, match="samples"):
        run("RoiAlign", *inputs)
    with pytest.raises(InputError, match="image 3"):
        run("RoiAlign", inputs[0], _f32(0, 0, 1, 1).reshape(1, 4), np.array([3]))


def test_max_roi_pool() -> None:
    rois = _f32(0, 0, 0, 9, 9, 1, 3.3, 1.2, 7.9, 15.5, 1, -4, -3, 30, 5, 0, 5, 5, 5, 5).reshape(4, 5)
    inputs = [random(2, 3, 10, 12), rois]
    attrs = {"pooled_shape": [3, 2], "spatial_scale": 0.8}
    agree("MaxRoiPool", *inputs, version=7, **attrs)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("limit", [0, 1, 5, 100])
def test_non_max_suppression(centred: int, limit: int) -> None:
    boxes = np.abs(random(2, 40, 4)) * np.float32(3)
    scores = np.round(random(2, 3, 40, seed=1), 1)  # many equal scores
    inputs = [boxes, scores, np.array([limit]), _f32(0.3), _f32(-0.5)]
    for given in (inputs, inputs[:4], inputs[:3]):
        actual = run("NonMaxSuppression", *given, center_point_box=centred)
        assert_close(actual, from_onnxruntime("NonMaxSuppression", *given, version=11, center_point_box=centred))
    assert one("NonMaxSuppression", *inputs[:2]).shape == (0, 3)


def test_open_dims_are_programs_over_input_dims() -> None:
    grid = build("opaque", "GridSample", random(1, 2, 3, 4), random(1, 5, 6, 2))
    sized = build("runtime", "Resize", random(1, 2, 3, 4), None, None, _sizes(1, 2, 6, 8))
    affine = build("runtime", "AffineGrid", random(1, 2, 3), _sizes(1, 2, 6, 8))
    align = build("opaque", "RoiAlign", random(1, 2, 3, 4), random(5, 4), _sizes(0))
    assert [unknown_dims(built.graph) for built in (grid, sized, affine, align)] == [0, 0, 0, 0]
    assert unknown_dims(build("static", "NonMaxSuppression", random(1, 5, 4), random(1, 2, 5)).graph) == 1


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("Resize", [random(2, 2)], {}, "neither"),
        ("Resize", [random(2, 2), None, _f32(1)], {}, "1 scales, expected 2"),
        ("Resize", [random(2, 2), None, _f32(1, -1)], {}, "above 0"),
        ("Resize", [random(2, 2), None, _f32(1, 3e38)], {}, "overflows"),
        ("Resize", [random(2, 2), None, None, _sizes(1)], {}, "1 sizes, expected 2"),
        ("Resize", [random(2, 2), None, None, _sizes(1, -1)], {}, "the size -1"),
        ("Resize", [random(2, 2), None, None, _sizes(1)], {"axes": [2]}, "axis 2"),
        ("Resize", [random(2, 2), None, None, _sizes(1, 1)], {"axes": [1, -1]}, "twice"),
        ("Resize", [random(2, 2), None, None, _sizes(1, 1)], {"mode": "area"}, "mode"),
        ("Resize", [random(2, 0), None, None, _sizes(1, 1)], {"keep_aspect_ratio_policy": "not_larger"}, "aspect"),
        ("GridSample", [random(1, 2, 3, 4), random(1, 5, 6, 3)], {}, "coordinates"),
        ("GridSample", [random(1, 2, 3, 4), random(1, 5, 6, 2)], {"padding_mode": "wrap"}, "padding_mode"),
        ("AffineGrid", [random(1, 4, 5), _sizes(1, 2, 3, 4, 5, 6)], {}, "2 or 3 axes"),
        ("AffineGrid", [random(1, 2, 4), _sizes(1, 2, 3, 4)], {}, "columns"),
        ("RoiAlign", [random(1, 2, 3, 4), random(5, 5), _sizes(0)], {}, "region"),
        ("RoiAlign", [random(1, 2, 3, 4), random(5, 4), _sizes(0)], {"output_height": 0}, "at least 1"),
        ("MaxRoiPool", [random(1, 2, 3, 4), random(5, 5)], {"pooled_shape": [2]}, "pooled_shape"),
        ("NonMaxSuppression", [random(1, 5, 4), random(1, 2, 6)], {}, "boxes"),
    ],
)  # fmt: skip
def test_refusals(op: str, inputs: list[Array | None], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(InferError, match=message):
        build("closed", op, *inputs, **attrs)


def test_unknown_ranks_stay_open() -> None:
    from tierup.ir.build import GraphBuilder
    from tierup.ir.graph import Weights
    from tierup.ir.types import TensorType

    builder = GraphBuilder(Weights())
    x = builder.open_input(DType.F32, None)
    y = builder.op("onnx.Resize", x, None, None, builder.weight(_sizes(3, 4)), version=13, mode="nearest")
    assert builder.type(y).rank == 2  # type: ignore[union-attr]
    z = builder.op("onnx.GlobalMaxPool", x)
    assert builder.type(z) == TensorType(DType.F32, None)
