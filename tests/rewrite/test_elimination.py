"""Determinants by a loop: those of NumPy, for any size, of singular matrices and of such whose rows are exchanged."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rewrite.lowered import f, lowered, single
from tests.security.models import model, node, value

import tierup
from tierup.config import Config
from tierup.ir.types import Array
from tierup.reference.evaluate import evaluate


def check(x: Array) -> None:
    """Elimination rounds by some n² eps of the product of the rows' sizes, which is the most a determinant can be."""
    most = np.prod(np.linalg.norm(x.astype(np.float64), axis=-1), axis=-1)
    bound = max(x.shape[-1], 1) ** 2 * np.nan_to_num(most, nan=0.0, posinf=0.0)
    for form in ("static", "open"):
        graph, weights, feeds = single("onnx.Det", [x], form)
        after = lowered(graph, weights)
        for wide, eps in ((True, 2.0**-52), (False, 2.0**-23)):
            (wanted,), (got,) = (evaluate(g, weights, feeds, wide=wide) for g in (graph, after))
            assert got.shape == wanted.shape
            assert got.dtype == wanted.dtype
            assert (np.isnan(got) == np.isnan(wanted)).all()
            assert (np.isnan(wanted) | (np.abs(got - wanted) <= 4 * eps * bound)).all()


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3, 3), (2, 3, 5, 5), (12, 12), (0, 4, 4), (2, 0, 0)])
def test_determinants(shape: tuple[int, ...]) -> None:
    check(f(*shape))


def test_rows_that_are_exchanged() -> None:
    check(np.array([[0, 2, 0], [3, 0, 0], [0, 0, 5]], np.float32))
    check(np.array([[1e-20, 1], [1, 1]], np.float32))  # without, the second pivot would have no digit right


def test_singular_matrices() -> None:
    check(np.zeros((2, 3, 3), np.float32))
    check(np.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float32))


def test_numbers_that_are_none() -> None:
    x = f(2, 3, 3)
    x[0, 1, 1] = np.nan
    check(x)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_compiled(size: int, count: int) -> None:
    det = model([node("Det", ["x"], ["y"])], [value("x", ("b", "n", "n"))], [value("y", ("b",))])
    loaded = tierup.load(det, config=Config(force_tier=1))
    assert loaded.report().to_dict()["counters"]["fallback_nodes"] == 0
    x = f(count, size, size)
    most = np.prod(np.linalg.norm(x.astype(np.float64), axis=-1), axis=-1)
    exact = np.linalg.det(x.astype(np.float64))
    assert (np.abs(loaded(x=x)["y"] - exact) <= 4 * 2.0**-23 * size**2 * most).all()
