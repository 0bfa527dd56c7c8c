"""Which of two plans is faster, and how sure that is."""

from __future__ import annotations

import random

import pytest

from tierup.adapt.compare import SequentialTest, decided, is_far, log_gain, saved, verdict


def pairs(count: int, ratio: float, noise: float, seed: int = 0) -> list[tuple[float, float]]:
    draw = random.Random(seed)
    return [(ratio * draw.lognormvariate(0, noise), draw.lognormvariate(0, noise)) for _ in range(count)]


def test_the_gain_is_the_median_and_the_margin_shrinks_with_pairs() -> None:
    gain, margin = log_gain(pairs(1000, 1.5, 0.1))
    assert saved(gain) == pytest.approx(1 / 3, abs=0.02)  # 1000 draws of sigma 0.14 put the median within 0.006
    assert 0.005 < margin < log_gain(pairs(50, 1.5, 0.1))[1]


def test_few_pairs_count_with_their_whole_range() -> None:
    _, margin = log_gain([(2.0, 1.0), (1.0, 1.0), (1.0, 1.0)])
    assert margin == pytest.approx(0.693, abs=0.001)  # log 2


def test_some_pairs_count_by_how_far_they_reach_towards_the_other_verdict() -> None:
    """A machine that is busy scatters what is 38 times faster, but never makes it slower."""
    gain, margin = log_gain([(66.0, candidate) for candidate in (1.7, 1.7, 1.8, 1.7, 1.6, 9.0, 1.7)])
    assert gain > margin
    gain, margin = log_gain([(66.0, candidate) for candidate in (1.7, 1.7, 1.8, 1.7, 1.6, 70.0, 1.7)])
    assert gain < margin


def test_an_interrupted_call_moves_nothing() -> None:
    quiet = pairs(21, 1.2, 0.001)
    gain, margin = log_gain([*quiet[:-1], (quiet[-1][0], 1000.0)])
    assert saved(gain) == pytest.approx(1 - 1 / 1.2, abs=0.001)
    assert margin < 0.01


def test_equal_plans_are_within_their_margin() -> None:
    """Three sigmas: once in 370 times noise looks like a gain."""
    feigned = sum(abs(gain) > margin for gain, margin in (log_gain(pairs(30, 1, 0.1, seed)) for seed in range(300)))
    assert feigned <= 9


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([(0.1, 0.05)], "better"),
        ([(0.1, 0.05), (0.0, 0.3)], "better"),
        ([(0.1, 0.05), (-0.1, 0.05)], "worse"),
        ([(-0.1, 0.05)], "worse"),
        ([(0.015, 0.01)], "same"),  # noise is small, and so is the gain
        ([(-0.05, 0.06)], "same"),  # whatever noise hides is no gain
        ([(0.1, 0.2)], "unclear"),
        ([(0.0, 0.2), (0.0, 0.01)], "unclear"),
        ([], "same"),
    ],
)
def test_verdicts(gains: list[tuple[float, float]], expected: str) -> None:
    assert verdict(gains) == expected


def test_it_is_decided_early_where_it_is_clear() -> None:
    assert not decided([(10.0, 1.0)])
    assert decided([(10.0, 1.0), (9.0, 1.0)])
    assert not decided([(1.1, 1.0)] * 2)
    assert not decided(pairs(5, 1.02, 0.1))
    assert decided(pairs(60, 1.3, 0.05))
    assert decided([(1.0, 1.0)] * 8)  # no noise, no difference


def test_twice_is_enough_however_much_more_it_is() -> None:
    noisy = [(10.0, 4.0), (10.0, 2.0)]
    assert is_far(noisy)
    assert not decided(noisy)
    assert verdict([log_gain(noisy)]) == "better"
    assert not is_far([(10.0, 6.0), (10.0, 2.0)])
    assert not is_far([(10.0, 4.0), (100.0, 1.0)])  # that may be anything
    assert not is_far([(4.0, 10.0), (2.0, 10.0)])


@pytest.mark.parametrize(("share", "expected"), [(0.9, True), (0.1, False)])
def test_the_sequential_test_ends_soon(share: float, expected: bool) -> None:
    draw = random.Random(1)
    test = SequentialTest()
    verdict = test.add((1.0, 0.5 if draw.random() < share else 2.0) for _ in range(200))
    assert verdict is expected
    assert test.pairs < 40


def test_equal_plans_are_seldom_told_apart_wrongly() -> None:
    """A plan that wins 7 of 10 pairs is turned away once in a hundred times."""
    wrong = 0
    for seed in range(300):
        draw = random.Random(seed)
        wrong += SequentialTest().add((1.0, 0.5 if draw.random() < 0.7 else 2.0) for _ in range(1000)) is False
    assert wrong <= 9


def test_differences_that_do_not_matter_count_for_nobody() -> None:
    """A quiet machine shows a hundredth in every pair; a trial would call that the same."""
    test = SequentialTest()
    assert test.add([(100.0, 101.0)] * 1000) is None
    assert (test.pairs, test.wins, test.losses) == (1000, 0, 0)
    assert test.add([(100.0, 104.0)] * 20) is False
