"""The analyser: takes what native code saw of calls, beside inference, and makes execution profiles of it.

A call that was watched now and then wakes a thread of the process; without calls it sleeps. What a call costs here is
told to native code, which watches so few that all of it together stays within its share. Profiles are saved when a
model settles, and now and then.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from tierup import _native
from tierup.adapt.behind import start_behind
from tierup.events import Evicted
from tierup.profile.execution import Profiles, RegionHistory, Shapes

if TYPE_CHECKING:
    from tierup.adapt.thinning import RegionTimes
    from tierup.config import Config
    from tierup.events import Events
    from tierup.ir.facts import Fact
    from tierup.profile.energy import EnergyMeter
    from tierup.runtime.feeds import Input

_SAVE_FIRST_S, _SAVE_EVERY_S = 30.0, 300.0
_SAVED_ROWS = 2048
_KNOWN_PROGRAMS = 8
_MOST_WAITING = 1024  # models
_STEADY_CALLS, _SETTLING_CALLS = 16, 2  # watched one after the other, in which a fact held; while a model settles


class Watched(Protocol):
    """A model, as far as it is needed here."""

    def take_watched(self) -> list[tuple[Any, ...]]: ...
    def signatures(self) -> list[tuple[Any, int]]: ...
    def set_analysis_ns(self, nanoseconds: float) -> None: ...
    @property
    def calls(self) -> int: ...
    @property
    def watched_dropped(self) -> int: ...


class Analysis:
    """The profiles of one model that began so many seconds ago, and what they are made of. Threads may share it."""

    def __init__(
        self, config: Config, events: Events, inputs: Sequence[str], *, age_s: float = 0.0, saves: bool = True
    ) -> None:
        self._config, self._events, self._saves = config, events, saves
        self.profiles = Profiles(inputs, time.monotonic() - age_s)
        self.lock = threading.Lock()
        self._programs: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self.compared: RegionTimes | None = None  # takes the calls of two plans that are being compared
        self._told = 0  # evictions that there was an event for
        self.spent_s = 0.0  # processor time since the last call was taken in
        self._saved_s = time.monotonic() - _SAVE_EVERY_S + _SAVE_FIRST_S
        self._energy: EnergyMeter | str | None = None
        self._first_uj: tuple[int, ...] = ()
        self._first_calls = 0
        _ALL.add(self)

    def name_regions(self, program: int, regions: tuple[str, ...]) -> None:
        """The digests of the regions in a program's slots; the oldest program is forgotten."""
        self._programs[program] = regions
        while len(self._programs) > _KNOWN_PROGRAMS:
            self._programs.popitem(last=False)

    def drain(self, model: Watched, *, pause: bool = False) -> int:
        """Take in what was watched: how many calls. With `pause`, calls that wait for the GIL get it in between."""
        with self.lock:
            calls = model.take_watched()
            now_s = time.monotonic()
            for call in calls:
                self.profiles.add(call, self._programs.get(call[1]), now_s)
                if self.compared is not None:
                    self.compared.add(call)
                if pause:
                    time.sleep(0)
            self.profiles.count(model.signatures(), now_s)
            self._tell_evictions()
        return len(calls)

    def charge(self, model: Watched, seconds: float, calls: int) -> None:
        """Let so many calls have cost this much processor time: it decides how many are watched."""
        self.spent_s += seconds
        if calls:
            model.set_analysis_ns(1e9 * self.spent_s / calls)
            self.spent_s = 0.0

    def _tell_evictions(self) -> None:
        """An event for the first, and whenever there are twice as many: the stream has room for other things."""
        evicted = self.profiles.evicted
        if evicted >= max(1, 2 * self._told):
            self._told = evicted
            self._events.add(Evicted("execution profiles", evicted, len(self.profiles)))

    def save_now_and_then(self) -> None:
        """Save, if the last time is a while ago."""
        if time.monotonic() - self._saved_s >= _SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Queue what is new to be written to the store."""
        self._saved_s = time.monotonic()
        if not self._saves:
            return
        from tierup.adapt.learn import machine_row, region_profile_rows
        from tierup.adapt.memory import MEMORY

        machine = machine_row()
        with self.lock:
            rows = region_profile_rows(self.profiles, machine.key, _SAVED_ROWS, counter_names())
        if rows:
            MEMORY.remember(self._config, [machine, *rows], self._events)

    def to_dict(self, model: Watched) -> dict[str, Any]:
        """All of it as plain data: the regions that took the most time first."""
        energy, names, now_s = self.energy(model), counter_names(), time.monotonic()
        with self.lock:
            profiles = self.profiles
            regions = [
                _region_dict(region, signature, history, names)
                for region, histories in profiles.regions.items()
                for signature, history in histories.items()
            ]
            rates = sorted(profiles.rates.items(), key=lambda item: -item[1].at(now_s))
            return {
                "watched_calls": profiles.calls,
                "watched_dropped": model.watched_dropped,
                "evicted": profiles.evicted,
                "counters": list(names) or f"unavailable: {_why_no_counters()}",
                "energy": energy,
                "signatures": [
                    {"shapes": _plain(signature), "calls": rate.calls, "per_s": rate.at(now_s)}
                    for signature, rate in rates
                ],
                "regions": sorted(regions, key=lambda region: -region["runs"] * region["p50_us"]),
                "inputs": [history.to_dict(name) for name, history in profiles.inputs.items()],
            }

    def facts(self, inputs: Sequence[Input], *, everything: bool = False) -> tuple[Fact, ...]:
        """What held in the last calls that were watched, and can be looked at in every call: inputs of one number."""
        from tierup.ir.facts import LIMIT_BYTES, Fact
        from tierup.ir.types import TensorType

        least, found = _SETTLING_CALLS if everything else _STEADY_CALLS, list[Fact]()
        with self.lock:
            for place, given in enumerate(inputs):
                history, kind = self.profiles.inputs.get(given.name), given.type
                if history is None or history.only is None or history.only_calls < least:
                    continue
                if isinstance(kind, TensorType) and history.elements * kind.dtype.numpy.itemsize <= LIMIT_BYTES:
                    found.append(Fact(place, given.name, kind.dtype.code, history.only))
        return tuple(fact for fact in found if _can_be(fact))

    def measure_energy(self, model: Watched) -> None:
        """Begin to meter, if there is a meter and it did not begin yet."""
        if self._energy is not None:
            return
        from tierup.profile.energy import open_meter

        self._energy = open_meter()
        if isinstance(self._energy, str):
            return
        try:
            self._first_uj, self._first_calls = self._energy.read_uj(), model.calls
        except (OSError, ValueError) as error:
            self._energy = str(error)

    def energy(self, model: Watched) -> dict[str, Any] | str:
        """Joules by zone since metering began, of the whole machine, and calls meanwhile; or why that is not known."""
        self.measure_energy(model)
        if isinstance(self._energy, str):
            return f"unavailable: {self._energy}"
        assert self._energy is not None
        try:
            joules = self._energy.joules(self._first_uj, self._energy.read_uj())
        except (OSError, ValueError) as error:
            return f"unavailable: {error}"
        return {"joules": joules, "calls": model.calls - self._first_calls}


def _can_be(fact: Fact) -> bool:
    """Whether native code can look for it: statistics of large integers are rounded."""
    try:
        return bool(fact.element)
    except (ValueError, OverflowError):
        return False


def counter_names() -> tuple[str, ...]:
    """The hardware counters that regions are counted with, found at the first time; none where there is none."""
    return tuple(_native.prepare_counters())


@cache
def _why_no_counters() -> str:
    from tierup.profile.counters import explain_counters

    reasons = (counter.unavailable for counter in explain_counters(_native.machine_counter_errors()))
    return next((reason for reason in reasons if reason is not None), "they cannot be counted together")


def _region_dict(region: str, signature: Shapes, history: RegionHistory, names: tuple[str, ...]) -> dict[str, Any]:
    found = history.quantiles
    counts = [count / max(1, history.counted) for count in history.counts]
    return {
        "region": region,
        "signature": _plain(signature),
        "calls": history.calls,
        "runs": history.runs,
        "p50_us": found.p50_us,
        "p90_us": found.p90_us,
        "p99_us": found.p99_us,
        "counters": dict(zip(names, counts, strict=False)),
    }


def _plain(signature: Shapes) -> list[list[int] | None]:
    return [None if shape is None else list(shape) for shape in signature]


_ALL: weakref.WeakSet[Analysis] = weakref.WeakSet()


class Analyser:
    """The thread that waits to be woken, one for the process."""

    def __init__(self) -> None:
        self._start_fresh()
        os.register_at_fork(after_in_child=self._start_fresh)

    def _start_fresh(self) -> None:
        """Also in a forked child: the thread is not there, and it may have held locks."""
        self._changed = threading.Condition()
        self._waiting: deque[tuple[weakref.ref[Any], Analysis]] = deque(maxlen=_MOST_WAITING)
        self._running = self._busy = False
        for analysis in list(_ALL):
            analysis.lock = threading.Lock()

    def wake(self, model: Watched, analysis: Analysis) -> None:
        """There is something to take from this model. Returns at once."""
        with self._changed:
            self._waiting.append((weakref.ref(model), analysis))
            if self._running:
                self._changed.notify_all()
                return
            self._running = True
        start_behind(self._work, "tierup-analysis")

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to take in; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def _work(self) -> None:
        counter_names()  # calls count with what is found here
        began_s = time.thread_time()
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                found, analysis = self._waiting.popleft()
                self._busy = True
            model = found()
            if model is not None:
                analysis.measure_energy(model)
                taken = analysis.drain(model, pause=True)
                analysis.save_now_and_then()
                # With what waking up took, here and where it was asked for.
                ended_s = time.thread_time()
                analysis.charge(model, ended_s - began_s, taken)
                began_s = ended_s
            del model, analysis  # nothing is kept alive while this waits


ANALYSER = Analyser()
