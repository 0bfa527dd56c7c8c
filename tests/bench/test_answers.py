"""Answers that agree within rounding, and answers that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tierup.bench.answers import agreement, compare, read_answers

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
PRECISIONS = dict.fromkeys(("tierup", "onnxruntime", "openvino"), "f32")


def test_rounding_agrees_and_is_measured() -> None:
    found = agreement("onnxruntime", [X], [X * np.float32(1 + 1e-5)], 1e-3)
    assert found.agrees
    assert found.relative_rms == pytest.approx(1e-5, rel=0.05)  # f32 rounds the factor to 5e-8 of itself
    assert found.largest_error == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([X * 1.01], None),
        ([X, X], "2 outputs instead of 1"),
        ([X[:2]], "shape"),
        ([np.where(X[0, 0] == X, np.nan, X)], None),
        ([np.array(X, str)], "differs"),
    ],
)
def test_other_answers_differ(given: list[np.ndarray], why: str | None) -> None:
    found = agreement("onnxruntime", [X], given, 1e-3)
    assert not found.agrees
    assert (why is None) == (found.why is None)
    assert why is None or why in str(found.why)


def test_what_is_not_finite_must_be_so_in_the_same_way() -> None:
    odd = np.array([1.0, np.nan, np.inf])
    assert agreement("r", [odd], [odd.copy()], 1e-3).agrees
    assert not agreement("r", [odd], [np.array([1.0, np.nan, -np.inf])], 1e-3).agrees


def test_empty_zero_text_and_integer_outputs() -> None:
    for same in (np.empty(0), np.zeros(3), np.array(["a"]), np.array([1, 2]), np.array([True])):
        assert agreement("r", [same], [same.copy()], 1e-3).agrees
    assert not agreement("r", [np.array([1, 2])], [np.array([1, 3])], 1e-3).agrees


def test_the_reference_is_onnx_runtime_where_it_was_measured() -> None:
    found = compare({"tierup": [X], "openvino": [X + 1], "onnxruntime": [X]}, PRECISIONS, quantised=False)
    assert {row.reference for row in found.values()} == {"onnxruntime"}
    assert [found[name].agrees for name in ("tierup", "openvino", "onnxruntime")] == [True, False, True]
    assert compare({"tierup": [X], "openvino": [X]}, PRECISIONS, False)["tierup"].reference == "openvino"
    assert compare({"tierup": [X]}, PRECISIONS, False) == {}


def test_bf16_and_quantised_models_may_differ_by_more() -> None:
    answers = {"onnxruntime": [X], "tierup": [X * 1.15], "openvino": [X * 1.05]}
    precisions = {"onnxruntime": "f32", "tierup": "f32", "openvino": "bf16"}
    exact = compare(answers, precisions, quantised=False)
    assert not exact["tierup"].agrees
    assert exact["openvino"].agrees
    assert compare(answers, precisions, quantised=True)["tierup"].agrees


def test_rubbish_and_pickles_are_no_answers(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"rubbish")
    np.savez(tmp_path / "b.npz", np.array([{}], object))
    for name in ("a.npz", "b.npz", "none.npz"):
        with pytest.raises(ValueError, match=r".+"):
            read_answers(tmp_path / name)
