"""Calls that are watched: regions with their times, inputs with their statistics, beside calls that go on."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.samples import floats, perceptron, saved

import tierup
from tierup.adapt import analysis
from tierup.adapt.analysis import ANALYSER
from tierup.adapt.memory import MEMORY
from tierup.events import Evicted
from tierup.profile import execution
from tierup.store.objects import program_digest
from tierup.store.rows import Machine, RegionProfile


def loaded(folder: Path, **fields: Any) -> tierup.Model:
    """A model on tier 1, of whose calls many are watched."""
    config = tierup.Config(
        cache_dir=folder / "cache", data_dir=folder / "data", **{"force_tier": 1, "threads": 1, "adapt": True, **fields}
    )
    model = tierup.load(saved(folder, perceptron()), config=config)
    model.set_analysis_ns(0)
    return model


def call_until_watched(model: tierup.Model, inputs: Sequence[Any], least: int) -> dict[str, Any]:
    """Call until so many calls were watched; how many calls that takes depends on what watching costs."""
    for _ in range(1000):
        for _ in range(100):
            for x in inputs:
                model(x=x)
        model.set_analysis_ns(0)
        profiles: dict[str, Any] = model.report().to_dict()["profiles"]
        if profiles["watched_calls"] >= least:
            return profiles
    raise AssertionError("too few calls are watched")


def test_regions_and_inputs_are_in_the_report(tmp_path: Path) -> None:
    with loaded(tmp_path) as model:
        x = floats(3, 40)
        x[0, :10] = 0
        profiles = call_until_watched(model, [x], 3)
        report = model.report()
    for region in profiles["regions"]:
        assert len(region["region"]) == 64
        assert region["signature"] == [[3, 40]]
        assert 0 < region["p50_us"] <= region["p99_us"]
    assert {region["region"] for region in profiles["regions"]} <= set(model._serving.regions)
    assert len(profiles["regions"]) == len(model._serving.regions) == model._serving.kernels
    (found,) = profiles["inputs"]
    assert found["name"] == "x"
    assert found["zero_fraction"] == pytest.approx(10 / 120, rel=1e-6)  # kept as f32
    assert (found["min"], found["max"]) == (float(x.min()), float(x.max()))
    assert found["same_as_before"] == 1.0
    assert profiles["signatures"][0]["shapes"] == [[3, 40]]
    assert profiles["counters"] or "unavailable" in profiles["counters"]
    assert "input 'x': 8% zero" in str(report)
    assert f"region {profiles['regions'][0]['region'][:12]}" in str(report)


def test_regions_have_one_name_warm_and_cold(tmp_path: Path) -> None:
    with loaded(tmp_path) as model:
        cold = model._serving.regions
    with loaded(tmp_path) as model:
        assert model.report().counts.plan_hits == 1
        assert model._serving.regions == cold
    assert all(len(region) == len(program_digest("")) for region in cold)


def test_signatures_have_histories_of_their_own(tmp_path: Path) -> None:
    with loaded(tmp_path) as model:
        profiles = call_until_watched(model, [floats(rows, 40) for rows in (1, 2, 5)], 40)
    assert {tuple(region["signature"][0]) for region in profiles["regions"]} == {(1, 40), (2, 40), (5, 40)}
    assert {tuple(rate["shapes"][0]) for rate in profiles["signatures"]} == {(1, 40), (2, 40), (5, 40)}


def test_nothing_is_watched_if_nobody_wants_it(tmp_path: Path) -> None:
    for fields in ({"watch": False}, {"adapt": False}):
        with loaded(tmp_path, **fields) as model:
            for _ in range(200):
                model(x=floats(1, 40))
            assert model.take_watched() == []
            assert bool(model.timed) == fields.get("watch", True)
            assert model.report().to_dict()["profiles"] == {}


def test_calls_that_fail_do_not_end_it(tmp_path: Path) -> None:
    with loaded(tmp_path) as model:
        for _ in range(10):
            with pytest.raises(tierup.TierupError):
                model(x=floats(1, 7))
        assert call_until_watched(model, [floats(1, 40)], 2)["watched_calls"] >= 2


def test_the_analyser_takes_them_beside_calls(tmp_path: Path) -> None:
    with loaded(tmp_path) as model:
        x = floats(1, 40)
        taken = model._analysed().profiles
        for _ in range(2_000_000):  # without a look at the report
            model(x=x)
            if taken.calls:
                break
            if model.watch_gap > 1000:
                model.set_analysis_ns(0)
        assert ANALYSER.wait(10)
        assert taken.calls >= 1
        assert "tierup-analysis" in {thread.name for thread in threading.enumerate()}


def test_several_threads_call_and_report(tmp_path: Path) -> None:
    with loaded(tmp_path) as model:
        wrong: list[str] = []

        def call(rows: int) -> None:
            x = floats(rows, 40)
            first = model(x=x)["y"]
            for number in range(500):
                if not np.array_equal(model(x=x)["y"], first):
                    wrong.append(f"{rows} rows, call {number}")
                if number % 100 == 0:
                    model.report()
                    model.set_analysis_ns(0)

        threads = [threading.Thread(target=call, args=(rows,)) for rows in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        profiles = model.report().to_dict()["profiles"]
    assert sum(rate["calls"] for rate in profiles["signatures"]) == 4 * 501
    assert profiles["watched_calls"] > 0


def test_a_forked_child_watches_on(tmp_path: Path) -> None:
    with loaded(tmp_path) as model:
        call_until_watched(model, [floats(1, 40)], 2)
        model._analysed().lock.acquire()  # as if another thread were at it
        child = os.fork()
        if child == 0:
            status = 1
            try:
                before = model.report().to_dict()["profiles"]["watched_calls"]
                status = 0 if call_until_watched(model, [floats(2, 40)], before + 2) else 1
            finally:
                os._exit(status)
        model._analysed().lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_evictions_are_told_but_not_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "MOST_SIGNATURES", 4)
    with loaded(tmp_path) as model:
        found = model._analysed()
        regions = model._serving.regions
        for number in range(200):
            found.profiles.add((((number,),), 1, 1.0, 1.0, [(0, 1, 1.0, (), 0)], []), regions, float(number))
            found.drain(model)
        told = [entry.event for entry in model.events.all() if isinstance(entry.event, Evicted)]
    assert 3 <= len(told) <= 10
    assert "execution profiles evicted so far" in str(told[0])


def test_profiles_are_saved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = []
    monkeypatch.setattr(MEMORY, "remember", lambda config, new, events: rows.extend(new))
    with loaded(tmp_path) as model:
        call_until_watched(model, [floats(1, 40), floats(2, 40)], 12)
        found = model._analysed()
        found.save()
        assert rows == []  # a forced tier leaves nothing behind
        monkeypatch.setattr(found, "_saves", True)
        found.save()
        machine, *profiles = rows
        assert isinstance(machine, Machine)
        assert all(isinstance(row, RegionProfile) for row in profiles)
        assert {row.region for row in profiles} == set(model._serving.regions)
        assert {row.signature for row in profiles} == {"1×40", "2×40"}
        histories = found.profiles.regions
        assert sum(row.runs for row in profiles) == sum(
            history.runs for kept in histories.values() for history in kept.values()
        )
        rows.clear()
        found.save()
        assert rows == []  # nothing is new


def test_a_meter_is_read_and_its_absence_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Meter:
        def read_uj(self) -> tuple[int, ...]:
            return (0,)

        def joules(self, before: Any, after: Any) -> dict[str, float]:
            return {"package-0": 2.5}

    monkeypatch.setattr("tierup.profile.energy.open_meter", Meter)
    with loaded(tmp_path) as model:
        assert model.report().to_dict()["profiles"]["energy"] == {"joules": {"package-0": 2.5}, "calls": 0}
    monkeypatch.setattr("tierup.profile.energy.open_meter", lambda: "there is none")
    with loaded(tmp_path) as model:
        assert model.report().to_dict()["profiles"]["energy"] == "unavailable: there is none"


def test_counters_are_named_where_they_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "counter_names", lambda: ("cycles",))
    with loaded(tmp_path) as model:
        found = model._analysed()
        found.profiles.add(((), 1, 1.0, 1.0, [(0, 2, 10.0, (50.0,), 2)], []), ("a" * 64,), 0.0)
        profiles = model.report().to_dict()["profiles"]
    assert profiles["counters"] == ["cycles"]
    assert profiles["regions"][0]["counters"] == {"cycles": 25.0}
