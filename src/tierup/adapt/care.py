"""What is done for a model while it serves: watch the last swap, go back where it does not pay, sample its answers.

All of it happens at the end of a call that native code picked for it, on the caller's thread, so it is short and rare:
a look costs some 100 µs, and the next one is put off until that is a few thousandths of what calls take.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import msgspec

from tierup.adapt.live import LOOK_AFTER, Backoff, Finding, Watch
from tierup.adapt.sampling import FIRST_CALLS, SHARE, START_S, Sample, least_calls, next_sample, pause_s
from tierup.adapt.tensors import CALL_LIMIT_BYTES, TensorData, hold, records_of
from tierup.adapt.thinning import CLOSE_CALLS, RegionTimes, slow_variants, without
from tierup.events import Confirmed, RolledBack, Suspected, Thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierup import _native
    from tierup.adapt.messages import CallRecord, CheckedCall
    from tierup.config import Config
    from tierup.ir.facts import Fact
    from tierup.runtime.progress import Progress, Serving, Signature

_LOOK_SHARE = 0.002  # of the time of calls that looking at them may take
_LEAST_BETWEEN_LOOKS = 64
# The same while a plan is on trial. Of calls of 10 µs one in eight took 100 µs more, which is what p99 is made of; of
# the last 512, all times are kept.
_OPEN_SHARE, _MOST_BETWEEN_OPEN_LOOKS = 0.02, 256
_KEPT_SAMPLES = 4  # signatures whose inputs are kept
_KEPT_BYTES = 4 << 20  # for all of them together: larger inputs are drawn where a plan is tried
_KEPT_EVIDENCE = 4  # wrong answers, with their inputs
_TRIED_CALLS = 3  # signatures that a plan with open sizes is tried on, or fewer if calls of them take so long
_TRIED_S = 0.2


class Previous(msgspec.Struct, frozen=True):
    """What answered before the last swap, or is to answer from now on."""

    program: _native.Program
    serving: Serving


class Care:
    """One model's. `runner` is the model in every method: nothing here keeps it alive."""

    def __init__(self, progress: Progress, config: Config, name: str) -> None:
        self._config, self._name = config, name
        self.backoff = Backoff()
        self.watch: Watch | None = None
        self.previous: Previous | None = None
        self.regions: RegionTimes | None = None  # while the last plan and the one before take turns
        self._thinned = False
        self.trusted_since = 0  # the number of the call before which answers are known to be wrong
        self._progress = progress
        self._samples: dict[Signature, tuple[TensorData, ...]] = {}
        self.evidence: deque[tuple[Sample, str]] = deque(maxlen=_KEPT_EVIDENCE)
        self.checked = 0  # calls that were answered again
        self.every_calls = 0  # after which the next sample is taken; 0: none was asked for yet
        self._sampled = len(FIRST_CALLS)  # since the last swap; a plan from the cache had its first calls elsewhere
        self._suspect: Sample | None = None
        self._last_good = 0  # the number of the last call that was found right
        self._last_sample = perf_counter(), 0
        self._taking_s = 0.0  # processor time for the last sample, on the caller's thread

    def swapped(self, runner: _native.Runner, previous: Previous, tried: bool) -> None:
        """A new program answers since now."""
        assert runner.program is not None
        self.watch = Watch(previous.program.number, runner.program.number, runner.times(), tried=tried)
        self.previous, self.regions, self._thinned = previous, None, False
        self.sample_anew(runner)
        runner.set_rival(None)
        runner.notice_after(LOOK_AFTER)

    def sample_anew(self, runner: _native.Runner) -> None:
        """What answers has changed: sample its first calls."""
        self._sampled, self._suspect, self._last_good = 1, None, runner.calls
        self.trusted_since = runner.calls
        runner.sample_after(FIRST_CALLS[0])

    def look(self, runner: _native.Runner, serving: Serving) -> Previous | None:
        """Look at the last calls. What to go back to, if the plan that answers does not pay, or how it is to go on."""
        watch, previous, events = self.watch, self.previous, self._progress.events
        if watch is None or previous is None or runner.program is None or runner.program.number != watch.candidate:
            return None
        found: Finding = watch.look(runner.times(), runner.timed)
        match found.action:
            case "compare":
                runner.set_rival(previous.program, 0.5, seed=runner.calls)
                self.regions = RegionTimes(watch.incumbent, watch.candidate)
                runner.watch_closely(CLOSE_CALLS)
                events.add(Suspected(serving.tier, found.reason))
            case "keep":
                runner.set_rival(None)
                self.regions = None
                events.add(Confirmed(serving.tier, found.reason))
                self._learn(runner, serving)
            case "go back":
                thinner = self._thin(runner, watch, previous.serving, serving, found.reason)
                if thinner is not None:
                    return thinner
                runner.set_rival(None)
                self.watch = self.previous = self.regions = None
                self._progress.counts.rollbacks += 1
                self._progress.taken_back_for = "rolled back", found.reason
                events.add(RolledBack(serving.tier, previous.serving.tier, found.reason))
                for wanted in (*(serving.aim.wants - previous.serving.aim.wants), serving.tier):
                    self.backoff.failed(wanted, runner.calls)
                self._learn(runner, serving, "rolled back", found.reason)
                from tierup.adapt.learn import left_alone_s

                self._progress.put_off(serving.aim, left_alone_s("rolled back"))
                return previous
        return None

    def _thin(
        self, runner: _native.Runner, watch: Watch, before: Serving, serving: Serving, reason: str
    ) -> Previous | None:
        """Take out the variants that are slow by themselves, once, if they are some of several; the rest goes on being
        compared."""
        if self._thinned or self.regions is None or runner.program is None:
            return None
        slow = slow_variants(serving, before, self.regions)
        if not slow:
            return None
        self._thinned = True
        self._progress.left_out |= dict.fromkeys(
            (serving.regions[variant.kernel] for variant in slow), "it is slower than the open kernel on live calls"
        )
        thinner = without(runner.program, serving, slow)
        watch.compare_again(runner.timed)
        self._progress.events.add(Thinned(len(slow), len(thinner.variants), f"{reason}, and these are slow"))
        return Previous(runner.program, thinner)

    def _learn(self, runner: _native.Runner, serving: Serving, outcome: str = "", reason: str = "") -> None:
        """Keep how long calls take, and what became of the plan."""
        if not serving.parts:
            return
        from tierup.adapt.learn import decision_key, decision_row, machine_row, profile_rows
        from tierup.adapt.memory import MEMORY

        assert runner.program is not None
        machine, key = machine_row(), decision_key(serving.parts, serving.aim)
        rows = [
            machine,
            *profile_rows(key, machine.key, self._name, serving.tier, runner.program.number, runner.times()),
            *([decision_row(key, machine.key, self._name, serving.tier, outcome, reason)] if outcome else ()),
        ]
        MEMORY.remember(self._config, rows, self._progress.events)

    def next_look(self, runner: _native.Runner, began_s: float) -> int:
        """After how many calls to look again, if looking took from `began_s` until now."""
        calls = (perf_counter() - began_s) / _call_s(runner)
        if self.watch is not None and self.watch.open:
            return max(LOOK_AFTER, min(int(calls / _OPEN_SHARE), _MOST_BETWEEN_OPEN_LOOKS))
        return max(_LEAST_BETWEEN_LOOKS, int(calls / _LOOK_SHARE))

    def keep_sample(self, inputs: tuple[TensorData, ...]) -> None:
        """Keep a call's inputs, to try plans on; the oldest signatures go."""
        if _bytes_of(inputs) > _KEPT_BYTES:
            return
        signature = tuple(record.shape for record in inputs)
        self._samples.pop(signature, None)
        self._samples[signature] = inputs
        while len(self._samples) > _KEPT_SAMPLES or sum(map(_bytes_of, self._samples.values())) > _KEPT_BYTES:
            del self._samples[next(iter(self._samples))]

    def take_sample(
        self, runner: _native.Runner, feeds: dict[str, Any], outputs: dict[str, Any], program: int
    ) -> Sample | None:
        """A copy of a call that was just answered, if it is to be answered again."""
        began_s = thread_time()
        try:
            return self._copied(runner, feeds, outputs, program)
        finally:
            self._taking_s = thread_time() - began_s

    def _copied(
        self, runner: _native.Runner, feeds: dict[str, Any], outputs: dict[str, Any], program: int
    ) -> Sample | None:
        self._samples.pop(tuple(getattr(value, "shape", ()) for value in feeds.values()), None)  # before its successor
        inputs = records_of(feeds)
        if inputs is None:
            return None
        self.keep_sample(inputs)
        answers = records_of(outputs, CALL_LIMIT_BYTES - _bytes_of(inputs))
        return None if answers is None else Sample(inputs, answers, runner.calls, program)

    def take_ahead(self, runner: _native.Runner) -> list[tuple[TensorData, ...]]:
        """Inputs that are kept, on which to check a plan before its first calls come; none if they have come. From now
        on the budget decides when the next sample is taken."""
        kept = list(self._samples.values())[-len(FIRST_CALLS) :]
        if self._sampled != 1 or not kept:
            return []
        self._sampled, self._last_sample = len(FIRST_CALLS), (perf_counter(), runner.calls)
        return kept

    def put_off(self, runner: _native.Runner) -> bool:
        """Whether this sample is not checked: the first one of a plan from the cache, whose first calls were checked
        in another process. The next one is taken when this process has started."""
        first = self.every_calls == 0 and self._sampled == len(FIRST_CALLS)
        if first:
            self._last_sample = perf_counter(), runner.calls  # when calls began is not known: what they take says it
            self.again(runner, START_S * SHARE)
        return first

    def again(self, runner: _native.Runner, seconds: float, own_s: float = 0.0) -> None:
        """Ask for the next sample; answering the last one again took a worker so long, and a thread of ours."""
        began_s, calls = self._last_sample
        now_s = perf_counter()
        self._last_sample = now_s, runner.calls
        # of calls that have not come yet, as many may come as there is time for
        rate = (runner.calls - calls) / max(now_s - began_s, 1e-6) or 1 / _call_s(runner)
        pause, least = pause_s(seconds, own_s + self._taking_s), least_calls(_call_s(runner), self._taking_s)
        self.every_calls = next_sample(self._sampled, rate, pause, least)
        runner.sample_after(self.every_calls)
        self._sampled += 1

    def judge(self, sample: Sample, found: CheckedCall) -> str:
        """Why the program that gave this answer must go; empty if it need not."""
        self.checked += 1
        if found.verdict == "same":
            self._suspect, self._last_good = None, max(self._last_good, sample.number)
        if found.verdict not in ("suspicious", "different"):
            return ""
        self.evidence.append((sample, found.reason))
        twice = self._suspect is not None and self._suspect.inputs != sample.inputs
        if found.verdict == "suspicious" and not twice:
            self._suspect = self._suspect or sample
            return ""
        return f"{found.reason}; at most {sample.number - self._last_good} calls got such answers"

    def calls_to_try(
        self, runner: _native.Runner, closed: tuple[Signature, ...], facts: tuple[Fact, ...] = ()
    ) -> tuple[CallRecord, ...]:
        """Calls of the signatures that are to be closed, or of the most frequent ones; inputs where they are kept, and
        these facts hold."""
        from tierup.adapt.messages import CallRecord  # 9 ms, which no call should wait for

        if closed:
            kept = {signature: self._samples.get(signature, ()) for signature in closed}
            return tuple(
                CallRecord(signature, found if hold(facts, found) else ()) for signature, found in kept.items()
            )
        live_s = _fastest_s(runner)
        known = [
            (-calls, live_s.get(signature, 0.0), signature)
            for shapes, calls in runner.signatures()
            if (signature := _tensors(shapes)) in self._samples or None not in shapes
        ]
        timed = [call for call in known if call[2] in live_s]
        tried: list[CallRecord] = []
        for _, taken_s, signature in _most_telling(sorted(timed or known)):
            if not tried or taken_s + sum(other.live_s for other in tried) < _TRIED_S:
                tried.append(CallRecord(signature, self._samples.get(signature, ()), taken_s))
        return tuple(tried) or (CallRecord(None),)


def _fastest_s(runner: _native.Runner) -> dict[Signature, float]:
    """The fastest of the last calls of each signature that what answers now has answered."""
    found: dict[Signature, float] = {}
    for shapes, program, nanoseconds in runner.times():
        signature = _tensors(shapes)
        if runner.program is not None and program == runner.program.number:
            found[signature] = min(1e-9 * nanoseconds, found.get(signature, math.inf))
    return found


def _most_telling(known: Sequence[tuple[int, float, Signature]]) -> Sequence[tuple[int, float, Signature]]:
    """The first of these; where more are as frequent, the shortest, the longest and one between."""
    alike = [call for call in known if call[0] == known[0][0]]
    return known[:_TRIED_CALLS] if len(alike) <= _TRIED_CALLS else [alike[0], alike[-1], alike[len(alike) // 2]]


def _tensors(shapes: Sequence[tuple[int, ...] | None]) -> Signature:
    """The shapes of a call's tensors alone."""
    return tuple(shape for shape in shapes if shape is not None)


def _bytes_of(records: tuple[TensorData, ...]) -> int:
    return sum(len(record.data) for record in records)


def _call_s(runner: _native.Runner) -> float:
    """What the last calls took, on average."""
    times = runner.times()
    return max(1e-9 * fmean(taken for _, _, taken in times[-64:]), 1e-7) if times else 1e-3
