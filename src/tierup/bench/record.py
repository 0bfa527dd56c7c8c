"""What a benchmark found: plain, typed data that prints, compares and is written as JSON.

Times of calls come in as nanoseconds, one array a round; medians, quartiles and ratios go out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from tierup.bench.answers import Agreement
from tierup.bench.contenders import Contender, Settings
from tierup.ir.types import Array

OURS = "tierup"
LATE_S = 1.0  # after which a cold process should have found its feet

Cache = Literal["warm", "empty"]
"""What a cold process finds on disk: what a run before it left there, or nothing."""


class Spread(msgspec.Struct, frozen=True):
    """A median with its quartiles."""

    median: float
    low: float
    high: float


class Trial(msgspec.Struct, frozen=True):
    """Settings that were tried before measuring: what the median call took, or why they could not be run."""

    settings: Settings
    call_us: float | None = None
    why_not: str | None = None


class FirstAnswer(msgspec.Struct, frozen=True):
    """From the start of a process to its first answer, in milliseconds, and the medians of its stages.

    What a contender keeps on disk was there, except for `cold_ms`: one start with nothing there.
    """

    total_ms: Spread
    start_ms: float
    import_ms: float
    load_ms: float
    call_ms: float
    cold_ms: float | None = None


class MemoryUse(msgspec.Struct, frozen=True):
    """Of the serving process above its bare import, and of the processes that it started."""

    peak_bytes: int
    resident_bytes: int
    import_bytes: int
    workers_peak_bytes: int


class Figures(msgspec.Struct, kw_only=True):
    """What was measured of one contender. A series has one entry a round (or, with traffic, one a run)."""

    version: str
    settings: Settings
    trials: list[Trial]
    calls: int
    call_us: Spread
    """Over rounds, of the median call."""
    p99_us: float
    """Of all calls: a call that was made; of fewer than 100, the slowest."""
    p999_us: float
    late_p999_us: float | None
    """The same of the calls that began a second or more after the first one of their round or run; None if none did."""
    total_s: Spread
    """Over runs, of all calls of the traffic; over rounds, of the calls that were made."""
    series: list[float]
    """What ratios are made of: the median call of each round, or the total of each run."""
    first_answer: FirstAnswer | None = None
    memory: MemoryUse | None = None
    answers: Agreement | None = None
    details: dict[str, Any] = {}


class Entry(msgspec.Struct, kw_only=True):
    """One row: figures, or the reason why there are none."""

    contender: str
    precision: str
    is_peer: bool
    status: Literal["measured", "missing", "failed"]
    why: str | None = None
    figures: Figures | None = None


class Ratio(msgspec.Struct, frozen=True):
    """The best peer's time over Tierup's, round by round."""

    peer: str
    ratio: Spread
    series: list[float]


class Record(msgspec.Struct, kw_only=True):
    """One benchmark of one model."""

    kind: Literal["rounds", "traffic"]
    cache: Cache | None = None
    """Of the processes of a traffic; None with rounds."""
    model: str
    inputs: dict[str, str]
    machine: str
    threads: int
    python: str
    date: str
    rounds: int
    seconds: float | None
    """Of one round; None with traffic."""
    entries: list[Entry]
    ratio: Ratio | None
    why_no_ratio: str | None
    others_share: float
    """Of the machine's processors, taken by other work (and other guests) while something was measured."""

    @property
    def measured(self) -> dict[str, Figures]:
        return {entry.contender: entry.figures for entry in self.entries if entry.figures is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` writes it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def spread(values: Iterable[float]) -> Spread:
    low, middle, high = np.quantile(list(values), [0.25, 0.5, 0.75]).tolist()
    return Spread(middle, low, high)


def figures(
    rounds_ns: Sequence[Array],
    series_of: Literal["median", "total"],
    version: str,
    settings: Settings,
    trials: list[Trial],
) -> Figures:
    """The figures of a contender's calls."""
    every = np.concatenate(rounds_ns)
    medians = [float(np.median(times)) / 1e3 for times in rounds_ns]
    totals = [float(times.sum()) / 1e9 for times in rounds_ns]
    late = np.concatenate([times[np.cumsum(times) - times >= LATE_S * 1e9] for times in rounds_ns])
    return Figures(
        version=version,
        settings=settings,
        trials=trials,
        calls=len(every),
        call_us=spread(medians),
        p99_us=_tail(every, 0.99),
        p999_us=_tail(every, 0.999),
        late_p999_us=_tail(late, 0.999) if late.size else None,
        total_s=spread(totals),
        series=medians if series_of == "median" else totals,
    )


def _tail(times_ns: Array, share: float) -> float:
    return float(np.quantile(times_ns, share, method="higher")) / 1e3


def best_peer(entries: Iterable[Entry]) -> tuple[Ratio | None, str | None]:
    """The fastest peer with right answers over Tierup; otherwise why there is no ratio."""
    rows = {entry.contender: entry for entry in entries}
    ours = rows[OURS].figures
    if ours is None:
        return None, "Tierup was not measured"
    if ours.answers is not None and not ours.answers.agrees:
        return None, f"Tierup's answers differ from those of {ours.answers.reference}"
    peers = {
        name: row.figures
        for name, row in rows.items()
        if row.is_peer and row.figures and (row.figures.answers is None or row.figures.answers.agrees)
    }
    if not peers:
        return None, "no peer was measured"
    name = min(peers, key=lambda name: float(np.median(peers[name].series)))
    series = [theirs / mine for theirs, mine in zip(peers[name].series, ours.series, strict=True)]
    return Ratio(name, spread(series), series), None


def geometric_mean(records: Mapping[str, Record]) -> float | None:
    """Of the best peers' ratios; None where one of them is missing, since a mean of the rest would flatter."""
    ratios = [record.ratio.ratio.median for record in records.values() if record.ratio is not None]
    if not ratios or len(ratios) < len(records):
        return None
    return float(np.exp(np.mean(np.log(ratios))))


def missing(contender: Contender, why: str) -> Entry:
    return _entry(contender, "missing", why)


def failed(contender: Contender, why: str) -> Entry:
    return _entry(contender, "failed", why)


def measured(contender: Contender, found: Figures) -> Entry:
    entry = _entry(contender, "measured", None)
    entry.figures = found
    return entry


def _entry(contender: Contender, status: Literal["measured", "missing", "failed"], why: str | None) -> Entry:
    return Entry(
        contender=contender.name,
        precision=contender.precision,
        is_peer=contender.is_peer,
        status=status,
        why=why,
    )
