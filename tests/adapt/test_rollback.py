"""Plans that are taken out while they serve: what answers then, and what the next process starts with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.security.models import model, node, value
from tests.store.samples import floats, perceptron, saved

import tierup
from tierup.adapt import tiering
from tierup.adapt.live import Finding, Watch
from tierup.events import Compared

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
    keep = tiering._keep

    def rolled_back_first(*arguments: Any) -> None:
        roll_back(loaded, monkeypatch)
        keep(*arguments)

    monkeypatch.setattr(tiering, "_keep", rolled_back_first)
    loaded.settle(120)
    assert loaded.report().tier == 1
    assert in_a_new_process(path, tmp_path)["tier"] == 1


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
