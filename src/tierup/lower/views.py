"""Values as other memory: what a chain of transposes, reshapes, broadcasts and slices leads to.

A view is a base value, an offset and one stride for each axis, all in elements. Reading through it replaces the copies
that the chain would make. Unlike a form (`plan/forms.py`), it holds in every call: nothing has to be checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, Shape, TensorType
from tierup.lower.sources import constant_scalar
from tierup.plan.forms import VIEWS
from tierup.plan.moves import reshaped, sliced, transposed
from tierup.plan.sources import Linear
from tierup.plan.strides import Strides


class View(Struct, frozen=True):
    """Element (i, j, …) lies at base[offset + i · strides[0] + j · strides[1] + …].

    `factors` ("mul" or "div", and a number) are still to be applied to it.
    """

    base: ValueId
    shape: Shape
    strides: tuple[Dim, ...]
    offset: Dim = 0
    factors: tuple[tuple[str, float], ...] = ()

    @property
    def at(self) -> Linear:
        return Linear(self.offset, self.strides)

    def transposed(self, order: Sequence[int]) -> View:
        """With its axes in another order."""
        return self.moved(transposed(self.at, order), tuple(self.shape[axis] for axis in order))

    def swapped(self) -> View:
        """With its last two axes exchanged."""
        *others, rows, columns = range(len(self.shape))
        return self.transposed((*others, columns, rows))

    def moved(self, at: Linear, shape: Shape) -> View:
        """The same base, read elsewhere."""
        return replace(self, shape=shape, strides=at.strides, offset=at.offset)


class Views:
    """The views of one graph's values. With `scaled`, multiplying all by one number is looked through, too."""

    def __init__(self, graph: Graph, weights: Weights, dims: DimBuilder, *, scaled: bool = False) -> None:
        self._graph, self._weights, self._dims, self._scaled = graph, weights, dims, scaled
        self._strides = Strides(dims)
        self._known: dict[ValueId, View] = {}

    def of(self, value: ValueId) -> View:
        """The view behind a value: of itself where nothing leads further."""
        if value not in self._known:
            self._known[value] = self._through(value) or self.itself(value)
        return self._known[value]

    def broadcast(self, value: ValueId, domain: Shape) -> View | None:
        """A value's view over a domain that it broadcasts to; None where that is not known."""
        return self._repeated(self.of(value), domain)

    def reshaped(self, value: ValueId, shape: Shape) -> View:
        """A value's view under another shape; of itself where its view has gaps."""
        view = self._reshaped(self.of(value), shape)
        return view if view is not None else View(value, shape, self._strides.row_major(shape))

    def _shape(self, value: ValueId) -> Shape:
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        assert type.shape is not None
        return type.shape

    def itself(self, value: ValueId) -> View:
        """A value as it lies in memory, whatever it was made of."""
        shape = self._shape(value)
        return View(value, shape, self._strides.row_major(shape))

    def _through(self, value: ValueId) -> View | None:
        node = self._graph.producer(value)
        if node is not None and self._scaled and node.op in ("core.mul", "core.div"):
            return self._multiplied(node, self._shape(value))
        if node is None or node.op not in VIEWS:
            return None
        source = node.inputs[0]
        assert source is not None
        types = [self._graph.type(source), self._graph.type(value)]
        if not all(isinstance(type, TensorType) and type.shape is not None for type in types):
            return None
        view = self.of(source)
        if node.op == "core.transpose":
            return view.transposed(node.attrs["perm"])
        if node.op == "core.broadcast":
            return self._repeated(view, self._shape(value))
        if node.op == "core.slice":
            return self._sliced(node, view, self._shape(value))
        return self._reshaped(view, self._shape(value))

    def _multiplied(self, node: Node, shape: Shape) -> View | None:
        pairs = [(node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])]
        for source, factor in pairs[: 2 if node.op == "core.mul" else 1]:
            assert source is not None
            assert factor is not None
            number = constant_scalar(self._graph, self._weights, factor)
            if number is not None and self._shape(source) == shape:
                view = self.of(source)
                return replace(view, factors=(*view.factors, (node.op.removeprefix("core."), number)))
        return None

    def _repeated(self, view: View, domain: Shape) -> View | None:
        missing = len(domain) - len(view.shape)
        if missing < 0:
            return None
        strides: list[Dim] = [0] * missing
        for own, whole, stride in zip(view.shape, domain[missing:], view.strides, strict=True):
            if own != whole and own != 1:
                return None
            strides.append(stride if own == whole else 0)
        return replace(view, shape=domain, strides=tuple(strides))

    def _sliced(self, node: Node, view: View, shape: Shape) -> View | None:
        starts = self._graph.digests.get(node.inputs[1]) if node.inputs[1] is not None else None
        if starts is None or any(step < 1 for step in node.attrs["steps"]):
            return None
        firsts = [
            start if start >= 0 else self._dims.max(self._dims.add(view.shape[axis], start), 0)
            for axis, start in zip(node.attrs["axes"], self._weights[starts].tolist(), strict=True)
        ]
        cuts = dict(zip(node.attrs["axes"], zip(firsts, node.attrs["steps"], strict=True), strict=True))
        return view.moved(sliced(view.at, cuts, self._strides), shape)

    def _reshaped(self, view: View, shape: Shape) -> View | None:
        at = reshaped(view.at, view.shape, shape, self._strides)
        if at is None:
            return None
        steps = tuple(1 if size == 1 else stride for size, stride in zip(shape, at.strides, strict=True))
        return view.moved(Linear(at.offset, steps), shape)  # of one element it does not matter; 1 reads as side by side


def paired(view: View, dims: DimBuilder) -> View | None:
    """A view of 16-bit elements as one of words of two that lie side by side; None where a row may begin amid one."""
    *strides, last = (2 if size == 1 else stride for size, stride in zip(view.shape, view.strides, strict=True))
    if last != 1 or not all(dims.is_multiple(size, 2) for size in (view.shape[-1], view.offset, *strides)):
        return None
    *shape, columns = view.shape
    halved = tuple(dims.floordiv(stride, 2) for stride in strides)
    offset = dims.floordiv(view.offset, 2)
    return replace(view, shape=(*shape, dims.floordiv(columns, 2)), strides=(*halved, 1), offset=offset)
