"""The thread that models are tiered up on, mostly one after another. It is there while there is something to do.

What is worth the most comes first (`worth.py`), and what somebody waits for before that; a job that nobody needs any
more is dropped, with an event. Between its stages, a climb gives way to one that has become worth clearly more: a large
model takes many seconds, and a small one that is called all the time need not wait for them. One that presses runs
beside another that does not: workers of the latter may not get a core at all.

It is a daemon: the interpreter never waits for it. What it imports, it imports itself, so that loading a model does
not.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from tierup.adapt.behind import start_behind
from tierup.events import Dropped, Strayed

if TYPE_CHECKING:
    from tierup import _native
    from tierup.adapt.costs import Ledger
    from tierup.adapt.messages import CallRecord
    from tierup.adapt.worth import Demand
    from tierup.config import Config
    from tierup.ir.facts import Aim, Fact
    from tierup.runtime.constants import Constants
    from tierup.runtime.origin import Origin
    from tierup.runtime.progress import Progress, Serving, Signature

NO_TARGET = "kernels need a processor with AVX2 and FMA, or NEON; this one has neither"
_WORTH_MORE = 2.0  # times: a climb gives way to no less, since what both are worth is a guess
_FIRST_CALL_S = 0.5  # what a model is given to answer its first call in
_PRESSING_CORES = 0.25  # saved: then one core for the seconds that building takes is soon made up for
_CLOSED = "the model was closed or frozen before its kernels were ready"
_FORKED = "the process was forked while kernels were being built; load the model again in the child"


class Climb:
    """One model's way to the next tier: 1, or 2 if there are signatures to close.

    `go_live` is the model's method; it and the origin are held weakly, so that a model that is dropped is gone. So are
    `hold`, which lets calls wait, and `calls`, which gives calls to try plans on. `constants` are what the next program
    may share with the one that runs, `incumbent` what that was made for, None if it is the baseline. `facts` may be
    relied on for these signatures, and `strays` get functions of their own.
    `again`: it is tried though it was turned away before. `nodes` is the model's size. `demand` says how the model is
    called, and how much of that has these signatures.
    """

    def __init__(
        self,
        name: str,
        go_live: Callable[[_native.Program, Serving, bool], bool],
        origin: Origin,
        progress: Progress,
        config: Config,
        signatures: tuple[Signature, ...] = (),
        constants: Constants | None = None,
        incumbent: Aim | None = None,
        calls: Callable[[Aim], tuple[CallRecord, ...]] | None = None,
        again: bool = False,
        nodes: int = 1,
        demand: Callable[[Aim], Demand] | None = None,
        facts: tuple[Fact, ...] = (),
        strays: tuple[Signature, ...] = (),
        hold: Callable[[float], int] | None = None,
    ) -> None:
        self.name, self.progress, self.config = name, progress, config
        self.signatures, self.constants, self.incumbent = signatures, constants or {}, incumbent
        self.facts, self.strays = facts, strays
        self._go_live, self._origin = weakref.WeakMethod(go_live), weakref.ref(origin)
        self.again = again
        self._calls = None if calls is None else weakref.WeakMethod(calls)
        self._hold = None if hold is None else weakref.WeakMethod(hold)
        self.nodes = nodes
        self._demand = None if demand is None else weakref.WeakMethod(demand)
        self._queued_s = 0.0
        self._queued: Demand | None = None
        self._ledger: Ledger | None = None
        self.gives_way: Callable[[], None] | None = None  # whoever runs it says how

    @property
    def aim(self) -> Aim:
        """What the plan is to be made for."""
        from tierup.ir.facts import Aim

        return Aim(self.signatures, self.facts, self.strays)

    @property
    def tier(self) -> int:
        """Where it leads."""
        return 2 if self.signatures else 1

    @property
    def ledger(self) -> Ledger:
        """What was spent on it."""
        if self._ledger is None:
            from tierup.adapt.costs import Ledger

            self._ledger = Ledger()
        return self._ledger

    def queued(self) -> None:
        """It waits from now on."""
        self._queued_s, self._queued = monotonic(), self.demand()

    def demand(self) -> Demand | None:
        """How the model is called; None if that is not known."""
        demand = self._demand() if self._demand is not None else None
        return None if demand is None else demand(self.aim)

    @property
    def _saves(self) -> int:
        """The tier that saves as much: strays get off the baseline."""
        known = () if self.incumbent is None else self.incumbent.strays
        return 1 if set(self.strays) - set(known) else self.tier

    def take_in(self, strays: Sequence[Signature]) -> None:
        """Aim at functions for calls like these, too: a plan without them would turn those away."""
        from tierup.adapt.hot import hot_strays
        from tierup.ir.facts import MOST_STRAYS

        kinds = hot_strays(dict.fromkeys(strays, 1), 0, everything=True)
        new = tuple(kinds[: MOST_STRAYS - len(self.strays)])
        self.strays += new
        self.progress.events.add(Strayed(len(strays), len(strays), new))

    def why_stale(self) -> str:
        """Why nobody needs it any more; empty if somebody may."""
        from tierup.adapt.worth import why_stale

        if self.progress.stopped or self._origin() is None:
            return _CLOSED
        now = self.demand()
        if self._queued is None or now is None or self.progress.awaited:
            return ""
        return why_stale(self._queued, now)

    def urgency(self) -> tuple[bool, float]:
        """What comes first is larger: what somebody waits for, then what is worth the most."""
        from tierup.adapt.costs import COSTS
        from tierup.adapt.worth import worth

        now, cost = self.demand(), COSTS.predict(self.tier, self.nodes)
        if self._queued is None or now is None:
            return self.progress.awaited > 0, 0.0
        waited_s = monotonic() - self._queued_s
        return self.progress.awaited > 0, worth(self._saves, self._queued, now, waited_s, cost.core_s)

    def pause(self) -> Origin:
        """Between two stages: let others go first, if they are worth more. Where the model comes from, or Stopped."""
        if self.gives_way is not None:
            self.gives_way()
        return self.origin()

    def presses(self) -> bool:
        """Whether workers for it take their turns with calls, instead of waiting until nobody else wants a core: what
        answers until they are done takes so much more than it has to."""
        from tierup.adapt.worth import saved_cores

        now = self.demand()
        if self.progress.awaited or self._queued is None or now is None:
            return self.progress.awaited > 0
        return saved_cores(self._saves, self._queued, now, monotonic() - self._queued_s) >= _PRESSING_CORES

    def origin(self) -> Origin:
        """Where the model comes from; Stopped if nobody needs to know any more."""
        origin = self._origin()
        if origin is None or self.progress.stopped:
            raise Stopped
        return origin

    def calls(self) -> tuple[CallRecord, ...]:
        """Calls to try plans on; none if the model has none to give."""
        calls = self._calls() if self._calls is not None else None
        return () if calls is None else calls(self.aim)

    def hold_calls(self, longest_s: float) -> int:
        """Let calls wait for what goes live next, but no longer than this; 0: no longer. How many have waited."""
        hold = self._hold() if self._hold is not None else None
        return 0 if hold is None else hold(longest_s)

    def go_live(self, program: _native.Program, serving: Serving, tried: bool = False) -> None:
        """Let the model answer with this program; Stopped if it must not change. `tried`: it was measured faster."""
        go_live = self._go_live()
        if go_live is None or not go_live(program, serving, tried):
            raise Stopped


class Stopped(Exception):
    """The model is gone, closed or frozen: nobody wants the result any more."""


class Background:
    """A queue and its thread."""

    def __init__(self, run: Callable[[Climb], None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._waiting: list[Climb] = []
        self._begun: list[Climb] = []  # the first gave way to the second, or runs beside it
        self._running = False
        os.register_at_fork(after_in_child=self._forget)

    @property
    def length(self) -> int:
        """How many wait or run."""
        return len(self._waiting) + len(self._begun)

    def submit(self, climb: Climb) -> int:
        """See to it that it is run. Returns at once: how many wait already."""
        climb.queued()
        with self._lock:
            self._waiting.append(climb)
            waiting = len(self._waiting) - (not self._running)
            if self._running:
                return waiting
            self._running = True
        start_behind(self._work, "tierup-background")
        return waiting

    def hurry(self) -> None:
        """Begin with a climb that waits and presses, beside one that does not. Returns at once."""
        with self._lock:
            waiting, begun = list(self._waiting), list(self._begun)
        if not waiting or len(begun) != 1 or begun[0].presses():
            return
        pressing = [climb for climb in waiting if climb.presses()]
        if not pressing:
            return
        best = max(pressing, key=Climb.urgency)
        if self._begin(best, beside=begun[0]):
            start_behind(partial(self._climb, best), "tierup-background")

    def _work(self) -> None:
        while (climb := self._next()) is not None:
            self._climb(climb)

    def _climb(self, climb: Climb) -> None:
        """Run a climb that is begun."""
        climb.gives_way = partial(self._give_way, climb)
        try:
            self._run(climb)
        finally:
            climb.gives_way = None
            with self._lock:
                self._begun = [begun for begun in self._begun if begun is not climb]

    def _give_way(self, climb: Climb) -> None:
        """Run what waits and is worth clearly more than a climb that is between two stages; that does not give way in
        turn, so that the first one goes on soon."""
        while len(self._begun) == 1:
            with self._lock:
                waiting = list(self._waiting)
            useful = [other for other in waiting if not self._drop_if_stale(other)]
            best = max(useful, key=Climb.urgency, default=None)
            if best is None or not _is_worth_more(best.urgency(), climb.urgency()):
                return
            if not self._begin(best, beside=climb):
                return
            self._climb(best)

    def _next(self) -> Climb | None:
        """What is worth the most, without what nobody needs; the first of equals. None at the end."""
        while True:
            with self._lock:
                waiting = list(self._waiting)
                self._running = bool(waiting)
            if not waiting:
                return None
            useful = [climb for climb in waiting if not self._drop_if_stale(climb)]
            if not useful:
                continue
            best = max(useful, key=Climb.urgency) if len(useful) > 1 else useful[0]
            if self._begin(best):
                return best

    def _begin(self, climb: Climb, beside: Climb | None = None) -> bool:
        """It does not wait any more; False if it did not, or if others have begun than the one that it is to run beside
        or before."""
        with self._lock:
            if climb not in self._waiting or (beside is not None and self._begun != [beside]):
                return False
            self._waiting.remove(climb)
            self._begun.append(climb)
            return True

    def _drop_if_stale(self, climb: Climb) -> bool:
        reason = climb.why_stale()
        if not reason:
            return False
        with self._lock:
            if climb not in self._waiting:
                return True  # it has begun meanwhile
            self._waiting.remove(climb)
        climb.progress.events.add(Dropped(climb.tier, reason))
        climb.progress.finish(reason if climb.progress.stopped else "")
        return True

    def _forget(self) -> None:
        """A forked child does not have the thread, and the lock may have been held."""
        unfinished = [*self._waiting, *self._begun]
        self._lock, self._waiting, self._begun, self._running = threading.Lock(), [], [], False
        for climb in unfinished:
            climb.progress.abandon(_FORKED)


def _is_worth_more(one: tuple[bool, float], other: tuple[bool, float]) -> bool:
    """Whether somebody waits for the one alone, or for both or none and it is worth clearly more."""
    return one[0] > other[0] or (one[0] == other[0] and one[1] > _WORTH_MORE * other[1])


def _tier_up(climb: Climb) -> None:
    # Imports take turns with whatever Python runs meanwhile, and that is the first call.
    climb.progress.may_begin.wait(_FIRST_CALL_S)
    from tierup.adapt.tiering import tier_up_quietly

    tier_up_quietly(climb)


BACKGROUND = Background(_tier_up)  # one for the process
