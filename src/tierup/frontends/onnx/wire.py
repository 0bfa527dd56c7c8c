"""protobuf's wire format -> messages, as a table of their fields says. Everything here works on untrusted bytes.

Reading it takes some hundred lines; importing protobuf and `onnx` for it took 15 MiB and most of a first answer's time.
What a table does not name is skipped, as protobuf does with fields that it does not know. Long byte fields are not
copied: they are views of the buffer.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from tierup.ir.types import Array

Buffer = bytes | memoryview
Kind = Literal["int", "uint", "int32", "float", "double", "text", "bytes", "message"]

COPIED_BYTES = 1024  # shorter messages are cheaper to copy than to track
_MAX_DEPTH = 100  # protobuf's own limit for messages in messages
_MAX_VARINT_BYTES = 10
_LOOP_BYTES = 64  # of packed numbers, below which a loop is faster than arrays
_LOOP_ITEMS = 32  # of one field in a row, likewise: trees have millions
_FIRST_WINDOW = 1024  # bytes that are looked at for more of the same; twice as many each time that all of them are
_FIXED = {"float": (5, struct.Struct("<f")), "double": (1, struct.Struct("<d"))}
_TYPES = {"float": "<f4", "double": "<f8"}


class Malformed(ValueError):
    """Bytes that are no message."""


class Field(NamedTuple):
    """A field of a message: its name, and what it holds. Of those in one `choice` a message has the last one only."""

    name: str
    kind: Kind
    repeated: bool = False
    of: type[Message] | None = None
    choice: tuple[str, ...] = ()


class Message:
    """What was read. A field that was not there has its default: 0, nothing, or an empty message."""

    FIELDS: ClassVar[dict[int, Field]] = {}

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def HasField(self, name: str) -> bool:  # protobuf's name: a ModelProto is read by the same code
        return name in self.__dict__

    def WhichOneof(self, choice: str) -> str | None:
        """The field of its only choice that is there."""
        names = next((field.choice for field in self.FIELDS.values() if field.choice), ())
        return next((name for name in names if name in self.__dict__), None)


def define(name: str, fields: dict[int, Field], **constants: int) -> type[Message]:
    """A kind of message. Fields of messages that are defined later are added by `complete`."""
    kind = type(name, (Message,), {"FIELDS": fields, **constants})
    complete(kind, fields)
    return kind


def complete(kind: type[Message], fields: dict[int, Field]) -> None:
    """Give a kind of message fields, and their defaults."""
    defaults = {"float": 0.0, "double": 0.0, "text": "", "bytes": b""}
    kind.FIELDS.update(fields)
    for field in fields.values():
        empty = () if field.repeated else defaults.get(field.kind, 0) if field.of is None else field.of()
        setattr(kind, field.name, empty)


def read(kind: type[Message], buffer: memoryview) -> Message:
    """The message that the buffer holds; Malformed if it holds none."""
    message = kind()
    try:
        _read(message, buffer, 0, len(buffer), 0)
    except IndexError as error:  # a number that goes on behind the end
        raise Malformed("it ends in the middle of a number") from error
    return message


def _read(message: Message, data: Buffer, at: int, end: int, depth: int) -> None:
    """The fields in [at, end)."""
    if depth > _MAX_DEPTH:
        raise Malformed(f"messages are nested more than {_MAX_DEPTH} deep")
    fields, values = message.FIELDS, message.__dict__
    last = streak = 0
    while at < end:
        tag = data[at]
        streak = streak + 1 if tag == last else 0
        last = tag
        if streak == _LOOP_ITEMS and tag < 0x80:
            at, streak = _read_run(values, fields.get(tag >> 3), data, at, end), 0
            continue
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1)
        wire, field = tag & 7, fields.get(tag >> 3)
        if tag < 8:
            raise Malformed("a field has the number 0")
        if wire == 2:
            length = data[at]
            at += 1
            if length >= 0x80:
                length, at = _varint(data, at - 1)
            if length > end - at:
                raise Malformed("a field is longer than the message around it")
            if field is not None:
                _take_bytes(values, field, data, at, at + length, depth)
            at += length
        elif wire == 0:
            number, at = _varint(data, at)
            if field is not None and field.kind in ("int", "uint", "int32"):
                _put(values, field, _integer(field.kind, number))
        elif wire in (1, 5):
            stop = at + (8 if wire == 1 else 4)
            if field is not None and field.kind in _FIXED and _FIXED[field.kind][0] == wire and stop <= end:
                _put(values, field, _FIXED[field.kind][1].unpack_from(data, at)[0])
            at = stop
        else:
            raise Malformed(f"a field has the wire type {wire}, which no ONNX file has")
    if at > end:
        raise Malformed("a field ends behind the message around it")


def _read_run(values: dict[str, Any], field: Field | None, data: Buffer, at: int, end: int) -> int:
    """What comes in a row of a field whose tag is at `at`, and where it ends: `at` itself if there is no short cut."""
    if field is None or not field.repeated:
        return at
    tag, wire = data[at], data[at] & 7
    if wire == 2 and field.kind in ("text", "bytes"):
        items, at = _run_of_bytes(data, at, end)
        values[field.name].extend(map(_text, items) if field.kind == "text" else items)
        return at
    numeric = wire == 0 and field.kind in ("int", "uint", "int32")
    fixed = field.kind in _FIXED and _FIXED[field.kind][0] == wire
    window, count = _FIRST_WINDOW, 1
    while count and (numeric or fixed):
        chunk = np.frombuffer(data, np.uint8, min(window, end - at), at)
        numbers, taken = _tagged_varints(field.kind, chunk, tag) if numeric else _tagged_fixed(field.kind, chunk, tag)
        count, at, window = len(numbers), at + taken, 2 * window
        _extend(values, field.name, numbers)
    return at


def _run_of_bytes(data: Buffer, at: int, end: int) -> tuple[list[bytes], int]:
    """Short pieces in a row, and where they end."""
    tag, items = data[at], []
    while at + 1 < end and data[at] == tag and data[at + 1] < 0x80:
        stop = at + 2 + data[at + 1]
        if stop > end:
            break
        items.append(bytes(data[at + 2 : stop]))
        at = stop
    return items, at


def _tagged_fixed(kind: Kind, chunk: Array, tag: int) -> tuple[Array, int]:
    """The numbers at the chunk's beginning that have a tag in front, and their bytes."""
    dtype = np.dtype(_TYPES[kind])
    width = 1 + dtype.itemsize
    rows = chunk[: len(chunk) // width * width].reshape(-1, width)
    count = _leading(rows[:, 0] == tag)
    return np.ascontiguousarray(rows[:count, 1:]).view(dtype).reshape(-1), count * width


def _tagged_varints(kind: Kind, chunk: Array, tag: int) -> tuple[Array, int]:
    """The same for numbers of any length: tags and the last bytes of numbers are what is below 128, in turn."""
    ends = np.flatnonzero(chunk < 0x80)
    tags, stops = ends[: len(ends) // 2 * 2 : 2], ends[1::2]
    adjacent = tags == np.concatenate([[0], stops[:-1] + 1])
    count = _leading((chunk[tags] == tag) & adjacent)
    if not count:
        return np.zeros(0, np.int64), 0
    return _varints(kind, chunk, tags[:count] + 1, stops[:count]), int(stops[count - 1]) + 1


def _leading(found: Array) -> int:
    """How many are true before the first that is not."""
    return len(found) if found.all() else int(found.argmin())


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise Malformed(f"a number has more than {_MAX_VARINT_BYTES} bytes")


def _integer(kind: Kind, number: int) -> int:
    """A number as two's complement has it."""
    bits = 32 if kind == "int32" else 64
    number &= (1 << bits) - 1
    return number - (1 << bits) if kind != "uint" and number >> (bits - 1) else number


def _put(values: dict[str, Any], field: Field, value: Any) -> None:
    if not field.repeated:
        for other in field.choice:
            values.pop(other, None)
        values[field.name] = value
        return
    held = values.get(field.name)
    if held is None:
        values[field.name] = [value]
    else:
        if isinstance(held, np.ndarray):
            held = values[field.name] = held.tolist()
        held.append(value)


def _take_bytes(values: dict[str, Any], field: Field, data: Buffer, at: int, end: int, depth: int) -> None:
    """A field with a length: text, bytes, a message or packed numbers."""
    kind = field.kind
    if kind == "text":
        _put(values, field, _text(bytes(data[at:end])))
    elif kind == "message":
        assert field.of is not None
        held = None if field.repeated else values.get(field.name)
        message = field.of() if held is None else held  # one that comes twice is put together
        if end - at <= COPIED_BYTES and not isinstance(data, bytes):
            _read_copy(message, bytes(data[at:end]), depth + 1)
        else:
            _read(message, data, at, end, depth + 1)
        if held is None:
            _put(values, field, message)
    elif kind == "bytes":
        _put(values, field, data[at:end])
    elif field.repeated:
        _extend(values, field.name, _packed(kind, data[at:end]))


def _text(raw: bytes) -> str | bytes:
    """As protobuf hands it out: what is no UTF-8 stays bytes, and whoever needs text says what is wrong."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _read_copy(message: Message, data: bytes, depth: int) -> None:
    _read(message, data, 0, len(data), depth)


def _extend(values: dict[str, Any], name: str, numbers: list[Any] | Array) -> None:
    held = values.get(name)
    if held is None:
        values[name] = numbers
        return
    if isinstance(held, np.ndarray):
        held = values[name] = held.tolist()
    held.extend(numbers.tolist() if isinstance(numbers, np.ndarray) else numbers)


def _packed(kind: Kind, data: Buffer) -> list[Any] | Array:
    """Numbers side by side: a list, or an array where there are many."""
    if kind in _FIXED:
        if len(data) % np.dtype(_TYPES[kind]).itemsize:
            raise Malformed("numbers side by side end in the middle of one")
        found = np.frombuffer(data, _TYPES[kind])
        return found if len(data) > _LOOP_BYTES else found.tolist()
    if len(data) > _LOOP_BYTES:
        return _packed_varints(kind, np.frombuffer(data, np.uint8))
    numbers, at = [], 0
    while at < len(data):
        number, at = _varint(data, at)
        numbers.append(_integer(kind, number))
    return numbers


def _packed_varints(kind: Kind, data: Array) -> Array:
    """The same for many: every byte below 128 ends a number."""
    ends = np.flatnonzero(data < 0x80)
    if data[-1] >= 0x80:
        raise Malformed("numbers side by side end in the middle of one")
    return _varints(kind, data, np.concatenate([[0], ends[:-1] + 1]), ends)


def _varints(kind: Kind, data: Array, starts: Array, ends: Array) -> Array:
    """The numbers whose first and last bytes are there."""
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _MAX_VARINT_BYTES:
        raise Malformed(f"a number has more than {_MAX_VARINT_BYTES} bytes")
    numbers = np.zeros(len(ends), np.uint64)
    for place in range(longest):
        longer = np.flatnonzero(lengths > place)
        digits = (data[starts[longer] + place] & 0x7F).astype(np.uint64)
        numbers[longer] |= digits << np.uint64(7 * place)
    if kind == "uint":
        return numbers
    return numbers.view(np.int64) if kind == "int" else numbers.astype(np.uint32).view(np.int32).astype(np.int64)
