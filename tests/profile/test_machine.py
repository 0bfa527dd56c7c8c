"""The stored record: written whole, private, believed only if it is ours; one process measures at a time."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.profile.fakes import IDENTITY, fake_machine

from tierup.errors import StoreError
from tierup.profile import machine as machine_module
from tierup.profile.identity import Identity
from tierup.profile.machine import (
    Machine,
    Machines,
    load_or_measure,
    measure_in_background,
    measure_now,
    wait_for_quiet,
)

OTHER = msgspec.structs.replace(IDENTITY, model=99)


class Measurements:
    """Counts how often it was asked, and answers with the given quiet shares in turn."""

    def __init__(self, *quiet: float) -> None:
        self.quiet, self.count = quiet or (1.0,), 0

    def __call__(self, identity: Identity) -> Machine:
        self.count += 1
        return fake_machine(identity, self.quiet[min(self.count, len(self.quiet)) - 1])


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_what_is_saved_is_loaded(machines: Machines) -> None:
    machine = fake_machine()
    machines.save(machine)
    assert machines.load(IDENTITY) == machine
    assert machines.load(OTHER) is None
    assert machines.ignored == []
    assert machines.folder.stat().st_mode & 0o777 == 0o700
    assert machines.path(IDENTITY).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in machines.folder.iterdir()] == [f"{IDENTITY.key}.json"]


def test_measured_once(tmp_path: Path) -> None:
    measure = Measurements()
    first = load_or_measure(tmp_path, identity=IDENTITY, measure=measure)
    assert load_or_measure(tmp_path, identity=IDENTITY, measure=measure) == first
    assert measure.count == 1
    load_or_measure(tmp_path, identity=OTHER, measure=measure)
    assert measure.count == 2
    load_or_measure(tmp_path, identity=IDENTITY, measure=measure, remeasure=True)
    assert measure.count == 3


def set_at(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        for step in path[:-1]:
            record = record[step]
        record[path[-1]] = value

    return change


HOSTILE = {
    "huge number": set_at("measured", "fma_gflops_one", value=1e300),
    "infinite number": set_at("measured", "fma_gflops_one", value=float("inf")),
    "not a number": set_at("measured", "fma_gflops_one", value=float("nan")),
    "negative number": set_at("measured", "bandwidths", 0, "read_gbytes_per_s_one", value=-1),
    "zero": set_at("measured", "fma_gflops_all", value=0),
    "huge integer": set_at("identity", "memory_bytes", value=10**40),
    "wrong type": set_at("measured", "fma_gflops_all", value="fast"),
    "boolean": set_at("identity", "cpus_allowed", value=True),
    "long string": set_at("identity", "name", value="x" * 300),
    "long list": set_at("identity", "features", value=["avx"] * 1000),
    "bad level": set_at("measured", "bandwidths", 0, "level", value="L1\x1b[31m"),
    "unknown field": set_at("measured", "surprise", value=1),
    "other version": set_at("version", value=2),
    "other machine": set_at("identity", "model", value=99),
    "missing part": lambda record: record.pop("measured"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_record_with_hostile_values_is_ignored(
    machines: Machines, change: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    machines.save(fake_machine())
    record = json.loads(machines.path(IDENTITY).read_text())
    change(record)
    machines.path(IDENTITY).write_text(json.dumps(record))
    expect_ignored(machines, caplog)


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"\xff" * 40, b"[" * 60_000, b" " * 10_000_000])
def test_a_file_that_is_no_record_is_ignored(machines: Machines, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    machines.save(fake_machine())
    machines.path(IDENTITY).write_bytes(data)
    expect_ignored(machines, caplog)


def as_symlink(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def in_open_folder(path: Path) -> None:
    path.parent.chmod(0o755)


def writable_by_others(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("spoil", [as_symlink, as_pipe, as_folder, in_open_folder, writable_by_others])
def test_a_file_that_others_could_have_placed_is_ignored(
    machines: Machines, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    machines.save(fake_machine())
    spoil(machines.path(IDENTITY))
    expect_ignored(machines, caplog)


def test_the_files_of_another_user_are_ignored(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machines.save(fake_machine())
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    expect_ignored(machines, caplog)


def expect_ignored(machines: Machines, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tierup"):
        assert machines.load(IDENTITY) is None
    assert len(machines.ignored) == 1
    assert str(machines.path(IDENTITY)) in machines.ignored[0]
    assert "ignored the machine record" in caplog.text


def test_an_ignored_record_is_measured_again(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.save(fake_machine())
    machines.path(IDENTITY).write_text("rubbish")
    measure = Measurements()
    load_or_measure(tmp_path, identity=IDENTITY, measure=measure)
    assert measure.count == 1
    assert machines.load(IDENTITY) is not None


def test_a_writer_that_dies_leaves_the_old_record(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_machine()
    machines.save(old)

    def die(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        machines.save(fake_machine(quiet=0.5))
    assert machines.load(IDENTITY) == old
    assert [file.name for file in machines.folder.iterdir()] == [f"{IDENTITY.key}.json"]


@pytest.mark.parametrize("spoil", ["file", "link", "open"])
def test_a_folder_that_is_not_ours_alone_is_not_used(tmp_path: Path, spoil: str) -> None:
    folder = tmp_path / "machines"
    if spoil == "file":
        folder.write_text("")
    elif spoil == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(StoreError, match="machines"):
        load_or_measure(tmp_path, identity=IDENTITY, measure=Measurements())


HOLDER = """
import fcntl, os, sys
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(machines: Machines) -> Any:
    """Another process that is just measuring; ends when its input is closed."""
    machines.save(fake_machine(OTHER))  # makes the folder
    command = [sys.executable, "-c", HOLDER, str(machines.folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_one_process_measures_at_a_time(machines: Machines, holder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Measurements()
    measure_now(machines, IDENTITY, measure)
    assert measure.count == 0
    monkeypatch.setattr(machine_module, "LOCK_WAIT_S", 0.0)
    with pytest.raises(StoreError, match="another process"):
        load_or_measure(machines.folder.parent, identity=IDENTITY, measure=measure)
    holder.kill()  # the lock goes with its holder, however that ended
    holder.wait()
    measure_now(machines, IDENTITY, measure)
    assert measure.count == 1


def test_who_waited_takes_the_other_ones_figures(machines: Machines, holder: Any) -> None:
    measure, results = Measurements(), []
    waiting = threading.Thread(
        target=lambda: results.append(load_or_measure(machines.folder.parent, identity=IDENTITY, measure=measure))
    )
    waiting.start()
    theirs = fake_machine(quiet=0.97)
    machines.save(theirs)
    holder.kill()
    waiting.join(timeout=30)
    assert (results, measure.count) == ([theirs], 0)


def test_a_noisy_measurement_is_repeated_and_the_quietest_stays(machines: Machines) -> None:
    measure = Measurements(0.5, 0.4, 0.7, 1.0, 1.0)
    for _ in range(3):
        measure_now(machines, IDENTITY, measure)
    stored = machines.load(IDENTITY)
    assert (measure.count, stored and stored.measured.quiet_share) == (3, 0.7)
    measure_now(machines, IDENTITY, measure)
    measure_now(machines, IDENTITY, measure)
    stored = machines.load(IDENTITY)
    assert (measure.count, stored and stored.measured.quiet_share) == (4, 1.0)


def test_it_waits_until_nobody_else_wants_the_processors() -> None:
    cpus = os.cpu_count() or 1
    used_s = iter([0.0, 0.9 * cpus, 1.0 * cpus, 1.5 * cpus, 1.5 * cpus, 1.51 * cpus])
    slept: list[float] = []
    assert wait_for_quiet(lambda: next(used_s), slept.append)
    assert slept == [1.0, 1.0, 1.0]
    always = iter(range(1_000_000))
    assert not wait_for_quiet(lambda: float(next(always) * cpus), slept.append)
    assert len(slept) == 3 + machine_module.QUIET_WAITS


def test_a_background_that_fails_only_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine_module, "identify", lambda: IDENTITY)
    monkeypatch.setattr(machine_module, "wait_for_quiet", lambda: True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    thread = measure_in_background(tmp_path)
    thread.join(timeout=30)
    assert thread.daemon
    assert "in the background failed" in caplog.text


def test_the_background_leaves_a_measured_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Machines(tmp_path).save(fake_machine())
    monkeypatch.setattr(machine_module, "identify", lambda: IDENTITY)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    measure_in_background(tmp_path).join(timeout=30)
    assert caplog.text == ""
