"""The whole ONNX backend suite, as part of the tests."""

from __future__ import annotations

import pytest

from tests.conformance.suite import known_failures, run_suite
from tierup.config import Config


@pytest.mark.parametrize("tier", [0, 1])
def test_suite_agrees_with_the_list_of_known_failures(tier: int) -> None:
    tally = run_suite(config=Config(force_tier=tier))
    assert not tally.problems(known_failures(tier))
    assert len(tally.passed) >= 2020
