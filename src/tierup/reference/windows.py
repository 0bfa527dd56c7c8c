"""Windows with plain numbers, and the slices with which each kernel offset meets its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Attrs
from tierup.ir.ops.window import Window, transposed_windows, windows
from tierup.ir.types import Array, Dim
from tierup.reference.precision import down, up

Index = tuple[Any, ...]  # what an array may be indexed with: slices, numbers, None, ...


class Slide(Struct, frozen=True):
    """One axis of `ir.ops.window.Window`, in numbers."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    count: int


def _number(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def _slide(window: Window) -> Slide:
    size, kernel, before, after, count = map(
        _number, (window.size, window.kernel, window.before, window.after, window.count)
    )
    if count < 0 or size < 0:
        raise ValueError(f"a kernel of {kernel} does not fit an axis of {size}")
    return Slide(size, kernel, window.stride, window.dilation, before, after, count)


def slides(attrs: Attrs, sizes: Sequence[int], kernel: Sequence[int]) -> list[Slide]:
    """The windows of a convolution or pooling, axis by axis."""
    return [_slide(window) for window in windows(DimBuilder(), attrs, sizes, kernel)]


def transposed_slides(attrs: Attrs, sizes: Sequence[int], kernel: Sequence[int]) -> list[Slide]:
    """The windows of a transposed convolution, axis by axis."""
    return [_slide(window) for window in transposed_windows(DimBuilder(), attrs, sizes, kernel)]


def taps(slide: Slide) -> Iterator[tuple[int, slice, slice]]:
    """For each kernel offset that meets the data: the offset, the windows it does so in, the elements it meets."""
    stride, dilation = slide.stride, slide.dilation
    first = max(0, -((slide.stride * (slide.count - 1) - slide.before) // dilation))
    last = min(slide.kernel - 1, (slide.size - 1 + slide.before) // dilation)
    for tap in range(first, last + 1):
        shift = tap * dilation - slide.before
        begin = max(0, -(shift // stride))
        end = min(slide.count, (slide.size - 1 - shift) // stride + 1)
        if begin < end:
            yield tap, slice(begin, end), slice(begin * stride + shift, (end - 1) * stride + shift + 1, stride)


def in_compute_dtype(function: Callable[..., Array], x: Array, *others: Array | None) -> Array:
    """`function` on arrays of f32 or wider, its result in the dtype of `x`."""
    return down(function(up(x), *(None if other is None else up(other) for other in others)), x.dtype)
