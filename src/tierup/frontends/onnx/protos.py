"""The messages of an ONNX file, as far as they are read: field numbers and names are those of onnx.proto."""

from __future__ import annotations

from tierup.frontends.onnx.wire import Field, Kind, Message, complete, define


def _one(name: str, kind: Kind | type[Message]) -> Field:
    return Field(name, kind) if isinstance(kind, str) else Field(name, "message", of=kind)


def _many(name: str, kind: Kind | type[Message]) -> Field:
    return _one(name, kind)._replace(repeated=True)


def _choice(fields: dict[int, Field]) -> dict[int, Field]:
    names = tuple(field.name for field in fields.values())
    return {number: field._replace(choice=names) for number, field in fields.items()}


Entry = define("Entry", {1: _one("key", "text"), 2: _one("value", "text")})
Opset = define("Opset", {1: _one("domain", "text"), 2: _one("version", "int")})

Dimension = define("Dimension", _choice({1: _one("dim_value", "int"), 2: _one("dim_param", "text")}))
Shape = define("Shape", {1: _many("dim", Dimension)})
TensorType = define("TensorType", {1: _one("elem_type", "int32"), 2: _one("shape", Shape)})
Opaque = define("Opaque", {})
Type = define("Type", {})
Sequence = define("Sequence", {1: _one("elem_type", Type)})
Map = define("Map", {1: _one("key_type", "int32"), 2: _one("value_type", Type)})
complete(
    Type,
    _choice(
        {
            1: _one("tensor_type", TensorType),
            4: _one("sequence_type", Sequence),
            5: _one("map_type", Map),
            7: _one("opaque_type", Opaque),
            8: _one("sparse_tensor_type", TensorType),
            9: _one("optional_type", Sequence),
        }
    ),
)
ValueInfo = define("ValueInfo", {1: _one("name", "text"), 2: _one("type", Type)})

Segment = define("Segment", {})
Tensor = define(
    "Tensor",
    {
        1: _many("dims", "int"),
        2: _one("data_type", "int32"),
        3: _one("segment", Segment),
        4: _many("float_data", "float"),
        5: _many("int32_data", "int32"),
        6: _many("string_data", "bytes"),
        7: _many("int64_data", "int"),
        8: _one("name", "text"),
        9: _one("raw_data", "bytes"),
        10: _many("double_data", "double"),
        11: _many("uint64_data", "uint"),
        13: _many("external_data", Entry),
        14: _one("data_location", "int32"),
    },
    EXTERNAL=1,
)
SparseTensor = define("SparseTensor", {1: _one("values", Tensor), 2: _one("indices", Tensor), 3: _many("dims", "int")})

Graph = define("Graph", {})
Attribute = define(
    "Attribute",
    {
        1: _one("name", "text"),
        2: _one("f", "float"),
        3: _one("i", "int"),
        4: _one("s", "bytes"),
        5: _one("t", Tensor),
        6: _one("g", Graph),
        7: _many("floats", "float"),
        8: _many("ints", "int"),
        9: _many("strings", "bytes"),
        10: _many("tensors", Tensor),
        11: _many("graphs", Graph),
        14: _one("tp", Type),
        20: _one("type", "int32"),
        21: _one("ref_attr_name", "text"),
        22: _one("sparse_tensor", SparseTensor),
    },
    FLOAT=1, INT=2, STRING=3, TENSOR=4, GRAPH=5, FLOATS=6, INTS=7, STRINGS=8, TENSORS=9, GRAPHS=10, SPARSE_TENSOR=11,
    TYPE_PROTO=13,
)  # fmt: skip
Node = define(
    "Node",
    {
        1: _many("input", "text"),
        2: _many("output", "text"),
        3: _one("name", "text"),
        4: _one("op_type", "text"),
        5: _many("attribute", Attribute),
        7: _one("domain", "text"),
        8: _one("overload", "text"),
    },
)
complete(
    Graph,
    {
        1: _many("node", Node),
        2: _one("name", "text"),
        5: _many("initializer", Tensor),
        11: _many("input", ValueInfo),
        12: _many("output", ValueInfo),
        15: _many("sparse_initializer", SparseTensor),
    },
)
Function = define(
    "Function",
    {
        1: _one("name", "text"),
        4: _many("input", "text"),
        5: _many("output", "text"),
        7: _many("node", Node),
        9: _many("opset_import", Opset),
        10: _one("domain", "text"),
        11: _many("attribute_proto", Attribute),
        13: _one("overload", "text"),
    },
)
Model = define(
    "Model",
    {
        1: _one("ir_version", "int"),
        7: _one("graph", Graph),
        8: _many("opset_import", Opset),
        25: _many("functions", Function),
    },
)
