"""What building has taken so far, as a row of the store: sums that processes add to."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Stage = Literal["plan", "compile", "prove", "try"]

_FORGET_AFTER = 256  # climbs; then what is older counts half


class BuildCost(msgspec.Struct, frozen=True, tag="build cost", forbid_unknown_fields=True):
    """One stage of the climbs to a tier, of models of about one size (2^(size - 1) nodes or more, less than 2^size):
    how many there were, the seconds of one core that they took together, and the most memory that a worker had."""

    key: Annotated[str, Meta(min_length=1, max_length=200)]
    machine: Annotated[str, Meta(min_length=1, max_length=200)]
    tier: Annotated[int, Meta(ge=1, le=2)]
    stage: Stage
    size: Annotated[int, Meta(ge=0, le=64)]
    climbs: Annotated[int, Meta(ge=1, le=1 << 20)]
    core_s: Annotated[float, Meta(ge=0, le=1e9)]
    peak_bytes: Annotated[int, Meta(ge=0, le=2**53)]

    def __add__(self, other: BuildCost) -> BuildCost:
        """Both together; what is much older counts less and less."""
        climbs, core_s = self.climbs + other.climbs, self.core_s + other.core_s
        if climbs > _FORGET_AFTER:
            climbs, core_s = climbs // 2, core_s / 2
        peak = max(self.peak_bytes, other.peak_bytes)
        return msgspec.structs.replace(self, climbs=climbs, core_s=core_s, peak_bytes=peak)


def cost_key(machine: str, tier: int, stage: str, size: int) -> str:
    """What a row is kept under."""
    return f"{machine[:150]} {tier} {stage} {size}"
