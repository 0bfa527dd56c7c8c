"""A traffic of shapes: `ids=1,8..128` draws sizes at random, a .jsonl file lists the shapes of each call.

In: the text that a user wrote. Out: one dict from input to shape for each call. Both are untrusted and bounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from tierup.errors import InputError

Shapes = dict[str, tuple[int, ...]]

MAX_CALLS = 1_000_000
MAX_FILE_BYTES = 1 << 28
MAX_SIZE = 1 << 31
MAX_RANK = 64

_Line = dict[
    Annotated[str, Meta(max_length=1000)],
    Annotated[list[Annotated[int, Meta(ge=0, le=MAX_SIZE)]], Meta(max_length=MAX_RANK)],
]


class Traffic(Struct, frozen=True):
    """Ranges of sizes for each input, or shapes that were recorded, one call after the other."""

    ranges: dict[str, tuple[range, ...]]
    recorded: tuple[Shapes, ...] = ()

    def shapes(self, calls: int | None, seed: int, default: int) -> list[Shapes]:
        """The shapes of so many calls. Recorded ones are played in their order, once unless `calls` says otherwise."""
        if self.recorded:
            count = calls or len(self.recorded)
            return [self.recorded[index % len(self.recorded)] for index in range(count)]
        random = np.random.default_rng(seed)
        return [
            {
                name: tuple(int(random.integers(sizes.start, sizes.stop)) for sizes in dims)
                for name, dims in self.ranges.items()
            }
            for _ in range(calls or default)
        ]


def parse_traffic(text: str) -> Traffic:
    """InputError says what is wrong with it."""
    if text.endswith(".jsonl"):
        return Traffic({}, _read(Path(text)))
    ranges = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, sizes = part.rpartition("=")
        if not separator or not name:
            raise _unreadable(text)
        ranges[name] = tuple(_range(size.strip(), text) for size in sizes.split(","))
    if not ranges:
        raise _unreadable(text)
    return Traffic(ranges)


def _range(size: str, text: str) -> range:
    low, separator, high = size.partition("..")
    try:
        first, last = int(low), int(high if separator else low)
    except ValueError:
        raise _unreadable(text) from None
    if not 0 <= first <= last <= MAX_SIZE:
        raise InputError(
            f"'{size}' in the traffic '{text}' is no range of sizes: write it from the lower to the higher"
        )
    return range(first, last + 1)


def _unreadable(text: str) -> InputError:
    return InputError(f"'{text}' is no traffic; write NAME=1,8..128 (several: 'a=1,8..64; b=1') or name a .jsonl file")


def _read(path: Path) -> tuple[Shapes, ...]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"traffic '{path}' is larger than {MAX_FILE_BYTES >> 20} MiB")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"traffic '{path}' cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            shapes = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            hint = 'a line is an object of shapes such as {"ids": [1, 17]}'
            raise InputError(f"line {number} of traffic '{path}' cannot be read: {error}; {hint}") from error
        found.append({name: tuple(sizes) for name, sizes in shapes.items()})
    if not 1 <= len(found) <= MAX_CALLS:
        raise InputError(f"traffic '{path}' has {len(found)} calls; it must have 1 to {MAX_CALLS}")
    return tuple(found)
