"""`tierup doctor` on fake machines: what is there is shown, what is not is explained."""

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tests.profile.fakes import IDENTITY, fake_machine
from typer.testing import CliRunner

from tierup.cli import app
from tierup.cli.doctor import Diagnosis, Missing, diagnose, render, show
from tierup.errors import StoreError
from tierup.profile import machine as machine_module
from tierup.profile.identity import Identity
from tierup.profile.machine import Machine, Machines
from tierup.profile.measured import Power


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "identify", lambda: IDENTITY)


def measure(identity: Identity | None) -> Machine:
    return fake_machine(identity or IDENTITY)


def text_of(machine: Machine, *missing: Missing, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(Diagnosis(machine, missing)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def missing_of(tmp_path: Path, machine: Machine, *modules: str) -> dict[str, Missing]:
    found = diagnose(tmp_path, True, lambda _: machine, lambda name: name in modules).missing
    return {item.what: item for item in found}


def change(machine: Machine, **fields: object) -> Machine:
    """The machine with these fields of its identity or its figures replaced."""
    for part in ("identity", "measured"):
        struct = getattr(machine, part)
        known = {name: value for name, value in fields.items() if name in struct.__struct_fields__}
        machine = msgspec.structs.replace(machine, **{part: msgspec.structs.replace(struct, **known)})
    return machine


def test_everything_is_shown() -> None:
    text = text_of(fake_machine())
    for words in ("AMD EPYC", "KVM", "avx2, fma", "100.0 GFLOP/s", "200.0 GFLOP/s", "10.0 GB/s", "32 KiB", "memory"):
        assert words in text
    assert "0.20 µs" in text
    assert "5.00 µs" in text
    assert IDENTITY.key in text


def test_a_counter_is_available_or_says_why_not() -> None:
    lines = text_of(fake_machine()).splitlines()
    (cycles,) = (line.split() for line in lines if line.strip().startswith("cycles"))
    assert cycles[1:] == ["available"]
    (misses,) = (line for line in lines if line.strip().startswith("branch misses"))
    assert "unavailable: the CPU, or this virtual machine" in misses


def test_energy_is_measured_or_says_why_not() -> None:
    machine = fake_machine()
    assert "unavailable: the kernel offers no energy counters" in text_of(machine)
    powered = text_of(change(machine, power=(Power("package-0", 88.25),), energy_unavailable=None))
    assert "88.2 W" in powered
    assert "no energy counters" not in powered


def test_markup_in_a_name_stays_text() -> None:
    assert "[red]AMD[/]" in text_of(change(fake_machine(), name="[red]AMD[/]"))


@pytest.mark.parametrize("width", [20, 80])
def test_narrow_terminals_are_served(width: int) -> None:
    text = text_of(fake_machine(), Missing("a", "b", "c"), width=width)
    assert max(map(len, text.splitlines())) <= width


def test_what_is_missing(tmp_path: Path) -> None:
    machine = change(fake_machine(quiet=0.6), quota_cpus=1.0, caches=())
    missing = missing_of(tmp_path, machine)
    assert "40%" in missing["quiet measurement"].why
    assert "1 of 2 CPUs" in missing["CPU time"].why
    assert {"cache sizes", "1 of 2 hardware counters", "energy counters", "Pillow", "ONNX Runtime"} <= missing.keys()


def test_a_level_that_was_not_measured_is_missing(tmp_path: Path) -> None:
    machine = fake_machine()
    last = msgspec.structs.replace(machine.measured.bandwidths[-1], read_gbytes_per_s_all=None)
    machine = change(machine, bandwidths=(*machine.measured.bandwidths[:-1], last))
    assert "bandwidth of memory" in missing_of(tmp_path, machine)
    assert "not measured" in text_of(machine)


def test_nothing_missing_is_said_too(tmp_path: Path) -> None:
    machine = change(fake_machine(), counters=(), energy_unavailable=None)
    assert missing_of(tmp_path, machine, "PIL", "onnxruntime") == {}
    assert "nothing" in text_of(machine)


def test_an_ignored_record_is_mentioned(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.save(fake_machine())
    machines.path(IDENTITY).write_text("rubbish")
    missing = diagnose(tmp_path, False, measure).missing
    assert missing[0].what == "earlier fingerprint"


def test_a_folder_that_cannot_be_used_does_not_hide_the_machine(tmp_path: Path) -> None:
    (tmp_path / "machines").write_text("a file")
    diagnosis = diagnose(tmp_path, False, measure)
    assert diagnosis.machine.key == IDENTITY.key
    assert diagnosis.missing[0].what == "stored fingerprint"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERUP_DATA_DIR", str(tmp_path / "data"))
    Machines(tmp_path / "data").save(fake_machine())
    result = CliRunner().invoke(app, ["doctor", "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    assert "AMD EPYC" in result.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["key"] == IDENTITY.key
    assert written["machine"]["measured"]["fma_gflops_all"] == 200
    assert {"what", "why", "advice"} == set(written["missing"][0])


def test_a_json_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    Machines(tmp_path).save(fake_machine())
    with pytest.raises(StoreError, match=r"--json .*nowhere.* cannot be written"):
        show(tmp_path, tmp_path / "nowhere" / "out.json", False, Console(file=io.StringIO()))
