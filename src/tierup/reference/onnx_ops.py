"""Reference functions that `onnx.reference` already has right: the long tail of rare ops.

A node becomes a function of one node, which onnx's own evaluator loads and runs. Loading costs far more than most
calls, so the last few hundred distinct nodes stay loaded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tierup.ir.graph import Attrs, Const, Node
from tierup.ir.types import DType, dtype_from_numpy

_DOMAINS = {"onnx": "", "ml": "ai.onnx.ml", "training": "ai.onnx.preview.training", "preview": "ai.onnx.preview"}


def run(node: Node, *inputs: Any) -> tuple[Any, ...]:
    """Compute `node` with what `onnx.reference` has for its op and version."""
    given = tuple(value is not None for value in inputs)
    wanted = tuple(value is not None for value in node.outputs)
    evaluator = _evaluator(node.op, node.version, node.attrs, given, wanted)
    feeds = {f"i{k}": value for k, value in enumerate(inputs) if value is not None}
    results = iter(evaluator.run(None, feeds))
    return tuple(next(results) if used else None for used in wanted)


@lru_cache(maxsize=256)
def _evaluator(op: str, version: int, attrs: Attrs, given: tuple[bool, ...], wanted: tuple[bool, ...]) -> Any:
    import onnx
    from onnx.reference import ReferenceEvaluator

    domain, _, name = op.partition(".")
    domain = _DOMAINS[domain]
    inputs = [f"i{k}" if here else "" for k, here in enumerate(given)]
    outputs = [f"o{k}" if here else "" for k, here in enumerate(wanted)]
    proto = onnx.helper.make_node(name, inputs, outputs, domain=domain)
    schema = onnx.defs.get_schema(name, version, domain)
    for key, value in attrs.items():
        if key in schema.attributes:
            kind = onnx.AttributeProto.AttributeType.Value(schema.attributes[key].type.name)
            proto.attribute.append(onnx.helper.make_attribute(key, _plain(value), attr_type=kind))
    function = onnx.helper.make_function(
        "tierup.reference",
        name,
        [text for text in inputs if text],
        [text for text in outputs if text],
        [proto],
        [onnx.helper.make_opsetid(domain, version)],
    )
    return ReferenceEvaluator(function)


def _plain(value: Any) -> Any:
    """An attribute as `make_attribute` takes it."""
    if isinstance(value, Const):
        return _tensor(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _tensor(value: Const) -> Any:
    import onnx

    if dtype_from_numpy(value.array.dtype) is DType.STR:
        return onnx.helper.make_tensor("", 8, value.array.shape, [str(s).encode() for s in value.array.reshape(-1)])
    return onnx.numpy_helper.from_array(value.array)
