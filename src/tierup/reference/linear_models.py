"""Linear models and support vector machines: scores by one matrix product, then what `scores.py` does with them."""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Attrs, Node
from tierup.ir.types import Array
from tierup.reference.scores import class_labels, logistic, pair, pick, transform


def _rows(x: Array) -> Array:
    x = x if x.ndim == 2 else x.reshape(1, -1)
    return x if x.dtype == np.float64 else x.astype(np.float32)


def _list(attrs: Attrs, name: str, like: Array) -> Array:
    return np.array(attrs.get(name) or (), like.dtype)


def _linear(attrs: Attrs, x: Array, count: int) -> Array:
    scores = x @ _list(attrs, "coefficients", x).reshape(count, x.shape[1]).T
    intercepts = _list(attrs, "intercepts", x)
    return np.asarray(scores + intercepts if intercepts.size else scores)


def _f32(scores: Array) -> Array:
    return scores.astype(np.float32)


def classify(node: Node, x: Array) -> tuple[Array, Array]:
    x, labels, after = _rows(x), class_labels(node.attrs), node.attrs["post_transform"]
    scores = _linear(node.attrs, x, len(node.attrs.get("intercepts") or ()) or max(len(labels), 1))
    if scores.shape[1] > 1:
        return pick(labels or range(scores.shape[1]), scores.argmax(axis=1)), _f32(transform(after, scores))
    which = (scores[:, 0] > 0).astype(np.int64)
    if len(labels) == 2:
        return pick(labels, which), _f32(pair(after, scores[:, 0], True))
    return pick((0, 1), which), _f32(transform(after, scores))


def regress(node: Node, x: Array) -> Array:
    x = _rows(x)
    return _f32(transform(node.attrs["post_transform"], _linear(node.attrs, x, node.attrs["targets"])))


def _kernel(attrs: Attrs, x: Array, vectors: Array) -> Array:
    """How alike each row and each support vector are."""
    gamma, shift, degree = (*(attrs.get("kernel_params") or (0.0, 0.0, 0.0)), 0.0, 0.0, 0.0)[:3]
    kind = attrs["kernel_type"]
    if kind == "RBF":
        gaps = [((x - vector) ** 2).sum(axis=1) for vector in vectors]
        return np.asarray(np.exp(-gamma * np.stack(gaps, axis=1)), x.dtype)
    dots = x @ vectors.T
    if kind == "LINEAR":
        return np.asarray(dots)
    if kind == "POLY":
        return np.asarray((gamma * dots + shift) ** degree, x.dtype)
    if kind == "SIGMOID":
        return np.asarray(np.tanh(gamma * dots + shift), x.dtype)
    raise ValueError(f"there is no kernel_type '{kind}'")


def svm_regress(node: Node, x: Array) -> Array:
    attrs, x = node.attrs, _rows(x)
    coefficients, rho = _list(attrs, "coefficients", x), _list(attrs, "rho", x)
    supports = attrs.get("n_supports", 0)
    if supports > 0:
        scores = _kernel(attrs, x, _list(attrs, "support_vectors", x).reshape(supports, -1)) @ coefficients
    else:
        scores = x @ coefficients
    scores = scores + rho[0]
    if attrs.get("one_class", 0):
        scores = np.where(scores > 0, 1, -1).astype(x.dtype)
    return _f32(transform(attrs["post_transform"], scores[:, None]))


def svm_classify(node: Node, x: Array) -> tuple[Array, Array]:
    """Without support vectors, the class with the largest linear score; with them, the one that wins most duels."""
    attrs, x, labels = node.attrs, _rows(x), class_labels(node.attrs)
    sizes, after = attrs.get("vectors_per_class") or (), attrs["post_transform"]
    if not sum(sizes):
        scores = x @ _list(attrs, "coefficients", x).reshape(max(len(labels), 1), -1).T + _list(attrs, "rho", x)[0]
        return pick(labels or (0,), scores.argmax(axis=1)), _f32(transform(after, scores))
    scores, votes = _duels(attrs, x, sizes)
    chosen = pick(labels or range(len(sizes)), votes.argmax(axis=1))
    if attrs.get("prob_a"):
        return chosen, _f32(transform(after, _coupled(attrs, scores, len(sizes))))
    if scores.shape[1] == 1:
        return chosen, _f32(pair(after, scores[:, 0], after != "NONE"))
    return chosen, _f32(transform(after, scores))


def _duels(attrs: Attrs, x: Array, sizes: tuple[int, ...]) -> tuple[Array, Array]:
    """The score of each pair of classes, and how many duels each class wins."""
    total = sum(sizes)
    alike = _kernel(attrs, x, _list(attrs, "support_vectors", x).reshape(total, -1))
    coefficients, rho = _list(attrs, "coefficients", x).reshape(-1, total), _list(attrs, "rho", x)
    begins = np.cumsum([0, *sizes])
    spans = [slice(begins[i], begins[i + 1]) for i in range(len(sizes))]
    votes = np.zeros((len(x), len(sizes)), np.int64)
    scores: list[Array] = []
    for i, one in enumerate(spans):
        for j in range(i + 1, len(spans)):
            other = spans[j]
            score = (
                alike[:, one] @ coefficients[j - 1, one] + alike[:, other] @ coefficients[i, other] + rho[len(scores)]
            )
            votes[:, i] += score > 0
            votes[:, j] += score <= 0
            scores.append(score)
    return np.stack(scores, axis=1), votes


def _coupled(attrs: Attrs, scores: Array, classes: int) -> Array:
    """Class probabilities from those of pairs: Wu, Lin and Weng's second method, as in libsvm, for all rows at once."""
    a, b = _list(attrs, "prob_a", scores), _list(attrs, "prob_b", scores)
    pairs = np.clip(1 - logistic(scores * a + b), 1e-7, 1 - 1e-7)
    r = np.zeros((len(scores), classes, classes), scores.dtype)
    upper = np.triu_indices(classes, 1)
    r[:, upper[0], upper[1]], r[:, upper[1], upper[0]] = pairs, 1 - pairs
    q = -r * np.swapaxes(r, 1, 2)
    diagonal = np.arange(classes)
    q[:, diagonal, diagonal] = (r**2).sum(axis=1)
    p = np.full((len(scores), classes), 1 / classes, scores.dtype)
    for _ in range(max(100, classes)):
        qp = np.einsum("nij,nj->ni", q, p)
        pqp = (p * qp).sum(axis=1)
        going = np.abs(qp - pqp[:, None]).max(axis=1) >= 0.005 / classes
        if not going.any():
            break
        step, value, slope = p.copy(), pqp.copy(), qp.copy()
        for t in range(classes):
            change = (value - slope[:, t]) / q[:, t, t]
            step[:, t] += change
            value = (value + change * (change * q[:, t, t] + 2 * slope[:, t])) / (1 + change) ** 2
            slope = (slope + change[:, None] * q[:, t]) / (1 + change)[:, None]
            step /= (1 + change)[:, None]
        p = np.where(going[:, None], step, p)
    return p
