"""The ONNX front end: what becomes of names, functions, defaults, bodies, weights and old opsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.security.models import OPSET, add_weight, model, node, value

import tierup
from tierup.frontends.onnx import load_onnx
from tierup.frontends.onnx.container import open_container
from tierup.ir.text import parse_graph, print_graph
from tierup.ir.types import DType, Sym, TensorType
from tierup.ir.verify import verify

X = np.array([1.0, -2.0], np.float32)


def big_weight_model() -> tuple[onnx.ModelProto, np.ndarray]:
    """y = x @ w, w large enough to stay in the file."""
    w = np.random.default_rng(0).standard_normal((2, 600)).astype(np.float32)
    small = numpy_helper.from_array(np.ones(600, np.float32), "b")
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["y"])]
    return model(nodes, [value("x", [1, 2])], [value("y", [1, 600])], [numpy_helper.from_array(w, "w"), small]), w


def test_large_weights_stay_in_the_file(tmp_path: Path) -> None:
    proto, w = big_weight_model()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    container = open_container(path)
    assert container.buffer is not None
    assert all(tensor.raw_data.obj is container.buffer.obj for tensor in container.model.graph.initializer)
    imported = load_onnx(path)
    mapped = [array for array in (imported.weights[d] for d in imported.weights) if array.shape == w.shape]
    assert np.array_equal(mapped[0], w)
    assert not mapped[0].flags.owndata
    assert not mapped[0].flags.writeable
    assert np.allclose(tierup.load(path)(x=np.ones((1, 2), np.float32))["y"], w.sum(0) + 1, atol=1e-6)


def test_files_bytes_and_objects_agree(tmp_path: Path) -> None:
    """The same model from a file, from bytes and from an object is one graph."""
    proto, _ = big_weight_model()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    digests = {load_onnx(source).graph.digest for source in (path, path.read_bytes(), proto)}
    assert len(digests) == 1


def test_a_second_graph_field_is_merged() -> None:
    """As protobuf has it."""
    proto, _ = big_weight_model()
    data = proto.SerializeToString()
    extra = onnx.ModelProto()
    extra.graph.name = "second"
    assert load_onnx(data + extra.SerializeToString()).graph.name == "second"


def test_graph_text_reads_back() -> None:
    imported = load_onnx(big_weight_model()[0])
    text = print_graph(imported.graph)
    assert parse_graph(text) == imported.graph
    verify(parse_graph(text), imported.weights)


def test_equal_weights_are_one() -> None:
    weights = [numpy_helper.from_array(X, name) for name in ("a", "b")]
    nodes = [node("Add", ["x", "a"], ["h"]), node("Add", ["h", "b"], ["y"])]
    imported = load_onnx(model(nodes, weights=weights))
    assert len(imported.weights) == 1
    assert tierup.load(model(nodes, weights=weights))(x=X)["y"].tolist() == [3, -6]


def test_initializers_before_ir_4_are_constants() -> None:
    proto = add_weight(numpy_helper.from_array(X, "w"))
    proto.graph.input.append(value("w"))
    assert [v.name for v in tierup.load(proto).inputs] == ["x", "w"]
    proto.ir_version = 3
    assert [v.name for v in tierup.load(proto).inputs] == ["x"]


def test_shape_arithmetic_gives_known_dims() -> None:
    """x[b, s, 12] -> reshape(b, s, 3, 4) through Shape, Gather, Unsqueeze and Concat, as exporters write it."""
    weights = [
        numpy_helper.from_array(np.array(0), "zero"),
        numpy_helper.from_array(np.array([0]), "axis"),
        numpy_helper.from_array(np.array([-1, 3, 4]), "tail"),
    ]
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Unsqueeze", ["batch", "axis"], ["batch1"]),
        node("Concat", ["batch1", "tail"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["b", "s", 12])], [value("y", ["b", "s", 3, 4])], weights)
    graph = load_onnx(proto).graph
    x, y = graph.type(graph.inputs[0]), graph.type(graph.outputs[0])
    assert isinstance(x, TensorType)
    assert isinstance(y, TensorType)
    assert y.shape == (x.shape[0], x.shape[1], 3, 4)


def test_named_dims_are_one_sym() -> None:
    proto = model([node("Add", ["a", "b"], ["y"])], [value("a", ["n"]), value("b", ["n"])], [value("y", ["n"])])
    graph = load_onnx(proto).graph
    shapes = [graph.type(v).shape for v in (*graph.inputs, *graph.outputs)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert isinstance(shapes[0][0], Sym)
    assert dict(graph.dim_names)[shapes[0][0].id] == "n"


def test_function_attributes_reach_the_body() -> None:
    """alpha is referred to by the body; the caller's value wins over the function's default."""
    relu = helper.make_node("LeakyRelu", ["a"], ["b"])
    relu.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function("local", "leaky", ["a"], ["b"], [relu], [helper.make_opsetid("", OPSET)], ["slope"])
    call = helper.make_node("leaky", ["x"], ["y"], domain="local", slope=0.5)
    assert tierup.load(model([call], functions=[function]))(x=X)["y"].tolist() == [1, -1]
    call = helper.make_node("leaky", ["x"], ["y"], domain="local")
    assert np.allclose(tierup.load(model([call], functions=[function]))(x=X)["y"], [1, -0.02])


def test_function_with_an_absent_input() -> None:
    clip = helper.make_node("Clip", ["a", "low"], ["b"])
    function = helper.make_function("local", "f", ["a", "low"], ["b"], [clip], [helper.make_opsetid("", OPSET)])
    call = helper.make_node("f", ["x"], ["y"], domain="local")
    assert tierup.load(model([call], functions=[function]))(x=X)["y"].tolist() == X.tolist()


def test_a_branch_may_be_ill_typed_if_it_never_runs() -> None:
    good = helper.make_graph([node("Relu", ["x"], ["t"])], "good", [], [value("t")])
    bad = helper.make_graph([node("Squeeze", ["x", "ax"], ["e"])], "bad", [], [value("e", [])])
    weights = [numpy_helper.from_array(np.array([0]), "ax")]
    nodes = [node("If", ["c"], ["y"], then_branch=good, else_branch=bad)]
    proto = model(nodes, [value("x"), value("c", [], TensorProto.BOOL)], [value("y", None or [])], weights)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    loaded = tierup.load(proto)
    assert loaded(x=X, c=np.array(True))["y"].tolist() == [1, 0]
    with pytest.raises(tierup.InputError, match="node_e"):
        loaded(x=X, c=np.array(False))


def test_a_body_may_shadow_an_outer_name() -> None:
    body = helper.make_graph([node("Neg", ["x"], ["h"])], "body", [], [value("h")])
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("If", ["c"], ["b"], then_branch=body, else_branch=body),
        node("Add", ["h", "b"], ["y"]),
    ]
    proto = model(nodes, [value("x"), value("c", [], TensorProto.BOOL)])
    assert tierup.load(proto)(x=X, c=np.array(True))["y"].tolist() == [0, 2]


def test_a_loop_that_grows_its_state_is_typed_open() -> None:
    body = helper.make_graph(
        [node("Concat", ["s", "s"], ["s2"], axis=0), node("Identity", ["go"], ["go2"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("s", [2])],
        [value("go2", [], TensorProto.BOOL), value("s2", [4])],
    )
    inputs = [value("x", [2]), value("m", [], TensorProto.INT64)]
    loaded = tierup.load(model([node("Loop", ["m", "", "x"], ["y"], body=body)], inputs, [value("y", [None])]))
    assert loaded.outputs[0].shape == (None,)
    assert loaded(x=X, m=np.array(3))["y"].shape == (16,)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (np.float16, DType.F16),
        (ml_dtypes.bfloat16, DType.BF16),
        (ml_dtypes.float8_e5m2, DType.F8E5M2),
        (ml_dtypes.float8_e4m3fnuz, DType.F8E4M3FNUZ),
        (ml_dtypes.float8_e8m0fnu, DType.F8E8M0),
        (ml_dtypes.float4_e2m1fn, DType.F4E2M1),
        (ml_dtypes.int4, DType.I4),
        (ml_dtypes.uint4, DType.U4),
        (ml_dtypes.int2, DType.I2),
        (ml_dtypes.uint2, DType.U2),
        (np.complex64, DType.C64),
        (np.bool_, DType.BOOL),
        (np.uint64, DType.U64),
    ],
)
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_weights_of_every_type(dtype: type, kind: DType, raw: bool) -> None:
    wanted = np.array([1, 0, 1, 1, 0], dtype)
    if kind in (DType.I4, DType.I2):
        wanted = np.array([1, -1, -2, 0, 1], dtype)
    tensor = numpy_helper.from_array(wanted, "w")
    if not raw:
        tensor = helper.make_tensor("w", tensor.data_type, wanted.shape, wanted.tolist())
    nodes = [node("Identity", ["w"], ["y"])]
    proto = model(nodes, [], [value("y", [5], tensor.data_type)], [tensor])
    proto.opset_import[0].version = 25
    answer = tierup.load(proto).run({})["y"]
    assert answer.dtype == wanted.dtype
    assert answer.tobytes() == wanted.tobytes()  # f8e8m0 has no zero: NaN stands for it


def test_string_weights() -> None:
    tensor = helper.make_tensor("w", TensorProto.STRING, [2], [b"a", "ä".encode()])
    proto = model([node("Identity", ["w"], ["y"])], [], [value("y", [2], TensorProto.STRING)], [tensor])
    assert tierup.load(proto).run({})["y"].tolist() == ["a", "ä"]


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_initializers(flat: bool) -> None:
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    where = np.array([1, 5]) if flat else np.array([[0, 1], [1, 2]])
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(where, "at"), [2, 3])
    proto = model([node("Identity", ["w"], ["y"])], [], [value("y", [2, 3])])
    proto.graph.sparse_initializer.append(sparse)
    assert tierup.load(proto).run({})["y"].tolist() == [[0, 5, 0], [0, 0, 7]]


@pytest.mark.parametrize("where", [[9], [-1], [[0, 9]]])
def test_sparse_indices_outside_are_refused(where: list[int]) -> None:
    values = numpy_helper.from_array(np.array([5], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(where), "at"), [2, 3])
    proto = model([node("Identity", ["w"], ["y"])], [], [value("y", [2, 3])])
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(tierup.ModelError, match="outside its shape"):
        tierup.load(proto)


def test_old_opsets_broadcast_by_attribute() -> None:
    add = helper.make_node("Add", ["x", "b"], ["y"], axis=1, broadcast=1)
    proto = model([add], [value("x", [2, 3, 2]), value("b", [3])], [value("y", [2, 3, 2])])
    proto.opset_import[0].version = 6
    x, b = np.zeros((2, 3, 2), np.float32), np.array([1, 2, 3], np.float32)
    assert np.array_equal(tierup.load(proto)(x=x, b=b)["y"], x + b[:, None])


def test_every_opset_from_7_on_is_taken() -> None:
    for opset in range(7, onnx.defs.onnx_opset_version() + 1):
        proto = model([node("Relu", ["x"], ["y"])])
        proto.opset_import[0].version = opset
        assert tierup.load(proto)(x=X)["y"].tolist() == [1, 0]


def test_loading_twice_gives_equal_graphs() -> None:
    proto, _ = big_weight_model()
    assert load_onnx(proto).graph == load_onnx(proto).graph


@pytest.mark.parametrize(
    ("op", "key", "kind", "attrs", "given", "wanted"),
    [
        ("DictVectorizer", TensorProto.STRING, TensorProto.FLOAT, {"string_vocabulary": ["p"]}, {"p": 3.0}, [[3]]),
        ("DictVectorizer", TensorProto.INT64, TensorProto.DOUBLE, {"int64_vocabulary": [5, 6]}, {5: 1.0}, [[1, 0]]),
        ("CastMap", TensorProto.INT64, TensorProto.FLOAT, {"cast_to": "TO_FLOAT"}, {1: 2.5, 0: 1.5}, [[1.5, 2.5]]),
    ],
)  # fmt: skip
def test_maps_come_in(
    op: str, key: int, kind: int, attrs: dict[str, Any], given: dict[Any, float], wanted: list[list[float]]
) -> None:
    """Schemas write `map(string, float)` where ONNX writes `map(string, tensor(float))` otherwise."""
    mapping = helper.make_map_type_proto(key, helper.make_tensor_type_proto(kind, []))
    graph = helper.make_graph(
        [helper.make_node(op, ["m"], ["y"], domain="ai.onnx.ml", **attrs)],
        "maps",
        [helper.make_value_info("m", mapping)],
        [helper.make_tensor_value_info("y", kind, [None, None])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)], ir_version=9)
    onnx.checker.check_model(proto, full_check=True)
    assert tierup.load(proto)(m=given)["y"].tolist() == wanted
