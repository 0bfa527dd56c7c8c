"""The baseline plan: its text, its order of frees, and that native control flow answers as the evaluator does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.security.models import model, node, value

import tierup
from tierup.frontends.onnx import load_onnx
from tierup.plan.baseline import baseline
from tierup.plan.program import StepCode
from tierup.reference.evaluate import evaluate

I64, BOOL = TensorProto.INT64, TensorProto.BOOL


def scalar(name: str, kind: int) -> onnx.ValueInfoProto:
    return value(name, [], kind)


def counting_loop() -> onnx.ModelProto:
    """s grows by w each round while it stays below the limit; every s is collected."""
    body = helper.make_graph(
        [
            node("Add", ["s", "w"], ["s2"]),
            node("ReduceSum", ["s2"], ["total"], keepdims=0),
            node("Less", ["total", "limit"], ["go2"]),
            node("Identity", ["s2"], ["item"]),
        ],
        "body",
        [scalar("i", I64), scalar("go", BOOL), value("s", [2])],
        [scalar("go2", BOOL), value("s2", [2]), value("item", [2])],
    )
    weights = [numpy_helper.from_array(np.array([1, 2], np.float32), "w")]
    inputs = [value("x", [2]), scalar("m", I64), scalar("limit", TensorProto.FLOAT)]
    outputs = [value("last", [2]), value("all", [None, 2])]
    return model([node("Loop", ["m", "", "x"], ["last", "all"], body=body)], inputs, outputs, weights)


def branches() -> onnx.ModelProto:
    """relu(x) or x + x, both from outside."""
    then = helper.make_graph([node("Relu", ["x"], ["t"])], "then", [], [value("t")])
    other = helper.make_graph([node("Add", ["x", "x"], ["e"])], "else", [], [value("e")])
    nodes = [node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    return model(nodes, [value("x"), scalar("c", BOOL)], [value("y")])


def scanning(backward: bool = False, axis: int = 0) -> onnx.ModelProto:
    """A running sum over one axis, with every state collected."""
    body = helper.make_graph(
        [node("Add", ["s", "v"], ["s2"]), node("Identity", ["s2"], ["item"])],
        "body",
        [value("s", [2]), value("v", [2])],
        [value("s2", [2]), value("item", [2])],
    )
    way = int(backward)
    scan = node(
        "Scan", ["s0", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[axis],
        scan_input_directions=[way], scan_output_axes=[axis], scan_output_directions=[way],
    )  # fmt: skip
    shape = ["n", 2] if axis == 0 else [2, "n"]
    return model([scan], [value("s0", [2]), value("x", shape)], [value("last", [2]), value("all", [None, None])])


def nested() -> onnx.ModelProto:
    """A loop whose body holds an If that uses values from two levels out."""
    then = helper.make_graph([node("Add", ["s", "x"], ["t"])], "then", [], [value("t")])
    other = helper.make_graph([node("Sub", ["s", "w"], ["e"])], "else", [], [value("e")])
    body = helper.make_graph(
        [
            node("Mod", ["i", "two"], ["r"]),
            node("Cast", ["r"], ["odd"], to=BOOL),
            node("If", ["odd"], ["s2"], then_branch=then, else_branch=other),
            node("Identity", ["go"], ["go2"]),
        ],
        "body",
        [scalar("i", I64), scalar("go", BOOL), value("s", [2])],
        [scalar("go2", BOOL), value("s2", [2])],
    )
    weights = [
        numpy_helper.from_array(np.array([0.5, 0.25], np.float32), "w"),
        numpy_helper.from_array(np.array(2, np.int64), "two"),
    ]
    inputs = [value("x", [2]), scalar("m", I64)]
    return model([node("Loop", ["m", "", "x"], ["y"], body=body)], inputs, [value("y", [2])], weights)


X = np.array([3.0, -1.0], np.float32)
ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)
CASES: list[tuple[str, onnx.ModelProto, dict[str, Any]]] = [
    ("loop", counting_loop(), {"x": X, "m": np.array(5), "limit": np.array(1e9, np.float32)}),
    ("loop that stops by itself", counting_loop(), {"x": X, "m": np.array(50), "limit": np.array(12, np.float32)}),
    ("loop of no rounds", counting_loop(), {"x": X, "m": np.array(0), "limit": np.array(1, np.float32)}),
    ("then", branches(), {"x": X, "c": np.array(True)}),
    ("else", branches(), {"x": X, "c": np.array(False)}),
    ("scan", scanning(), {"s0": X, "x": ROWS}),
    ("scan backwards", scanning(backward=True), {"s0": X, "x": ROWS}),
    ("scan of columns", scanning(axis=1), {"s0": X, "x": np.ascontiguousarray(ROWS.T)}),
    ("scan of nothing", scanning(), {"s0": X, "x": ROWS[:0]}),
    ("nested", nested(), {"x": X, "m": np.array(7)}),
]


@pytest.mark.parametrize(("proto", "feeds"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_native_control_flow_answers_as_the_evaluator_does(proto: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    imported = load_onnx(proto)
    graph = imported.graph
    expected = evaluate(graph, imported.weights, [feeds[graph.value_name(v)] for v in graph.inputs])
    answer = list(tierup.load(proto).run(feeds).values())
    for got, wanted in zip(answer, expected, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert np.array_equal(got, wanted)


def test_loop_gives_what_python_gives() -> None:
    answer = tierup.load(counting_loop()).run({"x": X, "m": np.array(3), "limit": np.array(1e9, np.float32)})
    assert answer["last"].tolist() == [6, 5]
    assert answer["all"].tolist() == [[4, 1], [5, 3], [6, 5]]


def test_a_trip_count_of_one_element_is_taken() -> None:
    """Exporters write it as a vector; ONNX Runtime takes that too."""
    proto = counting_loop()
    proto.graph.input[1].CopyFrom(value("m", [1], I64))
    answer = tierup.load(proto).run({"x": X, "m": np.array([2]), "limit": np.array(1e9, np.float32)})
    assert answer["last"].tolist() == [5, 3]


def test_scan_of_different_lengths_is_an_error() -> None:
    body = helper.make_graph(
        [node("Add", ["a", "b"], ["c"])], "body", [value("a", [2]), value("b", [2])], [value("c", [2])]
    )
    scan = node("Scan", ["x", "y"], ["z"], body=body, num_scan_inputs=2)
    proto = model([scan], [value("x", [None, 2]), value("y", [None, 2])], [value("z", [None, 2])])
    loaded = tierup.load(proto)
    for first, second in ((4, 3), (1, 3), (0, 1)):
        with pytest.raises(tierup.InputError, match="do not broadcast"):
            loaded.run({"x": ROWS[:first], "y": ROWS[:second]})


def test_plan_text(golden: Callable[[str, str], None]) -> None:
    golden("plan_loop", repr(baseline(load_onnx(counting_loop()).graph)))
    golden("plan_if", repr(baseline(load_onnx(branches()).graph)))


def test_values_are_freed_after_their_last_use() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Add", ["b", "b"], ["y"])]
    graph = load_onnx(model(nodes)).graph
    steps = baseline(graph).functions[0].steps
    names = {graph.value_name(v): v for v in range(len(graph.values))}
    freed = [step[1] for step in steps if step[0] == StepCode.FREE]
    assert freed == [names["x"], names["a"], names["b"]]
    assert names["y"] not in freed


def test_equal_plans_compare_equal() -> None:
    assert baseline(load_onnx(nested()).graph) == baseline(load_onnx(nested()).graph)
