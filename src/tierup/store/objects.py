"""The cache of compiled kernels: one file for each, in a folder that is ours alone.

A key is a record of named parts, and the entry keeps them, so that a miss can be explained. Machine code is run as it
is found, so everything is checked before it is handed out: the folder's and the file's owner and mode, sizes, the key,
and the SHA-256 of the code. What does not fit is a miss and is removed. Any number of processes share a folder: entries
are moved into place whole, and never changed. Where nothing can be stored, everything works without.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tierup.codegen.target import Target
from tierup.digests import sha256
from tierup.errors import StoreError
from tierup.private import check_private, make_private, open_own, write_whole
from tierup.store.versions import emitter_version, llvm_version

LIMIT_BYTES = 256 << 20  # of all entries; some ten thousand kernels
ENTRY_LIMIT_BYTES = 64 << 20

_MAGIC = b"TIERUPO1"  # the last character is the version of the format
_HEADER_BYTES = struct.Struct("<I")
_HEADER_LIMIT_BYTES = 1 << 16
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(rf"({_DIGEST.pattern})\.obj")
_TEMPORARY = re.compile(rf"{_DIGEST.pattern}\.obj\.\d{{1,20}}-\d{{1,20}}\.tmp")
_ABANDONED_S = 3600  # a writer that is alive takes milliseconds
_BLOCK_BYTES = 4096  # what a small file takes on most disks
_SHARE_KEPT = 0.9  # evicting a tenth at once, or every new kernel would read the whole folder
_PUTS_UNCOUNTED = 64  # other processes write too: count again after so many of our own

_log = logging.getLogger(__name__)

Part = Annotated[str, Meta(max_length=4096)]


class ObjectKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the bytes of a kernel follow from, by name."""

    program: Part
    """The SHA-256 of the tile program's text."""
    recipe: Part
    """What the recipe says beyond the program."""
    target: Part
    emitter: Part
    llvm: Part

    @property
    def digest(self) -> str:
        """The entry's name: 64 hexadecimal digits."""
        return sha256(msgspec.msgpack.encode(self)).hexdigest()


def object_key(text: str, target: Target, recipe: str = "") -> ObjectKey:
    """The key of a tile program's kernel, built by this version for `target`."""
    return ObjectKey(program_digest(text), recipe, describe_target(target), emitter_version(), llvm_version())


def program_digest(text: str) -> str:
    """What a tile program is called where its text would be too long."""
    return sha256(text.encode()).hexdigest()


def describe_target(target: Target) -> str:
    """A target as a part of a key."""
    return f"{target.name} {target.triple} {target.cpu} {target.features} {target.vector_bits}"


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: ObjectKey
    code_bytes: Annotated[int, Meta(ge=0, le=ENTRY_LIMIT_BYTES)]
    code_sha256: Annotated[bytes, Meta(min_length=32, max_length=32)]


_DECODER = msgspec.msgpack.Decoder(_Header)


class Entry(msgspec.Struct, frozen=True):
    """What is stored under a key."""

    key: ObjectKey
    size_bytes: int
    used_s: float
    """When it was last used, in seconds since 1970."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a key has no entry: the nearest entry, and (part, what the key has, what the entry has) where they differ."""

    nearest: Entry | None
    differences: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        if self.nearest is None:
            return "the cache is empty"
        if not self.differences:
            return "it is stored"
        parts = "; ".join(f"{part} is {wanted!r}, there {found!r}" for part, wanted, found in self.differences)
        return f"the nearest entry differs: {parts}"


class Counters(msgspec.Struct):
    """What happened since the cache was opened. A corrupt entry is also a miss; `refused` is what could not be read or
    stored: a folder that is not ours alone, a full disk, an entry above the limit."""

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    evicted: int = 0
    refused: int = 0


class ObjectCache:
    """The kernels in one folder. Threads may share it."""

    def __init__(self, folder: Path, max_bytes: int = LIMIT_BYTES) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.counters = Counters()
        self._counting, self._evicting = threading.Lock(), threading.Lock()
        self._stored_bytes = 0
        self._puts_until_count = 0
        self._logged: set[str] = set()

    def get(self, key: ObjectKey) -> bytes | None:
        """The code stored under `key`; it counts as used now."""
        return self._get(key.digest, key.target)

    def get_digest(self, digest: str, target: Target) -> bytes | None:
        """The code of the key with this digest, if it was built for this target. The digest may be any text."""
        return self._get(digest, describe_target(target))

    def put(self, key: ObjectKey, code: bytes) -> None:
        """Store code under its key, and make room for it. Nothing happens where that is impossible, but a count."""
        header = msgspec.msgpack.encode(_Header(key, len(code), sha256(code).digest()))
        content = b"".join((_MAGIC, _HEADER_BYTES.pack(len(header)), header, code))
        if len(content) > min(self.max_bytes, ENTRY_LIMIT_BYTES):
            self._refuse(f"a kernel of {len(content)} bytes is above the cache's limit")
            return
        try:
            make_private(self.folder)
            write_whole(self._path(key.digest), (content,))
        except (OSError, StoreError) as error:
            self._refuse(str(error))
            return
        self._make_room(_disk_bytes(len(content)))

    def entries(self) -> list[Entry]:
        """What is stored, the last used first. Damaged entries are left out."""
        found = [entry for digest, state in self._stored() if (entry := self._entry(digest, state)) is not None]
        return sorted(found, key=lambda entry: -entry.used_s)

    def explain(self, key: ObjectKey) -> Explanation:
        """Which parts of a key differ from the entry that shares most of them; the program counts most."""
        nearest = max(
            self.entries(),
            key=lambda entry: (-len(_differences(key, entry.key)), entry.key.program == key.program, entry.used_s),
            default=None,
        )
        return Explanation(nearest, () if nearest is None else _differences(key, nearest.key))

    def verify(self) -> int:
        """Read every entry, and remove those that are damaged: how many there were."""
        damaged = 0
        for digest, _ in list(self._stored()):
            try:
                _decode(_content(self._path(digest)), digest)
            except FileNotFoundError:
                continue
            except (OSError, StoreError, ValueError):
                damaged += self._remove(digest)
        self._count(corrupt=damaged)
        return damaged

    def clear(self) -> int:
        """Remove every entry: how many there were."""
        removed = sum(self._remove(digest) for digest, _ in list(self._stored()))
        self._remove_abandoned()
        return removed

    def _get(self, digest: str, target: str) -> bytes | None:
        code = self._read(digest, target)
        self._count(hits=code is not None, misses=code is None)
        return code

    def _read(self, digest: str, target: str) -> bytes | None:
        if not _DIGEST.fullmatch(digest):
            return None
        path = self._path(digest)
        try:
            check_private(self.folder)
        except FileNotFoundError:
            return None
        except (OSError, StoreError) as error:
            self._refuse(str(error))
            return None
        try:
            header, code = _decode(_content(path), digest)
        except FileNotFoundError:
            return None
        except (OSError, StoreError, ValueError) as error:
            _log.warning("removing the damaged cache entry %s: %s", path, error)
            self._remove(digest)
            self._count(corrupt=1)
            return None
        if header.key.target != target:
            return None
        with suppress(OSError):
            os.utime(path)
        return code

    def _path(self, digest: str) -> str:
        return os.path.join(self.folder, f"{digest}.obj")

    def _entry(self, digest: str, state: os.stat_result) -> Entry | None:
        try:
            header, _ = _decode_header(_content(self._path(digest)), digest)
        except (OSError, StoreError, ValueError):
            return None
        return Entry(header.key, state.st_size, state.st_mtime)

    def _stored(self) -> Iterator[tuple[str, os.stat_result]]:
        """The digest of each entry that there seems to be, if the folder is ours."""
        for name, state in self._files():
            if match := _NAME.fullmatch(name):
                yield match[1], state

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        try:
            check_private(self.folder)
            with os.scandir(self.folder) as found:
                for file in found:
                    with suppress(FileNotFoundError):
                        yield file.name, file.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        except (OSError, StoreError) as error:
            self._refuse(str(error))

    def _make_room(self, added_bytes: int) -> None:
        """Evict what was not used for longest, if there is too much."""
        with self._evicting:
            self._stored_bytes += added_bytes
            self._puts_until_count -= 1
            if self._stored_bytes <= self.max_bytes and self._puts_until_count > 0:
                return
            self._puts_until_count = _PUTS_UNCOUNTED
            self._remove_abandoned()
            stored = sorted(self._stored(), key=lambda item: item[1].st_mtime_ns)
            total = sum(_disk_bytes(state.st_size) for _, state in stored)
            if total > self.max_bytes:
                for digest, state in stored[:-1]:  # what was just stored stays
                    if total <= self.max_bytes * _SHARE_KEPT:
                        break
                    total -= _disk_bytes(state.st_size)
                    self._count(evicted=self._remove(digest))
            self._stored_bytes = total

    def _remove_abandoned(self) -> None:
        """Writers that were killed leave files behind."""
        for name, state in list(self._files()):
            if _TEMPORARY.fullmatch(name) and time.time() - state.st_mtime > _ABANDONED_S:
                with suppress(OSError):
                    os.unlink(os.path.join(self.folder, name))

    def _remove(self, digest: str) -> int:
        try:
            os.unlink(self._path(digest))
        except OSError:
            return 0
        return 1

    def _count(self, **counts: int) -> None:
        with self._counting:
            for name, count in counts.items():
                setattr(self.counters, name, getattr(self.counters, name) + count)

    def _refuse(self, reason: str) -> None:
        self._count(refused=1)
        if reason not in self._logged and len(self._logged) < 100:
            self._logged.add(reason)
            _log.warning("the cache of compiled kernels is not used: %s", reason)


def _differences(key: ObjectKey, other: ObjectKey) -> tuple[tuple[str, str, str], ...]:
    parts = ((name, getattr(key, name), getattr(other, name)) for name in key.__struct_fields__)
    return tuple((name, wanted, found) for name, wanted, found in parts if wanted != found)


def _disk_bytes(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _content(path: str) -> bytes:
    """What a file of ours holds. One read: a file that is being cut short meanwhile is found out by its digest."""
    descriptor, size = open_own(path)
    try:
        if size > ENTRY_LIMIT_BYTES:
            raise StoreError(f"{path} is larger than {ENTRY_LIMIT_BYTES} bytes")
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _decode(content: bytes, digest: str) -> tuple[_Header, bytes]:
    """Header and code of an entry; ValueError if anything in it does not fit."""
    header, start = _decode_header(content, digest)
    code = content[start:]
    if len(code) != header.code_bytes or sha256(code).digest() != header.code_sha256:
        raise ValueError("its code is not what was stored")
    return header, code


def _decode_header(content: bytes, digest: str) -> tuple[_Header, int]:
    begin = len(_MAGIC) + _HEADER_BYTES.size
    if not content.startswith(_MAGIC) or len(content) < begin:
        raise ValueError("it is of another format")
    (size,) = _HEADER_BYTES.unpack_from(content, len(_MAGIC))
    if size > _HEADER_LIMIT_BYTES or begin + size > len(content):
        raise ValueError("its header has no end")
    header = _DECODER.decode(content[begin : begin + size])  # msgspec's errors are ValueErrors
    if header.key.digest != digest:
        raise ValueError("it belongs to another key")
    return header, begin + size
