"""The ONNX backend's node tests as (model, inputs), in three forms, for comparing graphs before and after a rewrite."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace

from tierup.errors import TierupError
from tierup.frontends.onnx.load import load_onnx
from tierup.ir.dims import evaluate as evaluate_dims
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Sym, TensorType
from tierup.reference.evaluate import evaluate


class Case(Struct, frozen=True):
    """One node test: the model's only ops are what the suite wanted to test."""

    name: str
    model: Any
    inputs: tuple[Any, ...]

    @property
    def ops(self) -> set[str]:
        return {node.op_type for node in self.model.graph.node}


@cache
def node_cases() -> tuple[Case, ...]:
    """Every node test, once; those that ONNX expanded from functions repeat what others test."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes infinities on purpose
        tests = load_model_tests(kind="node")
    return tuple(
        Case(t.name, t.model, tuple(map(_array, t.data_sets[0][0]))) for t in tests if "_expanded" not in t.name
    )


def _array(value: Any) -> Any:
    """Some cases hold their inputs as protos."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def forms(case: Case) -> Iterator[tuple[str, Any, list[Any]]]:
    """The case as it is; with its integer parameters as constants; and with every size open besides."""
    yield "given", case.model, list(case.inputs)
    closed, inputs = _closed(case)
    yield "closed", closed, inputs
    yield "open", _opened(closed), inputs


def _closed(case: Case) -> tuple[Any, list[Any]]:
    """Axes, shapes, pads and scales that the suite feeds as inputs stand in the model, as exporters write them."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    first = {node.input[0] for node in model.graph.node if node.input}
    kept: list[Any] = []
    declared = list(model.graph.input)
    del model.graph.input[:]
    for value, array in zip(declared, case.inputs, strict=False):
        if _is_parameter(array) and value.name not in first:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), value.name))
        else:
            model.graph.input.append(value)
            kept.append(array)
    return model, kept


def _is_parameter(array: Any) -> bool:
    return isinstance(array, np.ndarray | np.generic) and array.ndim <= 1 and array.dtype.kind in "iubf"


def _opened(model: Any) -> Any:
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    for value in opened.graph.input:
        if value.type.WhichOneof("value") == "tensor_type" and value.type.tensor_type.HasField("shape"):
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.Clear()
                dim.dim_param = f"{value.name}_{axis}"
    return opened


def imported(model: Any) -> tuple[Graph, Weights] | None:
    """The model's graph; None where the front end refuses it, which is not what these tests are about."""
    try:
        loaded = load_onnx(model)
    except TierupError:
        return None
    return loaded.graph, loaded.weights


def answers(graph: Graph, weights: Weights, inputs: list[Any], *, wide: bool = False) -> list[Any] | None:
    """What the graph computes; None where it refuses the inputs."""
    try:
        return evaluate(graph, weights, inputs, wide=wide)
    except TierupError:
        return None


def mistyped(graph: Graph, weights: Weights, inputs: list[Any]) -> list[str]:
    """Where the dim program of a graph does not say what sizes its values really have."""
    produced = [value for node in graph.nodes for value in node.outputs if value is not None]
    everything = [*graph.inputs, *(value for value, _ in graph.weights), *produced]
    arrays = dict(zip(everything, evaluate(replace(graph, outputs=tuple(everything)), weights, inputs), strict=True))

    def read(op: str, value: int, index: int) -> int:
        return int(arrays[value].shape[index] if op == "of" else arrays[value].reshape(-1)[index])

    sizes = evaluate_dims(graph.dims, read)
    found = []
    for node in graph.nodes:
        for value in node.outputs:
            type = None if value is None else graph.type(value)
            if isinstance(type, TensorType) and type.shape is not None and value is not None:
                said = tuple(sizes[dim.id] if isinstance(dim, Sym) else dim for dim in type.shape)
                if said != arrays[value].shape:
                    found.append(f"{node.op} gives {arrays[value].shape}, but its type says {said}")
    return found


def differences(before: list[Any], exact: list[Any], after: list[Any]) -> list[str]:
    """Where `after` is not as good an answer as `before`, with `exact` the one in f64."""
    return [
        f"output {index}: {problem}"
        for index, (a, b, c) in enumerate(zip(before, exact, after, strict=True))
        if (problem := _difference(a, b, c))
    ]


def _difference(before: Any, exact: Any, after: Any) -> str:
    if not isinstance(before, np.ndarray):
        return "" if repr(before) == repr(after) else "not the same"
    if after.dtype != before.dtype or after.shape != before.shape:
        return f"{after.dtype}{after.shape} instead of {before.dtype}{before.shape}"
    if before.dtype.kind in "iubOSc" or not _is_float(before):
        return "" if np.array_equal(before, after) else "integers differ"
    a, b, c = (np.asarray(array, np.float64) for array in (before, exact, after))
    if not np.array_equal(np.where(np.isfinite(a), 0, a), np.where(np.isfinite(c), 0, c), equal_nan=True):
        return "NaN or infinity at other places"
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return ""
    # As good as before: within four times the worst error before, or within a few roundings of the largest number,
    # which is what a sum in another order may lose.
    a, b, c = a[finite], b[finite], c[finite]
    bound = 4 * np.abs(a - b).max() + 8 * _eps(before) * np.abs(b).max()
    worst = np.abs(c - b).max()
    return "" if worst <= bound else f"error {worst:.3g} instead of {np.abs(a - b).max():.3g}"


def _is_float(array: Any) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _eps(array: Any) -> float:
    return float(ml_dtypes.finfo(array.dtype).eps)
