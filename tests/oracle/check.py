"""Runs one op through its type rule and its reference function and checks that the two agree.

`run` builds three graphs: with plain sizes, with open sizes, and with the inputs as weights (so that the rule sees
their content). In each the inferred dtype, shape and content must be those of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from tierup.ir import dims
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Const, Graph, Weights
from tierup.ir.infer import Infer
from tierup.ir.ops import lookup
from tierup.ir.types import Array, DType, Sym, TensorType, dtype_from_numpy
from tierup.reference.evaluate import evaluate

NEWEST = 28


def schema(op: str, opset: int = NEWEST) -> Any:
    return defs.get_schema(op, opset, "")


def versions(op: str) -> list[int]:
    """Every version of `op` that a model of opset 7 or later may use."""
    return sorted({schema(op, opset).since_version for opset in range(7, NEWEST + 1) if _exists(op, opset)})


def _exists(op: str, opset: int) -> bool:
    try:
        return not schema(op, opset).deprecated
    except defs.SchemaError:
        return False


def attributes(op: str, opset: int, given: dict[str, Any]) -> Attrs:
    """`given` plus the defaults of the schema, as the front end passes them."""
    values = {name: _plain(a.default_value) for name, a in schema(op, opset).attributes.items() if a.default_value.name}
    return Attrs(values | given)


def _plain(attribute: Any) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else tuple(value) if isinstance(value, list) else value


def run(op: str, *inputs: Array | None, opset: int = NEWEST, outputs: int = 1, wide: bool = True, **attrs: Any) -> Any:
    """The outputs of `onnx.<op>`, a tuple where `outputs` is above 1, after the checks above.

    With `wide` the oracle's f64 form must also run and give the same shapes.
    """
    results: list[Any] = []
    for form in ("plain", "open", "weights"):
        graph, builder = _graph(op, inputs, opset, outputs, attrs, form)
        feeds = [] if form == "weights" else [x for x in inputs if x is not None]
        results = evaluate(graph, builder.weights, feeds)
        _check_types(graph, builder, feeds, results)
        if wide:
            widened = evaluate(graph, builder.weights, feeds, wide=True)
            assert [w.shape for w in widened] == [r.shape for r in results]
            assert not any(w.dtype == np.float32 for w in widened)
    return tuple(results) if outputs > 1 else results[0]


def _graph(
    op: str, inputs: Sequence[Array | None], opset: int, outputs: int, attrs: dict[str, Any], form: str
) -> tuple[Graph, GraphBuilder]:
    builder = GraphBuilder(Weights())
    values: list[int | None] = []
    for x in inputs:
        if x is None:
            values.append(None)
        elif form == "weights":
            values.append(builder.weight(x))
        else:
            dtype = dtype_from_numpy(x.dtype)
            assert dtype is not None
            values.append(builder.open_input(dtype, [None] * x.ndim if form == "open" else list(x.shape)))
    filled = attributes(op, opset, attrs)
    version = schema(op, opset).since_version
    made = builder.node(f"onnx.{op}", values, filled, version=version, outputs=[True] * outputs)
    return builder.finish([value for value in made if value is not None]), builder


def _check_types(graph: Graph, builder: GraphBuilder, feeds: list[Any], results: list[Any]) -> None:
    known = dict(zip(graph.inputs, feeds, strict=True)) | dict(zip(graph.outputs, results, strict=True))
    known |= {value: builder.weights[digest] for value, digest in graph.weights}

    def read(op: str, value: int, index: int) -> int:
        return known[value].shape[index] if op == "of" else int(known[value].reshape(-1)[index])

    sizes = dims.evaluate(graph.dims, read)
    for value, result in zip(graph.outputs, results, strict=True):
        type = graph.type(value)
        assert isinstance(type, TensorType)
        assert type.dtype is dtype_from_numpy(result.dtype)
        if type.shape is not None:
            assert tuple(sizes[d.id] if isinstance(d, Sym) else d for d in type.shape) == result.shape
        content = builder.content(value)
        if content is not None:
            assert [sizes[d.id] if isinstance(d, Sym) else d for d in content] == [int(v) for v in result.reshape(-1)]


def infer(
    op: str,
    *inputs: tuple[DType, Any] | None,
    contents: Sequence[Any] = (),
    opset: int = NEWEST,
    builder: dims.DimBuilder | None = None,
    wanted: int = 1,
    **attrs: Any,
) -> Sequence[Any]:
    """What the type rule of `onnx.<op>` answers for inputs of these dtypes and shapes."""
    row = lookup(f"onnx.{op}")
    assert row is not None
    padded = (*contents, *(None for _ in range(len(inputs) - len(contents))))
    return row.infer(
        Infer(
            op=row.name,
            version=schema(op, opset).since_version,
            attrs=attributes(op, opset, attrs),
            inputs=tuple(None if i is None else TensorType(*i) for i in inputs),
            wanted=(True,) * wanted,
            dims=builder or dims.DimBuilder(),
            graphs=(),
            ids=tuple(range(len(inputs))),
            contents=padded,
            constants=lambda value: None,
        )
    )


def model(op: str, inputs: Sequence[Array | None], opset: int, outputs: int, attrs: dict[str, Any]) -> onnx.ModelProto:
    """One node in a model, for other engines."""
    plain = {k: numpy_helper.from_array(v.array) if isinstance(v, Const) else v for k, v in attrs.items()}
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **plain)
    ins = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    outs = [helper.make_tensor_value_info(f"y{i}", TensorProto.UNDEFINED, None) for i in range(outputs)]
    graph = helper.make_graph([node], "g", ins, outs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def onnx_reference(op: str, *inputs: Array | None, opset: int = NEWEST, outputs: int = 1, **attrs: Any) -> Any:
    """The same node in onnx.reference."""
    from onnx.reference import ReferenceEvaluator

    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    results = ReferenceEvaluator(model(op, inputs, opset, outputs, attrs)).run(None, feeds)
    return tuple(results) if outputs > 1 else results[0]


def close(actual: Array, expected: Any, ulps: float = 8, scale: float = 1.0) -> None:
    """`actual` within `ulps` units in the last place of its own dtype, measured at |expected| + `scale`."""
    wide = np.asarray(expected, np.float64)
    got = actual.astype(np.float64)
    assert got.shape == wide.shape
    with np.errstate(all="ignore"):
        eps = float(2.0 ** -_mantissa_bits(actual.dtype))
        same = (got == wide) | (np.isnan(got) & np.isnan(wide))
        near = np.abs(got - wide) <= ulps * eps * (np.abs(wide) + scale)
    assert (same | near).all(), f"{got[~(same | near)]} is not {wide[~(same | near)]}"


def _mantissa_bits(dtype: np.dtype[Any]) -> int:
    return {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtype.name]
