"""What a model says about itself: tiers, nodes, memory, counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """A snapshot. `str()` is for people, `to_dict()` for programs."""

    name: str
    nodes: int
    ops: dict[str, int]
    weights_bytes: int
    threads: int
    calls: int
    fallback_nodes: int
    kernels: int = 0
    kernel_steps: int = 0

    @property
    def tier(self) -> int:
        """1 where kernels run, 0 where the baseline does."""
        return 1 if self.kernels else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the keys under "counters" are part of the API."""
        return {
            "model": self.name,
            "settled": True,
            "tier": self.tier,
            "kernels": self.kernels,
            "nodes": self.nodes,
            "ops": dict(self.ops),
            "threads": self.threads,
            "memory": {"weights_bytes": self.weights_bytes},
            "counters": {
                "calls": self.calls,
                "builds": self.kernels,
                "swaps": 0,
                "rollbacks": 0,
                "refusals": 0,
                "quarantined": 0,
                "deopts": 0,
                "plans": 1,
                "fallback_nodes": self.fallback_nodes,
            },
        }

    def __str__(self) -> str:
        common = sorted(self.ops.items(), key=lambda item: (-item[1], item[0]))
        listed = ", ".join(f"{count} {op}" for op, count in common[:8]) + (", …" if len(common) > 8 else "")
        how = (
            f"tier 1, {self.kernel_steps} kernel calls of {self.kernels} kernels" if self.tier else "tier 0 (reference)"
        )
        return (
            f"model {self.name!r}: {how}, settled\n"
            f"  {self.nodes} nodes: {listed}\n"
            f"  {self.fallback_nodes} steps run in the reference tier\n"
            f"  weights {self.weights_bytes / 2**20:.1f} MiB, {self.threads} threads, {self.calls} calls"
        )
