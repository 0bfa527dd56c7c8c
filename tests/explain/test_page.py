"""The page of `tierup explain --html`: one file that loads nothing, with the graph, the latency and the decisions."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx.parser
import pytest
from tests.store.samples import perceptron, saved
from typer.testing import CliRunner

from tierup.adapt.planning import make_plan
from tierup.cli import app
from tierup.events import Entry, Refused, RolledBack, Swapped
from tierup.explain import observe
from tierup.explain.blocks import Block, pictures_of
from tierup.explain.explanation import Explanation, Memory
from tierup.explain.page import Observed, page
from tierup.frontends.onnx import load_onnx

EVENTS = (
    Entry(100.5, 3, Swapped(0, 1, 4)),
    Entry(101.0, 9, RolledBack(1, 0, "it was <slow>")),
    Entry(101.5, 9, Refused("trial", "& so on")),
)
OBSERVED = Observed(tuple((0.01 * n, 5.0 if n < 50 else 0.5) for n in range(1, 200)), EVENTS, 100.0, settled=True)
NOTHING = Explanation("avx2", 2, 1, 10.0, 10.0, 1.0, True, (), 0, (), (), 0, 0, (), Memory(0, 0, 0))


class Balanced(HTMLParser):
    """Every element that is opened is closed, and nothing is loaded from anywhere."""

    VOID = ("meta", "input", "br", "line", "circle", "rect", "path")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        known = dict(attrs)
        assert "src" not in known
        if "href" in known:
            assert known["href"].startswith("#")
            self.links.add(known["href"][1:])
        if "id" in known:
            self.anchors.add(known["id"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_escapes_what_comes_from_outside() -> None:
    text = page("<script>x</script>", "a & b", NOTHING, (), OBSERVED)
    Balanced(text)
    assert "<script>x" not in text
    assert "it was &lt;slow&gt;" in text
    assert "&amp; so on" in text
    assert not re.search(r"https?://|url\(|@import", text)
    assert "<!--" not in text
    assert "prefers-color-scheme: dark" in text


def test_swaps_are_marked_where_they_were() -> None:
    text = page("m", "", NOTHING, (), OBSERVED)
    (swap,) = re.findall(r'class="swap" x1="([\d.]+)"', text)
    (back,) = re.findall(r'class="back" x1="([\d.]+)"', text)
    assert 64 < float(swap) < float(back) <= 960
    assert "tier 1</text>" in text
    assert "back to tier 0</text>" in text
    assert text.count('class="call"') == 199


def test_blocks_follow_each_other() -> None:
    planned = make_plan(load_onnx(perceptron()))
    function = planned.compiled.functions[0]
    ((body, blocks),) = ((picture.body, picture.blocks) for picture in pictures_of([function], ()))
    assert body is None
    assert [block.number for block in blocks] == list(range(len(function.kernels)))
    for position, block in enumerate(blocks):
        assert all(source < position and blocks[source].row < block.row for source in block.sources)
    assert blocks[0].sources == ()
    assert all(block.sources for block in blocks[1:])
    places = [(block.row, block.column) for block in blocks]
    assert len(set(places)) == len(places)
    assert isinstance(blocks[0], Block)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], str]:
    """What the command writes for a model, called with this shape of x; the machine is not measured."""
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    monkeypatch.setattr(observe, "_SETTLED_CALLS", 5)
    monkeypatch.setattr(observe, "_LEAST_S", 0.0)
    monkeypatch.setattr("tierup.profile.machine.measure_once", lambda folder: None)

    def write(path: Path, shape: str) -> str:
        target = tmp_path / "page.html"
        done = CliRunner().invoke(app, ["explain", str(path), "--shape", f"x={shape}", "--html", str(target)])
        assert done.exit_code == 0, done.output
        return target.read_text()

    return write


def test_the_command_writes_it(tmp_path: Path, written: Callable[[Path, str], str]) -> None:
    text = written(saved(tmp_path, perceptron()), "3,40")
    read = Balanced(text)
    assert read.links <= read.anchors
    assert {"region0", "region1"} <= read.links
    assert "model.onnx" in text
    assert text.count('class="kernel"') >= 2
    assert "<h3>" not in text


BRANCHES = """
<ir_version: 10, opset_import: ["" : 21]>
branches (float[N, 8] x) => (float[N, 8] y) {
    size = Abs (x)
    most = ReduceMax <keepdims = 0> (size)
    zero = Constant <value: tensor = float {0}> ()
    some = GreaterOrEqual (most, zero)
    y = If (some) <then_branch = with_numbers () => (float[N, 8] a) { e = Exp (x)  a = Softmax (e) },
                   else_branch = without () => (float[N, 8] b) { t = Tanh (x)  b = Add (t, zero) }>
}
"""


def test_bodies_that_ran_are_drawn_and_others_named(tmp_path: Path, written: Callable[[Path, str], str]) -> None:
    text = written(saved(tmp_path, onnx.parser.parse_model(BRANCHES)), "5,8")
    read = Balanced(text)
    assert read.links <= read.anchors
    assert re.findall("<h3>(.*?)</h3>", text) == ["the model", "with_numbers"]
    assert text.count('class="control"') == 1
    assert "did not run: without." in text


def test_a_model_that_has_not_settled_is_not_called_settled() -> None:
    unsettled = Observed(OBSERVED.calls, (), 100.0, settled=False)
    assert "<dt>not settled, median</dt>" in page("m", "", NOTHING, (), unsettled)
    assert "<dt>settled, median</dt>" in page("m", "", NOTHING, (), OBSERVED)
