"""The life of a fact: seen in calls, proposed, built, proved, tried, live, kept, and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.runtime.test_facts import asked, attention, chain
from tests.store.samples import saved

import tierup
from tierup.adapt import tiering
from tierup.adapt.analysis import Analysis
from tierup.adapt.care import Care
from tierup.adapt.live import Finding
from tierup.adapt.tensors import records_of
from tierup.events import Compared, Events
from tierup.ir.facts import LIMIT_BYTES, Fact
from tierup.ir.types import DType, TensorType
from tierup.profile.execution import InputHistory
from tierup.runtime.feeds import Input
from tierup.runtime.progress import Progress
from tierup.store.plans import Plans, cache_parts
from tierup.store.source import FileSource

RANDOM = np.random.default_rng(8)
ROWS = 120  # of 32 numbers: 15 KiB
HALVES = Fact(1, "m", 1, 0.5)


@pytest.fixture(autouse=True)
def _no_forced_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")


def settings(folder: Path, **fields: Any) -> tierup.Config:
    return tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", threads=1, adapt=True, **fields)


def feeds(number: float = 0.5, rows: int = ROWS) -> dict[str, Any]:
    x = RANDOM.standard_normal((rows, 32)).astype(np.float32)
    return {"x": x, "m": np.full((rows, 32), number, np.float32)}


def check(loaded: tierup.Model, given: dict[str, Any]) -> None:
    expected = given["x"].astype(np.float64)
    hidden = given["m"].astype(np.float64)
    for _ in range(8):
        hidden = np.tanh(hidden)
    np.testing.assert_allclose(loaded(**given)["y"], expected * hidden, rtol=1e-6, atol=1e-7)  # some roundings of f32


def watched(loaded: tierup.Model, given: dict[str, Any], calls: int = 40) -> None:
    """Calls, many of which are watched."""
    for _ in range(calls):
        loaded.watch_closely(1)
        loaded(**given)


def events(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in report["events"] if entry["event"] == kind]


def test_a_fact_that_pays_goes_live_and_is_kept(tmp_path: Path) -> None:
    """All of it is real: what is measured is eight tanh of 3840 numbers beside one product."""
    path = saved(tmp_path, chain(["n", 32], count=8))
    loaded = tierup.load(path, config=settings(tmp_path))
    watched(loaded, feeds())
    report = loaded.settle(timeout_s=120).to_dict()
    assert report["facts"] == ["every element of 'm' is 0.5"], report["events"]
    assert report["signatures"] == [[[ROWS, 32], [ROWS, 32]]]
    assert list(events(report, "queued")[-1]["facts"]) == report["facts"]
    assert events(report, "planned")[-1]["saved"] > 0.5
    tried = events(report, "tried")[-1]
    assert tried["better"]
    assert list(events(report, "swapped")[-1]["facts"]) == report["facts"]
    assert "rely on it that every element of 'm' is 0.5" in str(loaded.report())
    program = loaded.program
    assert program is not None
    (own,) = [v for v in program.variants() if v[1][-1] == 1 and len(v[1]) == 3]
    for number in (0.5, 0.25):
        check(loaded, feeds(number))
    other = feeds()
    other["m"][-1, -1] = 0.75
    check(loaded, other)
    check(loaded, feeds(rows=7))
    uses = {v[1]: v[3] for v in program.variants()}
    assert uses[own[1]] == own[3] + 1
    again = tierup.load(path, config=settings(tmp_path))
    warm = again.report().to_dict()
    assert (warm["tier"], warm["facts"], warm["counters"]["builds"]) == (2, report["facts"], 0)
    check(again, feeds())
    check(again, other)


@pytest.fixture
def _always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    better = Compared(((1,),), 9, 2.0, 1.0, 0.5, 0.0)
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (better,))


@pytest.mark.usefixtures("_always_faster")
def test_inputs_that_change_are_not_relied_on(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path, chain(count=8)), config=settings(tmp_path))
    watched(loaded, feeds())
    watched(loaded, feeds(0.25), 1)
    report = loaded.settle(timeout_s=120).to_dict()
    assert report["facts"] == []
    assert (report["tier"], report["reason"]) == (2, "")


def test_a_fact_that_is_not_measured_faster_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([(0.5,), (0.5,), (0.0,)])  # tier 1, closed sizes, facts

    def measured(*_: Any) -> tuple[Compared, ...]:
        return tuple(Compared(((1,),), 9, 2.0, 1.0, gain, 0.001) for gain in next(answers))

    monkeypatch.setattr(tiering, "_time_apart", measured)
    loaded = tierup.load(saved(tmp_path, chain(count=8)), config=settings(tmp_path))
    watched(loaded, feeds())
    report = loaded.settle(timeout_s=120).to_dict()
    assert (report["tier"], report["facts"], report["counters"]["refusals"]) == (2, [], 1)
    assert (report["reason"], "save too little" in events(report, "refused")[-1]["reason"]) == ("", True)
    queued = len(events(report, "queued"))
    assert len(events(loaded.settle(timeout_s=120).to_dict(), "queued")) == queued  # it is not asked for again


def test_a_fact_that_saves_little_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (Compared(((1,),), 9, 2.0, 1.0, 0.5, 0.0),))
    loaded = tierup.load(saved(tmp_path, chain(count=8)), config=settings(tmp_path))
    monkeypatch.setattr("tierup.adapt.planning.LEAST_SAVED", 0.999)
    monkeypatch.setattr(tiering, "_can_plan_apart", lambda *_: False)
    watched(loaded, feeds())
    report = loaded.settle(timeout_s=120).to_dict()
    assert report["facts"] == []
    (refused,) = events(report, "refused")
    assert "less to do where every element of 'm' is 0.5, which is too little" in refused["reason"]
    assert report["reason"] == ""


@pytest.mark.usefixtures("_always_faster")
def test_facts_of_attention_under_guards_that_fail_at_random(tmp_path: Path) -> None:
    path, given = saved(tmp_path, attention()), asked(24)
    tierup.load(path, config=settings(tmp_path))(**given)
    loaded = tierup.load(path, config=settings(tmp_path))
    watched(loaded, given)
    assert len(loaded.settle(timeout_s=120).facts) == 2
    baseline = tierup.load(path, config=tierup.Config(force_tier=0))
    stressed = tierup.load(path, config=settings(tmp_path, stress_deopt=0.5, stress_seed=5))
    assert stressed.report().facts == loaded.report().facts
    masked = asked(24)
    masked["mask"][0, 20:] = 0
    for one in (given, masked, given | {"types": masked["mask"]}):
        (expected,) = baseline(**one).values()
        for held in (loaded, stressed, stressed, stressed):
            (answer,) = held(**one).values()
            np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)  # sums of 24 in f32, two layers
    assert stressed.report().deopts


@pytest.mark.usefixtures("_always_faster")
def test_a_plan_that_loses_goes_back_to_the_one_without_facts(tmp_path: Path) -> None:
    path = saved(tmp_path, chain(count=8))
    loaded = tierup.load(path, config=settings(tmp_path))
    watched(loaded, feeds())
    assert loaded.settle(timeout_s=120).facts
    care = loaded._caring()
    assert care.watch is not None
    assert care.previous is not None
    before = care.previous.serving
    assert before.facts == ()
    care.watch._decide = lambda *_: Finding("go back", "it is slower")  # type: ignore[method-assign]
    care.watch.comparing = True
    loaded._look(care)
    report = loaded.report().to_dict()
    assert (report["tier"], report["facts"], report["counters"]["rollbacks"]) == (2, [], 1)
    assert not care.backoff.allows(HALVES, loaded.calls)
    check(loaded, feeds())
    kept = Plans(settings(tmp_path).cache_path).find(FileSource(path), cache_parts("f32"))
    assert kept is not None
    assert kept.record.plan.aim == before.aim


@pytest.mark.usefixtures("_always_faster")
@pytest.mark.parametrize(
    "change",
    [
        {"input": 7},
        {"input": 0},
        {"name": "x"},
        {"dtype": 11},
        {"dtype": 99},
        {"value": 0.1},
        {"value": float("nan")},
    ],
)
def test_kept_facts_are_checked(tmp_path: Path, change: dict[str, Any]) -> None:
    path = saved(tmp_path, chain(count=8))
    loaded = tierup.load(path, config=settings(tmp_path))
    watched(loaded, feeds())
    assert loaded.settle(timeout_s=120).facts
    plans, source = Plans(settings(tmp_path).cache_path), FileSource(path)
    found = plans.find(source, cache_parts("f32"))
    assert found is not None
    record = found.record
    facts = tuple(msgspec.structs.replace(fact, **change) for fact in record.plan.facts)
    plan = msgspec.structs.replace(record.plan, facts=facts)
    plans.write(source, msgspec.structs.replace(record, plan=plan))
    again = tierup.load(path, config=settings(tmp_path))
    assert again.report().to_dict()["cache"]["plan_hits"] == 0
    check(again, feeds())


def look(least: float, most: float, nonfinite: int = 0, elements: int = 8) -> tuple[bool, Any]:
    return False, (True, elements, elements, 0, nonfinite, least, most, 1)


def test_what_a_history_says_of_one_number() -> None:
    history = InputHistory()
    for _ in range(3):
        history.add(*look(1.0, 1.0))
    assert (history.only, history.only_calls) == (1.0, 3)
    history.add(*look(2.0, 2.0))
    assert (history.only, history.only_calls) == (2.0, 1)
    history.add(*look(2.0, 3.0))
    assert history.only is None
    history.add(*look(2.0, 2.0, nonfinite=1))
    assert history.only is None
    history.add(False, (False, 8, 8, 0, 0, 0.0, 0.0, 1))
    assert history.only is None


def test_what_is_proposed(tmp_path: Path) -> None:
    kinds = {"mask": DType.I64, "large": DType.F32, "rare": DType.F32, "huge": DType.I64}
    inputs = [Input(name, TensorType(kind, None), None, "", True) for name, kind in kinds.items()]
    analysis = Analysis(settings(tmp_path), Events(), list(kinds), saves=False)
    for call in range(16):
        seen = [
            look(1.0, 1.0),
            look(1.0, 1.0, elements=LIMIT_BYTES // 4 + 1),
            look(1.0 + call // 15, 1.0 + call // 15),
            look(2.0**80, 2.0**80),
        ]
        analysis.profiles.add((((1,),), 1, 1.0, 0.0, (), seen), None, 0.0)
    assert analysis.facts(inputs) == (Fact(0, "mask", 7, 1.0),)
    seen = [look(1.0, 1.0)] * 4
    analysis.profiles.add((((1,),), 1, 1.0, 0.0, (), seen), None, 0.0)
    assert [fact.name for fact in analysis.facts(inputs)] == ["mask", "large"]


def test_plans_are_tried_on_calls_in_which_facts_hold(tmp_path: Path) -> None:
    care = Care(Progress(), settings(tmp_path), "m")
    signature = ((2, 32), (2, 32))
    for number, kept in ((0.5, True), (0.25, False)):
        given = records_of(feeds(number, 2))
        assert given is not None
        care.keep_sample(given)
        (call,) = care.calls_to_try(None, (signature,), (HALVES,))  # type: ignore[arg-type]  # not asked
        assert bool(call.inputs) == kept
