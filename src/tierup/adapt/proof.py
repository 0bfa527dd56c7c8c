"""What comes of a proof, as a worker says it: plain data, without what proving takes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

REASON_LIMIT_CHARS = 2000

_Count = Annotated[int, Meta(ge=0)]
_Number = Annotated[float, Meta(ge=0)]


class Proof(msgspec.Struct, frozen=True, tag="proof", forbid_unknown_fields=True):
    """`reason` says why a kernel may not serve. `worst` is the largest error in units of eps · B, `rms` and
    `rms_baseline` those of the kernel and of the baseline; `judged` elements could be compared. `narrowed` is what
    rounding to bf16 costs: the RMS error beside f32's answer in units of B."""

    passed: bool
    reason: Annotated[str, Meta(max_length=REASON_LIMIT_CHARS)]
    worst: _Number
    rms: _Number
    rms_baseline: _Number
    judged: _Count
    rounds: _Count
    seconds: _Number
    narrowed: _Number = 0.0


class Refusal(msgspec.Struct, frozen=True):
    """A kernel that may not serve, and why. What does not `last` may come of the moment: a worker that was killed, or
    had too little time."""

    slot: int
    reason: str
    lasts: bool = True
