"""Inputs that are almost right: subclasses of arrays, numbers out of range, sizes out of reach."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tierup
from tests.security.models import model, node, value

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def identity(kind: int = TensorProto.FLOAT) -> tierup.Model:
    proto = model([node("Identity", ["x"], ["y"])], [value("x", ["n", "m"], kind)], [value("y", ["n", "m"], kind)])
    proto.opset_import[0].version = 25
    return tierup.load(proto)


class Subclass(np.ndarray[Any, Any]):
    """An array whose own attributes are not to be trusted."""

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        return self


@pytest.mark.parametrize(
    "given",
    [np.rec.array(X), X.view(Subclass), np.ma.masked_array(X)],
    ids=["recarray", "subclass", "nothing-masked"],
)
def test_subclasses_of_arrays(given: Any) -> None:
    answer = identity()(x=given)["y"]
    assert type(answer) is np.ndarray
    assert np.array_equal(answer, X)


def test_memory_maps(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3))
    mapped[:] = X
    answer = identity()(x=mapped)["y"]
    assert np.array_equal(answer, X)
    assert not np.shares_memory(answer, mapped)


def test_masked_elements_are_refused() -> None:
    with pytest.raises(tierup.InputError, match="input 'x' is a masked array"):
        identity()(x=np.ma.masked_array(X, X > 2))


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (TensorProto.INT4, 8),
        (TensorProto.INT4, -9),
        (TensorProto.UINT4, 16),
        (TensorProto.UINT4, -1),
        (TensorProto.INT2, 2),
        (TensorProto.UINT2, 4),
        (TensorProto.INT8, 128),
        (TensorProto.UINT64, -1),
    ],
)
def test_numbers_that_do_not_fit_are_refused(kind: int, number: int) -> None:
    loaded = identity(kind)
    inside = number - 1 if number > 0 else number + 1
    assert loaded(x=[[inside]])["y"].astype(int).tolist() == [[inside]]
    with pytest.raises(tierup.InputError, match="input 'x' must be"):
        loaded(x=[[number]])


def test_floats_that_overflow_are_infinite_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert identity()(x=[[1e39, -1e39]])["y"].tolist() == [[np.inf, -np.inf]]


@pytest.mark.parametrize("limit", [2**62, 2**63 - 2, 2**63 - 1])
def test_a_range_without_an_end_in_memory(limit: int) -> None:
    inputs = [value(name, [], TensorProto.INT64) for name in ("first", "limit", "step")]
    loaded = tierup.load(
        model([node("Range", ["first", "limit", "step"], ["y"])], inputs, [value("y", [None], TensorProto.INT64)])
    )
    with pytest.raises(tierup.InputError, match="Range"):
        loaded(first=np.array(0), limit=np.array(limit), step=np.array(1))


def test_no_output_names_mean_all_of_them() -> None:
    """As in ONNX Runtime: sess.run([], feeds)."""
    proto = model([node("Add", ["x", "x"], ["y"]), node("Neg", ["x"], ["z"])], outputs=[value("y"), value("z")])
    session = tierup.InferenceSession(proto.SerializeToString())
    answers = session.run([], {"x": np.ones(2, np.float32)})
    assert [answer.tolist() for answer in answers] == [[2, 2], [-1, -1]]
