"""What classical classifiers and regressors do with their scores, as core ops: post transforms and labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tierup.ir.graph import ValueId
from tierup.ir.types import DType
from tierup.rewrite.decompose.core import Core, Declined
from tierup.rewrite.decompose.elementwise import sigmoid
from tierup.rewrite.decompose.reduce import softmax


def _softmax_zero(b: Core, x: ValueId) -> ValueId:
    """Softmax that leaves scores of zero at zero; one half for all where all are."""
    zero, counts = b.like(0, x), b.lt(b.like(1e-7, x), b.abs(x))
    e = b.select(counts, b.exp(b.sub(x, b.reduce("max", x, (1,)))), zero)
    total = b.reduce("sum", e, (1,))
    nothing = b.eq(total, zero)
    return b.select(nothing, b.like(0.5, x), b.div(e, b.select(nothing, b.like(1, x), total)))


def _probit(b: Core, x: ValueId) -> ValueId:
    """Winitzki's approximation of the normal quantile, as reference/scores.py has it."""
    one, a = b.like(1, x), 0.147
    y = b.sub(b.mul(b.like(2, x), x), one)
    log = b.op("log", b.mul(b.sub(one, y), b.add(one, y)))
    v = b.add(b.like(2 / (math.pi * a), x), b.mul(b.like(0.5, x), log))
    root = b.sqrt(b.sub(b.sqrt(b.sub(b.mul(v, v), b.div(log, b.like(a, x)))), v))
    size = b.mul(b.like(math.sqrt(2), x), root)
    zero = b.like(0, x)
    return b.select(b.lt(y, zero), b.neg(size), b.select(b.eq(y, zero), b.mul(zero, root), size))


_TRANSFORMS: dict[str, Callable[[Core, ValueId], ValueId]] = {
    "NONE": lambda b, x: x,
    "LOGISTIC": sigmoid,
    "SOFTMAX": lambda b, x: softmax(b, x, (1,)),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def transform(b: Core, name: str, scores: ValueId) -> ValueId:
    """Scores [rows, columns] after the post transform `name`. A single column is left alone by all but PROBIT."""
    if name not in _TRANSFORMS:
        raise Declined(f"there is no post transform {name}")
    return scores if b.shape(scores)[1] == 1 and name != "PROBIT" else _TRANSFORMS[name](b, scores)


def pair(b: Core, name: str, score: ValueId, probability: bool) -> ValueId:
    """Both classes' columns from the one score [rows, 1] of two classes: 1 - s and s, or -s and s."""
    if name == "LOGISTIC":
        return b.concat([sigmoid(b, b.neg(score)), sigmoid(b, score)], 1)
    both = b.concat([b.sub(b.like(1, score), score) if probability else b.neg(score), score], 1)
    return _probit(b, both) if name == "PROBIT" else both


def pick(b: Core, labels: tuple[int, ...], which: ValueId) -> ValueId:
    """The labels at positions `which`."""
    if labels == tuple(range(len(labels))):
        return b.cast(which, DType.I64)
    return b.gather(b.weight(np.array(labels, np.int64)), b.cast(which, DType.I64), 0)
