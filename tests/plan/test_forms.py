"""Chains of movement as addresses: what a form reads is what the chain gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import f32, ints, made

from tierup.ir.build import GraphBuilder
from tierup.ir.dims import DimBuilder, DimError, evaluate
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Array, DType, Sym
from tierup.plan.contents import contents, is_exact
from tierup.plan.forms import Forms
from tierup.plan.sources import Count, Known, Linear, Read, Source
from tierup.plan.spaces import is_movement
from tierup.plan.strides import Strides
from tierup.reference.evaluate import evaluate as run


def traced(graph: Graph, weights: Weights) -> tuple[Forms, DimBuilder]:
    """Forms that look through every movement node."""
    dims = DimBuilder(graph.dims)
    found = contents(graph, weights, dims)
    movement = [index for index, node in enumerate(graph.nodes) if is_movement(node)]
    return Forms(graph, found, Strides(dims), movement), dims


class Elements:
    """Reads sources in NumPy, over all points of a space."""

    def __init__(self, graph: Graph, weights: Weights, dims: DimBuilder, inputs: list[Array]) -> None:
        self._values = {value: weights[digest] for value, digest in graph.weights}
        self._values.update(zip(graph.inputs, inputs, strict=True))

        def read(op: str, value: int, index: int) -> int:
            array = self._values[value]
            return int(array.shape[index] if op == "of" else array.reshape(-1)[index])

        self._sizes = evaluate(dims.ops, read)

    def number(self, dim: object) -> int:
        return self._sizes[dim.id] if isinstance(dim, Sym) else dim  # type: ignore[return-value]

    def linear(self, at: Linear, shape: tuple[int, ...]) -> Array:
        total = np.full(shape, self.number(at.offset), np.int64)
        for axis, stride in enumerate(at.strides):
            steps = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
            total = total + steps * self.number(stride)
        return total

    def of(self, source: Source, shape: tuple[int, ...]) -> Array:
        if isinstance(source, Known):
            return np.full(shape, self.number(source.size))
        assert isinstance(source, Count | Read)
        place = self.linear(source.at, shape)
        if isinstance(source, Count):
            return place
        for term in source.terms:
            index = self.of(term.index, shape)
            assert ((index >= 0) & (index < self.number(term.extent))).all()
            place = place + index * self.number(term.stride)
        return self._values[source.base].reshape(-1)[place]


class Chain:
    """Random movement behind one input."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.builder = data, GraphBuilder(Weights())
        self.size = data.draw(st.integers(1, 4))
        self.value = f32(self.builder, "n", 6, 2)
        self.shape: tuple[int, ...] = (self.size, 6, 2)
        self.dims: tuple[object, ...] = self.builder.type(self.value).shape  # type: ignore[union-attr]

    def pick(self, options: object) -> object:
        return self.data.draw(st.sampled_from(options))  # type: ignore[arg-type]

    def step(self) -> None:
        b, rank = self.builder, len(self.shape)
        kind = self.pick(("transpose", "one", "divide", "join", "slice", "broadcast", "gather"))
        if kind == "transpose":
            order = tuple(self.data.draw(st.permutations(range(rank))))
            self.take(b.op("core.transpose", self.value, perm=order), tuple(self.shape[a] for a in order))
        elif kind == "one":
            self.reshape((*self.shape, 1), (*self.dims, 1))
        elif kind == "divide" and 6 in self.shape:
            at = self.shape.index(6)
            if self.dims[at] == 6:
                self.reshape(
                    (*self.shape[:at], 2, 3, *self.shape[at + 1 :]), (*self.dims[:at], 2, 3, *self.dims[at + 1 :])
                )
        elif kind == "join" and rank > 1:
            at = self.data.draw(st.integers(0, rank - 2))
            if all(isinstance(dim, int) for dim in self.dims[at : at + 2]):
                whole = self.shape[at] * self.shape[at + 1]
                self.reshape(
                    (*self.shape[:at], whole, *self.shape[at + 2 :]), (*self.dims[:at], whole, *self.dims[at + 2 :])
                )
        elif kind == "slice":
            self.slice()
        elif kind == "broadcast" and rank < 6:
            self.take(b.op("core.broadcast", self.value, self.sizes((2, *self.dims))), (2, *self.shape))
        elif kind == "gather":
            axis = self.data.draw(st.integers(0, rank - 1))
            index = np.array([self.data.draw(st.integers(0, self.shape[axis] - 1)) for _ in range(3)])
            picked = b.op("core.gather", self.value, b.weight(index), axis=axis)
            self.take(picked, (*self.shape[:axis], 3, *self.shape[axis + 1 :]))

    def slice(self) -> None:
        axes = [axis for axis, dim in enumerate(self.dims) if isinstance(dim, int)]
        axis = self.pick(axes) if axes else None
        if not isinstance(axis, int) or self.shape[axis] < 2:
            return
        step, size = self.pick((1, 2, -1)), self.shape[axis]
        start, end = (1, size) if isinstance(step, int) and step > 0 else (size - 1, 0)
        count = len(range(start, end, step))  # type: ignore[arg-type]
        cut = self.builder.op(
            "core.slice", self.value, ints(self.builder, start), ints(self.builder, end), axes=(axis,), steps=(step,)
        )
        self.take(cut, (*self.shape[:axis], count, *self.shape[axis + 1 :]))

    def sizes(self, dims: tuple[object, ...]) -> int:
        b = self.builder
        first = b.op("core.slice", b.op("core.shape", 0), ints(b, 0), ints(b, 1), axes=(0,), steps=(1,))
        parts = [ints(b, dim) if isinstance(dim, int) else first for dim in dims]
        return b.op("core.concat", *parts, axis=0)

    def reshape(self, shape: tuple[int, ...], dims: tuple[object, ...]) -> None:
        self.take(self.builder.op("core.reshape", self.value, self.sizes(dims)), shape)

    def take(self, value: int, shape: tuple[int, ...]) -> None:
        self.value, self.shape = value, shape
        self.dims = self.builder.type(value).shape  # type: ignore[union-attr]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_a_form_reads_is_what_the_chain_gives(data: st.DataObject) -> None:
    chain = Chain(data)
    for _ in range(data.draw(st.integers(1, 7))):
        chain.step()
    graph, weights = chain.builder.finish([chain.value]), chain.builder.weights
    x = np.arange(chain.size * 12, dtype=np.float32).reshape(chain.size, 6, 2)
    forms, dims = traced(graph, weights)
    form = forms.of(chain.value)
    source = form.source
    if isinstance(source, Read) and source.base != 0:
        return  # a reshape that is not only a view, or a gather behind one
    elements = Elements(graph, weights, dims, [x])
    assert all(elements.number(check) == 1 for check in form.checks)
    np.testing.assert_array_equal(elements.of(source, chain.shape), run(graph, weights, [x])[0])


def form_of(build: object) -> tuple[Source, Forms]:
    graph, weights = made(build)  # type: ignore[arg-type]
    forms, _ = traced(graph, weights)
    return forms.of(graph.outputs[0]).source, forms


def test_a_transpose_between_two_reshapes() -> None:
    """[2, 6, 4] -> [2, 6, 2, 2] -> [2, 2, 6, 2]: heads of attention."""

    def build(b: GraphBuilder) -> int:
        apart = b.op("core.reshape", f32(b, 2, 6, 4), ints(b, 2, 6, 2, 2))
        return b.op("core.transpose", apart, perm=(0, 2, 1, 3))

    source, _ = form_of(build)
    assert source == Read(0, Linear(0, (24, 2, 4, 1)))


def test_axes_that_do_not_lie_together_are_not_joined() -> None:
    def build(b: GraphBuilder) -> int:
        turned = b.op("core.transpose", f32(b, 3, 4), perm=(1, 0))
        return b.op("core.reshape", turned, ints(b, 12))

    source, _ = form_of(build)
    assert isinstance(source, Read)
    assert source.base == 1  # the transposed value has to lie in memory


def test_a_slice_backwards() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.slice", f32(b, 5, 3), ints(b, 4), ints(b, -1), axes=(0,), steps=(-2,))

    assert form_of(build)[0] == Read(0, Linear(12, (-6, 1)))


def test_a_constant_index_is_an_offset() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.gather", f32(b, 5, 3), b.weight(np.array(2)), axis=0)

    assert form_of(build)[0] == Read(0, Linear(6, (1,)))


def test_a_constant_index_outside_is_left_to_the_call() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.gather", f32(b, 5, 3), b.weight(np.array(7)), axis=0)

    graph, weights = made(build)
    assert traced(graph, weights)[0].moved(0) is None


def test_a_position_is_no_memory() -> None:
    def build(b: GraphBuilder) -> int:
        counted = b.op("core.iota", b.op("core.shape", f32(b, "n", 3)), axis=1, dtype=DType.I64.code)
        return b.op("core.slice", counted, ints(b, 1), ints(b, 3), axes=(1,), steps=(1,))

    assert form_of(build)[0] == Count(Linear(1, (0, 1)), DType.I64)


def test_sizes_are_numbers_without_memory() -> None:
    def build(b: GraphBuilder) -> int:
        whole = b.op("core.shape", f32(b, "n", 3))
        return b.op("core.gather", whole, b.weight(np.array(0)), axis=0)

    source, _ = form_of(build)
    assert isinstance(source, Known)
    assert isinstance(source.size, Sym)


@pytest.mark.parametrize(("sizes", "fits"), [((1, 5), True), ((5, 5), True), ((3, 5), False)])
def test_sizes_that_may_broadcast_are_checked_in_the_call(sizes: tuple[int, int], fits: bool) -> None:
    def build(b: GraphBuilder) -> list[int]:
        x, shape = f32(b, "n"), b.open_input(DType.I64, (1,))
        return [b.op("core.broadcast", x, shape)]

    graph, weights = made(build)
    forms, dims = traced(graph, weights)
    form = forms.of(graph.outputs[0])
    assert form.checks
    inputs = [np.arange(sizes[0], dtype=np.float32), np.array([sizes[1]])]
    if not fits:
        with pytest.raises(DimError):
            Elements(graph, weights, dims, inputs)
        return
    elements = Elements(graph, weights, dims, inputs)
    np.testing.assert_array_equal(elements.of(form.source, (sizes[1],)), run(graph, weights, inputs)[0])


def test_chains_longer_than_the_stack() -> None:
    def build(b: GraphBuilder) -> int:
        value = f32(b, 3, 4)
        for _ in range(700):
            turned = b.op("core.transpose", value, perm=(1, 0))
            value = b.op("core.slice", turned, ints(b, 0), ints(b, 3), axes=(1,), steps=(1,))
            value = b.op("core.transpose", value, perm=(1, 0))
        return value

    assert form_of(build)[0] == Read(0, Linear(0, (4, 1)))


def test_products_in_any_order_are_one() -> None:
    dims = DimBuilder()
    a, b = dims.of(0, 0), dims.of(0, 1)
    strides = Strides(dims)
    assert strides.times(4, a, b) == strides.times(b, 2, a, 2) == strides.times(dims.mul(dims.mul(b, 4), a))
    assert strides.times(a, 0, b) == 0
    assert not strides.same(strides.times(a, b), strides.times(a, a))


def test_groups_of_axes() -> None:
    dims = DimBuilder()
    a, b = dims.of(0, 0), dims.of(0, 1)
    strides = Strides(dims)
    assert strides.groups((a, 12, b), (a, 3, 4, b)) == [
        (range(1), range(1)),
        (range(1, 2), range(1, 3)),
        (range(2, 3), range(3, 4)),
    ]
    assert strides.groups((a, b, 4), (strides.times(a, b), 4)) == [(range(2), range(1)), (range(2, 3), range(1, 2))]
    assert strides.groups((6, 4), (4, 6)) == [(range(2), range(2))]
    assert strides.groups((a, 4), (b, 4)) is None
    assert strides.groups((6,), (2, 2)) is None


def test_contents_are_found_again() -> None:
    """n - 1 and n / 2 of a shape, and which of them divide by what may be 0."""

    def build(b: GraphBuilder) -> list[int]:
        x = f32(b, "n", 3)
        sizes = b.op("core.shape", x)
        less = b.op("core.sub", sizes, ints(b, 1, 1))
        return [less, b.op("core.div", sizes, ints(b, 2, 2)), b.op("core.div", ints(b, 8, 8), sizes)]

    graph, weights = made(build)
    dims = DimBuilder(graph.dims)
    found = contents(graph, weights, dims)
    less, half, other = (found[value] for value in graph.outputs)
    assert less[1] == 2
    assert half[1] == 1
    assert all(is_exact(dim, dims) for dim in (*less, *half))
    assert not is_exact(other[0], dims)
