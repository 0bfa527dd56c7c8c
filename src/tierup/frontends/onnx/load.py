"""The ONNX front end's spine: open, check versions, import, check sizes, verify."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from tierup.errors import ModelError, UnsupportedError
from tierup.frontends.onnx.container import Container, open_container
from tierup.frontends.onnx.external import ExternalFiles
from tierup.frontends.onnx.importer import Importer
from tierup.frontends.onnx.limits import max_tensor_bytes
from tierup.frontends.onnx.places import Places
from tierup.frontends.onnx.schema import DOMAINS
from tierup.frontends.onnx.schema_table import table
from tierup.frontends.onnx.types import DeclaredShape, declared_shape
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import TensorType
from tierup.ir.verify import verify


class Imported(Struct, frozen=True):
    """A model as it came: its graph, the weights beside it, and the shapes that it declares for its outputs.

    `files` are the bytes that weights may be views of: the model's own under "", external files under their location.
    """

    graph: Graph
    weights: Weights
    output_names: tuple[str, ...]
    declared_outputs: tuple[DeclaredShape | None, ...]
    opsets: tuple[tuple[str, int], ...]
    files: Mapping[str, memoryview] = field(default_factory=dict)


def load_onnx(source: Any, *, lasts: bool = True) -> Imported:
    """Import a path, bytes or ModelProto; ModelError (or UnsupportedError) says what is wrong with it.

    If a file does not last, its large weights are named by content, not by where they lie in it.
    """
    places = Places() if lasts else None
    try:
        container = open_container(source, places)
        opsets = _opsets(container)
        weights = Weights()
        external = ExternalFiles(container.folder, places)
        graph = Importer(container, weights, external, places).model(opsets)
        _check_sizes(graph)
        verify(graph, weights)
    except RecursionError as error:
        raise ModelError("the model is nested too deeply") from error
    except MemoryError as error:
        raise ModelError("the model does not fit into memory") from error
    declared = container.model.graph.output
    shapes = tuple(declared_shape(value.type, f"output '{value.name}'") for value in declared)
    files = external.files if container.buffer is None else {"": container.buffer, **external.files}
    names = tuple(value.name for value in declared)
    return Imported(graph, weights, names, shapes, tuple(opsets.items()), files)


def _opsets(container: Container) -> dict[str, int]:
    model = container.model
    if not model.HasField("graph"):
        raise ModelError(f"'{container.source}' is not an ONNX model: it has no graph")
    opsets = {str(entry.domain): entry.version for entry in model.opset_import}
    if "ai.onnx" in opsets:
        opsets.setdefault("", opsets.pop("ai.onnx"))
    if "" not in opsets and model.ir_version < 3:
        opsets[""] = 1  # files from before opsets were recorded
    newest = {"": table().opset}
    for domain, version in opsets.items():
        if version < 1 or (domain in newest and version > newest[domain]):
            raise UnsupportedError(
                f"the model uses opset {version} of '{domain or 'ai.onnx'}'; Tierup knows 1 to "
                f"{newest.get(domain, version)}"
            )
    return {domain: version for domain, version in opsets.items() if domain in DOMAINS}


def _check_sizes(graph: Graph) -> None:
    """No tensor whose size is known may exceed the machine's memory."""
    limit = max_tensor_bytes()
    seen = {id(graph): graph} | {id(body): body for _, node in graph.walk() for _, body in node.graphs}
    for part in seen.values():
        for index, value in enumerate(part.values):
            if isinstance(value.type, TensorType) and value.type.shape is not None:
                size = math.prod(dim for dim in value.type.shape if isinstance(dim, int))
                if size * value.type.dtype.numpy.itemsize > limit:
                    raise ModelError(
                        f"value '{part.value_name(index)}' of type {value.type!r} is larger than this machine's "
                        f"memory of {limit} bytes"
                    )
