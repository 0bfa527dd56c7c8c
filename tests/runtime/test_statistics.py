"""Statistics of inputs in native code, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tierup import _native
from tierup.runtime.setup import register_dtypes

register_dtypes()

LOOKED = 4096
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
FLOATS = ("float16", "float32", "float64")
BF16 = np.dtype(ml_dtypes.bfloat16)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Any type, any strides, zeros and odd numbers among the others; at most as many as are looked at."""
    dtype = np.dtype(draw(st.sampled_from((*INTEGERS, *FLOATS))))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7))
    values = draw(hnp.arrays(dtype, shape))
    steps = tuple(slice(None, None, draw(st.sampled_from((1, 2, -1, -2)))) for _ in shape)
    strided = values[steps] if shape else values
    return strided.transpose(draw(st.permutations(range(strided.ndim))))


def expected(array: Any) -> tuple[int, int, float, float]:
    """Zeros, numbers that are not finite, the least and the largest that is."""
    wide = array.astype(np.float64) if array.dtype.kind in "fV" or array.dtype == BF16 else array
    finite = wide[np.isfinite(wide)] if wide.dtype.kind == "f" else wide
    extremes = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return int((wide == 0).sum()), wide.size - finite.size, *extremes


@given(arrays())
@settings(max_examples=300, deadline=None)
def test_small_arrays_as_numpy_sees_them(array: Any) -> None:
    known, elements, looked, zeros, nonfinite, least, most, _ = _native.statistics(array)
    assert known
    assert (elements, looked) == (array.size, array.size)
    assert (zeros, nonfinite, least, most) == expected(array)


@given(st.lists(st.integers(0, 65_535), max_size=64), st.sampled_from((np.dtype(np.float16), BF16)))
@settings(max_examples=200, deadline=None)
def test_every_bit_pattern_of_short_floats(bits: list[int], dtype: Any) -> None:
    array = np.array(bits, np.uint16).view(dtype)
    _, _, _, zeros, nonfinite, least, most, _ = _native.statistics(array)
    assert (zeros, nonfinite, least, most) == expected(array)


@given(arrays())
@settings(max_examples=100, deadline=None)
def test_the_hash_is_of_the_content(array: Any) -> None:
    copy = np.ascontiguousarray(array)
    assert _native.statistics(array)[-1] == _native.statistics(copy)[-1]
    if copy.size:
        changed = copy.copy()
        raw = changed.reshape(-1).view(np.uint8)
        raw[-1] ^= 1
        assert _native.statistics(changed)[-1] != _native.statistics(copy)[-1]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_a_sample_of_a_large_array_is_like_it(share: float) -> None:
    random = np.random.default_rng(0)
    array = random.standard_normal((3, 512, 512)).astype(np.float32)
    array[random.random(array.shape) < share] = 0
    known, elements, looked, zeros, _, least, most, first = _native.statistics(array)
    assert known
    assert (elements, looked) == (array.size, LOOKED)
    # Five standard deviations of a share of so many draws.
    assert abs(zeros / looked - share) <= 5 * (share * (1 - share) / looked) ** 0.5
    assert array.min() <= least <= most <= array.max()
    assert _native.statistics(array.copy())[-1] == first
    turned = np.ascontiguousarray(array.T).T
    assert not turned.flags.c_contiguous
    assert _native.statistics(turned)[-1] == first


@pytest.mark.parametrize("dtype", ["complex64", "complex128", ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_other_types_have_a_hash(dtype: Any) -> None:
    array = np.arange(6).astype(dtype)
    known, elements, *_, first = _native.statistics(array)
    assert not known
    assert elements == 6
    assert _native.statistics(array[::-1])[-1] != first


def test_unaligned_arrays() -> None:
    array = np.frombuffer(b"\0" + np.arange(5, dtype=np.float32).tobytes(), np.float32, offset=1)
    assert not array.flags.aligned
    assert _native.statistics(array)[3:7] == (1, 0, 0.0, 4.0)


def test_strings_have_none() -> None:
    with pytest.raises(TypeError, match="arrays of numbers"):
        _native.statistics(np.array(["a"], object))
