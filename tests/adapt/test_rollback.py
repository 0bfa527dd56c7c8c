"""Plans that are taken out while they serve: what answers then, and what the next process starts with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.security.models import model, node, value
from tests.store.samples import floats, perceptron, saved

import tierup
from tierup import _native
from tierup.adapt import tiering
from tierup.adapt.live import Finding, Watch
from tierup.adapt.memory import MEMORY, place_of
from tierup.adapt.sampling import SAMPLER
from tierup.adapt.thinning import RegionTimes
from tierup.codegen.target import target_of
from tierup.events import Compared
from tierup.plan.program import StepCode
from tierup.profile.identity import identify
from tierup.store.learned import Store
from tierup.store.objects import ObjectCache
from tierup.store.rows import Decision

X = floats(3, 40)


@pytest.fixture(autouse=True)
def _adapting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    monkeypatch.setattr("tierup.profile.machine.measure_once", lambda folder: None)
    better = Compared(((3, 40),), 9, 2.0, 1.0, 0.5, 0.0)
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (better,))  # whether it pays here and now is not the point


def settings(folder: Path) -> tierup.Config:
    return tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", adapt=True, threads=1)


def branching() -> onnx.ModelProto:
    """A product, and a branch behind it: signatures have functions of their own."""
    weights = [numpy_helper.from_array(floats(40, 33), "w"), numpy_helper.from_array(np.float32(0), "limit")]
    bodies = [
        helper.make_graph([node(op, ["m"], ["b"])], op, [], [value("b", ["batch", 33])]) for op in ("Relu", "Neg")
    ]
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("ReduceMax", ["m"], ["most"], keepdims=0),
        node("Greater", ["most", "limit"], ["some"]),
        node("If", ["some"], ["y"], then_branch=bodies[0], else_branch=bodies[1]),
    ]
    return model(nodes, [value("x", ["batch", 40])], [value("y", ["batch", 33])], weights)


def on_tier_2(path: Path, folder: Path) -> tierup.Model:
    """A model with functions for what it was called with, on disk, too."""
    loaded = tierup.load(path, config=settings(folder))
    loaded(x=X)
    assert loaded._progress.wait(120)
    assert loaded.report().tier == 1
    assert loaded.settle(120).tier == 2
    return loaded


def in_a_new_process(path: Path, folder: Path) -> dict[str, Any]:
    """What a process reports that starts now and calls the model once."""
    code = f"""
import json, numpy as np, tierup
config = tierup.Config(cache_dir={str(folder / "cache")!r}, data_dir={str(folder / "data")!r}, adapt=True, threads=1)
held = tierup.load({str(path)!r}, config=config)
held(x=np.ones((3, 40), np.float32))
print(json.dumps(held.report().to_dict()))
"""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TIERUP_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env=environment
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def roll_back(loaded: tierup.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have live calls say that the last plan does not pay."""
    with monkeypatch.context() as patch:
        patch.setattr(Watch, "look", lambda *_: Finding("go back", "slow"))
        loaded._look(loaded._caring())


@pytest.mark.parametrize("proto", [perceptron(), branching()], ids=["variants", "functions"])
def test_after_a_rollback_the_next_process_starts_with_what_answered(
    proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, proto)
    loaded = on_tier_2(path, tmp_path)
    assert in_a_new_process(path, tmp_path)["tier"] == 2
    roll_back(loaded, monkeypatch)
    assert (loaded.report().tier, loaded.report().counts.rollbacks) == (1, 1)
    second = in_a_new_process(path, tmp_path)
    assert (second["tier"], second["cache"]["plan_hits"], second["counters"]["builds"]) == (1, 1, 0)


def test_after_a_rollback_to_the_baseline_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path))
    loaded(x=X)
    assert loaded._progress.wait(120)
    roll_back(loaded, monkeypatch)
    assert loaded.report().tier == 0
    assert not list((tmp_path / "cache" / "plans").glob("*.plan"))


def test_a_plan_that_is_rolled_back_before_it_is_kept_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path))
    loaded(x=X)
    assert loaded._progress.wait(120)
    keep = tiering.keep

    def rolled_back_first(*arguments: Any) -> None:
        roll_back(loaded, monkeypatch)
        keep(*arguments)

    monkeypatch.setattr(tiering, "keep", rolled_back_first)
    loaded.settle(120)
    assert loaded.report().tier == 1
    assert in_a_new_process(path, tmp_path)["tier"] == 1


def test_a_plan_that_is_rolled_back_before_its_model_is_identified_is_remembered_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identify_entry = tiering.identify_entry

    def rolled_back_first(*arguments: Any) -> None:
        roll_back(loaded, monkeypatch)
        identify_entry(*arguments)

    monkeypatch.setattr(tiering, "identify_entry", rolled_back_first)
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    loaded(x=X)
    assert loaded._progress.wait(120)
    assert MEMORY.wait(60)
    assert loaded.report().tier == 0
    with Store(place_of(settings(tmp_path))) as store:
        (decision,) = store.all(Decision)
    assert (decision.row.outcome, decision.row.reason) == ("rolled back", "slow")
    assert not list((tmp_path / "cache" / "plans").glob("*.plan"))


def test_a_wrong_variant_does_not_take_the_open_kernels_along(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    loaded = on_tier_2(path, tmp_path)
    plans = tiering._plans(loaded._config)
    source, serving = loaded._origin.source, loaded._serving
    assert source is not None
    plans.take_out(source, serving.parts, serving.keys[-1:])  # a variant's
    assert in_a_new_process(path, tmp_path)["tier"] == 1
    plans.take_out(source, serving.parts, serving.keys[:1])
    assert plans.entries() == []


def watched(program: int, times_us: dict[int, float]) -> tuple[Any, ...]:
    """A call as native code describes it."""
    spans = [(slot, 1, 1e3 * time_us, (), 0) for slot, time_us in times_us.items()]
    return (((3, 40),), program, 0.0, 0.0, spans, ())


def compared(loaded: tierup.Model, slow: set[int]) -> RegionTimes:
    """What both plans took, if the variants in these slots are slower than the open kernels."""
    care = loaded._caring()
    assert care.previous is not None
    assert loaded.program is not None
    old, new = care.previous.program.number, loaded.program.number
    times = RegionTimes(old, new)
    for _ in range(8):
        times.add(watched(old, {0: 10.0, 1: 10.0, 2: 10.0}))
        times.add(watched(new, {slot: 12.0 if slot in slow else 9.0 for slot in range(3)}))
    return times


def slots(loaded: tierup.Model) -> list[int]:
    assert loaded.program is not None
    return [slot for slot, *_ in loaded.program.variants()]


def test_a_variant_that_is_slow_by_itself_goes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, perceptron())
    loaded = on_tier_2(path, tmp_path)
    right, all_slots = loaded(x=X)["y"], slots(loaded)
    loaded._caring().regions = compared(loaded, {1})
    roll_back(loaded, monkeypatch)
    report = loaded.report().to_dict()
    assert (report["tier"], report["counters"]["rollbacks"]) == (2, 0)
    assert [(e["gone"], e["left"]) for e in report["events"] if e["event"] == "thinned"] == [(1, len(all_slots) - 1)]
    assert slots(loaded) == [slot for slot in all_slots if slot != 1]
    np.testing.assert_allclose(loaded(x=X)["y"], right, rtol=0, atol=1e-6)  # probabilities, rounded in another order
    with tierup.load(path, config=settings(tmp_path)) as second:
        assert (second.report().tier, second.report().counts.builds) == (2, 0)
        assert slots(second) == slots(loaded)
        np.testing.assert_allclose(second(x=X)["y"], right, rtol=0, atol=1e-6)
    roll_back(loaded, monkeypatch)  # the rest does not pay either
    assert (loaded.report().tier, loaded.report().counts.rollbacks) == (1, 1)
    assert in_a_new_process(path, tmp_path)["tier"] == 1


def test_a_variant_that_goes_before_its_plan_is_kept_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, keep = saved(tmp_path, perceptron()), tiering.keep
    loaded = tierup.load(path, config=settings(tmp_path))
    loaded(x=X)
    assert loaded._progress.wait(120)

    def thinned_first(*arguments: Any) -> None:
        loaded._caring().regions = compared(loaded, {1})
        roll_back(loaded, monkeypatch)
        keep(*arguments)

    monkeypatch.setattr(tiering, "keep", thinned_first)
    assert loaded.settle(120).tier == 2
    with tierup.load(path, config=settings(tmp_path)) as second:
        assert second.report().tier == 2
        assert sorted(slots(second)) == sorted(slots(loaded)) == [0, 2]


def test_later_plans_do_without_a_variant_that_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = on_tier_2(saved(tmp_path, perceptron()), tmp_path)
    assert sorted(slots(loaded)) == [0, 1, 2]
    loaded._caring().regions = compared(loaded, {1})
    roll_back(loaded, monkeypatch)
    loaded(x=floats(5, 40))
    report = loaded.settle(120)
    assert report.signatures == (((3, 40),), ((5, 40),))
    assert sorted(slots(loaded)) == [0, 0, 1, 2, 2]  # of the new signature all


@pytest.mark.parametrize("slow", [set(), {0, 1, 2}])
def test_where_times_single_none_out_the_whole_plan_goes(
    slow: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = on_tier_2(saved(tmp_path, perceptron()), tmp_path)
    loaded._caring().regions = compared(loaded, slow)
    roll_back(loaded, monkeypatch)
    assert loaded.report().tier == 1


def test_few_times_say_nothing() -> None:
    times = RegionTimes(1, 2)
    for number in range(7):
        assert not times.slower, number
        times.add(watched(1, {0: 10.0}))
        times.add(watched(2, {0: 20.0}))
        times.add(watched(3, {0: 1.0}))  # somebody else's
    times.add(watched(1, {0: 10.0}))
    times.add(watched(2, {0: 20.0}))
    assert times.slower == {0}


def test_two_plans_that_take_turns_are_watched_closely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = on_tier_2(saved(tmp_path, perceptron()), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Watch, "look", lambda *_: Finding("compare", "let us see"))
        loaded._look(loaded._caring())
        patch.setattr(Watch, "look", lambda *_: Finding("wait"))
        for _ in range(200):
            loaded(x=X)
        loaded._look(loaded._caring())
    times = loaded._caring().regions
    assert times is not None
    assert sum(len(found) for (_, slot), both in times._times.items() for found in both.values() if slot == 0) >= 32


@pytest.mark.skipif(identify().architecture != "x86_64", reason="the corrupt code is x86's")
def test_a_variant_that_gives_wrong_answers_goes_alone(tmp_path: Path) -> None:
    loaded = on_tier_2(saved(tmp_path, perceptron()), tmp_path)
    right, target, variant = loaded(x=X)["y"], target_of(identify()), loaded._serving.variants[0]
    assert target is not None
    assert loaded.program is not None
    assert SAMPLER.wait(60)
    key = loaded._serving.keys[variant.kernel]
    code = ObjectCache(loaded._config.cache_dir / "objects").get_digest(key, target)
    assert code is not None
    bad = _native.Code([b"\x31\xc0\xc3" + code[3:]])  # xor eax, eax; ret
    row = (variant.slot, variant.first, variant.key, bad.addresses[0], bad)
    loaded.program.add_variants([(*row, variant.range, variant.grain, variant.scratch)])
    before = slots(loaded)
    loaded.sample_after(1)
    loaded(x=X + 1)
    assert SAMPLER.wait(60)
    report = loaded.report().to_dict()
    assert [entry["kernels"] for entry in report["events"] if entry["event"] == "quarantined"] == [(key,)]
    assert (report["tier"], report["counters"]["quarantined"]) == (2, 1)
    assert len(slots(loaded)) == len(before) - 1
    np.testing.assert_allclose(loaded(x=X)["y"], right, rtol=0, atol=1e-6)
    for number in range(70):  # its first calls are sampled again
        loaded(x=X + number)
    assert SAMPLER.wait(60)
    assert loaded.report().to_dict()["counters"]["quarantined"] == 1


def fails(*_: Any) -> Any:
    raise tierup.InputError("nobody thought of this")


def broken(loaded: tierup.Model, function: Any = fails) -> None:
    """Have the model's plan call out to this, as if it were wrong."""
    step = (StepCode.CALLOUT, 0, 1, 0, 1, 1)
    loaded.program = _native.Program(functions=[(2, 0, [0], [1], [], [step])], callouts=[function], constants=[])


@pytest.mark.parametrize("how", ["dict", "list", "watched"])
def test_a_plan_that_fails_loses_no_call(tmp_path: Path, how: str) -> None:
    path = saved(tmp_path, perceptron())
    loaded = on_tier_2(path, tmp_path)
    expected = loaded(x=X)["y"]
    broken(loaded)
    if how == "watched":
        loaded.watch_closely(8)
    answer = loaded.call_list(None, {"x": X})[0] if how == "list" else loaded(x=X)["y"]
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)
    report = loaded.report()
    assert (report.tier, report.counts.rollbacks) == (0, 1)
    assert "it fails where the baseline has an answer: nobody thought of this" in report.to_dict()["reason"]
    np.testing.assert_allclose(loaded(x=X)["y"], expected, rtol=1e-5, atol=1e-5)
    assert in_a_new_process(path, tmp_path)["tier"] == 0
    MEMORY.wait(20)
    with Store(place_of(settings(tmp_path))) as store:
        assert any(known.row.outcome == "quarantined" for known in store.all(Decision))


def test_calls_that_are_under_way_when_a_plan_goes_are_answered_too(tmp_path: Path) -> None:
    loaded = on_tier_2(saved(tmp_path, perceptron()), tmp_path)
    expected = loaded(x=X)["y"]
    together = threading.Barrier(4)

    def fails_late(*_: Any) -> Any:
        together.wait(20)
        fails()

    broken(loaded, fails_late)
    answers: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: answers.append(loaded(x=X)["y"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 4
    for answer in answers:
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)
    assert loaded.report().counts.rollbacks == 1


def test_what_the_baseline_cannot_answer_either_is_the_callers_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = on_tier_2(saved(tmp_path, perceptron()), tmp_path)
    broken(loaded)
    monkeypatch.setattr("tierup.reference.evaluate.evaluate", fails)
    with pytest.raises(tierup.InputError, match="nobody thought of this"):
        loaded(x=X)
    assert loaded.report().tier == 2
    assert loaded.report().counts.rollbacks == 0


def test_other_errors_are_not_answered_otherwise(tmp_path: Path) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    loaded = on_tier_2(saved(tmp_path, perceptron()), tmp_path)
    broken(loaded, interrupted)
    with pytest.raises(KeyboardInterrupt):
        loaded(x=X)
    assert loaded.report().tier == 2


def test_a_plan_that_fails_is_found_before_a_call_meets_it(tmp_path: Path) -> None:
    loaded = on_tier_2(saved(tmp_path, perceptron()), tmp_path)
    broken(loaded)
    loaded._caring().sample_anew(loaded)
    loaded._check_ahead()
    assert loaded.report().tier == 0
    assert loaded(x=X)["y"].shape == (3, 33)


def test_who_forces_a_tier_hears_what_is_wrong_with_it(tmp_path: Path) -> None:
    config = tierup.Config(cache_dir=tmp_path / "cache", data_dir=tmp_path / "data", force_tier=1)
    loaded = tierup.load(perceptron(), config=config)
    broken(loaded)
    with pytest.raises(tierup.InputError, match="nobody thought of this"):
        loaded(x=X)
