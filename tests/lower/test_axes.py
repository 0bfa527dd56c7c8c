"""The loops of a rows region: which axis lies along the lanes, and how many rows a tile has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tierup.ir.dims import DimBuilder
from tierup.ir.types import Dim, Sym
from tierup.lower.axes import ROWS, Forms, Nest, nest
from tierup.plan.sources import Linear
from tierup.plan.strides import Strides


def reducing(loads: Sequence[tuple[tuple[int, ...], set[int]]], store: tuple[int, ...], reduced: int) -> Nest:
    """Rows × terms × columns, 16 lanes: loads by their strides, and the axes along which an index moves them."""
    domain: list[Dim] = [DimBuilder().of(0, 0), 4, 64]
    forms = Forms(
        loads=[Linear(0, strides) for strides, _ in loads],
        stores=[Linear(0, store)],
        counts=[],
        maps=0,
        looked_up=[frozenset(axes) for _, axes in loads],
    )
    return nest(domain, (reduced,), forms, Strides(DimBuilder()), 16)


def test_rows_that_are_looked_up_and_added_are_read_along_their_columns() -> None:
    """A bag of embeddings: the indices lie side by side along what is added, and what they look up does not."""
    found = reducing([((4, 1, 0), set()), ((0, 0, 1), {0, 1})], (64, 0, 1), reduced=1)
    assert found.lane is not None
    assert found.lane.parts == (2,)
    assert found.lane_in_grid


def test_what_lies_side_by_side_along_the_sum_is_read_so() -> None:
    found = reducing([((256, 64, 1), set()), ((0, 0, 1), set())], (4, 1, 0), reduced=2)
    assert found.lane is not None
    assert found.lane.parts == (2,)
    assert not found.lane_in_grid


@pytest.mark.parametrize(
    ("channels", "step"), [(4, 4), (3, 4), (2, 2), (1, 1), (8, 8), (16, 16), (40, 16), (Sym(0), 16)]
)
def test_a_tile_that_is_turned_over_has_no_more_rows_than_there_are(channels: Dim, step: int) -> None:
    """From places with their channels side by side to channels with their places so."""
    read, written = Linear(0, (1, 100)), Linear(0, (1000, 1))
    forms = Forms([read], [written], [], 0, [frozenset()])
    found = nest((channels, 1000), (), forms, Strides(DimBuilder()), 16)
    (rows,) = (axis for axis in found.axes if axis.name == ROWS)
    assert rows.step == step


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("channels", "at_once"), [(2, True), (3, True), (4, True), (5, False), (1, False)])
def test_a_few_channels_side_by_side_are_taken_apart(channels: int, at_once: bool, lanes: int) -> None:
    """The last step of a network that makes a picture: threads divide the places, and a tile has all channels."""
    read, written = Linear(0, (1, channels)), Linear(0, (1000, 1))
    found = nest((channels, 1000), (), Forms([read], [written], [], 0, [frozenset()]), Strides(DimBuilder()), lanes)
    assert found.lane is not None
    assert (found.lane.parts, found.lane_in_grid) == ((1,), at_once)
    assert [axis.step for axis in found.loops if axis.name == ROWS] == ([channels] if at_once else [])


@pytest.mark.parametrize(
    ("channels", "apart", "woven"),
    [(3, 4, True), (4, 4, True), (2, 2, True), (8, 8, False), (3, 9, False)],
)
def test_a_few_channels_are_written_in_between_each_other(channels: Dim, apart: int, woven: bool) -> None:
    """From channels with their places side by side to places with their channels so."""
    read, written = Linear(0, (1, 1000)), Linear(0, (apart, 1))
    forms = Forms([read], [written], [], 5, [frozenset()])
    found = nest((1000, channels), (), forms, Strides(DimBuilder()), 16)
    assert found.lane is not None
    assert found.lane.parts == ((0,) if woven else (1,))
    assert found.lane_in_grid == woven
    assert [axis.parts for axis in found.tiled] == ([(1,), (0,)] if woven else [(0,), (1,)])


def test_what_is_looked_up_is_not_woven() -> None:
    read, written = Linear(0, (1, 1000)), Linear(0, (4, 1))
    forms = Forms([read, read], [written], [], 5, [frozenset(), frozenset({0})])
    found = nest((1000, 3), (), forms, Strides(DimBuilder()), 16)
    assert found.lane is not None
    assert found.lane.parts == (1,)


def test_real_and_imaginary_parts_are_read_and_written_in_between_each_other() -> None:
    """Read as they lie, written so and apart: along the parts, two of sixteen lanes would be of use."""
    as_it_lies, apart = Linear(0, (512, 2, 1)), Linear(0, (512, 1, 256))
    forms = Forms([as_it_lies], [as_it_lies, apart], [], 1, [frozenset()])
    found = nest((64, 256, 2), (), forms, Strides(DimBuilder()), 16)
    assert found.lane is not None
    assert found.lane.parts == (1,)
    assert [axis.parts for axis in found.tiled] == [(2,), (1,)]


@pytest.mark.parametrize(("lanes", "woven"), [(16, True), (8, False), (4, False)])
def test_what_fills_the_lanes_of_a_machine_stays_along_them(lanes: int, woven: bool) -> None:
    read, written = Linear(0, (1, 1000)), Linear(0, (4, 1))
    forms = Forms([read], [written], [], 5, [frozenset()])
    found = nest((1000, 4), (), forms, Strides(DimBuilder()), lanes)
    assert found.lane is not None
    assert found.lane.parts == ((0,) if woven else (1,))


@pytest.mark.parametrize(
    ("terms", "apart", "lanes", "beside"),
    [(2, 2, 16, True), (4, 4, 16, True), (5, 5, 16, False), (2, 7, 16, False), (4, 4, 8, False), (2, 2, 8, True)],
)
def test_few_terms_are_added_with_rows_along_the_lanes(terms: int, apart: int, lanes: int, beside: bool) -> None:
    read, written = Linear(0, (apart, 1)), Linear(0, (1, 0))
    forms = Forms([read], [written], [], 0, [frozenset()])
    found = nest((Sym(0), terms), (1,), forms, Strides(DimBuilder()), lanes)
    assert found.lane is not None
    assert found.lane.parts == ((0,) if beside else (1,))
    assert found.lane_in_grid == beside


def test_few_terms_of_rows_that_are_looked_up_stay_along_the_lanes() -> None:
    forms = Forms([Linear(0, (2, 1)), Linear(0, (1, 0))], [Linear(0, (1, 0))], [], 0, [frozenset({0}), frozenset()])
    found = nest((1000, 2), (1,), forms, Strides(DimBuilder()), 16)
    assert found.lane is not None
    assert found.lane.parts == (1,)


def test_few_terms_that_are_looked_up_are_so_for_rows_along_the_lanes() -> None:
    """Columns that a list names: read element by element either way, and reduced in all lanes at once."""
    table, listed, written = Linear(0, (20, 0)), Linear(0, (0, 1)), Linear(0, (1, 0))
    forms = Forms([table, listed], [written], [], 0, [frozenset({1}), frozenset()])
    found = nest((1000, 2), (1,), forms, Strides(DimBuilder()), 16)
    assert found.lane is not None
    assert found.lane.parts == (0,)
