"""Times of two plans -> which of them is faster, and how sure that is.

Times are compared in pairs that were taken one after the other, by the logarithm of their ratio: what slows the machine
down slows both. A median is not moved by the calls that something else interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

LEAST_GAIN = 0.02  # what a swap has to save at least: below, the next compiler or the weather decides
_FEW = 8  # pairs, below which their range counts as noise: all of it, or
_SOME = 5  # from so many on, how far they reach towards the other verdict; by chance alone five agree once in 16 times
_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826
_MEDIAN_TO_MEAN = 1.2533  # how much less a median tells of normal numbers than their mean

# The sequential test: the candidate is faster in 7 of 10 pairs, or in 3 of 10; wrong once in a hundred.
_STEP = math.log(0.7 / 0.3)
_SURE = math.log(99)


def log_gain(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The median of log(incumbent ÷ candidate), and the margin that noise could make up."""
    ratios = [math.log(incumbent / candidate) for incumbent, candidate in pairs]
    middle = median(ratios)
    if len(ratios) < _SOME:
        return middle, max(ratios) - min(ratios)
    if len(ratios) < _FEW:
        return middle, middle - min(ratios) if middle > 0 else max(ratios) - middle
    spread = _MAD_TO_SIGMA * median(abs(ratio - middle) for ratio in ratios)
    return middle, _SIGMAS * _MEDIAN_TO_MEAN * spread / math.sqrt(len(ratios))


def decided(pairs: Sequence[tuple[float, float]], least: int = 3) -> bool:
    """Whether more pairs would hardly change what these say: far beyond noise, or noise is small."""
    if len(pairs) < 2:
        return False
    gain, margin = log_gain(pairs)
    if len(pairs) < _FEW:  # two that both say twice, or some whose range is small beside what they say
        return (len(pairs) >= least or abs(gain) > math.log(2)) and abs(gain) > max(3 * margin, 0.2)
    return abs(gain) > max(margin, LEAST_GAIN) * 1.5 or (margin < LEAST_GAIN / 2 and abs(gain) < LEAST_GAIN / 2)


def is_far(pairs: Sequence[tuple[float, float]], times: float = 2.0) -> bool:
    """Whether the candidate was so many times as fast each time, and noise is less than that: enough to go live beside
    the baseline, which kernels are expected to beat by far. How far does not matter."""
    gain, margin = log_gain(pairs)
    return gain > margin and all(incumbent > times * candidate for incumbent, candidate in pairs)


def verdict(gains: Sequence[tuple[float, float]]) -> Literal["better", "worse", "same", "unclear"]:
    """Of gains and their margins, logarithms both, one of each signature: better where one is beyond noise and none is
    lost, worse where one is lost, unclear where noise could hide a gain that is worth having."""
    beyond = [0 if abs(gain) <= max(margin, LEAST_GAIN) else 1 if gain > 0 else -1 for gain, margin in gains]
    if -1 in beyond:
        return "worse"
    if 1 in beyond:
        return "better"
    hidden = any(margin > LEAST_GAIN and gain + margin > LEAST_GAIN for gain, margin in gains)
    return "unclear" if hidden else "same"


def saved(gain: float) -> float:
    """A logarithm of a ratio as the share of time that is saved; negative where it is lost."""
    return 1 - math.exp(-gain)


def log_of(saved: float) -> float:
    """The other way round: a share of time as the logarithm of the ratio. Margins are such logarithms."""
    return -math.log(max(1e-9, 1 - saved))


class SequentialTest:
    """Takes pairs of live times as they come, until it is decided who is faster. As in a trial, a difference that is
    too small to matter is none: a machine may be so quiet that every pair shows it."""

    def __init__(self) -> None:
        self.pairs = self.wins = self.losses = 0
        self._evidence = 0.0

    def add(self, pairs: Iterable[tuple[float, float]]) -> bool | None:
        """True: the candidate is faster; False: it is not; None: not known yet. Pairs are (incumbent, candidate)."""
        for incumbent, candidate in pairs:
            if self.verdict is not None:
                break
            self.pairs += 1
            gain = math.log(max(incumbent, 1e-9) / max(candidate, 1e-9))
            if abs(gain) > LEAST_GAIN:
                self.wins += gain > 0
                self.losses += gain < 0
                self._evidence += math.copysign(_STEP, gain)
        return self.verdict

    @property
    def verdict(self) -> bool | None:
        """What is known so far."""
        return None if abs(self._evidence) < _SURE else self._evidence > 0
