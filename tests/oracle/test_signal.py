"""Fourier transforms against their defining sums in f64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import close, infer, one

from tierup.errors import InputError
from tierup.ir.infer import InferError
from tierup.ir.types import Array, DType

RNG = np.random.default_rng(5)


def signal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(RNG.standard_normal(shape)).astype(dtype)


def numbers(x: Array) -> Array:
    wide = x.astype(np.float64)
    return wide[..., 0] + (1j * wide[..., 1] if x.shape[-1] == 2 else 0)


def parts(x: Array) -> Array:
    return np.stack((x.real, x.imag), axis=-1)


def sums(x: Array, length: int, axis: int, sign: int) -> Array:
    """The transform as a product with the matrix of roots of unity; x is cut or padded first."""
    moved = np.moveaxis(x, axis, -1)[..., :length]
    padded = np.concatenate((moved, np.zeros((*moved.shape[:-1], length - moved.shape[-1]))), axis=-1)
    n = np.arange(length)
    turns = np.outer(n, n) % length / length
    return np.moveaxis(padded @ np.exp(sign * 2j * np.pi * turns), -1, axis)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("length", [None, 5, 8, 12])
@pytest.mark.parametrize("opset", [17, 20])
def test_dft(dtype: Any, count: int, length: int | None, opset: int) -> None:
    x = signal(2, 8, 3, count, dtype=dtype)
    given = [x, *([] if length is None else [np.array(length, np.int64)])]
    for inverse in (0, 1):
        exact = sums(numbers(x), length or 8, 1, 1 if inverse else -1) / ((length or 8) if inverse else 1)
        if opset == 17:
            result = one("DFT", *given, version=17, inverse=inverse, axis=1)
        else:
            result = one("DFT", x, *(given[1:] or [None]), np.array(-3, np.int64), inverse=inverse)
        close(result, parts(exact), ulps=16, scale=10)


def test_dft_one_sided_and_back() -> None:
    x = signal(3, 9, 1)
    half = one("DFT", x, onesided=1)
    close(half, parts(sums(numbers(x), 9, 1, -1)[:, :5]), scale=10)
    close(one("DFT", half, np.array(9, np.int32), onesided=1, inverse=1), x, scale=10)
    close(one("DFT", one("DFT", x[:, :8], onesided=1), onesided=1, inverse=1), x[:, :8], scale=10)


@pytest.mark.parametrize("shape", [(3,), (3, 4, 3)])
def test_dft_refuses_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InferError):
        infer("DFT", (DType.F32, shape))


def test_dft_refuses_the_axis_of_parts() -> None:
    with pytest.raises(InferError):
        infer("DFT", (DType.F32, (3, 4, 1)), version=17, axis=2)
    with pytest.raises((InferError, InputError)):
        one("DFT", signal(3, 4, 1), None, np.array(-1, np.int64))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_stft(dtype: Any, onesided: int, windowed: bool, stated: bool, count: int) -> None:
    x = signal(2, 20, count, dtype=dtype)
    window = signal(6, dtype=dtype) if windowed else None
    size = 6 if windowed or stated else 20
    inputs = [x, np.array(4, np.int64), window, np.array(size, np.int64) if stated else None]
    while inputs[-1] is None:
        inputs.pop()
    result = one("STFT", *inputs, onesided=onesided)
    starts = range(0, 20 - size + 1, 4)
    weight = np.ones(size) if window is None else window.astype(np.float64)
    frames = np.stack([numbers(x)[:, b : b + size] * weight for b in starts], axis=1)
    exact = sums(frames, size, 2, -1)
    close(result, parts(exact[:, :, : size // 2 + 1] if onesided else exact), scale=20)


def test_stft_refuses_steps_and_frames() -> None:
    with pytest.raises(InputError):
        one("STFT", signal(1, 9, 1), np.array(0, np.int64), signal(3))
    with pytest.raises(InferError):
        infer("STFT", (DType.F32, (1, 9, 1)), (DType.I64, ()), contents=[None, (0,)])
    with pytest.raises(InferError):
        infer("STFT", (DType.F32, (9, 1)), (DType.I64, ()))
    with pytest.raises(InputError):
        one("STFT", signal(1, 9, 1), np.array(1, np.int64), signal(3), np.array(4, np.int64))
