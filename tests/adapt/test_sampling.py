"""Live calls that are answered again: what counts as wrong, how often it is looked, and kernels that are found out."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.adapt.test_care import X, compared, named, settings
from tests.store.samples import entries, floats, perceptron, saved

import tierup
from tierup import _native
from tierup.adapt import builders, check, tiering
from tierup.adapt.care import Care
from tierup.adapt.check import check_call, difference, is_near
from tierup.adapt.memory import MEMORY, place_of
from tierup.adapt.messages import CheckCall, CheckedCall, Job, Reply
from tierup.adapt.sampling import (
    FIRST_CALLS,
    LEAST_CALLS,
    LEAST_SHORT_CALLS,
    MOST_CALLS,
    SAMPLER,
    Sample,
    Sampler,
    least_calls,
    next_sample,
    pause_s,
)
from tierup.adapt.tensors import TensorData, records_of
from tierup.codegen.target import target_of
from tierup.profile.identity import identify
from tierup.runtime.feeds import native_inputs
from tierup.runtime.progress import Progress
from tierup.store.learned import Store
from tierup.store.objects import ObjectCache
from tierup.store.rows import Decision, Quarantine


def test_errors_as_large_as_the_baselines_are_right() -> None:
    wide = np.random.default_rng(0).standard_normal(1000)
    narrow = wide.astype(np.float32)
    assert difference("y", narrow, narrow, wide) == ""
    assert difference("y", (wide * (1 + 1e-6)).astype(np.float32), narrow, wide) == ""
    wrong = narrow.copy()
    wrong[7] += np.float32(0.01)
    assert difference("y", wrong, narrow, wide).startswith("'y' has ")
    assert "RMS" in difference("y", (wide * (1 + 2e-5)).astype(np.float32), narrow, wide)


def test_what_is_near_the_baseline_needs_no_wide_answer() -> None:
    draw = np.random.default_rng(0)
    wide = draw.standard_normal(1000)
    narrow = wide.astype(np.float32)
    near = (wide * (1 + 2e-6 * draw.standard_normal(1000))).astype(np.float32)
    assert is_near(near, narrow)
    assert not difference("y", near, narrow, wide)
    far, lost = near.copy(), near.copy()
    far[7] += np.float32(1e-3)
    lost[7] = np.nan
    assert not is_near(far, narrow)
    assert not is_near(lost, narrow)
    assert not is_near(lost, lost)  # what is not finite is for `difference` to judge
    assert not is_near(near[:999], narrow)
    assert is_near(np.array([1, 2]), np.array([1, 2]))
    assert not is_near(np.array([1, 2]), np.array([1, 3]))
    assert is_near(np.zeros(0, np.float32), np.zeros(0, np.float32))


def test_a_right_answer_is_checked_without_the_wide_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, perceptron())
    inputs = records_of({"x": X})
    outputs = records_of(tierup.load(path, config=tierup.Config(force_tier=0))(x=X))
    assert inputs is not None
    assert outputs is not None
    asked = []
    monkeypatch.setattr(check, "_named", lambda *job, plain=check._named: (asked.append(job[-1]), plain(*job))[1])
    assert check_call(CheckCall(str(path), None, inputs, outputs)).verdict == "same"
    assert asked == [False]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_must_not_be_new(bad: float) -> None:
    wide = np.ones(5)
    narrow = wide.astype(np.float32)
    answer = narrow.copy()
    answer[2] = bad
    assert "not finite" in difference("y", answer, narrow, wide)
    assert difference("y", answer, answer, answer.astype(np.float64)) == ""


def test_integers_must_agree_where_the_baseline_is_sure() -> None:
    narrow, wide = np.array([1, 2, 3]), np.array([1, 2, 4])
    assert difference("y", np.array([1, 2, 9]), narrow, wide) == ""  # on a jump
    assert difference("y", np.array([1, 7, 3]), narrow, wide) == "'y' has 1 of 3 elements wrong"
    assert "shape" in difference("y", np.zeros(4, int), narrow, wide)


def test_samples_are_taken_within_a_budget() -> None:
    assert [next_sample(number, 1e9, 1e9) for number in range(len(FIRST_CALLS))] == list(FIRST_CALLS)
    later = len(FIRST_CALLS)
    assert next_sample(later, 1000, pause_s(0.1, 0.001)) == 20_000  # 20 s, of which 0.1 s is 0.5%
    assert next_sample(later, 1000, pause_s(1e-6, 0.001)) == 500  # half a second, of which 1 ms is 0.2%
    assert next_sample(later, 1000, 1e-6) == LEAST_CALLS
    assert next_sample(later, 1e6, 1e6) == MOST_CALLS
    short, long = least_calls(2e-6, 5e-5), least_calls(0.01, 5e-5)
    assert (short, long) == (LEAST_SHORT_CALLS, LEAST_CALLS)
    assert next_sample(0, 1000, 1e-6, short) == FIRST_CALLS[0]
    assert next_sample(later, 1000, 1e-6, short) == LEAST_SHORT_CALLS


def test_one_thread_checks_all_samples_and_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[tuple[int, int]]()

    class Model:
        def told(self, sample: Sample, found: CheckedCall | str) -> None:
            checked.append((sample.number, threading.get_ident()))
            if sample.number == 2:
                raise ZeroDivisionError

    monkeypatch.setattr("tierup.adapt.sampling._checked", lambda *_: "there is no worker")
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    model, sampler, kept = Model(), Sampler(), list[weakref.ref[Any]]()
    for number in range(4):  # the third fails, and another thread takes the fourth
        source: Any = Model()
        kept.append(weakref.ref(source))
        assert sampler.check(Sample((), (), number, 0), source, tierup.Config(), model.told, bool)
        assert sampler.wait(60)
    del source
    numbers, threads = zip(*checked, strict=True)
    assert numbers == (0, 1, 2, 3)
    assert len(set(threads[:3])) == 1
    assert [found() for found in kept] == [None] * 4


def test_a_call_that_the_rival_answered_is_not_the_last_sample(climbed: tierup.Model) -> None:
    assert climbed.program is not None
    other = climbed.program.number + 1000
    climbed.sample_after(0)
    checked = climbed.report().checked
    climbed.sample_call({"x": X}, climbed(x=X), other)
    climbed(x=X)
    assert SAMPLER.wait(60)
    assert climbed.report().checked > checked


def test_checks_press_while_somebody_waits_for_them(climbed: tierup.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed = list[bool]()

    def run(jobs: Sequence[Job], *, presses: Callable[[], bool], **_: Any) -> list[Reply]:
        pressed.append(presses())
        return [CheckedCall("same", "", 0.01) for _ in jobs]

    monkeypatch.setattr(builders, "run_jobs", run)
    assert climbed.program is not None
    for waits in (False, True):
        with climbed._progress.hurry() if waits else nullcontext():
            climbed.sample_call({"x": X}, climbed(x=X), climbed.program.number)
            assert SAMPLER.wait(60)
    assert pressed[0] is False
    assert pressed[-1] is True


def test_what_is_kept_of_calls_is_one_copy_and_bounded(tmp_path: Path) -> None:
    care = Care(Progress(), settings(tmp_path), "net")
    runner = _native.Runner([], [])

    def take(rows: int) -> tuple[Sample, tuple[TensorData, ...]]:
        x = np.ones((rows, 1 << 18), np.float32)
        taken = care.take_sample(runner, {"x": x}, {"y": x[:1]}, 1)
        assert taken is not None
        (call,) = care.calls_to_try(runner, ((x.shape,),))
        return taken, call.inputs

    taken, kept = take(1)
    assert kept[0].data is taken.inputs[0].data
    assert take(2)[1]
    assert take(3)[1]  # 6 MiB with the others: they go
    assert not care.calls_to_try(runner, (((1, 1 << 18),), ((2, 1 << 18),)))[1].inputs
    assert take(5)[1] == ()  # it is sampled, but too large to be kept


class Ran:
    """A runner whose calls took these times, one of each number of rows."""

    def __init__(self, times_s: dict[int, float], calls: dict[int, int]) -> None:
        self.program = SimpleNamespace(number=1)
        self._times_s, self._calls = times_s, calls

    def signatures(self) -> list[tuple[tuple[tuple[int, ...] | None, ...], int]]:
        return [(((rows, 8), None), count) for rows, count in self._calls.items()]

    def times(self) -> list[tuple[tuple[tuple[int, ...] | None, ...], int, int]]:
        return [(((rows, 8), None), 1, round(1e9 * taken)) for rows, taken in self._times_s.items()]


@pytest.mark.parametrize(
    ("calls", "tried"),
    [
        ({2: 1, 3: 1, 4: 1, 5: 1}, [4, 5]),  # the shortest, the longest and one between, unless they take long
        ({3: 1, 4: 1, 5: 1, 6: 1}, [4, 3, 5]),  # it is not known what 6 take
        ({1: 9, 2: 5, 3: 5, 4: 1}, [1]),
        ({2: 5, 3: 9, 4: 1}, [3, 4]),
    ],
)
def test_a_plan_is_tried_on_few_calls_that_tell_most(tmp_path: Path, calls: dict[int, int], tried: list[int]) -> None:
    care = Care(Progress(), settings(tmp_path), "net")
    for rows in calls:
        care.take_sample(_native.Runner([], []), {"x": np.ones((rows, 8), np.float32)}, {}, 1)
    runner: Any = Ran({1: 0.9, 2: 0.2, 3: 0.01, 4: 0.001, 5: 0.1}, calls)
    assert [call.signature for call in care.calls_to_try(runner, ())] == [((rows, 8),) for rows in tried]


def sample(number: int) -> Sample:
    return Sample((TensorData("x", 1, (1,), bytes([number, 0, 0, 0])),), (), number, 1)


def test_two_that_are_suspicious_make_one_that_is_wrong(tmp_path: Path) -> None:
    care = Care(Progress(), settings(tmp_path), "net")
    odd = CheckedCall("suspicious", "it is odd", 0.1)
    assert care.judge(sample(1), odd) == ""
    assert care.judge(sample(1), odd) == ""  # the same inputs say nothing new
    assert care.judge(sample(2), CheckedCall("same", "", 0.1)) == ""
    assert care.judge(sample(3), odd) == ""
    assert care.judge(sample(4), odd) == "it is odd; at most 2 calls got such answers"
    assert care.checked == 5
    assert [found.number for found, _ in care.evidence] == [1, 1, 3, 4]


def test_a_worker_tells_right_from_wrong(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    right = tierup.load(path, config=tierup.Config(force_tier=0))(x=X)
    inputs, outputs = records_of({"x": X}), records_of(right)
    assert inputs is not None
    assert outputs is not None
    assert check_call(CheckCall(str(path), None, inputs, outputs)).verdict == "same"
    wrong = records_of({"y": right["y"] * np.float32(1.001)})
    assert wrong is not None
    found = check_call(CheckCall(str(path), None, inputs, wrong))
    assert found.verdict == "different"
    assert "'y'" in found.reason


def test_what_was_asked_for_in_bf16_is_judged_as_such(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    exact = tierup.load(path, config=tierup.Config(force_tier=0))(x=X)["y"]

    def verdict(answer: Any, precision: str) -> str:
        inputs, outputs = records_of({"x": X}), records_of({"y": answer.astype(np.float32)})
        assert inputs is not None
        assert outputs is not None
        return check_call(CheckCall(str(path), None, inputs, outputs, precision)).verdict

    rounded = exact * (1 + 2.0**-9)  # a rounding of bf16
    assert verdict(rounded, "bf16") == "same"
    assert verdict(rounded, "f32") == "different"
    assert verdict(exact * 1.2, "bf16") == "different"


@pytest.fixture
def climbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tierup.Model:
    """A model on tier 1, under care."""
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    monkeypatch.setattr("tierup.profile.machine.measure_once", lambda folder: None)
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (compared(0.5),))
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    loaded(x=X)
    assert loaded._progress.wait(120)
    assert loaded.report().tier == 1
    return loaded


def corrupt(loaded: tierup.Model) -> str:
    """Overwrite the beginning of the first kernel: it returns at once, and writes nothing."""
    target = target_of(identify())
    assert target is not None
    key = loaded._serving.keys[0]
    code = ObjectCache(loaded._config.cache_dir / "objects").get_digest(key, target)
    assert code is not None
    assert loaded.program is not None
    bad = _native.Code([b"\x31\xc0\xc3" + code[3:]])  # xor eax, eax; ret
    loaded.program.publish({0: (bad.addresses[0], bad)})
    return key


def call(loaded: tierup.Model, number: int) -> Any:
    """One call, and what it led to: samples are checked in a process of their own."""
    answer = loaded(x=floats(3, 40) + np.float32(number))["y"]
    assert SAMPLER.wait(60)
    return answer


@pytest.mark.skipif(identify().architecture != "x86_64", reason="the corrupt code is x86's")
def test_a_kernel_that_is_corrupted_after_its_proof_is_found(climbed: tierup.Model, tmp_path: Path) -> None:
    good = tierup.load(tmp_path / "model.onnx", config=tierup.Config(force_tier=0))
    key = corrupt(climbed)
    wrong = 0
    for number in range(sum(FIRST_CALLS)):
        right = good(x=floats(3, 40) + np.float32(number))["y"]
        wrong += not np.allclose(call(climbed, number), right, atol=1e-5)
        if climbed.report().to_dict()["counters"]["quarantined"]:
            break
    report = climbed.report().to_dict()
    assert 1 <= wrong <= sum(FIRST_CALLS)  # the first sample finds it, or the next where a busy machine leaves that out
    assert (report["tier"], report["counters"]["quarantined"]) == (0, 1)
    assert named(report, "quarantined")[0]["kernels"] == (key,)
    assert f"at most {wrong} calls" in report["reason"]
    assert report["evidence"][0]["call"] == named(report, "quarantined")[0]["call"]
    for number in range(5):  # from now on it is right
        right = good(x=floats(3, 40) + np.float32(number))["y"]
        np.testing.assert_allclose(call(climbed, number), right, atol=1e-6)
    assert MEMORY.wait(60)
    with Store(place_of(climbed._config)) as store:
        assert [found.row.key for found in store.all(Quarantine)] == [key]
        assert [found.row.outcome for found in store.all(Decision)] == ["quarantined"]
    assert entries(tmp_path) == []


@pytest.mark.skipif(identify().architecture != "x86_64", reason="the corrupt code is x86's")
def test_a_warm_model_without_a_predecessor_is_taken_out_too(climbed: tierup.Model, tmp_path: Path) -> None:
    warm = tierup.load(tmp_path / "model.onnx", config=climbed._config)
    assert warm.report().tier == 1
    expected = climbed(x=X)["y"]
    corrupt(warm)
    warm.sample_after(2)
    for _ in range(2):
        call(warm, 0)
    # It was checked before it was kept: the first check here waits until the process has started.
    report = warm.report().to_dict()
    assert (warm.report().checked, report["counters"]["quarantined"]) == (0, 0)
    assert LEAST_CALLS < report["checked_every_calls"] <= MOST_CALLS
    # The next sample finds it, or another: memory that the kernel should write may still hold the right answer to X,
    # and a busy machine leaves checks out.
    for number in range(1, 1 + sum(FIRST_CALLS)):
        warm.sample_after(1)
        call(warm, number)
        if warm.report().to_dict()["counters"]["quarantined"]:
            break
    assert warm.report().to_dict()["counters"]["quarantined"] == 1, warm.report()
    np.testing.assert_allclose(warm(x=X)["y"], expected, atol=1e-6)
    assert warm.report().tier == 0


@pytest.mark.skipif(identify().architecture != "x86_64", reason="the corrupt code is x86's")
def test_a_wrong_kernel_is_found_before_a_call_meets_it(climbed: tierup.Model) -> None:
    beside = _native.Runner(native_inputs(climbed._inputs), [output.name for output in climbed._outputs])
    beside.program = climbed.program
    beside.call_dict({"x": -X})  # lest memory that the kernel should write still hold the right answer
    corrupt(climbed)
    calls = climbed.calls
    climbed._check_ahead()  # as settle() does when nothing is left to improve
    assert SAMPLER.wait(60)
    report = climbed.report().to_dict()
    assert (report["tier"], report["counters"]["quarantined"], climbed.calls) == (0, 1, calls)


def test_what_settling_has_checked_is_not_checked_beside_the_first_calls(climbed: tierup.Model) -> None:
    assert climbed.settle().checked == 1  # there was one call, whose inputs are kept
    for number in range(sum(FIRST_CALLS) + 1):
        call(climbed, number)
    assert climbed.settle().checked == 1


def test_right_answers_are_left_alone(climbed: tierup.Model) -> None:
    for number in range(sum(FIRST_CALLS) + 1):
        call(climbed, number)
    report = climbed.report().to_dict()
    assert report["checked_calls"] == len(FIRST_CALLS)
    assert (report["tier"], report["counters"]["quarantined"], report["evidence"]) == (1, 0, [])
