"""How figures look: times with a unit that suits, medians with their quartiles."""

from __future__ import annotations

import math

from tierup.bench.record import Spread


def time_text(us: float) -> str:
    """Three digits and a unit that suits."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def spread_text(spread: Spread) -> str:
    """The median with its quartiles, in the median's unit."""
    size = next((size for size in (1e6, 1e3) if spread.median >= size), 1.0)
    unit = {1e6: "s", 1e3: "ms", 1.0: "µs"}[size]
    return f"{digits(spread.median / size)} ({digits(spread.low / size)}-{digits(spread.high / size)}) {unit}"


def digits(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 100 or value == 0:
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"
