"""Fourier transforms in NumPy. Complex numbers are a last axis of size 2, real ones of size 1."""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference.matrix import work_dtype


def dft(node: Node, x: Array, length: Array | None = None, axis: Array | None = None) -> Array:
    where = node.attrs.get("axis", -2) if axis is None else int(axis.reshape(-1)[0])
    if not -x.ndim <= where < x.ndim or where % x.ndim == x.ndim - 1:
        raise ValueError(f"DFT over axis {where} of a tensor of rank {x.ndim}")
    where %= x.ndim
    back, half = bool(node.attrs["inverse"]), bool(node.attrs["onesided"])
    count = x.shape[where] if not (back and half) else 2 * (x.shape[where] - 1)
    if length is not None:
        count = int(length.reshape(-1)[0])
    return transform(x, count, where, back, half)


def transform(x: Array, length: int, axis: int, back: bool, half: bool) -> Array:
    """The transform of `x` along `axis`, cut or padded with zeros to `length`."""
    signal = _number(x)
    if back and half:
        return np.fft.irfft(signal, length, axis)[..., None].astype(x.dtype, copy=False)
    if half and signal.dtype.kind != "c":
        return _parts(np.fft.rfft(signal, length, axis), x)
    result = (np.fft.ifft if back else np.fft.fft)(signal, length, axis)
    if half:
        result = np.take(result, np.arange(length // 2 + 1), axis)
    return _parts(result, x)


def _number(x: Array) -> Array:
    wide = x.astype(work_dtype(x.dtype), copy=False)
    if x.shape[-1] == 1:
        return wide[..., 0]
    if x.shape[-1] != 2:
        raise ValueError(f"the last axis must be 1 (real) or 2 (complex), but has size {x.shape[-1]}")
    complex_dtype = np.complex128 if wide.dtype == np.float64 else np.complex64
    return np.ascontiguousarray(wide).view(complex_dtype)[..., 0]


def _parts(result: Array, like: Array) -> Array:
    return np.stack((result.real, result.imag), axis=-1).astype(like.dtype, copy=False)


def stft(node: Node, x: Array, step: Array, window: Array | None = None, frame_length: Array | None = None) -> Array:
    hop = int(step.reshape(-1)[0])
    size = x.shape[1] if window is None else window.shape[0]
    if frame_length is not None:
        size = int(frame_length.reshape(-1)[0])
    if hop <= 0 or not 0 < size <= x.shape[1]:
        raise ValueError(f"frames of {size} every {hop} do not fit a signal of {x.shape[1]}")
    if window is not None and window.shape != (size,):
        raise ValueError(f"a window of shape {window.shape} does not fit frames of {size}")
    wide = x.astype(work_dtype(x.dtype), copy=False)
    frames = np.swapaxes(np.lib.stride_tricks.sliding_window_view(wide, size, axis=1)[:, ::hop], -1, -2)
    if window is not None:
        frames = frames * window.astype(wide.dtype, copy=False)[:, None]
    return transform(frames, size, 2, False, bool(node.attrs["onesided"])).astype(x.dtype, copy=False)
