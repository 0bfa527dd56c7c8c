"""Tensors from sizes, numbers and chance."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import STYLES, close, from_onnx, infer, numbers, one

from tierup.errors import InputError
from tierup.ir import dims
from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Const
from tierup.ir.infer import InferError
from tierup.ir.types import DType, Sym


def scalar(value: float, dtype: Any) -> Any:
    return np.array(value).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(3, 9, 3), (10, 4, -2), (0, 7, 3), (5, 5, 1), (5, 2, 1), (-3, -9, -4)]
)
def test_range_of_integers(dtype: Any, start: int, limit: int, delta: int) -> None:
    result = one("Range", *(scalar(v, dtype) for v in (start, limit, delta)))
    assert result.dtype == dtype
    assert result.tolist() == list(range(start, limit, delta))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("start", "limit", "delta"), [(1, 5, 0.5), (10, 4, -2), (0, 1, 0.3), (1, 0, 1)])
def test_range_of_floats(dtype: Any, start: float, limit: float, delta: float) -> None:
    numbers = [scalar(v, dtype) for v in (start, limit, delta)]
    first, last, step = (float(n) for n in numbers)
    expected = [first + i * step for i in range(max(0, math.ceil((last - first) / step)))]
    close(one("Range", *numbers), expected, ulps=1)


def test_range_refuses_to_stand_still() -> None:
    with pytest.raises(InputError, match="advance by 0"):
        one("Range", *(scalar(v, np.float32) for v in (0, 1, 0)))
    with pytest.raises(InferError, match="advance by 0"):
        infer("Range", *[(DType.I64, ())] * 3, contents=[(0,), (4,), (0,)])
    with pytest.raises(InputError, match="no end"):
        one("Range", *(scalar(v, np.float32) for v in (0, np.inf, 1)))


def test_range_over_sizes() -> None:
    """The length and content of a range whose bounds are sizes."""
    builder = DimBuilder()
    size = builder.of(0, 0)
    (out,) = infer("Range", *[(DType.I64, ())] * 3, contents=[(1,), (size,), (2,)], builder=builder)
    values = dims.evaluate(builder.ops, lambda *_: 8)
    assert isinstance(out.shape[0], Sym)
    assert numbers(out.shape, values) == [4]
    (out,) = infer("Range", *[(DType.I64, ())] * 3, contents=[(0,), (1 << 60,), (1,)])
    assert (out.shape, out.content) == ((1 << 60,), None)  # never enumerated


def test_constant_of_shape() -> None:
    assert one("ConstantOfShape", np.array([2, 3])).tolist() == [[0.0] * 3] * 2
    assert one("ConstantOfShape", np.array([], np.int64)).shape == ()
    value = Const(np.array([7], np.int64))
    assert one("ConstantOfShape", np.array([3]), value=value).tolist() == [7, 7, 7]
    assert one("ConstantOfShape", np.array([0, 2]), value=value).shape == (0, 2)
    assert one("ConstantOfShape", np.array([2]), value=Const(np.array([1], ml_dtypes.bfloat16))).astype(
        int
    ).tolist() == [1, 1]
    (out,) = infer("ConstantOfShape", (DType.I64, (2,)), contents=[(1 << 40, 1 << 40)], value=value)
    assert out.content is None
    (out,) = infer("ConstantOfShape", (DType.I64, (1,)), contents=[(1 << 40,)], value=value)
    assert out.content is None
    with pytest.raises(InferError, match="one number"):
        infer("ConstantOfShape", (DType.I64, (1,)), value=Const(np.zeros(2, np.int64)))


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"value": Const(np.array([[1.5]], np.float16))}, np.array([[1.5]], np.float16)),
        ({"value": Const(np.array([3, 4]))}, np.array([3, 4])),
        ({"value_int": 5}, np.array(5)),
        ({"value_ints": (5, 6)}, np.array([5, 6])),
        ({"value_float": 0.5}, np.array(0.5, np.float32)),
        ({"value_floats": (0.5, 2.0)}, np.array([0.5, 2], np.float32)),
        ({"value_string": "a"}, np.array("a", object)),
        ({"value_strings": ("a", "b")}, np.array(["a", "b"], object)),
    ],
)
def test_constant(attrs: dict[str, Any], expected: Any) -> None:
    result = one("Constant", wide=False, **attrs)
    assert result.dtype == expected.dtype
    assert result.tolist() == expected.tolist()


def test_eye_like() -> None:
    x = np.zeros((3, 4), np.int32)
    assert (one("EyeLike", x) == np.eye(3, 4)).all()
    result = one("EyeLike", x, k=-1, dtype=DType.BF16.code)
    assert result.dtype == ml_dtypes.bfloat16
    assert (result.astype(int) == np.eye(3, 4, -1)).all()
    assert not one("EyeLike", x, k=1 << 40).any()
    with pytest.raises(InferError, match="rank 2"):
        infer("EyeLike", (DType.F32, (3,)))


@pytest.mark.parametrize("size", [0, 1, 2, 9, 16])
@pytest.mark.parametrize(
    ("op", "terms"),
    [("HannWindow", (0.5, 0.5, 0)), ("HammingWindow", (25 / 46, 21 / 46, 0)), ("BlackmanWindow", (0.42, 0.5, 0.08))],
)
def test_windows(op: str, terms: tuple[float, float, float], size: int) -> None:
    a, b, c = terms
    for periodic in (0, 1):
        period = size if periodic else size - 1
        expected = [
            a - b * math.cos(2 * math.pi * n / period) + c * math.cos(4 * math.pi * n / period) if size > 1 else 1.0
            for n in range(size)
        ]
        result = one(op, np.array(size), periodic=periodic, output_datatype=DType.F64.code)
        np.testing.assert_allclose(result, np.array(expected), atol=1e-15)
    assert one(op, np.array(size, np.int32)).dtype == np.float32


@pytest.mark.parametrize(
    ("bins", "length", "rate", "low", "high"), [(8, 16, 8192, 0, 4096), (20, 512, 16000, 20, 8000)]
)
def test_mel_weight_matrix(bins: int, length: int, rate: int, low: float, high: float) -> None:
    inputs = [*(np.array(v) for v in (bins, length, rate)), *(np.array(v, np.float32) for v in (low, high))]
    result = one("MelWeightMatrix", *inputs)
    assert result.shape == (length // 2 + 1, bins)
    np.testing.assert_allclose(result, from_onnx("MelWeightMatrix", *inputs)[0], rtol=1e-6)


def test_mel_weight_matrix_ignores_bands_outside() -> None:
    inputs = [*(np.array(v) for v in (4, 16, 8000)), *(np.array(v, np.float32) for v in (0, 1e6))]
    assert np.isfinite(one("MelWeightMatrix", *inputs)).all()


def test_random_numbers_follow_their_distribution() -> None:
    normal = one("RandomNormal", shape=(100, 200), mean=3.0, scale=2.0, seed=1.0)
    assert abs(normal.mean() - 3) < 0.1  # 7 standard errors
    assert abs(normal.std() - 2) < 0.1
    uniform = one("RandomUniform", shape=(100, 200), low=2.0, high=4.0, seed=1.0, dtype=DType.F64.code)
    assert uniform.dtype == np.float64
    assert 2 <= uniform.min() < 2.01 < 3.99 < uniform.max() < 4
    chances = np.full((100, 200), 0.25, np.float32)
    drawn = one("Bernoulli", chances, seed=1.0, dtype=DType.I32.code)
    assert set(drawn.reshape(-1).tolist()) == {0, 1}
    assert abs(drawn.mean() - 0.25) < 0.02  # 6 standard errors
    assert (one("Bernoulli", np.array([0, 1], np.float32)) == [0, 1]).all()
    classes = one(
        "Multinomial", np.array([[0, math.log(2), 0], [-np.inf, -np.inf, 5]], np.float32), sample_size=4000, seed=1.0
    )
    assert classes.dtype == np.int32
    assert (classes[1] == 2).all()
    assert abs((classes[0] == 1).mean() - 0.5) < 0.05  # 6 standard errors


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("RandomNormal", (), {"shape": (3, 4)}),
        ("RandomUniform", (), {"shape": (3, 4)}),
        ("RandomNormalLike", (np.zeros((3, 4), np.float32),), {}),
        ("RandomUniformLike", (np.zeros((3, 4), np.float16),), {}),
        ("RandomNormalLike", (np.zeros((3, 4), np.int64),), {"dtype": DType.BF16.code}),
        ("Bernoulli", (np.full((3, 4), 0.5, np.float32),), {}),
        ("Multinomial", (np.zeros((2, 9), np.float32),), {"sample_size": 20}),
    ],
)
def test_random_numbers_depend_on_the_seed_alone(op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    first, again = (one(op, *inputs, seed=5.0, **attrs) for _ in range(2))
    assert first.tolist() == again.tolist()
    for seed in (5.5, -1.0, float("nan"), 1e30):
        assert one(op, *inputs, seed=seed, **attrs).tolist() != first.tolist()
    for style in STYLES:  # each draws for itself
        assert one(op, *inputs, styles=(style,), **attrs).shape == first.shape
