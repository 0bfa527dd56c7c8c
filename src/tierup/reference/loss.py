"""Losses of classifiers in NumPy."""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference.precision import down, up
from tierup.reference.reduce import log_softmax


def negative_log_likelihood(node: Node, scores: Array, labels: Array, weight: Array | None = None) -> Array:
    return down(_likelihood(node, up(scores), labels, weight), scores.dtype)


def softmax_cross_entropy(node: Node, scores: Array, labels: Array, weight: Array | None = None) -> tuple[Array, Array]:
    log_probabilities = np.moveaxis(log_softmax(np.moveaxis(up(scores), 1, -1)), -1, 1)
    loss = _likelihood(node, log_probabilities, labels, weight)
    return down(loss, scores.dtype), down(log_probabilities, scores.dtype)


def _likelihood(node: Node, scores: Array, labels: Array, weight: Array | None) -> Array:
    """-scores[n, label, d...] · weight[label]; ignored labels count nothing."""
    classes, ignored = scores.shape[1], node.attrs.get("ignore_index")
    counted = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    if ((labels < 0) | (labels >= classes))[counted].any():
        raise ValueError(f"a label lies outside the {classes} classes")
    index = np.where(counted, labels, 0)
    weights = counted.astype(scores.dtype) if weight is None else up(weight)[index] * counted
    if classes:
        picked = np.take_along_axis(scores, np.expand_dims(index, 1), axis=1).squeeze(1)
    else:
        picked = np.zeros(labels.shape, scores.dtype)
    losses = np.where(counted, -picked * weights, 0).astype(scores.dtype)
    match node.attrs["reduction"]:
        case "sum":
            return np.asarray(losses.sum())
        case "mean":
            return np.asarray(losses.sum() / weights.sum())
        case _:
            return losses
