"""What a user holds: `load`, `Model`, and `InferenceSession` with ONNX Runtime's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from tierup import _native
from tierup.config import Config
from tierup.errors import TierupError
from tierup.ir.types import DType, TensorType
from tierup.runtime.feeds import Input, Output, check_feeds
from tierup.runtime.origin import Origin
from tierup.runtime.progress import Progress, Serving, Signature
from tierup.runtime.warm import warm_start
from tierup.store.records import AboutRecord, type_of

if TYPE_CHECKING:  # a warm start needs none of them
    from types import TracebackType

    from tierup.adapt.background import Climb
    from tierup.frontends.onnx import Imported
    from tierup.report import Report

_FIRST_NOTICE = 64  # calls after which it is looked at which signatures they come with
_CHECKED_OBJECT = -2  # for the native runner: sequences, maps and strings are checked in Python


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
        warm = warm_start(self._origin, config, self._progress) if config.force_tier != 0 else None
        if warm is None:
            self._start_cold()
        else:
            self._describe(warm.about)
            self._go_live(warm.program, warm.serving)
            self._progress.finish()
            self.notice_after(_FIRST_NOTICE)
        if config.force_tier == 2 and self._has_open_sizes():
            self.always_convert()

    def _start_cold(self) -> None:
        """Import the model, answer with the baseline, and see to it that kernels are built."""
        from tierup.plan.baseline import baseline
        from tierup.runtime.describe import about_record
        from tierup.runtime.executable import executable
        from tierup.runtime.setup import configure

        configure(self._config)
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
        from tierup.adapt.background import BACKGROUND

        if forced is None:
            self.notice_after(1)
            BACKGROUND.submit(self._climb())
            return
        from tierup.adapt.tiering import tier_up_now

        tier_up_now(self._climb())

    def _climb(self, signatures: tuple[Signature, ...] = ()) -> Climb:
        from tierup.adapt.background import Climb

        constants = self._serving.constants if self.program is not None else None
        return Climb(self._about.name, self._go_live, self._origin, self._progress, self._config, signatures, constants)

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
        super().__init__(_native_inputs(self._inputs), [output.name for output in self._outputs])

    def _go_live(self, program: _native.Program, serving: Serving) -> bool:
        """Answer calls with this program from now on; those that run keep theirs. False if nothing may change."""
        progress = self._progress
        with progress.lock:
            if progress.stopped:
                return False
            progress.counts.swaps += self.program is not None
            self.program, self._serving = program, serving
        return True

    def notice_calls(self) -> None:
        """Called by native code when the first call was answered, and again ever more seldom."""
        self._progress.may_begin.set()
        self._close_hot_signatures()
        self.notice_after(max(_FIRST_NOTICE, 3 * self.calls))

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

        hot = hot_signatures(self.signatures(), everything=everything)
        if set(hot) <= set(serving.signatures) or not progress.resume():
            return False
        kept = [signature for signature in serving.signatures if signature not in hot]
        BACKGROUND.submit(self._climb((*hot, *kept)[:MOST]))
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
        return self.report()

    def freeze(self) -> None:
        """No more swaps: what answers calls now does so from now on."""
        self._progress.stop()

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
            deopts=serving.deopts,
            errors=serving.errors,
            precision=self._config.precision,
        )

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


def _native_inputs(inputs: Sequence[Input]) -> list[tuple[str, int, list[int] | None, bool]]:
    """(name, dtype code, shape, required): see `Runner`."""
    numbers: dict[str, int] = {}
    specs: list[tuple[str, int, list[int] | None, bool]] = []
    for spec in inputs:
        tensor = isinstance(spec.type, TensorType) and spec.type.dtype is not DType.STR
        if not tensor or not isinstance(spec.type, TensorType):
            specs.append((spec.name, _CHECKED_OBJECT, None, spec.required))
            continue
        shape = None
        if spec.shape is not None:
            shape = [
                -1 if dim is None else dim if isinstance(dim, int) else -2 - numbers.setdefault(dim, len(numbers))
                for dim in spec.shape
            ]
        specs.append((spec.name, spec.type.dtype.code, shape, spec.required))
    return specs
