"""Classical models and look-ups of numbers: every option, with ragged, empty and special rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rewrite.lowered import assert_equal, lowered
from tests.runtime.test_random_graphs import compiled

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Const, Graph, Weights
from tierup.ir.types import Array, dtype_from_numpy
from tierup.reference.evaluate import evaluate
from tierup.rewrite.decompose import reasons
from tierup.rewrite.rewrite import simplify

RNG = np.random.default_rng(5)
X = RNG.standard_normal((6, 4)).astype(np.float32)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def numbers(*shape: int) -> tuple[float, ...]:
    """f32 numbers, as models have them, so that the oracle in f64 has the same ones."""
    return tuple(map(float, RNG.standard_normal(shape).astype(np.float32).reshape(-1)))


def single(op: str, x: Array, outputs: int, **attrs: Any) -> tuple[Graph, Weights]:
    b, dtype = GraphBuilder(Weights()), dtype_from_numpy(x.dtype)
    assert dtype is not None
    given = b.open_input(dtype, [None, *x.shape[1:]] if x.ndim else ())
    made = b.node(f"ml.{op}", [given], Attrs(attrs), version=4 if op == "LabelEncoder" else 1, outputs=[True] * outputs)
    return b.finish([value for value in made if value is not None]), b.weights


def check(op: str, x: Array, outputs: int = 1, **attrs: Any) -> None:
    graph, weights = single(op, x, outputs, **attrs)
    after = lowered(graph, weights)
    for rows in (x, x[:1], x[:0]):
        assert_equal(graph, after, weights, [rows])
    # some f32 roundings of sums of few terms; POLY and SOFTMAX multiply them by less than ten
    for got, wanted in zip(
        compiled(simplify(after, weights), weights, [x]), evaluate(graph, weights, [x]), strict=True
    ):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got, wanted, rtol=2e-5 if got.dtype.kind == "f" else 0, atol=2e-6)


@pytest.mark.parametrize("after", TRANSFORMS)
@pytest.mark.parametrize(("labels", "scores"), [((3, 5, 7), 3), ((3, 5), 2), ((0, 9), 1), ((4,), 1), ((), 2)])
def test_linear_classifiers(labels: tuple[int, ...], scores: int, after: str) -> None:
    x = np.abs(X) / 9 if after == "PROBIT" else X  # its argument is a probability
    scale = 0.05 if after == "PROBIT" else 1.0
    weights = tuple(float(np.float32(abs(w) * scale)) for w in numbers(scores, 4))
    check("LinearClassifier", x, 2, coefficients=weights, intercepts=(0.125,) * scores, classlabels_ints=labels,
          post_transform=after)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_features_of_every_type(dtype: Any) -> None:
    attrs = {"coefficients": numbers(3, 4), "intercepts": numbers(3), "post_transform": "SOFTMAX"}
    x = (X * 3).astype(dtype)
    check("LinearClassifier", x, 2, classlabels_ints=(1, 2, 3), **attrs)
    check("LinearRegressor", x, targets=3, **attrs)


def test_numbers_that_are_none() -> None:
    x = X.copy()
    x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, -np.inf
    attrs = {"coefficients": numbers(3, 4), "intercepts": numbers(3), "post_transform": "NONE"}
    graph, weights = single("LinearClassifier", x, 2, classlabels_ints=(1, 2, 3), **attrs)
    assert_equal(graph, lowered(graph, weights), weights, [x])


KERNELS = [("LINEAR", ()), ("RBF", (0.5, 0.0, 3.0)), ("POLY", (0.25, 1.0, 3.0)), ("SIGMOID", (0.5, 0.25, 3.0))]


@pytest.mark.parametrize(("kind", "parameters"), KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vector_regressors(kind: str, parameters: tuple[float, ...], one_class: int) -> None:
    common = {"kernel_type": kind, "kernel_params": parameters, "post_transform": "NONE", "one_class": one_class}
    check(
        "SVMRegressor", X, coefficients=numbers(5), support_vectors=numbers(5, 4), n_supports=5, rho=(0.25,), **common
    )
    check("SVMRegressor", X, coefficients=numbers(4), n_supports=0, rho=(0.25,), **common)


@pytest.mark.parametrize("after", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize(("kind", "parameters"), KERNELS)
@pytest.mark.parametrize("sizes", [(2, 3), (2, 1, 3), ()])
def test_support_vector_classifiers(
    sizes: tuple[int, ...], kind: str, parameters: tuple[float, ...], after: str
) -> None:
    classes, total = len(sizes) or 3, sum(sizes)
    labels = tuple(range(2, 2 + classes))
    pairs = classes * (classes - 1) // 2
    shapes = ((classes - 1, total), (total, 4)) if total else ((classes, 4), (0,))
    check("SVMClassifier", X, 2, kernel_type=kind, kernel_params=parameters, post_transform=after, rho=numbers(pairs),
          coefficients=numbers(*shapes[0]), support_vectors=numbers(*shapes[1]), vectors_per_class=sizes,
          classlabels_ints=labels)  # fmt: skip


@pytest.mark.parametrize("after", ["NONE", "SOFTMAX"])
@pytest.mark.parametrize("sizes", [(2, 3), (2, 1, 3), (1, 2, 1, 1, 2)])
def test_probabilities_of_support_vector_classifiers(sizes: tuple[int, ...], after: str) -> None:
    """They are found step by step, until each is near enough."""
    classes, total = len(sizes), sum(sizes)
    pairs = classes * (classes - 1) // 2
    check("SVMClassifier", X, 2, kernel_type="RBF", kernel_params=(0.5, 0.0, 3.0), post_transform=after,
          rho=numbers(pairs), coefficients=numbers(classes - 1, total), support_vectors=numbers(total, 4),
          vectors_per_class=sizes, classlabels_ints=tuple(range(classes)),
          prob_a=tuple(-abs(slope) for slope in numbers(pairs)), prob_b=numbers(pairs))  # fmt: skip


NAN = float("nan")
TABLES: list[tuple[Array, dict[str, Any]]] = [
    (np.array([[1.5, NAN], [2, -0.0]], np.float32), {"keys_floats": (1.5, NAN, 0.0), "values_int64s": (4, 5, 6)}),
    (np.array([3, 1, 9, 3], np.int64), {"keys_int64s": (3, 9, 3), "values_floats": (1.5, 2.5, 3.5)}),
    (np.array([3, -(2**63), 2**63 - 1], np.int64), {"keys_int64s": (-2, 3), "values_int64s": (7, 8)}),
    (np.array([0, 2**62, 7], np.int64), {"keys_int64s": (0, 2**62), "values_int64s": (7, 8)}),  # far apart
    (np.array([1, 2], np.int64), {"keys_int64s": (), "values_int64s": ()}),
    (np.array([3, 1, 5], np.int32), {"keys_tensor": Const(np.array([1, 3], np.int32)),
     "values_tensor": Const(np.array([7, 8], np.int16)), "default_tensor": Const(np.array([4], np.int16))}),
]  # fmt: skip


@pytest.mark.parametrize(("x", "attrs"), TABLES, ids=range(len(TABLES)))
def test_look_ups_of_numbers(x: Array, attrs: dict[str, Any]) -> None:
    check("LabelEncoder", x, default_int64=-1, default_float=-0.5, **attrs)


@pytest.mark.parametrize("x", [np.array([[1, 5], [7, -1]], np.int64), np.array([1.9, 5, 7], np.float32)])
def test_categories(x: Array) -> None:
    check("OneHotEncoder", x, cats_int64s=(5, 1, 7), zeros=1)


@pytest.mark.parametrize(
    ("op", "x", "attrs", "why"),
    [
        ("OneHotEncoder", np.array([1]), {"cats_int64s": (5, 1), "zeros": 0}, "is an error"),
        ("LabelEncoder", np.array([1]), {"keys_floats": (1.0,), "values_int64s": (1,)}, "keys of another type"),
        ("LabelEncoder", np.array([1.0], np.float32),
         {"keys_floats": tuple(map(float, range(300))), "values_int64s": tuple(range(300))}, "more than 256 keys"),
        ("SVMClassifier", X, {"vectors_per_class": (1,) * 17, "prob_a": (1.0,) * 136, "prob_b": (1.0,) * 136,
                              "post_transform": "NONE", "kernel_type": "LINEAR", "rho": (0.0,) * 136,
                              "coefficients": (1.0,) * 16 * 17, "support_vectors": (1.0,) * 17 * 4,
                              "classlabels_ints": tuple(range(17))}, "more than 16 classes are coupled"),
    ],
)  # fmt: skip
def test_what_stays_whole(op: str, x: Array, attrs: dict[str, Any], why: str) -> None:
    defaults = {"default_int64": -1, "default_float": -0.5} if op == "LabelEncoder" else {}
    graph, weights = single(op, x, 2 if op == "SVMClassifier" else 1, **defaults, **attrs)
    assert why in reasons(graph, weights)[0][1]
