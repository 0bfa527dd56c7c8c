"""Bytes of an ONNX file -> a parsed ModelProto, with the large weights left where they are.

The raw data of the graph's initialisers is cut out before protobuf sees the file, so that it is neither parsed nor
copied: it stays in the mapped file, and `Container.spans` says where. Everything here works on untrusted bytes;
whatever the cutting does not understand is left for protobuf to judge.
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierup.errors import ModelError

_GRAPH, _INITIALIZER, _RAW_DATA, _DATA_TYPE = 7, 5, 9, 2  # field numbers in onnx.proto
_CUT_BYTES = 1024  # smaller weights are cheaper to copy than to track
_WHOLE_BYTE_TYPES = frozenset(range(1, 8)) | frozenset(range(9, 21)) | {24}  # dtypes whose raw data is an array as is


@dataclass(frozen=True)
class Container:
    """A model, the folder that its external data may lie in, and where large initialisers lie in `buffer`."""

    model: Any
    folder: Path | None
    buffer: memoryview | None = None
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)  # initialiser index -> start, end
    source: str = "model"


def open_container(source: Any) -> Container:
    """A path, the bytes of a file, or a ModelProto as a Container."""
    import onnx

    if isinstance(source, onnx.ModelProto):
        return Container(source, None, source="ModelProto")
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(memoryview(source).cast("B").toreadonly(), None, "model bytes")
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return _parse(_map(path), path.parent, str(path))
    given = f"{type(source).__module__}.{type(source).__name__}"
    raise ModelError(f"a model is a path, bytes or an onnx.ModelProto, but {given} was given")


def _map(path: Path) -> memoryview:
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
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelError(f"model file '{path}' cannot be read: {_reason(error)}") from error
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _parse(buffer: memoryview, folder: Path | None, source: str) -> Container:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        pieces, spans = _cut(buffer)
    except _NotWire:
        pieces, spans = [buffer], {}
    try:
        model = onnx.ModelProto.FromString(b"".join(pieces))
    except DecodeError as error:
        raise ModelError(f"'{source}' is not an ONNX model: it does not parse as a ModelProto ({error})") from error
    return Container(model, folder, buffer, spans, source)


class _NotWire(Exception):
    """The bytes are not what the cutter expects; protobuf decides whether they are a model."""


def _varint(buffer: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _NotWire


def _fields(buffer: memoryview, at: int, end: int) -> list[tuple[int, int, int, int, int]]:
    """The fields of the message in [at, end): number, value (wire type 0), start of tag, start and end of payload."""
    found = []
    while at < end:
        tag_at = at
        tag, at = _varint(buffer, at, end)
        number, wire, value, start = tag >> 3, tag & 7, 0, at
        if wire == 0:
            value, at = _varint(buffer, at, end)
        elif wire == 2:
            length, start = _varint(buffer, at, end)
            at = start + length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise _NotWire
        if at > end:
            raise _NotWire
        found.append((number, value, tag_at, start, at))
    return found


def _cut(buffer: memoryview) -> tuple[list[memoryview | bytes], dict[int, tuple[int, int]]]:
    """The file in pieces that leave out large raw data, and where that data lies."""
    top = _fields(buffer, 0, len(buffer))
    graphs = [f for f in top if f[0] == _GRAPH]
    if len(graphs) != 1:
        raise _NotWire  # none, or several that protobuf would merge
    _, _, graph_tag, graph_start, graph_end = graphs[0]
    spans: dict[int, tuple[int, int]] = {}
    inner: list[memoryview | bytes] = []
    index, copied = 0, graph_start
    for number, _, tag_at, start, end in _fields(buffer, graph_start, graph_end):
        if number != _INITIALIZER:
            continue
        span = _raw_span(buffer, start, end) if end - start > _CUT_BYTES else None
        if span is not None:
            raw_tag, raw_start, raw_end = span
            spans[index] = (raw_start, raw_end)
            length = (raw_tag - start) + (end - raw_end)
            inner += [buffer[copied:tag_at], _tagged(_INITIALIZER, length)]
            inner += [buffer[start:raw_tag], buffer[raw_end:end]]
            copied = end
        index += 1
    if not spans:
        return [buffer], {}
    inner.append(buffer[copied:graph_end])
    length = sum(len(piece) for piece in inner)
    return [buffer[:graph_tag], _tagged(_GRAPH, length), *inner, buffer[graph_end:]], spans


def _raw_span(buffer: memoryview, start: int, end: int) -> tuple[int, int, int] | None:
    """Tag, start and end of a TensorProto's raw data: one, large, of a type that needs no unpacking; else None."""
    raw = None
    data_type = 0
    for number, value, tag_at, payload, payload_end in _fields(buffer, start, end):
        if number == _DATA_TYPE:
            data_type = value
        elif number == _RAW_DATA:
            if raw is not None:
                return None
            raw = (tag_at, payload, payload_end)
    if raw is None or raw[2] - raw[1] < _CUT_BYTES or data_type not in _WHOLE_BYTE_TYPES:
        return None
    return raw


def _tagged(number: int, length: int) -> bytes:
    out = bytearray([number << 3 | 2])
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
