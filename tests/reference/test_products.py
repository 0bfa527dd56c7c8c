"""Products of the baseline, of matrices that lie anywhere."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tierup import _native
from tierup.ir.types import Array
from tierup.reference.matrix import matmul
from tierup.reference.products import multiply_matrices

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
    for given in (left, np.asfortranarray(left), shifted(left, by)):
        result = matmul(given, right)
        assert result.dtype == np.float32
        assert result.shape == wanted.shape
        assert (np.abs(result - wanted) <= (4 + 600**0.5) * 2.0**-24 * bound).all()
    part = right[:, 3:470]  # rows that are farther apart than they are long
    assert (np.abs(matmul(left, part) - wanted[..., 3:470]) <= (4 + 600**0.5) * 2.0**-24 * bound[..., 3:470]).all()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 3, 30, 40), (5, 1, 40, 50)), ((30, 40), (4, 40, 50)), ((4, 30, 40), (40, 50)),
        ((0, 30, 40), (1, 40, 50)), ((2, 3, 30, 40), (3, 40, 50)),
    ],
)  # fmt: skip
def test_matrices_are_multiplied_one_by_one(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = RNG.standard_normal(left, np.float32), RNG.standard_normal(right, np.float32)
    wanted = np.matmul(a.astype(np.float64), b.astype(np.float64))
    bound = (4 + 40**0.5) * 2.0**-24 * np.matmul(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
    for given in (a, a.swapaxes(-1, -2).copy().swapaxes(-1, -2)):
        result = matmul(given, b)
        assert result.shape == wanted.shape
        assert (np.abs(result - wanted) <= bound).all()
    room = np.full((*wanted.shape[:-1], wanted.shape[-1] + 9), 7, np.float32)
    multiply_matrices(a, b, out=room[..., 2:-7])
    np.testing.assert_array_equal(room[..., 2:-7], result)
    assert (room[..., :2] == 7).all()
    assert (room[..., -7:] == 7).all()


@pytest.mark.parametrize("columns", [16, 17, 48, 55])
def test_equal_rows_and_columns_have_equal_sums(columns: int) -> None:
    """BLAS adds up rows that end a block otherwise than those before them: a classifier over equal weights told its
    classes apart by that."""
    row, column = RNG.standard_normal(1100, np.float32), RNG.standard_normal(1100, np.float32)
    for rows in (1, 2, 7, 29):
        result = matmul(np.tile(row, (rows, 1)), np.tile(column[:, None], (1, columns)))
        assert len(np.unique(result)) == 1


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
        "the left side has to be dense": [(left.T.copy().T, right, result)],
        "rows of the result have to be dense": [
            (left, right, np.zeros((2, 8), np.float32)[:, ::2]), (left, right, frozen),
            (left, right, shifted(result, 2)), (left, right, result[::-1]),
            (left, right, np.broadcast_to(result[0], result.shape)),
            (left, right, np.lib.stride_tricks.as_strided(result, strides=(12, 4))),
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
