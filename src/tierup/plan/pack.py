"""Where blocks of memory lie so that they take little of it: lifetimes and sizes in, offsets out, all plain numbers.

No two blocks that are alive in one step overlap. The least peak is hard to find (the problem is NP-hard), but none is
below what is alive in the busiest step, and most graphs reach that with a simple rule: several are tried, the cheapest
first, and then small changes to the best, until the bound is reached or the work that is allowed is done. Work is
counted, not timed, so the same blocks always get the same offsets.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from random import Random
from typing import NamedTuple

# What the search may cost, in looks at a pair of blocks that are alive together; a look takes about 0.1 µs.
_LOOKS, _LOOKS_A_BLOCK = 10_000, 80
_LOOKS_TO_PLACE = 10  # what placing a block costs beyond its looks, in looks
# Chances in the choice of a block to move. Without the first, some small graphs that are full in every step stay 5 to
# 10% above the bound for good; from 0.1 to 0.5 it makes little difference.
_ANY, _DEEPER = 0.25, 0.5


class Span(NamedTuple):
    """A block: the first and the last step that it is alive in, and its size, above 0."""

    first: int
    last: int
    units: int


def busiest(spans: Sequence[Span]) -> int:
    """The most units that are alive in one step."""
    changes = [(span.first, span.units) for span in spans] + [(span.last + 1, -span.units) for span in spans]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def pack(spans: Sequence[Span]) -> list[int]:
    """An offset for each block."""
    bound = busiest(spans)
    best, peak = _by_time(spans)
    if peak == bound:
        return best
    budget = max(_LOOKS, _LOOKS_A_BLOCK * len(spans))
    if _count_pairs(spans) <= budget // 2:  # placing all looks at each pair twice
        return _Search(spans, bound, budget).improve(best, peak)
    backwards, backwards_peak = _by_time([Span(-span.last, -span.first, span.units) for span in spans])
    return backwards if backwards_peak < peak else best


def _by_time(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Offsets and peak as an allocator would have them: in order of first use, each into the tightest gap."""
    offsets, free, peak = [0] * len(spans), _Free(), 0
    alive: list[tuple[int, int]] = []
    for number in sorted(range(len(spans)), key=lambda number: (spans[number].first, -spans[number].units)):
        span = spans[number]
        while alive and alive[0][0] < span.first:
            dead = heappop(alive)[1]
            free.give(offsets[dead], offsets[dead] + spans[dead].units)
        offsets[number] = free.take(span.units)
        heappush(alive, (span.last, number))
        peak = max(peak, offsets[number] + span.units)
    return offsets, peak


class _Free:
    """The gaps below `top`, and all above it."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []  # (units, begin)
        self._begins: dict[int, int] = {}  # begin by end
        self._ends: dict[int, int] = {}  # end by begin

    def take(self, units: int) -> int:
        """The begin of a stretch that is free: in the tightest gap, or at the top."""
        tightest = bisect_left(self._by_size, (units, 0))
        if tightest == len(self._by_size):
            self.top += units
            return self.top - units
        begin = self._by_size[tightest][1]
        end = self._ends[begin]
        self._remove(begin, end)
        if begin + units < end:
            self._add(begin + units, end)
        return begin

    def give(self, begin: int, end: int) -> None:
        """A stretch is free again, and one with the gaps beside it."""
        if begin in self._begins:
            begin, middle = self._begins[begin], begin
            self._remove(begin, middle)
        if end in self._ends:
            middle, end = end, self._ends[end]
            self._remove(middle, end)
        if end == self.top:
            self.top = begin
        else:
            self._add(begin, end)

    def _add(self, begin: int, end: int) -> None:
        insort(self._by_size, (end - begin, begin))
        self._begins[end], self._ends[begin] = begin, end

    def _remove(self, begin: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - begin, begin))]
        del self._begins[end], self._ends[begin]


def _count_pairs(spans: Sequence[Span]) -> int:
    """How many pairs of blocks are alive together."""
    lasts = sorted(span.last for span in spans)
    return sum(before - bisect_left(lasts, first) for before, first in enumerate(sorted(span.first for span in spans)))


class _Search:
    """Places blocks one by one, each as low as it can lie; what is searched is the order.

    That misses nothing: blocks placed in the order of a best layout's offsets lie no higher than in that layout.
    """

    def __init__(self, spans: Sequence[Span], bound: int, budget: int) -> None:
        self._spans = spans
        self._units = [span.units for span in spans]
        self._near = _neighbours(spans)
        self._bound = bound
        self._budget = budget

    def improve(self, best: list[int], peak: int) -> list[int]:
        """The best layout that the budget allows, starting from one and its peak."""
        for order in self._orders():
            best = self._place(order, peak) or best
            peak = self._peak(best)
            if peak == self._bound or self._budget <= 0:
                return best
        return self._climb(best)

    def _orders(self) -> Iterator[list[int]]:
        """By size, by size and lifetime together, in turns, by lifetime."""
        numbers, spans = range(len(self._spans)), self._spans
        yield sorted(numbers, key=lambda n: (-spans[n].units, spans[n].first))
        yield sorted(numbers, key=lambda n: -spans[n].units * (spans[n].last - spans[n].first + 1))
        yield sorted(numbers, key=_turns(spans).__getitem__)
        yield sorted(numbers, key=lambda n: (spans[n].first - spans[n].last, -spans[n].units))

    def _place(self, order: Sequence[int], limit: int) -> list[int] | None:
        """Offsets of all; None as soon as one would end above the limit."""
        offsets = [-1] * len(order)
        for number in order:
            offset = self._fit(number, offsets, [n for n in self._near[number] if offsets[n] >= 0])
            if offset + self._units[number] > limit:
                return None
            offsets[number] = offset
        return offsets

    def _fit(self, number: int, offsets: list[int], placed: list[int]) -> int:
        """The lowest offset of a block that lies clear of those around it."""
        self._budget -= len(self._near[number]) + _LOOKS_TO_PLACE
        units, own, low = self._units, self._units[number], 0
        placed.sort(key=offsets.__getitem__)
        for other in placed:
            begin = offsets[other]
            if begin - low >= own:
                break
            if begin + units[other] > low:
                low = begin + units[other]
        return low

    def _climb(self, offsets: list[int]) -> list[int]:
        """Bring a block that holds up the highest one forward in the order, and keep what is no worse."""
        random = Random(0)
        order = _Order(_in_order(offsets))
        while (peak := self._peak(offsets)) > self._bound and self._budget > 0:
            self._budget -= len(offsets)
            moved = self._pick(offsets, peak, random)
            rank = order.ranks[moved]
            earlier = [order.ranks[n] for n in self._near[moved] if order.ranks[n] < rank]
            if not earlier:
                continue
            target = random.choice(earlier)
            order.move(rank, target)
            settled = self._settle(order, target, offsets, peak)
            if settled is None:
                order.move(target, rank)
            else:
                offsets = settled
        return offsets

    def _settle(self, order: _Order, moved: int, offsets: list[int], peak: int) -> list[int] | None:
        """Offsets after a block came forward to rank `moved`; None as soon as one would end above the peak.

        Only blocks that see another one lie elsewhere are placed anew.
        """
        offsets, ranks = offsets.copy(), order.ranks
        pending = [moved]  # ranks, a heap: a block is placed when all before it are
        seen = {moved}
        while pending:
            rank = heappop(pending)
            number = order.numbers[rank]
            offset = self._fit(number, offsets, [n for n in self._near[number] if ranks[n] < rank])
            if offset + self._units[number] > peak:
                return None
            if offset != offsets[number]:
                offsets[number] = offset
                for later in [ranks[n] for n in self._near[number] if ranks[n] > rank and ranks[n] not in seen]:
                    seen.add(later)
                    heappush(pending, later)
        return offsets

    def _pick(self, offsets: list[int], peak: int, random: Random) -> int:
        """The highest block, or one of those that it rests on; now and then any, to get out of a dead end."""
        if random.random() < _ANY:
            return random.randrange(len(offsets))
        chosen = random.choice([n for n, offset in enumerate(offsets) if offset + self._units[n] == peak])
        while random.random() < _DEEPER:
            under = [n for n in self._near[chosen] if offsets[n] + self._units[n] == offsets[chosen]]
            if not under:
                break
            chosen = random.choice(under)
        return chosen

    def _peak(self, offsets: list[int]) -> int:
        return max(map(int.__add__, offsets, self._units))


class _Order:
    """Blocks in an order, and the rank of each."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.ranks = [0] * len(numbers)
        self._count(0, len(numbers))

    def move(self, source: int, target: int) -> None:
        """From one rank to another; those between make room."""
        self.numbers.insert(target, self.numbers.pop(source))
        self._count(min(source, target), max(source, target) + 1)

    def _count(self, begin: int, end: int) -> None:
        for rank in range(begin, end):
            self.ranks[self.numbers[rank]] = rank


def _in_order(offsets: Sequence[int]) -> list[int]:
    return sorted(range(len(offsets)), key=offsets.__getitem__)


def _turns(spans: Sequence[Span]) -> list[int]:
    """A small number for each block, another one for each that is alive with it.

    In a chain, where each block is alive with the next, that is 0 and 1 in turn: all with 0 at the bottom and the
    others right above them is then the best layout, at any sizes.
    """
    turns = [0] * len(spans)
    alive: list[tuple[int, int]] = []
    free: list[int] = []
    for number in sorted(range(len(spans)), key=lambda number: spans[number].first):
        while alive and alive[0][0] < spans[number].first:
            heappush(free, heappop(alive)[1])
        turns[number] = heappop(free) if free else len(alive)
        heappush(alive, (spans[number].last, turns[number]))
    return turns


def _neighbours(spans: Sequence[Span]) -> list[list[int]]:
    """For each block the others that are alive with it."""
    near: list[list[int]] = [[] for _ in spans]
    alive: list[int] = []
    for number in sorted(range(len(spans)), key=lambda number: spans[number].first):
        first = spans[number].first
        alive = [other for other in alive if spans[other].last >= first]
        near[number].extend(alive)
        for other in alive:
            near[other].append(number)
        alive.append(number)
    return near
