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
from tierup.lower.text import print_program
from tierup.profile.machine import identify
from tierup.reference.evaluate import evaluate
from tierup.runtime.compiled import compile_plan
from tierup.runtime.executable import executable
from tierup.runtime.kernels import publish
from tierup.store.objects import program_digest

HOST = target_of(identify()) or AVX2


def compiled(graph: Graph, weights: Weights, feeds: list[Array], without: frozenset[int] = frozenset()) -> list[Array]:
    """The answers of the compiled plan; the reference stands in for the kernels of some slots."""
    plan = compile_plan(graph, weights, HOST)
    if without:
        texts = [print_program(program) for slot, program in enumerate(plan.programs) if slot in without]
        plan = compile_plan(graph, weights, HOST, refused={program_digest(text): "why not" for text in texts})
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
    without = data.draw(st.frozensets(st.integers(0, 7), max_size=3))
    for got, wanted in zip(compiled(graph, weights, feeds, without), evaluate(graph, weights, feeds), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert np.array_equal(got, wanted), graph
