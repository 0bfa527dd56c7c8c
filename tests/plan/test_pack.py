"""Blocks packed in plain numbers. That the peaks are low is shown on whole layouts, in `test_memory.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierup.plan.pack import Span, busiest, pack


def peak(spans: Sequence[Span]) -> int:
    """The peak of a packing, checked: no two blocks that are alive together overlap."""
    offsets = pack(spans)
    assert all(offset >= 0 for offset in offsets)
    for (a, begin_a), (b, begin_b) in combinations(zip(spans, offsets, strict=True), 2):
        apart = begin_a + a.units <= begin_b or begin_b + b.units <= begin_a
        assert apart or a.last < b.first or b.last < a.first
    return max((offset + span.units for span, offset in zip(spans, offsets, strict=True)), default=0)


def hard(seed: int, count: int = 120) -> list[Span]:
    """Blocks that no simple order brings to the bound."""
    random = Random(seed)
    sizes = [random.randint(1, 2000) for _ in range(12)]
    lengths = [random.choice([1, 1, 2, 3, random.randint(1, 30)]) for _ in range(count)]
    return [Span(first, first + length, random.choice(sizes)) for first, length in enumerate(lengths)]


spans = st.builds(
    lambda first, length, units: Span(first, first + length, units),
    st.integers(-5, 10),
    st.integers(0, 8),
    st.one_of(st.integers(1, 8), st.integers(1, 1 << 40)),
)


@given(st.lists(spans, max_size=30))
@settings(max_examples=200, deadline=None)
def test_blocks_that_are_alive_together_are_apart(spans: list[Span]) -> None:
    assert busiest(spans) <= peak(spans) <= sum(span.units for span in spans)


@pytest.mark.parametrize("count", [12, 40, 120])
def test_the_search_keeps_blocks_apart(count: int) -> None:
    for seed in range(20):
        assert peak(hard(seed, count)) >= busiest(hard(seed, count))


def test_the_busiest_step_counts_both_ends_of_a_lifetime() -> None:
    assert busiest([]) == 0
    assert busiest([Span(0, 2, 3), Span(2, 4, 5), Span(5, 5, 7)]) == 8


def crowded(spans: Sequence[Span]) -> list[Span]:
    """The same with so many others alive all the time that the search is left out: it would look at too many pairs."""
    first, last = min(span.first for span in spans), max(span.last for span in spans)
    return [*spans, *[Span(first, last, 1)] * 150]


def test_gaps_are_divided_and_joined() -> None:
    """Two blocks make room for one of their size and the other way round, whichever of the two lies below."""
    sizes = [(3,), (1, 2), (3,), (2, 1), (3,)]
    spans = crowded([Span(2 * step, 2 * step + 1, units) for step, pair in enumerate(sizes) for units in pair])
    assert peak(spans) == busiest(spans) == 153


def test_time_is_also_gone_through_backwards() -> None:
    """Forwards, the first leaves a gap that is too small for the last; backwards, the last leaves one for the first."""
    spans = crowded([Span(0, 1, 2), Span(2, 4, 3), Span(1, 2, 3)])
    assert peak(spans) == busiest(spans) == 156


def test_the_same_blocks_always_get_the_same_offsets() -> None:
    """The search draws at random; plans are compared, cached and printed."""
    for seed in range(6):
        assert pack(hard(seed)) == pack(hard(seed))
