"""Transposed convolutions as convolutions, one for each set of phases whose windows look alike.

On one axis with stride s and dilation d, tap j of the kernel adds x[i] · w[j] at t = i·s + j·d. So the phase t mod s
of the result reads the taps with j·d mod s equal to it, and tap j reads x at t div s - j·d div s: an ordinary
convolution with some of the taps, backwards. Phases that read x at the same places are outputs of one convolution;
then the phases are laid side by side, interleaved, and what the pads cut off is cut off. No tap is multiplied where it
was not before, so that infinities stay where they were.

Phases are laid with the channels last, as convolutions give them (`rules/layout.py`): so whole rows of channels move.
"""

from __future__ import annotations

from itertools import groupby, product
from math import gcd

from msgspec import Struct

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.rules.row import numbers
from tierup.rewrite.walk import Rewriter, Values


class _Run(Struct, frozen=True):
    """Neighbouring phases of one axis that read x at first, first + step, ... before where they write.

    `taps` has the kernel's taps of each phase; they are the same number for all.
    """

    taps: tuple[tuple[int, ...], ...]
    first: int
    step: int

    @property
    def reach(self) -> int:
        """How far before where it writes the run reads."""
        return self.first + (len(self.taps[0]) - 1) * self.step


class _Axis(Struct, frozen=True):
    """One spatial axis: its runs, which places of x each phase is written for, and what is cut off in the end.

    Places go from `begin` to the size of x plus `beyond`; of the interleaved phases, `cut` elements go in front, and
    the result ends `behind` elements after the stride times the size of x.
    """

    stride: int
    runs: tuple[_Run, ...]
    begin: int
    beyond: int
    cut: int
    behind: int


def as_convolutions(out: Rewriter, node: Node) -> Values | None:
    """The rule: applies where kernel and pads are numbers."""
    x, w, pads = node.inputs
    x_shape, w_shape, widths = out.shape(x), out.shape(w), numbers(out, pads)
    if x is None or w is None or x_shape is None or w_shape is None or widths is None:
        return None
    kernel = tuple(size for size in w_shape[2:] if isinstance(size, int) and size > 0)
    if len(kernel) < len(w_shape) - 2 or 0 in x_shape:
        return None
    n, attrs = len(kernel), node.attrs
    axes = [
        _axis(*row)
        for row in zip(
            kernel, attrs["strides"], attrs["dilations"], attrs["output_padding"], widths[:n], widths[n:], strict=True
        )
    ]
    b, group = Core(out), int(attrs["group"])
    joined = _joined(b, x, w, axes, group)
    return [_cut(b, _interleaved(b, joined, axes), x, axes)]


def _axis(kernel: int, stride: int, dilation: int, extra: int, before: int, after: int) -> _Axis:
    """How one axis is divided into phases, and what of them is needed."""
    step = dilation // gcd(stride, dilation)
    phases = [tuple(tap for tap in range(kernel) if tap * dilation % stride == phase) for phase in range(stride)]
    alike = groupby(phases, key=lambda taps: (len(taps), taps[0] * dilation // stride if taps else 0))
    runs = tuple(_Run(tuple(taps), first, step) for (_, first), taps in alike)
    used = [run for run in runs if run.taps[0]]
    # the result ends here, counted from stride · (size of x)
    behind = (kernel - 1) * dilation + 1 + extra - after - stride
    begin = min(before // stride, *(run.reach for run in used))
    beyond = max(-(-behind // stride), *(run.first for run in used))
    return _Axis(stride, runs, begin, beyond, before - begin * stride, behind)


def _joined(b: Core, x: ValueId, w: ValueId, axes: list[_Axis], group: int) -> ValueId:
    """All phases: (batch, a place for each axis, group, a phase for each axis, outputs of a group)."""
    shape = b.shape(x)
    places = [b.dims.add(size, axis.beyond - axis.begin) for size, axis in zip(shape[2:], axes, strict=True)]
    parts = {
        runs: _part(b, x, w, axes, tuple(axis.runs[i] for axis, i in zip(axes, runs, strict=True)), group, places)
        for runs in product(*(range(len(axis.runs)) for axis in axes))
    }
    for number in reversed(range(len(axes))):
        parts = {
            outer: b.concat([parts[*outer, i] for i in range(len(axes[number].runs))], 2 + len(axes) + number)
            for outer in dict.fromkeys(runs[:-1] for runs in parts)
        }
    return parts[()]


def _part(
    b: Core, x: ValueId, w: ValueId, axes: list[_Axis], runs: tuple[_Run, ...], group: int, places: list[Dim]
) -> ValueId:
    """The phases of one run on each axis: a convolution, or zeros where one of them has no taps."""
    phases = [len(run.taps) for run in runs]
    outputs = b.shape(w)[1]
    shape: list[Dim] = [b.shape(x)[0], *places, group, *phases, outputs]
    if not all(run.taps[0] for run in runs):
        dtype = DType.I32 if b.dtype(x).is_integer else b.dtype(x)  # as products of bytes have it
        return b.broadcast(b.number(0, dtype), shape)
    before = [run.reach - axis.begin for run, axis in zip(runs, axes, strict=True)]
    after = [axis.beyond - run.first for run, axis in zip(runs, axes, strict=True)]
    y = b.op(
        "conv", x, _weights(b, w, runs, group), b.integers([*before, *after]),
        group=group, strides=(1,) * len(runs), dilations=tuple(run.step for run in runs),
    )  # fmt: skip
    return b.reshape(b.transpose(y, (0, *range(2, 2 + len(runs)), 1)), shape)


def _weights(b: Core, w: ValueId, runs: tuple[_Run, ...], group: int) -> ValueId:
    """w[C, M / group, ...] as the weights of a convolution whose outputs are phases, then M / group."""
    n, (channels, outputs, *_) = len(runs), b.shape(w)
    picked = w
    for number, run in enumerate(runs):
        order = [tap for taps in run.taps for tap in reversed(taps)]
        picked = b.gather(picked, b.integers(order), 2 + number)
    share = b.dims.floordiv(channels, group)
    phases, taps = [len(run.taps) for run in runs], [len(run.taps[0]) for run in runs]
    divided = b.reshape(picked, [group, share, outputs, *(d for row in zip(phases, taps, strict=True) for d in row)])
    order = [0, *range(3, 3 + 2 * n, 2), 2, 1, *range(4, 3 + 2 * n, 2)]
    return b.reshape(b.transpose(divided, order), [b.dims.product([group, *phases, outputs]), share, *taps])


def _interleaved(b: Core, y: ValueId, axes: list[_Axis]) -> ValueId:
    """The phases of each place side by side: (batch, channels, an axis of places · stride for each)."""
    n, (batch, *shape) = len(axes), b.shape(y)
    places, group, outputs = shape[:n], shape[n], shape[-1]
    order = [0, *(axis for i in range(n) for axis in (1 + i, 2 + n + i)), 1 + n, 2 + 2 * n]
    whole = [b.dims.mul(place, axis.stride) for place, axis in zip(places, axes, strict=True)]
    last = b.reshape(b.transpose(y, order), [batch, *whole, b.dims.mul(group, outputs)])
    return b.transpose(last, (0, 1 + n, *range(1, 1 + n)))


def _cut(b: Core, y: ValueId, x: ValueId, axes: list[_Axis]) -> ValueId:
    """Without what pads cut off, and what of the last places is not needed."""
    for number, axis in enumerate(axes):
        whole = axis.stride * (axis.beyond - axis.begin)
        end = axis.behind - axis.begin * axis.stride
        if (axis.cut, end) != (0, whole):
            size = b.dims.mul(b.shape(x)[2 + number], axis.stride)
            y = b.part(y, 2 + number, axis.cut, b.dims.add(size, end))
    return y
