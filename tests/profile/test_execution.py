"""Execution profiles: quantiles, rates, and limits that hold whatever comes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tierup.profile import execution
from tierup.profile.execution import MOST_SIGNATURES, SAMPLES, InputHistory, Profiles, Rate, Samples


def watched(signature: Any, spans: Any, inputs: Any = ()) -> tuple[Any, ...]:
    return signature, 1, 1000.0, 10.0, list(spans), list(inputs)


@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=200), st.floats(0.01, 1))
def test_quantiles_are_of_the_last_ones(numbers: list[float], share: float) -> None:
    samples = Samples()
    for number in numbers:
        samples.add(number)
    kept = numbers[-SAMPLES:]
    assert samples.last(SAMPLES) == kept
    assert samples.last(3) == kept[-3:]
    found = samples.quantile(share)
    assert found in kept
    assert np.mean(np.array(kept) <= found) >= share - 1e-12
    assert np.mean(np.array(kept) < found) < share


def test_nothing_has_a_quantile_of_nothing() -> None:
    assert Samples().quantile(0.5) == 0.0


def test_regions_are_kept_by_digest_and_signature() -> None:
    profiles = Profiles(["x"])
    one, other = ((1, 8),), ((2, 8),)
    profiles.add(watched(one, [(0, 2, 4000.0, (), 0), (1, 1, 500.0, (), 0)]), ("a", "b"), 0.0)
    profiles.add(watched(other, [(0, 1, 9000.0, (), 0)]), ("a", "b"), 0.0)
    assert profiles.regions["a"][one].quantiles.p50_us == 2.0  # a run, not both
    assert profiles.regions["a"][other].quantiles.p99_us == 9.0
    assert profiles.regions["a"][one].runs == 2
    assert set(profiles.regions["b"]) == {one}


def test_slots_that_are_not_known_are_left_out() -> None:
    profiles = Profiles([])
    profiles.add(watched((), [(0, 1, 1.0, (), 0), (5, 1, 1.0, (), 0)]), ("",), 0.0)
    profiles.add(watched((), [(0, 1, 1.0, (), 0)]), None, 0.0)
    assert not profiles.regions
    assert profiles.unknown == 1


def test_counts_add_up() -> None:
    profiles = Profiles([])
    for _ in range(3):
        profiles.add(watched((), [(0, 2, 10.0, (100.0, 7.0), 2)]), ("a",), 0.0)
    history = profiles.regions["a"][()]
    assert (history.counts, history.counted) == ([300.0, 21.0], 6)


def test_many_signatures_stay_within_the_limit() -> None:
    profiles = Profiles([])
    often = ((0,),)
    for number in range(4 * MOST_SIGNATURES):
        profiles.add(watched(((number,),), [(0, 1, 1.0, (), 0)]), ("a",), float(number))
        for _ in range(3):
            profiles.add(watched(often, [(0, 1, 1.0, (), 0)]), ("a",), float(number))
        assert len(profiles.regions["a"]) <= MOST_SIGNATURES
    assert often in profiles.regions["a"]  # what comes often stays
    assert ((4 * MOST_SIGNATURES - 1,),) in profiles.regions["a"]
    assert profiles.evicted == 4 * MOST_SIGNATURES - len(profiles.regions["a"])
    assert len(profiles) == len(profiles.regions["a"])


def test_all_regions_together_have_a_limit(monkeypatch: Any) -> None:
    monkeypatch.setattr(execution, "MOST_HISTORIES", 50)
    profiles = Profiles([])
    for number in range(200):
        profiles.add(watched(((number % 3,),), [(0, 1, 1.0, (), 0)]), (f"region {number}",), float(number))
        assert len(profiles) == sum(map(len, profiles.regions.values())) <= 50
    assert "region 199" in profiles.regions
    assert profiles.evicted == 200 - len(profiles)


def test_what_was_long_ago_counts_less() -> None:
    old, new = execution.Use(), execution.Use()
    for _ in range(4):
        old.add(0.0)
    new.add(10 * execution.HALF_LIFE_S)
    assert old.at(10 * execution.HALF_LIFE_S) < new.at(10 * execution.HALF_LIFE_S)


def test_a_steady_rate_is_found_and_decays() -> None:
    rate = Rate(0.0)
    for second in range(1, 200):
        rate.add(50, float(second))
    assert math.isclose(rate.at(199.0), 50, rel_tol=0.05)
    assert rate.at(199.0 + execution.RATE_S) < 0.4 * rate.at(199.0)
    assert rate.calls == 199 * 50


def test_the_first_count_is_of_all_the_time_before_it() -> None:
    """7,400 calls in eight seconds were 7,400 a second."""
    profiles, early, late = Profiles([], 10.0), ((1,),), ((2,),)
    profiles.count([(early, 800)], 18.0)
    assert math.isclose(profiles.rates[early].at(18.0), 100)
    profiles.count([(early, 1000), (late, 30)], 20.0)
    assert math.isclose(profiles.rates[early].at(20.0), 100)
    assert math.isclose(profiles.rates[late].at(20.0), 15)


def test_rates_follow_counts_that_are_halved() -> None:
    profiles = Profiles([])
    signature = ((1,),)
    profiles.count([(signature, 100)], 0.0)
    profiles.count([(signature, 40)], 1.0)  # halved to make room, then some more
    assert profiles.rates[signature].calls == 140
    for number in range(2 * MOST_SIGNATURES):
        profiles.count([(((number,),), 1)], 2.0)
    assert len(profiles.rates) <= MOST_SIGNATURES


def test_inputs_are_summed_up() -> None:
    history = InputHistory()
    assert history.to_dict("x")["min"] is None
    history.add(False, (True, 10, 10, 5, 0, -1.0, 2.0, 7))
    history.add(True, (True, 10, 10, 5, 10, 0.0, 0.0, 7))  # none is finite
    history.add(True, (False, 10, 10, 0, 0, 0.0, 0.0, 7))
    found = history.to_dict("x")
    assert (found["min"], found["max"], found["nonfinite"]) == (-1.0, 2.0, 10)
    assert found["zero_fraction"] == 0.5
    assert found["same_as_before"] == 1.0
