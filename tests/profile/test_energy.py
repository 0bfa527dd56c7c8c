"""Energy comes from powercap's files or not at all."""

from pathlib import Path

import pytest
from tests.profile.fakes import write_tree

from tierup.profile.energy import EnergyMeter, open_meter

RAPL = "sys/class/powercap"


def zone_files(folder: str, name: str, energy_uj: str, range_uj: str = "1000000") -> dict[str, str]:
    values = {"name": name, "energy_uj": energy_uj, "max_energy_range_uj": range_uj}
    return {f"{RAPL}/{folder}/{file}": value + "\n" for file, value in values.items()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package, dram = zone_files("intel-rapl:0", "package-0", "900000"), zone_files("intel-rapl:0:1", "dram", "100")
    twin = zone_files("intel-rapl-mmio:0", "package-0", "7")
    control = {f"{RAPL}/intel-rapl/enabled": "1"}
    return write_tree(tmp_path, package | dram | twin | control)


def meter_of(root: Path) -> EnergyMeter:
    meter = open_meter(root)
    assert isinstance(meter, EnergyMeter)
    return meter


def test_zones_are_named_after_their_parents(root: Path) -> None:
    assert [zone.name for zone in meter_of(root).zones] == ["package-0", "package-0/dram"]


def test_a_counter_that_wraps(root: Path) -> None:
    meter = meter_of(root)
    before = meter.read_uj()
    write_tree(root, {f"{RAPL}/intel-rapl:0/energy_uj": "400000", f"{RAPL}/intel-rapl:0:1/energy_uj": "1100"})
    assert meter.joules(before, meter.read_uj()) == pytest.approx({"package-0": 0.5, "package-0/dram": 0.001})


def test_no_powercap(tmp_path: Path) -> None:
    assert "no powercap" in str(open_meter(tmp_path))


def test_no_zone(tmp_path: Path) -> None:
    (tmp_path / RAPL).mkdir(parents=True)
    assert "no RAPL zone" in str(open_meter(tmp_path))


def test_a_counter_for_root_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)  # the tests themselves may run as root
    assert open_meter(root) == "the energy counters are readable by root only"


@pytest.mark.parametrize("value", ["", "rubbish", "-4"])
def test_a_counter_with_rubbish(root: Path, value: str) -> None:
    write_tree(root, {f"{RAPL}/intel-rapl:0/energy_uj": value})
    assert str(open_meter(root)).startswith("the energy counters cannot be read")
