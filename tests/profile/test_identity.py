"""The identity is read off fake /proc and /sys trees: complete, sparse, and rubbish."""

from pathlib import Path

import msgspec
import pytest
from tests.profile.fakes import CPUINFO, IDENTITY, write_tree

from tierup.profile.identity import Cache, Identity, cores, identify

CPU = "sys/devices/system/cpu"


def cache_files(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"{CPU}/cpu{cpu}/cache/index{index}"
    values = {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared, "coherency_line_size": "64"}
    return {f"{folder}/{name}": value + "\n" for name, value in values.items()}


def test_a_complete_machine(tmp_path: Path) -> None:
    siblings = {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}\n" for cpu in range(8)}
    caches = {
        **cache_files(1, 0, 1, "Data", "32K", "1,5"),
        **cache_files(1, 1, 1, "Instruction", "32K", "1,5"),
        **cache_files(1, 2, 2, "Unified", "1024K", "1,5"),
        **cache_files(1, 3, 3, "Unified", "32M", "0-7"),
    }
    rest = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemTotal:       24684100 kB\nMemFree: 1 kB\n",
        f"{CPU}/online": "0-7\n",
        "sys/devices/system/node/online": "0-1\n",
    }
    root = write_tree(tmp_path, siblings | caches | rest)
    identity = identify(root, {1, 5, 2}, "x86_64", lambda: "KVMKVMKVM")
    assert identity == Identity(
        architecture="x86_64",
        vendor="AuthenticAMD",
        name="AMD EPYC",
        family=25,
        model=17,
        stepping=1,
        microcode="0x1000065",
        hypervisor="KVM",
        features=("amx_tile", "avx", "avx2", "avx512_bf16", "avx512f", "bmi2", "f16c", "fma", "sse4.2"),
        cpus_online=8,
        cpus_allowed=3,
        cores_allowed=2,
        quota_cpus=None,
        numa_nodes=2,
        memory_bytes=24684100 << 10,
        caches=(
            Cache(1, "data", 32 << 10, 64, 2),
            Cache(2, "unified", 1 << 20, 64, 2),
            Cache(3, "unified", 32 << 20, 64, 8),
        ),
    )
    assert identity.threads == 3
    assert cores(root, {1, 5, 2}) == [[1, 5], [2]]


def test_an_arm_machine(tmp_path: Path) -> None:
    info = "processor\t: 0\nFeatures\t: fp asimd asimddp sve bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    identity = identify(write_tree(tmp_path, {"proc/cpuinfo": info}), {0}, "aarch64")
    assert identity.features == ("bf16", "dotprod", "neon", "sve")
    assert (identity.vendor, identity.name, identity.model) == ("0x41", "part 0xd40", 0xD40)
    assert identity.hypervisor is None


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    identity = identify(tmp_path, {0, 1}, "riscv64")
    assert (identity.vendor, identity.features, identity.caches, identity.memory_bytes) == ("unknown", (), (), None)
    assert (identity.cpus_online, identity.cores_allowed, identity.numa_nodes, identity.threads) == (2, 2, 1, 2)


def test_rubbish_is_not_believed(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "cpu family: -3\nmodel: 99999999999999999999\nmodel name: \x1b[31mred\x07" + "x" * 500,
        "proc/meminfo": "MemTotal:",
        "proc/self/cgroup": "garbage\n0::/../../etc\n:::\n",
        f"{CPU}/online": "0-99999999999",
        **cache_files(0, 0, 1, "Data", "", "0"),
        **cache_files(0, 1, 2, "Unified", "-5K", "zero"),
        **cache_files(0, 2, 77, "Unified", "1M", "0"),
    }
    identity = identify(write_tree(tmp_path, files), {0}, "x86_64")
    assert (identity.family, identity.model, identity.caches, identity.cpus_online) == (0, 0, (), 1)
    assert identity.name.isprintable()
    assert len(identity.name) <= 200
    msgspec.convert(msgspec.to_builtins(identity), Identity)  # within the record's own bounds


V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "7:memory:/a\n4:cpu,cpuacct:/a/b\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        (V2, None),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "400000 100000", "sys/fs/cgroup/a/cpu.max": "200000 100000"}, 2.0),
        (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),  # in a container the path is the host's
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "1 0"}, None),
        (V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        (
            V1
            | {
                "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
    ],
)
def test_quotas(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert identify(write_tree(tmp_path, files), {0}, "x86_64").quota_cpus == quota


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (16.0, 8), (3.9, 3), (0.5, 1)])
def test_threads_stay_within_the_quota(quota: float | None, threads: int) -> None:
    assert msgspec.structs.replace(IDENTITY, cpus_allowed=8, quota_cpus=quota).threads == threads


@pytest.mark.parametrize(
    ("cgroup", "limit", "expected"),
    [
        ("0::/a", {"sys/fs/cgroup/a/memory.max": str(8 << 30)}, 8 << 30),
        ("0::/a", {"sys/fs/cgroup/a/memory.max": "max"}, 16 << 30),
        ("4:memory:/a", {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(1 << 30)}, 1 << 30),
        ("4:memory:/a", {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712"}, 16 << 30),
    ],
)
def test_memory_is_what_the_group_may_use(tmp_path: Path, cgroup: str, limit: dict[str, str], expected: int) -> None:
    files = {"proc/meminfo": f"MemTotal: {16 << 20} kB", "proc/self/cgroup": cgroup, **limit}
    assert identify(write_tree(tmp_path, files), {0}, "x86_64").memory_bytes == expected


@pytest.mark.parametrize("field", ["microcode", "hypervisor", "memory_bytes"])
def test_the_key_names_the_hardware_only(field: str) -> None:
    assert msgspec.structs.replace(IDENTITY, **{field: None}).key == IDENTITY.key


@pytest.mark.parametrize(
    ("field", "value"),
    [("features", ("fma",)), ("cpus_allowed", 1), ("model", 18), ("caches", ()), ("quota_cpus", 1.0), ("name", "x")],
)
def test_the_key_changes_with_the_hardware(field: str, value: object) -> None:
    assert msgspec.structs.replace(IDENTITY, **{field: value}).key != IDENTITY.key


def test_this_machine_has_an_identity() -> None:
    identity = identify()
    assert identity.threads >= 1
    assert identity.key == identify().key
