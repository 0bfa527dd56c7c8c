"""What a process and its workers say to each other: jobs, replies, and how they travel.

A message is four bytes with its length, then msgpack. Both sides check lengths and types before they use anything.
A new kind of job is a record here, a row in `worker.py`'s table, and a line in `fits`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from tierup.adapt.proof import REASON_LIMIT_CHARS, Proof
from tierup.adapt.tensors import TensorData
from tierup.codegen.target import Target
from tierup.events import Compared
from tierup.ir.facts import Aim, Signature
from tierup.store.build_cost import BuildCost
from tierup.store.rows import Quarantine, Row

MESSAGE_LIMIT_BYTES = 64 << 20

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18
_ENCODER = msgspec.msgpack.Encoder()
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
    aim: Aim = Aim()
    store: str = ""
    """Where it is known whether such a plan was turned away before; empty: it is tried in any case."""
    precision: Annotated[str, Meta(max_length=16)] = "f32"
    refused: Annotated[dict[Annotated[str, Meta(max_length=64)], Reason], Meta(max_length=4096)] = {}
    """Tile programs, by digest, that may not serve, and why."""


class Prove(msgspec.Struct, frozen=True, tag="prove", forbid_unknown_fields=True):
    """Try these kernels on drawn inputs. `case` is a `case_record.CaseRecord`, which whoever sends it need not know."""

    case: bytes
    codes: Annotated[tuple[Annotated[bytes, Meta(min_length=1)], ...], Meta(min_length=1, max_length=4096)]
    target: Target


_Shapes = Annotated[tuple[Annotated[tuple[int, ...], Meta(max_length=64)], ...], Meta(max_length=4096)]


class CallRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call to try plans on: the shapes of its inputs (None: any that the model can have), the inputs where they were
    sampled, and the least time that such a call took what answers now (0: not known)."""

    signature: _Shapes | None
    inputs: Annotated[tuple[TensorData, ...], Meta(max_length=4096)] = ()
    live_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


class TryPlan(msgspec.Struct, frozen=True, tag="try", forbid_unknown_fields=True):
    """Time a plan against the one that answers now. `entry` is the candidate's, with kernels; `incumbent` is what the
    plan in the cache that answers now was made for, None if that is the baseline. `cores` are those that the model may
    use."""

    path: str
    stamp: tuple[int, ...] | None
    cache_dir: str
    parts: dict[str, str]
    threads: Annotated[int, Meta(ge=1, le=1024)]
    cores: Annotated[tuple[Annotated[int, Meta(ge=0, le=65_535)], ...], Meta(max_length=65_536)]
    entry: bytes
    incumbent: Aim | None
    calls: Annotated[tuple[CallRecord, ...], Meta(min_length=1, max_length=16)]
    budget_s: Annotated[float, Meta(gt=0, le=600)]

    @property
    def ways(self) -> tuple[bool, ...]:
        """How each call is timed: with the pool of threads, and alone. What is ten times as fast as the baseline is so
        on any number of threads."""
        return (False, True) if self.threads > 1 and self.incumbent is not None else (False,)


class Remember(msgspec.Struct, frozen=True, tag="remember", forbid_unknown_fields=True):
    """Write rows to the store at this place."""

    store: Annotated[str, Meta(min_length=1)]
    rows: Annotated[tuple[Row, ...], Meta(max_length=65_536)]


class Recall(msgspec.Struct, frozen=True, tag="recall", forbid_unknown_fields=True):
    """Ask the store at this place which of these kernels are in quarantine, and what building took on this machine."""

    store: Annotated[str, Meta(min_length=1)]
    kernels: Annotated[tuple[str, ...], Meta(max_length=65_536)]
    machine: Annotated[str, Meta(max_length=200)] = ""
    """Empty: that is known already."""


class CheckCall(msgspec.Struct, frozen=True, tag="check", forbid_unknown_fields=True):
    """Answer a call again with the model in this file, and compare."""

    path: str
    stamp: tuple[int, ...] | None
    inputs: Annotated[tuple[TensorData, ...], Meta(max_length=4096)]
    outputs: Annotated[tuple[TensorData, ...], Meta(max_length=4096)]
    precision: Annotated[str, Meta(pattern="^(f32|bf16)$")] = "f32"


class Identify(msgspec.Struct, frozen=True, tag="identify", forbid_unknown_fields=True):
    """Say what identifies the content of this file, if it is still the one with this stamp."""

    path: str
    stamp: tuple[int, ...]


Job = Compile | PlanModel | Prove | TryPlan | Remember | Recall | CheckCall | Identify


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job, and after how many seconds the worker ends itself if it is still at it."""

    job: Job
    limit_s: Annotated[float, Meta(gt=0, le=86_400)]


class Failure(msgspec.Struct, frozen=True, tag="failure", forbid_unknown_fields=True):
    """Why something was not done. `again_s`: for how long the answer stays the same. `here`: only what a worker would
    have to leave behind for it was impossible, so that whoever asked can do it."""

    reason: Reason
    again_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    here: bool = False


class Ready(msgspec.Struct, frozen=True, tag="ready", forbid_unknown_fields=True):
    """A worker's first words. It must have the emitter that its parent has: the package may have been replaced."""

    emitter: Annotated[str, Meta(max_length=64)]


class Spent(msgspec.Struct, frozen=True, tag="spent", forbid_unknown_fields=True):
    """What a job took, said before its reply: seconds of one core, the most memory that the worker had meanwhile, and
    what it has allocated and still holds."""

    core_s: Annotated[float, Meta(ge=0, le=1e9)]
    peak_bytes: Annotated[int, Meta(ge=0, le=2**53)]
    held_bytes: Annotated[int, Meta(ge=0, le=2**53)]


class Compiled(msgspec.Struct, frozen=True, tag="compiled", forbid_unknown_fields=True):
    """Machine code for each program, or why there is none."""

    codes: Annotated[tuple[Annotated[bytes, Meta(min_length=1)] | Failure, ...], Meta(max_length=4096)]


class PlacedCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to try the kernels of these slots on, as `Prove` takes it; or the reason why they cannot be tried."""

    slots: Annotated[tuple[Annotated[int, Meta(ge=0, lt=4096)], ...], Meta(min_length=1, max_length=4096)]
    case: bytes = b""
    reason: Reason = ""


class PlannedModel(msgspec.Struct, frozen=True, tag="planned", forbid_unknown_fields=True):
    """A plan entry without kernels, the tile programs of its kernels, if anything compiles, and how to prove them. The
    entry does not say what it was made of where nobody asked the store about it: see `Identify`."""

    entry: bytes
    programs: Annotated[tuple[str, ...], Meta(max_length=4096)]
    target: Target
    cases: Annotated[tuple[PlacedCase, ...], Meta(max_length=65_536)] = ()
    saved: Annotated[float, Meta(ge=-1, le=1)] = 0.0
    """The share of its kernels' work that facts are expected to save."""


class TriedPlan(msgspec.Struct, frozen=True, tag="tried plan", forbid_unknown_fields=True):
    """What was measured for each call; or that the plan turns some away, for which it has no function; or why it fails
    on one that was answered."""

    compared: Annotated[tuple[Compared, ...], Meta(max_length=16)]
    turned_away: Annotated[tuple[Signature, ...], Meta(max_length=16)] = ()
    failed: Reason = ""


class Remembered(msgspec.Struct, frozen=True, tag="remembered", forbid_unknown_fields=True):
    """How many rows were written, and how many that were there do not validate."""

    written: Annotated[int, Meta(ge=0)]
    ignored: Annotated[int, Meta(ge=0)]


class Recalled(msgspec.Struct, frozen=True, tag="recalled", forbid_unknown_fields=True):
    """The kernels in quarantine, and the sums of what was built before."""

    quarantined: Annotated[tuple[Quarantine, ...], Meta(max_length=65_536)]
    costs: Annotated[tuple[BuildCost, ...], Meta(max_length=65_536)] = ()


class CheckedCall(msgspec.Struct, frozen=True, tag="checked", forbid_unknown_fields=True):
    """Whether a call's answer was right, why not, and how much of a core it took to find out, the start of a worker
    included if one had to start. Two that are suspicious make one that is wrong."""

    verdict: Literal["same", "suspicious", "different", "unsure"]
    reason: Reason
    seconds: Annotated[float, Meta(ge=0)]


class Identified(msgspec.Struct, frozen=True, tag="identified", forbid_unknown_fields=True):
    """What identifies a file's content."""

    fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


Reply = Compiled | PlannedModel | Proof | TriedPlan | Remembered | Recalled | CheckedCall | Identified | Failure
REPLIES: msgspec.msgpack.Decoder[Ready | Spent | Reply] = msgspec.msgpack.Decoder(Ready | Spent | Reply)
REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


def fits(job: Job, reply: Reply) -> bool:
    """Whether a reply can be one to this job."""
    if isinstance(reply, Failure):
        return True
    if isinstance(job, PlanModel):
        return isinstance(reply, PlannedModel)
    if isinstance(job, Prove):
        return isinstance(reply, Proof)
    if isinstance(job, TryPlan):
        return isinstance(reply, TriedPlan) and _answers_trial(job, reply)
    if isinstance(job, CheckCall | Identify):
        return isinstance(reply, CheckedCall if isinstance(job, CheckCall) else Identified)
    if isinstance(job, Remember | Recall):
        return isinstance(reply, Remembered if isinstance(job, Remember) else Recalled)
    return isinstance(reply, Compiled) and len(reply.codes) == len(job.programs)


def _answers_trial(job: TryPlan, reply: TriedPlan) -> bool:
    if reply.failed:
        return not reply.compared and not reply.turned_away
    if reply.turned_away:
        return not reply.compared and len(reply.turned_away) <= len(job.calls)
    return len(reply.compared) == len(job.calls) * len(job.ways)


def failure(error: BaseException) -> Failure:
    """An exception as a reason."""
    return Failure(f"{type(error).__name__}: {error}"[:REASON_LIMIT_CHARS])


def pack(message: msgspec.Struct) -> bytearray:
    """A message as it travels; ValueError if it is too long."""
    packed = bytearray(_LENGTH.size)
    _ENCODER.encode_into(message, packed, _LENGTH.size)  # in place: messages may hold whole tensors
    size = len(packed) - _LENGTH.size
    if size > MESSAGE_LIMIT_BYTES:
        raise ValueError(f"a message of {size} bytes is longer than {MESSAGE_LIMIT_BYTES}")
    _LENGTH.pack_into(packed, 0, size)
    return packed


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
            with memoryview(self._held) as held:
                message = decoder.decode(held[_LENGTH.size : _LENGTH.size + size])
            del self._held[: _LENGTH.size + size]
            yield message


def receive(channel: socket.socket) -> Iterator[Request]:
    """A worker's requests, until its parent is gone."""
    inbox = Inbox()
    while data := channel.recv(_READ_BYTES):
        yield from inbox.messages(data, REQUESTS)
