"""The way from the baseline to tier 1: in the background, waited for, stopped in the middle, and gone wrong."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from tests.security.models import model, node, value
from tests.store.samples import entries, floats, perceptron, saved, settings

import tierup
from tierup.adapt import builders, keeping, planning, proofs, tiering
from tierup.adapt.background import NO_TARGET, Background, Climb
from tierup.adapt.builders import Built
from tierup.adapt.messages import Failure, Identify, Job, PlanModel
from tierup.adapt.tiering import Refusal, tier_up_quietly
from tierup.adapt.workers import WorkersUnavailable
from tierup.store.plans import Plans, cache_parts
from tierup.store.source import FileSource

X = floats(3, 40)
CLOSE = {"rtol": 0, "atol": 2e-6}  # probabilities; both tiers round sums of 64 in f32, in different orders


@pytest.fixture(autouse=True)
def _no_forced_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")


class Gate:
    """Holds the work in the background where it asks a worker for a plan, until it is opened."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, jobs: Sequence[Job], **rest: Any) -> Any:
        self.reached.set()
        assert self.open.wait(60)
        return self._real(jobs, **rest)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    held = Gate(tiering.run_jobs)
    monkeypatch.setattr(tiering, "run_jobs", held)
    yield held
    held.open.set()


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_the_baseline_answers_until_kernels_are_there(form: str, tmp_path: Path) -> None:
    proto = perceptron()
    source: Any = {"path": saved(tmp_path, proto), "bytes": proto.SerializeToString(), "proto": proto}[form]
    loaded = tierup.load(source, config=settings(tmp_path))
    first = loaded(x=X)["y"]
    report = loaded.settle(timeout_s=120).to_dict()
    assert (report["settled"], report["tier"], report["reason"]) == (True, 1, "")
    counters = report["counters"]
    assert counters["builds"] == report["kernels"] > 0
    assert (counters["swaps"], counters["fallback_nodes"], counters["calls"]) == (1, 0, 1)
    np.testing.assert_allclose(loaded(x=X)["y"], first, **CLOSE)
    assert len(entries(tmp_path)) == (form != "proto")
    assert not list((tmp_path / "cache" / "plans").glob("*.onnx"))  # what bytes were handed to the worker in
    again = tierup.load(source, config=settings(tmp_path)).settle(timeout_s=120).to_dict()
    assert again["counters"]["builds"] == 0  # the second one finds plan or kernels in the cache
    assert again["tier"] == 1


@pytest.mark.parametrize(("adapt", "threads", "begun"), [(True, 2, True), (False, 2, True), (False, 1, False)], ids=str)
def test_a_file_is_planned_while_it_is_read(
    adapt: bool, threads: int, begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that is begun then is the one that the climb asks for."""
    ahead: list[Job] = []
    asked: list[Job] = []

    def refuse(jobs: Sequence[Job], **rest: Any) -> list[Failure]:
        asked.extend(jobs)
        return [Failure("not today")]

    monkeypatch.setattr(builders, "prepare", ahead.append)
    monkeypatch.setattr(tiering, "run_jobs", refuse)
    monkeypatch.setattr("tierup.profile.machine.measure_once", lambda folder: None)
    config = tierup.Config(cache_dir=tmp_path / "cache", data_dir=tmp_path / "data", adapt=adapt, threads=threads)
    with tierup.load(saved(tmp_path, perceptron()), config=config) as model:
        model(x=X)
        model.settle()
    assert ahead == (asked[:1] if begun else [])
    assert len(asked) == 1


def test_force_tier_0_stays_there(tmp_path: Path) -> None:
    report = tierup.load(perceptron(), config=settings(tmp_path, force_tier=0)).settle().to_dict()
    assert (report["tier"], report["settled"], report["counters"]["builds"]) == (0, True, 0)


def test_force_tier_1_is_there_at_once(tmp_path: Path) -> None:
    report = tierup.load(perceptron(), config=settings(tmp_path, force_tier=1)).report().to_dict()
    assert (report["tier"], report["settled"]) == (1, True)
    assert report["counters"]["builds"] == report["kernels"]
    assert report["counters"]["swaps"] == 0  # nothing was there before


def test_settle_gives_up_after_its_time(tmp_path: Path, gate: Gate) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    report = loaded.settle(timeout_s=0.01)
    assert not report.to_dict()["settled"]
    assert "being built" in str(report)
    gate.open.set()
    assert loaded.settle(timeout_s=120).to_dict()["settled"]
    assert loaded.report().tier == 1


def test_a_frozen_model_does_not_change(tmp_path: Path, gate: Gate) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    assert gate.reached.wait(60)
    before = loaded(x=X)["y"].tobytes()
    loaded.freeze()
    assert loaded.settle(timeout_s=0).to_dict()["settled"]
    gate.open.set()
    wait_for_background(tmp_path)
    assert (loaded.report().tier, loaded.report().to_dict()["counters"]["swaps"]) == (0, 0)
    assert loaded(x=X)["y"].tobytes() == before


def test_a_model_is_closed_while_kernels_are_built(tmp_path: Path, gate: Gate) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    assert gate.reached.wait(60)
    loaded.close()
    gate.open.set()
    wait_for_background(tmp_path)
    assert loaded.program is None
    with pytest.raises(tierup.TierupError, match="closed"):
        loaded(x=X)
    with pytest.raises(tierup.TierupError, match="closed"):
        _ = loaded.imported


def test_a_dropped_model_is_gone_while_kernels_are_built(tmp_path: Path, gate: Gate) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    assert gate.reached.wait(60)
    gone, origin = weakref.ref(loaded), weakref.ref(loaded._origin)
    del loaded
    gc.collect()
    assert gone() is None
    gate.open.set()
    wait_for_background(tmp_path)
    gc.collect()
    assert origin() is None


def wait_for_background(folder: Path) -> None:
    """Everything submitted so far is done when a later model is."""
    other = folder / "later"
    other.mkdir()
    assert tierup.load(perceptron(9), config=settings(other)).settle(timeout_s=120).to_dict()["settled"]


def test_a_worker_that_fails_leaves_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tiering, "run_jobs", lambda *_, **__: [Failure("the planner has a cold")])
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    report = loaded.settle(timeout_s=120).to_dict()
    assert (report["tier"], report["settled"], report["reason"]) == (0, True, "the planner has a cold")
    assert "stays as it is" in caplog.text
    assert loaded(x=X)["y"].shape == (3, 33)


def test_an_error_in_the_background_leaves_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(tiering, "restore", fail)
    report = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path)).settle(timeout_s=120).to_dict()
    assert (report["tier"], report["reason"]) == (0, "ZeroDivisionError: nobody thought of this")
    assert "Traceback" in caplog.text


def test_without_workers_the_plan_is_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise WorkersUnavailable("no processes today")

    monkeypatch.setattr(tiering, "run_jobs", none)
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    assert loaded.settle(timeout_s=120).tier == 1
    assert len(entries(tmp_path)) == 1


def test_where_nothing_can_be_left_for_it_the_plan_is_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk models stayed on the baseline: a worker had no room for what it was to leave for us."""
    path = saved(tmp_path, perceptron())

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    config, run = settings(tmp_path), tiering.run_jobs
    with monkeypatch.context() as patch:
        patch.setattr(Plans, "complete", full)
        job = PlanModel(str(path), FileSource(path).stamp, config.cache_path, cache_parts("f32"), 2)
        reply = planning.plan_model(job)
    assert isinstance(reply, Failure)
    assert reply.here
    assert "No space left" in reply.reason

    def answer(jobs: Sequence[Job], **options: Any) -> Any:
        return [reply] if isinstance(jobs[0], PlanModel) else run(jobs, **options)

    monkeypatch.setattr(tiering, "run_jobs", answer)
    assert tierup.load(path, config=config).settle(timeout_s=120).tier == 1


def test_a_machine_without_a_target_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "target_of", lambda identity: None)
    monkeypatch.setattr(planning, "target_of", lambda identity: None)
    report = tierup.load(perceptron(), config=settings(tmp_path)).settle(timeout_s=120).to_dict()
    assert (report["tier"], report["reason"]) == (0, NO_TARGET)
    with pytest.raises(tierup.ConfigError, match="AVX2"):
        tierup.load(perceptron(), config=settings(tmp_path, force_tier=1))


def test_a_model_without_kernels_stays_where_it_is(tmp_path: Path) -> None:
    proto = model([node("Bernoulli", ["x"], ["y"])], [value("x", ["n"])], [value("y", ["n"])])
    for source in (proto, saved(tmp_path, proto)):
        report = tierup.load(source, config=settings(tmp_path)).settle(timeout_s=120).to_dict()
        assert (report["tier"], report["reason"]) == (0, "no part of the model compiles to kernels")
    assert entries(tmp_path) == []


@pytest.mark.parametrize("form", ["path", "proto"])
def test_a_proof_can_refuse_a_kernel(form: str, tmp_path: Path) -> None:
    source: Any = perceptron() if form == "proto" else saved(tmp_path, perceptron())
    loaded = tierup.load(source, config=settings(tmp_path, force_tier=0))
    seen: list[int] = []

    def refuse(texts: Sequence[str], kernels: Sequence[Built]) -> Sequence[Refusal]:
        seen.append(len(texts))
        return [Refusal(1, "it is off by one")]

    climb = Climb("perceptron", loaded._go_live, loaded._origin, loaded._progress, settings(tmp_path))
    tier_up_quietly(climb, refuse)
    report = loaded.report().to_dict()
    assert seen == [3, 2, 1]  # each plan without the second kernel of the one before
    assert (report["tier"], report["kernels"], report["counters"]["refusals"]) == (1, 1, 2)
    assert {row["reason"] for row in report["refused_regions"]} == {"it is off by one"}
    np.testing.assert_allclose(loaded(x=X)["y"], tierup.load(perceptron())(x=X)["y"], **CLOSE)
    tier_up_quietly(climb, lambda texts, kernels: [])
    report = loaded.report().to_dict()
    assert (report["tier"], report["kernels"], report["refused_regions"]) == (1, 3, [])
    assert report["counters"]["fallback_nodes"] == 0


def test_nothing_is_left_to_serve(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path, force_tier=0))
    climb = Climb("perceptron", loaded._go_live, loaded._origin, loaded._progress, settings(tmp_path))
    tier_up_quietly(climb, lambda texts, kernels: [Refusal(slot, "it is wrong") for slot in range(len(kernels))])
    report = loaded.report().to_dict()
    assert (report["tier"], report["counters"]["refusals"]) == (0, 3)
    assert report["reason"] == "no kernel is left that may serve; the first was refused: it is wrong"
    assert entries(tmp_path) == []


def test_a_file_that_is_replaced_meanwhile_is_not_planned(tmp_path: Path, gate: Gate) -> None:
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path))
    assert gate.reached.wait(60)
    saved(tmp_path, perceptron(1), "new.onnx").replace(path)
    gate.open.set()
    report = loaded.settle(timeout_s=120).to_dict()
    assert report["tier"] == 0
    assert "is not the file that it was" in report["reason"]
    assert entries(tmp_path) == []


def test_a_new_model_is_identified_after_it_went_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all of a model can wait where nobody has asked what became of such a plan before."""
    asked: list[tuple[int, Job]] = []
    real = keeping.run_jobs

    def run(jobs: Sequence[Job], **rest: Any) -> Any:
        asked.extend((loaded.report().tier, job) for job in jobs)
        return real(jobs, **rest)

    monkeypatch.setattr(keeping, "run_jobs", run)
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path))
    loaded.settle(timeout_s=120)
    assert asked == [(1, Identify(os.path.abspath(path), FileSource(path).stamp))]
    assert len(entries(tmp_path)) == 1
    again = tierup.load(path, config=settings(tmp_path)).settle(timeout_s=120)
    assert (again.tier, again.counts.plan_hits, len(asked)) == (1, 1, 1)


@pytest.mark.parametrize("failing", ["job", "workers"])
def test_a_model_that_cannot_be_identified_serves_all_the_same(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(jobs: Sequence[Job], **rest: Any) -> Any:
        if failing == "workers":
            raise WorkersUnavailable("none today")
        return [Failure("the disk is gone")]

    monkeypatch.setattr(keeping, "run_jobs", run)
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    assert loaded.settle(timeout_s=120).tier == 1
    assert entries(tmp_path) == []
    assert "is not kept: " in caplog.text


def test_calls_go_on_while_the_program_is_swapped(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    expected = loaded(x=X)["y"]
    stop, wrong = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            if not np.allclose(loaded(x=X)["y"], expected, **CLOSE):
                wrong.append(loaded.report().tier)

    callers = [threading.Thread(target=work) for _ in range(2)]
    for caller in callers:
        caller.start()
    report = loaded.settle(timeout_s=120)
    stop.set()
    for caller in callers:
        caller.join()
    assert (report.tier, wrong) == (1, [])


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TIERUP_FORCE_TIER"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=environment
    )


@pytest.mark.parametrize("end", ["", "import sys; sys.exit(0)", "loaded.settle(0.3)", "import time; del loaded"])
def test_the_process_ends_while_kernels_are_built(end: str, tmp_path: Path) -> None:
    """At once, without a word, and without waiting."""
    path, cache = saved(tmp_path, perceptron()), tmp_path / "cache"
    done = run_python(f"""
import numpy as np, tierup
loaded = tierup.load({str(path)!r}, config=tierup.Config(cache_dir={str(cache)!r}, adapt=False))
loaded(x=np.ones((1, 40), np.float32))
{end}
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_forked_child_keeps_what_it_has(tmp_path: Path, gate: Gate) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    assert gate.reached.wait(60)
    expected = loaded(x=X)["y"]
    child = os.fork()
    if child == 0:
        report = loaded.settle(timeout_s=5).to_dict()
        same = np.array_equal(loaded(x=X)["y"], expected)
        os._exit(0 if same and report["tier"] == 0 and "forked" in report["reason"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_work_is_done_in_order_and_the_thread_goes(tmp_path: Path) -> None:
    done: list[str] = []
    last = threading.Event()

    def run(climb: Climb) -> None:
        done.append(climb.name)
        if climb.name == "4":
            last.set()

    background = Background(run)
    with tierup.load(saved(tmp_path, perceptron()), config=tierup.Config(force_tier=0)) as held:
        for number in range(5):
            background.submit(Climb(str(number), held._go_live, held._origin, held._progress, held._config))
        assert last.wait(60)
    for thread in threading.enumerate():
        if thread.name == "tierup-background" and thread is not threading.current_thread():
            thread.join(60)
    assert done == ["0", "1", "2", "3", "4"]
    assert not background._running


def test_the_report_has_every_kernels_error(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    cold = tierup.load(path, config=settings(tmp_path)).settle(timeout_s=120).to_dict()
    assert [proof["kernel"] for proof in cold["proofs"]] == list(range(cold["kernels"]))
    for proof in cold["proofs"]:
        assert 0 <= proof["rms"] <= proof["worst"]
    again = tierup.load(path, config=settings(tmp_path))
    assert again.report().to_dict()["proofs"] == cold["proofs"]
    assert "kernels proved" in str(again.report())


def test_kernels_that_were_not_proved_serve_only_who_asked_for_them(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    tierup.load(path, config=settings(tmp_path, force_tier=1))
    loaded = tierup.load(path, config=settings(tmp_path))
    assert loaded.report().to_dict()["cache"]["plan_hits"] == 0
    assert loaded.settle(timeout_s=120).to_dict()["proofs"]
    # Nor do they take the place of those that were: the next process would start on the baseline.
    with tierup.load(path, config=settings(tmp_path, force_tier=2)) as forced:
        forced(x=X)
    assert tierup.load(path, config=settings(tmp_path)).report().to_dict()["cache"]["plan_hits"] == 1


def test_models_with_the_same_kernels_build_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names and weights of a region are no part of it."""
    first = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path))
    first(x=X)
    assert first.settle(timeout_s=120).counts.builds > 0
    proto = perceptron()
    for weight in proto.graph.initializer:
        changed = numpy_helper.to_array(weight) * np.float32(0.5)
        weight.CopyFrom(numpy_helper.from_array(changed, weight.name))
    proved = list[Any]()
    monkeypatch.setattr(proofs, "run_jobs", lambda jobs, **_: proved.extend(jobs) or [])
    second = tierup.load(saved(tmp_path, proto, "second.onnx"), config=settings(tmp_path))
    second(x=X)
    counts = second.settle(timeout_s=120).counts
    assert (counts.plan_hits, counts.builds, counts.object_hits) == (0, 0, first.report().kernels)
    assert (second.report().tier, proved) == (1, [])
