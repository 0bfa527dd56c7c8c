"""Files that are ours alone: folders that nobody else can write to, reads that trust nothing, writes that are whole.

Used by every cache on disk. A folder or file that others can write to is refused with a StoreError.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

from tierup.errors import StoreError

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITTEN = count()  # several threads may write at once


def check_private(folder: str | os.PathLike[str], *, readable: bool = False) -> None:
    """StoreError unless the folder is ours alone, or `readable` by others and no more; FileNotFoundError if there is
    none."""
    state = os.lstat(folder)
    if not stat.S_ISDIR(state.st_mode):
        raise StoreError(f"{folder} is not a folder")
    if state.st_uid != os.geteuid():
        raise StoreError(f"{folder} belongs to another user")
    if state.st_mode & (0o022 if readable else 0o077):
        raise StoreError(f"{folder} is open to others; `chmod 700` it")


def make_private(folder: str | os.PathLike[str], *, readable: bool = False) -> None:
    """The folder, made if it is missing, and checked."""
    if not os.path.isdir(folder):
        os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    check_private(folder, readable=readable)


def open_own(path: str) -> tuple[int, int]:
    """Descriptor and size of a regular file of ours. Follows no link and waits for no pipe."""
    descriptor = os.open(path, _READ)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise StoreError(f"{path} is not a regular file")
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise StoreError(f"{path} belongs to another user, or others can write it")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, state.st_size


def read_own(path: str, limit_bytes: int) -> bytes:
    """The content of a file of ours that has at most so many bytes."""
    descriptor, size = open_own(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > limit_bytes:
            raise StoreError(f"{path} is larger than {limit_bytes} bytes")
        return file.read(limit_bytes)


def write_whole(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Write beside the file's place and move it there: readers see the old file, or the new one, or none.

    Nothing is forced to the disk. After a crash of the machine a file may be damaged; its digest tells.
    """
    temporary = f"{path}.{os.getpid()}-{next(_WRITTEN)}.tmp"
    descriptor = os.open(temporary, _WRITE, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
