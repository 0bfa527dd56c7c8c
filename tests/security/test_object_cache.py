"""Machine code from disk is run as it is found: nothing that is damaged or not ours may be handed out."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tierup.codegen.target import AVX2
from tierup.store.objects import ObjectCache, ObjectKey, object_key

CODE = bytes(range(256))
KEY, OTHER = object_key("one", AVX2), object_key("other", AVX2)


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    cache = ObjectCache(tmp_path / "objects")
    cache.put(KEY, CODE)
    return cache


def path_of(cache: ObjectCache, key: ObjectKey = KEY) -> Path:
    return cache.folder / f"{key.digest}.obj"


def assert_removed(cache: ObjectCache, key: ObjectKey = KEY) -> None:
    """A miss that is counted as corrupt; the entry is gone, and can be stored again."""
    before = cache.counters.corrupt
    assert cache.get(key) is None
    assert cache.counters.corrupt == before + 1
    assert not os.path.lexists(path_of(cache, key))
    cache.put(key, CODE)
    assert cache.get(key) == CODE


def test_truncated_entries(cache: ObjectCache) -> None:
    whole = path_of(cache).read_bytes()
    for end in [*range(24), *range(24, len(whole), 31), len(whole) - 1]:
        path_of(cache).write_bytes(whole[:end])
        assert_removed(cache)


def test_entries_with_a_byte_changed_or_added(cache: ObjectCache) -> None:
    whole = path_of(cache).read_bytes()
    draw = random.Random(3)
    for at in [*range(40), *(draw.randrange(len(whole)) for _ in range(150))]:
        changed = bytearray(whole)
        changed[at] ^= draw.randrange(1, 256)
        path_of(cache).write_bytes(changed)
        assert_removed(cache)
    path_of(cache).write_bytes(whole + b"\0")
    assert_removed(cache)


def rewritten(header: object, code: bytes) -> bytes:
    encoded = msgspec.msgpack.encode(header)
    return b"TIERUPO1" + struct.pack("<I", len(encoded)) + encoded + code


@pytest.mark.parametrize(
    "content",
    [
        rewritten({}, CODE),
        rewritten([1] * 1000, CODE),
        rewritten({"key": KEY, "code_bytes": 1 << 62, "code_sha256": bytes(32)}, CODE),
        rewritten({"key": KEY, "code_bytes": -1, "code_sha256": bytes(32)}, CODE),
        rewritten({"key": KEY, "code_bytes": len(CODE), "code_sha256": b""}, CODE),
        rewritten({"key": KEY, "code_bytes": len(CODE), "code_sha256": bytes(32), "more": 1}, CODE),
        b"TIERUPO1" + struct.pack("<I", 0xFFFF_FFFF) + CODE,
        b"TIERUPO2" + CODE,
        b"\x90" * 100_000,
        b"",
    ],
    ids=range(10),
)
def test_entries_that_somebody_else_wrote(cache: ObjectCache, content: bytes) -> None:
    path_of(cache).write_bytes(content)
    assert cache.entries() == []
    assert_removed(cache)


def test_an_entry_under_another_name(cache: ObjectCache) -> None:
    path_of(cache, OTHER).write_bytes(path_of(cache).read_bytes())
    assert len(cache.entries()) == 1
    assert_removed(cache, OTHER)


def make_link(path: Path) -> None:
    content = path.read_bytes()
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.write_bytes(content)
    path.unlink()
    path.symlink_to(elsewhere)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [make_link, make_pipe, lambda path: path.chmod(0o666)], ids=("link", "pipe", "mode"))
def test_entries_that_are_no_files_of_ours(cache: ObjectCache, change: Callable[[Path], None]) -> None:
    change(path_of(cache))
    assert cache.entries() == []
    assert_removed(cache)


def test_a_folder_in_an_entry_s_place(cache: ObjectCache) -> None:
    path_of(cache).unlink()
    path_of(cache).mkdir()
    assert cache.get(KEY) is None
    cache.put(KEY, CODE)
    assert cache.counters.refused == 1


def assert_unused(cache: ObjectCache) -> None:
    """Not a look into the folder, not a file more in it."""
    before = sorted(os.listdir(cache.folder))
    assert cache.get(KEY) is None
    cache.put(OTHER, CODE)
    assert cache.entries() == []
    assert (cache.verify(), cache.clear()) == (0, 0)
    assert sorted(os.listdir(cache.folder)) == before
    assert cache.counters.refused >= 2
    assert cache.counters.hits == 0


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to(cache: ObjectCache, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    cache.folder.chmod(mode)
    assert_unused(cache)
    assert "is open to others" in caplog.text


def test_a_folder_of_another_user(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: cache.folder.stat().st_uid + 1)
    assert_unused(cache)


def test_a_link_to_a_folder(cache: ObjectCache, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(cache.folder)
    assert_unused(ObjectCache(tmp_path / "link"))
