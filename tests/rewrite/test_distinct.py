"""Unique by its keys' bits: every type, axis and order against the op itself, and compiled without call-outs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from tests.adapt.networks import HOST
from tests.rewrite.graphs import made, ops
from tests.security.models import model, node, value

import tierup
from tierup.adapt.case import Case, cases_of
from tierup.frontends.onnx import load_onnx
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import lower_to_core
from tierup.runtime.compiled import compile_plan

RANDOM = np.random.default_rng(0)
FEW = RANDOM.integers(0, 3, (7, 2, 3))


def unique(dtype: DType, shape: tuple[Any, ...], **attrs: Any) -> tuple[Graph, Weights]:
    def build(b: GraphBuilder) -> list[Any]:
        return list(b.node("onnx.Unique", (b.open_input(dtype, shape),), Attrs(attrs), version=11, outputs=(True,) * 4))

    return made(build)


def check(graph: Graph, weights: Weights, x: Any) -> None:
    after = lower_to_core(graph, weights)
    verify(after, weights)
    assert "onnx.Unique" not in ops(after)
    for got, wanted in zip(evaluate(after, weights, [x]), evaluate(graph, weights, [x]), strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I64, DType.U8, DType.BOOL])
def test_slices_are_those_of_the_op(dtype: DType, axis: int | None, in_order: int) -> None:
    attrs = {"sorted": in_order} | ({} if axis is None else {"axis": axis})
    graph, weights = unique(dtype, ("a", "b", "c"), **attrs)
    for x in (FEW, FEW[:1], FEW[:0], FEW[:, :, :0], np.zeros_like(FEW)):
        check(graph, weights, x.astype(dtype.numpy))


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (DType.F32, [np.nan, 1, -0.0, 0.0, np.nan, -np.inf, np.inf, -3, 1, 1e-45, -1e-45]),
        (DType.F64, [np.nan, 1, -0.0, 0.0, np.nan, -np.inf, np.inf, -3, 1, 5e-324]),
        (DType.I64, [2**63 - 1, -(2**63), 0, -1, 2**63 - 1]),
        (DType.U64, [2**64 - 1, 0, 2**63, 2**64 - 1]),
        (DType.I32, [2**31 - 1, -(2**31), 0, -1]),
        (DType.U32, [2**32 - 1, 0, 2**31]),
        (DType.I8, [-128, 127, 0, -128]),
        (DType.BF16, [1.5, -1.5, 0, np.inf]),
    ],
)
def test_numbers_at_the_ends_of_their_types(dtype: DType, numbers: list[float], in_order: int) -> None:
    graph, weights = unique(dtype, ("n",), sorted=in_order)
    check(graph, weights, np.array(numbers).astype(dtype.numpy) if dtype.is_float else np.array(numbers, dtype.numpy))


def test_many_numbers() -> None:
    graph, weights = unique(DType.F32, ("n",))
    check(graph, weights, RANDOM.standard_normal(5000).astype(np.float32).round(2))


def outermost(proto: Any) -> Any:
    imported = load_onnx(proto)
    return compile_plan(imported.graph, imported.weights, HOST), imported.weights


def network() -> Any:
    """exp of the distinct rows of relu(x), and how often each comes."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Unique", ["r"], ["u", "", "", "count"], axis=0),
        node("Exp", ["u"], ["y"]),
    ]
    outputs = [value("y", [None, 2]), value("count", [None], TensorProto.INT64)]
    return model(nodes, [value("x", ["n", 2])], outputs)


def test_all_of_it_is_kernels_that_can_be_proved() -> None:
    compiled, weights = outermost(network())
    assert [alone for function in compiled.all_functions for alone in function.alone] == []
    cases = [case for function in compiled.all_functions for _, case in cases_of(function, weights)]
    assert all(isinstance(case, Case) for case in cases)


def test_what_follows_runs_over_as_many_as_there_are() -> None:
    compiled = tierup.load(network(), config=tierup.Config(force_tier=1))
    assert compiled.report().fallback_nodes == 0
    x = np.array([[1, 0], [0, 2], [1, -3], [-1, 2], [1, 0]], np.float32)
    found = compiled(x=x)
    np.testing.assert_allclose(found["y"], np.exp([[0, 2], [1, 0]]), rtol=1e-6)  # two results of exp in f32
    assert found["count"].tolist() == [2, 3]


def test_strings_stay() -> None:
    proto = model([node("Unique", ["x"], ["y"])], [value("x", ["n"], TensorProto.STRING)], [])
    proto.graph.output.append(value("y", [None], TensorProto.STRING))
    imported = load_onnx(proto)
    assert "onnx.Unique" in ops(lower_to_core(imported.graph, imported.weights))
