"""Large weights are named by where they lie in a file, so that nobody reads all of a model to tell its weights apart.

Names stand for content: a weight elsewhere with the same content gets the name of the first one.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tierup.digests import sha256
from tierup.ir.graph import weight_header
from tierup.ir.types import Array
from tierup.stamps import stamp_of

LEAST_BYTES = 1 << 20  # of an array that is named so: others are read in no time
_LOOK_BYTES = 64  # that tell most arrays apart
_MOST_ALIKE = 8  # arrays that begin alike, and are compared: a hostile model may have thousands


class Places:
    """The files of a model, as they were when they were mapped."""

    def __init__(self) -> None:
        self._files: list[tuple[int, int, str]] = []
        self._named: dict[tuple[Any, ...], list[tuple[str, Array]]] = {}

    def add(self, view: memoryview, status: os.stat_result) -> None:
        """A file that weights may be views of."""
        if len(view):
            self._files.append((_address(np.frombuffer(view, np.uint8)), len(view), repr(stamp_of(status))))

    def digest(self, array: Array) -> str | None:
        """What names a weight, as good as a digest of its content; None where that has to be read for it."""
        if array.nbytes < LEAST_BYTES or not array.flags.c_contiguous:
            return None
        found = self._find(array)
        if found is None:
            return None
        content = array.reshape(-1).view(np.uint8)
        alike = self._named.setdefault((array.dtype, array.shape, content[:_LOOK_BYTES].tobytes()), [])
        for digest, other in alike:
            if np.array_equal(content, other):
                return digest
        if len(alike) == _MOST_ALIKE:
            return None
        identity, offset = found
        place = f"{identity} {offset} ".encode() + weight_header(array.dtype, array.shape)
        digest = sha256(place).hexdigest()
        alike.append((digest, content))
        return digest

    def _find(self, array: Array) -> tuple[str, int] | None:
        """The file that an array lies in, and where in it."""
        start = _address(array)
        for begin, length, identity in self._files:
            if begin <= start and start + array.nbytes <= begin + length:
                return identity, start - begin
        return None


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
