"""Resize, samples of images, and Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from tests.rewrite.lowered import check, f, reason, u8
from tests.security.models import model, node, value

from tierup.frontends.onnx import load_onnx
from tierup.ir.types import Array
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import lower_to_core

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
)  # fmt: skip


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(mode: str, coordinates: str) -> None:
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    x = f(1, 2, 5, 7)
    for scales in ((1, 1, 2, 3), (1, 1, 0.6, 1.7)):
        check("Resize", x, None, np.array(scales, np.float32), constants=(2,), **attrs)
        check("Resize", x, None, np.array(scales, np.float32), forms=["static"], **attrs)
    for sizes in ((1, 2, 9, 4), (1, 2, 1, 21)):
        check("Resize", x, None, None, np.array(sizes), constants=(3,), **attrs)
        check("Resize", x, None, None, np.array(sizes), forms=["static"], **attrs)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_to_the_nearest(rounding: str) -> None:
    """The ratio of sizes is exact: 7 / 3 in f32 would move align_corners' coordinates off whole numbers."""
    for size in (3, 7, 9, 13):
        check("Resize", f(1, 1, 3), None, None, np.array([1, 1, size]), constants=(3,), mode="nearest",
              nearest_mode=rounding, coordinate_transformation_mode="align_corners")  # fmt: skip


def test_resize_on_some_axes() -> None:
    x, scales = f(2, 5, 7, 2), np.array([3, 0.5], np.float32)
    check("Resize", x, None, scales, constants=(2,), axes=(2, 1), mode="linear", antialias=1)
    check("Resize", x, None, None, np.array([4, 9]), constants=(3,), axes=(1, -2), mode="cubic", exclude_outside=1)
    for policy in ("not_larger", "not_smaller"):
        check("Resize", x, None, None, np.array([10, 10]), constants=(3,), forms=["static"], axes=(1, 2),
              keep_aspect_ratio_policy=policy, mode="linear")  # fmt: skip


def test_resize_of_a_crop() -> None:
    roi = np.array([0.2, -0.3, 0.8, 1.1], np.float32)
    attrs: dict[str, Any] = {
        "axes": (2, 3),
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.0,
    }
    for mode in ("nearest", "linear"):
        check("Resize", f(1, 2, 5, 7), roi, None, np.array([4, 9]), constants=(1, 3), mode=mode, **attrs)
        check("Resize", f(1, 2, 5, 7), roi, None, np.array([4, 9]), constants=(3,), forms=["static"], mode=mode,
              **attrs)  # fmt: skip


@pytest.mark.parametrize("x", [u8(1, 2, 4, 4), f(1, 2, 4, 4, dtype=np.float16)])
def test_resize_of_other_dtypes(x: Array) -> None:
    check("Resize", x, None, np.array([1, 1, 2, 1.5], np.float32), constants=(2,), mode="linear")


@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 0.5, 2), (1, 1, 0.5, 0.4)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str, scales: tuple[float, ...]) -> None:
    factors = np.array(scales, np.float32)
    check("Upsample", f(1, 2, 4, 5), factors, constants=(1,), opset=9, mode=mode)
    check("Resize", f(1, 2, 4, 5), factors, constants=(1,), opset=10, mode=mode)
    check("Upsample", f(1, 2, 4, 5), opset=7, mode=mode, scales=tuple(map(float, factors)))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    attrs: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    grid = f(2, 6, 5, 2, scale=1.5)
    grid[0, 0, 0] = np.nan, np.inf
    check("GridSample", f(2, 3, 4, 5), grid, **attrs)
    check("GridSample", f(2, 3, 1, 5), grid, **attrs)
    check("GridSample", f(2, 3, 0, 5), grid, forms=["open"], **attrs)
    check("GridSample", f(1, 2, 3, 4, 5), f(1, 2, 2, 3, 3), **attrs)


def test_grid_sample_of_other_dtypes() -> None:
    grid = f(2, 6, 5, 2)
    check("GridSample", u8(2, 3, 4, 5), grid, mode="nearest")
    check("GridSample", f(2, 3, 4, 5, dtype=np.float16), grid.astype(np.float16), mode="linear")
    assert reason("GridSample", f(2, 3, 0, 5), grid) == "an image without pixels"


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(opset: int, mode: str) -> None:
    rois = np.array([[0, 0, 5, 5], [-3, 1, 4.5, 20], [2, 2, 2, 2]], np.float32)
    options: dict[str, Any] = {
        "opset": opset,
        "mode": mode,
        "output_height": 3,
        "output_width": 2,
        "spatial_scale": 0.5,
    }
    check("RoiAlign", f(2, 3, 6, 7), rois, np.array([0, 1, 1]), sampling_ratio=2, **options)
    why = reason("RoiAlign", f(2, 3, 6, 7), rois, np.array([0, 1, 1]), sampling_ratio=0, **options)
    assert why == "how many samples a region takes depends on its size, which is known only in the call"


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 3), (2, 3, 2, 4, 3)])
def test_affine_grid(corners: int, size: tuple[int, ...]) -> None:
    axes = len(size) - 2
    check("AffineGrid", f(2, axes, axes + 1), np.array(size), constants=(1,), align_corners=corners)


DFTS: list[tuple[Array, int | None, dict[str, Any]]] = [
    (f(2, 10, 1), None, {}),
    (f(2, 10, 2), None, {}),
    (f(2, 10, 1), None, {"onesided": 1}),
    (f(2, 10, 2), 7, {"inverse": 1}),
    (f(2, 10, 1), 16, {"onesided": 1}),
    (f(2, 6, 2), None, {"onesided": 1, "inverse": 1}),
    (f(2, 6, 2), 9, {"onesided": 1, "inverse": 1}),
    (f(2, 1, 1), None, {}),
]


@pytest.mark.parametrize(("imaginary", "terms"), [(0.0, 7), (0.5, 14)])
def test_a_transform_of_a_real_signal_that_is_written_as_a_complex_one(imaginary: float, terms: int) -> None:
    nodes = [node("Concat", ["x", "i"], ["z"], axis=-1), node("DFT", ["z"], ["y"], axis=1)]
    parts = numpy_helper.from_array(np.full((2, 7, 1), imaginary, np.float32), "i")
    proto = model(nodes, [value("x", [2, 7, 1])], [value("y", [2, 7, 2])], [parts])
    proto.opset_import[0].version = 17
    imported = load_onnx(proto)
    graph = lower_to_core(imported.graph, imported.weights)
    (product,) = (found for found in graph.nodes if found.op == "core.matmul")
    assert graph.type(product.inputs[1] or 0).shape == (terms, 14)  # type: ignore[union-attr]
    x = np.random.default_rng(0).standard_normal((2, 7, 1)).astype(np.float32)
    (y,) = evaluate(graph, imported.weights, [x])
    wanted = np.fft.fft(x[..., 0].astype(np.float64) + 1j * imaginary)
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], wanted, atol=1e-6)  # rounded once


def test_zeros_whose_number_is_known_only_in_the_call() -> None:
    """What torch.onnx writes for the transform of a real signal."""
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Expand", ["zero", "sizes"], ["i"]),
        node("Concat", ["x", "i"], ["z"], axis=-1),
        node("DFT", ["z"], ["y"], axis=1),
    ]
    zero = numpy_helper.from_array(np.zeros((), np.float32), "zero")
    proto = model(nodes, [value("x", ["rows", 7, 1])], [value("y", ["rows", 7, 2])], [zero])
    proto.opset_import[0].version = 17
    imported = load_onnx(proto)
    graph = lower_to_core(imported.graph, imported.weights)
    (product,) = (found for found in graph.nodes if found.op == "core.matmul")
    assert graph.type(product.inputs[1] or 0).shape == (7, 14)  # type: ignore[union-attr]
    x = np.random.default_rng(0).standard_normal((3, 7, 1)).astype(np.float32)
    (y,) = evaluate(graph, imported.weights, [x])
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], np.fft.fft(x[..., 0].astype(np.float64)), atol=1e-6)


@pytest.mark.parametrize(("x", "length", "attrs"), DFTS)
def test_dft(x: Array, length: int | None, attrs: dict[str, Any]) -> None:
    count = None if length is None else np.array(length)
    check("DFT", x, count, constants=(1,), fixed=[(0, 1), (0, 2)], **attrs)
    check("DFT", x.swapaxes(0, 1).copy(), count, np.array(0), constants=(1, 2), forms=["static"], **attrs)
    check("DFT", x, count, constants=(1,), forms=["static"], opset=17, axis=1, **attrs)


def test_a_long_or_open_dft_stays() -> None:
    assert "a fast one would be faster" in reason("DFT", f(1, 1024, 1))
    assert reason("DFT", f(1, 16, 1), form="open", opset=17, axis=1) == (
        "the length of the transform is known only in the call"
    )


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_stft(onesided: int, parts: int) -> None:
    if onesided and parts == 2:
        onesided = 0  # ONNX has no one-sided transform of complex signals
    x, step = f(2, 40, parts), np.array(5)
    check("STFT", x, step, np.abs(f(12)), constants=(1, 2), fixed=[(0, 2)], onesided=onesided)
    check("STFT", x, step, np.abs(f(12)), constants=(1,), forms=["static"], onesided=onesided)
    check("STFT", x, step, None, np.array(9), constants=(1, 3), forms=["static"], onesided=onesided)
