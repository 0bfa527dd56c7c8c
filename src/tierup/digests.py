"""SHA-256 by what it costs: a process that hashes little does without OpenSSL.

Loading that takes 3 ms and 3.5 MiB; then it is four times as fast as the interpreter's own code, which pays from about
a MiB on. `random` of the standard library does the same.
"""

from __future__ import annotations

import sys
from typing import Protocol

try:
    from _sha2 import sha256 as _small  # type: ignore[import-not-found, unused-ignore]  # from Python 3.12 on
except ImportError:
    try:
        from _sha256 import sha256 as _small  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # another interpreter
        from hashlib import sha256 as _small

_WORTH_LOADING_BYTES = 1 << 20


class Hash(Protocol):
    """A hash in the making."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...
    def hexdigest(self) -> str: ...


def sha256(data: bytes | memoryview = b"", *, ahead_bytes: int = 0) -> Hash:
    """SHA-256 of bytes; more can follow, about `ahead_bytes`."""
    if len(data) + ahead_bytes < _WORTH_LOADING_BYTES and "hashlib" not in sys.modules:
        found: Hash = _small(data)
        return found
    import hashlib

    return hashlib.sha256(data)
