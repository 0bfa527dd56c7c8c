"""Products of what was dequantised as products of bytes: where they are, where not, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rewrite.graphs import Build, const, f32, made, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, ValueId
from tierup.ir.types import DType, TensorType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import lower_to_core, simplify
from tierup.rewrite.rules.quantised import byte_products, byte_tensors
from tierup.rewrite.walk import walk

RANDOM = np.random.default_rng(6)
EPS = 2.0**-23
CONV = {"group": 1, "strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "auto_pad": "NOTSET"}


def onnx(b: GraphBuilder, op: str, *inputs: ValueId, version: int = 13, **attrs: Any) -> ValueId:
    (result,) = b.node(f"onnx.{op}", inputs, Attrs(attrs), version=version)
    assert result is not None
    return result


def dequantised(b: GraphBuilder, x: ValueId, scale: Any, zero: Any, kind: Any, axis: int = 1) -> ValueId:
    return onnx(b, "DequantizeLinear", x, const(b, scale), const(b, zero, kind), axis=axis)


def quantised(b: GraphBuilder, x: ValueId, scale: float, zero: int, kind: Any) -> ValueId:
    return onnx(b, "QuantizeLinear", x, const(b, scale), const(b, zero, kind), axis=1)


def numbers(kind: Any, *shape: int) -> Any:
    ends = np.iinfo(kind)
    return RANDOM.integers(ends.min, ends.max + 1, shape).astype(kind)


def rewritten(build: Build) -> tuple[Graph, Graph, Any]:
    graph, weights = made(build)
    after = walk(walk(graph, weights, (byte_tensors,)).graph, weights, (byte_products,)).graph
    after = simplify(after, weights)
    verify(after, weights)
    return graph, after, weights


def compare(build: Build, *feeds: Any) -> list[str]:
    """The ops afterwards; in float64, only the scales' roundings to f32 and sums of 2^-23 of them are left."""
    graph, after, weights = rewritten(build)
    for wanted, got in zip(
        evaluate(graph, weights, list(feeds), wide=True), evaluate(after, weights, list(feeds)), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=8 * EPS * float(np.abs(wanted).max(initial=0)) + 1e-30)
    return ops(after)


def conv(b: GraphBuilder, x: ValueId, w: Any, scale: Any, zero: Any, bias: Any = None, **attrs: Any) -> ValueId:
    weight = dequantised(b, const(b, w, w.dtype), scale, zero, w.dtype, axis=0)
    given = (x, weight) if bias is None else (x, weight, const(b, bias))
    return onnx(b, "Conv", *given, version=11, kernel_shape=w.shape[2:], **{**CONV, **attrs})


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize(("kind", "zero"), [(np.uint8, 0), (np.uint8, 131), (np.int8, -128), (np.int8, 7)])
def test_a_convolution(kind: Any, zero: int, by_channel: bool) -> None:
    w = numbers(np.int8, 9, 5, 3, 3)
    scale = RANDOM.uniform(0.01, 0.1, 9) if by_channel else 0.02
    bias = RANDOM.standard_normal(9)

    def build(b: GraphBuilder) -> ValueId:
        x = b.open_input(DType.U8 if kind is np.uint8 else DType.I8, ("n", 5, "h", 6))
        return conv(b, dequantised(b, x, 0.03, zero, kind), w, scale, np.zeros(9 if by_channel else ()), bias)

    left = compare(build, numbers(kind, 2, 5, 4, 6))
    assert "core.conv" in left
    assert "onnx.Conv" not in left


@pytest.mark.parametrize(("channels", "group"), [(8, 8), (8, 2)])
def test_convolutions_in_groups(channels: int, group: int) -> None:
    w = numbers(np.int8, 8, channels // group, 3, 3)

    def build(b: GraphBuilder) -> ValueId:
        x = dequantised(b, b.open_input(DType.U8, (2, channels, "h", 6)), 0.03, 131, np.uint8)
        return conv(b, x, w, RANDOM.uniform(0.01, 0.1, 8), np.zeros(8), RANDOM.standard_normal(8), group=group)

    left = compare(build, numbers(np.uint8, 2, channels, 4, 6))
    assert "core.conv" in left
    assert "onnx.Conv" not in left


def test_zero_points_of_weights_are_taken_off_where_that_fits_bytes() -> None:
    def build(zero: int) -> Build:
        w = np.append(numbers(np.uint8, 3 * 9 * 8 - 2), [0, 255]).reshape(8, 3, 3, 3).astype(np.uint8)

        def inner(b: GraphBuilder) -> ValueId:
            x = b.open_input(DType.U8, (1, 3, 5, 6))
            return conv(b, dequantised(b, x, 0.03, 3, np.uint8), w, 0.5, zero)

        return inner

    assert "core.conv" in compare(build(128), numbers(np.uint8, 1, 3, 5, 6))
    assert "core.conv" in compare(build(0), numbers(np.uint8, 1, 3, 5, 6))  # unsigned by unsigned
    assert "onnx.Conv" in compare(build(7), numbers(np.uint8, 1, 3, 5, 6))  # -7 and 248 fit no byte


@pytest.mark.parametrize("turned", [False, True])
def test_gemm_and_the_movement_in_front_of_it(turned: bool) -> None:
    w = numbers(np.int8, 8, 12) if turned else numbers(np.int8, 12, 8)
    scale = RANDOM.uniform(0.01, 0.1, 8)

    def build(b: GraphBuilder) -> ValueId:
        x = dequantised(b, b.open_input(DType.U8, (2, 3, 4)), 0.03, 9, np.uint8)
        weight = dequantised(b, const(b, w, np.int8), scale, np.zeros(8), np.int8, axis=0 if turned else 1)
        attrs = {"alpha": 0.5, "beta": 2.0, "transA": 0, "transB": int(turned)}
        return onnx(b, "Gemm", onnx(b, "Flatten", x, axis=1), weight, const(b, RANDOM.standard_normal(8)), **attrs)

    left = compare(build, numbers(np.uint8, 2, 3, 4))
    assert "core.matmul" in left
    assert "onnx.Gemm" not in left


def test_matmul() -> None:
    def build(b: GraphBuilder) -> ValueId:
        x = dequantised(b, b.open_input(DType.I8, (2, "n", 12)), 0.03, 9, np.int8)
        return onnx(b, "MatMul", x, dequantised(b, const(b, numbers(np.int8, 12, 8), np.int8), 0.1, 0, np.int8))

    assert "core.matmul" in compare(build, numbers(np.int8, 2, 3, 12))


@pytest.mark.parametrize(
    "build",
    [
        lambda b: conv(b, f32(b, 1, 5, 4, 4), numbers(np.int8, 9, 5, 3, 3), 0.1, 0),  # data of floats
        lambda b: conv(  # few channels
            b, dequantised(b, b.open_input(DType.U8, (1, 1, 4, 4)), 0.1, 0, np.uint8), numbers(np.int8, 9, 1, 3, 3), 1,
            0,
        ),
        lambda b: conv(  # a scale for each channel of the data
            b, dequantised(b, b.open_input(DType.U8, (1, 4, 4, 4)), np.ones(4), np.zeros(4), np.uint8),
            numbers(np.int8, 8, 4, 3, 3), 1, 0,
        ),
        lambda b: onnx(  # weights scaled along the sum
            b, "MatMul", dequantised(b, b.open_input(DType.U8, (3, 8)), 0.1, 0, np.uint8),
            dequantised(b, const(b, numbers(np.int8, 8, 8), np.int8), np.ones(8), np.zeros(8), np.int8, axis=0),
        ),
    ],
)  # fmt: skip
def test_others_stay(build: Build) -> None:
    _, after, _ = rewritten(build)
    assert not {"core.conv", "core.matmul"}.intersection(ops(after))


def test_signed_bytes_between_become_unsigned_ones() -> None:
    def build(b: GraphBuilder) -> ValueId:
        x = quantised(b, f32(b, 1, 4, 3, 3), 0.05, -3, np.int8)
        y = conv(b, dequantised(b, x, 0.05, -3, np.int8), numbers(np.int8, 8, 4, 3, 3), 0.1, 0)
        y = dequantised(b, quantised(b, y, 1.0, -128, np.int8), 1.0, -128, np.int8)
        return conv(b, y, numbers(np.int8, 8, 8, 3, 3), 0.1, 0)

    _, after, _ = rewritten(build)
    products = [node for node in after.nodes if node.op == "core.conv"]
    for product in products:
        type = after.type(product.inputs[0] or 0)
        assert isinstance(type, TensorType)
        assert type.dtype is DType.U8
    assert [product.attrs.get("fill") for product in products] == [125, None]
    compare(build, RANDOM.standard_normal((1, 4, 3, 3)).astype(np.float32))


def test_what_was_dequantised_in_the_same_way_is_not_quantised_again() -> None:
    def build(scale: float) -> Build:
        def inner(b: GraphBuilder) -> ValueId:
            x = dequantised(b, b.open_input(DType.U8, (1, 4, 6, 6)), 0.05, 3, np.uint8)
            attrs = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "auto_pad": "NOTSET",
                     "ceil_mode": 0, "dilations": (1, 1), "storage_order": 0}  # fmt: skip
            return quantised(b, onnx(b, "MaxPool", x, version=12, **attrs), scale, 3, np.uint8)

        return inner

    feed = numbers(np.uint8, 1, 4, 6, 6)
    assert compare(build(0.05), feed) == ["onnx.MaxPool"]
    assert "onnx.QuantizeLinear" in ops(rewritten(build(0.06))[1])  # as it is: no factor in place of the scale


def test_between_products_nothing_is_divided() -> None:
    def build(b: GraphBuilder) -> ValueId:
        x = dequantised(b, b.open_input(DType.U8, (1, 4, 6, 6)), 0.05, 3, np.uint8)
        y = onnx(b, "Relu", conv(b, x, numbers(np.int8, 8, 4, 3, 3), 0.1, 0))
        return quantised(b, y, 0.7, 3, np.uint8)

    graph, weights = made(build)
    after = lower_to_core(graph, weights, on_words=True)
    assert "core.div" not in ops(after)
    feed = numbers(np.uint8, 1, 4, 6, 6)
    (wanted,), (got,) = evaluate(graph, weights, [feed], wide=True), evaluate(after, weights, [feed])
    assert np.abs(wanted.astype(int) - got.astype(int)).max() <= 1  # next to a half
    assert (wanted == got).mean() > 0.9
