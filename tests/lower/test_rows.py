"""Regions as they are cut and lowered compute what the reference does: random graphs in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lower.core_graphs import CoreDraw
from tests.lower.cuts import CutRun

from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate


@pytest.mark.parametrize(
    "dtypes",
    [
        (DType.F32, DType.I64, DType.I32),
        (DType.F64, DType.U8, DType.I16),
        (DType.I8, DType.U32, DType.U64),
        (DType.U16, DType.I64),
    ],
    ids=repr,
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_graphs(dtypes: tuple[DType, ...], data: st.DataObject) -> None:
    draw = CoreDraw(data, dtypes)
    graph, weights = draw.graph()
    verify(graph, weights)
    feeds = draw.feeds(graph)
    expected = evaluate(graph, weights, feeds)
    run = CutRun(graph, weights, feeds)
    for got, wanted in zip(run.outputs(), expected, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert np.array_equal(got, wanted), f"\n{graph}\n{run.cut}\n{got}\n{wanted}"
