"""Which signatures get functions of their own."""

from __future__ import annotations

from tierup.adapt.hot import MOST, hot_signatures


def test_frequent_ones_first() -> None:
    seen = [(((1, 8),), 40), (((1, 16),), 300), (((1, 9),), 5)]
    assert hot_signatures(seen) == (((1, 16),), ((1, 8),))


def test_what_spreads_over_many_sizes_gets_none() -> None:
    assert hot_signatures([(((1, n),), 60) for n in range(8, 64)]) == ()


def test_when_nothing_is_left_to_wait_for_rare_ones_count() -> None:
    seen = [(((1, n),), 1 + n) for n in range(20)]
    assert hot_signatures(seen, everything=True) == tuple(((1, 19 - n),) for n in range(MOST))


def test_what_is_no_tensor_cannot_be_closed() -> None:
    assert hot_signatures([(((2,), None), 1000)]) == ()
