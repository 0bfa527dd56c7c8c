"""What goes through the channel: whole messages, in pieces of any size; nothing else."""

from __future__ import annotations

import random
import struct

import msgspec
import pytest

from tierup.adapt.messages import (
    MESSAGE_LIMIT_BYTES,
    REPLIES,
    REQUESTS,
    Compile,
    Compiled,
    Failure,
    Inbox,
    Ready,
    Request,
    failure,
    fits,
    pack,
)
from tierup.codegen.target import AVX512

JOB = Compile(("program a", "program b"), AVX512)
SAID = [Ready("0" * 64), Compiled((b"code", Failure("no"))), Failure("because")]


def test_messages_arrive_in_pieces() -> None:
    stream = b"".join(map(pack, SAID))
    for size in (1, 3, len(stream)):
        inbox = Inbox()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [message for piece in pieces for message in inbox.messages(piece, REPLIES)] == SAID
    request = Request(JOB, 3.5)
    assert list(Inbox().messages(pack(request), REQUESTS)) == [request]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        msgspec.msgpack.encode({"type": "run", "command": "ls"}),
        msgspec.msgpack.encode({"type": "compiled", "codes": ["text"]}),
        msgspec.msgpack.encode({"type": "compiled", "codes": [b""]}),
        msgspec.msgpack.encode({"type": "compiled", "codes": [], "more": 1}),
        msgspec.msgpack.encode({"type": "failure", "reason": "x" * 3000}),
    ],
)
def test_what_is_no_reply_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's own words
        list(Inbox().messages(struct.pack("<I", len(content)) + content, REPLIES))


def test_long_messages_are_refused_at_their_first_bytes() -> None:
    with pytest.raises(ValueError, match="longer than"):
        list(Inbox().messages(struct.pack("<I", MESSAGE_LIMIT_BYTES + 1), REPLIES))
    with pytest.raises(ValueError, match="longer than"):
        pack(Compiled((bytes(MESSAGE_LIMIT_BYTES),)))


def test_random_bytes_are_refused_or_waited_for() -> None:
    draw = random.Random(1)
    refused = 0
    for _ in range(3000):
        stream = bytearray(b"".join(map(pack, SAID)))
        for _ in range(draw.randint(1, 3)):
            stream[draw.randrange(len(stream))] = draw.randrange(256)
        try:
            list(Inbox().messages(bytes(stream), REPLIES))
        except ValueError:
            refused += 1
    assert refused > 1000


def test_replies_fit_their_jobs() -> None:
    assert fits(JOB, Compiled((b"a", Failure("b"))))
    assert fits(JOB, Failure("all of it"))
    assert not fits(JOB, Compiled((b"a",)))


def test_reasons_are_bounded() -> None:
    assert failure(ValueError("x" * 10_000)).reason.startswith("ValueError: xxx")
    pack(failure(ValueError("x" * 10_000)))
    assert len(failure(ValueError("x" * 10_000)).reason) == 2000
