"""Convolutions and poolings: reference functions against ONNX Runtime and naive loops, rules against results."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx.reference.ops.op_deform_conv import _deform_conv_implementation
from tests.oracle.cases import agree, assert_close, build, from_onnxruntime, one, random, run, unknown_dims, widened

from tierup.errors import InputError
from tierup.ir.infer import InferError
from tierup.ir.types import Array
from tierup.reference import conv as conv_module

CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((1, 4, 9), (4, 1, 4), {"group": 4, "dilations": [2], "pads": [3, 2]}),
    ((2, 3, 8, 9), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 8, 9), (5, 3, 3, 2), {"strides": [2, 3], "pads": [0, 1, 2, 0], "dilations": [2, 1]}),
    ((2, 6, 7, 7), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((2, 6, 7, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 3, 7, 8), (6, 1, 5, 3), {"group": 3, "pads": [4, 1, 4, 1], "dilations": [2, 1]}),
    ((2, 6, 5, 5), (4, 6, 1, 1), {}),
    ((2, 6, 5, 6), (4, 3, 1, 1), {"group": 2, "strides": [2, 3]}),
    ((2, 6, 5, 5), (4, 6, 1, 1), {"pads": [1, 0, 0, 1]}),
    ((1, 2, 9, 8), (3, 2, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ((1, 2, 9, 8), (3, 2, 4, 2), {"auto_pad": "SAME_LOWER"}),
    ((1, 2, 9, 8), (3, 2, 4, 2), {"auto_pad": "VALID", "strides": [3, 2], "kernel_shape": [4, 2]}),
    ((1, 1, 4, 5), (2, 1, 3, 3), {}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 3), {"pads": [0, 1, 1, 1, 0, 1], "strides": [1, 2, 1]}),
    ((1, 3, 4, 5, 6), (3, 1, 2, 3, 3), {"group": 3, "strides": [2, 1, 2]}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CONVS)
def test_conv(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    inputs = [random(*x), random(*w, seed=1), random(w[0], seed=2)]
    agree("Conv", *inputs, version=11, **attrs)
    agree("Conv", *inputs[:2], version=11, **attrs)


@pytest.mark.parametrize(("x", "w", "attrs"), CONVS[:7])
def test_conv_in_small_pieces(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [random(*x), random(*w, seed=1)]
    whole = run("Conv", *inputs, **attrs)
    monkeypatch.setattr(conv_module, "_COLUMN_BYTES", 1)
    monkeypatch.setattr(conv_module, "_SLICE_BYTES", 1)
    assert_close(run("Conv", *inputs, **attrs), whole)


NARROW = [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)]  # two roundings of the result


@pytest.mark.parametrize(("dtype", "rtol"), NARROW)
@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("Conv", [(1, 3, 6, 6), (4, 3, 3, 3), (4,)], {}),
        ("Conv", [(1, 3, 6, 6), (3, 1, 3, 3)], {"group": 3}),
        ("ConvTranspose", [(1, 3, 6, 6), (3, 4, 3, 3), (4,)], {}),
        ("AveragePool", [(1, 3, 6, 6)], {"kernel_shape": [3, 3]}),
        ("LpPool", [(1, 3, 6, 6)], {"kernel_shape": [3, 3]}),
        ("MaxPool", [(1, 3, 6, 6)], {"kernel_shape": [3, 3]}),
        ("GlobalAveragePool", [(1, 3, 6, 6)], {}),
        ("GlobalLpPool", [(1, 3, 6, 6)], {}),
        ("GlobalMaxPool", [(1, 3, 6, 6)], {}),
    ],
)
def test_narrow_floats_are_the_wide_result_rounded(
    op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], dtype: Any, rtol: float
) -> None:
    inputs = [random(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]
    narrow = one(op, *inputs, **attrs)
    (wide,) = widened(op, *inputs, **attrs)
    assert (narrow.dtype, wide.dtype) == (dtype, np.float64)
    np.testing.assert_allclose(narrow.astype(np.float64), wide, rtol=rtol, atol=rtol)


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7), (3, 4, 3), {"strides": [2]}),
    ((2, 3, 5, 6), (3, 4, 3, 3), {}),
    ((2, 3, 5, 6), (3, 4, 2, 2), {"strides": [2, 2]}),
    ((1, 4, 5, 6), (4, 3, 3, 2), {"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 1], "output_padding": [1, 2]}),
    ((1, 4, 5, 6), (4, 1, 3, 3), {"group": 4, "dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ((1, 2, 4, 4), (2, 2, 3, 3), {"strides": [3, 2], "output_shape": [10, 8], "output_padding": [1, 1]}),
    ((1, 2, 4, 4), (2, 2, 3, 3), {"strides": [2, 2], "output_shape": [8, 7], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 4, 4), (2, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 4, 4), (2, 2, 4, 3), {"strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 4, 4), (2, 2, 4, 3), {"strides": [2, 1], "auto_pad": "VALID"}),
    ((1, 2, 3, 4, 3), (2, 2, 2, 3, 2), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_conv_transpose(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    inputs = [random(*x), random(*w, seed=1), random(w[1] * attrs.get("group", 1), seed=2)]
    agree("ConvTranspose", *inputs, version=11, **attrs)


@pytest.mark.parametrize(
    ("op", "shapes", "result", "attrs"),
    [
        ("Conv", [(0, 3, 5, 5), (4, 3, 3, 3)], (0, 4, 3, 3), {}),
        ("Conv", [(2, 3, 2, 5), (4, 3, 3, 3)], (2, 4, 0, 3), {}),
        ("Conv", [(2, 0, 5, 5), (4, 0, 3, 3)], (2, 4, 3, 3), {}),
        ("Conv", [(2, 3, 0, 5), (4, 3, 1, 1)], (2, 4, 0, 5), {}),
        ("ConvTranspose", [(0, 3, 5), (3, 2, 3)], (0, 2, 7), {}),
        ("ConvTranspose", [(1, 0, 5), (0, 2, 3)], (1, 2, 7), {}),
        ("MaxPool", [(0, 3, 5, 5)], (0, 3, 4, 4), {"kernel_shape": [2, 2]}),
        ("AveragePool", [(1, 3, 1, 5)], (1, 3, 0, 4), {"kernel_shape": [2, 2]}),
    ],
)
def test_empty(op: str, shapes: list[tuple[int, ...]], result: tuple[int, ...], attrs: dict[str, Any]) -> None:
    y = one(op, *[np.ones(shape, np.float32) for shape in shapes], **attrs)
    assert y.shape == result
    assert not y.any()


def _naive_pool(x: Array, what: str, attrs: dict[str, Any], out: tuple[int, ...]) -> Array:
    """Window by window, as the text has it, in f64."""
    axes = x.ndim - 2
    kernel = attrs["kernel_shape"]
    strides, dilations = attrs.get("strides", [1] * axes), attrs.get("dilations", [1] * axes)
    pads = attrs.get("pads", [0] * 2 * axes)
    y = np.zeros((*x.shape[:2], *out))
    for window in product(*map(range, out)):
        values, count = [], 0
        for tap in product(*map(range, kernel)):
            at = [window[a] * strides[a] + tap[a] * dilations[a] - pads[a] for a in range(axes)]
            inside = all(0 <= at[a] < x.shape[a + 2] for a in range(axes))
            if inside:
                values.append(x[(..., *at)].astype(np.float64))
            padded = all(at[a] < x.shape[a + 2] + pads[a + axes] for a in range(axes))
            count += (padded if attrs.get("count_include_pad") else inside) if what == "avg" else 1
        rule = {"avg": lambda v, n: sum(v) / n, "max": lambda v, _: np.maximum.reduce(v)}
        p = attrs.get("p", 2)
        rule["lp"] = lambda v, _, p=p: sum(abs(e) ** p for e in v) ** (1 / p)
        y[(..., *window)] = rule[what](values, count)
    return y


POOLS: list[tuple[tuple[int, ...], dict[str, Any], tuple[int, ...]]] = [
    ((2, 3, 9), {"kernel_shape": [3], "strides": [2]}, (4,)),
    ((2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, (5, 8)),
    ((2, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, (4, 4)),
    ((1, 2, 7, 7), {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}, (3, 3)),
    ((1, 1, 2, 4), {"kernel_shape": [1, 2], "strides": [2, 3], "ceil_mode": 1}, (1, 2)),
    ((1, 2, 9, 9), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [2, 1, 2, 1]}, (9, 8)),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [2, 2, 3], "pads": [0, 1, 0, 1, 1, 0]}, (3, 3, 2)),
    ((1, 1, 3, 4, 3, 4), {"kernel_shape": [2, 2, 2, 2]}, (2, 3, 2, 3)),
]


@pytest.mark.parametrize(("shape", "attrs", "out"), POOLS)
def test_pools(shape: tuple[int, ...], attrs: dict[str, Any], out: tuple[int, ...]) -> None:
    x = random(*shape)
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("MaxPool", "max", {}),
        ("AveragePool", "avg", {}),
        ("AveragePool", "avg", {"count_include_pad": 1}),
        ("LpPool", "lp", {"p": 1}),
        ("LpPool", "lp", {"p": 2}),
        ("LpPool", "lp", {"p": 3}),
    ]
    for op, what, extra in cases:
        y = one(op, x, **attrs, **extra)
        np.testing.assert_allclose(y, _naive_pool(x, what, attrs | extra, out), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("op", "opset"), [("AveragePool", 7), ("MaxPool", 8), ("LpPool", 11)])
def test_auto_pad(op: str, opset: int, auto_pad: str) -> None:
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": auto_pad}
    agree(op, random(1, 2, 8, 9), version=opset, **attrs)


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(("shape", "attrs", "out"), POOLS[:7])
def test_max_pool_indices(
    shape: tuple[int, ...], attrs: dict[str, Any], out: tuple[int, ...], storage_order: int
) -> None:
    x = np.round(random(*shape))  # many equal elements: the first one counts
    values, indices = run("MaxPool", x, outputs=2, storage_order=storage_order, **attrs)
    assert values.shape[2:] == out
    flat = x.reshape(*shape[:2], -1)
    if storage_order == 1:
        flat = x.transpose(0, 1, *reversed(range(2, x.ndim))).reshape(flat.shape)
    np.testing.assert_array_equal(flat.reshape(-1)[indices], values)
    if len(shape) < 5 or storage_order == 0:
        expected = from_onnxruntime("MaxPool", x, version=12, outputs=2, storage_order=storage_order, **attrs)
        assert_close([values, indices], expected)


def test_max_pool_indices_of_lowest_values_and_nan() -> None:
    x = np.array([[[-np.inf, -np.inf, np.nan, 1.0, np.nan]]], np.float32)
    values, indices = run("MaxPool", x, outputs=2, kernel_shape=[2], strides=[1])
    np.testing.assert_array_equal(values, [[[-np.inf, np.nan, np.nan, np.nan]]])
    np.testing.assert_array_equal(indices, [[[0, 2, 2, 4]]])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_of_bytes(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(np.iinfo(dtype).min, 100, (1, 2, 6, 6)).astype(dtype)
    attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    agree("MaxPool", x, version=12, **attrs)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (1, 2, 3, 4, 2)])
def test_global_pools(op: str, shape: tuple[int, ...]) -> None:
    assert_close(run(op, random(*shape)), from_onnxruntime(op, random(*shape)))


def test_global_pools_without_elements() -> None:
    x = np.zeros((2, 3, 0), np.float32)
    assert np.isnan(one("GlobalAveragePool", x)).all()
    assert (one("GlobalMaxPool", x) == -np.inf).all()
    assert (one("GlobalLpPool", x) == 0).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("groups", "offset_groups", "attrs"),
    [
        (1, 1, {}),
        (2, 1, {"pads": [1, 1, 1, 1]}),
        (1, 2, {"pads": [1, 0, 0, 1], "strides": [2, 1]}),
        (2, 2, {"dilations": [1, 2]}),
    ],
)
def test_deform_conv(groups: int, offset_groups: int, attrs: dict[str, Any], masked: bool) -> None:
    x, w, b = random(1, 4, 5, 6), random(4, 4 // groups, 2, 2, seed=1), random(4, seed=2)
    plain = one("Conv", x, w, b, group=groups, **attrs)
    offset = random(1, offset_groups * 8, *plain.shape[2:], seed=3)
    mask = random(1, offset_groups * 4, *plain.shape[2:], seed=4) if masked else None
    extra = {"group": groups, "offset_group": offset_groups, **attrs}
    y = one("DeformConv", *[x, w, offset, b, mask][: 5 if masked else 4], **extra)
    expected = _deform_conv_implementation(
        x, w, offset, b, mask, attrs.get("dilations"), groups, [2, 2], offset_groups, attrs.get("pads"),
        attrs.get("strides"),
    )  # fmt: skip
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    rest = one("DeformConv", x, w, np.zeros_like(offset), b, **extra)
    np.testing.assert_allclose(rest, plain, rtol=1e-4, atol=1e-5)


def test_deform_conv_over_three_axes_at_rest_is_conv() -> None:
    x, w = random(2, 2, 4, 5, 4), random(3, 2, 2, 2, 2, seed=1)
    plain = one("Conv", x, w, strides=[1, 2, 1])
    y = one("DeformConv", x, w, np.zeros((2, 24, *plain.shape[2:]), np.float32), strides=[1, 2, 1])
    np.testing.assert_allclose(y, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_causal_conv_in_two_parts_is_the_whole(activation: str, length: int) -> None:
    x, w, b = random(2, 3, 9), random(3, 1, 4, seed=1), random(3, seed=2)
    whole, last = run("CausalConvWithState", x, w, b, outputs=2, activation=activation)
    first, state = run("CausalConvWithState", x[..., :length], w, b, outputs=2, activation=activation)
    second, end = run("CausalConvWithState", x[..., length:], w, b, state, outputs=2, activation=activation)
    assert_close([np.concatenate([first, second], axis=2), end], [whole, last])
    padded = np.pad(x, ((0, 0), (0, 0), (3, 0)))
    sums = sum(padded[..., t : t + 9] * w[:, 0, t, None] for t in range(4)) + b[:, None]
    assert_close([whole], [sums if activation == "none" else sums / (1 + np.exp(-sums))])


def test_max_unpool_inverts_max_pool() -> None:
    x = random(2, 3, 6, 8)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    values, indices = run("MaxPool", x, outputs=2, **attrs)
    y = one("MaxUnpool", values, indices, **attrs)
    assert_close([y], from_onnxruntime("MaxUnpool", values, indices, version=11, **attrs))
    np.testing.assert_array_equal(one("MaxPool", np.where(y == 0, -9, y), **attrs), values)
    larger = one("MaxUnpool", values, indices, np.array([2, 3, 7, 8]), **attrs)
    np.testing.assert_array_equal(larger[:, :, :6], y)
    assert not larger[:, :, 6:].any()


@pytest.mark.parametrize("index", [-1, 16])
def test_max_unpool_refuses_indices_outside(index: int) -> None:
    inputs = [np.ones((1, 1, 2, 2), np.float32), np.full((1, 1, 2, 2), index)]
    with pytest.raises(InputError, match="outside the 16 elements"):
        run("MaxUnpool", *inputs, kernel_shape=[2, 2], strides=[2, 2])


F = np.zeros


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("Conv", [(3, 4), (2, 4)], {}, "expected batch, channels"),
        ("Conv", [(1, 3, 5), (2, 3, 2, 2)], {}, "has 3 axes, but the weight 4"),
        ("Conv", [(1, 3, 5), (2, 4, 2)], {}, "channels"),
        ("Conv", [(1, 4, 5), (3, 2, 2)], {"group": 2}, "do not divide"),
        ("Conv", [(1, 4, 5), (3, 4, 2)], {"group": 0}, "at least 1"),
        ("Conv", [(1, 3, 5), (2, 3, 2), (3,)], {}, "bias"),
        ("Conv", [(1, 3, 5), (2, 3, 2)], {"strides": [0]}, "strides"),
        ("Conv", [(1, 3, 5), (2, 3, 2)], {"strides": [1, 1]}, "strides has 2 entries"),
        ("Conv", [(1, 3, 5), (2, 3, 2)], {"pads": [-1, 0]}, "pads"),
        ("Conv", [(1, 3, 5), (2, 3, 2)], {"auto_pad": "SAME"}, "auto_pad"),
        ("Conv", [(1, 3, 5), (2, 3, 2)], {"kernel_shape": [3]}, "kernel_shape"),
        ("Conv", [(1, 3, 5), (2, 3, 0)], {}, "at least 1"),
        ("Conv", [(1, 3, 2), (2, 3, 9)], {}, "the size -6"),
        ("ConvTranspose", [(1, 3, 5), (4, 3, 2)], {}, "channels"),
        ("ConvTranspose", [(1, 3, 5), (3, 3, 2)], {"output_shape": [-4]}, "output_shape"),
        ("MaxPool", [(1, 3, 5)], {"kernel_shape": [2, 2]}, "kernel_shape has 2 entries"),
        ("MaxPool", [(1, 3, 5)], {"kernel_shape": [0]}, "kernel_shape"),
        ("LpPool", [(1, 3, 5)], {"kernel_shape": [2], "p": 0}, "p is 0"),
        ("GlobalMaxPool", [(3,)], {}, "expected batch, channels"),
        ("DeformConv", [(1, 3, 5), (2, 3, 2), (1, 3, 4)], {}, "offsets"),
        ("CausalConvWithState", [(1, 3, 5), (3, 2, 2)], {}, "second axis"),
        ("CausalConvWithState", [(1, 3, 5), (3, 1, 2)], {"activation": "relu"}, "activation"),
    ],
)
def test_refusals(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(InferError, match=message):
        build("closed", op, *(F(shape, np.float32) for shape in shapes), **attrs)


def test_a_huge_kernel_costs_nothing_that_the_data_does_not_need() -> None:
    y = one("MaxPool", random(1, 1, 4), kernel_shape=[10**12], auto_pad="SAME_UPPER")
    assert y.shape == (1, 1, 4)


def test_open_dims_are_programs_over_input_dims() -> None:
    shapes = {"Conv": [(1, 3, 9, 9), (4, 3, 3, 3)], "MaxPool": [(1, 3, 9, 9)], "ConvTranspose": [(1, 3, 9), (3, 4, 3)]}
    for op, given in shapes.items():
        for extra in ({"auto_pad": "SAME_UPPER"}, {"strides": [2] * (len(given[0]) - 2)}):
            attrs = extra | ({"kernel_shape": [3, 3], "ceil_mode": 1} if op == "MaxPool" else {})
            assert unknown_dims(build("opaque", op, *(F(shape, np.float32) for shape in given), **attrs).graph) == 0
