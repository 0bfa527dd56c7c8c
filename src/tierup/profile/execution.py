"""What calls that were watched show: an execution profile for each region and signature, and what inputs are like.

In: calls as `Runner.take_watched` gives them, and how often each signature came. Out: bounded histories with quantiles.
Everything has a limit; what was used least lately goes, and is counted. Statistics of inputs are of the caller's data:
they stay in memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

Shapes = tuple[tuple[int, ...] | None, ...]

SAMPLES = 64  # times kept of a region and signature
MOST_SIGNATURES = 256  # of a region, and with a rate
MOST_HISTORIES = 8192  # of a model, all regions together: some 4 MB
_ROOM = 8  # one in so many goes when something has to, lest the next one has to look again
HALF_LIFE_S = 600.0  # of how much a use counts when something has to go
RATE_S = 60.0  # over which rates are averaged


class Quantiles(msgspec.Struct, frozen=True):
    """Of the times that are kept, in microseconds."""

    p50_us: float
    p90_us: float
    p99_us: float


class Samples:
    """The last numbers of a row, a few bytes each."""

    __slots__ = ("_next", "_values")

    def __init__(self) -> None:
        self._values = array("f")
        self._next = 0

    def __len__(self) -> int:
        return len(self._values)

    def add(self, number: float) -> None:
        if len(self._values) < SAMPLES:
            self._values.append(number)
        else:
            self._values[self._next] = number
        self._next = (self._next + 1) % SAMPLES

    def last(self, count: int) -> list[float]:
        """The last so many, the oldest first."""
        ordered = self._values[self._next :] + self._values[: self._next] if len(self) == SAMPLES else self._values
        return ordered.tolist()[max(0, len(self) - count) :]

    def quantile(self, share: float) -> float:
        """The smallest number that at least this share is no larger than; 0 if there is none."""
        ordered = sorted(self._values)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


class Use:
    """How much something was used lately: every use counts half as much after a while."""

    __slots__ = ("_weight", "last_s")

    def __init__(self) -> None:
        self._weight, self.last_s = 0.0, 0.0

    def add(self, now_s: float, count: float = 1.0) -> None:
        self._weight = self.at(now_s) + count
        self.last_s = now_s

    def at(self, now_s: float) -> float:
        return float(self._weight * 0.5 ** (max(0.0, now_s - self.last_s) / HALF_LIFE_S))


class RegionHistory:
    """One region in calls of one signature. `counts` are sums over the `counted` runs, of the calling thread.

    What is `new` was not saved yet.
    """

    __slots__ = (
        "calls", "counted", "counts", "new_counted", "new_counts", "new_runs", "new_times", "runs", "times_us", "use",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls = self.runs = self.counted = 0
        self.times_us = Samples()  # of one run, the mean of those in a call
        self.counts: list[float] = []
        self.use = Use()
        self.saved()

    def saved(self) -> None:
        """Nothing is new any more."""
        self.new_runs = self.new_times = self.new_counted = 0
        self.new_counts: list[float] = []

    def add(self, runs: int, nanoseconds: float, counts: Sequence[float], counted: int, now_s: float) -> None:
        """A call in which it ran so often."""
        self.calls += 1
        self.runs += runs
        self.new_runs += runs
        self.new_times = min(self.new_times + 1, SAMPLES)
        self.times_us.add(1e-3 * nanoseconds / runs)
        self.use.add(now_s)
        if counted:
            self.counts, self.new_counts = _sum(self.counts, counts), _sum(self.new_counts, counts)
            self.counted += counted
            self.new_counted += counted

    @property
    def quantiles(self) -> Quantiles:
        times = self.times_us
        return Quantiles(times.quantile(0.5), times.quantile(0.9), times.quantile(0.99))


def _sum(before: list[float], more: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(before or [0.0] * len(more), more, strict=True)]


class InputHistory:
    """What one input was like in the calls that were watched."""

    def __init__(self) -> None:
        self.calls = self.same = self.nonfinite = self.looked = self.elements = 0
        self.zero_fractions = Samples()
        self.least, self.most = math.inf, -math.inf
        self.only: float | None = None  # what every element was in the last call, if that was one number
        self.only_calls = 0  # so many calls in a row

    def add(self, same: bool, statistics: tuple[bool, int, int, int, int, float, float, int]) -> None:
        """As the native code gives it."""
        numbers, elements, looked, zeros, nonfinite, least, most, _ = statistics
        self.calls += 1
        self.same += same
        self.elements = elements
        only = least if numbers and looked and not nonfinite and least == most else None
        self.only_calls = 0 if only is None else self.only_calls + 1 if only == self.only else 1
        self.only = only
        if not numbers or not looked:
            return
        self.looked += looked
        self.nonfinite += nonfinite
        self.zero_fractions.add(zeros / looked)
        if nonfinite < looked:
            self.least, self.most = min(self.least, least), max(self.most, most)

    def to_dict(self, name: str) -> dict[str, Any]:
        """Plain data; None where nothing is known."""
        known = self.looked > 0
        finite = self.most >= self.least
        return {
            "name": name,
            "calls": self.calls,
            "same_as_before": self.same / max(1, self.calls - 1) if self.calls > 1 else None,
            "elements": self.elements,
            "zero_fraction": self.zero_fractions.quantile(0.5) if known else None,
            "zero_fraction_p10": self.zero_fractions.quantile(0.1) if known else None,
            "zero_fraction_p90": self.zero_fractions.quantile(0.9) if known else None,
            "min": self.least if finite else None,
            "max": self.most if finite else None,
            "nonfinite": self.nonfinite,
            "looked": self.looked,
        }


class Rate:
    """Calls a second from a moment on, averaged so that what was long ago counts less and less."""

    __slots__ = ("_at_s", "_began_s", "_per_s", "calls")

    def __init__(self, began_s: float) -> None:
        self.calls = 0
        self._per_s, self._at_s, self._began_s = 0.0, began_s, began_s

    def add(self, count: int, now_s: float) -> None:
        """So many calls since the last time."""
        passed_s = max(now_s - self._at_s, 1e-6)
        kept = math.exp(-passed_s / RATE_S)
        self._per_s = self._per_s * kept + (1 - kept) * count / passed_s
        self._at_s, self.calls = now_s, self.calls + count

    def at(self, now_s: float) -> float:
        known = 1 - math.exp(-max(1.0, now_s - self._began_s) / RATE_S)  # the time before it began says nothing
        return self._per_s * math.exp(-max(0.0, now_s - self._at_s) / RATE_S) / known


class Profiles:
    """All of one model, whose calls are counted from a moment on. Not for several threads at once."""

    def __init__(self, inputs: Sequence[str], began_s: float = 0.0) -> None:
        self._names, self._counted_s = tuple(inputs), began_s
        self.regions: dict[str, dict[Shapes, RegionHistory]] = {}
        self.inputs: dict[str, InputHistory] = {}
        self.rates: dict[Shapes, Rate] = {}
        self._counted: dict[Shapes, int] = {}  # calls of each signature, as they were counted last
        self.calls = self.evicted = self.unknown = 0
        self.watching_ns = self.calls_ns = 0.0
        self._histories = 0

    def add(self, call: tuple[Any, ...], regions: Sequence[str] | None, now_s: float) -> None:
        """A call that was watched. `regions` are the digests of its program's slots, None if that is not known."""
        signature, _, taken_ns, overhead_ns, spans, inputs = call
        self.calls += 1
        self.calls_ns += taken_ns
        self.watching_ns += overhead_ns
        self.unknown += regions is None
        for slot, runs, nanoseconds, counts, counted in spans if regions else ():
            if regions is not None and slot < len(regions) and regions[slot]:
                self._history(regions[slot], signature, now_s).add(runs, nanoseconds, counts, counted, now_s)
        for name, seen in zip(self._names, inputs, strict=False):
            if seen is not None:
                self.inputs.setdefault(name, InputHistory()).add(*seen)

    def count(self, signatures: Iterable[tuple[Shapes, int]], now_s: float) -> None:
        """How often each signature came so far; the counts of rare ones may have been halved."""
        counted = dict(signatures)
        for signature, calls in counted.items():
            before = self._counted.get(signature, 0)
            rate = self.rates.setdefault(signature, Rate(self._counted_s))
            rate.add(calls - before if calls >= before else calls, now_s)
        self._counted, self._counted_s = counted, now_s
        gone = len(self.rates) - MOST_SIGNATURES
        if gone > 0:
            for signature in sorted(self.rates, key=lambda signature: self.rates[signature].at(now_s))[:gone]:
                del self.rates[signature]
                self.evicted += 1

    def _history(self, region: str, signature: Shapes, now_s: float) -> RegionHistory:
        histories = self.regions.setdefault(region, {})
        found = histories.get(signature)
        if found is None:
            if len(histories) >= MOST_SIGNATURES:
                self._evict([(region, one) for one in histories], now_s)
            elif self._histories >= MOST_HISTORIES:
                self._evict([(key, one) for key, kept in self.regions.items() for one in kept], now_s)
            found = self.regions.setdefault(region, {}).setdefault(signature, RegionHistory())
            self._histories += 1
        return found

    def _evict(self, places: list[tuple[str, Shapes]], now_s: float) -> None:
        """Remove those that were used least lately."""
        places.sort(key=lambda place: self.regions[place[0]][place[1]].use.at(now_s))
        for region, signature in places[: max(1, len(places) // _ROOM)]:
            del self.regions[region][signature]
            if not self.regions[region]:
                del self.regions[region]
            self._histories -= 1
            self.evicted += 1

    def __len__(self) -> int:
        """How many histories of regions there are."""
        return self._histories
