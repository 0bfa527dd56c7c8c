"""What the store keeps, as bounded typed records. A row that does not decode into its record is not used.

Recipes and measurements only: machine code never lies here, nor anything of a call's data.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tierup.store.build_cost import BuildCost

_Key = Annotated[str, Meta(min_length=1, max_length=200)]
_Text = Annotated[str, Meta(max_length=2000)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Micros = Annotated[float, Meta(ge=0, le=1e12)]
_Share = Annotated[float, Meta(ge=-1e9, le=1)]
_Units = Annotated[float, Meta(ge=0, le=1e30)]


class Machine(msgspec.Struct, frozen=True, tag="machine", forbid_unknown_fields=True):
    """A machine that something was measured on."""

    key: _Key
    processor: _Text
    architecture: _Text
    cores: Annotated[int, Meta(ge=1, le=1 << 20)]


class Region(msgspec.Struct, frozen=True, tag="region", forbid_unknown_fields=True):
    """What a kernel computes: the SHA-256 of its tile program's text, and its first line."""

    key: _Key
    head: _Text
    chars: _Count


class Recipe(msgspec.Struct, frozen=True, tag="recipe", forbid_unknown_fields=True):
    """How a region was compiled: the parts of its key in the object cache."""

    key: _Key
    region: _Key
    recipe: _Text
    target: _Text
    emitter: _Text
    llvm: _Text


class Measurement(msgspec.Struct, frozen=True, tag="measurement", forbid_unknown_fields=True):
    """A proof of a kernel (errors in units of eps · B) or a trial of a plan (times)."""

    key: _Key
    machine: _Key
    what: Literal["proof", "trial"]
    subject: _Key
    signature: _Text = ""
    worst: _Units = 0.0
    rms: _Units = 0.0
    rms_baseline: _Units = 0.0
    incumbent_us: _Micros = 0.0
    candidate_us: _Micros = 0.0
    gain: _Share = 0.0
    margin: _Units = 0.0
    pairs: _Count = 0


class Profile(msgspec.Struct, frozen=True, tag="profile", forbid_unknown_fields=True):
    """How long live calls of one signature took."""

    key: _Key
    machine: _Key
    model: _Text
    signature: _Text
    tier: Annotated[int, Meta(ge=0, le=2)]
    calls: _Count
    p50_us: _Micros
    p90_us: _Micros
    p99_us: _Micros


class RegionProfile(msgspec.Struct, frozen=True, tag="region_profile", forbid_unknown_fields=True):
    """How long the runs of a region's kernel took, in calls of one signature on one machine: the last of them, the
    oldest first, and their quantiles. `counts` are sums over the `counted` runs. Written again, it adds up."""

    key: _Key
    machine: _Key
    region: _Key
    signature: _Text
    runs: _Count
    times_us: Annotated[tuple[_Micros, ...], Meta(min_length=1, max_length=64)]
    counters: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=8)] = ()
    counts: Annotated[tuple[_Units, ...], Meta(max_length=8)] = ()
    counted: _Count = 0

    def after(self, earlier: RegionProfile) -> RegionProfile:
        """Both together; `earlier` is what was known before."""
        same = earlier.counters == self.counters and len(earlier.counts) == len(self.counts)
        counts = tuple(min(a + b, 1e30) for a, b in zip(earlier.counts, self.counts, strict=True)) if same else ()
        return msgspec.structs.replace(
            self,
            runs=min(earlier.runs + self.runs, 2**53),
            times_us=(*earlier.times_us, *self.times_us)[-64:],
            counts=counts if same else self.counts,
            counted=min(earlier.counted + self.counted, 2**53) if same else self.counted,
        )

    def quantile(self, share: float) -> float:
        """The smallest time that at least this share is no larger than."""
        return sorted(self.times_us)[max(0, ceil(share * len(self.times_us)) - 1)]


class Decision(msgspec.Struct, frozen=True, tag="decision", forbid_unknown_fields=True):
    """What became of a plan. The key names the model's content, what made the plan, and its signatures."""

    key: _Key
    machine: _Key
    model: _Text
    tier: Annotated[int, Meta(ge=0, le=2)]
    outcome: Literal["swapped", "refused", "unclear", "rolled back", "quarantined"]
    reason: _Text
    failures: Annotated[int, Meta(ge=0, le=1000)] = 0


class Quarantine(msgspec.Struct, frozen=True, tag="quarantine", forbid_unknown_fields=True):
    """A kernel that gave wrong answers in service, by its key in the object cache."""

    key: _Key
    machine: _Key
    reason: _Text


Row = Machine | Region | Recipe | Measurement | Profile | RegionProfile | Decision | Quarantine | BuildCost

# How many of each are kept: those that were used last.
LIMITS: dict[type[Row], int] = {
    Machine: 64,
    Region: 20_000,
    Recipe: 20_000,
    Measurement: 50_000,
    Profile: 10_000,
    RegionProfile: 50_000,
    Decision: 10_000,
    Quarantine: 10_000,
    BuildCost: 10_000,
}
AGE_LIMIT_S = 180 * 86_400.0  # nothing that was not used for so long is kept


def name_of(kind: type[Row]) -> str:
    """The table that a kind of row lies in."""
    return str(kind.__struct_config__.tag)
