"""OneHot whose number of classes comes with the call."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rewrite.lowered import lowered, single

from tierup.ir.types import Array
from tierup.reference.evaluate import evaluate

INDICES = np.array([[0, 2, -1], [7, -9, 3]])


@pytest.mark.parametrize("form", ["static", "open"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth", [np.array(4), np.array([1], np.int32), np.array(4.0, np.float32), np.array(0)])
def test_classes_are_counted_in_the_call(depth: Array, axis: int, form: str) -> None:
    values = np.array([-1, 5], np.float32)
    graph, weights, feeds = single("onnx.OneHot", [INDICES, depth, values], form, axis=axis)
    after = lowered(graph, weights)
    (wanted,), (got,) = evaluate(graph, weights, feeds), evaluate(after, weights, feeds)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(got, wanted)
