"""Which axis lies along the lanes of a rows region."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.dims import DimBuilder
from tierup.ir.types import Dim
from tierup.lower.axes import Forms, Nest, nest
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
