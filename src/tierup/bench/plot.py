"""A plot of records as one SVG file that needs nothing else: a row a contender, on a logarithmic axis of time.

It is light or dark as its reader's screen is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape

from tierup.bench.record import Entry, Record
from tierup.bench.text import spread_text, time_text

# On white and on black; a contender and the one derived from it are of one hue.
_COLOURS = {
    "tierup": ("#0b6e4f", "#3ecf9b"),
    "tierup-bf16": ("#7fb8a4", "#1f7d5c"),
    "onnxruntime": ("#1f5fa8", "#6fb1f5"),
    "onnxruntime-bound": ("#7fa8d4", "#3f6fa3"),
    "openvino": ("#8a3ab9", "#c98af0"),
    "openvino-bf16": ("#c59ae0", "#7d4fa0"),
    "torch-eager": ("#e0905a", "#a8622f"),
    "torch-compile": ("#c8500f", "#ff9a5c"),
    "ink": ("#222222", "#e6e6e6"),
    "grey": ("#666666", "#a0a0a0"),
    "line": ("#dddddd", "#3a3a3a"),
    "wrong": ("#b00020", "#ff6b81"),
    "paper": ("#ffffff", "#161616"),
}
_LEFT, _RIGHT, _ROW, _WIDTH = 160, 190, 22, 900
_FONT = "font-family='Helvetica, Arial, sans-serif'"


class _Axis:
    """Microseconds to pixels, in whole decades around the values."""

    def __init__(self, values: list[float]) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))

    def x(self, us: float) -> float:
        share = (math.log10(us) - self.low) / (self.high - self.low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> Iterator[tuple[float, str | None]]:
        """Every 1, 2, 5; decades (and all, where there are few) have a label."""
        labelled = (1, 2, 5) if self.high - self.low <= 2 else (1,)
        for decade in range(self.low, self.high + 1):
            for digit in (1, 2, 5):
                if decade < self.high or digit == 1:
                    us = digit * 10.0**decade
                    yield us, time_text(us) if digit in labelled else None


def plot(records: Mapping[str, Record], title: str) -> str:
    """The SVG text. Points are medians, thick bars quartiles over rounds, thin lines reach to the p99."""
    rows = [(name, entry) for name, record in records.items() for entry in record.entries]
    values = [us for _, entry in rows for us in _extent(entry)]
    axis = _Axis(values or [1.0, 10.0])
    top, group_gap = 64, 14
    height = top + len(rows) * _ROW + len(records) * (group_gap + _ROW) + 40
    bottom = height - 34
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' viewBox='0 0 {_WIDTH} {height}'>",
        f"<style>{_style()}</style>",
        f"<rect class='paper' width='{_WIDTH}' height='{height}'/>",
        _text(16, 26, title, size=16, weight="bold"),
        _text(
            16, 46, "one call: median (point), quartiles over rounds (bar), p99 (line); less is better", colour="grey"
        ),
        *_grid(axis, top, bottom),
    ]
    y = top
    for name, record in records.items():
        y += group_gap + _ROW
        parts.append(_text(16, y - 6, name, weight="bold", size=13))
        for entry in record.entries:
            parts += _row(axis, entry, y)
            y += _ROW
    return "\n".join([*parts, "</svg>"]) + "\n"


def _style() -> str:
    """A class for each colour; another set of them for dark screens."""
    light, dark = (
        " ".join(f".{name} {{ fill: {pair[index]}; stroke: {pair[index]} }}" for name, pair in _COLOURS.items())
        for index in (0, 1)
    )
    return f"{light} @media (prefers-color-scheme: dark) {{ {dark} }}"


def _extent(entry: Entry) -> list[float]:
    found = entry.figures
    return [found.call_us.low, found.call_us.high, found.p99_us] if found is not None else []


def _grid(axis: _Axis, top: float, bottom: float) -> Iterator[str]:
    for us, label in axis.ticks():
        x = axis.x(us)
        yield f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}' class='line' stroke-width='1'/>"
        if label:
            yield _text(x, bottom + 18, label, anchor="middle", colour="grey")


def _row(axis: _Axis, entry: Entry, y: float) -> Iterator[str]:
    middle, colour = y + _ROW / 2, entry.contender if entry.contender in _COLOURS else "ink"
    yield _text(_LEFT - 10, middle + 4, entry.contender, anchor="end")
    found = entry.figures
    if found is None:
        yield _text(_LEFT + 6, middle + 4, entry.why or entry.status, colour="grey", limit=90)
        return
    call = found.call_us
    low, median, high, tail = (axis.x(us) for us in (call.low, call.median, call.high, found.p99_us))
    thin = f"class='{colour}' stroke-width='1.2'"
    yield f"<line x1='{median:.1f}' x2='{tail:.1f}' y1='{middle}' y2='{middle}' {thin}/>"
    yield f"<line x1='{tail:.1f}' x2='{tail:.1f}' y1='{middle - 4}' y2='{middle + 4}' {thin}/>"
    bar = f"x='{low:.1f}' y='{middle - 4}' width='{max(1.0, high - low):.1f}' height='8'"
    yield f"<rect {bar} class='{colour}' stroke-width='0' fill-opacity='0.45'/>"
    yield f"<circle cx='{median:.1f}' cy='{middle}' r='4' class='{colour}' stroke-width='0'/>"
    wrong = found.answers is not None and not found.answers.agrees
    words = spread_text(found.call_us) + (", answers differ" if wrong else "")
    yield _text(_WIDTH - _RIGHT + 12, middle + 4, words, colour="wrong" if wrong else "ink")


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    weight: str = "normal",
    anchor: str = "start",
    colour: str = "ink",
    limit: int = 120,
) -> str:
    shown = words if len(words) <= limit else words[: limit - 1] + "…"
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {_FONT} font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' "
        f"stroke-width='0' class='{colour}'>{escape(shown)}</text>"
    )
