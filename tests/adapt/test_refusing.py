"""One kernel that may not serve, whatever the reason: the rest of the plan goes live without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.faults.changes import crashes, returns_at_once, writes_nan
from tests.store.samples import entries, floats, perceptron, saved, settings

import tierup
from tierup.adapt import proofs, tiering
from tierup.adapt.builders import Built
from tierup.adapt.learn import machine_row
from tierup.adapt.messages import Failure
from tierup.adapt.proofs import Verdicts
from tierup.codegen.target import target_of
from tierup.lower.parse import parse_program
from tierup.profile.identity import identify
from tierup.store.learned import Store
from tierup.store.objects import object_key
from tierup.store.rows import Quarantine

X = floats(3, 40)
CLOSE = {"rtol": 0, "atol": 2e-6}  # probabilities; both tiers round sums of 64 in f32, in different orders
Change = Callable[[str, Built], Built | Failure]

pytestmark = pytest.mark.skipif(identify().architecture != "x86_64", reason="the injected code is x86's")


@pytest.fixture(autouse=True)
def _no_forced_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    known = dict(proofs.refusals_of.__kwdefaults__ or {})
    monkeypatch.setattr(proofs.refusals_of, "__kwdefaults__", {**known, "verdicts": Verdicts()})


def spoiled(kind: str, how: Callable[[bytes, int], bytes]) -> Change:
    """Change the code of kernels with this name."""

    def change(text: str, built: Built) -> Built | Failure:
        program = parse_program(text)
        result = next(number for number, buffer in enumerate(program.buffers) if buffer.mode == "out")
        code = how(built.code, result) if program.name == kind else built.code
        return msgspec.structs.replace(built, code=code)

    return change


def missing(text: str, built: Built) -> Built | Failure:
    return Failure("LLVM has a cold") if parse_program(text).name == "rows" else built


def inject(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    real = tiering._build

    def build(*arguments: Any, **options: Any) -> list[Built | Failure]:
        results = zip(arguments[1], real(*arguments, **options), strict=True)
        return [change(text, built) if isinstance(built, Built) else built for text, built in results]

    monkeypatch.setattr(tiering, "_build", build)


def check(loaded: tierup.Model, reason: str) -> dict[str, Any]:
    """Two of three kernels serve, the softmax is the reference's."""
    report = loaded.report().to_dict()
    assert (report["tier"], report["kernels"], report["reason"]) == (1, 2, "")
    (row,) = report["refused_regions"]
    assert row["region"].startswith("rows region (")
    assert reason in row["reason"]
    assert report["counters"]["fallback_nodes"] > 0
    assert f"{row['region']} was refused" in str(loaded.report())
    np.testing.assert_allclose(loaded(x=X)["y"], tierup.load(perceptron())(x=X)["y"], **CLOSE)
    return report


@pytest.mark.parametrize("form", ["path", "proto"])
@pytest.mark.parametrize(
    ("change", "reason", "kept"),
    [
        (spoiled("rows", returns_at_once), "", True),
        (spoiled("rows", writes_nan), "", True),
        (spoiled("rows", crashes), "SIGILL", False),
        (missing, "LLVM has a cold", False),
    ],
    ids=["returns at once", "writes NaN", "crashes", "is not built"],
)
def test_one_kernel_costs_its_own_region(
    change: Change, reason: str, kept: bool, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = perceptron() if form == "proto" else saved(tmp_path, perceptron())
    with monkeypatch.context() as patch:
        inject(patch, change)
        loaded = tierup.load(source, config=settings(tmp_path))
        loaded.settle(timeout_s=120)
    report = check(loaded, reason)
    assert report["counters"]["refusals"] == 1
    assert [e["stage"] for e in report["events"] if e["event"] == "refused"] == ["kernel"]
    if form == "path":
        assert len(entries(tmp_path)) == kept  # what came of the moment is tried again
        again = tierup.load(source, config=settings(tmp_path))
        assert again.report().tier == kept
        if kept:
            check(again, reason)
        else:
            assert again.settle(timeout_s=120).to_dict()["kernels"] == 3


def test_a_caller_that_forces_a_tier_gets_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, missing)
    check(tierup.load(perceptron(), config=settings(tmp_path, force_tier=1)), "LLVM has a cold")


def closed_and_wrong(text: str, built: Built) -> Built | Failure:
    """A variant of the softmax, which has no sizes to be told, writes nothing."""
    program = parse_program(text)
    wrong = program.name == "rows" and program.n_sizes == 0
    return msgspec.structs.replace(built, code=returns_at_once(built.code, 0)) if wrong else built


def test_a_variant_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, closed_and_wrong)
    monkeypatch.setattr(tiering, "_try", lambda *_: True)  # whether it is faster is not the question
    config = tierup.Config(cache_dir=tmp_path / "cache", data_dir=tmp_path / "data", adapt=True)
    loaded = tierup.load(saved(tmp_path, perceptron()), config=config)
    for _ in range(2):
        loaded(x=X)
    report = loaded.settle(timeout_s=120).to_dict()
    assert (report["tier"], report["reason"], report["counters"]["refusals"]) == (2, "", 1)
    assert (report["kernels"], report["refused_regions"], report["counters"]["fallback_nodes"]) == (5, [], 0)
    np.testing.assert_allclose(loaded(x=X)["y"], tierup.load(perceptron())(x=X)["y"], **CLOSE)
    assert loaded.program is not None
    assert sorted(slot for slot, *_ in loaded.program.variants()) == [0, 1]


def test_a_kernel_in_quarantine_costs_its_own_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target = saved(tmp_path, perceptron()), target_of(identify())
    assert target is not None
    texts: list[str] = []
    inject(monkeypatch, lambda text, built: (texts.append(text), built)[1])
    tierup.load(path, config=settings(tmp_path)).settle(timeout_s=120)
    text = next(text for text in texts if parse_program(text).name == "rows")
    machine = machine_row()
    with Store(str(tmp_path / "data")) as store:
        store.put([machine, Quarantine(object_key(text, target).digest, machine.key, "it was wrong on Monday")])
    for entry in entries(tmp_path):
        entry.unlink()
    monkeypatch.setattr(tiering, "_try", lambda *_: True)  # whether it is faster is not the question
    config = tierup.Config(cache_dir=tmp_path / "cache", data_dir=tmp_path / "data", adapt=True)
    loaded = tierup.load(path, config=config)
    loaded.settle(timeout_s=120)
    check(loaded, "it is in quarantine: it was wrong on Monday")
