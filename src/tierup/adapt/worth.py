"""Which job comes first: (calls a second × seconds saved in each × how surely they keep coming) ÷ cost of building."""

from __future__ import annotations

import msgspec

# The share of a call's time that a tier saves, before anything was measured: kernels are some ten times as fast as the
# baseline, closed sizes save a tenth of what open ones take.
_SAVED = {1: 0.9, 2: 0.1}
_UNKNOWN_CALL_S = 1e-3  # of a model that was not called yet
_STALE_CALLS = 64  # without one of the signature: it stopped coming
_SURE_CALLS = 16  # of the last ones that were timed, to say which signatures come


class Demand(msgspec.Struct, frozen=True):
    """How a model is called: how often in all, how long one call takes lately (0: not known), and which share of the
    last `looked` calls that were timed a job would serve."""

    calls: int
    call_s: float
    share: float
    looked: int


def saved_cores(tier: int, before: Demand, now: Demand, waited_s: float) -> float:
    """Seconds that calls would have taken less, in a second, since it was queued. A first call that is not answered yet
    has taken all of that time; another that has just begun has not taken any, but counts: so at least one call's time
    has passed."""
    call_s = now.call_s or waited_s
    return (now.calls - before.calls) * call_s * _SAVED[tier] * now.share / max(waited_s, call_s, 1e-3)


def worth(tier: int, before: Demand, now: Demand, waited_s: float, cost_s: float) -> float:
    """Seconds saved in a second of serving, for a second of building. A call and a second are added, so that a model
    that was just loaded counts as one that is called once a second."""
    rate = (now.calls - before.calls + 1) / (waited_s + 1)
    return rate * (now.call_s or _UNKNOWN_CALL_S) * _SAVED[tier] * now.share / max(cost_s, 1e-3)


def why_stale(before: Demand, now: Demand) -> str:
    """Why nobody needs a job any more that was queued with this demand; empty if somebody may."""
    calls = now.calls - before.calls
    if now.share == 0 and calls >= _STALE_CALLS and now.looked >= _SURE_CALLS:
        return f"none of the last calls came with it, of {calls} since it was queued"
    return ""
