"""What bodies know of the graph around them, and what comes out of them again."""

from __future__ import annotations

import numpy as np
from tests.rewrite.graphs import assert_same, const, f32, ints, made

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, ValueId
from tierup.ir.types import DType, TensorType
from tierup.rewrite.assume import Assumptions
from tierup.rewrite.rewrite import close_sizes, prune, settle_ranks, simplify, tighten


def shape(graph: Graph, value: ValueId) -> object:
    type = graph.type(value)
    assert isinstance(type, TensorType)
    return type.shape


def body_of(graph: Graph, name: str = "body") -> Graph:
    (body,) = [body for node in graph.nodes for part, body in node.graphs if part == name]
    return body


def branch(b: GraphBuilder, condition: ValueId, *captured: ValueId, same: bool = True) -> ValueId:
    """One captured value, or the last one: negated."""
    bodies = []
    for name in ("then_branch", "else_branch"):
        inner = GraphBuilder(b.weights, name, lenient=True)
        inputs = [inner.open_input(DType.F32, None) for _ in captured]
        result = inner.op("onnx.Neg", inputs[0 if same or name == "then_branch" else -1], version=13)
        bodies.append((name, inner.finish([result])))
    (result,) = b.node(
        "onnx.If", [condition, *captured], Attrs({"captures": len(captured)}), version=16, graphs=tuple(bodies)
    )
    assert result is not None
    return result


def loop(b: GraphBuilder, trips: ValueId, first: ValueId, grows: bool) -> ValueId:
    """s = s + x or s = s ++ x, whose body does not know how many columns there are."""
    inner = GraphBuilder(b.weights)
    inner.open_input(DType.I64, ())
    going, state = inner.open_input(DType.BOOL, ()), inner.open_input(DType.F32, (None, None))
    captured = inner.open_input(DType.F32, (None, None))
    after = (
        inner.op("onnx.Concat", state, captured, version=13, axis=0)
        if grows
        else inner.op("onnx.Add", state, captured, version=14)
    )
    bodies = (("body", inner.finish([going, after])),)
    (result,) = b.node("onnx.Loop", [trips, None, first, first], Attrs({"captures": 1}), graphs=bodies, version=21)
    assert result is not None
    return result


def test_a_branch_knows_the_sizes_of_what_it_captures() -> None:
    graph, weights = made(lambda b: branch(b, b.open_input(DType.BOOL, ()), f32(b, "n", 3)))
    after = prune(graph, weights)
    assert_same(graph, after, weights)
    inside = body_of(after, "then_branch")
    assert shape(inside, inside.outputs[0]) == shape(inside, inside.inputs[0])
    assert shape(after, after.outputs[0]) == shape(after, after.inputs[1])


def test_sizes_that_are_one_outside_are_one_inside() -> None:
    graph, weights = made(lambda b: branch(b, b.open_input(DType.BOOL, ()), f32(b, "n", 3), f32(b, "n", 3)))
    inside = body_of(prune(graph, weights), "then_branch")
    assert shape(inside, inside.inputs[0]) == shape(inside, inside.inputs[1])


def test_sizes_that_differ_outside_are_two() -> None:
    graph, weights = made(lambda b: branch(b, b.open_input(DType.BOOL, ()), f32(b, "n"), f32(b, "m"), same=False))
    after = prune(graph, weights)
    inside = body_of(after, "then_branch")
    assert shape(inside, inside.inputs[0]) != shape(inside, inside.inputs[1])
    assert shape(after, after.outputs[0]) not in (shape(after, after.inputs[1]), shape(after, after.inputs[2]))


def test_closed_sizes_reach_bodies() -> None:
    graph, weights = made(lambda b: branch(b, b.open_input(DType.BOOL, ()), f32(b, "n", 3)))
    inside = body_of(close_sizes(graph, weights, [(), (7, 3)]), "else_branch")
    assert shape(inside, inside.outputs[0]) == (7, 3)


def test_carried_sizes_that_stay_become_known() -> None:
    graph, weights = made(lambda b: loop(b, b.open_input(DType.I64, ()), f32(b, "n", 3), grows=False))
    after = tighten(graph, weights)
    assert_same(graph, after, weights, [np.array(2), np.ones((4, 3), np.float32)])
    inside = body_of(after)
    assert shape(inside, inside.inputs[2]) == shape(inside, inside.inputs[3])
    assert shape(after, after.outputs[0]) == shape(after, after.inputs[1])


def test_carried_sizes_that_change_stay_open() -> None:
    graph, weights = made(lambda b: loop(b, b.open_input(DType.I64, ()), f32(b, "n", 3), grows=True))
    after = tighten(graph, weights)
    assert_same(graph, after, weights, [np.array(2), np.ones((4, 3), np.float32)])
    inside = body_of(after)
    rows, columns = shape(inside, inside.inputs[2])  # type: ignore[misc]  # a matrix
    assert columns == 3
    assert rows != shape(inside, inside.inputs[3])[0]  # type: ignore[index]
    assert shape(after, after.outputs[0]) != shape(after, after.inputs[1])


def test_what_a_loop_gives_that_surely_runs_is_what_its_body_gives() -> None:
    """The first value is a number; from the first round on there is a matrix."""

    def build(b: GraphBuilder, trips: ValueId) -> ValueId:
        inner = GraphBuilder(b.weights)
        inner.open_input(DType.I64, ())
        going, _ = inner.open_input(DType.BOOL, ()), inner.open_input(DType.F32, None)
        matrix = inner.open_input(DType.F32, (None, 3))
        graph = inner.finish([going, inner.op("onnx.Neg", matrix, version=13)])
        inputs = [trips, None, const(b, 0.0), f32(b, 2, 3)]
        (result,) = b.node("onnx.Loop", inputs, Attrs({"captures": 1}), graphs=(("body", graph),), version=21)
        assert result is not None
        return result

    graph, weights = made(lambda b: build(b, const(b, 4, np.int64)))
    assert shape(graph, graph.outputs[0]) is not None
    assert_same(graph, simplify(graph, weights), weights)
    open_graph, _ = made(lambda b: build(b, b.open_input(DType.I64, ())))
    assert shape(open_graph, open_graph.outputs[0]) is None


def test_a_scan_is_taken_to_run_where_that_tells_sizes() -> None:
    """Of no steps the baseline knows nothing of the items, so the plan compares the length with 0."""

    def build(b: GraphBuilder) -> ValueId:
        inner = GraphBuilder(b.weights)
        part = inner.open_input(DType.F32, (None,))
        bodies = (("body", inner.finish([inner.op("onnx.Neg", part, version=13)])),)
        attrs = Attrs({"captures": 0, "num_scan_inputs": 1})
        (result,) = b.node("onnx.Scan", [f32(b, "n", 3)], attrs, graphs=bodies, version=16)
        assert result is not None
        return result

    graph, weights = made(build)
    careful = prune(graph, weights)
    assert shape(careful, careful.outputs[0])[1] != 3  # type: ignore[index]
    assume = Assumptions(graph)
    hopeful = tighten(graph, weights, assume)
    assert shape(hopeful, hopeful.outputs[0])[1] == 3  # type: ignore[index]
    ((condition, holds),) = assume.pairs
    assert (repr(hopeful.dims[condition.id]), holds) == ("lt 0 d0", 1)  # type: ignore[union-attr]


def squeezed(b: GraphBuilder) -> tuple[ValueId, ValueId]:
    """A vector or a matrix, by a condition; and something that has nothing to do with it."""
    condition, x = b.open_input(DType.BOOL, ()), f32(b, 1, "n")
    bodies = []
    for name in ("then_branch", "else_branch"):
        inner = GraphBuilder(b.weights, name, lenient=True)
        captured = inner.open_input(DType.F32, (1, None))
        axes = ints(inner, 0)
        result = inner.op("onnx.Squeeze", captured, axes, version=13) if name == "then_branch" else captured
        bodies.append((name, inner.finish([result])))
    (result,) = b.node("onnx.If", [condition, x], Attrs({"captures": 1}), version=16, graphs=tuple(bodies))
    assert result is not None
    return result, b.op("onnx.Abs", x, version=13)


def feeds(condition: bool) -> list[object]:
    return [np.array(condition), np.array([[1.5, -2.0, 0.0]], np.float32)]


def test_what_follows_an_if_goes_where_ranks_are_known() -> None:
    def build(b: GraphBuilder) -> list[ValueId]:
        either, apart = squeezed(b)
        negative = b.op("onnx.Neg", either, version=13)
        return [b.op("onnx.Add", negative, const(b, [1.0, 2.0, 3.0]), version=14), apart, either]

    graph, weights = made(build)
    after = settle_ranks(graph, weights)
    for condition in (True, False):
        assert_same(graph, after, weights, feeds(condition))
    assert [node.op for node in after.nodes] == ["onnx.Abs", "onnx.If"]
    ranks = {name: [len(shape(body, value)) for value in body.outputs] for name, body in after.nodes[-1].graphs}  # type: ignore[arg-type]
    assert ranks == {"then_branch": [1, 1], "else_branch": [2, 2]}


def test_where_ranks_are_known_nothing_is_written_twice() -> None:
    def build(b: GraphBuilder) -> ValueId:
        either = branch(b, b.open_input(DType.BOOL, ()), f32(b, 2, 3))
        return b.op("onnx.Abs", either, version=13)

    graph, weights = made(build)
    graph = prune(graph, weights)
    assert settle_ranks(graph, weights) is graph


def test_much_is_not_written_twice() -> None:
    def build(b: GraphBuilder) -> ValueId:
        value, _ = squeezed(b)
        for _ in range(300):
            value = b.op("onnx.Neg", value, version=13)
        return value

    graph, weights = made(build)
    assert settle_ranks(graph, weights) is graph


def test_a_second_if_behind_the_first_is_found_too() -> None:
    """Two conditions, four tails."""

    def build(b: GraphBuilder) -> ValueId:
        first, _ = squeezed(b)
        second, _ = squeezed(b)
        total = b.op("onnx.Add", b.op("onnx.ReduceSum", first, version=13, keepdims=0), second, version=14)
        return b.op("onnx.Neg", total, version=13)

    graph, weights = made(build)
    after = settle_ranks(graph, weights)
    for first in (True, False):
        for second in (True, False):
            assert_same(graph, after, weights, [*feeds(first), *feeds(second)])
    inner = [body for _, body in after.nodes[-1].graphs]
    assert all(
        shape(part, value) is not None for body in inner for _, part in body.nodes[-1].graphs for value in part.outputs
    )
