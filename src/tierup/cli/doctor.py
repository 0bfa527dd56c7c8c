"""`tierup doctor`: the machine's fingerprint, and what is missing on it.

`diagnose` gathers, `render` draws, `show` does both. Figures come from the stored record; they are measured if there is
none, or if the user asks.
"""

import importlib.util
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tierup.errors import StoreError
from tierup.profile.identity import Identity
from tierup.profile.machine import Machine, Machines, load_or_measure
from tierup.profile.machine import measure as measure_now
from tierup.profile.measured import Measured


class Missing(msgspec.Struct, frozen=True):
    """Something that this machine or installation lacks: what, why, and what it means or what to do."""

    what: str
    why: str
    advice: str


class Diagnosis(msgspec.Struct, frozen=True):
    """What the doctor found."""

    machine: Machine
    missing: tuple[Missing, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` writes it."""
        return {"key": self.machine.key, **msgspec.to_builtins(self)}


def show(data_dir: Path, json_file: Path | None, remeasure: bool, console: Console) -> None:
    """Prints the fingerprint, and writes it to `json_file` if one is given."""
    diagnosis = diagnose(data_dir, remeasure)  # no spinner meanwhile: it would take a core from what is measured
    console.print(render(diagnosis))
    if json_file:
        try:
            json_file.write_text(json.dumps(diagnosis.to_dict(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"--json {json_file} cannot be written: {error.strerror}") from error


def diagnose(
    data_dir: Path,
    remeasure: bool,
    measure: Callable[[Identity | None], Machine] = measure_now,
    has_module: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> Diagnosis:
    """The fingerprint, stored or fresh, and everything that is missing."""
    machines = Machines(data_dir)
    unstored = []
    try:
        machine = load_or_measure(data_dir, remeasure=remeasure, machines=machines, measure=measure)
    except StoreError as error:  # the user asked about the machine, not about the folder: answer, and say so
        machine = measure(None)
        unstored = [Missing("stored fingerprint", str(error), "it is measured again each time")]
    ignored = [Missing("earlier fingerprint", why, "it was ignored") for why in machines.ignored]
    return Diagnosis(machine, (*unstored, *ignored, *_missing_on(machine), *_missing_modules(has_module)))


def _missing_on(machine: Machine) -> Iterator[Missing]:
    identity, measured = machine.identity, machine.measured
    if not measured.is_quiet:
        share = f"other work disturbed it by up to {1 - measured.quiet_share:.0%}"
        yield Missing("quiet measurement", share, "run `tierup doctor --remeasure` when the machine is idle")
    if identity.quota_cpus is not None and identity.quota_cpus < identity.cpus_allowed:
        quota = f"a control group allows {identity.quota_cpus:g} of {identity.cpus_allowed} CPUs"
        yield Missing("CPU time", quota, f"{identity.threads} threads are used")
    if not identity.caches:
        yield Missing("cache sizes", "the kernel does not tell them", "only memory was measured")
    for bandwidth in measured.bandwidths:
        if bandwidth.read_gbytes_per_s_one is None or bandwidth.read_gbytes_per_s_all is None:
            why = "its working set would take more memory than a measurement may use"
            yield Missing(f"bandwidth of {bandwidth.level}", why, "costs are predicted without it")
    for why, names in _counters_by_reason(measured).items():
        advice = "regions are explained by counted bytes and flops instead"
        yield Missing(f"{len(names)} of {len(measured.counters)} hardware counters", why, advice)
    if measured.energy_unavailable:
        yield Missing("energy counters", measured.energy_unavailable, "no energy figure is shown anywhere")


def _missing_modules(has_module: Callable[[str], bool]) -> Iterator[Missing]:
    if not has_module("PIL"):
        yield Missing("Pillow", "not installed", "ImageDecoder needs it: pip install 'tierup[image]'")
    if not has_module("onnxruntime"):
        yield Missing("ONNX Runtime", "not installed", "`tierup bench` compares with it: pip install 'tierup[bench]'")


def _counters_by_reason(measured: Measured) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for counter in measured.counters:
        if counter.unavailable:
            reasons.setdefault(counter.unavailable, []).append(counter.name)
    return reasons


def render(diagnosis: Diagnosis) -> RenderableType:
    """The tables, one under the other."""
    identity, measured = diagnosis.machine.identity, diagnosis.machine.measured
    return Group(
        _identity_table(identity, diagnosis.machine.key),
        _peak_table(measured),
        _memory_table(identity, measured),
        _sensor_table(measured),
        _missing_table(diagnosis.missing),
        Text(_when(measured), style="dim"),
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=bool(columns))
    for column in columns or ("", ""):
        table.add_column(column, overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))  # as text: a CPU's name is no markup


def _identity_table(identity: Identity, key: str) -> Table:
    table = _table("Machine")
    _add(table, "CPU", f"{identity.name} ({identity.vendor}, {identity.architecture})")
    _add(table, "family, model, stepping", f"{identity.family}, {identity.model}, {identity.stepping}")
    _add(table, "microcode", identity.microcode or "unavailable: the kernel does not tell it")
    _add(table, "hypervisor", identity.hypervisor or "none")
    _add(table, "instructions", ", ".join(identity.features) or "none that Tierup uses by name")
    _add(table, "cores", _cores(identity))
    _add(table, "NUMA nodes", str(identity.numa_nodes))
    unknown = "unavailable: the kernel does not tell it"
    _add(table, "memory", _size(identity.memory_bytes) if identity.memory_bytes else unknown)
    _add(table, "key", key)
    return table


def _cores(identity: Identity) -> str:
    parts = [f"{identity.cores_allowed} cores, {identity.cpus_allowed} CPUs of {identity.cpus_online} allowed"]
    if identity.quota_cpus is not None:
        parts.append(f"quota {identity.quota_cpus:g} CPUs")
    return ", ".join([*parts, f"{identity.threads} threads used"])


def _peak_table(measured: Measured) -> Table:
    table = _table("Compute", "", "one core", f"all, {measured.threads} threads")
    _add(table, f"f32 FMA, {measured.vector_isa}", *map(_gflops, (measured.fma_gflops_one, measured.fma_gflops_all)))
    table.add_section()
    _add(table, "fork-join, workers spinning", "", _latency(measured.fork_join_spinning_us))
    _add(table, "fork-join, workers parked", "", _latency(measured.fork_join_parked_us))
    return table


def _memory_table(identity: Identity, measured: Measured) -> Table:
    table = _table("Memory", "level", "size", "line", "shared by", "read, one core", "read, all")
    caches = {f"L{cache.level}": cache for cache in identity.caches}
    for bandwidth in measured.bandwidths:
        cache = caches.get(bandwidth.level)
        place = (_size(cache.size_bytes), f"{cache.line_bytes} B", _cpus(cache.shared_by)) if cache else ("", "", "")
        rates = map(_bandwidth, (bandwidth.read_gbytes_per_s_one, bandwidth.read_gbytes_per_s_all))
        _add(table, bandwidth.level, *place, *rates)
    return table


def _sensor_table(measured: Measured) -> Table:
    table = _table("Counters and energy")
    for counter in measured.counters:
        _add(table, counter.name, f"unavailable: {counter.unavailable}" if counter.unavailable else "available")
    for power in measured.power:
        _add(table, f"energy of {power.zone}", f"available; {power.peak_watts:.1f} W at the FMA peak of all cores")
    if measured.energy_unavailable:
        _add(table, "energy", f"unavailable: {measured.energy_unavailable}")
    return table


def _missing_table(missing: tuple[Missing, ...]) -> Table:
    table = _table("What is missing", "what", "why", "so")
    for item in missing:
        _add(table, item.what, item.why, item.advice)
    if not missing:
        _add(table, "nothing", "", "")
    table.caption = "A compiler is not on this list: none is needed at run time."
    table.caption_justify = "left"
    return table


def _when(measured: Measured) -> str:
    when = datetime.fromtimestamp(measured.measured_at_unix_s).astimezone()
    return f"Measured {when:%Y-%m-%d %H:%M} in {measured.took_s:.1f} s, {measured.quiet_share:.0%} undisturbed."


def _size(size_bytes: int) -> str:
    for unit, exponent in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << exponent:
            return f"{size_bytes / (1 << exponent):.4g} {unit}"
    return f"{size_bytes} B"


def _cpus(count: int) -> str:
    return f"{count} CPU{'s' if count > 1 else ''}"


def _gflops(rate: float) -> str:
    return f"{rate:.1f} GFLOP/s"


def _bandwidth(rate: float | None) -> str:
    return "not measured" if rate is None else f"{rate:.1f} GB/s"


def _latency(latency_us: float | None) -> str:
    return "alone: nothing to join" if latency_us is None else f"{latency_us:.2f} µs"
