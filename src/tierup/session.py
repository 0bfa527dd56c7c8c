"""What a user holds: `load`, `Model`, and `InferenceSession` with ONNX Runtime's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tierup import _native
from tierup.config import Config
from tierup.errors import ConfigError, TierupError
from tierup.frontends.onnx import Imported, load_onnx
from tierup.frontends.onnx.schema import onnx_type
from tierup.ir.graph import Graph
from tierup.ir.types import DType, Sym, TensorType, Type
from tierup.plan.baseline import baseline
from tierup.plan.program import Plan, StepCode
from tierup.profile.machine import identify, measure_once
from tierup.report import Report
from tierup.runtime.executable import executable
from tierup.runtime.feeds import Input, Output, check_feeds
from tierup.runtime.setup import configure

_CHECKED_OBJECT = -2  # for the native runner: sequences, maps and strings are checked in Python


def load(source: Any, *, config: Config | None = None) -> Model:
    """A model from an ONNX file's path, its bytes or an `onnx.ModelProto`.

    When this returns, the whole model is parsed, typed and verified; otherwise ModelError says what is wrong.
    """
    return Model(source, config or Config())


class _Session(_native.Runner):
    """What Model and InferenceSession share: the native runner with a model in it."""

    def __init__(self, source: Any, config: Config) -> None:
        imported = load_onnx(source)
        configure(config)
        self._config = config
        self.imported = imported
        self._inputs = _input_specs(imported.graph)
        self._outputs = _output_specs(imported)
        super().__init__(_native_inputs(self._inputs), [output.name for output in self._outputs])
        self._closed = False
        if config.force_tier:
            self._plan, self.program = _compiled(imported)
        else:
            self._plan = baseline(imported.graph)
            self.program = executable(self._plan, imported.weights)
        if config.adapt and config.data_dir is not None:
            measure_once(config.data_dir)

    def convert_feeds(self, feeds: Any) -> dict[str, Any]:
        """Called by native code for inputs that it cannot take as they are."""
        if self._closed:
            raise TierupError("the model is closed")
        if not isinstance(feeds, Mapping):
            raise TypeError(f"inputs are given as a dict from name to array, not as {type(feeds).__name__}")
        return check_feeds(self._inputs, feeds)

    def settle(self, timeout_s: float = 60) -> Report:
        """Wait until nothing is left to improve. The baseline is all there is so far, so this returns at once."""
        return self.report()

    def freeze(self) -> None:
        """No more swaps. The baseline never swaps, so nothing changes."""

    def report(self) -> Report:
        """What runs, and what was counted."""
        graph = self.imported.graph
        ops = Counter(node.op for _, node in graph.walk())
        return Report(
            name=graph.name,
            nodes=sum(ops.values()),
            ops=dict(sorted(ops.items())),
            weights_bytes=self.imported.weights.total_bytes,
            threads=_native.threads(),
            calls=self.calls,
            fallback_nodes=self._plan.fallback_nodes,
            kernels=self._plan.slots,
            kernel_steps=self._plan.count(StepCode.KERNEL),
        )

    def close(self) -> None:
        """Give back what the model holds; later calls raise TierupError."""
        self._closed = True
        self.program = None

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
        self.type = onnx_type(value.type)

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


def _compiled(imported: Imported) -> tuple[Plan, _native.Program]:
    """The plan with kernels, compiled here and now: callers that force a tier wait for it."""
    from tierup.codegen.target import target_of  # LLVM takes a tenth of a second to import
    from tierup.runtime.compiled import compile_plan
    from tierup.runtime.kernels import publish

    target = target_of(identify())
    if target is None:
        raise ConfigError("force_tier needs a processor with AVX2 and FMA, or NEON; this one has neither")
    compiled = compile_plan(imported.graph, imported.weights, target)
    program = executable(compiled.plan, imported.weights)
    publish(program, compiled.programs, target)
    return compiled.plan, program


def _dims(type: Type, names: dict[int, str]) -> tuple[int | str | None, ...] | None:
    if not isinstance(type, TensorType) or type.shape is None:
        return None
    return tuple(names.get(dim.id) if isinstance(dim, Sym) else dim for dim in type.shape)


def _input_specs(graph: Graph) -> tuple[Input, ...]:
    names, defaults = dict(graph.dim_names), dict(graph.defaults)
    return tuple(
        Input(graph.value_name(value), graph.type(value), _dims(graph.type(value), names), value not in defaults)
        for value in graph.inputs
    )


def _output_specs(imported: Imported) -> tuple[Output, ...]:
    """Numbers as inferred; names as the model declares them."""
    graph = imported.graph
    names = dict(graph.dim_names)
    specs = []
    for value, name, declared in zip(graph.outputs, imported.output_names, imported.declared_outputs, strict=True):
        shape = _dims(graph.type(value), names)
        if shape is None:
            shape = declared
        elif declared is not None and len(declared) == len(shape):
            shape = tuple(d if s is None else s for s, d in zip(shape, declared, strict=True))
        specs.append(Output(name, graph.type(value), shape))
    return tuple(specs)


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
