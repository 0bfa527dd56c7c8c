"""How results are divided into register tiles: the fewest columns and rows too many."""

from __future__ import annotations

import pytest

from tierup.ir.types import Sym
from tierup.lower.tiling import divides, tiling


@pytest.mark.parametrize(
    ("columns", "width"), [(16, 16), (24, 24), (32, 32), (48, 48), (64, 64), (72, 24), (96, 48), (128, 64)]
)
@pytest.mark.parametrize("count", [192, Sym(0)])
def test_panels_waste_no_columns(columns: int, width: int, count: int | Sym) -> None:
    assert tiling(count, columns, 16)[0] == width


@pytest.mark.parametrize(("columns", "lanes", "width"), [(8, 16, 8), (4, 16, 4), (4, 8, 4), (12, 16, 4), (40, 16, 8)])
def test_panels_of_one_group_are_parts_of_vectors_where_it_has_few_columns(
    columns: int, lanes: int, width: int
) -> None:
    assert divides(columns, lanes)
    assert tiling(48, columns, lanes, whole=True)[0] == width


def test_vectors_of_less_than_four_are_no_panels() -> None:
    assert not divides(2, 8)
    assert not divides(6, 16)
    assert tiling(48, 2, 8)[0] >= 4


def test_half_vectors_need_an_even_number_of_lanes() -> None:
    assert tiling(192, 3, 2)[0] == 3
    assert tiling(192, 3, 1)[0] == 3
    assert tiling(192, 5, 1)[0] in (1, 2, 3, 4)


@pytest.mark.parametrize(("count", "rows"), [(14, (7,)), (8, (8,)), (9, (5, 4)), (0, (1,))])
def test_tiles_are_as_equal_as_can_be(count: int, rows: tuple[int, ...]) -> None:
    assert tiling(count, 48, 16) == (48, rows)
