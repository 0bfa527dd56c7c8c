"""Fourier transforms. Complex numbers are a last axis of size 2, real ones of size 1."""

from __future__ import annotations

from tierup.ir.infer import Infer, InferError, Out
from tierup.ir.ops.row import Op
from tierup.ir.types import Dim, Shape


def _scalar(ctx: Infer, index: int) -> Dim | None:
    """The one integer that input `index` holds, as a dim; None where it cannot be counted on."""
    elems = ctx.elems(index)
    if elems is not None and len(elems) != 1:
        raise InferError(f"input {index} must be one number, but has {len(elems)}")
    return None if elems is None else elems[0]


def _parts(shape: Shape) -> None:
    if isinstance(shape[-1], int) and shape[-1] not in (1, 2):
        raise InferError(f"the last axis must be 1 (real) or 2 (complex), but has size {shape[-1]}")


def dft(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if shape is None:
        return [Out(ctx.dtype(0), None)]
    if len(shape) < 2:
        raise InferError(f"DFT needs a signal axis and an axis of parts, but its input has rank {len(shape)}")
    _parts(shape)
    back, half = bool(ctx.attrs["inverse"]), bool(ctx.attrs["onesided"])
    parts = 1 if back and half else 2
    axis = _dft_axis(ctx, len(shape))
    if axis is None:
        return [Out(ctx.dtype(0), (*(None,) * (len(shape) - 1), parts))]
    length: Dim | None = shape[axis]
    if ctx.has(1):
        length = _scalar(ctx, 1)
    elif back and half:
        length = ctx.dims.mul(2, ctx.dims.sub(shape[axis], 1))
    if half and not back and length is not None:
        length = ctx.dims.add(ctx.dims.floordiv(length, 2), 1)
    return [Out(ctx.dtype(0), (*shape[:axis], length, *shape[axis + 1 : -1], parts))]


def _dft_axis(ctx: Infer, rank: int) -> int | None:
    """The transformed axis; None where it is known only at run time."""
    if "axis" in ctx.attrs:
        axis = ctx.attrs["axis"]
    elif ctx.has(2):
        given = ctx.ints(2)
        if given is None:
            return None
        if len(given) != 1:
            raise InferError(f"DFT takes one axis, but was given {len(given)}")
        axis = given[0]
    else:
        axis = -2
    axis = ctx.axis(axis, rank)
    if axis == rank - 1:
        raise InferError("DFT cannot run over the last axis, which holds real and imaginary parts")
    return axis


def stft(ctx: Infer) -> list[Out]:
    """(batch, frames, bins, 2)."""
    shape = ctx.shape(0)
    if shape is not None:
        if len(shape) != 3:
            raise InferError(f"STFT needs a signal of rank 3, but it has {len(shape)}")
        _parts(shape)
    window = ctx.shape(2) if ctx.has(2) else None
    if window is not None and len(window) != 1:
        raise InferError(f"the window must have rank 1, but has {len(window)}")
    batch, signal = shape[:2] if shape else (None, None)
    frame: Dim | None = signal
    if window is not None:
        frame = window[0]
    elif ctx.has(3):
        frame = _scalar(ctx, 3)
    elif ctx.has(2):
        frame = None
    step = _scalar(ctx, 1)
    if isinstance(step, int) and step <= 0:
        raise InferError(f"the frame step must be above 0, but is {step}")
    dims = ctx.dims
    frames: Dim | None = None
    if frame is not None and signal is not None and step is not None:
        frames = dims.add(dims.floordiv(dims.sub(signal, frame), step), 1)
    bins = frame
    if frame is not None and ctx.attrs["onesided"]:
        bins = dims.add(dims.floordiv(frame, 2), 1)
    return [Out(ctx.dtype(0), (batch, frames, bins, 2))]


OPS = (
    Op("onnx.DFT", "the discrete Fourier transform along one axis, or its inverse", dft, "signal.dft"),
    Op("onnx.STFT", "the Fourier transforms of windows that slide over a signal", stft, "signal.stft"),
)
