"""Records as Markdown: the tables that docs/benchmarks.md shows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tierup.bench.record import OURS, Entry, Figures, Record, Spread, geometric_mean
from tierup.bench.text import digits

LOUD_SHARE = 0.05  # other work from which a row says that it was disturbed

WHY_CHARS = 240


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def header(*cells: str) -> str:
    return f"{row(*cells)}\n|{' --- |' * len(cells)}"


def print_summary(records: Mapping[str, Record], goals: Mapping[str, float] | None = None) -> None:
    """One row a case: the median call of everybody, the ratio with the best peer, and what that should be."""
    contenders = list(dict.fromkeys(entry.contender for record in records.values() for entry in record.entries))
    print(f"\n{header('case, µs', *contenders, 'best peer ÷ Tierup', *(['goal'] if goals else []))}")
    for case, record in records.items():
        entries = {entry.contender: entry for entry in record.entries}
        cells = [_call_cell(entries[name]) for name in contenders]
        settled = _call_note(entries[OURS]) if OURS in entries else ""
        goal = [_goal_cell(record, goals[case])] if goals else []
        print(row(case, *cells, ratio_cell(record) + disturbed_text(record) + settled, *goal))


def _call_cell(entry: Entry) -> str:
    return spread_cell(entry.figures.call_us) if entry.figures else entry.status


def _goal_cell(record: Record, goal: float) -> str:
    reached = record.ratio is not None and record.ratio.ratio.high >= goal
    return f"{goal:g}" if reached else f"{goal:g}, missed"


def _call_note(entry: Entry) -> str:
    return ", not settled" if entry.figures and entry.figures.details.get("settled") is False else ""


def print_mean(records: Mapping[str, Record]) -> None:
    """The geometric mean, and whom it leaves out."""
    whole = {case: record for case, record in records.items() if record.ratio is not None}
    absent = [case for case in records if case not in whole]
    mean = geometric_mean(whole)
    text = "none" if mean is None else f"{digits(mean)} over {len(whole)} cases"
    left_out = f"; without {', '.join(absent)}" if absent else ""
    print(f"\ngeometric mean of the ratios: {text}{left_out}")


def print_narrow(records: Mapping[str, Record]) -> None:
    """OpenVINO's median call in bf16 over Tierup's, where both were measured."""
    ratios = {}
    for case, record in records.items():
        ours, theirs = (record.measured.get(name) for name in ("tierup-bf16", "openvino-bf16"))
        if ours is not None and theirs is not None:
            ratios[case] = theirs.call_us.median / ours.call_us.median
    if ratios:
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        listed = ", ".join(f"{case} {digits(ratio)}" for case, ratio in ratios.items())
        print(
            f"\nin bf16, openvino-bf16 ÷ tierup-bf16: geometric mean {digits(mean)} over {len(ratios)} cases: {listed}"
        )


def print_details(records: Mapping[str, Record]) -> None:
    """One row a contender of each case."""
    columns = ("p99, µs", "first answer, ms", "cold, ms", "peak, MiB", "workers, MiB", "answers")
    print(f"\n{header('case', 'contender', 'settings', *columns)}")
    for case, record in records.items():
        for entry in record.entries:
            found = entry.figures
            if found is None:
                print(row(case, entry.contender, _why_cell(entry), *[""] * len(columns)))
                continue
            settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
            cold = found.first_answer.cold_ms if found.first_answer else None
            cells = [digits(found.p99_us), first_cell(found), "-" if cold is None else f"{cold:.0f}"]
            print(row(case, entry.contender, settings, *cells, *memory_cells(found), answers_cell(entry)))


def print_traffic(record: Record) -> None:
    """One row a contender: the time of all calls, and how long the slow ones took."""
    times = ("all calls, s", "p50, ms", "p99, ms", "p99.9, ms", "p99.9 after 1 s, ms", "first answer, ms")
    columns = (*times, "peak, MiB", "workers, MiB", "answers")
    print(f"\n{header('contender', *columns)}")
    for entry in record.entries:
        found = entry.figures
        if found is None:
            print(row(entry.contender, _why_cell(entry), *[""] * (len(columns) - 1)))
            continue
        tails = (found.call_us.median, found.p99_us, found.p999_us, found.late_p999_us)
        cells = ["-" if us is None else digits(us / 1e3) for us in tails]
        first = (first_cell(found), *memory_cells(found), answers_cell(entry))
        print(row(entry.contender, spread_cell(found.total_s), *cells, *first))
    print(f"\nbest peer ÷ Tierup, all calls: {ratio_cell(record)}{disturbed_text(record)}{_settled_text(record)}")


def _why_cell(entry: Entry) -> str:
    """Why there are no figures, on one line of the table; `--json` has all of it."""
    why = (entry.why or "").replace("|", "/")
    return f"{entry.status}: {why[:WHY_CHARS]}{'…' if len(why) > WHY_CHARS else ''}"


def spread_cell(spread: Spread) -> str:
    return f"{digits(spread.median)} ({digits(spread.low)}–{digits(spread.high)})"


def first_cell(found: Figures) -> str:
    return f"{found.first_answer.total_ms.median:.0f}" if found.first_answer else "-"


def memory_cells(found: Figures) -> tuple[str, str]:
    if found.memory is None:
        return "-", "-"
    workers = found.memory.workers_peak_bytes
    return f"{found.memory.peak_bytes / 2**20:.0f}", f"{workers / 2**20:.0f}" if workers else "-"


def answers_cell(entry: Entry) -> str:
    found = entry.figures
    if found is None or found.answers is None:
        return "not compared"
    if found.answers.reference == entry.contender:
        return "reference"
    if not found.answers.agrees:
        return f"**differ**: {found.answers.why or found.answers.relative_rms}"
    return f"{found.answers.relative_rms:.0e}"


def ratio_cell(record: Record) -> str:
    if record.ratio is None:
        return f"none: {record.why_no_ratio}"
    return f"{spread_cell(record.ratio.ratio)} {record.ratio.peer}"


def _settled_text(record: Record) -> str:
    found = record.measured.get(OURS)
    return ", not settled when the cache was filled" if found and found.details.get("settled") is False else ""


def disturbed_text(record: Record) -> str:
    return f", disturbed {record.others_share:.0%}" if record.others_share > LOUD_SHARE else ""
