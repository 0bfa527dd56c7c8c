"""Sequences as exporters write them run as plain tensors: nothing calls out, at any length."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.security.models import model, node, value

import tierup
from tierup.config import Config

SEQUENCE = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)


def integer(name: str, number: int | list[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(number, np.int64), name)


def recurrence(new_axis: int) -> onnx.ModelProto:
    """xs = unbind(x); for each: h = tanh(x[i] · w + h), appended to a list, which is joined behind the loop."""
    nodes = [
        node("SequenceAt", ["xs", "i"], ["xi"]),
        node("MatMul", ["xi", "w"], ["wide"]),
        node("Add", ["wide", "h_in"], ["sum"]),
        node("Tanh", ["sum"], ["h_out"]),
        node("SequenceInsert", ["s", "h_out"], ["s_out"]),
        node("Identity", ["go_in"], ["go_out"]),
    ]
    inputs = [
        value("i", (), TensorProto.INT64),
        value("go_in", (), TensorProto.BOOL),
        value("h_in", ("b", 8)),
        SEQUENCE,
    ]
    outputs = [
        value("go_out", (), TensorProto.BOOL),
        value("h_out", ("b", 8)),
        helper.make_tensor_sequence_value_info("s_out", TensorProto.FLOAT, None),
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    around = [
        node("SplitToSequence", ["x"], ["xs"], axis=0, keepdims=0),
        node("SequenceLength", ["xs"], ["count"]),
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["count", "", "h", "none"], ["last", "all"], body=body),
        node("ConcatFromSequence", ["all"], ["y"], axis=1, new_axis=new_axis),
    ]
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) / 3, "w")
    return model(around, [value("x", ("t", "b", 8)), value("h", ("b", 8))], [_open("y")], [w])


def _open(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def pieces() -> onnx.ModelProto:
    """torch.split and chunk, put together in another order."""
    nodes = [
        node("SplitToSequence", ["x", "sizes"], ["parts"], axis=-1),
        *(node("SequenceAt", ["parts", str(i)], [f"part{i}"]) for i in range(3)),
        node("SequenceConstruct", ["part2", "part0", "part1"], ["turned"]),
        node("ConcatFromSequence", ["turned"], ["y"], axis=-1),
    ]
    weights = [integer("sizes", [2, 3, 3]), *(integer(str(i), i) for i in range(3))]
    return model(nodes, [value("x", ("n", 8))], [_open("y")], weights)


def bags() -> onnx.ModelProto:
    """nn.EmbeddingBag as torch.onnx writes it: a loop over bags, which ends by a condition; rows from one offset to the
    next are cut out and added up, where there are any, and the sums appended to a list."""
    looked = [
        node("Slice", ["x", "start", "end"], ["rows"]),
        node("ReduceSum", ["rows", "zero1"], ["sum"], keepdims=1),
    ]
    nodes = [
        node("Reshape", ["at", "minus1"], ["place"]),
        node("Add", ["place", "one"], ["next"]),
        node("Slice", ["all", "place", "next"], ["start"]),
        node("Add", ["place", "two"], ["after"]),
        node("Slice", ["all", "next", "after"], ["end"]),
        node("Equal", ["start", "end"], ["same"]),
        node(
            "If",
            ["same"],
            ["row"],
            then_branch=helper.make_graph(
                [node("Identity", ["nothing"], ["none_row"])], "none", [], [_open("none_row")]
            ),
            else_branch=helper.make_graph(looked, "some", [], [_open("sum")]),
        ),
        node("SequenceInsert", ["s", "row"], ["s_out"]),
        node("Add", ["at", "step"], ["at_out"]),
        node("Less", ["at_out", "count"], ["go_out"]),
    ]
    inputs = [
        value("i", (), TensorProto.INT64),
        value("go_in", (), TensorProto.BOOL),
        SEQUENCE,
        helper.make_tensor_value_info("at", TensorProto.INT64, None),
    ]
    outputs = [
        helper.make_tensor_value_info("go_out", TensorProto.BOOL, None),
        helper.make_tensor_sequence_value_info("s_out", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("at_out", TensorProto.INT64, None),
    ]
    around = [
        node("Gather", ["table", "ids"], ["x"]),
        node("Shape", ["ids"], ["size"]),
        node("Shape", ["offsets"], ["count"]),
        node("Concat", ["offsets", "size"], ["all"], axis=0),
        node("SequenceEmpty", [], ["none"]),
        node(
            "Loop", ["", "yes", "none", "first"], ["sums", ""], body=helper.make_graph(nodes, "body", inputs, outputs)
        ),
        node("ConcatFromSequence", ["sums"], ["y"], axis=0),
    ]
    table = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)
    weights = [
        numpy_helper.from_array(array, name)
        for name, array in (
            ("table", table),
            ("nothing", np.zeros((1, 5), np.float32)),
            ("yes", np.array(True)),
            ("first", np.array(0)),
            ("step", np.array(1)),
        )
    ]
    weights += [integer(name, [number]) for name, number in (("minus1", -1), ("zero1", 0), ("one", 1), ("two", 2))]
    given = [value("ids", ("n",), TensorProto.INT64), value("offsets", ("b",), TensorProto.INT64)]
    return model(around, given, [_open("y")], weights)


def both(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    compiled, plain = (tierup.load(proto, config=Config(force_tier=tier)) for tier in (1, 0))
    assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
    return compiled.run(feeds)["y"], plain.run(feeds)["y"]


@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (5, 3), (33, 2), (4, 0)])
def test_loops_that_append(steps: int, rows: int, new_axis: int) -> None:
    draw = np.random.default_rng(steps)
    x, h = draw.standard_normal((steps, rows, 8)).astype(np.float32), np.zeros((rows, 8), np.float32)
    x[: rows and 1, : rows and 1, :1] = np.nan if steps == 5 else 0
    got, wanted = both(recurrence(new_axis), {"x": x, "h": h})
    assert got.shape == wanted.shape
    # tanh pulls states together: sums of nine terms and the function itself round by some 1e-6 in all
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_pieces_of_known_sizes(rows: int) -> None:
    x = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
    got, wanted = both(pieces(), {"x": x})
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("offsets", [[0], [0, 3, 3, 7], [0, 0, 0, 20], [2, 5, 4, 30], [-3, 1]])
def test_bags_of_embeddings(offsets: list[int]) -> None:
    ids = np.random.default_rng(1).integers(0, 50, 20)
    got, expected = both(bags(), {"ids": ids, "offsets": np.array(offsets)})
    assert got.shape == (len(offsets), 5)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
