"""What building took, and what the next build is expected to take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierup.adapt.costs import Costs, Ledger
from tierup.adapt.messages import Compile, Prove, Recall, Remember, Spent
from tierup.adapt.meter import Meter
from tierup.adapt.worker import _recall, _remember
from tierup.codegen.target import AVX2
from tierup.store.build_cost import BuildCost, cost_key
from tierup.store.learned import Store

COMPILE = Compile(("a",), AVX2)


def ledger(core_s: float, peak_bytes: int = 1000) -> Ledger:
    found = Ledger()
    found.add(COMPILE, Spent(core_s, peak_bytes, 0))
    return found


def test_a_ledger_adds_times_and_keeps_the_largest_memory() -> None:
    found = ledger(1.0, 500)
    found.add(COMPILE, Spent(2.0, 300, 0))
    found.add(Prove(b"", (b"x",), AVX2), Spent(0.5, 700, 0))
    found.add(Recall("place", ()), Spent(9.0, 900, 0))  # no stage of building
    assert {stage: (cost.core_s, cost.peak_bytes) for stage, cost in found.stages.items()} == {
        "compile": (3.0, 500),
        "prove": (0.5, 700),
    }


def test_what_was_built_before_predicts_what_comes() -> None:
    costs = Costs()
    guessed = costs.predict_stage(1, "compile", 100)
    assert guessed.core_s > costs.predict_stage(1, "compile", 10).core_s > 0
    costs.learn(ledger(2.0), "here", 1, 100)
    costs.learn(ledger(4.0, 3000), "here", 1, 120)  # of about the same size
    assert costs.predict_stage(1, "compile", 110).core_s == 3.0
    assert costs.predict_stage(1, "compile", 110).peak_bytes == 3000
    assert costs.predict_stage(1, "compile", 220).core_s == 6.0  # in proportion
    assert costs.predict_stage(2, "compile", 110).core_s > 0  # a guess as before
    whole = costs.predict(1, 110)
    assert whole.core_s > 3.0
    assert whole.peak_bytes >= 3000


def test_sums_of_processes_meet_in_the_store(tmp_path: Path) -> None:
    place = str(tmp_path)
    rows = [Costs().learn(ledger(seconds, peak), "here", 1, 5)[0] for seconds, peak in ((1.0, 10), (3.0, 5))]
    for row in rows:
        _remember(Remember(place, (row,)))
    _remember(Remember(place, tuple(Costs().learn(ledger(7.0), "elsewhere", 1, 5))))
    recalled = _recall(Recall(place, (), "here")).costs
    assert [(row.climbs, row.core_s, row.peak_bytes) for row in recalled] == [(2, 4.0, 10)]
    assert _recall(Recall(place, ())).costs == ()
    costs = Costs()
    costs.recall(recalled)
    costs.recall(recalled)  # only once: they have our own from then on
    assert costs.predict_stage(1, "compile", 5).core_s == 2.0


def test_what_is_old_counts_less() -> None:
    row = BuildCost(cost_key("here", 1, "plan", 3), "here", 1, "plan", 3, 256, 256.0, 1)
    one = BuildCost(row.key, "here", 1, "plan", 3, 1, 3.0, 9)
    summed = row + one
    assert (summed.climbs, summed.core_s, summed.peak_bytes) == (128, 129.5, 9)


def test_rows_out_of_bounds_are_not_used(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store, pytest.raises(ValueError, match="tier"):
        store.put([BuildCost("key", "here", 7, "plan", 3, 1, 1.0, 1)])


def test_a_meter_sees_time_and_memory() -> None:
    meter = Meter()
    held = bytearray(64 << 20)
    held[:: 1 << 12] = b"x" * (len(held) >> 12)
    del held
    spent = meter.spent()
    assert spent.core_s > 0
    assert spent.peak_bytes >= 64 << 20
    assert 0 < spent.held_bytes < spent.peak_bytes
