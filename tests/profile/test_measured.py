"""What is measured where, with fake measurements; the real ones only have to be positive."""

import errno
from pathlib import Path

import msgspec
import pytest
from tests.profile.fakes import IDENTITY, FakeNative, write_tree

from tierup.profile.identity import Cache
from tierup.profile.measured import MAX_WORKING_SET_BYTES, measure_rates, one_cpu_per_core_first, working_sets

KIB, MIB = 1 << 10, 1 << 20


def test_the_spine(tmp_path: Path) -> None:
    native = FakeNative(quiet=0.95)
    measured = measure_rates(IDENTITY, native, {0, 1}, tmp_path)
    assert native.peaks == [[0], [0, 1]]
    assert (measured.fma_gflops_one, measured.fma_gflops_all, measured.threads) == (100, 200, 2)
    assert [level.level for level in measured.bandwidths] == ["L1", "L2", "L3", "memory"]
    assert {(level.read_gbytes_per_s_one, level.read_gbytes_per_s_all) for level in measured.bandwidths} == {(10, 20)}
    assert (measured.fork_join_spinning_us, measured.fork_join_parked_us) == (0.2, 5.0)
    assert (measured.quiet_share, measured.is_quiet) == (0.95, True)
    assert [counter.unavailable is None for counter in measured.counters] == [True, False]
    assert (measured.power, measured.energy_unavailable is None) == ((), False)


def test_one_thread_has_nothing_to_join(tmp_path: Path) -> None:
    identity = msgspec.structs.replace(IDENTITY, cpus_allowed=1)
    measured = measure_rates(identity, FakeNative(), {3}, tmp_path)
    assert (measured.fork_join_spinning_us, measured.fork_join_parked_us) == (None, None)


def test_no_counter_is_made_up(tmp_path: Path) -> None:
    measured = measure_rates(IDENTITY, FakeNative(counter_error=errno.ENOSYS), {0, 1}, tmp_path)
    assert all(counter.unavailable for counter in measured.counters)


def test_energy_is_that_of_the_peak(tmp_path: Path) -> None:
    zone = "sys/class/powercap/intel-rapl:0"
    files = {f"{zone}/name": "package-0", f"{zone}/energy_uj": "0", f"{zone}/max_energy_range_uj": "9000000"}
    root = write_tree(tmp_path, files)

    class Burning(FakeNative):
        def machine_fma_gflops(self, cpus: list[int]) -> tuple[float, float]:
            write_tree(root, {f"{zone}/energy_uj": str(500_000 * len(cpus))})
            return super().machine_fma_gflops(cpus)

    (power,) = measure_rates(IDENTITY, Burning(), {0, 1}, root).power
    assert power.zone == "package-0"
    assert power.peak_watts > 0


def test_energy_that_stops_answering_costs_no_figure_but_its_own(tmp_path: Path) -> None:
    zone = "sys/class/powercap/intel-rapl:0"
    files = {f"{zone}/name": "package-0", f"{zone}/energy_uj": "0", f"{zone}/max_energy_range_uj": "9"}
    root = write_tree(tmp_path, files)

    class Unplugging(FakeNative):
        def machine_fma_gflops(self, cpus: list[int]) -> tuple[float, float]:
            (root / zone / "energy_uj").unlink(missing_ok=len(cpus) > 1)
            write_tree(root, files if len(cpus) == 1 else {})
            return super().machine_fma_gflops(cpus)

    measured = measure_rates(IDENTITY, Unplugging(), {0, 1}, root)
    assert (measured.fma_gflops_all, measured.power) == (200, ())
    assert measured.energy_unavailable is not None
    assert "stopped answering" in measured.energy_unavailable


def test_working_sets_lie_in_their_level() -> None:
    sets = list(working_sets(IDENTITY.caches, threads=2, spare_bytes=1 << 30))
    assert [(level.level, level.bytes_one // KIB, level.bytes_all // KIB) for level in sets] == [
        ("L1", 16, 16),
        ("L2", 32 + 512, 32 + 512),
        ("L3", 1024 + 8192, 1024 + 8192),
        ("memory", 128 * KIB, 64 * KIB),
    ]
    assert all(level.reaches_one and level.reaches_all for level in sets)


def test_siblings_share_the_caches_before_the_last() -> None:
    caches = (Cache(1, "data", 32 * KIB, 64, 2), Cache(2, "unified", 2 * MIB, 64, 2))
    second = list(working_sets(caches, threads=2, spare_bytes=1 << 30))[1]
    assert (second.bytes_one, second.bytes_all) == (32 * KIB + MIB // 2, 16 * KIB + MIB // 2)


def test_caches_too_large_for_the_limit_leave_memory_unmeasured(tmp_path: Path) -> None:
    caches = (Cache(3, "unified", 200 * MIB, 64, 2),)
    memory = list(working_sets(caches, threads=4, spare_bytes=1 << 40))[-1]
    assert memory.bytes_one <= MAX_WORKING_SET_BYTES
    assert not memory.reaches_one
    identity = msgspec.structs.replace(IDENTITY, caches=caches)
    last = measure_rates(identity, FakeNative(), {0, 1}, tmp_path).bandwidths[-1]
    assert (last.level, last.read_gbytes_per_s_one, last.read_gbytes_per_s_all) == ("memory", None, None)


def test_many_last_caches_can_be_passed_by_one_thread_only() -> None:
    caches = (Cache(3, "unified", 32 * MIB, 64, 2),)
    memory = list(working_sets(caches, threads=24, spare_bytes=1 << 40))[-1]
    assert (memory.reaches_one, memory.reaches_all) == (True, False)


@pytest.mark.parametrize("memory_bytes", [64 * MIB, 512 * MIB])
def test_a_small_container_is_not_filled(tmp_path: Path, memory_bytes: int) -> None:
    native = FakeNative()
    measure_rates(msgspec.structs.replace(IDENTITY, memory_bytes=memory_bytes), native, {0, 1}, tmp_path)
    assert all(len(cpus) * bytes_each <= memory_bytes // 16 for cpus, bytes_each in native.reads)


def test_without_caches_memory_is_measured() -> None:
    (memory,) = working_sets((), threads=2, spare_bytes=1 << 40)
    assert (memory.level, memory.bytes_one, memory.bytes_all) == ("memory", 256 * MIB, 128 * MIB)


def test_a_quota_takes_whole_cores_first(tmp_path: Path) -> None:
    assert one_cpu_per_core_first([[0, 4], [1, 5], [2]]) == [0, 1, 2, 4, 5]
    native = FakeNative()
    identity = msgspec.structs.replace(IDENTITY, cpus_allowed=4, quota_cpus=2.0)
    siblings = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": pair
        for cpu, pair in enumerate(("0-1", "0-1", "2-3", "2-3"))
    }
    measure_rates(identity, native, {0, 1, 2, 3}, write_tree(tmp_path, siblings))
    assert native.peaks == [[0], [0, 2]]
