"""Live calls after a swap -> keep the new plan, compare it with the old one call by call, or go back.

Where the times of live calls before and after the swap speak clearly, that is all. Otherwise both plans answer, drawn
at random, until a sequential test over pairs of calls with one signature has decided. A plan that was kept is looked at
again and again; if it takes as long as its predecessor did, the two are compared once more. The predecessor is kept for
that, and shares its weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Literal

import msgspec

from tierup.adapt.compare import SequentialTest
from tierup.events import micros

Signature = tuple[tuple[int, ...] | None, ...]
Timed = tuple[Signature, int, int]  # as `Runner.times` gives it: signature, program's number, nanoseconds

LOOK_AFTER = 8  # calls, while something is open
_LEAST_CALLS = 3  # of one signature and one plan, to say anything
_CLEAR = 1.25  # how much faster a plan must look to be kept without a comparison call by call
_NOTHING_SHARED = 64  # calls after which it is clear that no signature comes again
_MOST_PAIRS = 120  # a test that is still open then found no difference that matters
_MOST_LOOKS = 250  # of a comparison, in which hardly a signature comes twice
_ALARM = 1.05  # a plan that was kept and is slower by this than its predecessor was
_WINDOW = 16  # calls of one signature that say so
_CALM_LOOKS = 8  # after a false alarm; twice as many after each further one


class Finding(msgspec.Struct, frozen=True):
    """What to do now, and why."""

    action: Literal["wait", "compare", "keep", "go back"]
    reason: str = ""


_WAIT = Finding("wait")


class Watch:
    """One swap. Programs are given by their numbers; `before` are the calls until the swap; `tried`: a worker has
    measured a gain."""

    def __init__(self, incumbent: int, candidate: int, before: Sequence[Timed], *, tried: bool) -> None:
        self.incumbent, self.candidate = incumbent, candidate
        self.comparing = False
        self.kept = False
        self._tried = tried
        self._before = _by_signature(before, incumbent)
        self._looks = 0
        self._compared_since = 0
        self._alarms = 0
        self._calm_until = 0

    @property
    def open(self) -> bool:
        """Whether it is not decided yet."""
        return not self.kept

    def look(self, times: Sequence[Timed], timed: int) -> Finding:
        """What the last calls say; `timed` is how many were timed in all."""
        self._looks += 1
        if self.comparing:
            return self._decide(times[-max(0, timed - self._compared_since) :] if timed > self._compared_since else ())
        after = _by_signature(times, self.candidate)
        return self._look_again(after, timed) if self.kept else self._first_look(after, timed)

    def _first_look(self, after: dict[Signature, list[int]], timed: int) -> Finding:
        calls = sum(map(len, after.values()))
        shared = [s for s in after if min(len(after[s]), len(self._before.get(s, ()))) >= _LEAST_CALLS]
        if calls < LOOK_AFTER or (not shared and calls < _NOTHING_SHARED):
            return _WAIT
        slow = [s for s in shared if _CLEAR * median(after[s]) > _lower(self._before[s])]
        if slow:
            return self._compare(f"{_times(slow[0], self._before, after)}, which may be noise", timed)
        if not shared and not self._tried:
            return self._compare("no signature was answered by both", timed)
        self.kept = True
        if not shared:
            return Finding("keep", "no signature came again, so the trial counts")
        return Finding("keep", _times(max(shared, key=lambda s: len(after[s])), self._before, after))

    def compare_again(self, timed: int) -> None:
        """The candidate was changed: what was found so far does not count."""
        self._compare("", timed)

    def _compare(self, reason: str, timed: int) -> Finding:
        self.comparing, self.kept = True, False
        self._compared_since, self._looks = timed, 0
        return Finding("compare", reason)

    def _decide(self, times: Sequence[Timed]) -> Finding:
        old, new = _by_signature(times, self.incumbent), _by_signature(times, self.candidate)
        test = SequentialTest()
        verdict = test.add(
            pair for signature in old for pair in zip(old[signature], new.get(signature, ()), strict=False)
        )
        if verdict is None and test.pairs < _MOST_PAIRS and self._looks < _MOST_LOOKS:
            return _WAIT
        said = f"faster in {test.wins} and slower in {test.losses} of {test.pairs} pairs of live calls"
        self.comparing = False
        if verdict is False or (verdict is None and not self._tried):
            return Finding("go back", said)
        self.kept = True
        self._before.update({s: found for s, found in old.items() if len(found) >= _LEAST_CALLS})
        self._calm_until, self._looks = _CALM_LOOKS * 2**self._alarms, 0
        return Finding("keep", said)

    def _look_again(self, after: dict[Signature, list[int]], timed: int) -> Finding:
        if self._looks < self._calm_until:
            return _WAIT
        for signature, taken in after.items():
            known = self._before.get(signature, ())
            if min(len(known), len(taken[-_WINDOW:])) < _LEAST_CALLS or len(taken) < _WINDOW:
                continue
            if median(taken[-_WINDOW:]) > _ALARM * median(known):
                self._alarms += 1
                return self._compare(f"{_times(signature, self._before, after)}: it has become slow", timed)
        return _WAIT


class Backoff:
    """What failed, and when it may be tried again: ever later, and after some failures not at all."""

    _FIRST_CALLS, _FACTOR, _MOST = 1000, 8, 3

    def __init__(self) -> None:
        self._failures: dict[object, tuple[int, int]] = {}

    def failed(self, what: object, calls: int) -> None:
        """It failed now, after so many calls."""
        failures = self._failures.get(what, (0, 0))[0] + 1
        self._failures[what] = failures, calls + self._FIRST_CALLS * self._FACTOR ** (failures - 1)

    def allows(self, what: object, calls: int) -> bool:
        """Whether it may be tried after so many calls."""
        failures, after = self._failures.get(what, (0, 0))
        return failures < self._MOST and calls >= after


def _by_signature(times: Sequence[Timed], program: int) -> dict[Signature, list[int]]:
    found: dict[Signature, list[int]] = defaultdict(list)
    for signature, number, taken in times:
        if number == program:
            found[signature].append(taken)
    return dict(found)


def _lower(times: Sequence[int]) -> float:
    """The lower quartile: what the plan takes when nothing else is in its way."""
    return quantiles(times, n=4)[0]


def _times(signature: Signature, before: dict[Signature, list[int]], after: dict[Signature, list[int]]) -> str:
    shapes = " ".join("×".join(map(str, shape)) for shape in signature if shape)
    old, new = 1e-3 * median(before[signature]), 1e-3 * median(after[signature])
    return f"{shapes or 'calls'} took {micros(old)} before and {micros(new)} now"
