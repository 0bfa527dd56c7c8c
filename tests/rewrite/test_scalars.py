"""Single numbers whose rank changes from step to step: which lose their axes, which stay, and that answers stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import tierup
from tierup.frontends.onnx import load_onnx
from tierup.ir.graph import Graph
from tierup.ir.types import TensorType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import lower_to_core, simplify, tighten
from tierup.rewrite.scalars import settle_scalars

I64, BOOL = TensorProto.INT64, TensorProto.BOOL


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs, outputs, **attrs)


def flagged(*more: NodeProto, result: str = "", seen: bool = False) -> onnx.ModelProto:
    """Counts steps until a flag is up that is set at the third: without axes at first, then a vector or not.

    `more` are further nodes of the body, which may make a `result` that is collected. `seen`: the last flag is an
    output of the model.
    """
    up = helper.make_graph(
        [node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))], "then", [],
        [helper.make_tensor_value_info("yes", BOOL, None)],
    )  # fmt: skip
    same = [
        node("Cast", ["flag"], ["n"], to=I64),
        node("Add", ["n", "zeros"], ["m"]),
        node("Cast", ["m"], ["kept"], to=BOOL),
    ]
    down = helper.make_graph(same, "else", [], [helper.make_tensor_value_info("kept", BOOL, None)])
    nodes = [
        node("Equal", ["step", "two"], ["third"]),
        node("If", ["third"], ["now"], then_branch=up, else_branch=down),
        node("Not", ["now"], ["not_now"]),
        node("And", ["not_now", "go"], ["both"]),
        node("Cast", ["both"], ["both_n"], to=I64),
        node("Add", ["both_n", "zeros"], ["both_m"]),
        node("Cast", ["both_m"], ["on"], to=BOOL),
        node("Cast", ["now"], ["now_n"], to=I64),
        node("Add", ["now_n", "zeros"], ["now_m"]),
        node("Cast", ["now_m"], ["next"], to=BOOL),
        node("Add", ["count", "one"], ["counted"]),
        *more,
    ]
    ins = [("step", I64, ()), ("go", BOOL, None), ("flag", BOOL, None), ("count", I64, ())]
    outs = [("on", BOOL, None), ("next", BOOL, None), ("counted", I64, ()), *([(result, I64, None)] if result else [])]
    body = helper.make_graph(
        nodes, "body", [helper.make_tensor_value_info(*row) for row in ins],
        [helper.make_tensor_value_info(*row) for row in outs],
        [numpy_helper.from_array(np.array(2), "two"), numpy_helper.from_array(np.array(1), "one"),
         numpy_helper.from_array(np.zeros(1, np.int64), "zeros")],
    )  # fmt: skip
    loop = node(
        "Loop", ["trips", "start", "start_flag", "none"], ["last", "steps", *(["all"] if result else [])], body=body
    )
    outputs = [helper.make_tensor_value_info("steps", I64, ())]
    outputs += [helper.make_tensor_value_info("all", I64, None)] if result else []
    outputs += [helper.make_tensor_value_info("last", BOOL, None)] if seen else []
    graph = helper.make_graph(
        [loop], "flagged", [helper.make_tensor_value_info("trips", I64, ())], outputs,
        [numpy_helper.from_array(np.array(True), "start"), numpy_helper.from_array(np.array(False), "start_flag"),
         numpy_helper.from_array(np.array(0), "none")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def unknown(graph: Graph) -> list[str]:
    """The ops of nodes that read or make a value without a known rank, in bodies too."""
    return [
        inner.op
        for owner, inner in graph.walk()
        if any(
            isinstance(owner.type(value), TensorType) and owner.type(value).shape is None  # type: ignore[union-attr]
            for value in (*inner.inputs, *inner.outputs)
            if value is not None
        )
    ]


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 9])
def test_ranks_that_nobody_sees_are_chosen(trips: int) -> None:
    imported = load_onnx(flagged())
    after = lower_to_core(imported.graph, imported.weights)
    verify(after, imported.weights)
    assert unknown(imported.graph)
    assert not unknown(after)
    feeds = [np.array(trips)]
    (wanted,), (got,) = (evaluate(graph, imported.weights, feeds) for graph in (imported.graph, after))
    assert got.tolist() == wanted.tolist() == min(trips, 3)


def test_nothing_is_left_to_python() -> None:
    with tierup.load(flagged(), config=tierup.Config(force_tier=1)) as session:
        assert [int(session(trips=np.array(trips))["steps"]) for trips in (0, 1, 3, 8)] == [0, 1, 3, 3]
        assert session.report().to_dict()["counters"]["fallback_nodes"] == 0


@pytest.mark.parametrize(
    "proto",
    [
        flagged(seen=True),
        flagged(node("Shape", ["flag"], ["shape"]), node("ReduceSum", ["shape"], ["size"]), result="size"),
        flagged(node("Cast", ["flag"], ["seen"], to=I64), result="seen"),
    ],
)
def test_ranks_that_somebody_sees_stay(proto: onnx.ModelProto) -> None:
    imported = load_onnx(proto)
    graph = tighten(simplify(imported.graph, imported.weights), imported.weights)
    assert settle_scalars(graph, imported.weights) is graph
    after = lower_to_core(imported.graph, imported.weights)
    feeds = [np.array(1)]  # with more, the collected flags do not fit each other
    for wanted, got in zip(*(evaluate(g, imported.weights, feeds) for g in (imported.graph, after)), strict=True):
        assert (got.shape, got.tolist()) == (wanted.shape, wanted.tolist())
