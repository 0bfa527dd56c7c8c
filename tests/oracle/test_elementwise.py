"""Elementwise ops against scalar Python, and their type rules against their results."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import close, from_onnx, infer, numbers, one, schema, versions

from tierup.errors import InputError
from tierup.ir import dims
from tierup.ir.dims import DimBuilder, DimError
from tierup.ir.infer import InferError
from tierup.ir.ops import elementwise, generate, reduce
from tierup.ir.types import DType, OptionalType, SequenceType, TensorType
from tierup.reference import special

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
SHAPES = ((), (0, 3), (2, 3, 4))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def elu(x: float, alpha: float = 1.0) -> float:
    return x if x > 0 else alpha * math.expm1(x)


UNARY: dict[str, tuple[Any, float, float]] = {  # scalar function, and the range to draw from
    "Abs": (abs, -5, 5),
    "Acos": (math.acos, -1, 1),
    "Acosh": (math.acosh, 1, 9),
    "Asin": (math.asin, -1, 1),
    "Asinh": (math.asinh, -9, 9),
    "Atan": (math.atan, -9, 9),
    "Atanh": (math.atanh, -0.9, 0.9),
    "Ceil": (math.ceil, -5, 5),
    "Cos": (math.cos, -9, 9),
    "Cosh": (math.cosh, -4, 4),
    "Erf": (math.erf, -4, 4),
    "Exp": (math.exp, -5, 5),
    "Floor": (math.floor, -5, 5),
    "HardSwish": (lambda x: x * max(0, min(1, x / 6 + 0.5)), -5, 5),
    "Identity": (lambda x: x, -5, 5),
    "Log": (math.log, 0.1, 9),
    "Mish": (lambda x: x * math.tanh(math.log1p(math.exp(x))), -5, 5),
    "Neg": (operator.neg, -5, 5),
    "Reciprocal": (lambda x: 1 / x, 0.1, 5),
    "Relu": (lambda x: max(x, 0), -5, 5),
    "Round": (round, -5, 5),
    "Sigmoid": (sigmoid, -9, 9),
    "Sign": (lambda x: (x > 0) - (x < 0), -5, 5),
    "Sin": (math.sin, -9, 9),
    "Sinh": (math.sinh, -4, 4),
    "Softplus": (lambda x: math.log1p(math.exp(x)), -9, 9),
    "Softsign": (lambda x: x / (1 + abs(x)), -5, 5),
    "Sqrt": (math.sqrt, 0, 9),
    "Tan": (math.tan, -1, 1),
    "Tanh": (math.tanh, -5, 5),
    "Celu": (lambda x: max(0, x) + min(0, math.expm1(x)), -5, 5),
    "Elu": (elu, -5, 5),
    "Gelu": (lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)), -5, 5),
    "HardSigmoid": (lambda x: max(0, min(1, float(np.float32(0.2)) * x + 0.5)), -5, 5),
    "LeakyRelu": (lambda x: x if x > 0 else float(np.float32(0.01)) * x, -5, 5),
    "Selu": (lambda x: float(np.float32(1.0507009873)) * elu(x, float(np.float32(1.6732632423))), -5, 5),
    "Shrink": (lambda x: 0 if abs(x) <= 0.5 else x, -5, 5),
    "Swish": (lambda x: x * sigmoid(x), -5, 5),
    "ThresholdedRelu": (lambda x: x if x > 1 else 0, -5, 5),
}


def draw(low: float, high: float, shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed).uniform(low, high, shape)).astype(dtype)


def scalars(function: Any, *arrays: Any) -> Any:
    """`function` over Python numbers, element by element."""
    wide = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in arrays))
    items = [function(*row) for row in zip(*(w.reshape(-1).tolist() for w in wide), strict=True)]
    return np.array(items, np.float64).reshape(wide[0].shape)


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("dtype", FLOATS)
def test_unary(op: str, dtype: Any) -> None:
    if ml_dtypes.bfloat16 is dtype and "tensor(bfloat16)" not in schema(op).type_constraints[0].allowed_type_strs:
        pytest.skip("ONNX gives this op no bf16")
    function, low, high = UNARY[op]
    for shape in SHAPES:
        x = draw(low, high, shape, dtype)
        close(one(op, x), scalars(function, x), ulps=2 if dtype in (np.float16, ml_dtypes.bfloat16) else 8, scale=0.1)


@pytest.mark.parametrize("op", [op for op in UNARY if op not in ("Shrink", "Identity")])
def test_nan_stays_nan(op: str) -> None:
    assert np.isnan(one(op, np.array([np.nan], np.float32))).all()


@pytest.mark.parametrize(
    ("op", "attrs", "function"),
    [
        ("Celu", {"alpha": 2.0}, lambda x: max(0, x) + min(0, 2 * math.expm1(x / 2))),
        ("Elu", {"alpha": 3.0}, lambda x: elu(x, 3.0)),
        ("Gelu", {"approximate": "tanh"},
         lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.25}, lambda x: max(0, min(1, 0.5 * x + 0.25))),
        ("LeakyRelu", {"alpha": 2.0}, lambda x: x if x > 0 else 2 * x),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}, lambda x: 3 * elu(x, 2.0)),
        ("Shrink", {"bias": 1.5, "lambd": 1.5}, lambda x: x + 1.5 if x < -1.5 else x - 1.5 if x > 1.5 else 0),
        ("Swish", {"alpha": 0.5}, lambda x: x * sigmoid(0.5 * x)),
        ("ThresholdedRelu", {"alpha": 2.0}, lambda x: x if x > 2 else 0),
    ],
)  # fmt: skip
def test_activation_attributes(op: str, attrs: dict[str, Any], function: Any) -> None:
    x = draw(-5, 5, (3, 7), np.float64)
    close(one(op, x, **attrs), scalars(function, x))


def test_erf_is_accurate() -> None:
    x = np.concatenate([np.linspace(-6.5, 6.5, 20001), np.geomspace(1e-300, 1, 500), [0.46875, 4.0, 26.6, 30.0]])
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_array_max_ulp(special.erf(x), exact, maxulp=4)
    single = x.astype(np.float32)
    np.testing.assert_array_max_ulp(special.erf(single), special.erf(single.astype(np.float64)).astype(np.float32), 7)
    for dtype in (np.float32, np.float64):
        assert special.erf(np.array([np.inf, -np.inf, -0.0], dtype)).tolist() == [1, -1, 0]
    assert np.signbit(special.erf(np.array([-0.0]))).all()


def test_gelu_keeps_its_tail() -> None:
    """0.5 · x · (1 + erf) would give 0 below -6."""
    x = np.linspace(-30, 8, 3001)
    exact = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])
    np.testing.assert_allclose(special.gelu(x), exact, rtol=5e-13)  # x/√2 is rounded: 2z²·eps relative, z up to 21
    single = np.linspace(-12, 8, 3001, dtype=np.float32)
    wide = special.gelu(single.astype(np.float64))
    eps = 2.0**-23 * (4 + single.astype(np.float64) ** 2)  # the exponent -x²/2 is rounded in f32
    assert (np.abs(special.gelu(single) - wide) <= eps * np.abs(wide)).all()


def test_extremes_do_not_overflow() -> None:
    x = np.array([-1e4, -200, 200, 1e4], np.float32)
    assert one("Sigmoid", x).tolist() == [0, 0, 1, 1]
    assert one("Softplus", x).tolist() == [0, 0, 200, 1e4]
    assert one("Elu", x).tolist() == [-1, -1, 200, 1e4]
    assert one("Mish", x[2:]).tolist() == [200, 1e4]


INT_BINARY: dict[str, Any] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": lambda a, b: int(a / b) if b else 0,
    "Mod": lambda a, b: a % b if b else 0,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
    "Max": max,
    "Min": min,
}


@pytest.mark.parametrize("op", INT_BINARY)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integer_binary(op: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    limits = np.iinfo(np.int8 if np.dtype(dtype).kind == "i" else np.uint8)
    a = rng.integers(limits.min, limits.max, (4, 5), endpoint=True).astype(dtype)
    b = rng.integers(limits.min, limits.max, (5,), endpoint=True).astype(dtype)
    a[0, 0], b[:2] = limits.min, (np.array(-1).astype(dtype), 0)
    expected = [INT_BINARY[op](int(x), int(y)) for x, y in zip(a.reshape(-1), np.tile(b, 4), strict=True)]
    assert (one(op, a, b) == np.array(expected).astype(dtype).reshape(4, 5)).all()


def test_fmod_takes_the_sign_of_the_dividend() -> None:
    a, b = np.array([-7, 7, -7, 7], np.int32), np.array([3, -3, -3, 3], np.int32)
    assert one("Mod", a, b, fmod=1).tolist() == [-1, 1, -1, 1]
    assert one("Mod", a, b).tolist() == [2, -2, -1, 1]
    x = np.array([-4.3, 7.2], np.float32)
    close(one("Mod", x, np.array([2.1, -3.4], np.float32), fmod=1), [-0.1, 0.4], ulps=64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow", "PRelu"])
def test_float_binary(op: str, dtype: Any) -> None:
    function = {
        "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.truediv, "Max": max, "Min": min,
        "Sum": operator.add, "Mean": lambda a, b: (a + b) / 2, "Pow": operator.pow,
        "PRelu": lambda x, s: x if x > 0 else x * s,
    }[op]  # fmt: skip
    for left, right in (((), ()), ((2, 3), (3,)), ((0, 3), (1,)), ((2, 1, 3), (2, 4, 1))):
        if op == "PRelu" and len(right) == 3:
            continue  # its slope only stretches one way
        a, b = draw(0.5, 3, left, dtype), draw(0.5, 3, right, dtype, seed=1)
        a = -a if op == "PRelu" else a
        close(one(op, a, b), scalars(function, a, b), ulps=2)


def test_variadic_takes_one_and_many() -> None:
    xs = [draw(-1, 1, shape, np.float32, seed) for seed, shape in enumerate([(3,), (2, 1), (2, 3), ()])]
    wide = np.broadcast_arrays(*(x.astype(np.float64) for x in xs))
    for op, function in (("Max", np.max), ("Min", np.min), ("Sum", np.sum), ("Mean", np.mean)):
        close(one(op, *xs), function(np.stack(wide), axis=0))
        close(one(op, xs[0]), xs[0])


def test_max_and_min_pass_nan_on() -> None:
    a, b = np.array([np.nan, 1], np.float32), np.array([1, np.nan], np.float32)
    assert np.isnan(one("Max", a, b)).all()
    assert np.isnan(one("Min", a, b)).all()
    assert np.isnan(one("Clip", a, np.float32(0)[...], np.float32(1)[...])[0])


def test_power() -> None:
    base = np.array([-3, -1, 0, 1, 2, 7], np.int32)
    assert one("Pow", base, np.array(3, np.int64)).tolist() == [-27, -1, 0, 1, 8, 343]
    assert one("Pow", base[[0, 1, 3, 4]], np.array([-1, -3, -2, -1], np.int32)).tolist() == [0, -1, 1, 0]
    assert one("Pow", np.array([2, 9], np.int64), np.array([0.5, 0.5], np.float32)).tolist() == [1, 3]
    x = draw(-2, 2, (4, 3), np.float32)
    close(one("Pow", x, np.array([[2.0]], np.float32)), x.astype(np.float64) ** 2)
    assert one("Pow", x, np.full((1, 1, 1), 2, np.int64)).shape == (1, 4, 3)
    close(one("Pow", np.float32([2]), np.float64([0.1])), [2**0.1])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8])
def test_compare(dtype: Any) -> None:
    a, b = np.arange(6).astype(dtype).reshape(2, 3), np.array([1, 1, 4]).astype(dtype)
    for op, function in (
        ("Equal", operator.eq), ("Greater", operator.gt), ("GreaterOrEqual", operator.ge), ("Less", operator.lt),
        ("LessOrEqual", operator.le),
    ):  # fmt: skip
        assert (one(op, a, b) == scalars(function, a, b)).all()
        assert one(op, a[0, 0], b[0][...]).shape == ()


def test_logic_and_strings() -> None:
    a, b = np.array([[False], [True]]), np.array([False, True])
    assert one("And", a, b).tolist() == [[False, False], [False, True]]
    assert one("Or", a, b).tolist() == [[False, True], [True, True]]
    assert one("Xor", a, b).tolist() == [[False, True], [True, False]]
    assert one("Not", b).tolist() == [True, False]
    texts = np.array(["x", "yy"], object)
    assert one("Equal", texts, np.array(["yy"], object)).tolist() == [False, True]
    assert one("Where", b, texts, np.array(["zz"], object)).tolist() == ["zz", "yy"]


def test_bit_shift() -> None:
    x, by = np.array([16, 4, 1, 255], np.uint8), np.array([1, 2, 3, 9], np.uint8)
    assert one("BitShift", x, by, direction="RIGHT").tolist() == [8, 1, 0, 0]
    assert one("BitShift", x, by, direction="LEFT").tolist() == [32, 16, 8, 0]
    x, by = np.array([-8, -8, 8, -1], np.int8), np.array([1, -1, 8, 7], np.int8)
    assert one("BitShift", x, by, direction="RIGHT").tolist() == [-4, -1, 0, -1]
    assert one("BitShift", x, by, direction="LEFT").tolist() == [-16, 0, 0, -128]
    assert one("BitwiseNot", np.array([0, 5], np.uint8)).tolist() == [255, 250]


def test_clip() -> None:
    x = np.array([-5, 0, 5, np.inf], np.float32)
    low, high = np.array(-1, np.float32), np.array(2, np.float32)
    assert one("Clip", x, low, high).tolist() == [-1, 0, 2, 2]
    assert one("Clip", x, None, high).tolist() == [-5, 0, 2, 2]
    assert one("Clip", x, low).tolist() == [-1, 0, 5, np.inf]
    assert one("Clip", x).tolist() == x.tolist()
    assert one("Clip", x, high, low).tolist() == [-1] * 4  # crossed bounds: max wins
    assert one("Clip", x, version=7, min=-1.0, max=2.0).tolist() == [-1, 0, 2, 2]
    assert one("Clip", np.array([1, 7], np.int64), np.array(2), np.array(5)).tolist() == [2, 5]


def test_is_nan_and_is_inf() -> None:
    x = np.array([1, np.nan, np.inf, -np.inf])
    for dtype in (np.float32, np.float16, ml_dtypes.float8_e5m2):
        assert one("IsNaN", x.astype(dtype)).tolist() == [False, True, False, False]
        assert one("IsInf", x.astype(dtype)).tolist() == [False, False, True, True]
        assert one("IsInf", x.astype(dtype), detect_negative=0).tolist() == [False, False, True, False]
        assert one("IsInf", x.astype(dtype), detect_positive=0).tolist() == [False, False, False, True]


def test_swiglu() -> None:
    a, b = draw(-3, 3, (2, 5), np.float32), draw(-3, 3, (2, 5), np.float32, seed=2)
    close(one("SwiGLU", a, b, alpha=0.5), scalars(lambda x, y: x * sigmoid(0.5 * x) * y, a, b))
    with pytest.raises(InferError):
        infer("SwiGLU", (DType.F32, (2, 5)), (DType.F32, (1, 5)))


NUMERIC = [d for d in DType if d is not DType.STR and not d.is_complex]


@pytest.mark.parametrize("source", NUMERIC)
def test_cast_every_pair(source: DType) -> None:
    """Small numbers that every type but e8m0 and unsigned ones hold keep their value."""
    values = np.array([0, 1] if source in (DType.BOOL, DType.U2, DType.I2) else [1, 2, 4]).astype(source.numpy)
    if source is DType.I2:
        values = np.array([0, 1, -2]).astype(source.numpy)
    numbers = values.astype(np.float64)
    for target in [*NUMERIC, DType.STR]:
        result = one("Cast", values, to=target.code, wide=False)
        if target is DType.STR:
            assert [float(text) for text in result] == numbers.tolist()
        elif target is DType.BOOL:
            assert result.tolist() == (numbers != 0).tolist()
        elif target is DType.F8E8M0:
            assert (result.astype(np.float64) == np.where(numbers == 0, 2.0**-127, np.abs(numbers))).all()
        elif target.is_integer:
            wrapped = numbers.astype(np.int64) % (1 << min(target.bits, 62))
            assert (result.astype(np.int64) % (1 << min(target.bits, 62)) == wrapped).all()
        else:
            assert (result.astype(np.float64) == numbers).all()


# What NumPy and ONNX Runtime give on x86, written down: it must not depend on the machine.
OVERFLOW = np.array([300.7, -1, -300, 3e9, 5e9, -3e9, 1e19, 2e19, np.nan, np.inf, -np.inf])
MIN32, MIN64 = -(2**31), -(2**63)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (DType.I8, [44, -1, -44, 0, 0, 0, 0, 0, 0, 0, 0]),
        (DType.U8, [44, 255, 212, 0, 0, 0, 0, 0, 0, 0, 0]),
        (DType.I4, [-4, -1, 4, 0, 0, 0, 0, 0, 0, 0, 0]),
        (DType.U16, [300, 65535, 65236, 0, 0, 0, 0, 0, 0, 0, 0]),
        (DType.I32, [300, -1, -300, *[MIN32] * 8]),
        (DType.U32, [300, 2**32 - 1, 2**32 - 300, 3000000000, 0, 2**31, 0, 0, 2**31, 0, 2**31]),
        (DType.I64, [300, -1, -300, 3000000000, 5000000000, -3000000000, *[MIN64] * 5]),
        (DType.U64, [300, 2**64 - 1, 2**64 - 300, 3000000000, 5000000000, 2**64 - 3000000000, 10**19, 0, 2**63, 0,
                     2**63]),
    ],
)  # fmt: skip
def test_cast_float_to_integer_overflow(to: DType, expected: list[int]) -> None:
    result = one("Cast", OVERFLOW, to=to.code)
    assert [int(v) for v in result] == expected


def test_cast_to_float8() -> None:
    x = np.array([1e6, -1e6, np.inf, np.nan, 0.3], np.float32)
    for dtype, largest in ((DType.F8E4M3FN, 448), (DType.F8E4M3FNUZ, 240), (DType.F8E5M2, 57344)):
        saturated = one("Cast", x, to=dtype.code).astype(np.float32)
        assert saturated[:3].tolist() == [largest, -largest, largest]
        assert np.isnan(saturated[3])
        open_ended = one("Cast", x, to=dtype.code, saturate=0).astype(np.float32)
        assert np.isinf(open_ended[:3]).all() if dtype is DType.F8E5M2 else np.isnan(open_ended[:3]).all()


@pytest.mark.parametrize(
    ("mode", "saturate", "expected"),
    [
        ("up", 1, [2.0**-127, 2, 2, 4, 2.0**127, 2.0**127, 2.0**-127]),
        ("down", 1, [2.0**-127, 1, 1, 2, 2.0**127, 2.0**127, 2.0**-127]),
        ("nearest", 1, [2.0**-127, 1, 2, 4, 2.0**127, 2.0**127, 2.0**-127]),
        ("nearest", 0, [np.nan, 1, 2, 4, np.nan, np.nan, np.nan]),
    ],
)
def test_cast_to_e8m0(mode: str, saturate: int, expected: list[float]) -> None:
    x = np.array([0, 1.25, 1.5, 3.5, np.inf, 1e39, 1e-40])
    result = one("Cast", x, to=DType.F8E8M0.code, round_mode=mode, saturate=saturate)
    np.testing.assert_array_equal(result.astype(np.float64), expected)


def test_cast_strings() -> None:
    texts = np.array([["3.25", "-INF"], ["1e3", "nan"]], object)
    np.testing.assert_array_equal(one("Cast", texts, to=DType.F32.code), [[3.25, -np.inf], [1000, np.nan]])
    numbers = np.array(["12", "-1", "100.5"], object)
    assert one("Cast", numbers, to=DType.I64.code).tolist() == [12, -1, 100]
    assert one("Cast", np.array(["18446744073709551615"], object), to=DType.U64.code).tolist() == [2**64 - 1]
    x = np.array([0.1, 314.15926, np.nan, np.inf, -np.inf], np.float32)
    assert one("Cast", x, to=DType.STR.code).tolist() == ["0.1", "314.15927", "NaN", "INF", "-INF"]
    assert one("Cast", np.array([True, False]), to=DType.STR.code).tolist() == ["1", "0"]
    assert one("Cast", np.array(7, np.int16), to=DType.STR.code).item() == "7"
    with pytest.raises(InputError, match="Hello"):
        one("Cast", np.array(["Hello"], object), to=DType.F32.code)


def test_cast_like_and_bit_cast() -> None:
    x = np.array([1.7, -2.2], np.float32)
    assert one("CastLike", x, np.zeros(3, np.int32)).tolist() == [1, -2]
    assert one("CastLike", x, np.zeros((), ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16
    bits = one("BitCast", x, to=DType.I32.code)
    assert (bits == x.view(np.int32)).all()
    assert (one("BitCast", bits, to=DType.F32.code) == x).all()
    nibbles = np.arange(-8, 8).astype(ml_dtypes.int4)
    assert one("BitCast", nibbles, to=DType.U4.code).astype(int).tolist() == [*range(8, 16), *range(8)]
    with pytest.raises(InferError, match="equally many bits"):
        infer("BitCast", (DType.F32, (2,)), to=DType.I64.code)


def test_where() -> None:
    condition = np.array([[True], [False]])
    a, b = np.arange(3, dtype=ml_dtypes.bfloat16), np.array(-1, ml_dtypes.bfloat16)
    assert one("Where", condition, a, b).astype(int).tolist() == [[0, 1, 2], [-1, -1, -1]]
    assert one("Where", np.array([True, False]), np.array([1, 2]), np.array(9)).tolist() == [1, 9]


def test_identity_passes_sequences_on() -> None:
    for type in (SequenceType(TensorType(DType.F32, None)), OptionalType(TensorType(DType.I64, None))):
        assert list(infer("Identity", type)) == [type]


SIZES = (6, 4)  # of the two syms below


def evaluated(builder: DimBuilder, content: Any) -> list[int]:
    return numbers(content, dims.evaluate(builder.ops, lambda op, value, index: SIZES[index]))


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "expected"),
    [
        ("Add", [2], {}, [8, 6]),
        ("Sub", [5], {}, [1, -1]),
        ("Mul", [3], {}, [18, 12]),
        ("Div", [-4], {}, [-1, -1]),
        ("Mod", [-4], {}, [-2, 0]),
        ("Mod", [-4], {"fmod": 1}, [2, 0]),
        ("Max", [5], {}, [6, 5]),
        ("Min", [5], {}, [5, 4]),
        ("Neg", [], {}, [-6, -4]),
        ("Abs", [], {}, [6, 4]),
        ("Relu", [], {}, [6, 4]),
        ("BitwiseNot", [], {}, [-7, -5]),
        ("Clip", [5], {}, [6, 5]),
        ("Clip", [1, 5], {}, [5, 4]),
        ("Equal", [4], {}, [0, 1]),
        ("Less", [6], {}, [0, 1]),
        ("LessOrEqual", [6], {}, [1, 1]),
        ("Greater", [4], {}, [1, 0]),
        ("GreaterOrEqual", [4], {}, [1, 1]),
        ("Identity", [], {}, [6, 4]),
        ("Cast", [], {"to": DType.I32.code}, [6, 4]),
        ("Cast", [], {"to": DType.BOOL.code}, [1, 1]),
    ],
)
def test_content_of_sizes(op: str, operands: list[int], attrs: dict[str, Any], expected: list[int]) -> None:
    """Integer arithmetic on sizes stays a dim program."""
    builder = DimBuilder()
    syms = (builder.of(0, 0), builder.of(0, 1))
    inputs = [(DType.I64, (2,)), *((DType.I64, ()) for _ in operands)]
    (out,) = infer(op, *inputs, contents=[syms, *((n,) for n in operands)], builder=builder, **attrs)
    assert evaluated(builder, out.content) == expected


def test_content_of_where_and_logic() -> None:
    builder = DimBuilder()
    a, b = builder.of(0, 0), builder.of(0, 1)
    pair = (DType.I64, (2,))
    (out,) = infer("Where", (DType.BOOL, (2,)), pair, pair, contents=[(1, 0), (a, b), (b, a)], builder=builder)
    assert evaluated(builder, out.content) == [6, 6]
    (equal,) = infer("Equal", pair, pair, contents=[(a, b), (a, 6)], builder=builder)
    assert evaluated(builder, equal.content) == [1, 0]
    for op, expected in (("And", [1, 0]), ("Or", [1, 1]), ("Xor", [0, 1])):
        boolean = (DType.BOOL, (2,))
        (out,) = infer(op, boolean, boolean, contents=[equal.content, (1, 1)], builder=builder)
        assert evaluated(builder, out.content) == expected
    (out,) = infer("Not", (DType.BOOL, (2,)), contents=[equal.content], builder=builder)
    assert evaluated(builder, out.content) == [0, 1]


def test_content_is_dropped_where_it_would_be_wrong() -> None:
    byte = (DType.U8, (1,))
    assert infer("Add", byte, byte, contents=[(200,), (100,)])[0].content is None  # wraps
    word = (DType.I64, (1,))
    assert infer("Mul", word, word, contents=[(1 << 62,), (4,)])[0].content is None  # overflows
    assert infer("Div", word, word, contents=[(5,), (0,)])[0].content is None
    assert infer("Cast", word, contents=[(300,)], to=DType.U8.code)[0].content is None
    assert infer("Cast", word, contents=[(3,)], to=DType.F32.code)[0].content is None
    assert infer("Add", (DType.I64, (1, 1)), word, contents=[None, (4,)])[0].content is None


def test_broadcast_of_open_sizes() -> None:
    builder = DimBuilder()
    a, b = builder.of(0, 0), builder.of(1, 0)
    (out,) = infer("Add", (DType.F32, (a, 1)), (DType.F32, (b, 3)), builder=builder)
    assert out.shape is not None
    assert out.shape[1] == 3
    assert infer("Add", (DType.F32, None), (DType.F32, (3,)))[0].shape is None
    with pytest.raises(DimError, match="do not broadcast"):
        infer("Add", (DType.F32, (2,)), (DType.F32, (3,)))
    with pytest.raises(InferError, match="the slope"):
        infer("PRelu", (DType.F32, (2, 3)), (DType.F32, (2,)))


ALL_ROWS = [*elementwise.OPS, *generate.OPS, *reduce.OPS]
ODD_SHAPES: tuple[Any, ...] = (None, (), (0,), (1,), (3,), (2, 3), (2, 3, 4), (1,) * 70)
ODD_ATTRS: tuple[dict[str, Any], ...] = (
    {},
    {"axis": 99, "axes": (5, 5), "to": 999, "dtype": 8, "output_datatype": -1, "num_groups": 0, "size": 0},
    {"axis": -99, "axes": (0, 0), "to": 8, "dtype": 999, "stash_type": 7, "num_groups": 7, "sample_size": -1},
    {
        "axis": 1,
        "axes": (-1,),
        "to": 1,
        "dtype": 1,
        "keepdims": 0,
        "num_groups": 1,
        "size": 1 << 62,
        "shape": (1 << 62,) * 3,
    },
)


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.name)
def test_rules_refuse_only_with_sentences(row: Any) -> None:
    """Whatever ranks, contents and attributes a model has: an answer, or InferError or DimError."""
    op = row.name.removeprefix("onnx.")
    for version, attrs, shape, other in itertools.product(versions(op), ODD_ATTRS, ODD_SHAPES, ODD_SHAPES):
        definition = schema(op, version)
        known = {k: v for k, v in attrs.items() if k in definition.attributes}
        missing = {k: REQUIRED[k] for k, a in definition.attributes.items() if a.required and k not in known}
        dtypes = [DType.I64 if "int64" in str(sorted(i.types)) and "float" not in str(i.types) else DType.F32
                  for i in definition.inputs]  # fmt: skip
        inputs = [(dtype, shape if index == 0 else other) for index, dtype in enumerate(dtypes)]
        contents = [(1 << 62,) if s in ((), (1,)) and d is DType.I64 else None for d, s in inputs]
        with contextlib.suppress(InferError, DimError):
            infer(op, *inputs, contents=contents, version=version, outputs=len(definition.outputs), **known, **missing)


REQUIRED: dict[str, Any] = {
    "to": 1, "direction": "LEFT", "shape": (2,), "num_groups": 1, "size": 3, "value": None, "axis": 0,
}  # fmt: skip


def test_agrees_with_onnx_on_bf16_chains() -> None:
    x = draw(-3, 3, (4, 4), ml_dtypes.bfloat16)
    for op in ("Sigmoid", "Tanh", "Softplus", "HardSwish"):
        (theirs,) = from_onnx(op, x)
        np.testing.assert_allclose(one(op, x).astype(np.float32), theirs.astype(np.float32), rtol=2**-6)
