"""Fourier transforms of a short, known length as products with constant cosines and sines.

A transform of N points costs N² multiplications instead of N log N. Up to `_LONGEST` points that is under 3 µs at the
100 GFLOP/s of one core, and the matrix (2 MiB in f32 for complex data) stays in its second-level cache.
"""

from __future__ import annotations

import math

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, Dim, DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition

_LONGEST = 512


def _short(length: Dim) -> int:
    if not isinstance(length, int):
        raise Declined("the length of the transform is known only in the call")
    if length > _LONGEST:
        raise Declined(f"a transform of {length} points: a fast one would be faster than a product")
    return length


def _waves(inputs: int, outputs: int, length: int, sign: int) -> tuple[Array, Array]:
    """cos and sin of sign · 2π · j · k / length for each input j and output k; the angle is reduced exactly first."""
    turns = np.outer(np.arange(inputs), np.arange(outputs)) % max(length, 1)
    angles = sign * 2 * math.pi * turns / max(length, 1)
    return np.cos(angles), np.sin(angles)


def _forward(inputs: int, outputs: int, length: int, parts: int, back: bool) -> Array:
    """(parts, inputs, 2, outputs): how real and imaginary parts of the data go into those of the result."""
    cos, sin = _waves(inputs, outputs, length, 1 if back else -1)
    rows = [np.stack((cos, sin), axis=1), np.stack((-sin, cos), axis=1)][:parts]
    return np.stack(rows) / (length if back else 1)


def _from_half(inputs: int, length: int, parts: int) -> Array:
    """(parts, inputs, 1, length): a real signal from the first half of its spectrum, whose rest mirrors it."""
    kept = min(inputs, length // 2 + 1)
    cos, sin = _waves(inputs, length, length, 1)
    twice = np.where((np.arange(inputs) == 0) | (2 * np.arange(inputs) == length), 1, 2)
    twice[kept:] = 0
    rows = [(twice[:, None] * cos)[:, None], (-twice[:, None] * sin)[:, None]][:parts]
    return np.stack(rows) / length


def _parts(b: Core, x: ValueId) -> int:
    parts = b.shape(x)[-1]
    if parts not in (1, 2):
        raise Declined("whether the signal is complex is known only in the call")
    assert isinstance(parts, int)
    return parts


def _without_zeros(b: Core, x: ValueId) -> ValueId:
    """A complex signal, or its real part alone where the other one is known to be zero: half of each sum."""
    joined = b.out.producer(x)
    if joined is None or joined.op not in ("onnx.Concat", "core.concat") or len(joined.inputs) != 2:
        return x
    (real, imaginary), last = joined.inputs, b.rank(x) - 1
    if real is None or imaginary is None or b.axis(joined.attrs["axis"], last + 1) != last or b.shape(real)[-1] != 1:
        return x
    return real if _is_zero(b, imaginary) else x


def _is_zero(b: Core, value: ValueId) -> bool:
    """Whether it is known to be zero, also where its size is known only in the call."""
    spread = b.out.producer(value)
    if spread is not None and spread.op in ("onnx.Expand", "core.broadcast") and spread.inputs[0] is not None:
        return _is_zero(b, spread.inputs[0])
    zeros = b.out.constant(value)
    return zeros is not None and not zeros.any()


def _dft(b: Core, n: Node) -> ValueId:
    x = _without_zeros(b, b.input(n))
    shape = b.shape(x)
    axis, given = b.axis(_axis(b, n), len(shape)), b.given(n, 1)
    size, back, half = _short(shape[axis]), bool(n.attrs["inverse"]), bool(n.attrs["onesided"])
    length = 2 * (size - 1) if back and half else size
    if given is not None:
        (length,) = b.numbers(given, "the length of a transform")
    used = min(size, _short(length))
    if not length or not used:
        raise Declined("a transform of nothing")
    parts = _parts(b, x)
    if back and half:
        matrix = _from_half(used, length, parts)
    else:
        matrix = _forward(used, length // 2 + 1 if half else length, length, parts, back)
    return _applied(b, b.part(x, axis, 0, used), axis, matrix)


def _axis(b: Core, n: Node) -> int:
    given = b.given(n, 2)
    if given is None:
        return int(n.attrs.get("axis", -2))
    (axis,) = b.numbers(given, "the axis of a transform")
    return axis


def _applied(b: Core, x: ValueId, axis: int, matrix: Array) -> ValueId:
    """x with (parts, inputs, parts', outputs) applied to its `axis` and its last one.

    In f64: most results are small differences of large sums, and fast transforms round them far less than products.
    """
    parts, inputs, results, outputs = matrix.shape
    wide, rank = b.cast(x, DType.F64), b.rank(x)
    others = [i for i in range(rank - 1) if i != axis]
    rows = b.transpose(wide, (*others, rank - 1, axis))
    outer = [b.shape(x)[i] for i in others]
    flat = b.reshape(rows, (b.dims.product(outer), parts * inputs))
    table = matrix.reshape(parts * inputs, results * outputs).astype(b.dtype(wide).numpy)
    apart = b.reshape(b.matmul(flat, b.weight(table)), (*outer, results, outputs))
    order = [*others, rank - 1, axis]
    return b.cast(b.transpose(apart, [order.index(i) for i in range(rank)]), b.dtype(x))


def _stft(b: Core, n: Node) -> ValueId:
    """A convolution: the kernel holds the waves of one frame, times the window, and moves by the frame's step."""
    x, window, given = b.input(n), b.given(n, 2), b.given(n, 3)
    batch, signal, _ = b.shape(x)
    (hop,) = b.numbers(b.input(n, 1), "the step between frames")
    length: Dim = signal if window is None else b.shape(window)[0]
    if given is not None:
        (length,) = b.numbers(given, "the length of a frame")
    size, parts = _short(length), _parts(b, x)
    bins = size // 2 + 1 if n.attrs["onesided"] else size
    wide = b.wide(x)
    matrix = _forward(size, bins, size, parts, False)  # (parts, inputs, 2, bins)
    table = np.ascontiguousarray(matrix.transpose(3, 2, 0, 1).reshape(bins * 2, parts, size))
    kernel = b.weight(table.astype(b.dtype(wide).numpy))
    if window is not None:
        kernel = b.mul(kernel, b.cast(window, b.dtype(wide)))
    pads = b.integers([0, 0])
    rows = b.transpose(wide, (0, 2, 1))
    frames = b.op("conv", rows, kernel, pads, group=1, strides=(hop,), dilations=(1,))
    spectra = b.transpose(frames, (0, 2, 1))
    return b.cast(b.reshape(spectra, (batch, b.shape(spectra)[1], bins, 2)), b.dtype(x))


SIGNAL: dict[str, Decomposition] = {"onnx.DFT": _dft, "onnx.STFT": _stft}
