"""The whole ONNX backend suite, as part of the tests."""

from __future__ import annotations

from tests.conformance.suite import known_failures, run_suite


def test_suite_agrees_with_the_list_of_known_failures() -> None:
    tally = run_suite()
    assert not tally.problems(known_failures())
    assert len(tally.passed) >= 2020
