"""Products of the baseline with weights that lie anywhere in a file."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tierup import _native
from tierup.ir.types import Array
from tierup.reference.matrix import matmul

RNG = np.random.default_rng(3)


def shifted(array: Array, by: int) -> Array:
    """The array, so many bytes behind a border."""
    raw = np.zeros(array.nbytes + 8, np.uint8)
    found = raw[by : by + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


@pytest.mark.parametrize("shape", [(1, 600), (70, 600), (2, 3, 600), (0, 600)])
@pytest.mark.parametrize("by", [0, 1])
def test_a_large_right_side_is_read_where_it_lies(shape: tuple[int, ...], by: int) -> None:
    left = RNG.standard_normal(shape, np.float32)
    right = shifted(RNG.standard_normal((600, 500), np.float32), by)
    wanted = np.matmul(left.astype(np.float64), right.astype(np.float64))
    bound = np.matmul(np.abs(left).astype(np.float64), np.abs(right).astype(np.float64))
    for given in (left, np.asfortranarray(left)):
        result = matmul(given, right)
        assert result.dtype == np.float32
        assert result.shape == wanted.shape
        assert (np.abs(result - wanted) <= (4 + 600**0.5) * 2.0**-24 * bound).all()
    part = right[:, 3:470]  # rows that are farther apart than they are long
    assert (np.abs(matmul(left, part) - wanted[..., 3:470]) <= (4 + 600**0.5) * 2.0**-24 * bound[..., 3:470]).all()


def test_other_products_are_numpys() -> None:
    right = RNG.standard_normal((600, 500), np.float32)
    for left in (RNG.standard_normal(600, np.float32), RNG.standard_normal((2, 600))):
        np.testing.assert_array_equal(matmul(left, right.astype(left.dtype)), left @ right.astype(left.dtype))
    turned = np.asfortranarray(right)
    left = RNG.standard_normal((9, 600), np.float32)
    np.testing.assert_array_equal(matmul(left, turned), left @ turned)
    with pytest.raises(ValueError, match="matmul"):
        matmul(left[:, :599], right)


def test_what_does_not_fit_is_refused() -> None:
    left, right, result = (np.zeros(shape, np.float32) for shape in ((2, 3), (3, 4), (2, 4)))
    frozen = result.copy()
    frozen.flags.writeable = False
    refused = {
        "the left side is no matrix of f32": [(left.astype(np.float64), right, result), (left[0], right, result)],
        "the right side is no matrix of f32": [(left, right.view(">f4"), result), (left, right[None], result)],
        "the result is no matrix of f32": [(left, right, result.view(np.int32)), (left, right, [[0.0]])],
        "have to be dense": [
            (left.T.copy().T, right, result), (left, right, np.zeros((2, 8), np.float32)[:, ::2]),
            (left, right, frozen), (shifted(left, 1), right, result), (left, right, shifted(result, 2)),
        ],
        "the sizes of the matrices do not fit": [
            (left, right[:2], result), (left, right[:, :3], result), (left[:1], right, result),
        ],
        "rows of the right side have to be dense": [(left, np.zeros((3, 8), np.float32)[:, ::2], result)],
    }  # fmt: skip
    for reason, cases in refused.items():
        for case in cases:
            with pytest.raises(ValueError, match=re.escape(reason)):
                _native.multiply(*case)  # type: ignore[arg-type]
