"""Models of one recurrent layer, and inputs for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from tests.security.models import model, node, value

from tierup.ir.types import Array

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
INPUTS = 5
KINDS = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.float16: TensorProto.FLOAT16}


def layer(
    op: str,
    hidden: int,
    *,
    lengths: bool = True,
    constant: bool = True,
    outputs: tuple[str, ...] = ("y", "h", "c"),
    dtype: Any = np.float32,
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one layer whose time and batch are open; with `constant` its weights are in the model."""
    random, directions = np.random.default_rng(hidden), 2 if attrs.get("direction") == "bidirectional" else 1
    rows, kind = GATES[op] * hidden, KINDS[dtype]
    shapes = {"w": (rows, INPUTS), "r": (rows, hidden), "b": (2 * rows,), "p": (3 * hidden,)}
    arrays = {
        name: (random.standard_normal((directions, *shape)) * shape[-1] ** -0.5).astype(dtype)
        for name, shape in shapes.items()
    }
    states = ["h0", "c0"][: STATES[op]]
    names = ["x", "w", "r", "b", "lengths" if lengths else "", *states, *(["p"] if op == "LSTM" else [])]
    inputs = [value("x", ["t", "n", INPUTS], kind)]
    inputs += [value(name, [directions, "n", hidden], kind) for name in states]
    inputs += [value("lengths", ["n"], TensorProto.INT32)] if lengths else []
    weights = {name: array for name, array in arrays.items() if name in names}
    if not constant:
        inputs += [value(name, list(array.shape), kind) for name, array in weights.items()]
    return model(
        [node(op, names, list(outputs[: 1 + STATES[op]]), hidden_size=hidden, **attrs)],
        inputs,
        [value(name, [""] * (4 if name == "y" else 3), kind) for name in outputs[: 1 + STATES[op]] if name],
        [numpy_helper.from_array(array, name) for name, array in weights.items()] if constant else [],
    )


def feeds(proto: onnx.ModelProto, time: int, batch: int) -> dict[str, Array]:
    random = np.random.default_rng(time + batch)
    found: dict[str, Array] = {}
    for given in proto.graph.input:
        shape = [{"t": time, "n": batch}.get(d.dim_param, d.dim_value) for d in given.type.tensor_type.shape.dim]
        if given.name == "lengths":
            found["lengths"] = random.integers(0, time + 1, batch).astype(np.int32)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
            scale = shape[-1] ** -0.5 if given.name in "wr" else 1
            found[given.name] = (random.standard_normal(shape) * scale).astype(dtype)
    return found
