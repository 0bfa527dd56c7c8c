"""The reader of protobuf's wire format against protobuf itself, on models and on what is nearly one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tierup.frontends.onnx.protos import Model
from tierup.frontends.onnx.wire import Malformed, Message, read

ENUMS = {"type": 14, "data_location": 1}  # the largest number that has a name: protobuf reads others as 0


def plain(name: str, value: Any) -> Any:
    """A value that can be compared: NaN is NaN."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, float | np.floating):
        return float(value).hex()
    return 0 if name in ENUMS and not 0 <= value <= ENUMS[name] else value


def assert_same(ours: Message, theirs: Any) -> None:
    """All that is read is as protobuf reads it."""
    for field in ours.FIELDS.values():
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if field.of is None:
            these, those = (list(value) if field.repeated else [value] for value in (mine, other))
            assert [plain(field.name, item) for item in these] == [plain(field.name, item) for item in those]
        elif field.repeated:
            for one, another in zip(mine, other, strict=True):
                assert_same(one, another)
        else:
            assert ours.HasField(field.name) == theirs.HasField(field.name)
            if field.choice:
                assert ours.WhichOneof("value") == theirs.WhichOneof("value")
            if ours.HasField(field.name):
                assert_same(mine, other)


def sample() -> onnx.ModelProto:
    """A model with every kind of field that is read, short and long."""
    many = list(range(-3, 300))
    floats = [0.1 * number for number in many]
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "inner", [], [])
    weights = [
        numpy_helper.from_array(np.arange(1000, dtype=np.float32), "raw"),
        helper.make_tensor("floats", onnx.TensorProto.FLOAT, [len(many)], floats),
        helper.make_tensor("doubles", onnx.TensorProto.DOUBLE, [len(many)], floats),
        helper.make_tensor("ints", onnx.TensorProto.INT64, [len(many)], many),
        helper.make_tensor("small", onnx.TensorProto.INT32, [len(many)], many),
        helper.make_tensor("wide", onnx.TensorProto.UINT64, [40], [2**64 - 1 - number for number in range(40)]),
        helper.make_tensor("words", onnx.TensorProto.STRING, [2], [b"a", b"\xff"]),
    ]
    node = helper.make_node(
        "Many", ["x", "", "w"], ["y"], "name", domain="d",
        f=0.5, i=-7, s="text", g=inner, floats=floats, ints=many, strings=["a" * 200] + ["b"] * 99, t=weights[0],
        tensors=weights[:2], tp=helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2, "n", None])),
        sparse_tensor=helper.make_sparse_tensor(weights[0], weights[3], [5000]),
    )  # fmt: skip
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, None])
    mapped = helper.make_value_info("m", helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, None)))
    optional = helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [])))
    graph = helper.make_graph([node], "main", [value, mapped, optional], [value], weights, doc_string="skipped")
    function = helper.make_function("d", "F", ["a"], ["b"], [node], [helper.make_opsetid("", 17)], ["k"])
    return helper.make_model(graph, functions=[function], opset_imports=[helper.make_opsetid("", 17)])


SAMPLE = sample().SerializeToString()


def test_a_model_is_read_as_protobuf_reads_it() -> None:
    assert_same(read(Model, memoryview(SAMPLE)), onnx.ModelProto.FromString(SAMPLE))


def test_models_behind_each_other_are_merged() -> None:
    twice = SAMPLE + SAMPLE
    assert_same(read(Model, memoryview(twice)), onnx.ModelProto.FromString(twice))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_models_are_refused_or_read_alike(data: st.DataObject) -> None:
    damaged = bytearray(SAMPLE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                damaged[at] = data.draw(st.integers(0, 255))
            case 1:
                del damaged[at : at + data.draw(st.integers(1, 20))]
            case _:
                damaged[at:at] = data.draw(st.binary(max_size=20))
    try:
        ours = read(Model, memoryview(bytes(damaged)))
    except Malformed:
        return
    try:
        theirs = onnx.ModelProto.FromString(bytes(damaged))
    except DecodeError:
        return  # in what is skipped here
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x3a\x05ab", "longer than the message"),
        (b"\x3a", "middle of a number"),
        (b"\x08\xff", "middle of a number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than 10 bytes"),
        (b"\x02\x00", "number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x3a\x02\x2d\x00", "behind the message"),
        (b"\x3a\x04\x2a\x02\x3a\x05", "longer than the message"),
    ],
)
def test_what_is_no_message(data: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        read(Model, memoryview(data))


def test_messages_in_messages_have_a_limit() -> None:
    data = b""
    for _ in range(60):  # a graph in an attribute of a node of a graph
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            size = len(data)
            length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
            data = tag + length + data
    size = len(data)
    data = b"\x3a" + bytes([size & 0x7F | 0x80, size >> 7]) + data
    with pytest.raises(Malformed, match="nested"):
        read(Model, memoryview(data))


def test_loading_a_model_imports_neither_onnx_nor_protobuf() -> None:
    """They take 15 MiB, and most of the time of a first answer."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", 1, [2])],
            [helper.make_tensor_value_info("y", 1, [2])],
        )
    )
    code = (
        "import sys, numpy as np, tierup\n"
        f"model = tierup.load({model.SerializeToString()!r}, config=tierup.Config(force_tier=0))\n"
        "assert (model(x=np.array([-1, 2], np.float32))['y'] == [0, 2]).all()\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('onnx', 'google')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
