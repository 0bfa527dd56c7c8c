"""Convolutions and pools: every option, with plain and with open sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.rewrite.lowered import assert_equal, check, f, i8, lowered, reason, single, u8, versions

from tierup.ir.types import Array

CONVS: list[tuple[Array, Array, dict[str, Any]]] = [
    (f(2, 4, 9), f(6, 4, 3), {}),
    (f(2, 4, 9), f(6, 2, 3), {"group": 2, "pads": (2, 0), "strides": (2,)}),
    (f(1, 4, 8, 9), f(6, 4, 3, 2), {"pads": (1, 0, 2, 1), "dilations": (2, 3)}),
    (f(2, 3, 7, 6), f(6, 1, 3, 3), {"group": 3, "auto_pad": "SAME_UPPER"}),
    (f(2, 3, 7, 6), f(6, 3, 3, 2), {"auto_pad": "SAME_LOWER", "strides": (2, 3)}),
    (f(2, 3, 7, 6), f(6, 3, 1, 2), {"auto_pad": "VALID", "strides": (3, 1)}),
    (f(2, 3, 7, 6), f(6, 3, 1, 1), {"auto_pad": "SAME_UPPER", "strides": (3, 4)}),
    (f(1, 2, 4, 5, 3), f(3, 2, 2, 3, 1), {"pads": (0, 1, 0, 1, 1, 0)}),
    (f(0, 2, 4, 5), f(3, 2, 2, 3), {}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CONVS)
@pytest.mark.parametrize("bias", [False, True])
def test_conv(x: Array, w: Array, attrs: dict[str, Any], bias: bool) -> None:
    check("Conv", x, w, *([f(w.shape[0])] if bias else []), constants=(1, 2), **attrs)
    check("Conv", x, w, *([f(w.shape[0])] if bias else []), **attrs)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_conv_in_other_dtypes(op: str, dtype: Any) -> None:
    x, w, b = f(1, 4, 8, 9, dtype=dtype), f(4, 4, 3, 3, dtype=dtype), f(4, dtype=dtype)
    check(op, x, w, pads=(1, 1, 1, 1))
    check(op, x, w, b, pads=(1, 1, 1, 1))


def test_narrow_floats_are_rounded_behind_the_bias() -> None:
    narrow = [f(1, 4, 8, dtype=np.float16), f(6, 4, 3, dtype=np.float16), f(6, dtype=np.float16)]
    for count, casts in ((2, 0), (3, 4)):  # three inputs up, the sum down
        graph, weights, _ = single("onnx.Conv", narrow[:count])
        assert [n.op for n in lowered(graph, weights).nodes].count("core.cast") == casts


def test_same_padding_of_stride_one_does_not_depend_on_open_sizes() -> None:
    graph, weights, _ = single(
        "onnx.Conv", [f(1, 4, 8, 9), f(6, 4, 3, 3)], "open", constants=(1,), auto_pad="SAME_UPPER"
    )
    assert [n.op for n in lowered(graph, weights).nodes] == ["core.conv"]


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
def test_an_op_that_says_its_rank_needs_no_other_word(op: str) -> None:
    x, rest = f(2, 3, 6, 5), [f(4, 3, 2, 2)] if op == "Conv" else []
    attrs: dict[str, Any] = {} if rest else {"kernel_shape": (2, 2)}
    check(op, x, *rest, constants=(1,), forms=["unranked"], **attrs)


TRANSPOSED: list[tuple[Array, Array, dict[str, Any]]] = [
    (f(2, 4, 5), f(4, 3, 3), {"strides": (2,), "output_padding": (1,)}),
    (f(2, 4, 5), f(4, 3, 3), {"strides": (3,), "dilations": (2,), "pads": (1, 2), "group": 2}),
    (f(1, 4, 3, 5), f(4, 2, 3, 2), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    (f(1, 4, 3, 5), f(4, 2, 1, 2), {"auto_pad": "SAME_LOWER", "strides": (3, 1)}),
    (f(1, 4, 3, 5), f(4, 2, 2, 2), {"output_shape": (5, 6), "strides": (2, 2)}),
    (f(1, 4, 3, 5), f(4, 2, 2, 2), {"output_shape": (9, 11), "strides": (2, 2)}),
    (f(1, 4, 3, 5), f(4, 2, 2, 2), {"output_shape": (5, 6), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_conv_transpose(x: Array, w: Array, attrs: dict[str, Any]) -> None:
    check("ConvTranspose", x, w, constants=(1,), **attrs)
    check("ConvTranspose", x, w, f(w.shape[1] * attrs.get("group", 1)), constants=(1,), **attrs)


WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": (2, 3)},
    {"kernel_shape": (2, 3), "strides": (2, 1), "pads": (1, 0, 0, 2)},
    {"kernel_shape": (2, 3), "strides": (2, 2), "ceil_mode": 1},
    {"kernel_shape": (2, 2), "strides": (3, 4), "pads": (0, 1, 1, 0), "ceil_mode": 1},
    {"kernel_shape": (2, 2), "strides": (3, 3), "pads": (1, 0, 1, 1), "ceil_mode": 1},  # the last starts in the padding
    {"kernel_shape": (1, 1), "strides": (2, 3), "pads": (0, 0, 0, 0), "ceil_mode": 1},
    {"kernel_shape": (3, 2), "auto_pad": "SAME_UPPER", "strides": (2, 1)},
    {"kernel_shape": (3, 2), "auto_pad": "SAME_LOWER"},
    {"kernel_shape": (3, 2), "auto_pad": "VALID", "strides": (2, 2)},
    {"kernel_shape": (2, 2), "dilations": (2, 3), "pads": (1, 1, 1, 1), "strides": (3, 2), "ceil_mode": 1},
    {"kernel_shape": (9, 10), "strides": (9, 10), "ceil_mode": 1},  # one window, larger than all there is
    {"kernel_shape": (9, 10), "strides": (9, 4), "pads": (1, 2, 1, 0)},
    {"kernel_shape": (8, 7), "strides": (20, 20), "pads": (2, 0, 2, 0)},  # one that does not see all
]


def test_a_pool_is_not_padded_to_the_size_of_its_kernel() -> None:
    """A published EfficientNet pools 7×7 places by windows of 1280×1280: padded, 1280 channels take 8 GB."""
    attrs = {"kernel_shape": (1280, 1280), "strides": (1280, 1280), "ceil_mode": 1, "count_include_pad": 1}
    graph, weights, feeds = single("onnx.AveragePool", [f(1, 40, 7, 7)], **attrs)
    after = lowered(graph, weights)
    assert_equal(graph, after, weights, feeds)
    assert [n.attrs["kernel_shape"] for n in after.nodes if n.op == "core.pool_sum"] == [(7, 7)]


@pytest.mark.parametrize("attrs", WINDOWS)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(attrs: dict[str, Any], include: int) -> None:
    check("AveragePool", f(2, 3, 7, 8), count_include_pad=include, **attrs)


@pytest.mark.parametrize("attrs", WINDOWS)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(attrs: dict[str, Any], p: int) -> None:
    check("LpPool", f(2, 3, 7, 8), p=p, **attrs)


@pytest.mark.parametrize("attrs", WINDOWS)
@pytest.mark.parametrize("order", [0, 1])
def test_max_pool_with_indices(attrs: dict[str, Any], order: int) -> None:
    x = np.round(f(2, 3, 7, 8))  # with equals, of which the first counts
    x[0, 1, 3, 4] = np.nan
    check("MaxPool", x, outputs=2, storage_order=order, **attrs)


@pytest.mark.parametrize("x", [u8(1, 2, 6, 5), i8(1, 2, 6, 5), f(1, 2, 6, 5, dtype=np.float16)])
def test_max_pool_of_other_dtypes(x: Array) -> None:
    check("MaxPool", x, kernel_shape=(2, 2), pads=(1, 0, 0, 1))


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool", "Conv", "ConvTranspose"])
def test_every_version(op: str) -> None:
    for opset in versions(op):
        rest = [f(3, 3, 2, 2)] if "Conv" in op else []
        attrs: dict[str, Any] = {} if rest else {"kernel_shape": (2, 2)}
        check(op, f(1, 3, 5, 6), *rest, opset=opset, pads=(1, 0, 0, 1), **attrs)


def test_average_pool_of_narrow_floats() -> None:
    check("AveragePool", f(2, 3, 7, 8, dtype=np.float16), kernel_shape=(3, 3), pads=(1, 1, 1, 1))


def test_a_window_that_is_all_padding_is_not_walked() -> None:
    why = reason("MaxPool", f(1, 1, 3), kernel_shape=(10**12,), auto_pad="SAME_UPPER")
    assert why == "its padding is far wider than any data"


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_global_pools(op: str, dtype: Any) -> None:
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5)):
        check(op, f(*shape, dtype=dtype))
    if op == "GlobalLpPool":
        check(op, f(2, 3, 4), p=3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_conv(bias: bool, past: bool, activation: str) -> None:
    inputs = [f(2, 4, 6), f(4, 1, 3), f(4) if bias else None, f(2, 4, 2) if past else None]
    check("CausalConvWithState", *inputs, constants=(1, 2), outputs=2, activation=activation)


def test_max_unpool() -> None:
    x, indices = f(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]], np.int64)
    check("MaxUnpool", x, indices, kernel_shape=(2, 2), strides=(2, 2))
    check("MaxUnpool", x, indices, np.array([1, 1, 5, 6]), constants=(2,), kernel_shape=(2, 2), strides=(2, 2))


@pytest.mark.parametrize("mask", [False, True])
def test_deform_conv(mask: bool) -> None:
    x, w, b = f(2, 4, 6, 5), f(6, 2, 3, 2), f(6)
    offset, factors = f(2, 2 * 2 * 6, 6, 6, scale=3), np.abs(f(2, 2 * 6, 6, 6))
    attrs: dict[str, Any] = {"group": 2, "offset_group": 2, "pads": (1, 1, 1, 1)}
    check("DeformConv", x, w, offset, b, *([factors] if mask else []), **attrs)
