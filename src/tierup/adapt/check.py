"""A live call, answered again in a worker by the graph as imported -> whether the answer was right.

The graph is evaluated in its own types and with every float widened to f64. An answer may be some times as far from the
wide one as the baseline's own is; what a graph without jumps gives beyond that is wrong. Behind a jump (an argmax, a
rounding, a comparison) two right answers can lie far apart, so there it is only suspicious, and a second call with
other inputs has to say the same. Where the user asked for bf16, the baseline's own error is that of the same roundings.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tierup.adapt.imports import LAST_IMPORT
from tierup.adapt.messages import CheckCall, CheckedCall
from tierup.adapt.meter import untold_s
from tierup.adapt.tensors import array_of
from tierup.frontends.onnx import Imported
from tierup.ir.graph import Graph
from tierup.ir.types import Array
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import lower_to_core, narrow_products
from tierup.store.source import FileSource

_TIMES_PEAK = 8.0  # of the baseline's largest error in the same tensor
_TIMES_RMS = 4.0
_FLOOR_EPS = 256.0  # where the baseline is exact by luck: some roundings of the largest elements
# Ops whose results jump where their inputs hardly change, by the names that ONNX and core graphs have for them.
_JUMPS = frozenset(
    name.lower()
    for name in (
        "ArgMax", "ArgMin", "TopK", "Round", "Floor", "Ceil", "Sign", "Less", "LessOrEqual", "Greater",
        "GreaterOrEqual", "Equal", "Not", "NonZero", "NonMaxSuppression", "QuantizeLinear", "DynamicQuantizeLinear",
        "Where", "Mod", "Hardmax", "Unique", "If", "Loop", "Scan", "Compress", "RoiAlign", "MaxRoiPool", "Cast",
        "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "Bernoulli", "Multinomial",
    )
)  # fmt: skip
_RANDOM = frozenset(
    ("randomnormal", "randomuniform", "randomnormallike", "randomuniformlike", "bernoulli", "multinomial", "dropout")
)


def check_call(job: CheckCall) -> CheckedCall:
    """Answer the call again, and compare."""
    source = FileSource(job.path, job.stamp)
    imported = LAST_IMPORT.get(job.path, source.stamp)
    graph = imported.graph
    given = {tensor.name: array_of(tensor) for tensor in job.inputs}
    defaults = {value: imported.weights[digest] for value, digest in graph.defaults}
    inputs = [given.get(graph.value_name(value), defaults.get(value)) for value in graph.inputs]
    ops = {node.op.rsplit(".", 1)[-1].lower() for _, node in graph.walk()}
    if ops & _RANDOM:
        return CheckedCall("unsure", "the model draws random numbers", untold_s())
    rounded = _rounded(job.path, source.stamp) if job.precision == "bf16" else graph
    narrow = _named(imported, rounded, inputs, False)
    answered = {tensor.name: array_of(tensor) for tensor in job.outputs}
    if all(is_near(answered[name], narrow[name]) for name in answered if name in narrow):
        return CheckedCall("same", "", untold_s())
    wide = _named(imported, graph, inputs, True)
    reason = next(filter(None, (difference(n, answered[n], narrow[n], wide[n]) for n in answered if n in wide)), "")
    verdict = "same" if not reason else "suspicious" if ops & _JUMPS else "different"
    return CheckedCall(verdict, reason, untold_s())  # type: ignore[arg-type]  # one of the three


@lru_cache(maxsize=1)
def _rounded(path: str, stamp: tuple[int, ...]) -> Graph:
    """The model with both sides of its products rounded to bf16, as plans have it."""
    imported = LAST_IMPORT.get(path, stamp)
    return narrow_products(lower_to_core(imported.graph, imported.weights), imported.weights)


def _named(imported: Imported, graph: Graph, inputs: list[Any], wide: bool) -> dict[str, Any]:
    return dict(zip(imported.output_names, evaluate(graph, imported.weights, inputs, wide=wide), strict=True))


def is_near(answer: Array, narrow: Any) -> bool:
    """Whether an answer lies so near the baseline's own that `difference` finds nothing, whatever the wide one is.

    That is nearly every answer, and the wide one costs most of a check: its weights are as large again.
    """
    if not isinstance(narrow, np.ndarray) or answer.shape != narrow.shape or answer.dtype != narrow.dtype:
        return False
    if answer.dtype.kind != "f":
        return np.array_equal(answer, narrow)
    if not answer.size:
        return True
    answer, narrow, eps = answer.astype(np.float64), narrow.astype(np.float64), _eps(answer.dtype)
    if not (np.isfinite(answer) & np.isfinite(narrow)).all():
        return False
    apart, size = np.abs(answer - narrow), float(np.sqrt(np.mean(narrow**2)))
    # Half of what `difference` grants around the wide answer, which is about as large as the baseline's.
    floor = _FLOOR_EPS / 2 * eps
    return (
        bool((apart <= floor * (np.abs(narrow) + size)).all()) and float(np.sqrt(np.mean(apart**2))) <= floor / 4 * size
    )


def difference(name: str, answer: Array, narrow: Any, wide: Any) -> str:
    """How an answer differs from the baseline's beyond what both may; empty if it does not."""
    if not isinstance(narrow, np.ndarray) or not isinstance(wide, np.ndarray):
        return ""
    if answer.shape != narrow.shape:
        return f"'{name}' has the shape {list(answer.shape)} instead of {list(narrow.shape)}"
    if answer.dtype.kind in "iub":
        settled = narrow == wide
        wrong = int(((answer != narrow) & settled).sum())
        return f"'{name}' has {wrong} of {answer.size} elements wrong" if wrong else ""
    if answer.dtype.kind == "c" or not answer.size:
        return ""
    return _float_difference(name, answer.astype(np.float64), narrow.astype(np.float64), wide, _eps(answer.dtype))


def _float_difference(name: str, answer: Array, narrow: Array, wide: Array, eps: float) -> str:
    settled = np.isfinite(narrow) & np.isfinite(wide)
    if not settled.any():
        return ""
    bad = settled & ~np.isfinite(answer)
    if bad.any():
        return f"'{name}' has {int(bad.sum())} elements that are not finite and should be"
    answer, narrow, wide = answer[settled], narrow[settled], wide[settled]
    error, baseline = np.abs(answer - wide), np.abs(narrow - wide)
    size = float(np.sqrt(np.mean(wide**2)))
    limit = _TIMES_PEAK * baseline.max() + _FLOOR_EPS * eps * (np.abs(wide) + size)
    worst = int(np.argmax(error - limit))
    if error[worst] > limit[worst]:
        return f"'{name}' has {answer[worst]:.7g} where {wide[worst]:.7g} is right, within {limit[worst]:.2g}"
    rms, rms_baseline = (float(np.sqrt(np.mean(values**2))) for values in (error, baseline))
    if rms > _TIMES_RMS * rms_baseline + _FLOOR_EPS / 4 * eps * size:
        return f"'{name}' has an RMS error of {rms:.2g}, the baseline {rms_baseline:.2g}"
    return ""


def _eps(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number."""
    one = np.ones((), dtype)
    return float(np.nextafter(one, np.array(2, dtype))) - 1.0
