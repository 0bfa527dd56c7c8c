"""The cache of compiled kernels: what is stored comes back, bounded, explained, and shared by processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tierup.codegen.target import AVX2, AVX512
from tierup.store.objects import Counters, ObjectCache, ObjectKey, describe_target, object_key

HEAD = """
import os, sys
from pathlib import Path
from tests.store.test_objects import key, ObjectCache
cache = ObjectCache(Path(sys.argv[1]))
"""


def key(number: int = 0) -> ObjectKey:
    return object_key(f"program {number}", AVX2)


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "deep" / "objects")


def used(cache: ObjectCache, number: int, at_s: float) -> None:
    """As if the entry had last been used then."""
    os.utime(cache.folder / f"{key(number).digest}.obj", (at_s, at_s))


def script(body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HEAD + body, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_what_is_stored_comes_back(cache: ObjectCache) -> None:
    assert cache.get(key()) is None
    cache.put(key(), b"\x90\xc3")
    assert cache.get(key()) == b"\x90\xc3"
    assert ObjectCache(cache.folder).get(key()) == b"\x90\xc3"
    cache.put(key(), b"")
    assert cache.get(key()) == b""
    assert msgspec.structs.asdict(cache.entries()[0].key) == msgspec.structs.asdict(key())
    assert cache.counters == Counters(hits=2, misses=1, corrupt=0, evicted=0, refused=0)


def test_the_folder_is_private(cache: ObjectCache) -> None:
    cache.put(key(), b"code")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in cache.folder.iterdir()] == [0o600]


def test_every_part_is_in_the_name() -> None:
    whole = key()
    others = [msgspec.structs.replace(whole, **{part: "other"}) for part in whole.__struct_fields__]
    assert len({whole.digest, *(other.digest for other in others)}) == 6


def test_a_key_has_everything_that_code_follows_from() -> None:
    assert object_key("a", AVX2).digest == object_key("a", AVX2).digest
    different = [
        object_key("b", AVX2),
        object_key("a", AVX512),
        object_key("a", AVX2, "unrolled"),
        object_key("a", replace(AVX2, cpu="haswell")),
        object_key("a", replace(AVX2, vector_bits=128)),
        object_key("a", replace(AVX2, features="+avx2")),
    ]
    assert len({key.digest for key in different} | {object_key("a", AVX2).digest}) == 7


def test_by_digest_for_the_right_target_only(cache: ObjectCache) -> None:
    cache.put(key(), b"code")
    assert cache.get_digest(key().digest, AVX2) == b"code"
    assert cache.get_digest(key().digest, AVX512) is None
    assert cache.get_digest("../../etc/passwd", AVX2) is None
    assert cache.counters.corrupt == 0
    assert describe_target(AVX2) != describe_target(AVX512)


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "objects", max_bytes=10 * 4096)
    for number in range(10):
        cache.put(key(number), b"x" * 2000)
        used(cache, number, 1000 + number)
    assert cache.get(key(0)) is not None  # now the last used
    cache.put(key(10), b"x" * 2000)
    assert cache.counters.evicted == 2  # to nine tenths
    kept = {number for number in range(11) if cache.get(key(number)) is not None}
    assert kept == {0, *range(3, 11)}


def test_entries_of_other_processes_count_too(tmp_path: Path) -> None:
    ours = ObjectCache(tmp_path / "objects", max_bytes=100 * 4096)
    theirs = ObjectCache(tmp_path / "objects", max_bytes=1000 * 4096)
    ours.put(key(0), b"x")
    for number in range(1, 150):
        theirs.put(key(number), b"x")
    for number in range(150, 214):
        ours.put(key(number), b"x")
    assert len(ours.entries()) <= 100


def test_what_is_above_the_limit_is_not_stored(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "objects", max_bytes=4096)
    cache.put(key(), b"x" * 4096)
    assert cache.get(key()) is None
    assert cache.counters.refused == 1


def test_a_miss_is_explained(cache: ObjectCache) -> None:
    assert str(cache.explain(key())) == "the cache is empty"
    cache.put(key(0), b"code")
    cache.put(key(1), b"code")
    assert cache.explain(key(0)).differences == ()
    for part in key().__struct_fields__:
        explained = cache.explain(msgspec.structs.replace(key(1), **{part: "new"}))
        assert explained.differences == ((part, "new", getattr(key(1), part)),)
        assert explained.nearest is not None
        assert part == "program" or explained.nearest.key.program == key(1).program
    assert "llvm is 'new', there 'llvmlite" in str(cache.explain(msgspec.structs.replace(key(1), llvm="new")))


def test_clear_and_verify(cache: ObjectCache) -> None:
    assert (cache.clear(), cache.verify()) == (0, 0)
    for number in range(4):
        cache.put(key(number), b"code")
    path = cache.folder / f"{key(2).digest}.obj"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert cache.verify() == 1
    assert cache.verify() == 0
    assert len(cache.entries()) == 3
    abandoned, alive = (cache.folder / f"{key(9).digest}.obj.{number}-0.tmp" for number in (1, 2))
    for path in (abandoned, alive):
        path.write_bytes(b"half")
    os.utime(abandoned, (0, 0))
    (cache.folder / "notes.txt").write_text("somebody else's")
    assert cache.clear() == 3
    assert {path.name for path in cache.folder.iterdir()} == {"notes.txt", alive.name}


def test_processes_share_a_folder(cache: ObjectCache) -> None:
    """Writers and readers of the same entries: everything that is found is whole."""
    body = """
for round in range(40):
    for number in range(8):
        found = cache.get(key(number))
        assert found in (None, bytes([number]) * 30_000), number
        cache.put(key(number), bytes([number]) * 30_000)
    if sys.argv[2] == "0" and round % 10 == 0:
        cache.clear()
print(cache.counters.corrupt, cache.counters.refused)
"""
    command = [sys.executable, "-c", HEAD + body, str(cache.folder)]
    started = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(3)]
    assert [process.communicate(timeout=60)[0] for process in started] == ["0 0\n"] * 3
    assert cache.verify() == 0
    assert len(cache.entries()) == 8


def test_a_killed_writer_leaves_no_entry(cache: ObjectCache) -> None:
    done = script("os.replace = lambda *_: os.kill(os.getpid(), 9)\ncache.put(key(), b'code')\n", str(cache.folder))
    assert done.returncode == -9
    (left,) = cache.folder.iterdir()
    assert left.name.endswith(".tmp")
    assert cache.get(key()) is None
    assert cache.entries() == []
    assert cache.counters.corrupt == 0
    os.utime(left, (0, 0))
    cache.put(key(), b"code")
    assert cache.get(key()) == b"code"
    assert not left.exists()


def test_a_full_disk_costs_nothing_but_the_entry(cache: ObjectCache) -> None:
    body = """
import resource
cache.put(key(0), b"x" * 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
cache.put(key(1), b"x" * 4000)
print(cache.get(key(0)) is not None, cache.get(key(1)), cache.counters.refused, len(os.listdir(cache.folder)))
"""
    done = script(body, str(cache.folder))
    assert done.stdout == "True None 1 1\n", done.stderr


def test_a_folder_that_cannot_be_made_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ObjectCache(tmp_path / "file" / "objects")
    for _ in range(3):
        cache.put(key(), b"code")
        assert cache.get(key()) is None
    assert cache.counters.refused == 6
    assert cache.entries() == []
    assert 1 <= len(caplog.records) <= 3  # once for each reason, not for each kernel
