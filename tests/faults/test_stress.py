"""The stress switches: answers stay right while variants change and guards fail."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tierup
from tests.conformance.suite import known_failures, run_suite
from tests.store.samples import floats, perceptron, saved, settings
from tierup.config import Config

SAMPLE = "test_reduce_"  # node tests of one kind: small, many types and axes, compiled
CLOSE = {"rtol": 0, "atol": 2e-6}  # probabilities; both tiers round sums of 64 in f32, in different orders


@pytest.mark.parametrize("fields", [{"stress_swap_every": 1}, {"stress_deopt": 0.5}])
@pytest.mark.parametrize("tier", [1, 2])
def test_a_sample_of_the_suite_agrees(tier: int, fields: dict[str, float]) -> None:
    tally = run_suite(SAMPLE, config=Config(force_tier=tier, **fields))  # type: ignore[arg-type]
    known = known_failures(tier)
    assert {name for name in tally.failed if name not in known} == set()
    assert len(tally.passed) > 60


def test_variants_are_swapped_every_so_many_calls(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path, force_tier=1, stress_swap_every=2))
    expected = tierup.load(perceptron(), config=Config(force_tier=0))(x=floats(3, 40))["y"]
    tiers = []
    for _ in range(8):
        tiers.append(loaded.report().tier)
        np.testing.assert_allclose(loaded(x=floats(3, 40))["y"], expected, **CLOSE)
    assert tiers == [1, 1, 0, 0, 1, 1, 0, 0]
    assert loaded.report().to_dict()["counters"]["swaps"] == 4


def test_guards_fail_at_random_as_the_seed_says(tmp_path: Path) -> None:
    deopts = []
    for seed in (1, 1, 2):
        config = settings(tmp_path, force_tier=1, stress_deopt=0.3, stress_seed=seed)
        loaded = tierup.load(saved(tmp_path, perceptron()), config=config)
        counts = []
        for _ in range(200):
            loaded(x=floats(3, 40))
            counts.append(loaded.report().to_dict()["counters"]["deopts"])
        deopts.append(counts)
    assert deopts[0] == deopts[1] != deopts[2]
    assert 30 < deopts[0][-1] < 90  # 60 ± 4.6 standard deviations


def test_threads_call_while_variants_are_swapped(tmp_path: Path) -> None:
    loaded = tierup.load(saved(tmp_path, perceptron()), config=settings(tmp_path, force_tier=1, stress_swap_every=1))
    expected = loaded(x=floats(3, 40))["y"]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(300):
            if not np.allclose(loaded(x=floats(3, 40))["y"], expected, **CLOSE):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    counters = loaded.report().to_dict()["counters"]
    assert counters["calls"] == 1201
    assert counters["swaps"] > 100


def test_tables_of_variants_are_swapped_too(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    loaded = tierup.load(path, config=settings(tmp_path, force_tier=2, stress_swap_every=1))
    expected = tierup.load(perceptron(), config=Config(force_tier=0))(x=floats(3, 40))["y"]
    seen = []
    for _ in range(9):
        np.testing.assert_allclose(loaded(x=floats(3, 40))["y"], expected, **CLOSE)
        assert loaded.program is not None
        seen.append((loaded.report().tier, bool(loaded.program.variants())))
    assert {(2, True), (2, False), (0, False)} <= set(seen)


def test_variants_are_passed_over_at_random(tmp_path: Path) -> None:
    path = saved(tmp_path, perceptron())
    tierup.load(path, config=settings(tmp_path, force_tier=2))(x=floats(3, 40))
    loaded = tierup.load(path, config=settings(tmp_path, force_tier=1, stress_deopt=0.25))
    assert loaded.report().tier == 2
    for _ in range(400):
        loaded(x=floats(3, 40))
    assert loaded.program is not None
    uses = [uses for *_, uses in loaded.program.variants()]
    # Three quarters of the calls are not turned away, and three quarters of those use each: 225 ± 5 deviations.
    assert all(170 < count < 280 for count in uses)


@pytest.mark.parametrize("fields", [{"stress_deopt": 1.5}, {"stress_deopt": "often"}, {"stress_swap_every": -1}])
def test_switches_have_bounds(fields: dict[str, object]) -> None:
    with pytest.raises(tierup.ConfigError, match=next(iter(fields))):
        Config(**fields)  # type: ignore[arg-type]


def test_a_model_is_closed_under_calls(tmp_path: Path) -> None:
    """Each call is answered, or says that the model is closed."""
    path = saved(tmp_path, perceptron())
    for _ in range(20):
        loaded = tierup.load(path, config=settings(tmp_path, force_tier=1, stress_swap_every=1))
        expected = loaded(x=floats(3, 40))["y"]
        ends: list[str] = []
        began = threading.Barrier(4)

        def work(
            loaded: tierup.Model = loaded, expected: Any = expected, ends: list[str] = ends, began: Any = began
        ) -> None:
            began.wait()
            try:
                while True:
                    assert np.allclose(loaded(x=floats(3, 40))["y"], expected, **CLOSE)
            except tierup.TierupError as error:
                ends.append(str(error))
            except RuntimeError as error:
                ends.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        began.wait()
        loaded.close()
        for thread in threads:
            thread.join(60)
        assert ends == ["the model is closed"] * 3
