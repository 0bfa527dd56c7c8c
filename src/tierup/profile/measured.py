"""Measures what the machine can do: peaks, bandwidths, latencies; asks which counters and energy zones it has.

In: the machine's `Identity`. Out: a `Measured` record, in about a second. A figure that cannot be had is None or
carries its reason; none is made up. `quiet_share` tells how far other work disturbed the measurement.
"""

import time
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from tierup.profile.counters import Counter, explain_counters
from tierup.profile.energy import open_meter
from tierup.profile.identity import ROOT, Bytes, Cache, Count, Identity, Text, cores

MAX_WORKING_SET_BYTES = 256 << 20
QUIET = 0.9  # below this share of the cores, a measurement is worth repeating

Rate = Annotated[float, Meta(gt=0, le=1e7)]
Microseconds = Annotated[float, Meta(gt=0, le=1e7)]
Share = Annotated[float, Meta(ge=0, le=1)]


class NativeMachine(Protocol):
    """The part of `tierup._native` that measures. Figures come with the share of the cores that the threads got."""

    def machine_fma_gflops(self, cpus: list[int]) -> tuple[float, float]: ...
    def machine_read_gbytes_per_s(self, cpus: list[int], bytes_each: int) -> tuple[float, float]: ...
    def machine_fork_join_us(self, threads: int) -> tuple[float, float, float]: ...
    def machine_counter_errors(self) -> list[tuple[str, int]]: ...
    def machine_vector_isa(self) -> str: ...
    def machine_hypervisor(self) -> str: ...


class Bandwidth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast a level of the memory hierarchy is read, by one thread alone and by all of them together."""

    level: Annotated[str, Meta(pattern=r"^(L[1-9]|memory)$")]
    working_set_bytes_one: Bytes
    working_set_bytes_all: Bytes
    """Of each thread."""
    read_gbytes_per_s_one: Rate | None
    read_gbytes_per_s_all: Rate | None
    """None: it would take more memory than may be used (`MAX_WORKING_SET_BYTES`, a sixteenth of all)."""


class Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an energy zone drew while all cores ran at their FMA peak."""

    zone: Text
    peak_watts: Annotated[float, Meta(ge=0, le=1e6)]


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of one measurement."""

    measured_at_unix_s: Annotated[float, Meta(ge=0, le=1e11)]
    took_s: Annotated[float, Meta(ge=0, le=1e6)]
    quiet_share: Share
    """How far the figures are the machine's own, by the worst of them: 1 when no other work took a core meanwhile."""
    threads: Count
    vector_isa: Text
    fma_gflops_one: Rate
    fma_gflops_all: Rate
    bandwidths: Annotated[tuple[Bandwidth, ...], Meta(max_length=10)]
    fork_join_spinning_us: Microseconds | None
    fork_join_parked_us: Microseconds | None
    """None where there is one thread only."""
    counters: Annotated[tuple[Counter, ...], Meta(max_length=64)]
    power: Annotated[tuple[Power, ...], Meta(max_length=64)]
    energy_unavailable: Text | None

    @property
    def is_quiet(self) -> bool:
        """Whether the figures are the machine's, not those of what it left over."""
        return self.quiet_share >= QUIET


def measure_rates(identity: Identity, native: NativeMachine, allowed: Set[int], root: Path = ROOT) -> Measured:
    """Runs every measurement, one after the other."""
    began_s = time.monotonic()
    cpus = one_cpu_per_core_first(cores(root, allowed))[: identity.threads]
    fma_gflops_one, quiet_one = native.machine_fma_gflops(cpus[:1])
    (fma_gflops_all, quiet_all), power, energy_unavailable = _peak_with_power(native, cpus, root)
    bandwidths, quiet_reads = _bandwidths(identity, native, cpus)
    spinning_us, parked_us, quiet_join = native.machine_fork_join_us(len(cpus))
    return Measured(
        measured_at_unix_s=time.time(),
        took_s=time.monotonic() - began_s,
        quiet_share=min(quiet_one, quiet_all, quiet_reads, quiet_join),
        threads=len(cpus),
        vector_isa=native.machine_vector_isa(),
        fma_gflops_one=fma_gflops_one,
        fma_gflops_all=fma_gflops_all,
        bandwidths=bandwidths,
        fork_join_spinning_us=spinning_us or None,
        fork_join_parked_us=parked_us or None,
        counters=explain_counters(native.machine_counter_errors(), root),
        power=power,
        energy_unavailable=energy_unavailable,
    )


def one_cpu_per_core_first(groups: list[list[int]]) -> list[int]:
    """The CPUs in the order in which threads should take them: siblings share a core's units, so they come last."""
    deepest = max(map(len, groups))
    return [group[turn] for turn in range(deepest) for group in groups if turn < len(group)]


class WorkingSet(msgspec.Struct, frozen=True):
    """What each thread reads to see one level, and whether so much memory may be used as that takes."""

    level: str
    bytes_one: int
    bytes_all: int
    reaches_one: bool
    reaches_all: bool


def working_sets(caches: tuple[Cache, ...], threads: int, spare_bytes: int) -> Iterator[WorkingSet]:
    """For each cache: all of the caches before it and half of what it leaves to a thread, so that what is read over and
    over lies in it and not before it (also where a cache holds only what the one before it dropped). For memory: four
    times the last caches. `spare_bytes` is how much memory may be used at all."""
    before_one = before_all = 0
    for cache in caches:
        one, each = (before + max(1, cache.share_bytes // 2) for before in (before_one, before_all))
        yield WorkingSet(f"L{cache.level}", one, each, one <= spare_bytes, each * threads <= spare_bytes)
        before_one, before_all = cache.size_bytes, cache.share_bytes
    limit_bytes = min(MAX_WORKING_SET_BYTES, spare_bytes)
    last_bytes = caches[-1].size_bytes if caches else limit_bytes // 4
    last_caches = -(-threads // caches[-1].shared_by) if caches else 1
    one, everywhere = (min(4 * last_bytes * number, limit_bytes) for number in (1, last_caches))
    reaches_one, reaches_all = one >= 2 * last_bytes, everywhere >= 2 * last_bytes * last_caches
    yield WorkingSet("memory", one, max(1, everywhere // threads), reaches_one, reaches_all)


def _bandwidths(identity: Identity, native: NativeMachine, cpus: list[int]) -> tuple[tuple[Bandwidth, ...], float]:
    """Each level's bandwidth, and the smallest quiet share."""
    # A container may have little, and the kernel would end whoever holds most of it, not us.
    spare_bytes = identity.memory_bytes // 16 if identity.memory_bytes else MAX_WORKING_SET_BYTES
    bandwidths, quiet = [], 1.0
    for level in working_sets(identity.caches, len(cpus), spare_bytes):
        one = native.machine_read_gbytes_per_s(cpus[:1], level.bytes_one) if level.reaches_one else None
        all_ = native.machine_read_gbytes_per_s(cpus, level.bytes_all) if level.reaches_all else None
        quiet = min([quiet, *(rate[1] for rate in (one, all_) if rate)])
        rates = (one and one[0], all_ and all_[0])
        bandwidths.append(Bandwidth(level.level, level.bytes_one, level.bytes_all, *rates))
    return tuple(bandwidths), quiet


def _peak_with_power(
    native: NativeMachine, cpus: list[int], root: Path
) -> tuple[tuple[float, float], tuple[Power, ...], str | None]:
    """The peak of all cores, and what the energy zones drew meanwhile, or why that is not known."""
    meter = open_meter(root)
    if isinstance(meter, str):
        return native.machine_fma_gflops(cpus), (), meter
    try:
        before_uj, began_s = meter.read_uj(), time.monotonic()
        peak = native.machine_fma_gflops(cpus)
        joules, took_s = meter.joules(before_uj, meter.read_uj()), time.monotonic() - began_s
    except (OSError, ValueError) as error:
        return native.machine_fma_gflops(cpus), (), f"the energy counters stopped answering: {error}"[:200]
    return peak, tuple(Power(zone, used / took_s) for zone, used in joules.items()), None
