"""Fakes at the two borders of the fingerprint: the kernel's files, and the native measurements."""

import errno
from pathlib import Path

from tierup.profile.identity import Cache, Identity
from tierup.profile.machine import Machine
from tierup.profile.measured import measure_rates

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
microcode\t: 0x1000065
flags\t\t: fpu fma sse4_2 avx f16c avx2 bmi2 avx512f avx512_bf16 hypervisor amx_tile

processor\t: 1
vendor_id\t: SomebodyElse
"""

IDENTITY = Identity(
    architecture="x86_64",
    vendor="AuthenticAMD",
    name="AMD EPYC",
    family=25,
    model=17,
    stepping=1,
    microcode="0x1000065",
    hypervisor="KVM",
    features=("avx2", "fma"),
    cpus_online=2,
    cpus_allowed=2,
    cores_allowed=2,
    quota_cpus=None,
    numa_nodes=1,
    memory_bytes=24 << 30,
    caches=(
        Cache(1, "data", 32 << 10, 64, 1),
        Cache(2, "unified", 1 << 20, 64, 1),
        Cache(3, "unified", 32 << 20, 64, 2),
    ),
)


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """A file system of the kernel's, with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class FakeNative:
    """Measurements with made-up figures; keeps the calls."""

    def __init__(self, quiet: float = 1.0, fork_join_us: tuple[float, float] = (0.2, 5.0), counter_error: int = 0):
        self.quiet, self.fork_join_us, self.counter_error = quiet, fork_join_us, counter_error
        self.reads: list[tuple[list[int], int]] = []
        self.peaks: list[list[int]] = []

    def machine_fma_gflops(self, cpus: list[int]) -> tuple[float, float]:
        self.peaks.append(cpus)
        return 100.0 * len(cpus), self.quiet

    def machine_read_gbytes_per_s(self, cpus: list[int], bytes_each: int) -> tuple[float, float]:
        self.reads.append((cpus, bytes_each))
        return 10.0 * len(cpus), 1.0

    def machine_fork_join_us(self, threads: int) -> tuple[float, float, float]:
        return (*(self.fork_join_us if threads > 1 else (0.0, 0.0)), 1.0)

    def machine_counter_errors(self) -> list[tuple[str, int]]:
        return [("cycles", self.counter_error), ("branch misses", errno.ENOENT)]

    def machine_vector_isa(self) -> str:
        return "avx512f"

    def machine_hypervisor(self) -> str:
        return "KVMKVMKVM"


def fake_machine(identity: Identity = IDENTITY, quiet: float = 1.0) -> Machine:
    """A complete record, without any measurement."""
    nowhere = Path("/nonexistent")
    return Machine(1, identity, measure_rates(identity, FakeNative(quiet), {0, 1}, nowhere))
