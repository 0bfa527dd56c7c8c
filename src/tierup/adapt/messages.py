"""What a process and its workers say to each other: jobs, replies, and how they travel.

A message is four bytes with its length, then msgpack. Both sides check lengths and types before they use anything.
A new kind of job is a record here, a row in `worker.py`'s table, and a line in `fits`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from tierup.adapt.proof import REASON_LIMIT_CHARS, Proof
from tierup.codegen.target import Target

MESSAGE_LIMIT_BYTES = 64 << 20

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18
_Message = TypeVar("_Message")

Reason = Annotated[str, Meta(max_length=REASON_LIMIT_CHARS)]


class Compile(msgspec.Struct, frozen=True, tag="compile", forbid_unknown_fields=True):
    """Build the kernels of these tile programs, given as text."""

    programs: Annotated[tuple[str, ...], Meta(min_length=1, max_length=4096)]
    target: Target


class PlanModel(msgspec.Struct, frozen=True, tag="plan", forbid_unknown_fields=True):
    """Plan the model in this file, if it is still the one with this stamp."""

    path: str
    stamp: tuple[int, ...] | None
    cache_dir: str
    parts: dict[str, str]
    threads: Annotated[int, Meta(ge=1, le=1024)]
    signatures: Annotated[tuple[tuple[tuple[int, ...], ...], ...], Meta(max_length=64)] = ()
    precision: Annotated[str, Meta(max_length=16)] = "f32"


class Prove(msgspec.Struct, frozen=True, tag="prove", forbid_unknown_fields=True):
    """Try these kernels on drawn inputs. `case` is a `case_record.CaseRecord`, which whoever sends it need not know."""

    case: bytes
    codes: Annotated[tuple[Annotated[bytes, Meta(min_length=1)], ...], Meta(min_length=1, max_length=4096)]
    target: Target


Job = Compile | PlanModel | Prove


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job, and after how many seconds the worker ends itself if it is still at it."""

    job: Job
    limit_s: Annotated[float, Meta(gt=0, le=86_400)]


class Failure(msgspec.Struct, frozen=True, tag="failure", forbid_unknown_fields=True):
    """Why something was not done."""

    reason: Reason


class Ready(msgspec.Struct, frozen=True, tag="ready", forbid_unknown_fields=True):
    """A worker's first words. It must have the emitter that its parent has: the package may have been replaced."""

    emitter: Annotated[str, Meta(max_length=64)]


class Compiled(msgspec.Struct, frozen=True, tag="compiled", forbid_unknown_fields=True):
    """Machine code for each program, or why there is none."""

    codes: Annotated[tuple[Annotated[bytes, Meta(min_length=1)] | Failure, ...], Meta(max_length=4096)]


class PlacedCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to try the kernels of these slots on, as `Prove` takes it; or the reason why they cannot be tried."""

    slots: Annotated[tuple[Annotated[int, Meta(ge=0, lt=4096)], ...], Meta(min_length=1, max_length=4096)]
    case: bytes = b""
    reason: Reason = ""


class PlannedModel(msgspec.Struct, frozen=True, tag="planned", forbid_unknown_fields=True):
    """A plan entry without kernels, the tile programs of its kernels, if anything compiles, and how to prove them."""

    entry: bytes
    programs: Annotated[tuple[str, ...], Meta(max_length=4096)]
    target: Target
    cases: Annotated[tuple[PlacedCase, ...], Meta(max_length=65_536)] = ()


Reply = Compiled | PlannedModel | Proof | Failure
REPLIES: msgspec.msgpack.Decoder[Ready | Reply] = msgspec.msgpack.Decoder(
    Ready | Compiled | PlannedModel | Proof | Failure
)
REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


def fits(job: Job, reply: Reply) -> bool:
    """Whether a reply can be one to this job."""
    if isinstance(reply, Failure):
        return True
    if isinstance(job, PlanModel):
        return isinstance(reply, PlannedModel)
    if isinstance(job, Prove):
        return isinstance(reply, Proof)
    return isinstance(reply, Compiled) and len(reply.codes) == len(job.programs)


def failure(error: BaseException) -> Failure:
    """An exception as a reason."""
    return Failure(f"{type(error).__name__}: {error}"[:REASON_LIMIT_CHARS])


def pack(message: msgspec.Struct) -> bytes:
    """A message as it travels; ValueError if it is too long."""
    content = msgspec.msgpack.encode(message)
    if len(content) > MESSAGE_LIMIT_BYTES:
        raise ValueError(f"a message of {len(content)} bytes is longer than {MESSAGE_LIMIT_BYTES}")
    return _LENGTH.pack(len(content)) + content


class Inbox:
    """Takes bytes as they come and gives whole messages; ValueError for what is none."""

    def __init__(self) -> None:
        self._held = bytearray()

    def messages(self, data: bytes, decoder: msgspec.msgpack.Decoder[_Message]) -> Iterator[_Message]:
        """The messages that `data` completes."""
        self._held += data
        while len(self._held) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._held)
            if size > MESSAGE_LIMIT_BYTES:
                raise ValueError(f"a message of {size} bytes is longer than {MESSAGE_LIMIT_BYTES}")
            if len(self._held) < _LENGTH.size + size:
                return
            content = bytes(self._held[_LENGTH.size : _LENGTH.size + size])
            del self._held[: _LENGTH.size + size]
            yield decoder.decode(content)


def receive(channel: socket.socket) -> Iterator[Request]:
    """A worker's requests, until its parent is gone."""
    inbox = Inbox()
    while data := channel.recv(_READ_BYTES):
        yield from inbox.messages(data, REQUESTS)
