"""The plot is one well-formed SVG with every row in it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from tests.bench.fakes import entry, record

from tierup.bench.contenders import TABLE
from tierup.bench.plot import plot
from tierup.bench.record import Spread, missing
from tierup.bench.text import digits, spread_text, time_text

SVG = "{http://www.w3.org/2000/svg}"


def test_every_row_is_there_and_inside_the_picture() -> None:
    absent = missing(TABLE["openvino"], "the package 'openvino' is not installed")
    one = record(entry("tierup", [2, 2, 3]), entry("onnxruntime", [7000, 8000, 9000], agrees=False), absent)
    root = ElementTree.fromstring(plot({"a <b> & 'c'": one, "second": record(entry("tierup", [50]))}, "t < u"))
    words = [text.text or "" for text in root.iter(f"{SVG}text")]
    for expected in ("t < u", "a <b> & 'c'", "second", "onnxruntime", "the package 'openvino' is not installed"):
        assert expected in words
    assert words.count("tierup") == 2
    assert "8.00 (7.50-8.50) ms, answers differ" in words
    points = [float(point.get("cx", "")) for point in root.iter(f"{SVG}circle")]
    assert len(points) == 3
    assert all(0 < x < float(root.get("width", "")) for x in points)
    assert points[0] < points[1]


def test_every_colour_has_one_for_dark_screens() -> None:
    text = plot({"m": record(*(entry(name, [2, 3]) for name in TABLE))}, "t")
    light, dark = text.split("<style>")[1].split("</style>")[0].split("@media (prefers-color-scheme: dark)")
    used = {element.get("class") for element in ElementTree.fromstring(text).iter() if element.get("class")}
    assert set(TABLE) | {"ink", "paper", "line", "grey"} <= used
    for name in used:
        assert f".{name} {{" in light
        assert f".{name} {{" in dark


def test_a_plot_without_figures_is_still_one() -> None:
    root = ElementTree.fromstring(plot({"m": record(missing(TABLE["tierup"], "why"))}, "t"))
    assert "why" in [text.text for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.0123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12346"), (0, "0")],
)
def test_three_digits(value: float, text: str) -> None:
    assert digits(value) == text


def test_units() -> None:
    assert time_text(2.5) == "2.5 µs"
    assert time_text(2500) == "2.5 ms"
    assert time_text(2_500_000) == "2.5 s"
    assert spread_text(Spread(1500, 900, 2000)) == "1.50 (0.900-2.00) ms"
