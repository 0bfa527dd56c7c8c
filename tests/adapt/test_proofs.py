"""Proofs of plans: in workers, once for each kernel, with a reason for whatever a kernel does to its worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.adapt.networks import encoder, perceptron
from tests.codegen.running import HOST
from tests.store.samples import floats, saved, settings
from tests.store.samples import perceptron as stored

import tierup
from tierup.adapt import proofs
from tierup.adapt.builders import Builders
from tierup.adapt.messages import REPLIES, Failure, Inbox, PlacedCase, PlannedModel, Prove, Reply, fits, pack
from tierup.adapt.planning import placed_cases
from tierup.adapt.proof import Proof, Refusal
from tierup.adapt.proofs import Verdicts, in_workers, refusals_of
from tierup.adapt.prove import prove_job
from tierup.adapt.workers import Workers
from tierup.codegen.objects import build
from tierup.frontends.onnx import load_onnx
from tierup.lower.tile import TileProgram
from tierup.runtime.compiled import compile_plan

PASSED = Proof(True, "", 1.5, 0.2, 0.2, 1000, 11, 0.01)


def planned() -> tuple[tuple[PlacedCase, ...], list[TileProgram]]:
    imported = load_onnx(perceptron())
    compiled = compile_plan(imported.graph, imported.weights, HOST)
    return placed_cases(compiled, imported.weights), list(compiled.programs)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.rest()


def test_the_kernels_of_a_plan_are_proved_in_workers(workers: Workers) -> None:
    cases, programs = planned()
    assert sorted(slot for case in cases for slot in case.slots) == list(range(len(programs)))

    def run(jobs: Sequence[Prove]) -> Sequence[Reply]:
        return workers.run(jobs, at_most=2)

    assert refusals_of(cases, build(programs, HOST), HOST, run=run, verdicts=Verdicts()) == []
    assert workers.running == 2
    wrong = [build(programs, HOST)[number] for number in (*range(1, len(programs)), 0)]  # all in other slots
    refused = refusals_of(cases, wrong, HOST, run=run, verdicts=Verdicts())
    assert [refusal.slot for refusal in refused] == [case.slots[-1] for case in cases]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(b"\x0f\x0b", "a worker was ended by SIGILL, twice"), (b"\xeb\xfe", "it took longer than 2 s")],
    ids=["crashes", "hangs"],
)
def test_what_ends_a_worker_is_refused(workers: Workers, code: bytes, reason: str) -> None:
    """An instruction that does not exist, and one that jumps to itself; the others are proved all the same."""
    cases, programs = planned()
    codes = build(programs, HOST)
    codes[1] = code

    def run(jobs: Sequence[Prove]) -> Sequence[Reply]:
        return workers.run(jobs, at_most=1, limit_s=2)

    if not HOST.triple.startswith("x86_64-"):
        pytest.skip("these are instructions of x86-64")
    assert refusals_of(cases, codes, HOST, run=run, verdicts=Verdicts()) == [Refusal(1, reason, lasts=False)]


def test_a_kernel_is_proved_once_in_a_process() -> None:
    cases, programs = planned()
    codes, asked = build(programs, HOST), list[Prove]()

    def run(jobs: Sequence[Prove]) -> Sequence[Reply]:
        asked.extend(jobs)
        return [PASSED if number else Failure("no") for number in range(len(jobs))]

    verdicts = Verdicts()
    for _ in range(2):
        assert refusals_of(cases, codes, HOST, run=run, verdicts=verdicts) == [
            Refusal(cases[0].slots[-1], "no", lasts=False)
        ]
    assert len(asked) == len(cases)
    other = [b"other", *codes[1:]]
    refusals_of(cases, other, HOST, run=run, verdicts=verdicts)
    assert len(asked) == len(cases) + 1


def test_equal_layers_are_one_case_of_one_slot() -> None:
    found = []
    for layers in (1, 3):
        imported = load_onnx(encoder(layers))
        found.append(placed_cases(compile_plan(imported.graph, imported.weights, HOST), imported.weights))
    assert len(found[0]) == len(found[1])
    assert {case.case for case in found[0]} == {case.case for case in found[1]}


def test_a_kernel_that_cannot_be_tried_is_refused() -> None:
    cases = [PlacedCase((3,), reason="it cannot be tried alone: because")]
    assert refusals_of(cases, [b""] * 4, HOST, run=lambda jobs: (), verdicts=Verdicts()) == [
        Refusal(3, "it cannot be tried alone: because")
    ]


def test_without_workers_this_process_proves(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    broken = Workers(("/does/not/exist",))
    monkeypatch.setattr(proofs, "run_jobs", lambda jobs, **limits: broken.run(jobs, at_most=1))
    cases, programs = planned()
    assert refusals_of(cases, build(programs, HOST), HOST, in_workers(1), verdicts=Verdicts()) == []
    assert "kernels are proved in this process: no worker could be started" in caplog.text


def test_proofs_travel() -> None:
    job = Prove(b"case", (b"code",), HOST)
    assert list(Inbox().messages(pack(PASSED), REPLIES)) == [PASSED]
    assert fits(job, PASSED)
    assert fits(job, Failure("no"))
    assert not fits(job, PlannedModel(b"", (), HOST))
    with pytest.raises(msgspec.MsgspecError):
        prove_job(job)


def test_a_model_goes_live_only_when_its_kernels_were_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder that gives every slot the code of another: the model stays on the baseline, and says why."""
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    good = tierup.load(saved(tmp_path, stored()), config=settings(tmp_path))
    report = good.settle(timeout_s=120).to_dict()
    assert (report["tier"], report["counters"]["refusals"]) == (1, 0)

    real = Builders.compile_texts

    def exchanged(self: Builders, texts: Sequence[str], target: object, *, urgent: bool = False) -> list[object]:
        results = real(self, texts, target, urgent=urgent)  # type: ignore[arg-type]
        return [*results[1:], results[0]]

    monkeypatch.setattr(Builders, "compile_texts", exchanged)
    other = tmp_path / "other"
    other.mkdir()
    bad = tierup.load(saved(other, stored()), config=settings(other))
    before = bad(x=floats(3, 40))["y"].tobytes()
    report = bad.settle(timeout_s=120).to_dict()
    assert (report["tier"], report["counters"]["swaps"]) == (0, 0)
    assert report["counters"]["refusals"] > 0
    assert "was refused: " in report["reason"]
    assert bad(x=floats(3, 40))["y"].tobytes() == before
