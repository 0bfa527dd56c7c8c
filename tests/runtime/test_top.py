"""The k best of long axes in compiled plans: which they are, and in which order, as the reference has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.adapt.networks import distinct, load

import tierup
from tierup.adapt.prove import prove

TYPES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.int32: TensorProto.INT32}
TYPES |= {np.float16: TensorProto.FLOAT16, np.int64: TensorProto.INT64, np.uint8: TensorProto.UINT8}


def best(k: int, rank: int, axis: int, largest: int, dtype: Any, shape: list[Any] | None = None) -> onnx.ModelProto:
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=axis, largest=largest)
    x = helper.make_tensor_value_info("x", TYPES[dtype], shape or [None] * rank)
    results = [helper.make_empty_tensor_value_info(name) for name in ("values", "places")]
    count = helper.make_tensor("k", TensorProto.INT64, [1], [k])
    opset = [helper.make_opsetid("", 24)]
    return helper.make_model(
        helper.make_graph([node], "best", [x], results, [count]), ir_version=10, opset_imports=opset
    )


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize(("shape", "axis"), [((3, 100), -1), ((2, 300, 3), 1), ((70,), 0)])
def test_the_best_and_where_they_are(dtype: Any, shape: tuple[int, ...], axis: int, largest: int) -> None:
    random = np.random.default_rng(len(shape))
    many = random.integers(0, 100, shape).astype(dtype)  # many equals
    inputs = [many, np.zeros(shape, dtype)]
    if np.dtype(dtype).kind == "f":
        odd = many.copy()
        odd.reshape(-1)[random.integers(0, odd.size, odd.size // 2)] = np.nan
        odd.reshape(-1)[random.integers(0, odd.size, odd.size // 4)] = np.inf
        odd.reshape(-1)[random.integers(0, odd.size, odd.size // 4)] = -np.inf
        inputs += [odd, np.full(shape, np.nan, dtype), np.where(many < 50, -np.inf, np.inf).astype(dtype)]
    for k in (1, 7, shape[axis]):
        proto = best(k, len(shape), axis, largest, dtype)
        with (
            tierup.load(proto, config=tierup.Config(force_tier=1)) as compiled,
            tierup.load(proto, config=tierup.Config(force_tier=0)) as baseline,
        ):
            assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
            for x in inputs:
                got, wanted = compiled(x=x), baseline(x=x)
                np.testing.assert_array_equal(got["places"], wanted["places"])
                np.testing.assert_array_equal(got["values"], wanted["values"])


@pytest.mark.parametrize(("size", "k"), [(64, 64), (65, 65), (1000, 1000), (1023, 40), (5000, 500)])
def test_the_best_of_many_blocks(size: int, k: int) -> None:
    """Blocks run out, the last one is shorter, and equals lie in several."""
    x = np.random.default_rng(size).integers(0, size // 4, (3, size)).astype(np.float32)
    proto = best(k, 2, 1, 1, np.float32, [3, size])
    with tierup.load(proto, config=tierup.Config(force_tier=1)) as compiled:
        assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
        wanted = np.argsort(-x, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(compiled(x=x)["places"], wanted)


def test_more_than_there_are_is_an_error() -> None:
    with tierup.load(best(70, 2, 1, 1, np.float32), config=tierup.Config(force_tier=1)) as model:
        assert model(x=np.zeros((2, 70), np.float32))["places"].shape == (2, 70)
        assert model(x=np.zeros((0, 70), np.float32))["places"].shape == (0, 70)
        with pytest.raises(tierup.TierupError):
            model(x=np.zeros((2, 69), np.float32))


@pytest.mark.parametrize("shape", [[None, 90], ["n", "m"]])
def test_kernels_that_find_the_best_can_be_proved(shape: list[Any]) -> None:
    """k is small: sizes that are drawn are, too."""
    found = [alone for alone in distinct(best(3, 2, 1, 0, np.float32, shape)) if alone.kind == "places"]
    assert found
    for alone in found:
        loaded = load(alone.case)
        proof = prove(alone.case, [address for address, _ in loaded])
        assert proof.passed, proof.reason
        assert proof.judged > 500


def test_kernels_that_rank_short_axes_can_be_proved() -> None:
    """What looks up by ranks is proved on ranks that no row has, too: none, or several of one rank."""
    cases = [alone.case for alone in distinct(best(2, 2, 1, 1, np.float32, [48, 4]))]
    for case in cases:
        loaded = load(case)
        proof = prove(case, [address for address, _ in loaded])
        assert proof.passed, proof.reason
