"""Reductions of two to five elements that lie side by side: lanes are rows, as far as there are any."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from tests.security.models import model, node, value

import tierup

RANDOM = np.random.default_rng(12)


def exact(op: str, x: Any) -> Any:
    if op == "Softmax":
        weights = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
        return weights / weights.sum(-1, keepdims=True)
    if op == "ArgMax":
        return x.argmax(-1)
    return {"ReduceSum": np.sum, "ReduceProd": np.prod, "ReduceMax": np.max}[op](x, axis=-1)


def proto(op: str, shape: list[Any]) -> onnx.ModelProto:
    kept = len(shape) - (op != "Softmax")
    axes = onnx.numpy_helper.from_array(np.array([-1]), "axes")
    nodes = {
        "Softmax": [node(op, ["x"], ["y"], axis=-1)],
        "ArgMax": [node(op, ["x"], ["y"], axis=-1, keepdims=0)],
        "ReduceSum": [node(op, ["x", "axes"], ["y"], keepdims=0)],
    }.get(op, [node(op, ["x"], ["y"], axes=[-1], keepdims=0)])
    kind = onnx.TensorProto.INT64 if op == "ArgMax" else onnx.TensorProto.FLOAT
    return model(nodes, [value("x", shape)], [value("y", [None] * kept, kind)], [axes])


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd", "ReduceMax", "Softmax", "ArgMax"])
@pytest.mark.parametrize("terms", [2, 3, 4, 5])
def test_of_rows_that_fill_the_lanes_or_do_not(op: str, terms: int) -> None:
    compiled = tierup.load(proto(op, ["a", "b", terms]), config=tierup.Config(force_tier=1))
    assert compiled.report().fallback_nodes == 0
    for a, b in ((1, 1), (1, 15), (1, 16), (2, 17), (3, 33), (1, 100), (0, 4)):
        x = RANDOM.integers(-2, 3, (a, b, terms)).astype(np.float32) * np.float32(1.25)  # many are equal
        np.testing.assert_allclose(compiled(x=x)["y"], exact(op, x.astype(np.float64)), rtol=4e-7)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(strange: float) -> None:
    compiled = tierup.load(proto("ReduceSum", [40, 3]), config=tierup.Config(force_tier=1))
    x = RANDOM.standard_normal((40, 3)).astype(np.float32)
    x[17, 1] = strange
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(compiled(x=x)["y"], x.astype(np.float64).sum(-1), rtol=1e-5, atol=1e-6)
