"""Runs onnx.backend.test against tierup.backend and counts what that suite does not: not implemented.

The suite itself takes BackendIsNotSupposedToImplementIt for a pass. Here a test passes only if its outputs were
computed and agreed; `UnsupportedError` (no row, no opset) and that exception count as not implemented.
"""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx.backend.test
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import tierup.backend
from tierup.errors import UnsupportedError

KNOWN_FAILURES = Path(__file__).with_name("known_failures.txt")
KNOWN_FAILURES_COMPILED = Path(__file__).with_name("known_failures_compiled.txt")  # further ones from tier 1 on


class _Recording(tierup.backend.TierupBackend):
    """Remembers that a model was refused as unsupported, since the suite may swallow the reason."""

    refused = ""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
        try:
            return super().prepare(model, device, **kwargs)
        except (UnsupportedError, BackendIsNotSupposedToImplementIt) as error:
            cls.refused = str(error)
            raise


@dataclass
class Tally:
    """Test names by outcome; failures and refusals carry their reason."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_implemented: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.not_implemented)} not implemented"

    def problems(self, known: dict[str, str]) -> list[str]:
        """Where this run and the list of known failures disagree."""
        broken = {**self.failed, **self.not_implemented}
        new = [f"{name} fails: {reason}" for name, reason in broken.items() if name not in known]
        fixed = [f"{name} passes now: take it out of {KNOWN_FAILURES.name}" for name in known if name in self.passed]
        gone = [
            f"{name} is listed in {KNOWN_FAILURES.name}, but no such test ran" for name in known.keys() - broken.keys()
        ]
        return new + fixed + [line for line in gone if line.split()[0] not in self.passed]


def known_failures(tier: int = 0) -> dict[str, str]:
    """Test name -> reason, from lines of `name: reason`."""
    text = KNOWN_FAILURES.read_text() + (KNOWN_FAILURES_COMPILED.read_text() if tier else "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def cpu_tests() -> Iterator[unittest.TestCase]:
    """Every test of the suite that is not for another device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite = onnx.backend.test.BackendTest(_Recording, __name__).test_suite
    pending = list(suite)
    while pending:
        entry = pending.pop(0)
        if isinstance(entry, unittest.TestSuite):
            pending[:0] = list(entry)
        elif entry.id().endswith("_cpu"):
            yield entry


def run_suite(select: str = "", progress: Callable[[str, str], None] | None = None) -> Tally:
    """Run the tests whose name contains `select`."""
    tally = Tally()
    for test in cpu_tests():
        name = test.id().rsplit(".", 1)[-1].removesuffix("_cpu")
        if select not in name:
            continue
        outcome = _run_one(test, name, tally)
        if progress is not None:
            progress(name, outcome)
    return tally


def _run_one(test: unittest.TestCase, name: str, tally: Tally) -> str:
    _Recording.refused = ""
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test.run(result)
    broken = result.failures + result.errors
    if _Recording.refused or result.skipped:
        tally.not_implemented[name] = _Recording.refused or str(result.skipped[0][1])
        return "not implemented"
    if broken:
        tally.failed[name] = " ".join(broken[0][1].strip().splitlines()[-3:])[-300:]
        return "failed"
    tally.passed.append(name)
    return "passed"
