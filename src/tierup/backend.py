"""The ONNX Backend API: prepare, run_model, run_node, supports_device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

from tierup.config import Config
from tierup.errors import InputError
from tierup.session import Model, load

__all__ = ["TierupBackend", "TierupRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]


class TierupRep(BackendRep):
    """A loaded model that takes its inputs by position."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs in the model's order; `inputs` is a sequence in the model's order, a mapping, or one array."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            values = inputs if isinstance(inputs, list | tuple) else [inputs]
            names = [value.name for value in self.model.inputs]
            if len(values) > len(names):
                raise InputError(f"the model has {len(names)} inputs, but {len(values)} were given")
            feeds = dict(zip(names, values, strict=False))
        results = self.model.run(feeds)
        return tuple(results[output.name] for output in self.model.outputs)


class TierupBackend(Backend):
    """Runs ONNX models and single nodes on the CPU."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Every model may be tried; what cannot run says so when it is prepared."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TierupRep:
        """Load `model`; `config` may be given as a keyword."""
        config = kwargs.get("config")
        return TierupRep(load(model, config=config if isinstance(config, Config) else None))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one node on its own: inputs are typed by the arrays that are given."""
        return cls.prepare(_single_node_model(node, inputs, kwargs.get("opset_version")), device).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0].upper() == "CPU"


def _single_node_model(node: onnx.NodeProto, inputs: Any, opset: int | None) -> onnx.ModelProto:
    import numpy as np

    values = inputs if isinstance(inputs, list | tuple) else [inputs]
    names = [name for name in node.input if name]
    formals = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), np.asarray(array).shape
        )
        for name, array in zip(names, values, strict=True)
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "node", formals, results)
    version = opset or onnx.defs.onnx_opset_version()
    opsets = [onnx.helper.make_opsetid("", version)]
    if node.domain not in ("", "ai.onnx"):
        opsets.append(onnx.helper.make_opsetid(node.domain, 1))
    return onnx.helper.make_model(graph, opset_imports=opsets)


is_compatible = TierupBackend.is_compatible
prepare = TierupBackend.prepare
run_model = TierupBackend.run_model
run_node = TierupBackend.run_node
supports_device = TierupBackend.supports_device
