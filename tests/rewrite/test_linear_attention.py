"""LinearAttention as a Scan: every update rule, with and without shared heads, a past and narrow floats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.rewrite.lowered import assert_equal, f, lowered, single

from tierup.rewrite.decompose import reasons

BATCH, STEPS, KEY, VALUE = 2, 5, 4, 6
# which of decay and beta an update rule takes
RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


@pytest.mark.parametrize("form", ["static", "open"])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("rule", RULES)
def test_every_update_rule(rule: str, heads: int, groups: int, past: bool, form: str) -> None:
    decays, writes = RULES[rule]
    inputs = [
        f(BATCH, STEPS, heads * KEY),
        f(BATCH, STEPS, groups * KEY) / 2,
        f(BATCH, STEPS, groups * VALUE),
        f(BATCH, groups, KEY, VALUE) if past else None,
        -np.abs(f(BATCH, STEPS, groups * KEY)) if decays else None,
        np.abs(f(BATCH, STEPS, groups)) / 4 if writes else None,
    ]
    widths = [(index, 2) for index in (0, 1, 2, 4, 5)] + [(3, axis) for axis in (1, 2, 3)]
    attrs = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule}
    graph, weights, feeds = single("onnx.LinearAttention", inputs, form, outputs=2, fixed=widths, **attrs)
    after = lowered(graph, weights)
    assert [node.op for node in after.nodes if not node.op.startswith("core.")] == ["onnx.Scan"]
    assert_equal(graph, after, weights, feeds)


def test_one_decay_for_each_head_and_a_scale() -> None:
    inputs = [f(1, 3, 8), f(1, 3, 8), f(1, 3, 8), None, -np.abs(f(1, 3, 2))]
    attrs = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated", "scale": 0.25}
    graph, weights, feeds = single("onnx.LinearAttention", inputs, outputs=2, **attrs)
    assert_equal(graph, lowered(graph, weights), weights, feeds)


def test_narrow_floats_keep_a_wide_state() -> None:
    inputs = [f(1, 9, 8).astype(ml_dtypes.bfloat16) for _ in range(3)]
    attrs = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    graph, weights, feeds = single("onnx.LinearAttention", inputs, outputs=2, **attrs)
    assert_equal(graph, lowered(graph, weights), weights, feeds)


def test_channels_that_are_known_only_in_the_call_stay_whole() -> None:
    inputs = [f(1, 3, 8), f(1, 3, 8), f(1, 3, 8)]
    attrs = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    graph, weights, _ = single("onnx.LinearAttention", inputs, "open", outputs=2, **attrs)
    ((_, why),) = reasons(graph, weights)
    assert why == "how many channels a head has is known only in the call"
