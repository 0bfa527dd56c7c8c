"""Whether contenders give the same answer: relative errors between the outputs that two of them wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tierup.ir.types import Array

# Relative RMS error from which two answers differ. Libraries that compute in f32 sum in different orders: 1e-7 to 2e-6
# on the models of benchmarks/. bf16 has 8 bits, so each rounding moves a value by up to 0.004: 3e-4 to 1e-2 there.
# Where a model quantises what it computes, a last bit tips a whole step: ONNX Runtime differs from itself by 0.09 on an
# encoder when its optimiser is switched off. A wrong answer is off by about 1.
TOLERANCE = {"f32": 1e-3, "bf16": 0.1}
QUANTISED_TOLERANCE = 0.2
# Whose answer the others are compared with, the first of these that was measured.
REFERENCES = ("onnxruntime", "openvino", "torch-eager", "torch-compile")


class Agreement(msgspec.Struct, frozen=True):
    """How far a contender's answers are from the reference's: relative RMS, and the largest error over the largest
    value, of the output that is worst. `why` says what cannot be expressed as either."""

    reference: str
    agrees: bool
    relative_rms: float | None = None
    largest_error: float | None = None
    why: str | None = None


def read_answers(path: Path) -> list[Array]:
    """What a contender wrote. ValueError where it is no such file."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in stored.files]
    except (OSError, EOFError) as error:
        raise ValueError(str(error)) from error


def choose_reference(names: Sequence[str]) -> str | None:
    return next((name for name in REFERENCES if name in names), None)


def compare(answers: Mapping[str, list[Array]], precisions: Mapping[str, str], quantised: bool) -> dict[str, Agreement]:
    """Contender -> how its answers compare; empty where there is nobody to compare with."""
    reference = choose_reference(list(answers))
    if reference is None or len(answers) < 2:
        return {}
    least = QUANTISED_TOLERANCE if quantised else 0.0
    return {
        name: agreement(reference, answers[reference], found, max(least, TOLERANCE[precisions[name]]))
        for name, found in answers.items()
    }


def agreement(reference: str, expected: Sequence[Array], found: Sequence[Array], tolerance: float) -> Agreement:
    if len(expected) != len(found):
        return Agreement(reference, False, why=f"{len(found)} outputs instead of {len(expected)}")
    rms, largest = 0.0, 0.0
    for index, (wanted, given) in enumerate(zip(expected, found, strict=True)):
        if wanted.shape != given.shape:
            why = f"output {index} has the shape {list(given.shape)} instead of {list(wanted.shape)}"
            return Agreement(reference, False, why=why)
        if wanted.dtype.kind not in "biufc" or given.dtype.kind not in "biufc":
            if not np.array_equal(wanted, given):
                return Agreement(reference, False, why=f"output {index} differs")
            continue
        one, other = _errors(wanted, given)
        rms, largest = max(rms, one), max(largest, other)
    return Agreement(reference, rms <= tolerance, _finite(rms), _finite(largest))


def _errors(wanted: Array, given: Array) -> tuple[float, float]:
    """Relative RMS and largest relative error; infinite where one is finite and the other is not."""
    kind = np.complex128 if "c" in (wanted.dtype.kind, given.dtype.kind) else np.float64
    wanted, given = wanted.astype(kind), given.astype(kind)
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(given)) or not np.array_equal(
        wanted[~finite], given[~finite], equal_nan=True
    ):
        return np.inf, np.inf
    wanted, given = wanted[finite], given[finite]
    if not wanted.size:
        return 0.0, 0.0
    error = np.abs(given - wanted)
    scale, most = float(np.sqrt(np.mean(np.abs(wanted) ** 2))), float(np.abs(wanted).max())
    return float(np.sqrt(np.mean(error**2))) / (scale or 1.0), float(error.max()) / (most or 1.0)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
