"""Over every model of the ONNX suite: the types that were inferred are those of the values that come out.

Dtypes, ranks, every dim program and every known content are compared with the evaluated graph, with the dims of the
inputs left open: what a compiler will rely on, checked on models that nobody here wrote.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from tierup.frontends.onnx import load_onnx
from tierup.ir.dims import DimError, evaluate
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Sym, TensorType
from tierup.reference.bind import bind
from tierup.reference.control import CONTROL
from tierup.reference.evaluate import evaluate as run


def node_cases() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in cases:
        if case.model is not None and case.data_sets:
            yield case.name, case.model, [_value(given) for given in case.data_sets[0][0]]


def _value(given: Any) -> Any:
    return onnx.numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with every input dim left open."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        if value.type.WhichOneof("value") == "tensor_type":
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    for value in copy.graph.output:
        value.type.Clear()
    return copy


def all_values(graph: Graph, weights: Weights, inputs: list[Any]) -> dict[int, Any]:
    """Every value of the outermost graph."""
    values: dict[int, Any] = {value: weights[digest] for value, digest in graph.weights}
    values.update(zip(graph.inputs, inputs, strict=False))
    values.update({value: weights[digest] for value, digest in graph.defaults if value not in values})
    for node in graph.nodes:
        arguments = [None if value is None else values[value] for value in node.inputs]

        def run_body(body: Graph, given: Any) -> list[Any]:
            return run(body, weights, given)

        control = CONTROL.get(node.op)
        results = control(node, arguments, run_body) if control else bind(node, run_body)(*arguments)
        values.update({v: r for v, r in zip(node.outputs, results, strict=False) if v is not None})
    return values


def mismatches(graph: Graph, values: dict[int, Any]) -> list[str]:
    """Where inferred types differ from the values."""

    def read(op: str, value: int, index: int) -> int:
        array = np.asarray(values[value])
        return array.shape[index] if op == "of" else int(array.reshape(-1)[index])

    wrong = []
    dims = _lenient_dims(graph, read)
    for index, value in enumerate(graph.values):
        if not isinstance(value.type, TensorType) or not isinstance(values.get(index), np.ndarray | np.generic):
            continue
        actual = np.asarray(values[index])
        if actual.dtype != value.type.dtype.numpy and value.type.dtype.numpy != np.object_:
            wrong.append(f"%{index} is {actual.dtype}, not {value.type!r}")
        if value.type.shape is not None:
            inferred = tuple(dims[d.id] if isinstance(d, Sym) else d for d in value.type.shape)
            if inferred != actual.shape:
                wrong.append(f"%{index} {graph.value_name(index)} is {actual.shape}, not {inferred} = {value.type!r}")
    return wrong


def _lenient_dims(graph: Graph, read: Any) -> list[int | None]:
    """Dims in order; one that has no answer (content that no shape uses may divide by zero) is None."""
    results: list[int | None] = []
    for position in range(len(graph.dims)):
        op = graph.dims[position]
        known = [results[a.id] if isinstance(a, Sym) else a for a in op.args]
        try:
            constant = [graph.dims[position].__class__(op.op, tuple(known))]  # type: ignore[arg-type]
            results.append(None if None in known else evaluate(constant, read)[0])
        except (DimError, KeyError, IndexError):
            results.append(None)
    return results


@pytest.mark.parametrize("open_dims", [False, True], ids=["static", "open"])
def test_inferred_types_are_the_actual_ones(open_dims: bool) -> None:
    wrong, count = [], 0
    for name, model, inputs in node_cases():
        imported = load_onnx(opened(model) if open_dims else model)
        values = all_values(imported.graph, imported.weights, inputs)
        wrong += [f"{name}: {line}" for line in mismatches(imported.graph, values)]
        count += 1
    assert count > 1800
    assert not wrong, "\n".join(wrong[:40])
