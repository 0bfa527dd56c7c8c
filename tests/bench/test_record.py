"""What is made of times: medians, tails, and a ratio that only fair peers with right answers enter."""

from __future__ import annotations

import numpy as np
import pytest
from tests.bench.fakes import entry, record

from tierup.bench.contenders import TABLE, choose
from tierup.bench.record import best_peer, failed, figures, geometric_mean
from tierup.errors import ConfigError


def test_medians_are_over_rounds_and_tails_over_all_calls() -> None:
    rounds = [np.array([1000, 1000, 1000, 9000]), np.array([3000, 3000, 3000, 3000]), np.array([2000] * 192)]
    found = figures(rounds, "median", "1", {}, [])
    assert (found.call_us.median, found.call_us.low, found.call_us.high) == (2.0, 1.5, 2.5)
    assert found.series == [1.0, 3.0, 2.0]
    assert found.calls == 200
    assert found.p99_us == 3.0
    assert found.p999_us == 9.0
    totals = figures(rounds, "total", "1", {}, [])
    assert totals.series == pytest.approx([12e-6, 12e-6, 384e-6])


def test_a_p99_of_few_calls_is_the_slowest() -> None:
    assert figures([np.array([1000, 5000])], "median", "1", {}, []).p99_us == 5.0


def test_late_calls_are_those_that_began_a_second_after_the_first_of_their_run() -> None:
    rounds = [np.array([900_000_000, 99_000_000, 5_000_000, 7000]), np.array([2_000_000_000, 6000, 3000])]
    found = figures(rounds, "total", "1", {}, [])
    assert found.late_p999_us == 7.0
    assert figures(rounds[1:], "total", "1", {}, []).late_p999_us == 6.0
    assert figures([np.array([1000, 5000])], "total", "1", {}, []).late_p999_us is None


def test_the_ratio_is_made_round_by_round() -> None:
    ratio, why = best_peer([entry("tierup", [1, 2, 1]), entry("onnxruntime", [3, 2, 3]), entry("openvino", [9, 9, 9])])
    assert why is None
    assert ratio is not None
    assert ratio.peer == "onnxruntime"
    assert ratio.series == [3.0, 1.0, 3.0]
    assert ratio.ratio.median == 3.0


@pytest.mark.parametrize("other", ["openvino-bf16", "onnxruntime-bound"])
def test_only_f32_peers_that_take_and_give_arrays_enter_the_ratio(other: str) -> None:
    ratio, _ = best_peer([entry("tierup", [2]), entry("onnxruntime", [4]), entry(other, [1])])
    assert ratio is not None
    assert ratio.peer == "onnxruntime"


def test_wrong_answers_enter_no_ratio() -> None:
    ratio, _ = best_peer([entry("tierup", [2]), entry("onnxruntime", [4]), entry("openvino", [1], agrees=False)])
    assert ratio is not None
    assert ratio.peer == "onnxruntime"
    assert best_peer([entry("tierup", [2], agrees=False), entry("onnxruntime", [4])])[0] is None


def test_there_is_no_ratio_without_both_sides() -> None:
    assert best_peer([entry("tierup", [1])]) == (None, "no peer was measured")
    assert best_peer([failed(TABLE["tierup"], "died"), entry("onnxruntime", [1])]) == (None, "Tierup was not measured")


def test_the_geometric_mean_is_of_all_cases_or_there_is_none() -> None:
    four = record(entry("tierup", [1]), entry("onnxruntime", [4]))
    nine = record(entry("tierup", [1]), entry("onnxruntime", [9]))
    assert geometric_mean({"a": four, "b": nine}) == pytest.approx(6.0)
    assert geometric_mean({"a": four, "b": record(entry("tierup", [1]))}) is None
    assert geometric_mean({}) is None


def test_contenders_are_chosen_by_name_and_group() -> None:
    assert [row.name for row in choose("torch,onnxruntime,torch-eager")] == [
        "tierup",
        "torch-eager",
        "torch-compile",
        "onnxruntime",
    ]
    assert [row.name for row in choose("")] == ["tierup"]
    with pytest.raises(ConfigError, match="there is no contender 'tensorrt'; those that can be named are onnxruntime"):
        choose("onnxruntime,tensorrt")


def test_one_thread_is_tried_beside_all() -> None:
    assert TABLE["onnxruntime"].settings(4) == ({"threads": 4}, {"threads": 1})
    assert TABLE["onnxruntime"].settings(1) == ({"threads": 1},)
    assert TABLE["tierup"].settings(4) == ({"threads": 4},)
