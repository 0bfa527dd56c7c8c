"""The store of what was learned: bounded, shared, validated, and no loss when it is gone."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tierup.errors import StoreError
from tierup.profile.machine import Machines
from tierup.store.build_cost import BuildCost
from tierup.store.learned import Store
from tierup.store.place import FILE
from tierup.store.rows import Decision, Machine, Measurement, Profile, Quarantine, Recipe, Region, RegionProfile, Row

ROWS: list[Row] = [
    Machine("m", "a processor", "x86_64", 2),
    Region("r", "map f32", 100),
    Recipe("k", "r", "", "avx2", "1", "20"),
    Measurement("t", "m", "trial", "p", "1×8", incumbent_us=2.0, candidate_us=1.0, gain=0.5, margin=0.01, pairs=9),
    Profile("f", "m", "net", "1×8", 1, 10, 1.0, 2.0, 3.0),
    RegionProfile("g", "m", "r", "1×8", 10, (1.0, 2.0), ("cycles",), (300.0,), 2),
    Decision("p", "m", "net", 1, "refused", "too slow", 1),
    Quarantine("k", "m", "wrong numbers"),
    BuildCost("k", "m", 1, "plan", 3, 1, 0.5, 1000),
]


def place(folder: Path) -> str:
    return str(folder / "data")


def test_rows_of_every_kind_come_back(tmp_path: Path) -> None:
    with Store(place(tmp_path)) as store:
        store.put(ROWS)
    with Store(place(tmp_path)) as store:
        for row in ROWS:
            found = store.get(type(row), row.key)
            assert found is not None
            assert found.row == row
        assert store.get(Decision, "another") is None
        assert store.count() == dict.fromkeys(store.count(), 1)
        assert store.clear() == len(ROWS)
        assert sum(store.count().values()) == 0


@pytest.mark.parametrize(
    ("url", "shown", "reason"),
    [
        ("://", "://", "parse"),
        ("postgresql://me:secret@host:notaport/db", "postgresql://me:***@host:notaport/db", "notaport"),
        ("postgresql+nodriver://me:secret@host/db", "postgresql+nodriver://me:***@host/db", "nodriver"),
        ("nodatabase://host/a@b", "nodatabase://host/a@b", "nodatabase"),
    ],
)
def test_a_url_that_leads_nowhere_is_said_without_its_password(url: str, shown: str, reason: str) -> None:
    with pytest.raises(StoreError, match=reason) as raised:
        Store(url)
    assert f"the store at '{shown}' cannot be opened" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_driver_that_is_not_there_is_a_store_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # whoever imports it is told that there is none
    with pytest.raises(StoreError, match="psycopg"):
        Store("postgresql://me:secret@host/db")


def test_a_row_is_replaced_by_its_key(tmp_path: Path) -> None:
    with Store(place(tmp_path)) as store:
        store.put([Quarantine("k", "m", "first")])
        store.put([Quarantine("k", "m", "second")])
        assert [found.row.reason for found in store.all(Quarantine)] == ["second"]


def test_the_least_recently_used_rows_go(tmp_path: Path) -> None:
    with Store(place(tmp_path), limits={Region: 10}) as store:
        store.put([Region(f"r{number:03}", "", 0) for number in range(10)])
        assert store.get(Region, "r000") is not None  # which counts as a use
        store.put([Region(f"s{number:03}", "", 0) for number in range(64)][:5])
        store._until_look = 0
        store.put([Region("t", "", 0)])
        kept = {found.row.key for found in store.all(Region)}
        assert len(kept) == 10
        assert {"t", "r000"} <= kept
        assert store.counters.evicted == 6


def test_numbers_out_of_bounds_are_not_written(tmp_path: Path) -> None:
    with Store(place(tmp_path)) as store:
        with pytest.raises(msgspec.ValidationError):
            store.put([ROWS[0], Machine("n", "", "", 0)])
        assert store.count()["machine"] == 0  # all or none


@pytest.mark.parametrize("body", [b"", b"rubbish", msgspec.msgpack.encode({"type": "machine"}), "text", 7])
def test_a_row_that_does_not_validate_is_ignored_and_counted(tmp_path: Path, body: Any) -> None:
    with Store(place(tmp_path)) as store:
        store.put(ROWS)
    with sqlite3.connect(tmp_path / "data" / FILE) as raw:
        raw.execute("UPDATE decision SET body = ?", (body,))
    with Store(place(tmp_path)) as store:
        assert store.get(Decision, "p") is None
        assert store.all(Decision) == []
        assert store.counters.ignored == 2
        assert store.verify() == 1
        assert (store.count()["decision"], store.count()["machine"]) == (0, 1)


def test_a_row_under_another_key_is_ignored(tmp_path: Path) -> None:
    with Store(place(tmp_path)) as store:
        store.put([Quarantine("k", "m", "")])
    with sqlite3.connect(tmp_path / "data" / FILE) as raw:
        raw.execute("UPDATE quarantine SET key = 'innocent'")
    with Store(place(tmp_path)) as store:
        assert store.find(Quarantine, ["innocent", "k"]) == {}


def spoil_version(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE version SET schema = 99")


def spoil_tables(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE somebody_elses (x)")


def spoil_bytes(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says" * 100)


@pytest.mark.parametrize("spoil", [spoil_version, spoil_tables, spoil_bytes])
def test_what_is_no_store_of_this_version_is_set_aside(tmp_path: Path, spoil: Any) -> None:
    with Store(place(tmp_path)) as store:
        store.put(ROWS)
    spoil(tmp_path / "data" / FILE)
    with Store(place(tmp_path)) as store:
        assert store.counters.aside == 1
        assert sum(store.count().values()) == 0
        store.put(ROWS)
    assert len(list((tmp_path / "data").glob(f"{FILE}.*"))) >= 1


def test_a_locked_store_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierup.store.learned._WAIT_S", 0.05)
    with Store(place(tmp_path)) as store:
        store.put(ROWS)
        with sqlite3.connect(tmp_path / "data" / FILE, isolation_level=None) as raw:
            raw.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreError, match="locked"):
                store.put(ROWS)
            with pytest.raises(StoreError, match="locked"):
                Store(place(tmp_path))
            raw.execute("ROLLBACK")
        store.put(ROWS)


def test_a_full_store_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierup.store.learned._MAX_FILE_BYTES", 1 << 18)
    with Store(place(tmp_path)) as store:
        before = store.count()
        with pytest.raises(StoreError, match="full"):
            store.put([Region(f"r{number}", "x" * 1000, 0) for number in range(1000)])
        assert store.count() == before
        store.put(ROWS)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StoreError, match="open to others"):
        Store(str(folder))


def test_a_folder_that_others_can_read_holds_a_file_that_they_cannot(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    with Store(str(folder)) as store:
        store.put(ROWS)
    assert [path.stat().st_mode & 0o077 for path in folder.iterdir()] == [0] * len(list(folder.iterdir()))


def test_the_folder_that_measuring_made_takes_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "share" / "tierup"
    with Machines(folder).measuring(0) as free:
        assert free
    assert folder.stat().st_mode & 0o077 == 0
    with Store(str(folder)) as store:
        store.put(ROWS)


_WRITER = """
import sys
from tierup.store.learned import Store
from tierup.store.rows import Region
with Store(sys.argv[1]) as store:
    for number in range(int(sys.argv[3])):
        store.put([Region(f"{sys.argv[2]} {number} {part}", "", 0) for part in range(4)])
        print(number, flush=True)
"""


def writer(folder: Path, name: str, batches: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, place(folder), name, str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_several_processes_share_a_store(tmp_path: Path) -> None:
    writers = [writer(tmp_path, name, 20) for name in "abc"]
    assert [process.wait(120) for process in writers] == [0, 0, 0]
    for process in writers:
        assert process.stdout is not None
        process.stdout.close()
    with Store(place(tmp_path)) as store:
        assert store.count()["region"] == 3 * 20 * 4


def test_a_killed_writer_corrupts_nothing(tmp_path: Path) -> None:
    process = writer(tmp_path, "a", 1_000_000)
    assert process.stdout is not None
    with process.stdout as said:
        for line in said:
            if int(line) >= 10:
                os.kill(process.pid, signal.SIGKILL)
                break
    process.wait(60)
    with Store(place(tmp_path)) as store:
        count = store.count()["region"]
        assert count >= 11 * 4
        assert count % 4 == 0  # batches are whole
        assert store.verify() == 0
        assert store.counters.aside == 0


def region_profile(runs: int, *times_us: float, **fields: Any) -> RegionProfile:
    return RegionProfile("g", "m", "r", "1×8", runs, times_us, **fields)


def test_profiles_of_regions_add_up(tmp_path: Path) -> None:
    with Store(place(tmp_path)) as store:
        for number in range(30):
            counted: dict[str, Any] = {"counters": ("cycles",), "counts": (10.0,), "counted": 1}
            store.put([region_profile(2, *(float(10 * number + i) for i in range(3)), **counted)])
        found = store.get(RegionProfile, "g")
    assert found is not None
    assert found.row.runs == 60
    assert found.row.times_us == tuple(10.0 * (i // 3) + i % 3 for i in range(90))[-64:]
    assert (found.row.counts, found.row.counted) == ((300.0,), 30)


def test_counts_of_other_counters_are_not_added(tmp_path: Path) -> None:
    with Store(place(tmp_path)) as store:
        store.put([region_profile(1, 1.0, counters=("cycles", "instructions"), counts=(5.0, 6.0), counted=1)])
        store.put([region_profile(1, 1.0)])
        found = store.get(RegionProfile, "g")
    assert found is not None
    assert (found.row.runs, found.row.counts, found.row.counted) == (2, (), 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"times_us": []},
        {"times_us": [1.0] * 65},
        {"times_us": [-1.0]},
        {"times_us": [float("nan")]},
        {"runs": -1},
        {"runs": 1 << 60},
        {"counts": [1e31]},
        {"counters": ["c" * 41]},
        {"region": ""},
        {"more": 1},
    ],
)
def test_a_profile_of_a_region_that_does_not_validate_is_ignored_and_replaced(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    with Store(place(tmp_path)) as store:
        store.put([region_profile(1, 1.0)])
        wrong = msgspec.msgpack.encode({**msgspec.to_builtins(region_profile(1, 1.0)), **fields})
        with sqlite3.connect(tmp_path / "data" / FILE) as connection:
            connection.execute("UPDATE region_profile SET body = ?", (wrong,))
        assert store.all(RegionProfile) == []
        assert store.counters.ignored == 1
        store.put([region_profile(3, 2.0)])
        found = store.get(RegionProfile, "g")
    assert found is not None
    assert found.row == region_profile(3, 2.0)
