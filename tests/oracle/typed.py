"""One node of any domain through its type rule and its reference function, with plain and with open sizes.

Inputs may be arrays, lists (sequences), dicts (maps) or None. What the rule infers must be what the function gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import defs, helper

from tierup.ir.build import GraphBuilder
from tierup.ir.dims import evaluate as evaluate_dims
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import (
    DType,
    MapType,
    OptionalType,
    SequenceType,
    Sym,
    TensorType,
    Type,
    dtype_from_numpy,
)
from tierup.reference.evaluate import evaluate

_DOMAINS = {"onnx": "", "ml": "ai.onnx.ml", "training": "ai.onnx.preview.training"}
Graphs = tuple[tuple[str, Graph], ...]


def run(op: str, *inputs: Any, version: int = 0, outputs: int = 1, graphs: Graphs = (), **attrs: Any) -> list[Any]:
    """The outputs of one node, after its types were checked. `version` 0 is the newest one."""
    version, complete = _schema(op, version, attrs)
    for open_dims in (True, False):
        builder = GraphBuilder(Weights())
        ids = [None if value is None else add_input(builder, value, open_dims) for value in inputs]
        made = builder.node(op, ids, complete, version=version, outputs=(True,) * outputs, graphs=graphs)
        graph = builder.finish([value for value in made if value is not None])
        fed = set(graph.inputs)
        given = [value for value, id in zip(inputs, ids, strict=True) if id in fed]
        results = evaluate(graph, builder.weights, given)
        evaluate(graph, builder.weights, given, wide=True)
        check(graph, builder.weights, given, results)
    return results


def add_input(builder: GraphBuilder, value: Any, open_dims: bool) -> int:
    if not isinstance(value, np.ndarray):
        return builder.input(type_of(value))
    if value.dtype == np.int64 and value.ndim == 1 and not open_dims:
        return builder.weight(value)  # sizes and positions are constants in most models
    # sizes in tests are vectors of i64, whose length a rule must know
    shape = [None] * value.ndim if open_dims and value.dtype != np.int64 else list(value.shape)
    return builder.open_input(_dtype(value), shape)


def type_of(value: Any) -> Type:
    if isinstance(value, np.ndarray | np.generic):
        return TensorType(_dtype(value), None if value.ndim else ())
    if isinstance(value, list):
        return SequenceType(type_of(value[0]) if value else TensorType(DType.F32, None))
    if isinstance(value, dict):
        key, item = next(iter(value.items()))
        return MapType(DType.STR if isinstance(key, str) else DType.I64, type_of(item))
    return TensorType(DType.STR if isinstance(value, str) else DType.F32, ())


def _dtype(value: Any) -> DType:
    dtype = dtype_from_numpy(value.dtype)
    assert dtype is not None
    return dtype


def check(graph: Graph, weights: Weights, given: Sequence[Any], results: Sequence[Any]) -> None:
    """Every inferred dtype, rank and size is that of the result."""
    values = dict(zip(graph.inputs, given, strict=True)) | dict(zip(graph.outputs, results, strict=True))
    values |= {value: weights[digest] for value, digest in graph.weights}

    def read(kind: str, value: int, index: int) -> int:
        return values[value].shape[index] if kind == "of" else int(values[value].reshape(-1)[index])

    sizes = evaluate_dims(graph.dims, read)
    for value, result in zip(graph.outputs, results, strict=True):
        type = graph.type(value)
        if isinstance(type, TensorType):
            assert dtype_from_numpy(result.dtype) is type.dtype
            if type.shape is not None:
                assert [sizes[d.id] if isinstance(d, Sym) else d for d in type.shape] == list(result.shape)
        elif isinstance(type, SequenceType):
            assert isinstance(result, list)
        else:
            assert isinstance(type, OptionalType)


def _schema(op: str, version: int, attrs: dict[str, Any]) -> tuple[int, Attrs]:
    """The version in force, and the attributes with the schema's defaults; core ops have neither."""
    domain, _, name = op.partition(".")
    if domain == "core":
        return 1, Attrs(attrs)
    newest = defs.onnx_opset_version() if domain == "onnx" else {"ml": 5, "training": 1}[domain]
    schema = defs.get_schema(name, version or newest, _DOMAINS[domain])
    defaults = {
        key: _plain(helper.get_attribute_value(attribute.default_value))
        for key, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    return schema.since_version, Attrs(defaults | {key: _plain(value) for key, value in attrs.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value.decode() if isinstance(value, bytes) else value
