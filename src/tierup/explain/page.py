"""An explanation, its picture and what was observed -> one self-contained page, for light and dark.

The page has no links and loads nothing. What comes from the model is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from statistics import median

import msgspec

from tierup.events import Entry, Quarantined, RolledBack, Swapped
from tierup.explain.blocks import Block, Picture
from tierup.explain.explanation import Alone, Explanation, Region

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y = 176, 34, 14, 16
_CHART_WIDTH, _CHART_HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 260, 64, 30, 28
_POINTS = 1500  # drawn; more cannot be told apart
_MARKS = (Swapped, RolledBack, Quarantined)
_LABEL_CHARS = 18  # that a box has room for beside the share


class Observed(msgspec.Struct, frozen=True):
    """Calls of a model from its first answer on: (seconds since it began to load, milliseconds) of each, what happened,
    when it began, and whether it had settled in the end."""

    calls: tuple[tuple[float, float], ...]
    events: tuple[Entry, ...]
    began_s: float
    settled: bool


def page(title: str, summary: str, explanation: Explanation, pictures: Sequence[Picture], observed: Observed) -> str:
    """The whole page."""
    template = resources.files("tierup.explain").joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "title": escape(title),
        "summary": escape(summary),
        "figures": _figures(explanation, observed),
        "latency": _latency(observed),
        "graph": _graphs(explanation, pictures),
        "regions": _regions(explanation),
        "alone": _alone(explanation),
        "refused": _refused(explanation),
        "log": _log(observed),
    }
    for name, text in parts.items():
        template = template.replace(f"<!--{name}-->", text)
    return template


def _figures(explanation: Explanation, observed: Observed) -> str:
    first, last = observed.calls[0][1], median(taken for _, taken in observed.calls[-200:])
    shown = (
        ("first answer", _milliseconds(first)),
        ("settled, median" if observed.settled else "not settled, median", _milliseconds(last)),
        ("regions", str(len(explanation.regions))),
        ("nodes alone", str(len(explanation.alone))),
        ("swaps", str(sum(isinstance(entry.event, Swapped) for entry in observed.events))),
        ("rolled back", str(sum(isinstance(entry.event, RolledBack) for entry in observed.events))),
    )
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown)


def _latency(observed: Observed) -> str:
    """Every call as a dot over time, on a logarithmic scale, with a line where the program was swapped."""
    end_s = max(at for at, _ in observed.calls) or 1.0
    least, most = (choose(taken for _, taken in observed.calls) for choose in (min, max))
    low, high = math.floor(math.log10(max(least, 1e-6))), math.ceil(math.log10(max(most, 1e-6)))
    high = max(high, low + 1)
    inner = _CHART_HEIGHT - _TOP - _BOTTOM

    def x(at_s: float) -> float:
        return _LEFT + (_CHART_WIDTH - _LEFT - 12) * min(max(at_s, 0.0), end_s) / end_s

    def y(taken_ms: float) -> float:
        return _TOP + inner * (high - math.log10(max(taken_ms, 1e-6))) / (high - low)

    lines = [f'<svg viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" role="img" aria-label="Latency of calls over time">']
    for power in range(low, high + 1):
        at = y(10.0**power)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_CHART_WIDTH - 12}" y1="{at:.1f}" y2="{at:.1f}"/>')
        label = _milliseconds(10.0**power)
        lines.append(f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for part in range(5):
        at_s = end_s * part / 4
        lines.append(
            f'<text class="tick" x="{x(at_s):.1f}" y="{_CHART_HEIGHT - 8}" text-anchor="middle">{at_s:.3g} s</text>'
        )
    stride = -(-len(observed.calls) // _POINTS)
    lines += [
        f'<circle class="call" cx="{x(at):.1f}" cy="{y(taken):.1f}" r="2"/>' for at, taken in observed.calls[::stride]
    ]
    lines += _marks(observed, x)
    lines.append("</svg>")
    return "\n".join(lines)


def _marks(observed: Observed, x: Callable[[float], float]) -> list[str]:
    """Vertical lines with labels, which step down where they would lie upon each other."""
    lines, last, step = [], -math.inf, 0
    for entry in observed.events:
        event = entry.event
        if not isinstance(event, _MARKS):
            continue
        at = x(entry.at_s - observed.began_s)
        label = {Swapped: "tier", RolledBack: "back to tier", Quarantined: "quarantine"}[type(event)]
        tier = getattr(event, "tier", "")
        step = (step + 1) % 3 if at - last < 90 else 0
        last = at
        kind = "swap" if isinstance(event, Swapped) else "back"
        lines.append(
            f'<line class="{kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP - 8}" y2="{_CHART_HEIGHT - _BOTTOM}">'
            f"<title>{escape(str(event))}</title></line>"
        )
        anchor, shift = ("end", -4) if at > _CHART_WIDTH - 100 else ("start", 4)
        lines.append(
            f'<text class="mark" x="{at + shift:.1f}" y="{_TOP - 4 + 14 * step}" text-anchor="{anchor}">{label} {tier}'
            "</text>"
        )
    return lines


def _graphs(explanation: Explanation, pictures: Sequence[Picture]) -> str:
    """The model and those of its bodies that ran, each under its name; the names of the others."""
    ran, idle = list[Picture](), list[str]()
    for picture in pictures:
        if picture.body is None or any(_runs(explanation, block) for block in picture.blocks):
            ran.append(picture)
        else:
            idle.append(picture.body)
    drawn = [picture for picture in ran if picture.blocks]
    if not drawn:
        return "<p>No part of the model is left to draw.</p>"
    most = max(_share(explanation, block) for picture in drawn for block in picture.blocks) or 1.0
    lines = []
    for picture in drawn:
        if len(pictures) > 1:
            lines.append(f"<h3>{escape(picture.body or 'the model')}</h3>")
        lines.append(_graph(explanation, picture.blocks, most))
    if idle:
        lines.append(f"<p>Bodies that the call did not run: {escape(', '.join(idle))}.</p>")
    return "\n".join(lines)


def _runs(explanation: Explanation, block: Block) -> bool:
    return block.kind == "kernel" and explanation.regions[block.number].runs > 0


def _graph(explanation: Explanation, blocks: Sequence[Block], most: float) -> str:
    """Boxes in rows, wide rows in the middle; each links to its line in the table. `most` is the greatest share."""
    widths: dict[int, int] = {}
    for block in blocks:
        widths[block.row] = max(widths.get(block.row, 0), block.column + 1)
    columns = max(widths.values())
    width, height = columns * (_BOX_WIDTH + _GAP_X) + _GAP_X, (max(widths) + 1) * (_BOX_HEIGHT + _GAP_Y) + _GAP_Y

    def corner(block: Block) -> tuple[float, float]:
        shift = (columns - widths[block.row]) / 2
        left = _GAP_X + (block.column + shift) * (_BOX_WIDTH + _GAP_X)
        return left, _GAP_Y + block.row * (_BOX_HEIGHT + _GAP_Y)

    lines = [f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="Regions">']
    for block in blocks:
        left, top = corner(block)
        for source in block.sources:
            from_left, from_top = corner(blocks[source])
            x1, y1 = from_left + _BOX_WIDTH / 2, from_top + _BOX_HEIGHT
            x2, y2 = left + _BOX_WIDTH / 2, top
            bend = (y2 - y1) / 2
            far = " far" if block.row - blocks[source].row > 1 else ""
            lines.append(
                f'<path class="edge{far}" d="M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} '
                f'{x2:.0f} {y2:.0f}"/>'
            )
    for block in blocks:
        left, top = corner(block)
        share = _share(explanation, block)
        box = (
            f'<g class="{block.kind}" style="--heat:{100 * math.sqrt(share / most):.0f}%">'
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>'
            f'<text x="{left + 8:.0f}" y="{top + 21:.0f}">{escape(_label(block))}</text>'
            f'<text class="share" x="{left + _BOX_WIDTH - 8:.0f}" y="{top + 21:.0f}">{_percent(block, share)}</text>'
            f"<title>{escape(_told(explanation, block))}</title></g>"
        )
        # A control node has no line in a table: its bodies do.
        anchor = {"kernel": f"region{block.number}", "alone": f"alone{block.number}"}.get(block.kind)
        lines.append(f'<a href="#{anchor}">{box}</a>' if anchor else box)
    lines.append("</svg>")
    return "\n".join(lines)


def _timed(explanation: Explanation, block: Block) -> Region | Alone | None:
    if block.kind == "control":
        return None
    return explanation.regions[block.number] if block.kind == "kernel" else explanation.alone[block.number]


def _share(explanation: Explanation, block: Block) -> float:
    timed = _timed(explanation, block)
    return timed.share_of_call or 0.0 if timed else 0.0


def _percent(block: Block, share: float) -> str:
    return "" if block.kind == "control" else f"{100 * share:.1f}%"


def _label(block: Block) -> str:
    return _cut(f"{block.number} {block.name}" if block.kind == "kernel" else block.name)


def _told(explanation: Explanation, block: Block) -> str:
    found = _timed(explanation, block)
    if found is None:
        return f"{block.name}: its bodies are below"
    if isinstance(found, Region):
        return f"region {found.number}, {found.kind}: {', '.join(found.ops)}; {_micros(found.measured_us)}"
    return f"{found.op} in the reference tier: {found.reason}; {_micros(found.measured_us)}"


def _regions(explanation: Explanation) -> str:
    rows = []
    for region in explanation.regions:
        roofline = "" if region.share_of_roofline is None else f"{100 * region.share_of_roofline:.0f}%"
        share = "" if region.share_of_call is None else f"{100 * region.share_of_call:.1f}%"
        domain = "×".join("?" if size is None else str(size) for size in region.domain)
        cells = (str(region.number), region.kind, ", ".join(region.ops), domain, _micros(region.measured_us), share)
        rows.append(_row(f"region{region.number}", (*cells, roofline, region.bound or "")))
    return "\n".join(rows)


def _alone(explanation: Explanation) -> str:
    return "\n".join(
        _row(f"alone{number}", (found.op, found.node, _micros(found.measured_us), found.reason))
        for number, found in enumerate(explanation.alone)
    )


def _refused(explanation: Explanation) -> str:
    return "\n".join(
        _row("", (f"{found.producer} → {found.consumer}", found.reason, found.detail)) for found in explanation.refused
    )


def _log(observed: Observed) -> str:
    rows = []
    for entry in observed.events:
        name = str(entry.to_dict()["event"])
        kind = "good" if name in ("swapped", "confirmed") else "bad" if name in _BAD else ""
        at = f"{max(0.0, entry.at_s - observed.began_s):.2f} s"
        rows.append(_row("", (at, str(entry.calls), name, str(entry.event)), kind))
    return "\n".join(rows)


_BAD = ("rolled back", "refused", "quarantined", "store ignored")


def _row(anchor: str, cells: Sequence[str], kind: str = "") -> str:
    place = f' id="{anchor}"' if anchor else ""
    style = f' class="{kind}"' if kind else ""
    return f"<tr{place}{style}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…"


def _micros(time_us: float | None) -> str:
    return "" if time_us is None else f"{time_us:.3g} µs" if time_us < 1000 else f"{time_us / 1000:.3g} ms"


def _milliseconds(time_ms: float) -> str:
    for unit, size in (("s", 1000.0), ("ms", 1.0), ("µs", 1e-3)):
        if time_ms >= size:
            return f"{time_ms / size:.3g} {unit}"
    return f"{time_ms * 1e6:.3g} ns"
