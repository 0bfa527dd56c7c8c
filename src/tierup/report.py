"""What a model says about itself: tiers, nodes, memory, counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from tierup.config import BF16_ERROR_BOUND
from tierup.events import (
    Confirmed,
    Entry,
    NotKept,
    Quarantined,
    Refused,
    RolledBack,
    Strayed,
    Suspected,
    Swapped,
    Thinned,
    Tried,
    micros,
    shapes_text,
)  # fmt: skip
from tierup.runtime.progress import Counts, Signature
from tierup.store.records import KernelError

if TYPE_CHECKING:
    from tierup.adapt.sampling import Sample

_DECISIONS = (Strayed, Tried, Swapped, Confirmed, Suspected, Thinned, RolledBack, Refused, Quarantined, NotKept)
_SHOWN = 12  # decisions in a printed report; `to_dict` has all that are kept
_SHOWN_REGIONS, _SHOWN_INPUTS = 8, 16


class Report(Struct, frozen=True):
    """A snapshot. `str()` is for people, `to_dict()` for programs."""

    name: str
    ops: dict[str, int]
    weights_bytes: int
    threads: int
    calls: int
    settled: bool
    reason: str
    counts: Counts
    tier: int = 0
    signatures: tuple[Signature, ...] = ()
    facts: tuple[str, ...] = ()
    """What some of the kernels for these rely on, in words."""
    strays: tuple[Signature, ...] = ()
    """Calls like these have functions of their own, since sizes differ in them that are taken to be equal."""
    kernels: int = 0
    kernel_steps: int = 0
    fallback_nodes: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    """Regions that the reference computes because their kernels were refused, and why."""
    deopts: int = 0
    errors: tuple[tuple[int, KernelError], ...] = ()
    checked: int = 0
    """Live calls that the baseline answered again in a worker."""
    sampled_every: int = 0
    """After how many calls the next one is; 0 if none was so far."""
    evidence: tuple[tuple[Sample, str], ...] = ()
    """Wrong answers with their inputs, and what is wrong with them: in memory only."""
    events: tuple[Entry, ...] = ()
    events_dropped: int = 0
    precision: str = "f32"
    profiles: dict[str, Any] = field(default_factory=dict)
    """What calls that were watched show, as plain data; empty if none is watched."""

    @property
    def nodes(self) -> int:
        """How many nodes the model has, bodies included."""
        return sum(self.ops.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the keys under "counters" are part of the API."""
        counts = self.counts
        return {
            "model": self.name,
            "settled": self.settled,
            "tier": self.tier,
            "reason": self.reason,
            "signatures": [list(map(list, signature)) for signature in self.signatures],
            "facts": list(self.facts),
            "strays": [list(map(list, signature)) for signature in self.strays],
            "kernels": self.kernels,
            "refused_regions": [{"region": region, "reason": reason} for region, reason in self.refused],
            "nodes": self.nodes,
            "ops": dict(self.ops),
            "threads": self.threads,
            "precision": self.precision,
            "memory": {"weights_bytes": self.weights_bytes},
            "proofs": [
                {"kernel": slot, **{name: getattr(error, name) for name in error.__struct_fields__}}
                for slot, error in sorted(self.errors, key=lambda entry: entry[0])
            ],
            "checked_calls": self.checked,
            "checked_every_calls": self.sampled_every,
            "evidence": [{"call": sample.number, "reason": reason} for sample, reason in self.evidence],
            "events": [entry.to_dict() for entry in self.events],
            "events_dropped": self.events_dropped,
            "profiles": self.profiles,
            "cache": {
                "plan_hits": counts.plan_hits,
                "plan_misses": counts.plan_misses,
                "object_hits": counts.object_hits,
                "object_misses": counts.object_misses,
            },
            "counters": {
                "calls": self.calls,
                "builds": counts.builds,
                "swaps": counts.swaps,
                "rollbacks": counts.rollbacks,
                "refusals": counts.refusals,
                "quarantined": counts.quarantined,
                "deopts": self.deopts,
                "plans": 1 + counts.swaps,
                "fallback_nodes": self.fallback_nodes,
            },
        }

    def __str__(self) -> str:
        common = sorted(self.ops.items(), key=lambda item: (-item[1], item[0]))
        listed = ", ".join(f"{count} {op}" for op, count in common[:8]) + (", …" if len(common) > 8 else "")
        how = (
            f"tier {self.tier}, {self.kernel_steps} kernel steps with {self.kernels} kernels"
            if self.tier
            else "tier 0 (reference)"
        )
        lines = [
            f"model {self.name!r}: {how}, {'settled' if self.settled else 'kernels are being built'}",
            f"  {self.nodes} nodes: {listed}",
            f"  {self.fallback_nodes} nodes run in the reference tier",
            *(f"    {region} was refused: {reason}" for region, reason in self.refused),
            f"  {self._made()}",
            f"  weights {self.weights_bytes / 2**20:.1f} MiB, {self.threads} threads, {self.calls} calls",
        ]
        if self.errors:
            lines.append(self._proved())
        if self.precision == "bf16":
            lines.append(f"  {self._rounded()}")
        lines += observed_lines(self.profiles)
        lines += self._decisions()
        if self.signatures:
            closed = "; ".join(" ".join("×".join(map(str, shape)) for shape in s) for s in self.signatures)
            relying = f"; some kernels for these rely on it that {' and '.join(self.facts)}" if self.facts else ""
            lines.insert(1, f"  sizes closed for {closed}{relying}")
        if self.strays:
            like = shapes_text(self.strays)
            lines.insert(1, f"  calls like {like} have functions of their own, in which less is assumed of sizes")
        if self.reason:
            lines.insert(1, f"  {self.reason}")
        return "\n".join(lines)

    def _proved(self) -> str:
        """The kernel with the largest error, and the one that is worst beside the baseline."""
        slot, worst = max(((slot, error.worst) for slot, error in self.errors), key=lambda entry: entry[1])
        ratios = [(error.rms / error.rms_baseline, slot) for slot, error in self.errors if error.rms_baseline > 0]
        beside = f"; RMS at most {max(ratios)[0]:.2f} times the baseline's (kernel {max(ratios)[1]})" if ratios else ""
        return f"  {len(self.errors)} kernels proved: errors up to {worst:.2g} eps·B (kernel {slot}){beside}"

    def _decisions(self) -> list[str]:
        """What was decided lately, oldest first."""
        decided = [entry for entry in self.events if isinstance(entry.event, _DECISIONS)]
        if not decided:
            return []
        began_s = self.events[0].at_s
        return ["  decisions:"] + [
            f"    {entry.at_s - began_s:7.2f} s, call {entry.calls}: {entry.event}" for entry in decided[-_SHOWN:]
        ]

    def _rounded(self) -> str:
        """What bf16 costs: the bound, and what was measured."""
        narrowed = [(error.narrowed, slot) for slot, error in self.errors if error.narrowed > 0]
        bound = f"at most {BF16_ERROR_BOUND:.2g} of Σ|a·w| in each product"
        if not narrowed:
            return f"precision bf16: sides of products are rounded, {bound}; no kernel with such a product was measured"
        worst, slot = max(narrowed)
        measured = f"RMS up to {worst:.2g} B (kernel {slot})"
        return f"precision bf16: {len(narrowed)} kernels round their sides, {bound}; {measured}"

    def _made(self) -> str:
        counts = self.counts
        if counts.plan_hits:
            return "plan and kernels from the cache"
        return f"{counts.builds} kernels built, {counts.object_hits} from the cache, {self.deopts} calls turned away"


def observed_lines(profiles: dict[str, Any]) -> list[str]:
    """Profiles for people: the regions that took the most time, and what inputs are like."""
    if not profiles.get("watched_calls"):
        return []
    lines = [f"  watched {profiles['watched_calls']} calls:"]
    for signature in profiles["signatures"][:4]:
        lines.append(f"    {_shapes(signature['shapes'])}: {signature['per_s']:.3g} calls a second")
    total_us = sum(region["runs"] * region["p50_us"] for region in profiles["regions"]) or 1.0
    for region in profiles["regions"][:_SHOWN_REGIONS]:
        share = region["runs"] * region["p50_us"] / total_us
        counted = "".join(f", {count:.3g} {name}" for name, count in region["counters"].items())
        lines.append(
            f"    region {region['region'][:12]} for {_shapes(region['signature'])}: {100 * share:.0f}% of the time, "
            f"p50 {micros(region['p50_us'])}, p99 {micros(region['p99_us'])}{counted}"
        )
    if len(profiles["regions"]) > _SHOWN_REGIONS:
        lines.append(f"    … and {len(profiles['regions']) - _SHOWN_REGIONS} more")
    lines += [f"    input {_input(found)}" for found in profiles["inputs"][:_SHOWN_INPUTS]]
    if isinstance(profiles["counters"], str):
        lines.append(f"    counters: {profiles['counters']}")
    return lines


def _shapes(shapes: list[list[int] | None]) -> str:
    return " ".join("?" if shape is None else "×".join(map(str, shape)) or "()" for shape in shapes) or "no inputs"


def _input(found: dict[str, Any]) -> str:
    parts = []
    if found["zero_fraction"] is not None:
        parts.append(f"{100 * found['zero_fraction']:.0f}% zero")
    if found["min"] is not None:
        parts.append(f"{found['min']:.4g} to {found['max']:.4g}")
    if found["nonfinite"]:
        parts.append(f"{found['nonfinite']} of {found['looked']} not finite")
    if found["same_as_before"] is not None:
        parts.append(f"the same again in {100 * found['same_as_before']:.0f}% of the calls that were watched")
    return f"{found['name']!r}: {', '.join(parts) or 'nothing is known'}"
