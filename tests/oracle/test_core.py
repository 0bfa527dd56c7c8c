"""Core ops against NumPy where it has them, ONNX Runtime for windows and recurrences, plain loops for the rest."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import from_onnxruntime, one, run

from tierup.errors import InputError
from tierup.ir.build import GraphBuilder
from tierup.ir.dims import DimError
from tierup.ir.graph import Weights
from tierup.ir.infer import InferError
from tierup.ir.ops import table
from tierup.ir.types import DType

RNG = np.random.default_rng(0)
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, 0.5, np.inf, -np.inf, np.nan, 1e-30, 3e4])


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def core(op: str, *inputs: Any, **attrs: Any) -> Any:
    return one(f"core.{op}", *inputs, **attrs)


def test_every_core_op_says_why_it_is_one() -> None:
    rows = [row for row in table().values() if row.name.startswith("core.")]
    assert len(rows) == 80
    assert all(row.core and row.doc and row.reference for row in rows)


UNARY = {
    "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "sqrt": np.sqrt,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", UNARY)
def test_float_maps(op: str, dtype: Any) -> None:
    x = SPECIAL.astype(dtype)
    with np.errstate(all="ignore"):
        expected = UNARY[op](x.astype(np.float64)).astype(dtype).astype(np.float64)
        result = core(op, x)
    assert result.dtype == dtype
    step = float(ml_dtypes.finfo(dtype).eps)  # computed in f32 and rounded: one unit more than correctly rounded
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=4 * step, atol=1e-300)


def test_erf() -> None:
    from math import erf

    x = np.linspace(-6, 6, 101)
    np.testing.assert_allclose(core("erf", x), [erf(v) for v in x], rtol=1e-14)


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "fmod": np.fmod, "pow": np.power,
          "min": np.minimum, "max": np.maximum}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", BINARY)
def test_float_pairs(op: str, dtype: Any) -> None:
    a, b = SPECIAL.astype(dtype)[:, None], SPECIAL.astype(dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        expected = BINARY[op](a.astype(wide), b.astype(wide)).astype(dtype)
    np.testing.assert_array_equal(core(op, a, b).astype(np.float64), expected.astype(np.float64))


def truncated(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def wrapped(value: int, dtype: Any) -> int:
    info = np.iinfo(dtype)
    return (value - info.min) % (1 << info.bits) + info.min


INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": truncated,
    "mod": lambda a, b: a % b if b else 0,
    "fmod": lambda a, b: a - truncated(a, b) * b if b else 0,
    "pow": lambda a, b: a**b if b >= 0 else {1: 1, -1: 1 - 2 * (b % 2)}.get(a, 0),
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b if 0 <= b < 1000 else 0,
    "shr": lambda a, b: a >> b if b >= 0 else -int(a < 0),
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("op", INTEGER)
def test_integer_pairs(op: str, dtype: Any) -> None:
    info = np.iinfo(dtype)
    values = [0, 1, 2, 3, 7, 100, info.max] + ([-1, -2, -7, info.min] if info.min else [])
    a, b = np.array(values, dtype), np.array([v for v in values if abs(v) < 200], dtype)
    result = core(op, a[:, None], b)
    expected = [[wrapped(INTEGER[op](int(x), int(y)), dtype) for y in b] for x in a]
    np.testing.assert_array_equal(result, np.array(expected, dtype))


def test_bool_maps_compare_and_select() -> None:
    t, f = np.array([True, False, True]), np.array([False, False, True])
    for op, expected in (("and", t & f), ("or", t | f), ("xor", t ^ f), ("max", t | f), ("min", t & f), ("eq", t == f)):
        np.testing.assert_array_equal(core(op, t, f), expected)
    np.testing.assert_array_equal(core("not", t), ~t)
    np.testing.assert_array_equal(core("not", np.array([0, 5], np.uint8)), [255, 250])
    x = SPECIAL.astype(np.float32)
    for op, expected in (("lt", x[:, None] < x), ("le", x[:, None] <= x), ("eq", x[:, None] == x)):
        np.testing.assert_array_equal(core(op, x[:, None], x), expected)
    np.testing.assert_array_equal(core("select", t, x[:3], x[3:6]), [0, x[4], x[2]])


def test_cast_and_bitcast() -> None:
    x = np.array([1.9, -1.9, 300, np.nan], np.float32)
    assert core("cast", x, to=DType.U8.code).tolist()[:3] == [1, 255, 44]
    assert core("cast", x, to=DType.BOOL.code).tolist() == [True, True, True, True]
    assert core("cast", x, to=DType.BF16.code).dtype == ml_dtypes.bfloat16
    assert float(core("cast", np.float32([1e6]), to=DType.F8E4M3FN.code, saturate=1)[0]) == 448
    assert core("bitcast", np.float32([1.0]), to=DType.I32.code).tolist() == [0x3F800000]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [(), (0,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 0, 4)])
def test_reductions(axes: tuple[int, ...], keepdims: int, shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    attrs = {"axes": axes, "keepdims": keepdims}
    for op, function, start in (
        ("sum", np.sum, 0),
        ("prod", np.prod, 1),
        ("max", np.max, -np.inf),
        ("min", np.min, np.inf),
    ):
        expected = function(x.astype(np.float64), axis=axes, keepdims=bool(keepdims), initial=start)
        np.testing.assert_allclose(core(f"reduce_{op}", x, **attrs), expected, rtol=1e-5)


def test_reductions_of_integers_narrow_floats_and_nan() -> None:
    assert core("reduce_sum", np.array([200, 100], np.uint8), axes=(0,), keepdims=0) == 44
    assert core("reduce_max", np.zeros((0,), np.int32), axes=(0,), keepdims=0) == np.iinfo(np.int32).min
    assert core("reduce_max", np.array([False, True]), axes=(0,), keepdims=0)
    assert core("reduce_sum", np.full(4096, 1, np.float16), axes=(0,), keepdims=0) == 4096  # f16 alone stops at 2048
    assert np.isnan(core("reduce_min", np.float32([1, np.nan]), axes=(0,), keepdims=0))


def test_arg_reductions() -> None:
    x = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
    for op, last, expected in (
        ("argmax", 0, [1, 0]),
        ("argmax", 1, [2, 1]),
        ("argmin", 0, [0, 2]),
        ("argmin", 1, [0, 2]),
    ):
        assert core(op, x, axis=1, keepdims=0, last=last).tolist() == expected
    assert core("argmax", x, axis=0, keepdims=1, last=0).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running(reverse: int, exclusive: int) -> None:
    x = RNG.integers(1, 5, size=(3, 4)).astype(np.int32)
    for op, function, start in (("cumsum", np.sum, 0), ("cumprod", np.prod, 1)):
        expected = np.empty_like(x)
        for j in range(4):
            part = x[:, j + exclusive :] if reverse else x[:, : j + 1 - exclusive]
            expected[:, j] = function(part, axis=1, initial=start)
        np.testing.assert_array_equal(core(op, x, axis=1, exclusive=exclusive, reverse=reverse), expected)


def test_movement() -> None:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(core("reshape", x, ints(4, 6)), x.reshape(4, 6))
    np.testing.assert_array_equal(core("reshape", x[:1, :1, :1], ints()), x[0, 0, 0])
    np.testing.assert_array_equal(core("transpose", x, perm=(2, 0, 1)), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(
        core("broadcast", x[:, :1], ints(5, 2, 3, 4)), np.broadcast_to(x[:, :1], (5, 2, 3, 4))
    )
    np.testing.assert_array_equal(core("slice", x, ints(1, 0), ints(3, 4), axes=(1, 2), steps=(1, 3)), x[:, 1:3, ::3])
    np.testing.assert_array_equal(core("slice", x, ints(3), ints(-1), axes=(2,), steps=(-2,)), x[:, :, ::-2])
    np.testing.assert_array_equal(core("concat", x, x[:, :0], x[:, :2], axis=1), np.concatenate([x, x[:, :2]], 1))
    for mode in ("constant", "edge", "reflect", "wrap"):
        expected = np.pad(x, [(0, 1), (1, 0), (2, 1)], mode, **({"constant_values": 9} if mode == "constant" else {}))
        np.testing.assert_array_equal(
            core("pad", x, ints(0, 1, 2, 1, 0, 1), np.array(9, np.float32), mode=mode), expected
        )


def test_gathers() -> None:
    x = RNG.normal(size=(3, 4, 5)).astype(np.float32)
    at = np.array([[2, 0], [1, 1]], np.int32)
    np.testing.assert_array_equal(core("gather", x, at, axis=1), x[:, at])
    where = RNG.integers(0, 4, size=(3, 2, 5)).astype(np.int32)
    np.testing.assert_array_equal(core("gather_elements", x, where, axis=1), np.take_along_axis(x, where, 1))
    pairs = np.array([[0, 1], [2, 3]], np.int64)
    np.testing.assert_array_equal(core("gather_nd", x, pairs, batch_dims=0), x[[0, 2], [1, 3]])
    rows = np.array([[1], [0], [3]], np.int64)
    np.testing.assert_array_equal(core("gather_nd", x, rows, batch_dims=1), x[[0, 1, 2], [1, 0, 3]])
    with pytest.raises(InputError, match="outside"):
        core("gather", x, np.array([-1], np.int32), axis=0)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatters(reduction: str) -> None:
    combine = {"none": lambda a, b: b, "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "min": min, "max": max}[
        reduction
    ]
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    at = np.array([[1, 1, 0], [1, 2, 0]], np.int64)
    updates = RNG.normal(size=(2, 3)).astype(np.float32)
    expected = x.copy()
    for i, j in np.ndindex(2, 3):
        expected[at[i, j], j] = combine(expected[at[i, j], j], updates[i, j])
    np.testing.assert_allclose(
        core("scatter_elements", x, at, updates, axis=0, reduction=reduction), expected, rtol=1e-6
    )
    rows = np.array([[1], [1]], np.int64)
    expected = x.copy()
    for i, j in np.ndindex(2, 3):
        expected[1, j] = combine(expected[1, j], updates[i, j])
    np.testing.assert_allclose(core("scatter_nd", x, rows, updates, reduction=reduction), expected, rtol=1e-6)


def test_counting_ops() -> None:
    x = np.array([[0, 3, 1], [3, 0, 3]], np.float32)
    assert core("iota", ints(2, 3), axis=1, dtype=DType.F32.code).tolist() == [[0, 1, 2]] * 2
    assert core("shape", x).tolist() == [2, 3]
    assert core("nonzero", x).tolist() == [[0, 0, 1, 1], [1, 2, 0, 2]]
    assert core("nonzero", np.array(1.0)).shape == (0, 1)
    values, indices = run("core.topk", x, ints(2), outputs=2, axis=1, largest=1)
    assert (values.tolist(), indices.tolist()) == ([[3, 1], [3, 3]], [[1, 2], [0, 2]])
    values, indices = run("core.topk", x, ints(0), outputs=2, axis=0, largest=0)
    assert values.shape == indices.shape == (0, 3)
    assert core("top_places", x, k=2, largest=1).tolist() == [[1, 2], [0, 2]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_matmul(dtype: Any) -> None:
    a, b = RNG.normal(size=(2, 1, 3, 4)).astype(dtype), RNG.normal(size=(5, 4, 2)).astype(dtype)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    rtol = 4 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(core("matmul", a, b).astype(np.float64), expected, rtol=rtol, atol=rtol)
    assert not core("matmul", a[..., :0], b[:, :0]).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_matmul_with_a_factor_for_each_row(dtype: Any) -> None:
    a, w, s = (RNG.normal(size=shape).astype(dtype) for shape in ((2, 3, 4), (4, 5), (4,)))
    expected = (a.astype(np.float64) * s.astype(np.float64)) @ w.astype(np.float64)
    tolerance = 8 * float(ml_dtypes.finfo(dtype).eps)  # of sums of four terms around 1, each rounded twice
    np.testing.assert_allclose(core("matmul_scaled", a, w, s).astype(np.float64), expected, rtol=0, atol=tolerance)
    assert not core("matmul_scaled", a[..., :0], w[:0], s[:0]).any()


def test_matmul_of_bytes_gives_i32() -> None:
    a, b = np.full((1, 100), 255, np.uint8), np.full((100, 1), -128, np.int8)
    assert core("matmul", a, b).tolist() == [[-255 * 128 * 100]]


@pytest.mark.parametrize(("x", "w", "group", "strides", "dilations", "pads"), [
    ((2, 4, 9), (6, 4, 3), 1, (1,), (1,), (1, 1)),
    ((2, 4, 9, 8), (6, 2, 3, 2), 2, (2, 1), (1, 2), (1, 0, 2, 1)),
    ((1, 4, 7, 7), (4, 1, 3, 3), 4, (2, 2), (1, 1), (0, 1, 1, 0)),
    ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), 1, (1, 2, 1), (1, 1, 1), (0, 0, 0, 1, 1, 1)),
])  # fmt: skip
def test_conv(x: Any, w: Any, group: int, strides: Any, dilations: Any, pads: Any) -> None:
    data, kernel = RNG.normal(size=x).astype(np.float32), RNG.normal(size=w).astype(np.float32)
    attrs = {"group": group, "strides": strides, "dilations": dilations}
    (expected,) = from_onnxruntime("Conv", data, kernel, pads=pads, **attrs)
    np.testing.assert_allclose(core("conv", data, kernel, ints(*pads), **attrs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("x", "w", "group", "strides", "dilations", "pads", "extra"), [
    ((2, 4, 5), (4, 3, 3), 1, (2,), (1,), (1, 0), (1,)),
    ((1, 4, 5, 4), (4, 3, 3, 2), 2, (2, 3), (1, 2), (1, 0, 2, 1), (0, 2)),
])  # fmt: skip
def test_conv_transpose(x: Any, w: Any, group: int, strides: Any, dilations: Any, pads: Any, extra: Any) -> None:
    data, kernel = RNG.normal(size=x).astype(np.float32), RNG.normal(size=w).astype(np.float32)
    attrs = {"group": group, "strides": strides, "dilations": dilations, "output_padding": extra}
    (expected,) = from_onnxruntime("ConvTranspose", data, kernel, pads=pads, **attrs)
    np.testing.assert_allclose(
        core("conv_transpose", data, kernel, ints(*pads), **attrs), expected, rtol=1e-4, atol=1e-4
    )


def test_pools() -> None:
    x = RNG.normal(size=(2, 3, 9, 8)).astype(np.float32)
    attrs = {"kernel_shape": (3, 2), "strides": (2, 1), "dilations": (1, 2)}
    values, indices = run("core.pool_max", x, ints(1, 0, 1, 1), outputs=2, **attrs)
    expected, places = from_onnxruntime("MaxPool", x, outputs=2, pads=(1, 0, 1, 1), **attrs)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(indices, places)
    attrs["dilations"] = (1, 1)
    (mean,) = from_onnxruntime(
        "AveragePool", x, pads=(1, 0, 1, 1), count_include_pad=1, **{k: attrs[k] for k in ("kernel_shape", "strides")}
    )
    np.testing.assert_allclose(core("pool_sum", x, ints(1, 0, 1, 1), **attrs) / 6, mean, rtol=1e-5, atol=1e-6)


def test_resize() -> None:
    x = RNG.normal(size=(1, 2, 4, 5)).astype(np.float32)
    attrs = {
        "mode": "linear",
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "floor",
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
        "antialias": 0,
        "extrapolation_value": 0.0,
    }
    scales = np.float32([1, 1, 2, 1.5])
    (expected,) = from_onnxruntime("Resize", x, None, scales, mode="linear")
    result = core("resize", x, ints(1, 2, 8, 7), scales, np.zeros(8, np.float32), **attrs)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrences(kind: str, reverse: int) -> None:
    steps, batch, width, hidden = 5, 3, 4, 2
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    x, w, r, b = (
        RNG.normal(size=size).astype(np.float32)
        for size in [(steps, batch, width), (gates * hidden, width), (gates * hidden, hidden), (2 * gates * hidden,)]
    )
    lengths = np.array([5, 2, 0 if kind == "RNN" else 3], np.int32)
    h, c = RNG.normal(size=(2, batch, hidden)).astype(np.float32)
    common = {"hidden_size": hidden, "direction": "reverse" if reverse else "forward"}
    inputs = [x, w[None], r[None], b[None], lengths, h[None]]
    names = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}[kind]
    attrs = {
        "activations": names,
        "alphas": (0.0,) * len(names),
        "betas": (0.0,) * len(names),
        "clip": 0.0,
        "reverse": reverse,
    }
    bias = b[: gates * hidden] + b[gates * hidden :]
    if kind == "LSTM":
        p = RNG.normal(size=3 * hidden).astype(np.float32)
        expected = from_onnxruntime(kind, *inputs, c[None], p[None], outputs=3, **common)
        results = run("core.lstm", x @ w.T + bias, r.T, p, h, c, lengths, outputs=3, input_forget=0, **attrs)
    elif kind == "GRU":
        bias = bias.copy()
        bias[2 * hidden :] = b[2 * hidden : 3 * hidden]
        expected = from_onnxruntime(kind, *inputs, outputs=2, linear_before_reset=1, **common)
        results = run(
            "core.gru", x @ w.T + bias, r.T, b[-hidden:], h, lengths, outputs=2, linear_before_reset=1, **attrs
        )
    else:
        expected = from_onnxruntime(kind, *inputs, outputs=2, **common)
        results = run("core.rnn", x @ w.T + bias, r.T, h, lengths, outputs=2, **attrs)
    live = lengths > 0  # ONNX Runtime gives no state for a row without steps
    np.testing.assert_allclose(results[0][:, live], expected[0][:, 0][:, live], rtol=1e-5, atol=1e-6)
    for ours, other in zip(results[1:], expected[1:], strict=True):
        np.testing.assert_allclose(ours[live], other[0][live], rtol=1e-5, atol=1e-6)


def test_contents_follow_sizes() -> None:
    """Shape -> gather -> arithmetic -> concat -> reshape: the result's sizes are programs over the input's."""
    builder = GraphBuilder(Weights())
    x = builder.open_input(DType.F32, ["N", "C", 4])
    sizes = builder.op("core.shape", x)
    n = builder.op("core.slice", sizes, builder.weight(ints(0)), builder.weight(ints(1)), axes=(0,), steps=(1,))
    c = builder.op("core.gather", sizes, builder.weight(ints(1)), axis=0)
    half = builder.op("core.div", builder.op("core.mul", c, builder.weight(ints(4))), builder.weight(ints(2)))
    shape = builder.op("core.concat", n, half, builder.weight(ints(2)), axis=0)
    y = builder.op("core.reshape", x, shape)
    content = builder.content(shape)
    assert content is not None
    assert builder.type(y).shape == content
    assert content[0] == builder.type(x).shape[0]
    assert content[2] == 2
    chosen = builder.op("core.select", builder.op("core.lt", n, half), n, half)
    assert builder.content(builder.op("core.cast", chosen, to=DType.I32.code)) is not None


@pytest.mark.parametrize(("op", "inputs", "attrs"), [
    ("add", [np.zeros(2, np.float32), np.zeros(2, np.int32)], {}),
    ("add", [np.zeros(2, np.float32), np.zeros(3, np.float32)], {}),
    ("exp", [np.zeros(2, np.int32)], {}),
    ("not", [np.zeros(2, np.float32)], {}),
    ("transpose", [np.zeros((2, 3), np.float32)], {"perm": (0, 0)}),
    ("reduce_sum", [np.zeros((2, 3), np.float32)], {"axes": (-1,), "keepdims": 0}),
    ("reshape", [np.zeros((2, 3), np.float32), ints(7)], {}),
    ("concat", [np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32)], {"axis": 1}),
    ("matmul", [np.zeros(3, np.float32), np.zeros((3, 3), np.float32)], {}),
    ("matmul_scaled", [np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32), np.zeros(2, np.float32)], {}),
    ("matmul_scaled", [np.zeros((2, 3), np.int32), np.zeros((3, 3), np.int32), np.zeros(3, np.int32)], {}),
    ("matmul_scaled", [np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32), np.zeros((3, 1), np.float32)], {}),
    ("pad", [np.zeros(3, np.float32), ints(-1, 0), np.zeros((), np.float32)], {"mode": "constant"}),
    ("topk", [np.zeros(3, np.float32), ints(4)], {"axis": 0, "largest": 1}),
    ("top_places", [np.zeros((2, 3), np.float32)], {"k": 4, "largest": 1}),
    ("bitcast", [np.zeros(3, np.float32)], {"to": DType.I64.code}),
    ("conv", [np.zeros((1, 3, 5), np.float32), np.zeros((2, 2, 3), np.float32), ints(0, 0)],
     {"group": 1, "strides": (1,), "dilations": (1,)}),
])  # fmt: skip
def test_refusals(op: str, inputs: list[np.ndarray], attrs: dict[str, Any]) -> None:
    builder = GraphBuilder(Weights())
    with pytest.raises((InferError, DimError)):
        builder.op(f"core.{op}", *(builder.weight(x) for x in inputs), **attrs)
