"""Control ops: what bodies give, with captures, no steps at all, changing shapes, and types that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.oracle import cases

from tierup.errors import InputError
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.infer import InferError
from tierup.ir.types import DType, SequenceType, TensorType
from tierup.reference.evaluate import evaluate

F32 = DType.F32
Inputs = list[tuple[DType, list[Any]]]


def body(weights: Weights, inputs: Inputs, make: Callable[..., list[int]]) -> Graph:
    builder = GraphBuilder(weights)
    return builder.finish(make(builder, *(builder.open_input(dtype, shape) for dtype, shape in inputs)))


def run(
    op: str, version: int, graphs: dict[str, Graph], weights: Weights, inputs: list[Any], outputs: int, **attrs: Any
) -> Any:
    """The node's results, and its graph with static sizes."""
    node = {"version": version, "outputs": outputs, "graphs": tuple(graphs.items()), "store": weights, **attrs}
    return cases.run(op, *inputs, **node), cases.build("static", op, *inputs, **node).graph


def test_if() -> None:
    weights = Weights()
    then = body(weights, [(F32, [3]), (F32, [1])], lambda b, x, y: [b.op("onnx.Add", x, y, version=14), y])
    other = body(weights, [(F32, [3]), (F32, [1])], lambda b, x, y: [x, x])
    inputs = [np.array(True), np.float32([1, 2, 3]), np.float32([10])]
    graphs = {"then_branch": then, "else_branch": other}
    (added, _), graph = run("onnx.If", 21, graphs, weights, inputs, 2, captures=2)
    assert added.tolist() == [11, 12, 13]
    assert graph.type(graph.outputs[0]).shape == (3,)  # alike on both sides
    assert not isinstance(graph.type(graph.outputs[1]).shape[0], int)  # 1 or 3
    (_, second), _ = run("onnx.If", 21, graphs, weights, [np.array([False]), *inputs[1:]], 2, captures=2)
    assert second.tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="single condition"):
        cases.run("If", np.zeros(0, bool), *inputs[1:], styles=("opaque",), outputs=2, store=weights,
                  graphs=tuple(graphs.items()), captures=2)  # fmt: skip


def test_branches_must_agree() -> None:
    weights = Weights()
    floats = body(weights, [(F32, [3])], lambda b, x: [x])
    numbers = body(weights, [(F32, [3])], lambda b, x: [b.op("onnx.Cast", x, version=13, to=DType.I64.code)])
    matrix = body(weights, [(F32, [3])], lambda b, x: [b.op("onnx.Unsqueeze", x, b.weight(np.array([0])), version=13)])
    none = body(weights, [(F32, [3])], lambda b, x: [])
    inputs = [np.array(True), np.zeros(3, np.float32)]
    for other in (numbers, none):
        with pytest.raises(InferError):
            run("onnx.If", 21, {"then_branch": floats, "else_branch": other}, weights, inputs, 1, captures=1)
    _, graph = run("onnx.If", 21, {"then_branch": floats, "else_branch": matrix}, weights, inputs, 1, captures=1)
    assert graph.type(graph.outputs[0]).shape is None


def _growing(weights: Weights, limit: float) -> Graph:
    """carried -> carried with its double behind it; goes on while its size is below a limit; collects the step."""

    def make(b: GraphBuilder, step: int, going: int, carried: int, factor: int) -> list[int]:
        doubled = b.op("onnx.Mul", carried, factor, version=14)
        longer = b.op("onnx.Concat", carried, doubled, version=13, axis=0)
        count = b.op("onnx.Cast", b.op("onnx.Size", longer, version=13), version=13, to=F32.code)
        less = b.op("onnx.Less", count, b.weight(np.float32(limit)), version=13)
        return [less, longer, step]

    return body(weights, [(DType.I64, []), (DType.BOOL, []), (F32, [None]), (F32, [])], make)


@pytest.mark.parametrize(("trips", "condition", "expected"), [
    (2, True, [1, 2, 2, 4]), (None, None, [1, 2, 2, 4, 2, 4, 4, 8]), (9, False, [1]), (0, None, [1]), (-3, True, [1]),
])  # fmt: skip
def test_loop(trips: int | None, condition: bool | None, expected: list[float]) -> None:
    weights = Weights()
    inputs = [
        None if trips is None else np.array(trips),
        None if condition is None else np.array(condition),
        np.float32([1]),
        np.array(2, np.float32),
    ]
    graphs = {"body": _growing(weights, 8)}
    (carried, steps), graph = run("onnx.Loop", 21, graphs, weights, inputs, 2, captures=1)
    assert carried.tolist() == expected
    assert steps.tolist() == list(range(len(expected).bit_length() - 1))
    assert not isinstance(graph.type(graph.outputs[0]).shape[0], int)  # 1 at first, longer later


def test_loop_refusals() -> None:
    weights = Weights()
    graph = body(weights, [(DType.I64, []), (DType.BOOL, []), (F32, [2])],
                 lambda b, i, c, x: [c, b.op("onnx.Cast", x, version=13, to=DType.I64.code)])  # fmt: skip
    inputs = [np.array(1), np.array(True), np.zeros(2, np.float32)]
    with pytest.raises(InferError, match="f32 on one side"):
        run("onnx.Loop", 21, {"body": graph}, weights, inputs, 1, captures=0)
    with pytest.raises(InferError, match="inputs"):
        run("onnx.Loop", 21, {"body": graph}, weights, inputs[:2], 1, captures=0)
    with pytest.raises(InferError, match="missing"):
        run("onnx.Loop", 21, {}, weights, inputs, 1, captures=0)


def _summing(weights: Weights) -> Graph:
    """state, slice, capture -> state + slice * capture, twice."""

    def make(b: GraphBuilder, state: int, x: int, factor: int) -> list[int]:
        total = b.op("onnx.Add", state, b.op("onnx.Mul", x, factor, version=14), version=14)
        return [total, total]

    return body(weights, [(F32, [2]), (F32, [2]), (F32, [])], make)


@pytest.mark.parametrize(("in_axis", "backwards", "out_axis", "prepend"), [(0, 0, 0, 0), (1, 1, 1, 0), (-1, 0, -1, 1)])
def test_scan(in_axis: int, backwards: int, out_axis: int, prepend: int) -> None:
    weights, x = Weights(), np.arange(8, dtype=np.float32).reshape(4, 2)
    attrs = {
        "num_scan_inputs": 1, "scan_input_axes": (in_axis,), "scan_input_directions": (backwards,),
        "scan_output_axes": (out_axis,), "scan_output_directions": (prepend,), "captures": 1,
    }  # fmt: skip
    inputs = [np.zeros(2, np.float32), np.moveaxis(x, 0, in_axis).copy(), np.array(2, np.float32)]
    (state, scanned), graph = run("onnx.Scan", 21, {"body": _summing(weights)}, weights, inputs, 2, **attrs)
    sums = np.cumsum((x[::-1] if backwards else x) * 2, axis=0)
    np.testing.assert_array_equal(state, sums[-1])
    np.testing.assert_array_equal(scanned, np.moveaxis(sums[::-1] if prepend else sums, 0, out_axis))
    assert graph.type(graph.outputs[1]).shape == ((4, 2) if out_axis == 0 else (2, 4))


def test_scan_without_steps() -> None:
    weights = Weights()
    inputs = [np.ones(2, np.float32), np.zeros((0, 2), np.float32), np.array(2, np.float32)]
    (state, scanned), _ = run(
        "onnx.Scan", 21, {"body": _summing(weights)}, weights, inputs, 2, num_scan_inputs=1, captures=1
    )
    assert state.tolist() == [1, 1]
    assert scanned.shape == (0, 2)


def test_scan_of_opset_8() -> None:
    weights, x = Weights(), np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    inputs = [np.array([3, 1]), np.zeros((2, 2), np.float32), x, np.array(1, np.float32)]
    attrs = {"num_scan_inputs": 1, "directions": (1,), "captures": 1}
    (state, scanned), _ = run("onnx.Scan", 8, {"body": _summing(weights)}, weights, inputs, 2, **attrs)
    np.testing.assert_array_equal(state, [x[0].sum(axis=0), x[1, 0]])
    np.testing.assert_array_equal(scanned[0], np.cumsum(x[0, ::-1], axis=0))
    np.testing.assert_array_equal(scanned[1], [x[1, 0], [0, 0], [0, 0]])
    whole = [None, *inputs[1:]]
    (state, _), _ = run("onnx.Scan", 8, {"body": _summing(weights)}, weights, whole, 2, **attrs)
    np.testing.assert_array_equal(state, x.sum(axis=1))


def test_sequence_map() -> None:
    weights = Weights()
    add = body(weights, [(F32, [None])] * 3, lambda b, x, y, z: [b.op("onnx.Sum", x, y, z, version=13)])
    builder = GraphBuilder(weights)
    items = SequenceType(TensorType(F32, None))
    ids = [builder.input(items), builder.input(items), builder.open_input(F32, [None])]
    (result,) = builder.node("onnx.SequenceMap", ids, Attrs({"captures": 1}), version=17, graphs=(("body", add),))
    assert result is not None
    assert builder.type(result) == items
    graph = builder.finish([result])
    first, second = [np.float32([1]), np.float32([2, 3])], [np.float32([10]), np.float32([20, 30])]
    (sums,) = evaluate(graph, weights, [first, second, np.float32([100])])
    assert [item.tolist() for item in sums] == [[111], [122, 133]]
    assert evaluate(graph, weights, [[], [], np.float32([100])]) == [[]]
    with pytest.raises(InputError, match="items"):
        evaluate(graph, weights, [first, second[:1], np.float32([100])])
