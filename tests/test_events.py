"""The stream of events: typed, bounded, plain when asked, and logged where somebody listens."""

from __future__ import annotations

import json
import logging
import threading

import msgspec
import pytest

from tierup.events import Built, Compared, Events, Quarantined, Refused, RolledBack, Swapped, Tried

COMPARED = Compared(((1, 8), ()), 12, 200.0, 100.0, 0.5, 0.04)


def test_the_oldest_events_go_and_are_counted() -> None:
    events = Events(kept=3)
    for number in range(5):
        events.add(Swapped(0, 1, number))
    assert [entry.event for entry in events.all()] == [Swapped(0, 1, number) for number in (2, 3, 4)]
    assert events.dropped == 2
    new, total = events.since(4)
    assert ([entry.event for entry in new], total) == ([Swapped(0, 1, 4)], 5)
    assert events.since(total) == ((), 5)
    assert len(events.since(0)[0]) == 3


def test_a_gain_is_never_said_to_be_more_than_all() -> None:
    """Noise is a factor: two pairs that differ as much as 1 and 8 are no 93% ± 103%."""
    text = str(msgspec.structs.replace(COMPARED, gain=0.931, margin=1.028, pairs=2))
    assert "+93.1% saved (+80.7 to +97.5%), 2 pairs" in text
    assert "-50.0% saved (-65.8 to -35.7%)" in str(msgspec.structs.replace(COMPARED, gain=-0.5, margin=0.1))


def test_events_are_plain_data_with_a_sentence() -> None:
    events = Events()
    events.calls = lambda: 7
    events.add(Tried(True, (COMPARED,), 1.5))
    record = events.all()[0].to_dict()
    assert (record["event"], record["calls"], record["better"]) == ("tried", 7, True)
    measured = "1×8 (): 200 µs to 100 µs, +50.0% saved (+48.0 to +52.0%), 12 pairs"
    assert record["text"] == f"tried in 1.50 s, faster: {measured}"
    json.dumps(record)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Tried(False, (), 0.0, "no clock"), "not tried: no clock"),
        (Tried(False, (COMPARED,), 0.1), "not faster"),
        (RolledBack(2, 1, "slow"), "rolled back from tier 2 to tier 1: slow"),
        (Refused("proof", "NaN"), "refused at proof: NaN"),
        (Built(3, 4, 0.5), "built 3 kernels in 0.50 s, 4 from the cache"),
        (Quarantined(("a", "b"), 9, "wrong"), "quarantined 2 kernels after call 9: wrong"),
    ],
)
def test_every_event_is_a_sentence(event: Refused, text: str) -> None:
    assert text in str(event)


def test_events_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    events.name = "net"
    with caplog.at_level(logging.INFO, "tierup.events"):
        events.add(Refused("trial", "too slow"))
    assert caplog.messages == ["model 'net': refused at trial: too slow"]


def test_threads_share_a_stream() -> None:
    events = Events(kept=100_000)
    threads = [
        threading.Thread(target=lambda: [events.add(Swapped(0, 1, 0)) for _ in range(500)] and None) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events.all()) == 2000
