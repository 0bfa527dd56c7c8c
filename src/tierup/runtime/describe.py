"""Imported model -> the record of what it is called with, what it answers, and what it is made of."""

from __future__ import annotations

from collections import Counter

from tierup.frontends.onnx import Imported
from tierup.frontends.onnx.schema import onnx_type
from tierup.ir.types import Sym, TensorType, Type
from tierup.store.records import AboutRecord, ValueRecord, type_record

_Shape = tuple[int | str | None, ...] | None


def about_record(imported: Imported) -> AboutRecord:
    """What callers and reports want to know of a model."""
    graph = imported.graph
    ops = Counter(node.op for _, node in graph.walk())
    return AboutRecord(
        name=graph.name,
        ops=dict(sorted(ops.items())),
        weights_bytes=imported.weights.total_bytes,
        inputs=tuple(_inputs(imported)),
        outputs=tuple(_outputs(imported)),
    )


def _inputs(imported: Imported) -> list[ValueRecord]:
    graph = imported.graph
    names, defaults = dict(graph.dim_names), dict(graph.defaults)
    return [
        _value(graph.value_name(value), graph.type(value), _dims(graph.type(value), names), value not in defaults)
        for value in graph.inputs
    ]


def _outputs(imported: Imported) -> list[ValueRecord]:
    """Numbers as inferred; names as the model declares them."""
    graph = imported.graph
    names = dict(graph.dim_names)
    values = []
    for value, name, declared in zip(graph.outputs, imported.output_names, imported.declared_outputs, strict=True):
        shape = _dims(graph.type(value), names)
        if shape is None:
            shape = declared
        elif declared is not None and len(declared) == len(shape):
            shape = tuple(d if s is None else s for s, d in zip(shape, declared, strict=True))
        values.append(_value(name, graph.type(value), shape))
    return values


def _value(name: str, type: Type, shape: _Shape, required: bool = True) -> ValueRecord:
    return ValueRecord(name, type_record(type), shape, onnx_type(type), required)


def _dims(type: Type, names: dict[int, str]) -> _Shape:
    if not isinstance(type, TensorType) or type.shape is None:
        return None
    return tuple(names.get(dim.id) if isinstance(dim, Sym) else dim for dim in type.shape)
