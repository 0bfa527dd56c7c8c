"""Graphs that are cyclic, endless, enormous or inconsistent are refused with a sentence that names the place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tierup
from tests.security.models import OPSET, add_weight, model, node, value


def refused(hostile: onnx.ModelProto, reason: str) -> str:
    """Refused both as an object and as bytes, without leaving a session behind."""
    with pytest.raises(tierup.ModelError, match=reason) as caught:
        tierup.load(hostile)
    with pytest.raises(tierup.ModelError):
        tierup.load(hostile.SerializeToString())
    return str(caught.value)


def test_cycle() -> None:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    assert "node_a" in refused(model(nodes), "cycle")


def test_node_that_uses_itself() -> None:
    refused(model([node("Add", ["x", "y"], ["y"])]), "cycle")


def test_nodes_out_of_order_are_sorted() -> None:
    nodes = [node("Relu", ["a"], ["y"]), node("Neg", ["x"], ["a"])]
    answer = tierup.load(model(nodes))(x=np.array([-1, 2], np.float32))
    assert answer["y"].tolist() == [1, 0]


def test_missing_name() -> None:
    refused(model([node("Add", ["x", "nowhere"], ["y"])]), "'nowhere', which nothing defines")


def test_missing_output() -> None:
    refused(model([node("Relu", ["x"], ["z"])]), "output 'y' is produced by no node")


@pytest.mark.parametrize(
    ("nodes", "inputs", "weights"),
    [
        ([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])], [value("x")], []),
        ([node("Relu", ["x"], ["x"]), node("Neg", ["x"], ["y"])], [value("x")], []),
        ([node("Neg", ["x"], ["y"])], [value("x"), value("x")], []),
        ([node("Add", ["x", "w"], ["y"])], [value("x")], [numpy_helper.from_array(np.zeros(2, np.float32), "w")] * 2),
        ([node("Split", ["x"], ["y", "y"])], [value("x")], []),
    ],
)
def test_duplicate_names(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], weights: list[onnx.TensorProto]
) -> None:
    refused(model(nodes, inputs, weights=weights), "twice|cycle")


def test_empty_names() -> None:
    refused(model([node("Neg", ["x"], ["y"])], [value("x"), value("")]), "without a name")


def tensor(dims: list[int], data: bytes = b"\0" * 8, kind: int = TensorProto.FLOAT) -> onnx.TensorProto:
    return onnx.TensorProto(name="w", dims=dims, data_type=kind, raw_data=data)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (tensor([2**40]), "more than this machine's memory"),
        (tensor([2**32, 2**32]), "more than this machine's memory"),
        (tensor([2**62, 2**62, 0]), "more than this machine's memory"),
        (tensor([-2]), "negative dim"),
        (tensor([3]), "needs 12 bytes, but has 8"),
        (tensor([1] * 65), "65 dims"),
        (tensor([2], kind=99), "data type 99"),
        (tensor([2], kind=0), "data type 0"),
        (tensor([2], kind=TensorProto.STRING), "strings as raw data"),
        (onnx.TensorProto(name="w", dims=[2], data_type=1, float_data=[1.0]), "needs 2 entries"),
        (onnx.TensorProto(name="w", dims=[2], data_type=10, int32_data=[70000, 0]), "does not fit"),
        (onnx.TensorProto(name="w", dims=[1], data_type=8, string_data=[b"\xff"]), "not UTF-8"),
    ],
)
def test_weights_that_do_not_fit_their_data(weight: onnx.TensorProto, reason: str) -> None:
    assert "'w'" in refused(add_weight(weight), reason)


def shape_weight(*sizes: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(sizes, np.int64), "shape")


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile", "Reshape", "RandomNormal", "Range"])
@pytest.mark.parametrize("size", [2**40, 2**62])
def test_values_that_ask_for_a_terabyte(op: str, size: int) -> None:
    weights = [shape_weight(size)]
    if op == "ConstantOfShape":
        nodes = [node(op, ["shape"], ["y"])]
    elif op == "RandomNormal":
        nodes = [node(op, [], ["y"], shape=[size])]
    elif op == "Range":
        weights = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("a", 0), ("b", size), ("c", 1))]
        nodes = [node(op, ["a", "b", "c"], ["i"]), node("Cast", ["i"], ["y"], to=1)]
    else:
        nodes = [node(op, ["x", "shape"], ["y"])]
    shape = [1] if op == "Expand" else [2]
    hostile = model(nodes, [value("x", shape)], [value("y", [None])], weights)
    refused(hostile, "machine's memory|overflows 64 bits|cannot be reshaped")


def test_dims_whose_product_overflows() -> None:
    nodes = [node("ConstantOfShape", ["shape"], ["a"]), node("Flatten", ["a"], ["y"], axis=0)]
    refused(model(nodes, [], [value("y", [None, None])], [shape_weight(2**40, 2**40)]), "memory|overflow")


def nested_if(depth: int) -> onnx.GraphProto:
    """If inside If inside If ..."""
    inner = helper.make_graph([node("Identity", ["x"], ["out_0"])], "g0", [], [value("out_0")])
    for level in range(1, depth + 1):
        branch = node("If", ["c"], [f"out_{level}"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([branch], f"g{level}", [], [value(f"out_{level}")])
    return inner


def test_deep_nesting() -> None:
    # Both branches are equal, so the file doubles with each level: 12 levels of chains give 4,096 leaves
    graph = nested_if(6)
    nodes = [*graph.node, node("Identity", [graph.output[0].name], ["y"])]
    inputs = [value("x"), value("c", [], TensorProto.BOOL)]
    assert tierup.load(model(nodes, inputs))(x=np.ones(2, np.float32), c=np.array(True))["y"].tolist() == [1, 1]


def test_nesting_beyond_every_limit() -> None:
    """Built in place: protobuf itself refuses to read or copy messages that are nested this deeply."""
    hostile = model([], [value("x"), value("c", [], TensorProto.BOOL)], [value("out")])
    graph = hostile.graph
    for _ in range(200):
        branch = graph.node.add(op_type="If", input=["c"], output=["out"])
        other = branch.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH).g
        other.node.add(op_type="Identity", input=["x"], output=["other"])
        other.output.add(name="other")
        graph = branch.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        graph.output.add(name="out")
    graph.node.add(op_type="Identity", input=["x"], output=["out"])
    with pytest.raises(tierup.ModelError, match="deep"):
        tierup.load(hostile)


def function(name: str, *calls: str) -> onnx.FunctionProto:
    """A function that calls others one after another."""
    nodes, last = [], "a"
    for index, call in enumerate(calls):
        nodes.append(helper.make_node(call, [last], [f"v{index}"], domain="" if call == "Relu" else "local"))
        last = f"v{index}"
    nodes.append(helper.make_node("Relu", [last], ["b"]))
    return helper.make_function(
        "local", name, ["a"], ["b"], nodes, [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    )


def test_function_that_calls_itself() -> None:
    call = helper.make_node("f", ["x"], ["y"], domain="local")
    refused(model([call], functions=[function("f", "g"), function("g", "f")]), "calls itself")


def test_functions_that_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierup.frontends.onnx.importer.MAX_IMPORTED_NODES", 5_000)  # the real one takes some seconds
    functions = [function(f"f{i}", *[f"f{i + 1}"] * 8) for i in range(12)] + [function("f12")]
    call = helper.make_node("f0", ["x"], ["y"], domain="local")
    refused(model([call], functions=functions), "more than 5000 nodes")


def test_functions_are_inlined() -> None:
    call = helper.make_node("f", ["x"], ["y"], domain="local")
    answer = tierup.load(model([call], functions=[function("f", "g", "g"), function("g")]))(
        x=np.array([-1, 2], np.float32)
    )
    assert answer["y"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (node("Relu", ["x", "x"], ["y"]), "takes 1 inputs, but 2"),
        (node("Relu", [], ["y"]), "inputs, but 0"),
        (node("Add", ["x", ""], ["y"]), "left out"),
        (node("Relu", ["x"], ["y", "z"]), "outputs, but 2"),
        (node("Relu", ["x"], ["y"], alpha=1.0), "attribute 'alpha', which it does not take"),
        (node("LeakyRelu", ["x"], ["y"], alpha=1), "attribute 'alpha' of type"),
        (node("Cast", ["x"], ["y"]), "needs its attribute 'to'"),
        (node("Cast", ["x"], ["y"], to=77), "77"),
        (node("Softmax", ["x"], ["y"], axis=5), "axis 5"),
        (node("Transpose", ["x"], ["y"], perm=[0, 0]), "node_y"),
        (node("NoSuchOp", ["x"], ["y"]), "NoSuchOp"),
        (helper.make_node("Foo", ["x"], ["y"], domain="acme"), "acme"),
        (node("Not", ["x"], ["y"]), "cannot be tensor"),
    ],
)
def test_nodes_that_do_not_fit_their_schema(bad: onnx.NodeProto, reason: str) -> None:
    refused(model([bad]), reason)


def test_types_must_agree() -> None:
    inputs = [value("x"), value("i", [2], TensorProto.INT64)]
    refused(model([node("Add", ["x", "i"], ["y"])], inputs), "must have one type")


def test_output_declared_with_another_type() -> None:
    refused(model([node("Relu", ["x"], ["y"])], outputs=[value("y", [2], TensorProto.INT64)]), "declared as")


@pytest.mark.parametrize("version", [0, 10_000])
def test_opset_outside_every_range(version: int) -> None:
    hostile = model([node("Relu", ["x"], ["y"])])
    hostile.opset_import[0].version = version
    refused(hostile, "opset")


def test_loop_body_with_the_wrong_arity() -> None:
    body = helper.make_graph(
        [node("Identity", ["c"], ["c2"])],
        "body",
        [value("c", [], TensorProto.BOOL)],
        [value("c2", [], TensorProto.BOOL)],
    )
    refused(model([node("Loop", ["", "", "x"], ["y"], body=body)]), "values flow in")


def test_nested_loops_whose_types_never_settle_end() -> None:
    """Each loop's body appends a row, so that every level is typed again; the work stays bounded."""
    inner = helper.make_graph(
        [node("Concat", ["s", "s"], ["s2"], axis=0), node("Identity", ["c"], ["c2"])],
        "b0",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("s", [None])],
        [value("c2", [], TensorProto.BOOL), value("s2", [None])],
    )
    for level in range(5):
        loop = node("Loop", ["m", "", "s"], ["s2"], body=inner)
        inner = helper.make_graph(
            [loop, node("Identity", ["c"], ["c2"])],
            f"b{level + 1}",
            [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("s", [None])],
            [value("c2", [], TensorProto.BOOL), value("s2", [None])],
        )
    inputs = [value("x"), value("m", [], TensorProto.INT64)]
    loaded = tierup.load(model([node("Loop", ["m", "", "x"], ["y"], body=inner)], inputs, [value("y", [None])]))
    assert loaded.outputs[0].shape == (None,)


def test_long_names_and_long_messages_stay_short() -> None:
    message = refused(model([node("Neg", ["x"], ["y"])], [value("x"), value("z" * 100_000)]), "characters")
    assert len(message) < 300


def test_messages_name_the_innermost_node() -> None:
    body = helper.make_graph(
        [node("Softmax", ["s"], ["deep"], axis=9), node("Identity", ["c"], ["c2"])],
        "body",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("s")],
        [value("c2", [], TensorProto.BOOL), value("deep")],
    )
    message = refused(model([node("Loop", ["", "", "x"], ["y"], body=body)]), "axis 9")
    assert message.startswith("node 'node_deep' (Softmax)")
