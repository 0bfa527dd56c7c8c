"""What climbs leave in the store, what later ones take from it, and stores that do not work."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.test_care import X, compared, named, settings
from tests.store.samples import perceptron, saved

import tierup
from tierup.adapt import planning, tiering
from tierup.adapt.memory import place_of
from tierup.store.learned import Store
from tierup.store.place import FILE
from tierup.store.rows import Decision, Machine, Measurement, Recipe


@pytest.fixture(autouse=True)
def _adapting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    monkeypatch.setattr("tierup.profile.machine.measure_once", lambda folder: None)


def judged(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (compared(gain),))


def climbed(folder: Path, **fields: Any) -> dict[str, Any]:
    loaded = tierup.load(saved(folder, perceptron()), config=settings(folder, **fields))
    loaded(x=X)
    assert loaded._progress.wait(120)
    from tierup.adapt.memory import MEMORY

    assert MEMORY.wait(60)
    return loaded.report().to_dict()


def test_every_proof_and_trial_is_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, 0.5)
    report = climbed(tmp_path)
    assert (report["tier"], named(report, "store ignored")) == (1, [])
    with Store(place_of(settings(tmp_path))) as store:
        found = [row.row for row in store.all(Measurement)]
        proofs, trials = ([row for row in found if row.what == what] for what in ("proof", "trial"))
        recipes = {row.row.key for row in store.all(Recipe)}
        (decision,) = store.all(Decision)
        assert len(store.all(Machine)) == 1
    assert {row.subject for row in proofs} == recipes
    assert len(recipes) == report["kernels"]
    assert [(row.subject, row.gain, row.signature) for row in trials] == [(decision.row.key, 0.5, "3×40")]
    assert decision.row.outcome == "swapped"


def test_a_plan_that_was_refused_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, -0.5)
    first = climbed(tmp_path)
    assert (first["tier"], first["counters"]["refusals"]) == (0, 1)
    judged(monkeypatch, 0.5)
    second = climbed(tmp_path)
    assert second["tier"] == 0
    assert "refused before, and not tried again for a while: the kernels of tier 1 save too little" in second["reason"]
    assert named(second, "built") == []
    with Store(place_of(settings(tmp_path))) as store:
        (decision,) = store.all(Decision)
        assert decision.row.failures == 1
        store.clear()
    assert climbed(tmp_path)["tier"] == 1


def test_noise_is_not_remembered_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (compared(0.1, margin=0.3),))
    first = climbed(tmp_path)
    assert (first["tier"], first["counters"]["refusals"]) == (0, 1)
    assert "too noisy to tell" in first["reason"]
    place = place_of(settings(tmp_path))
    with Store(place) as store:
        (decision,) = store.all(Decision)
    assert decision.row.outcome == "unclear"
    key, now_s = decision.row.key, time.time()
    for later_s, allowed in ((60, False), (3600, True)):
        monkeypatch.setattr(planning.time, "time", lambda later_s=later_s: now_s + later_s)
        answer = planning._turned_away(place, key)
        assert (answer is None) == allowed
        if answer is not None:
            assert answer.reason.startswith("unclear before")
            assert answer.again_s == pytest.approx(1800 - later_s, abs=60)


def lock(folder: Path) -> Any:
    raw = sqlite3.connect(folder / FILE, isolation_level=None)
    raw.execute("BEGIN EXCLUSIVE")
    return raw


def corrupt(folder: Path) -> None:
    (folder / FILE).write_bytes(b"rubbish" * 1000)


def others(folder: Path) -> None:
    folder.chmod(0o777)


@pytest.mark.parametrize("break_it", [lock, corrupt, others])
def test_a_store_that_does_not_work_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_it: Any
) -> None:
    judged(monkeypatch, 0.5)
    with Store(place_of(settings(tmp_path))):
        pass
    held = break_it(tmp_path / "data")
    report = climbed(tmp_path)
    assert report["tier"] == 1
    if break_it is not corrupt:  # that one is set aside, and works again
        assert named(report, "store ignored")
    if held is not None:
        held.close()


def test_without_adapting_nothing_is_kept(tmp_path: Path) -> None:
    config = tierup.Config(cache_dir=tmp_path / "cache", data_dir=tmp_path / "data", adapt=False)
    loaded = tierup.load(saved(tmp_path, perceptron()), config=config)
    loaded(x=X)
    assert loaded.settle(timeout_s=120).tier == 1
    assert not (tmp_path / "data" / FILE).exists()
