"""What a user holds: `load`, `Model`, and `InferenceSession` with ONNX Runtime's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from tierup import _native
from tierup.config import Config
from tierup.errors import TierupError
from tierup.events import Loaded
from tierup.runtime.feeds import Input, Output, check_feeds
from tierup.runtime.progress import Serving
from tierup.runtime.warm import warm_start
from tierup.session.watched import FIRST_NOTICE, Watched

if TYPE_CHECKING:  # a warm start needs none of them
    from types import TracebackType

    from tierup.events import Events
    from tierup.frontends.onnx import Imported
    from tierup.report import Report


_MOST_CLIMBS = 3  # while a model settles, behind the first one: closed sizes, and facts


def load(source: Any, *, config: Config | None = None) -> Model:
    """A model from an ONNX file's path, its bytes or an `onnx.ModelProto`.

    When this returns, the whole model is parsed, typed and verified, or has the content of one that was; otherwise
    ModelError says what is wrong. It answers at once: with the kernels that the cache has for it, or else with the
    baseline until its kernels are built.
    """
    return Model(source, config or Config())


class _Session(Watched):
    """What Model and InferenceSession share."""

    def __init__(self, source: Any, config: Config) -> None:
        super().__init__(source, config)
        warm = warm_start(self._origin, config, self._progress) if config.force_tier != 0 else None
        if warm is None:
            self._start_cold()
        else:
            self._describe(warm.about)
            self._go_live(warm.program, warm.serving)
            self._progress.finish()
            self.notice_after(FIRST_NOTICE)
            self.sample_after(FIRST_NOTICE if self._judges else 0)
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
        self._origin.reopen()  # it may have been replaced while the cache was asked
        if self._config.force_tier is None:
            from tierup.adapt.ahead import plan_ahead

            plan_ahead(self._origin.source, self._config)
        from tierup.plan.baseline import baseline
        from tierup.runtime.describe import about_record
        from tierup.runtime.executable import executable
        from tierup.runtime.setup import configure, register_dtypes

        configure(self._config, all_dtypes=False)
        imported, forced = self._origin.imported(), self._config.force_tier
        register_dtypes(bool(forced) or imported.graph.has_other_dtypes)
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

    def _force_closed(self, feeds: Mapping[str, Any]) -> None:
        """Wait for functions with the sizes of this call."""
        from tierup.adapt.hot import MOST
        from tierup.adapt.tiering import tier_up_now
        from tierup.ir.facts import Aim

        values = [feeds.get(spec.name) for spec in self._inputs]
        if not all(hasattr(value, "shape") for value in values):
            return
        signature = tuple(tuple(map(int, value.shape)) for value in values if value is not None)
        if signature not in self._serving.signatures and self._serving.kernels:
            tier_up_now(self._climb(Aim((signature, *self._serving.signatures)[:MOST])))

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

        The signatures of all calls so far count as frequent, the most frequent first, and what held in all of them as
        something to rely on.
        """
        with self._progress.hurry():
            self._settle(timeout_s)
        return self.report()

    def _settle(self, timeout_s: float) -> None:
        from time import monotonic

        deadline = monotonic() + timeout_s
        for _ in range(_MOST_CLIMBS):
            if not self._progress.wait(max(0.0, deadline - monotonic())) or not self._improve(everything=True):
                break
        self._progress.wait(max(0.0, deadline - monotonic()))
        if self._serving.constants:
            from tierup.adapt.joining import JOINER

            JOINER.wait(max(0.0, deadline - monotonic()))
        if self._adapts:
            from tierup.adapt.memory import MEMORY
            from tierup.adapt.sampling import SAMPLER

            self._check_ahead()
            SAMPLER.wait(max(0.0, deadline - monotonic()))
            if self._watches:
                analysis = self._analysed()
                analysis.drain(self)
                analysis.save()

            MEMORY.wait(max(0.0, deadline - monotonic()))

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
            facts=tuple(map(str, serving.facts)),
            strays=serving.strays,
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
