"""Reads the energy counters (RAPL) that the kernel shows under /sys/class/powercap.

In: the root of the file system. Out: an `EnergyMeter` over the zones there are, or a sentence that says why there are
none. Zones are never added up: a core's energy is part of its package's, a platform's contains both.
"""

from pathlib import Path

import msgspec

from tierup.profile.identity import ROOT

MAX_ZONES = 64


class Zone(msgspec.Struct, frozen=True):
    """One counter: its name, its file, and the value after which it starts again from 0."""

    name: str
    path: Path
    range_uj: int


class EnergyMeter(msgspec.Struct, frozen=True):
    """Take a reading before and one after; `joules` is what was used in between, by zone."""

    zones: tuple[Zone, ...]

    def read_uj(self) -> tuple[int, ...]:
        """The counters now, in microjoules. Raises OSError or ValueError if one has gone."""
        return tuple(_number(zone.path) for zone in self.zones)

    def joules(self, before: tuple[int, ...], after: tuple[int, ...]) -> dict[str, float]:
        """The difference. A counter may have wrapped once; packages take minutes to do so, readings should not."""
        used = {}
        for zone, start_uj, end_uj in zip(self.zones, before, after, strict=True):
            wrapped_uj = zone.range_uj if end_uj < start_uj else 0
            used[zone.name] = (end_uj + wrapped_uj - start_uj) / 1e6
        return used


def open_meter(root: Path = ROOT) -> EnergyMeter | str:
    """The meter, or why there is none."""
    folder = root / "sys/class/powercap"
    if not folder.is_dir():
        return "the kernel offers no energy counters (no powercap); virtual machines mostly have none"
    # The -mmio twins count the same packages once more.
    files = sorted(file for file in folder.glob("*/energy_uj") if "-mmio" not in file.parent.name)
    if not files:
        return "the kernel knows of no RAPL zone with an energy counter"
    try:
        zones = tuple(_zone(file) for file in files[:MAX_ZONES])
    except PermissionError:
        return "the energy counters are readable by root only"
    except (OSError, ValueError) as error:
        return f"the energy counters cannot be read: {error}"[:200]
    return EnergyMeter(zones)


def _zone(file: Path) -> Zone:
    _number(file)  # readable at all?
    return Zone(_name(file.parent), file, _number(file.with_name("max_energy_range_uj")))


def _name(zone: Path) -> str:
    """'package-0', or 'package-0/dram' for the zone intel-rapl:0:1 inside intel-rapl:0."""
    own = (zone / "name").read_text()[:64].strip()
    parent, _, _ = zone.name.rpartition(":")
    return f"{_name(zone.with_name(parent))}/{own}" if ":" in parent else own


def _number(file: Path) -> int:
    value = int(file.read_text()[:32])
    if value < 0:
        raise ValueError(f"{file.name} is negative")
    return value
