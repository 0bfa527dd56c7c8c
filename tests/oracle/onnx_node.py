"""One ONNX node through the op table: typed with static and with open dims, computed, and its types checked.

`ours` returns what the reference functions give, after checking that the inferred types say the same; `theirs` returns
what ONNX Runtime gives for the same node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import defs, helper

from tierup.ir.build import GraphBuilder
from tierup.ir.dims import evaluate as evaluate_dims
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import Array, Sym, TensorType, dtype_from_numpy
from tierup.reference.evaluate import evaluate

Inputs = Sequence[Array | None]
_OPSET = max(schema.since_version for schema in defs.get_all_schemas())


def schema_of(op: str, opset: int = _OPSET) -> defs.OpSchema:
    return defs.get_schema(op, opset)


def complete_attrs(op: str, opset: int, attrs: dict[str, Any]) -> Attrs:
    """The attributes with the schema's defaults filled in, as the front end hands them on."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(map(plain, value))
        return value.decode() if isinstance(value, bytes) else value

    defaults = {
        name: plain(helper.get_attribute_value(attribute.default_value))
        for name, attribute in schema_of(op, opset).attributes.items()
        if attribute.default_value.name
    }
    return Attrs(defaults | {name: plain(value) for name, value in attrs.items()})


def build(
    op: str, inputs: Inputs, opset: int = _OPSET, outputs: int = 1, open_dims: bool = False, **attrs: Any
) -> tuple[Graph, Weights]:
    """A graph of the one node. Vectors are weights, so that rules may read them; all else are inputs."""
    builder = GraphBuilder(Weights())
    ids: list[int | None] = []
    for array in inputs:
        if array is None:
            ids.append(None)
        elif array.ndim <= 1 and not open_dims:
            ids.append(builder.weight(array))
        else:
            dtype = dtype_from_numpy(array.dtype)
            assert dtype is not None
            ids.append(builder.open_input(dtype, [None if open_dims and array.ndim > 1 else d for d in array.shape]))
    schema = schema_of(op, opset)
    results = builder.node(
        f"onnx.{op}", ids, complete_attrs(op, opset, attrs), version=schema.since_version, outputs=(True,) * outputs
    )
    return builder.finish([value for value in results if value is not None]), builder.weights


def ours(
    op: str, inputs: Inputs, opset: int = _OPSET, outputs: int = 1, wide: bool = False, **attrs: Any
) -> list[Array]:
    results: list[list[Array]] = []
    for open_dims in (False, True):
        graph, weights = build(op, inputs, opset, outputs, open_dims, **attrs)
        given = [a for a in inputs if a is not None and (open_dims or a.ndim > 1)]
        results.append(evaluate(graph, weights, given, wide=wide))
        _check_types(graph, weights, given, results[-1], wide)
    for static, opened in zip(*results, strict=True):
        np.testing.assert_array_equal(static, opened)
    return results[0]


def _check_types(graph: Graph, weights: Weights, given: Sequence[Array], results: Sequence[Array], wide: bool) -> None:
    values = dict(zip((*graph.inputs, *graph.outputs), (*given, *results), strict=True))
    values |= {value: weights[digest] for value, digest in graph.weights}

    def read(op: str, value: int, index: int) -> int:
        return values[value].shape[index] if op == "of" else int(values[value].reshape(-1)[index])

    numbers = evaluate_dims(graph.dims, read)
    for value, result in zip(graph.outputs, results, strict=True):
        type = graph.type(value)
        assert isinstance(type, TensorType)
        assert wide or type.dtype.numpy == result.dtype
        assert type.shape is not None
        assert tuple(numbers[d.id] if isinstance(d, Sym) else d for d in type.shape) == result.shape


def unknown_dims(graph: Graph) -> int:
    """How many dims of the results are only known once the results exist."""
    count = 0
    for value in graph.outputs:
        type = graph.type(value)
        assert isinstance(type, TensorType)
        for dim in type.shape or ():
            count += isinstance(dim, Sym) and graph.dims[dim.id].op == "of" and graph.dims[dim.id].args[0] == value
    return count


def theirs(op: str, inputs: Inputs, opset: int = 20, outputs: int = 1, **attrs: Any) -> list[Array]:
    """ONNX Runtime's answer."""
    names = [f"i{i}" if array is not None else "" for i, array in enumerate(inputs)]
    node = helper.make_node(op, names, [f"o{i}" for i in range(outputs)], **attrs)
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(a.dtype) if a is not None else 0 for a in inputs]
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, kind, array.shape)
            for name, kind, array in zip(names, kinds, inputs, strict=True)
            if array is not None
        ],
        [helper.make_empty_tensor_value_info(f"o{i}") for i in range(outputs)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    return session.run(None, feeds)


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def assert_close(actual: Sequence[Array], expected: Sequence[Array], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Sums of some hundred f32 products of order 1, in two orders of addition."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        np.testing.assert_allclose(a, e, rtol=rtol, atol=atol)
