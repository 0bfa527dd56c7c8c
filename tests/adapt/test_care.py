"""Models under care: trials in a worker that refuse, live calls that take a slow plan back, and what reports say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.store.samples import entries, floats, perceptron, saved

import tierup
from tierup import _native
from tierup.adapt import contest, tiering
from tierup.adapt.aside import Cores, cores_of
from tierup.adapt.contest import try_plan
from tierup.adapt.messages import CallRecord, Failure, TriedPlan, TryPlan
from tierup.adapt.tensors import array_of, records_of
from tierup.events import Compared
from tierup.frontends.onnx import load_onnx
from tierup.ir.facts import Aim
from tierup.plan.baseline import baseline
from tierup.runtime.executable import executable
from tierup.runtime.progress import Serving
from tierup.store.plans import Plans, cache_parts
from tierup.store.source import FileSource

X = floats(3, 40)


@pytest.fixture(autouse=True)
def _adapting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    monkeypatch.setattr("tierup.profile.machine.measure_once", lambda folder: None)


def settings(folder: Path, **fields: Any) -> tierup.Config:
    return tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", adapt=True, threads=1, **fields)


def named(report: dict[str, Any], event: str) -> list[dict[str, Any]]:
    return [entry for entry in report["events"] if entry["event"] == event]


def compared(gain: float, margin: float = 0.01) -> Compared:
    return Compared(((3, 40),), 9, 100.0, 100.0 * (1 - gain), gain, margin)


def test_the_way_up_is_an_event_at_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (compared(0.5),))
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    loaded(x=X)
    loaded._progress.wait(120)
    names = [entry["event"] for entry in loaded.report().to_dict()["events"]]
    assert names[:2] == ["queued", "loaded"] or names[:2] == ["loaded", "queued"]
    assert names[2:] == ["planned", "built", "proved", "tried", "swapped", "packed", "spent"]


def test_a_plan_that_is_not_faster_does_not_go_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (compared(0.01, margin=0.01),))
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    loaded(x=X)
    report = loaded.settle(timeout_s=120).to_dict()
    assert (report["tier"], report["counters"]["refusals"], report["counters"]["swaps"]) == (0, 1, 0)
    assert report["reason"].startswith(
        "the kernels of tier 1 save too little beside what answers now: 3×40: 100 µs to 99 µs, +1.0%"
    )
    assert entries(tmp_path) == []
    assert [entry["better"] for entry in named(report, "tried")] == [False]


def test_where_nothing_can_be_timed_live_calls_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: "the clock is broken")
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    loaded(x=X)
    loaded._progress.wait(120)
    report = loaded.report().to_dict()
    assert report["tier"] == 1
    assert [entry["why_not"] for entry in named(report, "tried")] == ["the clock is broken"]


class Tried:
    """A model whose plan is in the cache, and jobs to try it."""

    def __init__(self, folder: Path) -> None:
        self.path = saved(folder, perceptron())
        self.config = tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", adapt=False, threads=1)
        loaded = tierup.load(self.path, config=self.config)
        assert loaded.settle(timeout_s=120).tier == 1
        self.source, self.parts = FileSource(self.path), cache_parts("f32")
        found = Plans(self.config.cache_path).find(self.source, self.parts)
        assert found is not None
        self.entry = found.record

    def run(self, incumbent: Any, *calls: CallRecord, threads: int = 1) -> TriedPlan | Failure:
        content = msgspec.msgpack.encode(self.entry)
        stamp, cache = self.source.stamp, self.config.cache_path
        cores = tuple(sorted(cores_of()))
        return try_plan(
            TryPlan(str(self.path), stamp, cache, self.parts, threads, cores, content, incumbent, calls, 0.2)
        )


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TIERUP_FORCE_TIER")
        return Tried(tmp_path_factory.mktemp("tried"))


@pytest.mark.parametrize("given", [(), records_of({"x": X})], ids=["drawn", "sampled"])
def test_a_trial_measures_both_plans(tried: Tried, given: Any) -> None:
    reply = tried.run(None, CallRecord(((3, 40),), given))
    assert isinstance(reply, TriedPlan)
    (result,) = reply.compared
    assert result.signature == ((3, 40),)
    assert 2 <= result.pairs <= 60
    assert min(result.incumbent_us, result.candidate_us) > 0
    assert result.margin >= 0


def test_two_plans_are_also_tried_on_one_thread(tried: Tried) -> None:
    """A call that finds the pool taken must not lose either."""
    reply = tried.run(Aim(), CallRecord(((3, 40),)), threads=2)
    assert isinstance(reply, TriedPlan)
    assert [one.alone for one in reply.compared] == [False, True]
    assert "3×40 on one thread: " in str(reply.compared[1])
    _native.hold_pool()  # it was let go
    _native.let_pool_go()


@pytest.mark.parametrize("incumbent", [None, Aim()], ids=["baseline", "plan"])
@pytest.mark.parametrize(("rows", "widens"), [(3, False), (20_000, True)])
def test_plans_that_use_threads_are_tried_on_all_cores(
    tried: Tried, rows: int, widens: bool, incumbent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[Cores]()
    monkeypatch.setattr(contest, "keep_process_to", kept.append)
    assert isinstance(tried.run(incumbent, CallRecord(((rows, 40),)), threads=2), TriedPlan)
    assert kept == [cores_of()] * widens


def test_a_trial_draws_sizes_where_none_were_seen(tried: Tried) -> None:
    reply = tried.run(None, CallRecord(None))
    assert isinstance(reply, TriedPlan)
    assert len(reply.compared) == 1


def test_a_trial_against_a_plan_needs_that_plan(tried: Tried) -> None:
    assert isinstance(tried.run(Aim(), CallRecord(((3, 40),))), TriedPlan)
    missing = tried.run(Aim((((7, 40),),)), CallRecord(((3, 40),)))
    assert missing == Failure("the plan that answers now is not in the cache")


def test_a_plan_that_fails_on_a_call_that_was_answered_is_wrong(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> float:
        raise tierup.InputError("nobody thought of this")

    monkeypatch.setattr("tierup.adapt.contest._one_call", fails)
    sampled = CallRecord(((3, 40),), records_of({"x": X}) or ())
    assert tried.run(None, sampled) == TriedPlan((), failed="nobody thought of this")
    with pytest.raises(tierup.InputError):  # the baseline might not have an answer to what was drawn, either
        tried.run(None, CallRecord(((3, 40),)))


def test_a_plan_that_fails_in_its_trial_does_not_go_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiering.run_jobs

    def without_trial(jobs: Any, **options: Any) -> Any:
        return [TriedPlan((), failed="no answer")] if isinstance(jobs[0], TryPlan) else run(jobs, **options)

    monkeypatch.setattr(tiering, "run_jobs", without_trial)
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    loaded(x=X)
    report = loaded.settle(timeout_s=120).to_dict()
    assert (report["tier"], report["reason"]) == (0, "the plan fails on a call that was answered: no answer")
    assert entries(tmp_path) == []


def test_tensors_travel_whole() -> None:
    arrays = {"a": np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2], "b": np.array(2.5, np.float32)}
    records = records_of(arrays)
    assert records is not None
    for record in records:
        np.testing.assert_array_equal(array_of(record), arrays[record.name])
    assert records_of(arrays, room_bytes=10) is None
    assert records_of({"s": np.array(["a"], object)}) is None
    with pytest.raises(ValueError, match="not what its shape takes"):
        array_of(msgspec.structs.replace(records[0], shape=(7,)))


def slowed(path: Path, times: int) -> _native.Program:
    """The baseline, each of whose call-outs is done so many times."""
    imported = load_onnx(path)
    plan = baseline(imported.graph)
    plain = executable(plan, imported.weights)
    runner = _native.Runner([("x", 1, None, True)], ["y"])
    runner.program = plain

    def slowly(x: Any) -> tuple[Any, ...]:
        return tuple(runner.call_dict({"x": x})["y"] for _ in range(times))[-1:]

    return _native.Program(functions=[(2, 0, [0], [1], [], [(3, 0, 1, 0, 1, 1)])], callouts=[slowly], constants=[])


def test_a_plan_that_is_slow_on_live_calls_is_taken_back(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path, force_tier=0))
    loaded._config = settings(tmp_path)  # from here on as any other model
    plans, before = Plans(loaded._config.cache_path), loaded.program
    expected = loaded(x=X)["y"]
    for _ in range(20):
        loaded(x=X)
    assert loaded._go_live(slowed(path, 3), Serving(1, 1, 0), True)
    assert loaded.report().tier == 1
    for _ in range(300):
        assert np.array_equal(loaded(x=X)["y"], expected)
    report = loaded.report().to_dict()
    assert (report["tier"], report["counters"]["rollbacks"], report["counters"]["swaps"]) == (0, 1, 1)
    assert loaded.program is before
    assert [entry["before"] for entry in named(report, "rolled back")] == [1]
    assert named(report, "suspected")
    assert plans.find(FileSource(path), cache_parts("f32")) is None
    answered = loaded.rival_calls
    loaded(x=X)
    assert loaded.rival_calls == answered  # nobody is compared any more


def test_a_plan_that_is_fast_on_live_calls_stays(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path, force_tier=0))
    loaded._config = settings(tmp_path)
    fast = loaded.program
    assert fast is not None
    loaded.program = slowed(path, 4)
    for _ in range(20):
        loaded(x=X)
    assert loaded._go_live(fast, Serving(1, 1, 0), True)
    for _ in range(300):
        loaded(x=X)
    report = loaded.report().to_dict()
    assert report["counters"]["rollbacks"] == 0
    assert len(named(report, "confirmed")) == 1


def test_a_frozen_model_is_not_taken_back(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path, force_tier=0))
    loaded._config = settings(tmp_path)
    for _ in range(20):
        loaded(x=X)
    slow = slowed(path, 3)
    assert loaded._go_live(slow, Serving(1, 1, 0), True)
    loaded.freeze()
    for _ in range(200):
        loaded(x=X)
    assert loaded.program is slow
    assert loaded.report().to_dict()["counters"]["rollbacks"] == 0
