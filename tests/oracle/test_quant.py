"""Quantised arithmetic: against integer arithmetic written out, `onnx.reference` and ONNX Runtime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import NEWEST, assert_close, from_onnx, from_onnxruntime, infer, one, run, versions

from tierup.errors import InputError
from tierup.ir.infer import InferError
from tierup.ir.types import Array, DType, dtype_from_numpy

RNG = np.random.default_rng(11)
INTEGERS = {
    np.uint8: (0, 255), np.int8: (-128, 127), np.uint16: (0, 65535), np.int16: (-32768, 32767),
    ml_dtypes.uint4: (0, 15), ml_dtypes.int4: (-8, 7), ml_dtypes.uint2: (0, 3), ml_dtypes.int2: (-2, 1),
}  # fmt: skip
SMALL_FLOATS = (
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float4_e2m1fn,
)  # fmt: skip


def f(*shape: int, scale: float = 1.0) -> Array:
    return np.asarray(RNG.standard_normal(shape) * scale, np.float32)


def integers(dtype: Any, *shape: int) -> Array:
    low, high = INTEGERS[dtype]
    return RNG.integers(low, high + 1, shape).astype(dtype)


def half_even(value: Fraction) -> int:
    return round(value)  # Python rounds fractions half to even


@pytest.mark.parametrize("dtype", INTEGERS)
def test_quantize_rounds_half_to_even_before_the_zero_point(dtype: Any) -> None:
    low, high = INTEGERS[dtype]
    x = np.arange(-2 * high - 5, 2 * high + 5, max(1, high // 50), dtype=np.float32) / 2
    zero = 1
    result = one("QuantizeLinear", x, np.float32(1), np.array(zero, dtype))
    exact = [min(max(half_even(Fraction(float(v))) + zero, low), high) for v in x]
    np.testing.assert_array_equal(result.astype(np.int64), exact)


@pytest.mark.parametrize("opset", versions("QuantizeLinear"))
def test_quantize_and_back_in_every_version(opset: int) -> None:
    x, scale, zero = f(3, 4, scale=50), np.float32(0.7), np.array(100, np.uint8)
    q = one("QuantizeLinear", x, scale, zero, version=opset)
    np.testing.assert_array_equal(q, np.clip(np.rint(x / scale) + 100, 0, 255).astype(np.uint8))
    back = one("DequantizeLinear", q, scale, zero, version=opset)
    np.testing.assert_allclose(back, (q.astype(np.float32) - 100) * scale, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
@pytest.mark.parametrize("opset", [13, NEWEST])
def test_by_axis(axis: int, opset: int) -> None:
    x = f(2, 3, 4, scale=20)
    count = x.shape[axis]
    scale, zero = np.abs(f(count)) + np.float32(0.1), integers(np.int8, count)
    q = one("QuantizeLinear", x, scale, zero, version=opset, axis=axis)
    np.testing.assert_array_equal(q, from_onnxruntime("QuantizeLinear", x, scale, zero, version=13, axis=axis)[0])
    back = one("DequantizeLinear", q, scale, zero, version=opset, axis=axis)
    expected = from_onnxruntime("DequantizeLinear", q, scale, zero, version=13, axis=axis)[0]
    np.testing.assert_allclose(back, expected, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("block", [2, 3, 5])
@pytest.mark.parametrize("dtype", [np.uint8, ml_dtypes.int4])
def test_by_blocks(axis: int, block: int, dtype: Any) -> None:
    x = f(4, 5, 6, scale=6)
    shape = list(x.shape)
    shape[axis] = -(-shape[axis] // block)
    scale, zero = np.abs(f(*shape)) + np.float32(0.1), integers(dtype, *shape)
    attrs = {"axis": axis, "block_size": block}
    q = one("QuantizeLinear", x, scale, zero, **attrs)
    rows = np.minimum(np.arange(x.shape[axis]) // block, shape[axis] - 1)
    each, offset = (np.take(p, rows, axis).astype(np.float32) for p in (scale, zero))
    low, high = INTEGERS[dtype]
    np.testing.assert_array_equal(q.astype(np.float32), np.clip(np.rint(x / each) + offset, low, high))
    back = one("DequantizeLinear", q, scale, zero, **attrs)
    np.testing.assert_allclose(back, (q.astype(np.float32) - offset) * each, rtol=1e-6)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
@pytest.mark.parametrize("saturate", [0, 1])
def test_small_floats(dtype: Any, saturate: int) -> None:
    x = np.array([0.0, 1.0, -3.0, 500.0, 1e9, -1e9, 0.01], np.float32)
    code = dtype_from_numpy(np.dtype(dtype))
    assert code is not None
    attrs = {"saturate": saturate, "output_dtype": code.code}
    q = one("QuantizeLinear", x, np.float32(2), **attrs)
    (expected,) = from_onnx("QuantizeLinear", x, np.array(2, np.float32), **attrs)
    np.testing.assert_array_equal(q.astype(np.float32), expected.astype(np.float32))
    back = one("DequantizeLinear", q, np.float32(2))
    np.testing.assert_array_equal(back, q.astype(np.float32) * 2)


@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16])
def test_the_scale_or_precision_says_how_the_division_rounds(narrow: Any) -> None:
    x, scale = (f(200) * 40).astype(narrow), np.array(0.3, narrow)
    q = one("QuantizeLinear", x, scale)
    quotient = (x.astype(np.float32) / scale.astype(np.float32)).astype(narrow).astype(np.float32)
    np.testing.assert_array_equal(q, np.clip(np.rint(quotient), 0, 255).astype(np.uint8))
    fine = one("QuantizeLinear", x, scale, precision=DType.F32.code)
    quotient = x.astype(np.float32) / scale.astype(np.float32)
    np.testing.assert_array_equal(fine, np.clip(np.rint(quotient), 0, 255).astype(np.uint8))


def test_output_dtypes() -> None:
    q = integers(np.int8, 3)
    assert one("DequantizeLinear", q, np.float32(2), output_dtype=DType.F16.code).dtype == np.float16
    exponent = np.array(2, ml_dtypes.float8_e8m0fnu)
    half = one("DequantizeLinear", q, exponent, output_dtype=DType.F16.code)
    np.testing.assert_array_equal(half, q.astype(np.float16) * 2)
    with pytest.raises(InferError):
        infer("DequantizeLinear", (DType.I8, (3,)), (DType.F8E8M0, ()))
    with pytest.raises(InferError):
        infer("QuantizeLinear", (DType.F32, (3,)), (DType.F32, ()), (DType.U8, ()), output_dtype=DType.I8.code)
    with pytest.raises(InferError):
        infer("QuantizeLinear", (DType.F32, (3, 4)), (DType.F32, (3, 4)))


def test_scales_that_do_not_fit() -> None:
    with pytest.raises(InputError):
        one("DequantizeLinear", integers(np.int8, 3, 4), f(3), axis=1)
    with pytest.raises(InputError):
        one("DequantizeLinear", integers(np.int8, 3, 4), f(3, 2), axis=1, block_size=1)


def test_empty_nan_and_infinity() -> None:
    assert one("QuantizeLinear", f(0, 3), np.float32(1)).shape == (0, 3)
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(one("QuantizeLinear", x, np.float32(1), np.array(3, np.int8)), [-128, 127, -128])


@pytest.mark.parametrize("x", [f(3, 4), np.abs(f(3, 4)), -np.abs(f(7)), np.zeros((2, 2), np.float32), f(0)])
def test_dynamic_quantize(x: Array) -> None:
    results = run("DynamicQuantizeLinear", x, outputs=3)
    if x.size:
        assert_close(results, from_onnxruntime("DynamicQuantizeLinear", x, version=11, outputs=3), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("zeros", ["none", "one", "each"])
def test_matmul_integer(kinds: tuple[Any, Any], zeros: str) -> None:
    a, b = integers(kinds[0], 3, 40), integers(kinds[1], 40, 5)
    counts = {"none": None, "one": ((), ()), "each": ((3,), (5,))}[zeros]
    given = [] if counts is None else [integers(kind, *shape) for kind, shape in zip(kinds, counts, strict=True)]
    left = a.astype(np.int64) - (given[0].astype(np.int64).reshape(-1, 1) if given else 0)
    right = b.astype(np.int64) - (given[1].astype(np.int64) if given else 0)
    np.testing.assert_array_equal(one("MatMulInteger", a, b, *given), left @ right)


def test_matmul_integer_in_batches() -> None:
    a, b, zero = integers(np.uint8, 2, 3, 4), integers(np.int8, 4, 5), integers(np.uint8, 2, 3, 1)
    exact = (a.astype(np.int64) - zero) @ b.astype(np.int64)
    np.testing.assert_array_equal(one("MatMulInteger", a, b, zero), exact)


@pytest.mark.parametrize("opset", [10, 21])
@pytest.mark.parametrize("each", [False, True])
def test_qlinear_matmul(opset: int, each: bool) -> None:
    a, b = integers(np.uint8, 3, 8), integers(np.int8, 8, 5)
    a_scale, a_zero = (np.abs(f(3)), integers(np.uint8, 3)) if each else (np.float32(0.1), np.uint8(9))
    b_scale, b_zero = (np.abs(f(5)), integers(np.int8, 5)) if each else (np.float32(0.2), np.int8(-3))
    inputs = [np.asarray(x) for x in (a, a_scale, a_zero, b, b_scale, b_zero, np.float32(2.5), np.uint8(100))]
    result = one("QLinearMatMul", *inputs, version=opset)
    rows, zeros = (np.reshape(p, (-1, 1)).astype(np.float64) for p in (a_scale, a_zero))
    real = ((a - zeros) @ (b.astype(np.float64) - b_zero)) * rows * b_scale / 2.5
    np.testing.assert_allclose(result, np.clip(np.rint(real) + 100, 0, 255), atol=1 if each else 0)


def test_qlinear_matmul_of_small_floats() -> None:
    kind = ml_dtypes.float8_e4m3fn
    a, b, zero = f(3, 4).astype(kind), f(4, 5).astype(kind), np.array(0, kind)
    half = np.array(0.5, np.float32)
    result = one("QLinearMatMul", a, half, zero, b, half, zero, half, zero)
    exact = (a.astype(np.float32) @ b.astype(np.float32)) * np.float32(0.5)
    np.testing.assert_array_equal(result, exact.astype(kind))


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 7, 6), (6, 4, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 4, 7, 6), (8, 2, 3, 2), {"group": 2, "strides": (2, 1), "dilations": (1, 2)}),
    ((1, 4, 7, 6), (4, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER"}),
    ((2, 3, 9), (5, 3, 1), {}),
]


@pytest.mark.parametrize(("data", "weight", "attrs"), CONVS)
@pytest.mark.parametrize("zeros", [False, True])
def test_conv_integer(data: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any], zeros: bool) -> None:
    inputs = [integers(np.uint8, *data), integers(np.uint8, *weight)]
    inputs += [np.array(100, np.uint8), np.array(120, np.uint8)] if zeros else []
    expected = from_onnxruntime("ConvInteger", *inputs, version=10, **attrs)[0]
    np.testing.assert_array_equal(one("ConvInteger", *inputs, **attrs), expected)


def test_conv_integer_with_a_zero_point_for_each_channel() -> None:
    x, w, zero = integers(np.uint8, 1, 2, 5, 5), integers(np.int8, 3, 2, 3, 3), integers(np.int8, 3)
    result = one("ConvInteger", x, w, np.array(0, np.uint8), zero)
    for channel in range(3):
        alone = one("ConvInteger", x, w[channel : channel + 1], np.array(0, np.uint8), zero[channel].reshape(()))
        np.testing.assert_array_equal(result[:, channel], alone[:, 0])


@pytest.mark.parametrize(("data", "weight", "attrs"), CONVS)
@pytest.mark.parametrize("each", [False, True])
def test_qlinear_conv(data: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any], each: bool) -> None:
    count = weight[0]
    scale = np.abs(f(count, scale=0.01)) if each else np.array(0.01, np.float32)
    zero = np.zeros(count, np.int8) if each else np.array(0, np.int8)
    inputs = [
        integers(np.uint8, *data), np.array(0.1, np.float32), np.array(110, np.uint8), integers(np.int8, *weight),
        scale, zero, np.array(0.9, np.float32), np.array(128, np.uint8),
        RNG.integers(-999, 999, count).astype(np.int32),
    ]  # fmt: skip
    expected = from_onnxruntime("QLinearConv", *inputs, version=10, **attrs)[0].astype(np.int64)
    # ONNX Runtime multiplies by a rounded factor, so a result next to a half may fall on either side
    result = one("QLinearConv", *inputs, **attrs).astype(np.int64)
    assert np.abs(result - expected).max() <= 1
    assert (result != expected).mean() < 0.02
