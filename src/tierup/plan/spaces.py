"""What a node computes over: the space of its iterations, where its arguments come from and where its results go.

Maps run over the shape of their result, reductions over that of their argument, pools over places and windows.
A movement node that has to lie in memory is a copy over its result. Nodes with several *parts* are written part by
part: the pieces of a concat, the fill and the inside of a pad.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.types import Dim, Shape
from tierup.plan.forms import VIEWS, Form, Forms
from tierup.plan.sources import Linear, Source, rearranged
from tierup.plan.strides import Strides
from tierup.reference.bind import LOOKUPS

ARG_REDUCTIONS = frozenset({"core.argmax", "core.argmin"})
POOLS = {"core.pool_sum": "sum", "core.pool_max": "max"}
REDUCTIONS = {"core.reduce_sum": "sum", "core.reduce_prod": "prod", "core.reduce_max": "max", "core.reduce_min": "min"}
BITS = "core.bitcast"  # a copy of what memory holds: registers may hold more
PARTED = frozenset({"core.concat", "core.pad", "core.scatter_elements", "core.scatter_nd"})


class Space(Struct, frozen=True):
    """One element of each argument and at most one of the result for each point.

    `result` is where the element goes in `target`, with strides of 0 along the axes that are reduced. `nodes` are the
    movement nodes in the arguments; `checks` are dims without an answer where the sizes of a call do not fit.
    """

    extents: Shape
    arguments: tuple[Source, ...]
    target: ValueId
    result: Linear
    reduced: tuple[int, ...] = ()
    nodes: frozenset[int] = frozenset()
    checks: tuple[Dim, ...] = ()


def is_reduction(node: Node) -> bool:
    """Whether a node has one result for many elements."""
    return node.op in REDUCTIONS or node.op in ARG_REDUCTIONS or node.op in POOLS


def is_movement(node: Node) -> bool:
    """Whether a node can be looked through: each element of its result is one of its arguments', or a position."""
    if node.op == "core.pad":
        return str(node.attrs["mode"]) != "constant"
    return node.op in VIEWS or node.op in LOOKUPS or node.op == "core.iota"


def parts(node: Node) -> int:
    """In how many parts a node's result is written by copies."""
    if node.op == "core.concat":
        return len(node.inputs)
    return 2 if node.op == "core.pad" and node.attrs["mode"] == "constant" else 1


class Spaces:
    """The spaces of one graph's nodes."""

    def __init__(self, graph: Graph, forms: Forms, strides: Strides) -> None:
        self._graph, self._forms, self._strides = graph, forms, strides
        self._dims = strides.dims

    def of(self, index: int, part: int = 0) -> Space | None:
        """The space of a node, or of one part of it; None where its sizes are not known to fit."""
        node = self._graph.nodes[index]
        if is_movement(node):
            form = self._forms.moved(index)
            return None if form is None else self._whole(node, [form])
        if node.op == BITS:
            return self._whole(node, [self._forms.itself(_given(node.inputs[0]))])
        if node.op == "core.concat":
            return self._piece(node, part)
        if node.op == "core.pad":
            return self._pad(node, part)
        if node.op in PARTED:
            return self._whole(node, [self._forms.of(_given(node.inputs[0]))])
        if node.op in POOLS:
            return self._pool(node)
        if is_reduction(node):
            return self._reduction(node)
        return self._map(node)

    def scattered(self, node: Node) -> tuple[Dim, ...] | None:
        """What checks that the shapes of a scatter's data, indices and updates fit each other."""
        data, indices, updates = (self._shape(value) for value in node.inputs)
        wanted, checks = indices, list[Dim]()
        if node.op == "core.scatter_nd":
            depth = indices[-1] if indices else None
            if not isinstance(depth, int) or depth > len(data):
                return None
            wanted = (*indices[:-1], *data[depth:])
        else:
            for axis in set(range(len(data))) - {node.attrs["axis"]}:
                checks += self._forms.at_most(indices[axis], data[axis])
        if len(updates) != len(wanted):
            return None
        for have, want in zip(updates, wanted, strict=True):
            checks += self._forms.equal(have, want)
        return tuple(checks)

    def _shape(self, value: ValueId | None) -> Shape:
        return self._forms.shape(value)

    def _whole(self, node: Node, forms: Sequence[Form | None]) -> Space | None:
        """Every element of the result in turn."""
        target = _given(node.outputs[0])
        shape = self._shape(target)
        return self._space(shape, forms, target, Linear(0, self._strides.row_major(shape)))

    def _space(
        self,
        extents: Shape,
        forms: Sequence[Form | None],
        target: ValueId,
        result: Linear,
        reduced: tuple[int, ...] = (),
        checks: tuple[Dim, ...] = (),
    ) -> Space | None:
        given = [form for form in forms if form is not None]
        if len(given) < len(forms):
            return None
        nodes = frozenset(node for form in given for node in form.nodes)
        checks = (*checks, *(check for form in given for check in form.checks))
        sizes = tuple(self._strides.times(extent) for extent in extents)  # in the form in which strides compare
        return Space(sizes, tuple(f.source for f in given), target, result, reduced, nodes, checks)

    def _map(self, node: Node) -> Space | None:
        shape = self._shape(node.outputs[0])
        forms = [self._stretched(_given(value), shape) for value in node.inputs]
        return self._whole(node, forms)

    def _stretched(self, value: ValueId, shape: Shape) -> Form | None:
        return self._forms.stretched(self._forms.of(value), self._shape(value), shape)

    def _reduction(self, node: Node) -> Space | None:
        source, target = _given(node.inputs[0]), _given(node.outputs[0])
        extents = self._shape(source)
        axes = (node.attrs["axis"],) if node.op in ARG_REDUCTIONS else tuple(node.attrs["axes"])
        kept = [axis for axis in range(len(extents)) if axis not in axes]
        places = dict(zip(kept, self._strides.row_major([extents[axis] for axis in kept]), strict=True))
        result = Linear(0, tuple(places.get(axis, 0) for axis in range(len(extents))))
        checks = tuple(self._forms.not_negative(tuple(extents[axis] for axis in axes)))
        return self._space(extents, [self._forms.of(source)], target, result, tuple(sorted(axes)), checks)

    def _piece(self, node: Node, part: int) -> Space | None:
        """One input of a concat, written behind those before it."""
        value, target, axis = _given(node.inputs[part]), _given(node.outputs[0]), node.attrs["axis"]
        shape, own = self._shape(target), self._shape(value)
        strides = self._strides.row_major(shape)
        before = self._dims.sum([self._shape(other)[axis] for other in node.inputs[:part]])
        checks = [c for a in range(len(shape)) if a != axis for c in self._forms.equal(own[a], shape[a])]
        checks += [check for other in node.inputs for check in self._forms.not_negative((self._shape(other)[axis],))]
        result = Linear(self._strides.times(before, strides[axis]), strides)
        return self._space(own, [self._forms.of(value)], target, result, (), tuple(checks))

    def _pad(self, node: Node, part: int) -> Space | None:
        """Everything filled, then the inside."""
        x, fill, target = _given(node.inputs[0]), _given(node.inputs[2]), _given(node.outputs[0])
        shape = self._shape(target)
        strides = self._strides.row_major(shape)
        if part == 0:
            return self._whole(node, [self._stretched(fill, shape)])
        pads = self._forms.integers(node.inputs[1])
        if pads is None:
            return None
        offset = self._dims.sum([self._strides.times(p, s) for p, s in zip(pads, strides, strict=False)])
        shape = self._shape(x)
        checks = tuple(self._forms.not_negative(shape))
        return self._space(shape, [self._forms.of(x)], target, Linear(offset, strides), (), checks)

    def _pool(self, node: Node) -> Space | None:
        """Places and windows; the last axis of places stands last, since windows are short."""
        source, target = _given(node.inputs[0]), _given(node.outputs[0])
        out, kernel = self._shape(target), tuple(node.attrs["kernel_shape"])
        strides = self._strides.row_major(out)
        n = len(kernel)
        extents = (*out[:-1], *kernel, out[-1])

        def windows(at: Linear) -> Linear:
            step = [self._strides.times(s, by) for s, by in zip(at.strides[2:], node.attrs["strides"], strict=True)]
            within = [self._strides.times(s, by) for s, by in zip(at.strides[2:], node.attrs["dilations"], strict=True)]
            return Linear(at.offset, (*at.strides[:2], *step[:-1], *within, step[-1]))

        form = self._forms.of(source)
        moved = rearranged(form.source, windows)
        if moved is None or any(pad != 0 for pad in self._forms.integers(node.inputs[1]) or (1,)):
            return None
        result = Linear(0, (*strides[:-1], *((0,) * n), strides[-1]))
        reduced = tuple(range(len(out) - 1, len(out) - 1 + n))
        return self._space(extents, [Form(moved, form.nodes, form.checks)], target, result, reduced)


def _given(value: ValueId | None) -> ValueId:
    assert value is not None
    return value
