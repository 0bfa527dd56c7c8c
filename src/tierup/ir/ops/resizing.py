"""The sizes that Resize and Upsample give: from scales, or from wanted sizes that may keep the aspect ratio.

The type rules and the reference functions both count with these, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tierup.ir.dims import DimBuilder
from tierup.ir.infer import InferError
from tierup.ir.types import Dim

_EXACT = 1 << 12  # numerators and denominators up to here: products with real sizes are exact in f32
_INT64 = 1 << 63


def scaled(dims: DimBuilder, size: Dim, scale: float) -> Dim | None:
    """floor(size · scale) as f32 multiplies; None where that is no short program over `size`."""
    factor = np.float32(scale)
    if not (np.isfinite(factor) and factor > 0):
        raise InferError(f"a scale is {scale}, expected a number above 0")
    above, below = float(factor).as_integer_ratio()
    if max(above, below) <= _EXACT:
        return dims.floordiv(dims.mul(size, above), below)
    if not isinstance(size, int):
        return None
    with np.errstate(over="ignore"):
        result = float(np.floor(np.float32(size) * factor))
    if result >= _INT64:
        raise InferError(f"size {size} times {scale} overflows 64 bits")
    return int(result)


def aspect_scale(sizes: Sequence[int], wanted: Sequence[int], policy: str) -> float:
    """The one scale with which no axis becomes larger, or smaller, than wanted."""
    if 0 in sizes:
        raise InferError("an empty axis has no aspect ratio to keep")
    ratios = [want / size for size, want in zip(sizes, wanted, strict=True)]
    return min(ratios) if policy == "not_larger" else max(ratios)


def aspect_sizes(sizes: Sequence[int], wanted: Sequence[int], policy: str) -> list[int]:
    """The sizes near `wanted` that keep the aspect ratio; halves are rounded up."""
    scale = aspect_scale(sizes, wanted, policy)
    results = [int(scale * size + 0.5) for size in sizes]
    if max(results, default=0) >= _INT64:
        raise InferError(f"sizes {list(sizes)} times {scale} overflow 64 bits")
    return results
