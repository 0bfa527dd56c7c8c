"""Runs onnx.backend.test against tierup.backend and counts what that suite does not: not implemented.

The suite itself takes BackendIsNotSupposedToImplementIt for a pass. Here a test passes only if its outputs were
computed and agreed; `UnsupportedError` (no row, no opset) and that exception count as not implemented.
"""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test
from msgspec import Struct, field
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import tierup.backend
from tierup.config import Config
from tierup.errors import UnsupportedError
from tierup.session import Model

KNOWN_FAILURES = Path(__file__).with_name("known_failures.txt")
# Further ones at tier 0, and from tier 1 on.
KNOWN_FAILURES_BASELINE = Path(__file__).with_name("known_failures_baseline.txt")
KNOWN_FAILURES_COMPILED = Path(__file__).with_name("known_failures_compiled.txt")


# A stressed model changes after calls, and the suite makes a single one: without more, every answer is that of the
# program that the model began with. The largest cycle has variants, none, and the baseline.
_STRESSED_CALLS = 4


class _Repeated(tierup.backend.TierupRep):
    """Answers each call several times over; all answers are the first one, up to what programs round differently."""

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        first = super().run(inputs, **kwargs)
        for _ in range(_STRESSED_CALLS - 1):
            for name, again, before in zip(self.model.outputs, super().run(inputs, **kwargs), first, strict=True):
                _compare(again, before, f"'{name.name}' after a swap")
        return first


def _compare(again: Any, before: Any, what: str) -> None:
    """Both answers must agree as the suite wants it of an answer and what it expects: to 1e-3, or what the type has."""
    if isinstance(before, list | tuple):
        assert len(again) == len(before), what
        for one, other in zip(again, before, strict=True):
            _compare(one, other, what)
    elif isinstance(before, Mapping):
        assert again.keys() == before.keys(), what
        for key, value in before.items():
            _compare(again[key], value, what)
    elif isinstance(before, np.ndarray) and before.dtype.kind in "fcV":  # V: what ml_dtypes adds
        wide = before.dtype if before.dtype.kind != "V" else np.float32
        rtol = 1e-2 if before.dtype.kind == "V" else 1e-3  # bf16 has an eps of 2^-7; what is smaller is cast and moved
        np.testing.assert_allclose(again.astype(wide), before.astype(wide), rtol, 1e-6, err_msg=what)
    else:
        np.testing.assert_array_equal(again, before, what)


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
            return _Repeated(rep.model) if (cls.config or Config()).stressed else rep
        except (UnsupportedError, BackendIsNotSupposedToImplementIt) as error:
            cls.refused = str(error)
            raise


class Tally(Struct):
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
    text = KNOWN_FAILURES.read_text() + (KNOWN_FAILURES_COMPILED if tier else KNOWN_FAILURES_BASELINE).read_text()
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
