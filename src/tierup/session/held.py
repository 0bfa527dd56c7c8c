"""A model that answers calls: what it is, what serves it now, and how it gets something better.

The classes here build on each other: `Held` can change what answers, `Watched` decides when to (`watched.py`), sessions
are what a user sees (`__init__.py`).
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import ref

from tierup import _native
from tierup.config import Config
from tierup.events import Queued, Swapped
from tierup.runtime.feeds import Input, Output, native_inputs
from tierup.runtime.origin import Origin
from tierup.runtime.progress import Progress, Serving
from tierup.store.records import AboutRecord, type_of

if TYPE_CHECKING:  # a warm start needs none of them
    from tierup.adapt.analysis import Analysis
    from tierup.adapt.background import Climb
    from tierup.adapt.care import Care
    from tierup.adapt.messages import CallRecord
    from tierup.adapt.worth import Demand
    from tierup.ir.facts import Aim

_LAST_CALLS = 64  # that say how the model is called


class Held(_native.Runner):
    """The native runner with a model in it, and the way to a better plan."""

    _serving: Serving  # what answers, once there is a program

    def __init__(self, source: Any, config: Config) -> None:
        """The runner itself begins with `_describe`, when it is known what the model takes."""
        self._config, self._began_s = config, monotonic()
        self._origin = Origin(source)
        self._progress = Progress()
        self._closed = False
        self._care: Care | None = None
        self._analysis: Analysis | None = None

    @property
    def _adapts(self) -> bool:
        """Whether the model may change after it is on tier 1."""
        config = self._config
        return config.adapt and config.force_tier is None and not config.stressed

    @property
    def _watches(self) -> bool:
        """Whether calls are watched."""
        return self._config.watch and self._config.adapt

    @property
    def _judges(self) -> bool:
        """Whether plans are judged by live calls."""
        return self._adapts and self._watches

    def _describe(self, about: AboutRecord) -> None:
        """Take calls as this model does. There is no program yet."""
        self._about = about
        self._inputs = tuple(
            Input(value.name, type_of(value.type), value.shape, value.onnx_type, value.required)
            for value in about.inputs
        )
        self._outputs = tuple(
            Output(value.name, type_of(value.type), value.shape, value.onnx_type) for value in about.outputs
        )
        super().__init__(native_inputs(self._inputs), [output.name for output in self._outputs])
        events, me = self._progress.events, ref(self)  # which outlives this model
        events.name, events.calls = about.name, lambda: 0 if (found := me()) is None else found.calls

    def _has_open_sizes(self) -> bool:
        shapes = [value.shape for value in self._inputs]
        return any(not isinstance(dim, int) for shape in shapes for dim in shape or ())

    def _go_live(self, program: _native.Program, serving: Serving, tried: bool = False) -> bool:
        """Answer calls with this program from now on; those that run keep theirs. False if nothing may change."""
        progress = self._progress
        if self._config.stress_deopt:
            program.miss_variants(self._config.stress_deopt, self._config.stress_seed)
        if serving.baseline is not None:
            serving.baseline.since = self.calls
        with progress.lock:
            if progress.stopped:
                return False
            before, previous = self.program, None if self.program is None else self._serving
            self.program, self._serving = program, serving
            if before is not None and previous is not None:
                self._swapped(before, previous, tried)
        self._join_pages()
        return True

    def _swapped(self, before: _native.Program, previous: Serving, tried: bool) -> None:
        """Another program answers than before; the lock is held."""
        serving, progress = self._serving, self._progress
        progress.counts.swaps += 1
        facts = tuple(map(str, serving.facts))
        progress.events.add(Swapped(previous.tier, serving.tier, serving.kernels, facts, serving.strays))
        if self._judges:
            from tierup.adapt.care import Previous

            self._caring().swapped(self, Previous(before, previous), tried)

    def _join_pages(self) -> None:
        """Packed weights are read faster where pages are huge; see to it, behind calls. (Of tables a call reads some
        rows: joining the 28 MiB of bert_mini's changed nothing but the 14 calls beside it.)"""
        packed = [array for (_, *packing), array in (self._serving.constants or {}).items() if packing]
        if packed:
            from tierup.adapt.joining import JOINER

            JOINER.add(packed)

    def _hold(self, seconds: float) -> int:
        """As `Climb.hold_calls` has it."""
        self.hold_calls(seconds)
        return self.held_calls

    def _caring(self) -> Care:
        if self._care is None:
            from tierup.adapt.care import Care

            self._care = Care(self._progress, self._config, self._about.name)
        return self._care

    def _analysed(self) -> Analysis:
        if self._analysis is None:
            from tierup.adapt.analysis import Analysis

            names = [value.name for value in self._inputs]
            age_s = monotonic() - self._began_s
            self._analysis = Analysis(self._config, self._progress.events, names, age_s=age_s, saves=self._adapts)
        # A swap holds the lock for a moment, and no call waits for it: the next one says whose regions they are.
        if self._progress.lock.acquire(blocking=False):
            try:
                if self.program is not None:
                    self._analysis.name_regions(self.program.number, self._serving.regions)
            finally:
                self._progress.lock.release()
        return self._analysis

    def _climb(self, aim: Aim | None = None, again: bool = False) -> Climb:
        from tierup.adapt.background import Climb

        serving = self._serving if self.program is not None else None
        return Climb(
            self._about.name,
            self._go_live,
            self._origin,
            self._progress,
            self._config,
            () if aim is None else aim.signatures,
            constants=None if serving is None else serving.constants,
            incumbent=serving.aim if serving is not None and serving.kernels else None,
            calls=self._calls_to_try,
            again=again,
            nodes=sum(dict(self._about.ops).values()),
            demand=self._demand,
            hold=self._hold,
            facts=() if aim is None else aim.facts,
            strays=() if aim is None else aim.strays,
        )

    def _submit(self, aim: Aim | None = None, again: bool = False) -> None:
        """Have a better plan made in the background."""
        from tierup.adapt.background import BACKGROUND

        climb = self._climb(aim, again)
        waiting = BACKGROUND.submit(climb)
        facts = tuple(map(str, climb.facts))
        self._progress.events.add(Queued(climb.tier, waiting, climb.signatures, facts, climb.strays))

    def _calls_to_try(self, aim: Aim) -> tuple[CallRecord, ...]:
        """Calls that a plan that is made for this can be timed on: what is new in it, or what comes most often."""
        serving = self._serving
        new = tuple(signature for signature in aim.signatures if signature not in serving.signatures)
        if set(aim.facts) - set(serving.facts):
            new = aim.signatures
        if set(aim.strays) - set(serving.strays):
            new = aim.strays
        return self._caring().calls_to_try(self, new, aim.facts)

    def _demand(self, aim: Aim) -> Demand:
        """How the model is called lately, and which share of that has one of the signatures that it aims at; all of it,
        if none."""
        from tierup.adapt.worth import Demand

        last = self.times()[-_LAST_CALLS:]
        serving = self._serving if self.program is not None else None
        new: set[Any] = set(aim.signatures) - set(() if serving is None else serving.signatures)
        if serving is not None and serving.baseline is not None and set(aim.strays) - set(serving.strays):
            new = set(serving.baseline.seen())
        taken = [nanoseconds for signature, _, nanoseconds in last if not new or signature in new]
        call_s = 1e-9 * sum(taken) / len(taken) if taken else 0.0
        return Demand(self.calls, call_s, len(taken) / len(last) if last else 1.0, len(last))

    def _take_baseline(self) -> None:
        """The baseline proper instead of its stand-in, which is slower."""
        from tierup.plan.baseline import baseline
        from tierup.runtime.executable import executable

        if self._serving.baseline is None:
            return  # it answers already
        imported = self._origin.imported()
        plan = baseline(imported.graph)
        program = executable(plan, imported.weights)
        with self._progress.lock:
            if not self._closed:
                self.program, self._serving = program, Serving.of(plan)
