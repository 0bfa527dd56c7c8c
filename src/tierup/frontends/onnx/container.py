"""Bytes of an ONNX file -> the model's messages, with the large weights left where they are: in the mapped file."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from tierup.errors import ModelError
from tierup.frontends.onnx.places import Places
from tierup.frontends.onnx.protos import Model
from tierup.frontends.onnx.wire import Malformed, read


class Container(Struct, frozen=True):
    """A model, the folder that its external data may lie in, and the bytes that its weights may be views of."""

    model: Any
    folder: Path | None
    buffer: memoryview | None = None
    source: str = "model"


def open_container(source: Any, places: Places | None = None) -> Container:
    """A path, the bytes of a file, or a ModelProto as a Container. `places` is told of the file."""
    if _is_model_proto(source):
        return Container(source, None, source="ModelProto")
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(memoryview(source).cast("B").toreadonly(), None, "model bytes")
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return _parse(_map(path, places), path.parent, str(path))
    given = f"{type(source).__module__}.{type(source).__name__}"
    raise ModelError(f"a model is a path, bytes or an onnx.ModelProto, but {given} was given")


def _is_model_proto(source: Any) -> bool:
    """Whoever has one has imported `onnx`, which nothing here needs."""
    onnx = sys.modules.get("onnx")
    return onnx is not None and isinstance(source, onnx.ModelProto)


def _map(path: Path, places: Places | None) -> memoryview:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ModelError(f"model file '{path}' cannot be opened: {_reason(error)}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"model file '{path}' is not a regular file")
        if status.st_size == 0:
            raise ModelError(f"model file '{path}' is empty")
        view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        if places is not None:
            places.add(view, status)
        return view
    except OSError as error:
        raise ModelError(f"model file '{path}' cannot be read: {_reason(error)}") from error
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _parse(buffer: memoryview, folder: Path | None, source: str) -> Container:
    try:
        model = read(Model, buffer)
    except Malformed as error:
        raise ModelError(f"'{source}' is not an ONNX model: it does not parse as a ModelProto ({error})") from error
    return Container(model, folder, buffer, source)
