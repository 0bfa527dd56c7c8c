"""A model that looks after itself: what native code calls when calls were answered, and what comes of it.

A plan that does not pay is taken back, a kernel whose answers are wrong is taken out, sizes that calls keep coming with
get kernels of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tierup import _native
from tierup.config import Config
from tierup.errors import InputError
from tierup.events import Quarantined, RolledBack, Strayed, Thinned
from tierup.ir.facts import MOST_STRAYS, Aim
from tierup.runtime.feeds import native_inputs
from tierup.session.held import Held

if TYPE_CHECKING:  # a warm start needs none of them
    from tierup.adapt.care import Care
    from tierup.adapt.messages import CheckedCall
    from tierup.adapt.sampling import Sample
    from tierup.adapt.stress import Stress
    from tierup.runtime.progress import Serving

FIRST_NOTICE = 64  # calls after which it is looked at which signatures they come with


class Watched(Held):
    """A model whose calls are watched, or at least counted."""

    def __init__(self, source: Any, config: Config) -> None:
        super().__init__(source, config)
        self._stress: Stress | None = None

    def notice_calls(self) -> None:
        """Called by native code when the first call was answered, and again ever more seldom."""
        self._progress.may_begin.set()
        if self._stress is not None:
            self._swap_variants(self._stress)
            return
        if not self._judges:
            self._improve()
            self.notice_after(max(FIRST_NOTICE, 3 * self.calls))
            return
        from time import perf_counter

        began_s, care = perf_counter(), self._caring()
        if not self._progress.settled:
            from tierup.adapt.background import BACKGROUND

            BACKGROUND.hurry()
        self._look(care)
        if self.program is not None and not (self._retry_kernels() or self._improve()):
            self.notice_after(care.next_look(self, began_s))
        else:
            self.notice_after(FIRST_NOTICE)

    def analyse_calls(self) -> None:
        """Called by native code when calls were watched: have their profiles made, beside the next ones."""
        from time import thread_time

        from tierup.adapt.analysis import ANALYSER

        began_s, analysis = thread_time(), self._analysed()
        ANALYSER.wake(self, analysis)
        analysis.spent_s += thread_time() - began_s

    def _swap_variants(self, stress: Stress) -> None:
        with self._progress.lock:
            if not self._progress.stopped and self.program is not None:
                self.program, self._serving = stress.another(self.program, self._serving)
                self._progress.counts.swaps += 1
        self.notice_after(self._config.stress_swap_every)

    def _look(self, care: Care) -> None:
        """Go back to what answered before, if what answers now does not pay, or go on with a part of its variants."""
        if care.regions is not None:
            self._analysed().drain(self)
        with self._progress.lock:
            if self._progress.stopped:
                return
            live, gone, found = self.program, self._serving, care.look(self, self._serving)
            if found is not None and live is not None:
                if found.program is not live:
                    self._progress.taken_back = live.number
                self.program, self._serving = found.program, found.serving
        self._analysed().compared = care.regions
        if found is not None and self._origin.source is not None and gone.parts:
            from tierup.store.plans import Plans

            # The next process starts with what answers now.
            source, plans, serving = self._origin.source, Plans(self._config.cache_path, 1), found.serving
            if found.program is live:
                plans.keep_variants(source, gone.parts, gone.aim, serving.variants)
            else:
                plans.take_back(source, gone.parts, gone.aim, serving.aim if serving.kernels else None)

    def _retry_kernels(self) -> bool:
        """Try once more to get off the baseline, if timing said no and that is a while ago; returns whether."""
        progress, care = self._progress, self._caring()
        refused = progress.counts.refusals or progress.counts.rollbacks
        if self._serving.kernels or not refused or not progress.settled or not care.backoff.allows(1, self.calls):
            return False
        if not progress.resume():
            return False
        care.backoff.failed(1, self.calls)  # until it turns out otherwise
        self._submit(again=True)
        return True

    def _improve(self, *, everything: bool = False) -> bool:
        """Have variants built that calls would use, if there are new ones; returns whether. With `everything`, what
        came seldom counts as well."""
        serving, config = self._serving, self._config
        if not self._progress.settled or not serving.kernels or not config.adapt or config.force_tier is not None:
            return False
        return (
            self._take_strays_in(everything=everything)
            or self._close_hot_signatures(everything=everything)
            or self._rely_on_facts(everything=everything)
        )

    def _take_strays_in(self, *, everything: bool) -> bool:
        """Have functions built for calls that keep breaking what is assumed of sizes; returns whether."""
        progress, serving = self._progress, self._serving
        seen = {} if serving.baseline is None else serving.baseline.seen()
        room = MOST_STRAYS - len(serving.strays)
        if serving.baseline is None or not seen or not room:
            return False
        from tierup.adapt.background import BACKGROUND
        from tierup.adapt.hot import hot_strays

        care, answered = self._caring(), self.calls - serving.baseline.since
        found = hot_strays(seen, answered, everything=everything, queued=BACKGROUND.length)
        new = [stray for stray in found if care.backoff.allows(("stray", stray), self.calls)][:room]
        aim = Aim(serving.signatures, serving.facts, (*serving.strays, *new))
        if not new or not progress.allows(aim) or not progress.resume():
            return False
        for stray in new:
            care.backoff.failed(("stray", stray), self.calls)  # until it turns out otherwise
        progress.events.add(Strayed(serving.deopts, answered, tuple(new)))
        self._submit(aim)
        return True

    def _rely_on_facts(self, *, everything: bool) -> bool:
        """Have variants built for what holds in all calls, if that is new; returns whether."""
        if not self._watches or (self._analysis is None and not everything):
            return False
        progress, serving, care, analysis = self._progress, self._serving, self._caring(), self._analysed()
        if everything:
            analysis.drain(self)
        found = analysis.facts(self._inputs, everything=everything)
        new = {fact.input: fact for fact in found if fact not in serving.facts}
        new = {place: fact for place, fact in new.items() if care.backoff.allows(fact, self.calls)}
        if not new:
            return False
        from tierup.adapt.hot import hot_signatures
        from tierup.ir.facts import MOST

        kept = {fact.input: fact for fact in serving.facts}
        facts = tuple(sorted((kept | new).values())[:MOST])
        signatures = serving.signatures or hot_signatures(self.signatures(), everything=everything)
        aim = Aim(signatures, facts, serving.strays)
        if not aim.signatures or not progress.allows(aim) or not progress.resume():
            return False
        for fact in new.values():
            care.backoff.failed(fact, self.calls)  # until it turns out otherwise
        self._submit(aim)
        return True

    def _close_hot_signatures(self, *, everything: bool) -> bool:
        """Have functions built for the signatures that calls come with, if there are new ones; returns whether."""
        progress, serving = self._progress, self._serving
        if not self._has_open_sizes():
            return False
        from tierup.adapt.background import BACKGROUND
        from tierup.adapt.hot import MOST, hot_signatures

        care, queued = self._caring(), BACKGROUND.length
        turned_away = {} if serving.baseline is None else serving.baseline.seen()  # kernels do not see them
        hot = tuple(
            signature
            for signature in hot_signatures(self.signatures(), everything=everything, queued=queued)
            if signature not in turned_away
            and (signature in serving.signatures or care.backoff.allows(signature, self.calls))
        )
        kept = [signature for signature in serving.signatures if signature not in hot]
        wanted = Aim((*hot, *kept)[:MOST], serving.facts, serving.strays)
        if set(hot) <= set(serving.signatures) or not progress.allows(wanted) or not progress.resume():
            return False
        for signature in set(hot) - set(serving.signatures):
            care.backoff.failed(signature, self.calls)  # until it turns out otherwise
        self._submit(wanted)
        return True

    def sample_call(self, feeds: dict[str, Any], outputs: dict[str, Any], program: int) -> None:
        """Called by native code with a call that was just answered, now and then."""
        care, source = self._caring(), self._origin.source
        sample = care.take_sample(self, feeds, outputs, program)
        if self.program is None or not self._serving.kernels or self._progress.stopped:
            return  # the next swap asks for the next one
        if program != self.program.number:
            self.sample_after(1)  # the rival has answered, or what served until now
            return
        if care.put_off(self):
            return
        from tierup.adapt.sampling import LIMIT_S, SAMPLER

        presses = self._progress.presses
        if sample is None or source is None or not SAMPLER.check(sample, source, self._config, self._checked, presses):
            care.again(self, LIMIT_S)

    def _check_ahead(self) -> None:
        """Have what answers since a swap checked on calls that are kept: now, while somebody waits, instead of beside
        the first calls."""
        care, source, program = self._caring(), self._origin.source, self.program
        if program is None or source is None or not self._serving.kernels or self._progress.stopped:
            return
        from tierup.adapt.sampling import SAMPLER, Sample
        from tierup.adapt.tensors import array_of, records_of

        runner = _native.Runner(native_inputs(self._inputs), [output.name for output in self._outputs])
        runner.program = program
        for inputs in care.take_ahead(self):
            try:
                answers = records_of(runner.call_dict({record.name: array_of(record) for record in inputs}))
            except InputError as error:
                self._give_up(program.number, f"it fails on a call that was answered: {error}")
                return
            if answers is not None:
                sample = Sample(inputs, answers, self.calls, program.number)
                SAMPLER.check(sample, source, self._config, self._checked, self._progress.presses)

    def _checked(self, sample: Sample, found: CheckedCall | str) -> None:
        """A worker has answered a sampled call again, or says why it could not."""
        from tierup.adapt.sampling import LIMIT_S, SAMPLER

        care = self._caring()
        if isinstance(found, str):
            care.again(self, LIMIT_S)
            return
        if sample.number < care.trusted_since:
            return  # of what does not answer any more, and the next one is asked for
        reason = care.judge(sample, found)
        if reason:
            self._take_out(sample.program, sample.number, reason)
        else:
            care.again(self, found.seconds, SAMPLER.spent_s)

    def answer_otherwise(self, feeds: dict[str, Any], reason: str, program: int) -> tuple[Any, ...] | None:
        """Called by native code with a call that a plan cannot answer. What the baseline says of it, the caller gets;
        if that is an answer, the plan is wrong, and goes."""
        answers_now = self.program is not None and self.program.number == program
        if self._closed or self._config.force_tier is not None or (answers_now and not self._serving.kernels):
            return None  # it is the baseline that cannot, or somebody wants to hear of it
        from tierup.reference.evaluate import evaluate

        imported = self._origin.imported()
        answers = evaluate(imported.graph, imported.weights, [feeds.get(value.name) for value in self._inputs])
        self._give_up(program, f"it fails where the baseline has an answer: {reason}")
        return tuple(answers)

    def _fall_back(self, program: int, reason: str) -> tuple[_native.Program, Serving] | None:
        """Have the baseline answer instead of this program, at once: what answered; None if that was another."""
        from tierup.adapt.quarantine import safe_program

        progress, care = self._progress, self._caring()
        with progress.lock:
            live, serving = self.program, self._serving
            if self._closed or live is None or live.number != program:
                return None
            self.set_rival(None)
            progress.taken_back, progress.taken_back_for = program, ("quarantined", reason)
            self.program, self._serving = safe_program(self._origin, care.previous, self._inputs, self._outputs)
            care.watch = care.previous = care.regions = None
        return live, serving

    def _give_up(self, program: int, reason: str) -> None:
        """Answer with the baseline from now on: the plan of this program is wrong, whatever its kernels are."""
        from tierup.adapt.learn import left_alone_s
        from tierup.adapt.quarantine import give_up

        progress, found = self._progress, self._fall_back(program, reason)
        if found is None:
            return
        _, gone = found
        progress.counts.rollbacks += 1
        progress.reason = f"the plan is not used any more: {reason}"
        progress.events.add(RolledBack(gone.tier, 0, reason))
        progress.put_off(gone.aim, left_alone_s("quarantined"))
        give_up(self._config, progress.events, self._about.name, gone, reason)
        if self._origin.source is not None and gone.parts:
            from tierup.store.plans import Plans

            Plans(self._config.cache_path, 1).take_back(self._origin.source, gone.parts, gone.aim, None)
        self._take_baseline()

    def _take_out(self, program: int, call: int, reason: str) -> None:
        """Answer with the baseline from now on: a kernel of this program is wrong. If it is a variant, and the code of
        all others is as it was built, they answer again without it."""
        from tierup.adapt.quarantine import quarantine
        from tierup.adapt.thinning import changed_variants, without

        progress, found = self._progress, self._fall_back(program, reason)
        if found is None:
            return
        live, serving = found
        progress.reason = f"kernels are in quarantine: {reason}"
        keys = quarantine(self._config, progress.events, self._about.name, live, serving, reason)
        progress.counts.quarantined += len(keys)
        progress.events.add(Quarantined(keys, call, reason))
        if self._origin.source is not None and serving.parts:
            from tierup.store.plans import Plans

            Plans(self._config.cache_path, 1).take_out(self._origin.source, serving.parts, keys)
        wrong = changed_variants(live, serving, keys)
        if not wrong:
            self._take_baseline()
            return
        thinner = without(live, serving, wrong)
        with progress.lock:
            if not self._closed:
                self.program, self._serving = live, thinner
                self._caring().sample_anew(self)
        progress.events.add(Thinned(len(wrong), len(thinner.variants), reason))
