"""Checks one node against an answer that others gave: its result in every style of graph, and its inferred types.

Styles differ in what is known when types are inferred. In each of them, the sizes that the type rule promised must be
the sizes that came out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tierup.ir.build import GraphBuilder
from tierup.ir.dims import evaluate as evaluate_dims
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import Sym, TensorType, dtype_from_numpy
from tierup.reference.evaluate import evaluate

STYLES = ("constant", "closed", "open", "runtime", "opaque")
"""constant: everything is a weight. closed: all sizes are numbers, operands are weights. open: the sizes of the data
are open. runtime: operands come with the call, but their sizes are known. opaque: everything comes with the call and
nothing is known but the rank."""


def since(op: str, opset: int) -> int:
    """The version of the schema that is in force in `opset`."""
    return int(onnx.defs.get_schema(op, opset, "").since_version)


def defaults(op: str, opset: int, attrs: dict[str, Any]) -> dict[str, Any]:
    """`attrs` with the schema's defaults, as the front end would give them."""
    filled = {}
    for name, schema in onnx.defs.get_schema(op, opset, "").attributes.items():
        if schema.default_value.name:
            value = onnx.helper.get_attribute_value(schema.default_value)
            filled[name] = value.decode() if isinstance(value, bytes) else value
    return {**filled, **attrs}


def build(style: str, op: str, opset: int, inputs: Sequence[Any], attrs: dict[str, Any], outputs: int = 1) -> Any:
    """A graph with this one node, its weights, and what is to be fed."""
    return _build(style, op, opset, inputs, attrs, outputs)[1:]


def _build(style: str, op: str, opset: int, inputs: Sequence[Any], attrs: dict[str, Any], outputs: int) -> Any:
    weights = Weights()
    builder = GraphBuilder(weights)
    ids: list[int | None] = []
    feeds = []
    for index, array in enumerate(inputs):
        if array is None:
            ids.append(None)
        elif style == "constant" or (index and style in ("closed", "open")):
            ids.append(builder.weight(array))
        else:
            closed = style == "closed" or (index and style == "runtime")
            ids.append(
                builder.open_input(dtype_from_numpy(array.dtype), array.shape if closed else [None] * array.ndim)
            )
            feeds.append(array)
    results = builder.node(
        f"onnx.{op}", ids, Attrs(defaults(op, opset, attrs)), version=since(op, opset), outputs=[True] * outputs
    )
    return builder, builder.finish(results), weights, feeds


def sizes_of(graph: Graph, weights: Weights, feeds: Sequence[Any], results: Sequence[Any]) -> list[int]:
    """Every size that the graph's dim program gives for this call."""
    values = {value: weights[digest] for value, digest in graph.weights}
    values.update(zip(graph.inputs, feeds, strict=True))
    values.update(zip(graph.outputs, results, strict=True))

    def read(kind: str, value: int, index: int) -> int:
        return values[value].shape[index] if kind == "of" else int(values[value].reshape(-1)[index])

    return evaluate_dims(graph.dims, read)


def assert_types_hold(graph: Graph, weights: Weights, feeds: Sequence[Any], results: Sequence[Any]) -> None:
    """The inferred dtypes and sizes are those of the results."""
    sizes = sizes_of(graph, weights, feeds, results)
    for value, result in zip(graph.outputs, results, strict=True):
        type = graph.type(value)
        assert isinstance(type, TensorType)
        assert type.dtype.numpy == result.dtype
        if type.shape is not None:
            assert tuple(sizes[d.id] if isinstance(d, Sym) else d for d in type.shape) == result.shape


def check(
    style: str, op: str, opset: int, inputs: Sequence[Any], attrs: dict[str, Any], expected: Sequence[Any]
) -> None:
    """One node in one style gives `expected`, in types that hold."""
    builder, graph, weights, feeds = _build(style, op, opset, inputs, attrs, len(expected))
    results = evaluate(graph, weights, feeds)
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.shape == wanted.shape
        np.testing.assert_array_equal(result, wanted)
    assert_types_hold(graph, weights, feeds, results)
    sizes = sizes_of(graph, weights, feeds, results)
    for value, result in zip(graph.outputs, results, strict=True):
        content = builder.content(value)
        if content is not None:
            assert [sizes[d.id] if isinstance(d, Sym) else d for d in content] == result.reshape(-1).tolist()


def model(op: str, opset: int, inputs: Sequence[Any], attrs: dict[str, Any], outputs: int = 1) -> onnx.ModelProto:
    """The same node as an ONNX model."""
    names = ["" if array is None else f"i{i}" for i, array in enumerate(inputs)]
    results = [f"o{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op, names, results, **attrs)
    given = [
        onnx.helper.make_tensor_value_info(name, dtype_from_numpy(array.dtype).code, array.shape)
        for name, array in zip(names, inputs, strict=True)
        if array is not None
    ]
    graph = onnx.helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name=name) for name in results])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def from_onnxruntime(op: str, opset: int, inputs: Sequence[Any], attrs: dict[str, Any], outputs: int = 1) -> list[Any]:
    """What ONNX Runtime answers."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    proto = model(op, opset, inputs, attrs, outputs).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return session.run(None, {f"i{i}": array for i, array in enumerate(inputs) if array is not None})  # type: ignore[no-any-return]


def from_onnx(op: str, opset: int, inputs: Sequence[Any], attrs: dict[str, Any], outputs: int = 1) -> list[Any]:
    """What the reference evaluator of the onnx package answers."""
    evaluator = ReferenceEvaluator(model(op, opset, inputs, attrs, outputs))
    return evaluator.run(None, {f"i{i}": array for i, array in enumerate(inputs) if array is not None})  # type: ignore[return-value]
