"""Calls that break what a plan assumes of sizes: they get functions of their own, and the others keep theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.adapt.test_closing import settings
from tests.rewrite.test_assume import ints, masked_scores
from tests.security.models import model, node, value

import tierup
from tierup.adapt.hot import hot_strays
from tierup.adapt.planning import make_plan
from tierup.frontends.onnx import load_onnx
from tierup.ir.facts import Aim
from tierup.runtime.variants import Sizes

EQUAL, STRAY = ((2, 4, 8), (2, 8, 6), (2, 1, 6)), ((2, 4, 8), (2, 8, 6), (2, 1, 1))


@pytest.fixture(autouse=True)
def _no_forced_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def scores(length: int, masked: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    shapes = {"query": (2, 4, 8), "keys": (2, 8, length), "mask": (2, 1, masked)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def expected(feeds: dict[str, Any]) -> Any:
    query, keys, mask = (feeds[name].astype(np.float64) for name in ("query", "keys", "mask"))
    return query @ keys + mask


def check(loaded: tierup.Model, feeds: dict[str, Any]) -> None:
    """Eight products of about 1 and a sum in f32: some units in the last place of 10."""
    np.testing.assert_allclose(loaded.run(feeds)["y"], expected(feeds), atol=1e-5)


def test_both_kinds_of_call_get_kernels(tmp_path: Path) -> None:
    path = saved(tmp_path, masked_scores())
    loaded = tierup.load(path, config=settings(tmp_path, adapt=True))
    check(loaded, scores(6, 6))
    assert loaded._progress.wait(120)
    assert loaded.report().tier == 1
    for turn in range(300):  # lengths change all the time: what counts is the kind
        check(loaded, scores(5 + turn % 40, 1 if turn % 2 else 5 + turn % 40, turn))
        if loaded.report().strays:
            break
        if turn >= 64:
            assert loaded._progress.wait(120)
    report = loaded.settle(timeout_s=120)
    assert len(report.strays) == 1
    assert report.strays[0][2] == (2, 1, 1)
    answered = loaded._serving.baseline
    before = answered.calls
    for length in (1, 3, 7, 100):
        check(loaded, scores(length, 1))
        check(loaded, scores(length, length))
    assert answered.calls == before
    told = [entry["event"] for entry in report.to_dict()["events"]]
    assert told.count("strayed") == 1
    assert (report.counts.rollbacks, report.counts.quarantined) == (0, 0)
    assert "have functions of their own, in which less is assumed of sizes" in str(report)


def test_traffic_that_strays_from_the_first_call_on_gets_off_the_baseline(tmp_path: Path) -> None:
    """A plan that turned half of it away would lose its trial."""
    loaded = tierup.load(saved(tmp_path, masked_scores()), config=settings(tmp_path, adapt=True))
    for length in (6, 7):
        check(loaded, scores(length, length))
        check(loaded, scores(length, 1))
    assert loaded._progress.wait(120)
    report = loaded.report()
    assert (report.tier, len(report.strays)) == (1, 1)
    check(loaded, scores(8, 1))
    assert loaded.report().deopts == 0


def test_the_next_process_starts_with_both(tmp_path: Path) -> None:
    path = saved(tmp_path, masked_scores())
    loaded = tierup.load(path, config=settings(tmp_path, adapt=True))
    check(loaded, scores(6, 6))
    assert loaded._progress.wait(120)
    check(loaded, scores(6, 1))
    report = loaded.settle(timeout_s=120)
    assert report.strays == (STRAY,)
    again = tierup.load(path, config=settings(tmp_path, adapt=True))
    assert again.report().strays == (STRAY,)
    for feeds in (scores(6, 6), scores(6, 1), scores(9, 1), scores(9, 9)):
        check(again, feeds)
    counters = again.report().to_dict()["counters"]
    assert (counters["builds"], counters["deopts"]) == (0, 0)


def without_head() -> onnx.ModelProto:
    """relu(x[3:]): nothing is left of what is shorter."""
    ends = [ints("begin", 3), ints("end", 2**40), ints("axis", 0)]
    nodes = [node("Slice", ["x", "begin", "end", "axis"], ["tail"]), node("Relu", ["tail"], ["y"])]
    return model(nodes, [value("x", ["n"])], [value("y", [None])], ends)


def test_a_call_that_strays_is_an_example() -> None:
    imported = load_onnx(without_head())
    first, second = make_plan(imported, Aim(strays=(((2,),),))).compiled.functions
    kept = [Sizes(f.dims, f.graph, ((n,),)).agree(f.assumed) for n in (2, 7) for f in (first, second)]
    assert kept == [False, True, True, True]
    assert len(second.kernels) == 1


def test_kinds_have_functions_in_turn() -> None:
    """No element, a single one, and too few."""
    imported = load_onnx(without_head())
    strays = (((0,),), ((1,),), ((2,),))
    compiled = make_plan(imported, Aim(strays=strays)).compiled
    assert [function.strays for function in compiled.functions] == [(), *((stray,) for stray in strays)]
    assert [function.number for function in compiled.functions] == [0, 1, 2, 3]


def test_a_length_that_strays_later_is_taken_in(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path, without_head()), config=settings(tmp_path, adapt=True))
    for n in (9, 1, 2, 0, 30):
        x = np.linspace(-1, 1, n, dtype=np.float32)
        for _ in range(2):  # what answers before it is settled, and after
            np.testing.assert_array_equal(loaded(x=x)["y"], np.maximum(x[3:], 0))
            loaded.settle(timeout_s=120)
    assert loaded.report().strays == (((1,),), ((2,),))  # which has room for none, too
    for n in (3, 4, 9, 1, 2, 0):
        x = np.linspace(-1, 1, n, dtype=np.float32)
        before = loaded.report().deopts
        np.testing.assert_array_equal(loaded(x=x)["y"], np.maximum(x[3:], 0))
        assert loaded.report().deopts == before


def test_a_signature_is_closed_where_its_calls_go() -> None:
    imported = load_onnx(masked_scores())
    compiled = make_plan(imported, Aim((EQUAL, STRAY), strays=(STRAY,))).compiled
    first, second, equal, stray = compiled.functions
    assert (first.strays, second.strays) == ((), (STRAY,))
    assert (equal.signature, equal.number) == (EQUAL, first.number)
    assert (stray.signature, stray.number) == (STRAY, second.number)


def test_without_strays_there_is_one_function() -> None:
    assert len(make_plan(load_onnx(masked_scores())).compiled.plan.functions) == 1


def test_calls_that_keep_what_is_assumed_are_no_strays() -> None:
    compiled = make_plan(load_onnx(masked_scores()), Aim(strays=(EQUAL,))).compiled
    assert len(compiled.plan.functions) == 1


def test_kinds_that_come_often_are_hot() -> None:
    ones = {((2, length), (2, 1)): 10 for length in range(5, 10)}
    rare = {((1, 7), (2, 7)): 3}
    assert hot_strays(ones | rare, 100) == [((2, 9), (2, 1))]
    assert hot_strays(ones | rare, 1000) == []  # a small share
    assert hot_strays(ones | rare, 100, queued=1) == []
    assert hot_strays(ones | rare, 1000, everything=True) == [((2, 9), (2, 1)), ((1, 7), (2, 7))]
