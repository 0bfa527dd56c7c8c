"""The live view of `tierup run`."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from tests.store.samples import floats, perceptron

import tierup
from tierup.cli.live import LiveView
from tierup.events import Queued, Refused, Swapped


def viewed(terminal: bool) -> tuple[str, tierup.Model]:
    model = tierup.load(perceptron(), config=tierup.Config(force_tier=0))
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    with LiveView(console, model, 5) as view:
        for number in range(5):
            model(x=floats(3, 40))
            view.called(0.001 * (number + 1))
            model.events.add(Queued(1, 0)) if number == 0 else model.events.add(Swapped(0, 1, number))
        model.events.add(Refused("trial", "the last word"))
    return text.getvalue(), model


def test_events_are_printed_once_and_in_order() -> None:
    text, model = viewed(terminal=False)
    lines = text.splitlines()
    assert len(lines) == len(model.events.all())
    assert "loaded on tier 0" in lines[0]
    assert lines[-1].endswith("refused at trial: the last word")
    assert "call 5" in lines[-1]


def test_a_terminal_shows_tier_queue_swaps_and_latency() -> None:
    text, model = viewed(terminal=True)
    for heading in ("tier", "queue", "swaps", "rolled back", "median", "p99"):
        assert heading in text
    view: Any = LiveView(Console(file=io.StringIO(), width=200), model, 5)
    view.show_events()
    columns = dict(zip([column.header for column in view.table().columns], view.table().columns, strict=True))
    assert next(iter(columns["swaps"].cells)).endswith("call 5")
