"""Chains of movement as address arithmetic: a value -> the source that its elements come from (`sources.py`).

A movement node rearranges the strides of what it reads, so a chain of them is one source, and needs no kernel.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.graph import Graph, Node, ValueId
from tierup.ir.ops.sizes import never_negative
from tierup.ir.types import Dim, DType, Shape, Sym, TensorType
from tierup.plan.contents import Contents, is_exact
from tierup.plan.moves import reshaped, sliced, transposed
from tierup.plan.sources import Bent, Change, Count, Known, Linear, Read, Source, Term, linears, rearranged
from tierup.plan.strides import Strides
from tierup.reference.bind import LOOKUPS

VIEWS = frozenset({"core.transpose", "core.broadcast", "core.slice", "core.reshape"})


class Form(Struct, frozen=True):
    """A source over a value's own axes, the movement nodes in it, and dims that have no answer where it is wrong."""

    source: Source
    nodes: frozenset[int] = frozenset()
    checks: tuple[Dim, ...] = ()


class Forms:
    """The forms of one graph's values.

    `through` are the movement nodes that may be looked through; what others compute lies in memory.
    """

    def __init__(self, graph: Graph, contents: Contents, strides: Strides, through: Collection[int]) -> None:
        self._graph, self._contents, self._strides, self._through = graph, contents, strides, frozenset(through)
        self._dims = strides.dims
        self._producer, self._constants = graph.producers, graph.digests
        self._known: dict[ValueId, Form] = {}

    def of(self, value: ValueId) -> Form:
        """Where a value's elements come from: from itself where no chain leads further."""
        pending = [value]
        while value not in self._known:  # chains may be longer than Python's stack
            current = pending[-1]
            ahead = [given for given in self._behind(current) if given not in self._known]
            if ahead:
                pending += ahead
            else:
                self._known[current] = self._number(current) or self._chain(current) or self.itself(current)
                pending.pop()
        return self._known[value]

    def _behind(self, value: ValueId) -> list[ValueId]:
        """The values whose forms a value's form is made of."""
        index = self._producer.get(value)
        if index is None or index not in self._through or self._number(value) is not None:
            return []
        node = self._graph.nodes[index]
        count = 0 if node.op == "core.iota" else 2 if node.op in LOOKUPS else 1
        return [given for given in node.inputs[:count] if given is not None]

    def itself(self, value: ValueId) -> Form:
        """A value as it lies in memory."""
        return Form(Read(value, Linear(0, self._strides.row_major(self.shape(value)))))

    def shape(self, value: ValueId | None) -> Shape:
        assert value is not None
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        assert type.shape is not None
        return type.shape

    def integers(self, value: ValueId | None) -> tuple[Dim, ...] | None:
        """The elements of a vector of sizes; those that are computed are read in the call."""
        assert value is not None
        known = self._contents.get(value)
        if known is not None or value in self._constants:
            return known
        (count,) = self.shape(value)
        assert isinstance(count, int)
        return tuple(self._dims.elem(value, i) for i in range(count))

    def _number(self, value: ValueId) -> Form | None:
        content, type = self._contents.get(value), self._graph.type(value)
        if content is None or len(content) != 1 or not isinstance(type, TensorType):
            return None
        if type.dtype not in (DType.I64, DType.I32, DType.BOOL) or not is_exact(content[0], self._dims):
            return None
        return Form(Known(content[0], type.dtype))

    def _chain(self, value: ValueId) -> Form | None:
        index = self._producer.get(value)
        return self.moved(index) if index is not None and index in self._through else None

    def moved(self, index: int) -> Form | None:
        """What a movement node reads; None where its sizes are known to fit only in the call."""
        node = self._graph.nodes[index]
        first = node.inputs[0]
        if node.op == "core.iota":
            return self._iota(node, index)
        assert first is not None
        found = self._moved(node, self.of(first)) or self._moved(node, self.itself(first))
        return found and replace(found, nodes=found.nodes | {index})

    def _moved(self, node: Node, form: Form) -> Form | None:
        """What a movement node makes of the form of its first input."""
        if node.op == "core.transpose":
            return self._changed(form, lambda at: transposed(at, node.attrs["perm"]))
        if node.op == "core.broadcast":
            return self.stretched(form, self.shape(node.inputs[0]), self.shape(node.outputs[0]))
        if node.op == "core.slice":
            return self._sliced(node, form)
        if node.op == "core.reshape":
            old, new = self.shape(node.inputs[0]), self.shape(node.outputs[0])
            return self._changed(form, lambda at: reshaped(at, old, new, self._strides))
        if not isinstance(form.source, Read):
            return None
        if node.op == "core.pad":
            return self._padded(node, form)
        picked = {"core.gather": self._gather, "core.gather_elements": self._gather_elements}
        return picked.get(node.op, self._gather_nd)(node, form)

    def _changed(self, form: Form, change: Change) -> Form | None:
        source = rearranged(form.source, change)
        return None if source is None else replace(form, source=source)

    def stretched(self, form: Form, own: Shape, whole: Shape) -> Form | None:
        """A form over the axes of `whole`, to which `own` is broadcast; None where it cannot be."""
        missing = len(whole) - len(own)
        if missing < 0:
            return None
        repeats: list[Dim] = []  # 1 where an axis repeats
        checks = list(form.checks)
        for have, want in zip(own, whole[missing:], strict=True):
            if self._strides.same(have, want) or have == 1:
                repeats.append(int(have == 1 and want != 1))
            elif isinstance(have, int) and isinstance(want, int):
                return None
            else:
                repeats.append(self._dims.emit("eq", have, 1))
                checks += self._fits(have, want)

        def change(at: Linear) -> Linear:
            kept = (self._dims.select(one, 0, stride) for one, stride in zip(repeats, at.strides, strict=True))
            return Linear(at.offset, ((0,) * missing) + tuple(kept))

        changed = self._changed(form, change)
        return changed and replace(changed, checks=tuple(checks))

    def _fits(self, have: Dim, want: Dim) -> tuple[Dim, ...]:
        """What checks that a size is 1 or another size, where that is not what the other one was made of."""
        op = self._dims.ops[want.id] if isinstance(want, Sym) else None
        if op is not None and op.op == "broadcast" and have in op.args:
            return ()
        return (self._holds(self._dims.max(self._dims.emit("eq", have, 1), self._dims.emit("eq", have, want))),)

    def _holds(self, condition: Dim) -> Dim:
        """A dim that has no answer where the condition is 0."""
        return 1 if condition == 1 else self._dims.record("floordiv", 1, condition)

    def equal(self, a: Dim, b: Dim) -> tuple[Dim, ...]:
        """What checks that two sizes are equal."""
        return () if self._strides.same(a, b) else (self._holds(self._dims.emit("eq", a, b)),)

    def at_most(self, a: Dim, b: Dim) -> tuple[Dim, ...]:
        """What checks that one size is at most another, where they do not tell."""
        if self._strides.same(a, b) or (a == 0 and never_negative(self._dims, b)):
            return ()
        op = self._dims.ops[a.id] if isinstance(a, Sym) else None
        if op is not None and op.op == "min" and b in op.args:
            return ()
        return (self._holds(self._dims.sub(1, self._dims.emit("lt", b, a))),)

    def not_negative(self, shape: Shape) -> list[Dim]:
        """What checks the sizes of a value that may lie nowhere: memory that is asked for has its own check."""
        return [check for size in shape for check in self.at_most(0, size)]

    def _sliced(self, node: Node, form: Form) -> Form | None:
        starts, ends = self.integers(node.inputs[1]), self.integers(node.inputs[2])
        if starts is None or ends is None:
            return None
        cuts = dict(zip(node.attrs["axes"], zip(starts, node.attrs["steps"], strict=True), strict=True))
        size, checks = self.shape(node.inputs[0]), list(form.checks)
        for (axis, (start, step)), end in zip(cuts.items(), ends, strict=True):
            first, last = (start, end) if step > 0 else (self._dims.add(end, 1), self._dims.add(start, 1))
            checks += (*self.at_most(0, first), *self.at_most(last, size[axis]))
        changed = self._changed(form, lambda at: sliced(at, cuts, self._strides))
        return changed and replace(changed, checks=tuple(checks))

    def _iota(self, node: Node, index: int) -> Form:
        rank = len(self.shape(node.outputs[0]))
        strides = tuple(int(axis == node.attrs["axis"]) for axis in range(rank))
        type = self._graph.type(node.outputs[0] or 0)
        assert isinstance(type, TensorType)
        return Form(Count(Linear(0, strides), type.dtype), frozenset({index}))

    def _picks(self, form: Form, axes: Collection[int]) -> bool:
        """Whether axes may be indexed by data: no index inside the form varies along them."""
        assert isinstance(form.source, Read)
        inner = [linear for term in form.source.terms for linear in linears(term.index)]
        return all(linear.strides[axis] == 0 for linear in inner for axis in axes)

    def _looked_up(
        self, form: Form, change: Change, picked: list[tuple[int, Source | None]], x: Shape, index: Form | None
    ) -> Form | None:
        """The read of `form` over the axes of a lookup, with an index on each picked axis."""
        assert isinstance(form.source, Read)
        if not self._picks(form, [axis for axis, _ in picked]):
            return None
        source = rearranged(form.source, change)
        if not isinstance(source, Read):
            return None
        terms, at = list(source.terms), source.at
        for axis, place in picked:
            stride, extent = form.source.at.strides[axis], x[axis]
            if place is None:
                return None
            if isinstance(place, Known) and isinstance(place.size, int) and isinstance(extent, int):
                if not 0 <= place.size < extent:
                    return None  # the kernel of the lookup itself says so
                at = replace(at, offset=self._dims.add(at.offset, self._strides.times(place.size, stride)))
            else:
                terms.append(Term(place, stride, extent))
        others = Form(source) if index is None else index
        nodes, checks = form.nodes | others.nodes, (*form.checks, *others.checks)
        return Form(Read(source.base, at, tuple(terms)), nodes, checks)

    def _gather(self, node: Node, form: Form) -> Form | None:
        x, axis, index = self.shape(node.inputs[0]), node.attrs["axis"], self._index(node)
        rank = len(self.shape(node.inputs[1]))

        def change(at: Linear) -> Linear:
            return Linear(at.offset, (*at.strides[:axis], *((0,) * rank), *at.strides[axis + 1 :]))

        def spread(at: Linear) -> Linear:
            return Linear(at.offset, (*((0,) * axis), *at.strides, *((0,) * (len(x) - axis - 1))))

        return self._looked_up(form, change, [(axis, rearranged(index.source, spread))], x, index)

    def _gather_elements(self, node: Node, form: Form) -> Form | None:
        x, axis, index = self.shape(node.inputs[0]), node.attrs["axis"], self._index(node)
        own = self.shape(node.inputs[1])
        checks = [c for a in range(len(x)) if a != axis for c in self.at_most(own[a], x[a])]

        def change(at: Linear) -> Linear:
            return Linear(at.offset, tuple(0 if a == axis else s for a, s in enumerate(at.strides)))

        found = self._looked_up(form, change, [(axis, index.source)], x, index)
        return found and replace(found, checks=(*found.checks, *checks))

    def _gather_nd(self, node: Node, form: Form) -> Form | None:
        x, batch, index = self.shape(node.inputs[0]), node.attrs["batch_dims"], self._index(node)
        own = self.shape(node.inputs[1])
        depth = own[-1]
        assert isinstance(depth, int)
        rest = len(x) - batch - depth
        checks = [c for a in range(batch) for c in self.at_most(own[a], x[a])]

        def change(at: Linear) -> Linear:
            return Linear(
                at.offset, (*at.strides[:batch], *((0,) * (len(own) - 1 - batch)), *at.strides[batch + depth :])
            )

        def nth(number: int) -> Change:
            def spread(at: Linear) -> Linear:
                offset = self._dims.add(at.offset, self._strides.times(number, at.strides[-1]))
                return Linear(offset, (*at.strides[:-1], *((0,) * rest)))

            return spread

        picked = [(batch + i, rearranged(index.source, nth(i))) for i in range(depth)]
        found = self._looked_up(form, change, picked, x, index)
        return found and replace(found, checks=(*found.checks, *checks))

    def _index(self, node: Node) -> Form:
        value = node.inputs[1]
        assert value is not None
        return self.of(value)

    def _padded(self, node: Node, form: Form) -> Form | None:
        """Pads that repeat elements: the axis is indexed by a position that is brought back inside."""
        x, pads = self.shape(node.inputs[0]), self.integers(node.inputs[1])
        if pads is None:
            return None
        axes = [axis for axis in range(len(x)) if pads[axis] != 0 or pads[len(x) + axis] != 0]

        def change(at: Linear) -> Linear:
            return Linear(at.offset, tuple(0 if a in axes else s for a, s in enumerate(at.strides)))

        def place(axis: int) -> Source:
            strides = tuple(int(a == axis) for a in range(len(x)))
            return Bent(node.attrs["mode"], Linear(self._dims.sub(0, pads[axis]), strides), x[axis])

        return self._looked_up(form, change, [(axis, place(axis)) for axis in axes], x, None)
