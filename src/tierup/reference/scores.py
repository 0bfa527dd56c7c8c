"""What classical classifiers and regressors do with their raw scores: post transforms, the second class, labels.

ONNX leaves the case of two classes and one score open; this is what ONNX Runtime does, which models are made for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tierup.ir.graph import Attrs
from tierup.ir.types import Array


def logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e), x.dtype)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def softmax_zero(x: Array) -> Array:
    """Softmax that leaves scores of zero at zero."""
    e = np.where(np.abs(x) > 1e-7, np.exp(x - x.max(axis=-1, keepdims=True)), 0).astype(x.dtype)
    total = e.sum(axis=-1, keepdims=True)
    return np.where(total == 0, np.asarray(0.5, x.dtype), e / np.where(total == 0, 1, total))


def probit(x: Array) -> Array:
    """Winitzki's approximation of the normal quantile, the one that ONNX Runtime has."""
    y = 2 * x - 1
    log = np.log((1 - y) * (1 + y))
    v = 2 / (np.pi * 0.147) + 0.5 * log
    return np.asarray(np.sqrt(2) * np.sign(y) * np.sqrt(np.sqrt(v * v - log / 0.147) - v), x.dtype)


TRANSFORMS: dict[str, Callable[[Array], Array]] = {
    "NONE": lambda x: x,
    "LOGISTIC": logistic,
    "SOFTMAX": softmax,
    "SOFTMAX_ZERO": softmax_zero,
    "PROBIT": probit,
}


def transform(name: str, scores: Array) -> Array:
    """`scores` [rows, columns] after the post transform `name`. A single column is left alone by all but PROBIT."""
    if not scores.size or (scores.shape[1] == 1 and name != "PROBIT"):
        return scores
    return TRANSFORMS[name](scores)


def pair(name: str, score: Array, probability: bool) -> Array:
    """Both classes' columns from the one score [rows] of two classes: 1 - s and s, or -s and s."""
    if name == "LOGISTIC":
        return np.stack([logistic(-score), logistic(score)], axis=1)
    both = np.stack([1 - score if probability else -score, score], axis=1)
    return probit(both) if name == "PROBIT" else both


def class_labels(attrs: Attrs) -> Sequence[Any]:
    """The labels of a classifier, whichever attribute holds them."""
    for name in ("classlabels_ints", "classlabels_int64s", "classlabels_strings"):
        if attrs.get(name):
            return attrs[name]  # type: ignore[no-any-return]  # a tuple of ints or strings
    return ()


def pick(labels: Sequence[Any], which: Array) -> Array:
    """The labels at positions `which`: strings as objects, numbers as i64."""
    if labels and isinstance(labels[0], str):
        return np.array(labels, object)[which]
    return np.array(labels, np.int64)[which]
