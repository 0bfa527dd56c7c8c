"""What a user holds: `load`, `Model`, and `InferenceSession` with ONNX Runtime's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

from msgspec.structs import replace

from tierup import _native
from tierup.config import Config
from tierup.errors import TierupError
from tierup.events import Loaded, Quarantined, Queued, Swapped, Thinned
from tierup.runtime.feeds import Input, Output, check_feeds, native_inputs
from tierup.runtime.origin import Origin
from tierup.runtime.progress import Progress, Serving, Signature
from tierup.runtime.warm import warm_start
from tierup.store.records import AboutRecord, type_of

if TYPE_CHECKING:  # a warm start needs none of them
    from types import TracebackType

    from tierup.adapt.analysis import Analysis
    from tierup.adapt.background import Climb
    from tierup.adapt.care import Care
    from tierup.adapt.messages import CallRecord, CheckedCall
    from tierup.adapt.sampling import Sample
    from tierup.adapt.stress import Stress
    from tierup.adapt.worth import Demand
    from tierup.events import Events
    from tierup.frontends.onnx import Imported
    from tierup.report import Report

_LAST_CALLS = 64  # that say how the model is called
_FIRST_NOTICE = 64  # calls after which it is looked at which signatures they come with


def load(source: Any, *, config: Config | None = None) -> Model:
    """A model from an ONNX file's path, its bytes or an `onnx.ModelProto`.

    When this returns, the whole model is parsed, typed and verified, or has the content of one that was; otherwise
    ModelError says what is wrong. It answers at once: with the kernels that the cache has for it, or else with the
    baseline until its kernels are built.
    """
    return Model(source, config or Config())


class _Session(_native.Runner):
    """What Model and InferenceSession share: the native runner with a model in it."""

    def __init__(self, source: Any, config: Config) -> None:
        self._config = config
        self._origin = Origin(source)
        self._progress = Progress()
        self._closed = False
        self._care: Care | None = None
        self._analysis: Analysis | None = None
        self._stress: Stress | None = None
        warm = warm_start(self._origin, config, self._progress) if config.force_tier != 0 else None
        if warm is None:
            self._start_cold()
        else:
            self._describe(warm.about)
            self._go_live(warm.program, warm.serving)
            self._progress.finish()
            self.notice_after(_FIRST_NOTICE)
            self.sample_after(_FIRST_NOTICE if self._judges else 0)
        self.set_timing(config.watch)
        self.set_watching(self._watches)
        self._progress.events.add(Loaded(self._serving.tier, warm is not None))
        if config.stressed and config.force_tier != 0:
            from tierup.adapt.stress import Stress

            self._stress = Stress(self, self._origin.imported(), config)
        if config.force_tier == 2 and self._has_open_sizes():
            self.always_convert()

    def _start_cold(self) -> None:
        """Import the model, answer with the baseline, and see to it that kernels are built."""
        from tierup.plan.baseline import baseline
        from tierup.runtime.describe import about_record
        from tierup.runtime.executable import executable
        from tierup.runtime.setup import configure

        configure(self._config)
        if self._config.force_tier is None and self._origin.source is not None:
            from tierup.adapt.builders import prepare_worker

            prepare_worker()  # it starts while this process reads the model
        self._origin.reopen()  # it may have been replaced while the cache was asked
        imported, forced = self._origin.imported(), self._config.force_tier
        about = about_record(imported)
        self._describe(about)
        if not forced:
            plan = baseline(imported.graph)
            self._go_live(executable(plan, imported.weights), Serving.of(plan))
        if forced == 0:
            self._progress.finish()
            return
        if forced is None:
            self.notice_after(1)
            self.sample_after(1 if self._judges else 0)
            self._submit()
            return
        from tierup.adapt.tiering import tier_up_now

        tier_up_now(self._climb())

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

    def _caring(self) -> Care:
        if self._care is None:
            from tierup.adapt.care import Care

            self._care = Care(self._progress, self._config, self._about.name)
        return self._care

    def _climb(self, signatures: tuple[Signature, ...] = (), again: bool = False) -> Climb:
        from tierup.adapt.background import Climb

        serving = self._serving if self.program is not None else None
        return Climb(
            self._about.name,
            self._go_live,
            self._origin,
            self._progress,
            self._config,
            signatures,
            constants=None if serving is None else serving.constants,
            incumbent=serving.signatures if serving is not None and serving.kernels else None,
            calls=self._calls_to_try,
            again=again,
            nodes=sum(dict(self._about.ops).values()),
            demand=self._demand,
        )

    def _submit(self, signatures: tuple[Signature, ...] = (), again: bool = False) -> None:
        """Have a better plan made in the background."""
        from tierup.adapt.background import BACKGROUND

        waiting = BACKGROUND.submit(self._climb(signatures, again))
        self._progress.events.add(Queued(2 if signatures else 1, waiting, signatures))

    def _calls_to_try(self, signatures: tuple[Signature, ...]) -> tuple[CallRecord, ...]:
        """Calls that a plan with functions for these signatures, or with none, can be timed on."""
        new = tuple(signature for signature in signatures if signature not in self._serving.signatures)
        return self._caring().calls_to_try(self, new)

    def _demand(self, signatures: tuple[Signature, ...]) -> Demand:
        """How the model is called lately, and which share of that has one of these signatures; all of it, if none."""
        from tierup.adapt.worth import Demand

        last = self.times()[-_LAST_CALLS:]
        new = set(signatures) - set(self._serving.signatures if self.program is not None else ())
        taken = [nanoseconds for signature, _, nanoseconds in last if not new or signature in new]
        call_s = 1e-9 * sum(taken) / len(taken) if taken else 0.0
        return Demand(self.calls, call_s, len(taken) / len(last) if last else 1.0, len(last))

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

    def _go_live(self, program: _native.Program, serving: Serving, tried: bool = False) -> bool:
        """Answer calls with this program from now on; those that run keep theirs. False if nothing may change."""
        progress = self._progress
        if self._config.stress_deopt:
            program.miss_variants(self._config.stress_deopt, self._config.stress_seed)
        with progress.lock:
            if progress.stopped:
                return False
            before = self.program
            if before is None:
                self.program, self._serving = program, serving
                return True
            progress.counts.swaps += 1
            progress.events.add(Swapped(self._serving.tier, serving.tier, serving.kernels))
            previous = self._serving
            self.program, self._serving = program, serving
            if self._judges:
                from tierup.adapt.care import Previous

                self._caring().swapped(self, Previous(before, previous), tried)
        return True

    def notice_calls(self) -> None:
        """Called by native code when the first call was answered, and again ever more seldom."""
        self._progress.may_begin.set()
        if self._stress is not None:
            self._swap_variants(self._stress)
            return
        if not self._judges:
            self._close_hot_signatures()
            self.notice_after(max(_FIRST_NOTICE, 3 * self.calls))
            return
        from time import perf_counter

        began_s, care = perf_counter(), self._caring()
        self._look(care)
        if self.program is not None and not (self._retry_kernels() or self._close_hot_signatures()):
            self.notice_after(care.next_look(self, began_s))
        else:
            self.notice_after(_FIRST_NOTICE)

    def analyse_calls(self) -> None:
        """Called by native code when calls were watched: have their profiles made, beside the next ones."""
        from time import thread_time

        from tierup.adapt.analysis import ANALYSER

        began_s, analysis = thread_time(), self._analysed()
        ANALYSER.wake(self, analysis)
        analysis.spent_s += thread_time() - began_s

    def _analysed(self) -> Analysis:
        if self._analysis is None:
            from tierup.adapt.analysis import Analysis

            names = [value.name for value in self._inputs]
            self._analysis = Analysis(self._config, self._progress.events, names, saves=self._adapts)
        # A swap holds the lock for a moment, and no call waits for it: the next one says whose regions they are.
        if self._progress.lock.acquire(blocking=False):
            try:
                if self.program is not None:
                    self._analysis.name_regions(self.program.number, self._serving.regions)
            finally:
                self._progress.lock.release()
        return self._analysis

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
                plans.keep_variants(source, gone.parts, gone.signatures, serving.variants)
            else:
                before = serving.signatures if serving.kernels else None
                plans.take_back(source, gone.parts, gone.signatures, before)

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

    def sample_call(self, feeds: dict[str, Any], outputs: dict[str, Any], program: int) -> None:
        """Called by native code with a call that was just answered, now and then."""
        care, source = self._caring(), self._origin.source
        sample = care.take_sample(self, feeds, outputs, program)
        if self.program is None or not self._serving.kernels or self._progress.stopped:
            return  # the next swap asks for the next one
        if program != self.program.number:
            self.sample_after(1)  # the rival has answered, or what served until now
            return
        from tierup.adapt.sampling import LIMIT_S, SAMPLER

        if sample is None or source is None or not SAMPLER.check(sample, source, self._config, self._checked):
            care.again(self, LIMIT_S)

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

    def _take_out(self, program: int, call: int, reason: str) -> None:
        """Answer with the baseline from now on: a kernel of this program is wrong. If it is a variant, and the code of
        all others is as it was built, they answer again without it."""
        from tierup.adapt.quarantine import quarantine, safe_program
        from tierup.adapt.thinning import changed_variants, without

        progress, care = self._progress, self._caring()
        with progress.lock:
            live, serving = self.program, self._serving
            if self._closed or live is None or live.number != program:
                return
            self.set_rival(None)
            progress.taken_back = program
            self.program, self._serving = safe_program(self._origin, care.previous, self._inputs, self._outputs)
            care.watch = care.previous = care.regions = None
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
                care.sample_anew(self)
        progress.events.add(Thinned(len(wrong), len(thinner.variants), reason))

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

    def _has_open_sizes(self) -> bool:
        shapes = [value.shape for value in self._inputs]
        return any(not isinstance(dim, int) for shape in shapes for dim in shape or ())

    def _close_hot_signatures(self, *, everything: bool = False) -> bool:
        """Have functions built for the signatures that calls come with, if there are new ones; returns whether."""
        config, progress, serving = self._config, self._progress, self._serving
        ready = progress.settled and serving.kernels and self._has_open_sizes()
        if not ready or not config.adapt or config.force_tier is not None:
            return False
        from tierup.adapt.background import BACKGROUND
        from tierup.adapt.hot import MOST, hot_signatures

        care, queued = self._caring(), BACKGROUND.length
        hot = tuple(
            signature
            for signature in hot_signatures(self.signatures(), everything=everything, queued=queued)
            if signature in serving.signatures or care.backoff.allows(signature, self.calls)
        )
        kept = [signature for signature in serving.signatures if signature not in hot]
        wanted = (*hot, *kept)[:MOST]
        if set(hot) <= set(serving.signatures) or not progress.allows(wanted) or not progress.resume():
            return False
        for signature in set(hot) - set(serving.signatures):
            care.backoff.failed(signature, self.calls)  # until it turns out otherwise
        self._submit(wanted)
        return True

    def _force_closed(self, feeds: Mapping[str, Any]) -> None:
        """Wait for functions with the sizes of this call."""
        from tierup.adapt.hot import MOST
        from tierup.adapt.tiering import tier_up_now

        values = [feeds.get(spec.name) for spec in self._inputs]
        if not all(hasattr(value, "shape") for value in values):
            return
        signature = tuple(tuple(map(int, value.shape)) for value in values if value is not None)
        if signature not in self._serving.signatures and self._serving.kernels:
            tier_up_now(self._climb((signature, *self._serving.signatures)[:MOST]))

    @property
    def imported(self) -> Imported:
        """The model as imported; after a warm start it is imported now."""
        return self._origin.imported()

    def convert_feeds(self, feeds: Any) -> dict[str, Any]:
        """Called by native code for inputs that it cannot take as they are."""
        if self._closed:
            raise TierupError("the model is closed")
        if not isinstance(feeds, Mapping):
            raise TypeError(f"inputs are given as a dict from name to array, not as {type(feeds).__name__}")
        checked = check_feeds(self._inputs, feeds)
        if self._config.force_tier == 2:
            self._force_closed(checked)
        return checked

    def settle(self, timeout_s: float = 60) -> Report:
        """Wait until nothing is left to improve and all of it is on disk, but not longer than this.

        The signatures of all calls so far count as frequent, the most frequent first.
        """
        from time import monotonic

        deadline = monotonic() + timeout_s
        if self._progress.wait(timeout_s) and self._close_hot_signatures(everything=True):
            self._progress.wait(max(0.0, deadline - monotonic()))
        if self._adapts:
            from tierup.adapt.memory import MEMORY

            if self._watches:
                analysis = self._analysed()
                analysis.drain(self)
                analysis.save()

            MEMORY.wait(max(0.0, deadline - monotonic()))
        return self.report()

    def freeze(self) -> None:
        """No more swaps: what answers calls now does so from now on."""
        self._progress.stop()
        self.set_rival(None)

    def report(self) -> Report:
        """What runs, and what was counted."""
        from tierup.report import Report

        about, serving, progress = self._about, self._serving, self._progress
        return Report(
            name=about.name,
            ops=dict(about.ops),
            weights_bytes=about.weights_bytes,
            threads=_native.threads(),
            calls=self.calls,
            settled=progress.settled,
            reason=progress.reason,
            counts=replace(progress.counts),
            tier=serving.tier,
            signatures=serving.signatures,
            kernels=serving.kernels,
            kernel_steps=serving.kernel_steps,
            fallback_nodes=serving.fallback_nodes,
            refused=serving.refused,
            deopts=serving.deopts + (self.rival_calls if self._stress is not None else 0),
            errors=serving.errors,
            checked=0 if self._care is None else self._care.checked,
            sampled_every=0 if self._care is None else self._care.every_calls,
            evidence=() if self._care is None else tuple(self._care.evidence),
            events=progress.events.all(),
            events_dropped=progress.events.dropped,
            precision=self._config.precision,
            profiles=self._observed(),
        )

    def _observed(self) -> dict[str, Any]:
        """What calls that were watched show, with the last ones."""
        if not self._watches:
            return {}
        analysis = self._analysed()
        analysis.drain(self)
        return analysis.to_dict(self)

    @property
    def settled(self) -> bool:
        """Whether nothing is being built or tried."""
        return self._progress.settled

    @property
    def events(self) -> Events:
        """What happened to the model, as it happens; bounded."""
        return self._progress.events

    def close(self) -> None:
        """Give back what the model holds; later calls raise TierupError."""
        self._progress.stop()
        self._closed = True
        self.program = None
        self._origin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Model(_Session):
    """A loaded model: `model(x=x)` or `model.run({"odd:name": x})` give {output name: array}."""

    run = _native.Runner.call_dict

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Name, dtype and shape of each input; an open dim is its name, or None."""
        return self._inputs

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Name, dtype and shape of each output; an open dim is its name, or None."""
        return self._outputs


class NodeArg:
    """An input or output as ONNX Runtime describes it."""

    def __init__(self, value: Input | Output) -> None:
        self.name = value.name
        self.shape = [] if value.shape is None else list(value.shape)
        self.type = value.onnx_type

    def __repr__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class InferenceSession(_Session):
    """A loaded model under ONNX Runtime's names: `sess.run(None, {"x": x})` gives a list of arrays."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        config: Config | None = None,
        **kwargs: Any,
    ) -> None:
        threads = getattr(sess_options, "intra_op_num_threads", 0)
        super().__init__(path_or_bytes, config or (Config(threads=threads) if threads else Config()))

    run = _native.Runner.call_list

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that a caller must give."""
        return [NodeArg(value) for value in self._inputs if value.required]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a default."""
        return [NodeArg(value) for value in self._inputs if not value.required]

    def get_outputs(self) -> list[NodeArg]:
        return [NodeArg(value) for value in self._outputs]

    def get_providers(self) -> list[str]:
        return ["TierupExecutionProvider", "CPUExecutionProvider"]
