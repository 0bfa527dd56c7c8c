"""Runs onnx.backend.test against tierup.backend and counts what that suite does not: not implemented.

The suite itself takes BackendIsNotSupposedToImplementIt for a pass. Here a test passes only if its outputs were
computed and agreed; `UnsupportedError` (no row, no opset) and that exception count as not implemented.
"""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import tierup.backend
from tierup.config import Config
from tierup.errors import UnsupportedError
from tierup.session import Model

KNOWN_FAILURES = Path(__file__).with_name("known_failures.txt")
KNOWN_FAILURES_COMPILED = Path(__file__).with_name("known_failures_compiled.txt")  # further ones from tier 1 on


class _Recording(tierup.backend.TierupBackend):
    """Remembers that a model was refused as unsupported, since the suite may swallow the reason."""

    refused = ""
    config: Config | None = None
    prepared: Model | None = None

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
        try:
            rep = super().prepare(model, device, **{"config": cls.config, **kwargs})
            cls.prepared = rep.model
            return rep
        except (UnsupportedError, BackendIsNotSupposedToImplementIt) as error:
            cls.refused = str(error)
            raise


@dataclass
class Tally:
    """Test names by outcome; failures and refusals carry their reason."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_implemented: dict[str, str] = field(default_factory=dict)
    float_nodes: int = 0  # tests of single ops on floats that passed
    float_nodes_compiled: int = 0  # those of them that ran without a fallback node
    fell_back: list[str] = field(default_factory=list)  # the others, with how many they had

    def compiled_line(self) -> str:
        return f"{self.float_nodes_compiled} of {self.float_nodes} float node tests compiled"

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


def run_suite(select: str = "", config: Config | None = None) -> Tally:
    """Run the tests whose name contains `select`."""
    tally = Tally()
    _Recording.config = config
    for test in cpu_tests():
        name = test.id().rsplit(".", 1)[-1].removesuffix("_cpu")
        if select not in name:
            continue
        _run_one(test, name, tally)
    return tally


def _run_one(test: unittest.TestCase, name: str, tally: Tally) -> None:
    _Recording.refused, _Recording.prepared = "", None
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test.run(result)
    broken = result.failures + result.errors
    if _Recording.refused or result.skipped:
        tally.not_implemented[name] = _Recording.refused or str(result.skipped[0][1])
    elif broken:
        tally.failed[name] = " ".join(broken[0][1].strip().splitlines()[-3:])[-300:]
    else:
        tally.passed.append(name)
        if "NodeModel" in test.id() and _is_float(_Recording.prepared):
            tally.float_nodes += 1
            assert _Recording.prepared is not None
            fallbacks = _Recording.prepared.report().to_dict()["counters"]["fallback_nodes"]
            tally.float_nodes_compiled += fallbacks == 0
            tally.fell_back += [f"{name}: {fallbacks} nodes"] if fallbacks else []


def _is_float(model: Model | None) -> bool:
    """Whether a model takes or gives an f32 tensor."""
    return model is not None and any(value.dtype == np.float32 for value in (*model.inputs, *model.outputs))
