"""Linear models and support vector machines as products and comparisons. Labels that are strings stay whole."""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, DType
from tierup.reference.scores import class_labels
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.coupling import coupled
from tierup.rewrite.decompose.scores import pair, pick, transform


def _rows(b: Core, n: Node) -> ValueId:
    """Rows of features, in f32 or f64."""
    x = b.input(n)
    shape = b.shape(x)
    rows = x if len(shape) == 2 else b.reshape(x, (1, b.dims.product(shape)))
    return b.cast(rows, DType.F64 if b.dtype(x) is DType.F64 else DType.F32)


def _list(b: Core, n: Node, name: str, rows: ValueId) -> Array:
    return np.array(n.attrs.get(name) or (), b.dtype(rows).numpy)


def _linear(b: Core, n: Node, rows: ValueId, count: int) -> ValueId:
    """x · coefficientsᵀ + intercepts"""
    coefficients = _list(b, n, "coefficients", rows).reshape(count, -1)
    scores = b.matmul(rows, b.weight(np.ascontiguousarray(coefficients.T)))
    intercepts = _list(b, n, "intercepts", rows)
    return b.add(scores, b.weight(intercepts)) if intercepts.size else scores


def _best(b: Core, scores: ValueId) -> ValueId:
    return b.op("argmax", scores, axis=1, keepdims=0, last=0)


def _regress(b: Core, n: Node) -> ValueId:
    """Then the post transform, which leaves a single column alone"""
    scores = _linear(b, n, _rows(b, n), n.attrs["targets"])
    return b.cast(transform(b, n.attrs["post_transform"], scores), DType.F32)


def _classify(b: Core, n: Node) -> list[ValueId]:
    """The class with the largest score; of a single one, whether it is above 0"""
    rows, labels, after = _rows(b, n), _labels(n), n.attrs["post_transform"]
    count = len(n.attrs.get("intercepts") or ()) or max(len(labels), 1)
    scores = _linear(b, n, rows, count)
    if count > 1:
        if labels and len(labels) < count:
            raise Declined("there are more scores than labels")
        which, results = _best(b, scores), transform(b, after, scores)
        return [pick(b, labels or tuple(range(count)), which), b.cast(results, DType.F32)]
    above = b.reshape(b.lt(b.like(0, scores), scores), b.shape(scores)[:1])
    results = pair(b, after, scores, True) if len(labels) == 2 else transform(b, after, scores)
    return [pick(b, labels if len(labels) == 2 else (0, 1), b.cast(above, DType.I64)), b.cast(results, DType.F32)]


def _labels(n: Node) -> tuple[int, ...]:
    labels = tuple(class_labels(n.attrs))
    if not all(isinstance(label, int) for label in labels):
        raise Declined("labels are strings")
    return tuple(label for label in labels if isinstance(label, int))


def _alike(b: Core, n: Node, rows: ValueId, count: int) -> ValueId:
    """How alike each row and each of `count` support vectors are."""
    gamma, shift, degree = (*(n.attrs.get("kernel_params") or ()), 0.0, 0.0, 0.0)[:3]
    vectors = _list(b, n, "support_vectors", rows).reshape(count, -1)
    kind = n.attrs["kernel_type"]
    if kind == "RBF":
        gaps = b.sub(b.unsqueeze(rows, 1), b.weight(vectors))
        squares = b.reduce("sum", b.mul(gaps, gaps), (2,), keepdims=False)
        return b.exp(b.mul(b.like(-gamma, rows), squares))
    dots = b.matmul(rows, b.weight(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return dots
    scaled = b.add(b.mul(b.like(gamma, rows), dots), b.like(shift, rows))
    if kind not in ("POLY", "SIGMOID"):
        raise Declined(f"there is no kernel_type {kind}")
    return b.op("tanh", scaled) if kind == "SIGMOID" else b.op("pow", scaled, b.like(degree, rows))


def _svm_regress(b: Core, n: Node) -> ValueId:
    rows, supports = _rows(b, n), n.attrs.get("n_supports", 0)
    alike = _alike(b, n, rows, supports) if supports > 0 else rows
    weights, rho = _list(b, n, "coefficients", rows), _list(b, n, "rho", rows)
    scores = b.add(b.matmul(alike, b.weight(weights.reshape(-1, 1))), b.weight(rho[:1]))
    if n.attrs.get("one_class", 0):
        scores = b.select(b.lt(b.like(0, scores), scores), b.like(1, scores), b.like(-1, scores))
    return b.cast(transform(b, n.attrs["post_transform"], scores), DType.F32)


def _svm_classify(b: Core, n: Node) -> list[ValueId]:
    """Without support vectors, the class with the largest linear score; with them, the one that wins most duels"""
    rows, labels, after = _rows(b, n), _labels(n), n.attrs["post_transform"]
    sizes = n.attrs.get("vectors_per_class") or ()
    if not sum(sizes):
        weights, rho = _list(b, n, "coefficients", rows).reshape(max(len(labels), 1), -1), _list(b, n, "rho", rows)
        scores = b.add(b.matmul(rows, b.weight(np.ascontiguousarray(weights.T))), b.weight(rho[:1]))
        return [pick(b, labels or (0,), _best(b, scores)), b.cast(transform(b, after, scores), DType.F32)]
    scores, votes = _duels(b, n, rows, tuple(sizes))
    chosen = pick(b, labels or tuple(range(len(sizes))), _best(b, votes))
    if n.attrs.get("prob_a"):
        slopes, shifts = (b.weight(_list(b, n, name, rows)) for name in ("prob_a", "prob_b"))
        likely = coupled(b, scores, slopes, shifts, len(sizes))
        return [chosen, b.cast(transform(b, after, likely), DType.F32)]
    single = b.shape(scores)[1] == 1
    results = pair(b, after, scores, after != "NONE") if single else transform(b, after, scores)
    return [chosen, b.cast(results, DType.F32)]


def _duels(b: Core, n: Node, rows: ValueId, sizes: tuple[int, ...]) -> tuple[ValueId, ValueId]:
    """The score of each pair of classes, as one product, and how many duels each class wins."""
    total, begins = sum(sizes), np.cumsum([0, *sizes])
    coefficients, rho = _list(b, n, "coefficients", rows).reshape(-1, total), _list(b, n, "rho", rows)
    pairs = [(i, j) for i in range(len(sizes)) for j in range(i + 1, len(sizes))]
    weights = np.zeros((total, len(pairs)), coefficients.dtype)
    wins, losses = (np.zeros((len(pairs), len(sizes)), np.int64) for _ in range(2))
    for number, (i, j) in enumerate(pairs):
        one, other = slice(begins[i], begins[i + 1]), slice(begins[j], begins[j + 1])
        weights[one, number], weights[other, number] = coefficients[j - 1, one], coefficients[i, other]
        wins[number, i] = losses[number, j] = 1
    scores = b.add(b.matmul(_alike(b, n, rows, total), b.weight(weights)), b.weight(rho[: len(pairs)]))
    zero = b.like(0, scores)
    won, lost = (b.cast(truth, DType.I64) for truth in (b.lt(zero, scores), b.le(scores, zero)))
    return scores, b.add(b.matmul(won, b.weight(wins)), b.matmul(lost, b.weight(losses)))


LINEAR_MODELS: dict[str, Decomposition] = {
    "ml.LinearClassifier": _classify,
    "ml.LinearRegressor": _regress,
    "ml.SVMClassifier": _svm_classify,
    "ml.SVMRegressor": _svm_regress,
}
