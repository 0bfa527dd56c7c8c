"""Which type to compute in: floats narrower than f32 are widened to f32, and the result is rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tierup.ir.types import Array, DType, dtype_from_numpy


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether elements are floats of fewer bits than f32."""
    found = dtype_from_numpy(dtype)
    return found is not None and found.is_float and found not in (DType.F32, DType.F64)


def up(x: Array) -> Array:
    """`x` in f32 where it is a narrower float, else `x` itself."""
    return x.astype(np.float32) if is_narrow(x.dtype) else x


def down(y: Any, dtype: np.dtype[Any]) -> Array:
    """`y` rounded to `dtype`."""
    return np.asarray(y).astype(dtype, copy=False)


def rounded(function: Callable[..., Any], first: Array, *rest: Array) -> Array:
    """`function` computed in f32 or better; the result has the dtype of the first input."""
    return down(function(up(first), *map(up, rest)), first.dtype)
