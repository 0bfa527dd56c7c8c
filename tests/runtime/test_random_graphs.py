"""Random core graphs, compiled and run by the native program, give the reference's answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lower.core_graphs import CoreDraw
from tests.runtime.programs import runner

from tierup.codegen.target import AVX2, target_of
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Array, DType
from tierup.profile.machine import identify
from tierup.reference.evaluate import evaluate
from tierup.runtime.compiled import compile_plan
from tierup.runtime.executable import executable
from tierup.runtime.kernels import publish

HOST = target_of(identify()) or AVX2


def compiled(graph: Graph, weights: Weights, feeds: list[Array]) -> list[Array]:
    """The answers of the compiled plan."""
    plan = compile_plan(graph, weights, HOST)
    program = executable(plan.plan, weights)
    publish(program, plan.programs, HOST)
    names = [f"i{value}" for value in graph.inputs]
    outputs = [f"o{number}" for number in range(len(graph.outputs))]
    specs = [(name, _code(feed), None, True) for name, feed in zip(names, feeds, strict=True)]
    answers = runner(specs, outputs, program).run(dict(zip(names, feeds, strict=True)))
    return [answers[name] for name in outputs]


def _code(array: Array) -> int:
    return next(dtype.code for dtype in DType if dtype.numpy == array.dtype)


@pytest.mark.parametrize("dtypes", [(DType.F32, DType.I64, DType.I32), (DType.F64, DType.U8, DType.I16)], ids=repr)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_graphs(dtypes: tuple[DType, ...], data: st.DataObject) -> None:
    draw = CoreDraw(data, dtypes)
    graph, weights = draw.graph(16)
    feeds = draw.feeds(graph)
    for got, wanted in zip(compiled(graph, weights, feeds), evaluate(graph, weights, feeds), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert np.array_equal(got, wanted), graph
