"""Whether calls wait for the first plan, once its kernels are proved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tierup.adapt import tiering
from tierup.adapt.background import Stopped
from tierup.adapt.worth import Demand
from tierup.events import Events, Packed
from tierup.ir.facts import Aim


class FakeClimb:
    """A climb of a model whose calls take so long; it notes for how long they are held."""

    def __init__(self, call_s: float = 0.1, incumbent: Aim | None = None) -> None:
        self.incumbent, self.config, self.constants = incumbent, None, {}
        self.progress = SimpleNamespace(events=Events())
        self.held: list[float] = []
        self.raised: Exception | None = None
        self._demand = Demand(5, call_s, 1.0, 5)

    def demand(self) -> Demand | None:
        return self._demand

    def hold_calls(self, longest_s: float) -> int:
        self.held.append(longest_s)
        return 3 + 2 * (len(self.held) > 1)

    def tried(self, *_: Any) -> bool:
        if self.raised is not None and not isinstance(self.raised, Stopped):
            raise self.raised
        return True

    def go_live(self, *_: Any) -> None:
        if self.raised is not None:
            raise self.raised


def packed(monkeypatch: pytest.MonkeyPatch, climb: FakeClimb, weights_bytes: int = 1000) -> None:
    """Try a plan that is faster, and let it answer."""
    warm, origin = SimpleNamespace(program=None, serving=None), SimpleNamespace(release_pages=lambda: None)
    monkeypatch.setattr(tiering, "_try", climb.tried)
    monkeypatch.setattr(tiering, "restore", lambda *_: warm)
    entry = SimpleNamespace(about=SimpleNamespace(weights_bytes=weights_bytes))
    given: Any = climb, "source", origin, SimpleNamespace(open=lambda *_: None), entry, []
    assert tiering._try_and_go_live(*given) is warm  # type: ignore[comparison-overlap]


def test_calls_of_the_baseline_wait_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    climb = FakeClimb()
    packed(monkeypatch, climb)
    assert climb.held == [pytest.approx(0.3), 0.0]
    (entry,) = climb.progress.events.all()
    assert isinstance(entry.event, Packed)
    assert entry.event.waited == 2
    assert str(Packed(0.25, 1)) == "packed weights in 0.25 s, 1 call waited for that"
    assert str(Packed(0.25, 0)) == "packed weights in 0.25 s, 0 calls waited for that"


def test_they_do_not_wait_where_that_would_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    climb = FakeClimb()
    packed(monkeypatch, climb, weights_bytes=10**9)
    assert climb.held == [0.0, 0.0]


@pytest.mark.parametrize("other", ["kernels", "no call", "nobody knows"])
def test_they_wait_for_nothing_else(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    climb = FakeClimb(0.0 if other == "no call" else 0.1, Aim() if other == "kernels" else None)
    if other == "nobody knows":
        monkeypatch.setattr(climb, "demand", lambda: None)
    packed(monkeypatch, climb)
    assert climb.held == [0.0, 0.0]


@pytest.mark.parametrize("raised", [tiering.NotBetter("slower"), tiering.TurnedAway(()), Stopped()])
def test_nobody_waits_on_when_it_does_not_go_live(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    climb = FakeClimb()
    climb.raised = raised
    with pytest.raises(type(raised)):
        packed(monkeypatch, climb)
    assert climb.held == [pytest.approx(0.3), 0.0]
    assert not climb.progress.events.all()
