"""The geometry of a conv region, and what its kernels share: axes of windows, places of results."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Dim, DType, TensorType
from tierup.lower.names import Names, Sizes
from tierup.lower.tile import Fill, Index, Map, Position, Reduce, Size, Statement, Tile
from tierup.lower.views import View, Views
from tierup.plan.products import constant_right
from tierup.plan.regions import Region
from tierup.plan.strides import Strides

_MANY = 64  # channels that are more than one panel of sums has

Bounded = tuple[str, str, tuple[str, ...]]  # a place inside the data, whether it is the one that was meant, their axes


class Window(Struct, frozen=True):
    """One spatial axis: window o covers o · stride + t · dilation − before, t below `kernel`; there are `count`.

    `step` is how far apart places lie in memory.
    """

    size: Dim
    kernel: int
    stride: int
    dilation: int
    before: Dim
    after: Dim
    count: Dim
    step: Dim

    @property
    def padded(self) -> bool:
        return self.before != 0 or self.after != 0

    @property
    def is_single(self) -> bool:
        """Whether there is one place, and one window, which is that place."""
        return self.size == self.kernel == 1 and not self.padded


class Spot(Struct, frozen=True):
    """Where a tile of results lies: its axes, and the addresses of its elements."""

    axes: tuple[str, str]
    index: Index
    columns: Index
    rows: Index | None = None
    at: tuple[tuple[str, Size], ...] = ()


class Windows:
    """A conv region: its data as a view, its windows, and the dims of its result.

    `constant` are the weights, or what they are cast from; `kind` is what data and weights are read as, `fill` what
    lies around the data. In words of several channels that lie side by side, `channels`, places and strides count
    words.
    """

    def __init__(self, graph: Graph, weights: Weights, region: Region, dims: DimBuilder) -> None:
        node = graph.nodes[region.nodes[0]]
        data, matrix, _ = node.inputs
        assert data is not None
        assert matrix is not None
        self.graph, self.dims = graph, dims
        view = _data(Views(graph, weights, dims), data, region.domain[-1])
        self.data, self.matrix, self.group = data, matrix, int(node.attrs["group"])
        right = constant_right(graph, node)
        self.constant = None if right is None else right.value
        self.fill = int(node.attrs.get("fill", 0))
        self.transformed = node.attrs["algorithm"] == "winograd"
        channels, results = view.shape[-1], region.domain[-1]
        assert isinstance(channels, int)
        assert isinstance(results, int)
        self.channels = channels // self.group  # of one group
        self.columns = results // self.group
        n = len(node.attrs["kernel_shape"])
        axes = [
            Window(
                view.shape[1 + a], node.attrs["kernel_shape"][a], node.attrs["strides"][a],
                node.attrs["dilations"][a], region.sizes[a], region.sizes[n + a], region.domain[1 + a],
                view.strides[1 + a],
            )
            for a in range(n)
        ]  # fmt: skip
        # axes of one place count for nothing: a row is a row whichever axis it lies along
        self._kept = [a for a in range(n) if not axes[a].is_single] or [n - 1]
        self.axes = [axes[a] for a in self._kept]
        self.view = _without(view, self._kept)
        self.domain = (region.domain[0], *(axis.count for axis in self.axes), results)
        stored = self.dtype(node.outputs[0])
        self.kind = self.sum = DType.F32 if stored in (DType.F16, DType.BF16) else stored

    def in_words(self, group: int) -> Windows:
        """The same with `group` channels in each word. Where what is behind the data does not lie so, it is read
        itself."""
        found, view = copy(self), self.view
        sizes = (*view.strides[:-1], view.offset)
        if view.strides[-1] != 1 or not all(isinstance(size, int) and size % group == 0 for size in sizes):
            whole = self._type(self.data).shape
            assert whole is not None
            view = _without(View(self.data, whole, Strides(self.dims).row_major(whole)), self._kept)
        in_words = [self.dims.floordiv(size, group) for size in (*view.strides[:-1], view.offset)]
        found.channels = self.channels // group
        found.view = View(view.base, (*view.shape[:-1], found.channels), (*in_words[:-1], 1), in_words[-1])
        found.axes = [replace(axis, step=step) for axis, step in zip(self.axes, in_words[1:-1], strict=True)]
        found.kind = DType.I32
        found.fill = int(np.array([self.fill % 256] * 4, np.uint8).view(np.int32)[0])
        return found

    def dtype(self, value: ValueId | None) -> DType:
        return self._type(value).dtype

    def _type(self, value: ValueId | None) -> TensorType:
        assert value is not None
        type = self.graph.type(value)
        assert isinstance(type, TensorType)
        return type

    def spot(self, sizes: Sizes, row: str, *, grouped: bool) -> Spot:
        """The place of results in rows `row` and columns j, of a group g or of all, inside the loops n, o0, o1, ..."""
        strides = Strides(self.dims).row_major(self.domain)
        names = ["n", *(f"o{a}" for a in range(len(self.axes) - 1)), row, "j"]
        entries = [(name, sizes.of(stride)) for name, stride in zip(names, strides, strict=True)]
        shared = (("g", self.columns),) if grouped else ()
        return Spot((row, "j"), Index((*entries, *shared)), Index((("j", 1), *shared)))

    def scaled(self, amount: Dim, by: int) -> Dim:
        return amount if by == 1 else self.dims.mul(amount, by)


def _data(views: Views, data: ValueId, results: Dim) -> View:
    """Where the data is read from. Channels that lie apart are gathered for every panel of results: where there are
    several panels, and more than a few channels, putting them side by side once in memory takes less."""
    view = views.of(data)
    channels = view.shape[-1]
    many = isinstance(channels, int) and isinstance(results, int) and channels >= _MANY and results >= _MANY
    return views.itself(data) if many and view.strides[-1] != 1 else view


def _without(view: View, kept: Sequence[int]) -> View:
    """A view with its batch and channels, and only these axes in between."""
    axes = (0, *(1 + a for a in kept), len(view.shape) - 1)
    return replace(view, shape=tuple(view.shape[a] for a in axes), strides=tuple(view.strides[a] for a in axes))


class Integers:
    """Writes arithmetic on positions."""

    def __init__(self, body: list[Statement], names: Names, sizes: Sizes) -> None:
        self._body, self._names, self._sizes = body, names, sizes

    def position(self, axis: str) -> tuple[str, tuple[str, ...]]:
        name = self._names.new("p")
        self._body.append(Position(name, Tile(DType.I64, (axis,)), axis))
        return name, (axis,)

    def start(self, axis: str) -> tuple[str, tuple[str, ...]]:
        """The first position of a step, without axes."""
        name, (position, _) = self._names.new("p"), self.position(axis)
        self._body.append(Reduce(name, Tile(DType.I64), "min", position, axis))
        return name, ()

    def number(self, dim: Dim) -> str:
        name, size = self._names.new("c"), self._sizes.of(dim)
        self._body.append(Fill(name, Tile(DType.I64), size))
        return name

    def map(self, op: str, axes: tuple[str, ...], *args: str, dtype: DType = DType.I64) -> str:
        name = self._names.new("m")
        self._body.append(Map(name, Tile(dtype, axes), op, args))
        return name

    def place(self, window: Window, output: tuple[str, tuple[str, ...]], tap: tuple[str, tuple[str, ...]]) -> Bounded:
        """o · stride + t · dilation − before, brought inside the data, and whether it lay there."""
        axes = (*output[1], *tap[1])
        start = self.map("mul", output[1], output[0], self.number(window.stride)) if window.stride > 1 else output[0]
        within = self.map("mul", tap[1], tap[0], self.number(window.dilation)) if window.dilation > 1 else tap[0]
        place = self.map("sub", axes, self.map("add", axes, start, within), self.number(window.before))
        nought, size = self.number(0), self.number(window.size)
        low = self.map("le", axes, nought, place, dtype=DType.BOOL)
        high = self.map("lt", axes, place, size, dtype=DType.BOOL)
        last = self.map("sub", (), size, self.number(1))
        inside = self.map("max", axes, self.map("min", axes, place, last), nought)
        return inside, self.map("and", axes, low, high, dtype=DType.BOOL), axes
