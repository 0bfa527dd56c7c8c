"""Names the hardware that this process runs on, from what the kernel says in /proc and /sys.

In: the root of the file system and the CPUs this process may use. Out: an `Identity`, in a few milliseconds, without
any timing. What the kernel does not say is left at its neutral value (an empty tuple, None, one core), never guessed.
Two machines with the same `Identity.key` can share measurements.
"""

import math
import os
import platform
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tierup.digests import sha256

ROOT = Path("/")

Text = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=1, le=65_536)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]
Number = Annotated[int, Meta(ge=0, le=1 << 50)]

# The kernel's word -> ours, for the features that code generation or the cost model may ask for.
FEATURES = {
    "sse4_2": "sse4.2",
    **{word: word for word in ("avx", "avx2", "fma", "f16c", "bmi2", "avx_vnni")},
    **{word: word for word in ("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd")},
    **{word: word for word in ("avx512_vnni", "avx512_bf16", "avx512_fp16")},
    **{word: word for word in ("amx_tile", "amx_int8", "amx_bf16")},
    "asimd": "neon",
    "asimdhp": "fp16",
    "asimddp": "dotprod",
    **{word: word for word in ("bf16", "i8mm", "sve", "sve2", "sme")},
}

# What CPUID answers -> the name people use.
HYPERVISORS = {
    "KVMKVMKVM": "KVM",
    "Microsoft Hv": "Hyper-V",
    "VMwareVMware": "VMware",
    "XenVMMXenVMM": "Xen",
    "TCGTCGTCGTCG": "QEMU",
}

_MAX_READ_CHARS = 1 << 16  # enough for the first processors of /proc/cpuinfo; all of them can take 10 ms


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One data cache as one CPU sees it."""

    level: Annotated[int, Meta(ge=1, le=9)]
    kind: Literal["data", "unified"]
    size_bytes: Bytes
    line_bytes: Annotated[int, Meta(ge=1, le=4096)]
    shared_by: Count
    """Logical CPUs that share it, as the kernel (or the hypervisor) says."""

    @property
    def share_bytes(self) -> int:
        """What is left to each CPU when all of them are busy."""
        return self.size_bytes // self.shared_by


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hardware, and how much of it this process may use."""

    architecture: Text
    vendor: Text
    name: Text
    family: Number
    model: Number
    stepping: Number
    microcode: Text | None
    hypervisor: Text | None
    features: Annotated[tuple[Text, ...], Meta(max_length=64)]
    cpus_online: Count
    cpus_allowed: Count
    cores_allowed: Count
    quota_cpus: Annotated[float, Meta(gt=0, le=65_536)] | None
    numa_nodes: Count
    memory_bytes: Bytes | None
    caches: Annotated[tuple[Cache, ...], Meta(max_length=9)]

    @property
    def threads(self) -> int:
        """Threads worth starting. A quota is rounded down: beyond it the kernel stops all threads for the rest of
        each period."""
        if self.quota_cpus is None:
            return self.cpus_allowed
        return min(self.cpus_allowed, max(1, math.floor(self.quota_cpus)))

    @property
    def key_parts(self) -> dict[str, object]:
        """What measurements depend on, by name: a key that changed can be explained."""
        names = "architecture vendor name family model stepping features"
        counts = "cpus_allowed cores_allowed threads numa_nodes caches"
        return {name: getattr(self, name) for name in f"{names} {counts}".split()}

    @property
    def key(self) -> str:
        """A digest of `key_parts`: 32 hexadecimal digits."""
        return sha256(msgspec.json.encode(self.key_parts)).hexdigest()[:32]


def identify(
    root: Path = ROOT,
    allowed: Set[int] | None = None,
    architecture: str | None = None,
    hypervisor_signature: Callable[[], str] | None = None,
) -> Identity:
    """Asks the kernel. Everything but `root` is asked of the running system unless it is given."""
    allowed = allowed_cpus() if allowed is None else allowed
    info = _cpu_info(root)
    words = set((info.get("flags") or info.get("Features") or "").split())
    return Identity(
        architecture=_tidy(architecture or platform.machine()) or "unknown",
        vendor=info.get("vendor_id") or info.get("CPU implementer") or "unknown",
        name=info.get("model name") or " ".join(filter(None, ("part", info.get("CPU part", "unknown")))),
        family=_number(info.get("cpu family") or info.get("CPU architecture")),
        model=_number(info.get("model") or info.get("CPU part")),
        stepping=_number(info.get("stepping") or info.get("CPU revision")),
        microcode=info.get("microcode"),
        hypervisor=_hypervisor("hypervisor" in words, root, hypervisor_signature),
        features=tuple(sorted({FEATURES[word] for word in words if word in FEATURES})),
        cpus_online=len(_cpu_list(_read(root / "sys/devices/system/cpu/online"))) or len(allowed),
        cpus_allowed=len(allowed),
        cores_allowed=len(cores(root, allowed)),
        quota_cpus=_quota_cpus(root),
        numa_nodes=len(_cpu_list(_read(root / "sys/devices/system/node/online"))) or 1,
        memory_bytes=_memory_bytes(root),
        caches=_caches(root, min(allowed)),
    )


def allowed_cpus() -> frozenset[int]:
    """The logical CPUs that the scheduler may put this process on."""
    return frozenset(os.sched_getaffinity(0))


def cores(root: Path, allowed: Set[int]) -> list[list[int]]:
    """The allowed CPUs, grouped by the physical core they belong to, in order."""
    groups: dict[frozenset[int], list[int]] = {}
    for cpu in sorted(allowed):
        siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        groups.setdefault(_cpu_list(siblings) or frozenset({cpu}), []).append(cpu)
    return list(groups.values())


def _read(path: Path) -> str:
    """The beginning of a small file of the kernel's; empty where there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_READ_CHARS).strip()
    except OSError:
        return ""


def _tidy(text: str) -> str:
    """Fit to be stored and printed: it may come from a hypervisor, and it goes to a terminal."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:200]


def _number(text: str | None, neutral: int = 0) -> int:
    try:
        value = int(text or "", 0)
    except ValueError:
        return neutral
    return value if 0 <= value <= 1 << 50 else neutral


def _cpu_list(text: str) -> frozenset[int]:
    """'0-3,8' -> {0, 1, 2, 3, 8}; empty if it is anything else."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return frozenset()
        low, high = int(first), int(last or first)
        if high > 65_535:
            return frozenset()
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _cpu_info(root: Path) -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    first = _read(root / "proc/cpuinfo").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    # The flags are hundreds of words that nobody prints; all else is short.
    return {key.strip(): value if key.strip() in ("flags", "Features") else _tidy(value) for key, _, value in pairs}


def _hypervisor(flagged: bool, root: Path, signature: Callable[[], str] | None) -> str | None:
    known = _tidy(_read(root / "sys/hypervisor/type"))
    if not flagged and not known:
        return None
    name = _tidy(signature()) if signature else ""
    return HYPERVISORS.get(name, name) or known or "unnamed"


def _caches(root: Path, cpu: int) -> tuple[Cache, ...]:
    """The data caches of one CPU, the nearest first."""
    found = (_cache(index) for index in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*"))
    return tuple(sorted((cache for cache in found if cache), key=lambda cache: cache.level))[:9]


def _cache(index: Path) -> Cache | None:
    kind = _read(index / "type").lower()
    if kind not in ("data", "unified"):
        return None
    cache = {
        "level": _number(_read(index / "level")),
        "kind": kind,
        "size_bytes": _size_bytes(_read(index / "size")),
        "line_bytes": _number(_read(index / "coherency_line_size"), neutral=64) or 64,
        "shared_by": len(_cpu_list(_read(index / "shared_cpu_list"))) or 1,
    }
    try:
        return msgspec.convert(cache, Cache)
    except msgspec.ValidationError:  # some hypervisors leave sizes out
        return None


def _size_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return _number(text.rstrip("KMG")) * units.get(text[-1:], 1)


def _memory_bytes(root: Path) -> int | None:
    """The memory of the machine, or of the control group if that is less."""
    words = _read(root / "proc/meminfo").split()  # MemTotal:  24684100 kB …
    total = _number(words[1]) << 10 if words[:1] == ["MemTotal:"] and len(words) > 1 else 0
    limits = [_number(_read(folder / "memory.max")) for folder in _groups(root, "")]
    limits += [_number(_read(folder / "memory.limit_in_bytes")) for folder in _groups(root, "memory")]
    return min([total, *limits], key=lambda limit: limit or math.inf) or None


def _quota_cpus(root: Path) -> float | None:
    """The tightest CPU quota on the way from this process's control group to the root, in CPUs."""
    quotas = [_read(folder / "cpu.max").split() for folder in _groups(root, "")]
    v1_files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    quotas += [[_read(folder / file) for file in v1_files] for folder in _groups(root, "cpu")]
    numbers = ((_number(quota[0]), _number(quota[1])) for quota in quotas if len(quota) == 2)
    return min((quota / period for quota, period in numbers if quota and period), default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and its ancestors; controller "" means version 2.

    In a container the path may be the host's and lead nowhere; its ancestors end at the mount, which is the
    container's own group then.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(",") or ".." in path:
            continue
        tops = [mount, mount / "unified"] if controller == "" else [mount / controllers, mount / controller]
        for top in dict.fromkeys(tops):
            folder = top / path.lstrip("/")
            yield folder
            while folder != top:
                folder = folder.parent
                yield folder
