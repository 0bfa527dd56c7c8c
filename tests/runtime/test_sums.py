"""Long sums of compiled kernels are added up in blocks: they are as good as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tierup


def reduction(op: str, axes: list[int], shape: list[Any]) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", "axes"], ["y"], keepdims=0)
    constant = helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph([node], "sums", [x], [y], [constant]), ir_version=10)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((40, 70_001), [1]),  # lanes add up
        ((40, 300, 257), [1, 2]),  # one axis of both
        ((300, 40, 257), [0, 2]),  # a loop around lanes that add up
        ((9, 7_001, 40), [0, 1]),  # lanes of their own
        ((20_011, 40), [0]),
    ],
)
def test_long_sums_lose_no_more_than_pairwise_ones(shape: tuple[int, ...], axes: list[int], closed: bool) -> None:
    """Twice NumPy's RMS error would be refused in a proof; of 40 sums of positive numbers an RMS is sure to a fifth.

    NumPy adds up pairwise along the last axis alone: along others we are far better.
    """
    x = np.random.default_rng(0).random(shape, np.float32)
    proto = reduction("ReduceSum", axes, list(shape) if closed else [None] * len(shape))
    with tierup.load(proto, config=tierup.Config(force_tier=1)) as model:
        assert model.report().to_dict()["counters"]["fallback_nodes"] == 0
        got = model(x=x)["y"]
    exact = x.sum(axis=tuple(axes), dtype=np.float64)
    errors = [np.sqrt(np.mean((sums - exact) ** 2)) for sums in (got, x.sum(axis=tuple(axes)))]
    least = np.sqrt(np.mean(np.spacing(exact.astype(np.float32)) ** 2)) / np.sqrt(12)  # of one rounding
    assert errors[0] <= 1.5 * max(errors[1], least)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    x = np.ones((3, 9_999), np.float32)
    x[1, 5_000] = value
    with tierup.load(reduction("ReduceSum", [1], [None, None]), config=tierup.Config(force_tier=1)) as model:
        np.testing.assert_array_equal(model(x=x)["y"], np.array([9_999, value, 9_999], np.float32))
