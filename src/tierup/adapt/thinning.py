"""Which variants of a plan go, if it does not pay as a whole or gives wrong answers, so that the others stay.

In: how long slots took in live calls that were watched, by the plan that is judged and by the one before it; or the
kernels that are not what they were. Out: the variants to take out, and what serves without them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tierup.adapt.compare import LEAST_GAIN

if TYPE_CHECKING:
    from tierup import _native
    from tierup.runtime.progress import Serving
    from tierup.store.records import VariantRecord

CLOSE_CALLS = 32  # that are watched when two plans begin to take turns: as many as wait to be taken
_LEAST_TIMES = 8  # of a slot with one signature, by either plan, to say anything


class RegionTimes:
    """How long the slots of two plans take that answer in turn."""

    def __init__(self, incumbent: int, candidate: int) -> None:
        self._incumbent, self._candidate = incumbent, candidate
        self._times: defaultdict[tuple[Any, int], dict[int, deque[float]]] = defaultdict(
            lambda: {number: deque(maxlen=CLOSE_CALLS) for number in (incumbent, candidate)}
        )

    def add(self, call: Sequence[Any]) -> None:
        """A call that was watched, as `Runner.take_watched` gives it."""
        signature, program, _, _, spans, _ = call
        if program in (self._incumbent, self._candidate):
            for slot, runs, nanoseconds, *_ in spans:
                self._times[signature, slot][program].append(nanoseconds / runs)

    @property
    def slower(self) -> set[int]:
        """The slots in which the candidate takes longer, with any signature."""
        found = set()
        for (_, slot), times in self._times.items():
            old, new = times[self._incumbent], times[self._candidate]
            if min(len(old), len(new)) >= _LEAST_TIMES and median(new) > (1 + LEAST_GAIN) * median(old):
                found.add(slot)
        return found


def slow_variants(serving: Serving, before: Serving, times: RegionTimes) -> tuple[VariantRecord, ...]:
    """The variants that are new in a plan and slower than what its slots had before; none if all of them are, if none
    is, or if the two plans have other regions."""
    open_ones = len(before.regions) - len({variant.kernel for variant in before.variants})
    if serving.regions[:open_ones] != before.regions[:open_ones]:
        return ()
    known, slots = {(variant.slot, variant.key) for variant in before.variants}, times.slower
    new = [variant for variant in serving.variants if (variant.slot, variant.key) not in known]
    slow = tuple(variant for variant in new if variant.slot in slots)
    return slow if len(slow) < len(new) else ()


def changed_variants(program: _native.Program, serving: Serving, keys: Collection[str]) -> tuple[VariantRecord, ...]:
    """The variants whose kernels these are; none if an open kernel is among them."""
    numbers = {number for number, key in enumerate(serving.keys) if key in keys}
    if not numbers or min(numbers) < len(program.kernel_addresses()):
        return ()
    return tuple(variant for variant in serving.variants if variant.kernel in numbers)


def without(program: _native.Program, serving: Serving, gone: Sequence[VariantRecord]) -> Serving:
    """Take variants out of a program: what serves then."""
    program.remove_variants([(variant.slot, variant.key) for variant in gone])
    return replace(serving, variants=tuple(variant for variant in serving.variants if variant not in gone))
