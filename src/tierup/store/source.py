"""Where a model came from: its bytes, what identifies them, and how weights are found in them again.

A file is identified by its content: SHA-256 over the SHA-256 digests of its pieces, so that several threads can share
the work. It is read into small buffers for that, not through the mapping that weights are later used from, since pages
of a mapping count as memory of this process.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tierup.digests import sha256
from tierup.private import write_whole
from tierup.stamps import Stamp, stamp_of

PIECE_BYTES = 1 << 20
_THREADED_BYTES = 8 << 20  # below, starting a thread costs as much as it saves
_MAX_THREADS = 4

Read = Callable[[int, memoryview], memoryview]  # (offset, room for a piece) -> the piece


class Source:
    """A model's bytes. `origin` is what the front end takes; `folder` is where its external data may lie."""

    origin: Any
    folder: str | None = None
    size_bytes: int

    def __init__(self) -> None:
        self.opened_ns = time.time_ns()

    def check(self) -> None:
        """OSError unless the content is what it was when this was made."""

    def fingerprint(self, threads: int) -> str:
        """What identifies the content; OSError as for `check`."""
        raise NotImplementedError

    def view(self) -> memoryview:
        """The bytes, mapped where they are a file's."""
        raise NotImplementedError


class BytesSource(Source):
    """A model that was given as bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.origin = data
        self._view = memoryview(data)
        self.size_bytes = len(data)

    def fingerprint(self, threads: int) -> str:
        return fingerprint(lambda offset, room: self._view[offset : offset + len(room)], self.size_bytes, threads)

    def view(self) -> memoryview:
        return self._view


class FileSource(Source):
    """A model file, as it was when this was made, or when it had the given stamp: one that has changed since gives an
    OSError."""

    def __init__(self, path: str | os.PathLike[str], stamp: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.origin = path
        self.folder = os.path.dirname(os.fspath(path)) or "."
        descriptor = self._open()
        try:
            self.stamp = _stamp(descriptor)
            if stamp is not None and stamp != self.stamp:
                raise OSError(f"'{path}' is not the file that it was")
        finally:
            os.close(descriptor)
        self.size_bytes = self.stamp[2]
        self._fingerprint = ""

    def check(self) -> None:
        os.close(self._open_same())

    def fingerprint(self, threads: int) -> str:
        descriptor = self._open_same()
        try:
            if not self._fingerprint:
                found = fingerprint_file(descriptor, self.size_bytes, threads)
                self._check(descriptor)  # it was not written to meanwhile
                self._fingerprint = found
            return self._fingerprint
        finally:
            os.close(descriptor)

    def view(self) -> memoryview:
        descriptor = self._open_same()
        try:
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        return os.open(self.origin, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _open_same(self) -> int:
        descriptor = self._open()
        try:
            self._check(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _check(self, descriptor: int) -> None:
        if _stamp(descriptor) != self.stamp:
            raise OSError(f"'{self.origin}' was changed while it was in use")


def open_source(given: Any) -> Source | None:
    """A path or bytes as a Source. None for all else (a buffer may change), and where only the front end knows why."""
    if isinstance(given, bytes):
        return BytesSource(given)
    if not isinstance(given, str | os.PathLike):
        return None
    try:
        return FileSource(given)
    except (OSError, ValueError):
        return None


@contextmanager
def as_file(source: Source, folder: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """A file with the model in it, and what tells whether it is still the same."""
    if isinstance(source, FileSource):
        yield os.path.abspath(source.origin), source.stamp
        return
    path = os.path.join(folder, f"{os.getpid()}-{id(source)}.onnx")
    write_whole(path, (source.view(),))
    try:
        yield path, None
    finally:
        with suppress(OSError):
            os.unlink(path)


def _stamp(descriptor: int) -> Stamp:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    return stamp_of(status)


def fingerprint_file(descriptor: int, size_bytes: int, threads: int) -> str:
    """The fingerprint of an open file's first `size_bytes`."""

    def read(offset: int, room: memoryview) -> memoryview:
        done = 0
        while done < len(room):
            count = os.preadv(descriptor, [room[done:]], offset + done)
            if count <= 0:
                raise OSError("a file is shorter than it was")
            done += count
        return room

    return fingerprint(read, size_bytes, threads)


def fingerprint(read: Read, size_bytes: int, threads: int) -> str:
    """SHA-256 over the digests of pieces of 1 MiB, and the size."""
    count = -(-size_bytes // PIECE_BYTES)
    digests = [b""] * count
    failed: list[OSError] = []
    workers = min(threads, _MAX_THREADS) if size_bytes >= _THREADED_BYTES else 1

    def work(first: int) -> None:
        buffer = memoryview(bytearray(min(PIECE_BYTES, size_bytes)))
        try:
            for index in range(first, count, workers):
                wanted = min(PIECE_BYTES, size_bytes - index * PIECE_BYTES)
                digests[index] = sha256(read(index * PIECE_BYTES, buffer[:wanted])).digest()
        except OSError as error:
            failed.append(error)

    others = [threading.Thread(target=work, args=(first,), daemon=True) for first in range(1, workers)]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]
    return sha256(b"".join(digests) + size_bytes.to_bytes(8, "little")).hexdigest()
