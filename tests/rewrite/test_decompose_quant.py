"""Quantised arithmetic: rounding, saturation, zero points of every kind, and products that stay in bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.rewrite.lowered import RNG, assert_equal, check, f, i8, lowered, reason, single, u8, versions

from tierup.ir.types import Array, DType, TensorType
from tierup.rewrite.rewrite import simplify

SMALL = (
    np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.int2,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float4_e2m1fn,
)  # fmt: skip
ODD = np.array([np.nan, np.inf, -np.inf, 0.5, 1.5, 2.5, -0.5, -1.5, -0.0, 1e30, 127.5, 254.5, 255.5], np.float32)


def positive(*shape: int) -> Array:
    return np.abs(f(*shape)) + np.float32(0.1)


def numbers(dtype: Any, *shape: int) -> Array:
    return np.asarray(RNG.integers(0, 2, shape)).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", SMALL)
def test_quantize_halves_and_what_is_not_finite(dtype: Any) -> None:
    """One number for all, constant or not; 0, something, and absent as zero point."""
    for zero in (np.array(0).astype(dtype), np.array(1).astype(dtype)):
        for constants in ((1, 2), ()):
            check("QuantizeLinear", ODD, np.float32(1) * np.ones((), np.float32), zero, constants=constants)
    code = DType.U8 if dtype is np.uint8 else next(d for d in DType if d.numpy == np.dtype(dtype))
    check("QuantizeLinear", ODD, np.array(0.5, np.float32), output_dtype=code.code, constants=(1,))


@pytest.mark.parametrize("saturate", [0, 1])
def test_small_floats_saturate_if_asked(saturate: int) -> None:
    zero = np.zeros((), ml_dtypes.float8_e5m2)
    check("QuantizeLinear", ODD[3:], np.array(1e-6, np.float32), zero, constants=(1, 2), saturate=saturate)


@pytest.mark.parametrize("dtype", SMALL)
def test_dequantize(dtype: Any) -> None:
    x = numbers(dtype, 3, 4)
    check("DequantizeLinear", x, np.array(0.3, np.float32), constants=(1,))
    check("DequantizeLinear", x, np.array(0.3, np.float32), np.ones((), np.float32).astype(dtype), constants=(1, 2))
    check("DequantizeLinear", x, np.array(0.3, np.float16), np.zeros((), np.float32).astype(dtype))


def test_dequantize_of_sums() -> None:
    x = RNG.integers(-(2**31), 2**31, (3, 4)).astype(np.int32)
    check("DequantizeLinear", x, np.array(0.3, np.float32))
    check("DequantizeLinear", x, positive(4), np.zeros(4, np.int32), constants=(2,))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_by_axis(axis: int, constants: tuple[int, ...]) -> None:
    x = f(2, 3, 4, scale=50)
    count = x.shape[axis]
    check("QuantizeLinear", x, positive(count), i8(count), constants=constants, axis=axis)
    check("DequantizeLinear", i8(2, 3, 4), positive(count), i8(count), constants=constants, axis=axis)
    check("QuantizeLinear", f(7, scale=50), positive(7), i8(7), constants=constants)


@pytest.mark.parametrize("block", [2, 3, 5])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_by_blocks(axis: int, block: int) -> None:
    x = f(4, 5, 6, scale=6)
    shape = list(x.shape)
    shape[axis] = -(-shape[axis] // block)
    zero = numbers(np.uint8, *shape)
    check("QuantizeLinear", x, positive(*shape), zero, constants=(1, 2), axis=axis, block_size=block)
    check("DequantizeLinear", u8(*x.shape), positive(*shape), zero, constants=(1, 2), axis=axis, block_size=block)


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_every_version(op: str) -> None:
    for opset in versions(op):
        check(op, f(3, 4, scale=50) if op[0] == "Q" else u8(3, 4), np.array(0.5, np.float32), np.array(9, np.uint8),
              opset=opset)  # fmt: skip


def test_dtypes_of_the_division() -> None:
    half, zero = np.array(0.3, np.float16), np.array(3, np.int8)
    check("QuantizeLinear", f(3, 4, dtype=np.float16), half, zero)
    check("QuantizeLinear", f(3, 4), half, zero, precision=DType.F16.code)
    check("QuantizeLinear", RNG.integers(-999, 999, (3, 4)).astype(np.int32), np.array(7, np.int32), zero)
    check("DequantizeLinear", i8(3, 4), np.array(0.3, np.float16), output_dtype=DType.F32.code)
    check("DequantizeLinear", i8(3, 4), np.array(2, ml_dtypes.float8_e8m0fnu), output_dtype=DType.F32.code)


@pytest.mark.parametrize("x", [f(3, 4), np.abs(f(5)), -np.abs(f(5)), np.zeros((2, 2), np.float32), f(0, 3), f()])
def test_dynamic_quantize(x: Array) -> None:
    check("DynamicQuantizeLinear", x, outputs=3)


KINDS = [(u8, u8), (u8, i8), (i8, u8), (i8, i8)]
PRODUCTS = [((3, 8), (8, 5)), ((2, 3, 8), (8, 5)), ((3, 8), (2, 8, 5)), ((8,), (8, 5)), ((3, 8), (8,)), ((8,), (8,))]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_matmul_integer(kinds: tuple[Any, Any], left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = kinds[0](*left), kinds[1](*right)
    p, q = kinds[0](), kinds[1]()
    for zeros in ((), (p,), (None, q), (p, q), (a.dtype.type(0) * p, q)):
        check("MatMulInteger", a, b, *zeros)
        check("MatMulInteger", a, b, *zeros, constants=(1, 2, 3))


def test_zero_points_of_rows_and_columns() -> None:
    check("MatMulInteger", u8(3, 8), i8(8, 5), u8(3), i8(5))
    check("MatMulInteger", u8(2, 3, 8), i8(2, 8, 5), u8(2, 3, 1), i8(2, 1, 5))


def test_products_stay_in_bytes() -> None:
    """And a zero point that is known to be 0 costs nothing."""
    graph, weights, _ = single("onnx.MatMulInteger", [u8(3, 8), i8(8, 5), u8(), i8()])
    after = lowered(graph, weights)
    (product,) = (node for node in after.nodes if node.op == "core.matmul")
    types = [after.type(value) for value in product.inputs if value is not None]
    assert [type.dtype for type in types if isinstance(type, TensorType)] == [DType.U8, DType.I8]
    zeros = [np.zeros((), np.uint8), np.zeros((), np.int8)]
    graph, weights, _ = single("onnx.MatMulInteger", [u8(3, 8), i8(8, 5), *zeros], constants=(2, 3))
    assert [node.op for node in lowered(graph, weights).nodes] == ["core.matmul"]


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 4, 6, 7), (6, 4, 3, 3), {}),
    ((2, 4, 6, 7), (6, 2, 3, 2), {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1)}),
    ((1, 4, 9), (4, 1, 3), {"group": 4, "auto_pad": "SAME_UPPER", "dilations": (2,)}),
]


@pytest.mark.parametrize(("data", "weight", "attrs"), CONVS)
@pytest.mark.parametrize("kinds", KINDS)
def test_conv_integer(data: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any], kinds: Any) -> None:
    x, w = kinds[0](*data), kinds[1](*weight)
    p, q = kinds[0](), kinds[1]()
    for zeros in ((), (p,), (None, q), (p, q), (p, kinds[1](weight[0]))):
        check("ConvInteger", x, w, *zeros, constants=(1, 3), **attrs)


@pytest.mark.parametrize(("data", "weight", "attrs"), CONVS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_qlinear_conv(
    data: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any], per_channel: bool, bias: bool
) -> None:
    count = (weight[0],) if per_channel else ()
    scales = [np.array(0.1, np.float32), positive(*count), np.array(40, np.float32)]
    inputs = [u8(*data), scales[0], u8(), i8(*weight), scales[1], np.zeros(count, np.int8), scales[2], u8()]
    extra = [RNG.integers(-999, 999, weight[0]).astype(np.int32)] if bias else []
    check("QLinearConv", *inputs, *extra, constants=range(1, 9), **attrs)
    check("QLinearConv", *inputs, *extra, **attrs)


@pytest.mark.parametrize("opset", [10, 21])
def test_qlinear_matmul(opset: int) -> None:
    def numbers_of(rows: tuple[int, ...], columns: tuple[int, ...]) -> list[Array]:
        return [u8(3, 8), positive(*rows), u8(*rows), i8(8, 5), positive(*columns), i8(*columns)]

    for rows, columns in (((), ()), ((1,), (1,)), ((3,), (5,))):
        inputs = [*numbers_of(rows, columns), np.array(60, np.float32), u8()]
        check("QLinearMatMul", *inputs, opset=opset)
        check("QLinearMatMul", *inputs, constants=range(1, 8), opset=opset)


def test_qlinear_matmul_of_small_floats() -> None:
    kind = ml_dtypes.float8_e4m3fn
    scale, zero = np.array(0.5, np.float32), np.zeros((), kind)
    check("QLinearMatMul", f(3, 8, dtype=kind), scale, zero, f(8, 5, dtype=kind), scale, zero, scale, zero)


def test_scales_of_unknown_rank_stay() -> None:
    assert "rank" in reason("QuantizeLinear", f(3, 4), np.ones((), np.float32), form="unranked")


@pytest.mark.parametrize(("zero", "sums"), [(128, 0), (100, 1)], ids=["fits", "does not fit"])
def test_zero_points_of_constants_are_taken_off_where_bytes_hold_that(zero: int, sums: int) -> None:
    """Otherwise they are taken off the result, with the sums of the rows."""
    x, w = u8(5, 12), u8(12, 7)
    w[0, :2] = 0, 255
    inputs = [x, w, np.uint8(3), np.full(7, zero, np.uint8)]
    graph, weights, feeds = single("onnx.MatMulInteger", inputs, constants=(1, 3))
    after = lowered(graph, weights)
    assert_equal(graph, after, weights, feeds)
    folded = simplify(after, weights)  # sums of a constant's columns are constants
    assert [node.op for node in folded.nodes].count("core.reduce_sum") == sums
