"""Tier 2: kernels with closed sizes for the signatures that calls come with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.test_attention import draw, exported
from tests.runtime.test_compiled import floats, perceptron

import tierup
from tierup.adapt import tiering
from tierup.adapt.background import BACKGROUND, Climb
from tierup.codegen.target import AVX512
from tierup.events import Compared
from tierup.frontends.onnx import load_onnx
from tierup.lower.tile import Arg, Loop
from tierup.runtime.compiled import compile_plan


@pytest.fixture(autouse=True)
def _no_forced_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")


def settings(folder: Path, **fields: Any) -> tierup.Config:
    return tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", threads=2, **fields)


def saved(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(perceptron().SerializeToString())
    return path


def test_variants_have_numbers_for_sizes() -> None:
    imported = load_onnx(perceptron())
    compiled = compile_plan(imported.graph, imported.weights, AVX512, [((9, 20),)])
    opened, closed = compiled.functions
    assert opened.signature is None
    assert closed.signature == ((9, 20),)
    assert all(kernel.kernel.program.n_sizes == 0 for kernel in closed.kernels)
    assert any(kernel.kernel.program.n_sizes > 0 for kernel in opened.kernels)
    loops = [s for kernel in closed.kernels for s in kernel.kernel.program.body if isinstance(s, Loop)]
    assert not any(isinstance(loop.extent, Arg) for loop in loops)
    assert len(compiled.plan.functions) == 1  # they hang in the slots of the open one
    assert {(v.slot, v.kernel) for v in compiled.plan.variants} == {(n, n + 3) for n in range(3)}


@pytest.fixture(autouse=True)
def _always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether closing pays on this machine today is not what is tested here."""
    better = Compared(((1,),), 9, 2.0, 1.0, 0.5, 0.0)
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (better,))


def test_whoever_settles_waits_for_what_that_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that begin before they know of it might not get a core for as long as others want it."""
    pressed, submit = list[bool](), BACKGROUND.submit

    def watched(climb: Climb) -> int:
        pressed.append(climb.presses())
        return submit(climb)

    with tierup.load(saved(tmp_path), config=settings(tmp_path, adapt=True)) as loaded:
        loaded(x=floats(3, 20))
        monkeypatch.setattr(BACKGROUND, "submit", watched)
        assert loaded.settle(timeout_s=120).tier == 2
        assert pressed
        assert all(pressed)
        assert not loaded._progress.presses()


def test_settling_closes_what_was_seen(tmp_path: Path) -> None:
    path = saved(tmp_path)
    loaded = tierup.load(path, config=settings(tmp_path, adapt=True))
    baseline = tierup.load(path, config=tierup.Config(force_tier=0))
    for rows in (3, 3, 7):
        loaded(x=floats(rows, 20))
    report = loaded.settle(timeout_s=120).to_dict()
    assert (report["tier"], report["settled"], report["reason"]) == (2, True, "")
    assert report["signatures"] == [[[3, 20]], [[7, 20]]]
    for rows in (3, 7, 5, 0):  # closed, closed, open, open and empty
        x = floats(rows, 20)
        np.testing.assert_allclose(loaded(x=x)["y"], baseline(x=x)["y"], atol=1e-6)
    again = tierup.load(path, config=settings(tmp_path, adapt=True))
    warm = again.report().to_dict()
    assert (warm["tier"], warm["signatures"], warm["counters"]["builds"]) == (2, report["signatures"], 0)


def test_plans_of_one_model_share_its_constants(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path), config=settings(tmp_path, adapt=True))
    loaded(x=floats(3, 20))
    loaded._progress.wait(120)
    before = dict(loaded._serving.constants)
    assert before
    loaded.settle(timeout_s=120)
    after = loaded._serving.constants
    assert after.keys() >= before.keys()
    assert all(after[key] is before[key] for key in before)


def test_many_calls_of_one_size_close_it(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path), config=settings(tmp_path, adapt=True))
    loaded._progress.wait(120)
    x = floats(5, 20)
    for _ in range(400):
        loaded(x=x)
    assert loaded._progress.wait(120)
    assert loaded.report().signatures == (((5, 20),),)


def test_what_would_be_turned_away_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = saved(tmp_path), floats(5, 20)
    loaded = tierup.load(path, config=settings(tmp_path, adapt=True))
    loaded(x=x)
    assert loaded._progress.wait(120)
    worse = Compared(((5, 20),), 9, 1.0, 2.0, -1.0, 0.0)
    monkeypatch.setattr(tiering, "_time_apart", lambda *_: (worse,))
    told = []
    for held in (loaded, tierup.load(path, config=settings(tmp_path, adapt=True))):
        monkeypatch.setattr(held._caring().backoff, "allows", lambda *_: True)  # by calls alone
        for _ in range(4):
            for _ in range(80):
                held(x=x)
            held.settle(timeout_s=120)
        report = held.report().to_dict()
        queued = [entry for entry in report["events"] if entry["event"] == "queued" and entry["tier"] == 2]
        told.append((report["tier"], len(queued)))
    assert told == [(1, 1), (1, 1)]  # the second process asks, and knows then


@pytest.mark.parametrize("fields", [{"adapt": False}, {"adapt": True, "force_tier": 1}])
def test_nothing_is_closed_unasked(tmp_path: Path, fields: dict[str, Any]) -> None:
    loaded = tierup.load(saved(tmp_path), config=settings(tmp_path, **fields))
    for _ in range(3):
        loaded(x=floats(3, 20))
    assert loaded.settle(timeout_s=120).tier == 1


def test_frozen_models_stay(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path), config=settings(tmp_path, adapt=True))
    loaded(x=floats(3, 20))
    loaded._progress.wait(120)
    loaded.freeze()
    assert loaded.settle(timeout_s=120).tier == 1


def test_forced_calls_wait_for_their_own_sizes(tmp_path: Path) -> None:
    proto = exported()
    forced = tierup.load(proto, config=settings(tmp_path, force_tier=2))
    opened = tierup.load(proto, config=settings(tmp_path, force_tier=1))
    for count, (b, m, n) in enumerate(((1, 5, 9), (2, 16, 16), (1, 5, 9)), start=1):
        feeds = draw(b, m, n, "float")
        np.testing.assert_allclose(forced.run(feeds)["y"], opened.run(feeds)["y"], atol=1e-6)
        assert len(forced.report().signatures) == min(count, 2)
    assert forced.report().tier == 2
    with pytest.raises(tierup.InputError):
        forced.run({"q": np.ones(3, np.float32)})
