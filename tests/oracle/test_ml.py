"""Classical machine learning against ONNX Runtime, and against loops that are slow and plain."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.oracle import cases
from tests.oracle.cases import one, run

from tierup.errors import InputError
from tierup.ir.graph import Const

TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
X = np.array([[1, 2, 0.5], [-3, 0.5, 0], [0, 0, 0], [0.25, -1, 2]], np.float32)


def agree(op: str, *inputs: np.ndarray, version: int = 3, **node: Any) -> None:
    # f32 sums in another order; the probit formula cancels around 0
    atol = 1e-5 if node.get("post_transform") == "PROBIT" else 2e-6
    cases.agree(f"ml.{op}", *inputs, version=version, rtol=2e-5, atol=atol, **node)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_classifier(transform: str, classes: int) -> None:
    rng = np.random.default_rng(classes)
    attrs = {"coefficients": rng.uniform(0, 0.3, classes * 3).tolist(), "intercepts": [0.1] * classes}
    agree("LinearClassifier", np.abs(X), outputs=2, version=1, post_transform=transform, **attrs,
          classlabels_ints=list(range(5, 5 + classes)))  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
def test_linear_classifier_with_one_score(transform: str) -> None:
    attrs = {"coefficients": [0.5, -0.25, 1.0], "intercepts": [0.1], "post_transform": transform}
    agree("LinearClassifier", X, outputs=2, version=1, classlabels_strings=["a", "b"], **attrs)
    agree("LinearClassifier", X, outputs=2, version=1, **attrs)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2])
def test_linear_regressor(transform: str, targets: int) -> None:
    attrs = {"coefficients": [0.1, 0.2, 0.3] * targets, "targets": targets, "post_transform": transform}
    agree("LinearRegressor", np.abs(X) + 0.1, version=1, **attrs)
    agree("LinearRegressor", np.abs(X), version=1, intercepts=[0.01] * targets, **attrs)


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
@pytest.mark.parametrize(
    ("classes", "probable", "transform"),
    [(2, 0, "NONE"), (2, 0, "LOGISTIC"), (2, 1, "NONE"), (3, 0, "SOFTMAX"), (4, 1, "NONE")],
)
def test_svm_classifier(kernel: str, classes: int, probable: int, transform: str) -> None:
    rng = np.random.default_rng(classes)
    count, pairs = 3 * classes, classes * (classes - 1) // 2
    attrs: dict[str, Any] = {
        "coefficients": rng.normal(size=(classes - 1) * count).tolist(),
        "support_vectors": rng.normal(size=count * 3).tolist(),
        "rho": rng.normal(size=pairs).tolist(),
        "vectors_per_class": [3] * classes,
        "kernel_params": [0.5, 0.2, 2.0],
    }
    if probable:
        attrs |= {"prob_a": (-rng.uniform(0.1, 1, pairs)).tolist(), "prob_b": rng.normal(size=pairs).tolist()}
    agree("SVMClassifier", rng.normal(size=(6, 3)).astype(np.float32), outputs=2, version=1, kernel_type=kernel,
          post_transform=transform, classlabels_ints=list(range(7, 7 + classes)), **_f32(attrs))  # fmt: skip


def _f32(attrs: dict[str, Any]) -> dict[str, Any]:
    """Lists of floats as a model file holds them."""
    return {
        key: np.float32(value).tolist() if isinstance(value, list) and isinstance(value[0], float) else value
        for key, value in attrs.items()
    }


def test_svm_without_support_vectors_takes_the_largest_score() -> None:
    labels, scores = run("ml.SVMClassifier", X, outputs=2, version=1, classlabels_strings=["a", "b", "c"],
                         coefficients=np.eye(3).reshape(-1).tolist(), rho=[0.5])  # fmt: skip
    np.testing.assert_allclose(scores, X + 0.5)
    assert labels.tolist() == ["b", "b", "a", "c"]


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, one_class: int) -> None:
    attrs = {
        "coefficients": [0.5, -1.0],
        "support_vectors": [1.0, 0.0, 0.5, 0.0, 1.0, -1.0],
        "rho": [0.1],
        "n_supports": 2,
    }
    agree("SVMRegressor", X, version=1, kernel_type=kernel, kernel_params=[0.3, 0.1, 2.0], one_class=one_class, **attrs)
    agree("SVMRegressor", X, version=1, coefficients=[1.0, 2.0, 0.5], rho=[0.1], kernel_params=[0.0, 0.0, 0.0])


def forest(
    rng: np.random.Generator, trees: int, votes: str, targets: list[int], mode: str = "", low: float = 0
) -> dict[str, Any]:
    """Random trees in ONNX's first encoding."""
    rows: list[tuple[Any, ...]] = []
    leaves: list[tuple[Any, ...]] = []
    for tree in range(trees):
        pending, count = [(0, 0)], 1
        while pending:
            node, depth = pending.pop()
            if depth == 5 or (depth and rng.random() < 0.2):
                rows.append((tree, node, 0, 0.0, "LEAF", 0, 0, 0))
                leaves.extend((tree, node, t, float(np.float32(rng.uniform(low, 1)))) for t in targets)
                continue
            kind = mode or MODES[rng.integers(4)]
            split = float(np.float32(rng.integers(-3, 4) / 2))
            rows.append((tree, node, int(rng.integers(3)), split, kind, count, count + 1, int(rng.integers(2))))
            pending += [(count, depth + 1), (count + 1, depth + 1)]
            count += 2
    names = (
        "treeids",
        "nodeids",
        "featureids",
        "values",
        "modes",
        "truenodeids",
        "falsenodeids",
        "missing_value_tracks_true",
    )
    attrs = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    columns = zip(("treeids", "nodeids", "ids", "weights"), zip(*leaves, strict=True), strict=True)
    return attrs | {f"{votes}_{name}": list(column) for name, column in columns}


def inputs_for(rng: np.random.Generator, rows: int = 40) -> np.ndarray:
    x = (rng.integers(-4, 5, size=(rows, 3)) / 2).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("mode", ["", *MODES])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(mode: str, aggregate: str) -> None:
    rng = np.random.default_rng(len(mode) + len(aggregate))
    attrs = forest(rng, 7, "target", [0, 1], mode, low=-1)
    agree(
        "TreeEnsembleRegressor",
        inputs_for(rng),
        n_targets=2,
        aggregate_function=aggregate,
        base_values=[0.5, -0.5],
        **attrs,
    )


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_tree_regressor_transforms(transform: str, targets: int) -> None:
    rng = np.random.default_rng(1)
    attrs = forest(rng, 1, "target", list(range(targets)))
    agree("TreeEnsembleRegressor", inputs_for(rng), n_targets=targets, post_transform=transform, **attrs)


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
@pytest.mark.parametrize(("votes", "labels", "low"),
                         [([0, 1, 2], [5, 7, 9], 0), ([0, 1, 2, 3], ["a", "b", "c", "d"], -1), ([0], [5, 7], 0),
                          ([0], ["n", "y"], -1), ([1], [5, 7], 0), ([1], [5, 7], -1), ([0], [1], -1)])  # fmt: skip
def test_tree_classifier(transform: str, votes: list[int], labels: list[Any], low: float) -> None:
    rng = np.random.default_rng(len(votes))
    attrs = forest(rng, 6 if len(votes) > 1 else 1, "class", votes, low=low)
    name = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    agree("TreeEnsembleClassifier", inputs_for(rng), outputs=2, post_transform=transform, **attrs, **{name: labels})


def test_two_classes_that_are_both_voted_for_go_by_the_larger_score() -> None:
    """ONNX Runtime answers 1 here whatever the labels are; the standard asks for the top class."""
    rng = np.random.default_rng(0)
    attrs = forest(rng, 3, "class", [0, 1])
    labels, scores = run("ml.TreeEnsembleClassifier", inputs_for(rng), outputs=2, classlabels_int64s=[5, 7], **attrs)
    assert labels.tolist() == [5 + 2 * int(b > a) for a, b in scores]


def positioned(rng: np.random.Generator, trees: int, dtype: Any) -> dict[str, Any]:
    """Random trees in the encoding of TreeEnsemble, some of whose nodes test for membership."""
    nodes: list[list[Any]] = []
    leaves: list[tuple[int, float]] = []
    members: list[float] = []
    roots = []

    def grow(depth: int) -> tuple[int, int]:
        if depth == 4 or (depth and rng.random() < 0.2):
            leaves.append((int(rng.integers(2)), float(rng.normal())))
            return len(leaves) - 1, 1
        nodes.append([])
        here, kind = len(nodes) - 1, int(rng.integers(7))
        row = [int(rng.integers(3)), kind, float(rng.integers(-3, 4) / 2), int(rng.integers(2))]
        if kind == 6:
            members.extend([*(rng.integers(-4, 5, size=3) / 2).tolist(), float("nan")])
        nodes[here] = [*row, *grow(depth + 1), *grow(depth + 1)]
        return here, 0

    for _ in range(trees):
        roots.append(len(nodes))
        grow(0)
    # the sets stand in the order of their nodes, which is the order in which the nodes were made
    feature, kind, split, missing, true, true_leaf, false, false_leaf = map(list, zip(*nodes, strict=True))
    return {
        "tree_roots": roots,
        "n_targets": 2,
        "nodes_featureids": feature,
        "nodes_modes": Const(np.array(kind, np.uint8)),
        "nodes_splits": Const(np.array(split, dtype)),
        "nodes_missing_value_tracks_true": missing,
        "nodes_truenodeids": true,
        "nodes_trueleafs": true_leaf,
        "nodes_falsenodeids": false,
        "nodes_falseleafs": false_leaf,
        "leaf_targetids": [t for t, _ in leaves],
        "leaf_weights": Const(np.array([w for _, w in leaves], dtype)),
        "membership_values": Const(np.array(members or [np.nan], dtype)),
    }


def walk(attrs: dict[str, Any], row: np.ndarray, aggregate: int) -> list[float]:
    """One row through all trees, node by node."""
    modes, splits = attrs["nodes_modes"].array, attrs["nodes_splits"].array
    ends = np.flatnonzero(np.isnan(attrs["membership_values"].array))
    sets = [attrs["membership_values"].array[a + 1 : b] for a, b in pairwise([-1, *ends])]
    which = {node: i for i, node in enumerate(np.flatnonzero(modes == 6))}
    tests = [lambda a, b: a <= b, lambda a, b: a < b, lambda a, b: a >= b, lambda a, b: a > b, lambda a, b: a == b,
             lambda a, b: a != b]  # fmt: skip
    votes: list[list[float]] = [[], []]
    for root in attrs["tree_roots"]:
        node, leaf = root, 0
        while not leaf:
            x = row[attrs["nodes_featureids"][node]]
            holds = x in sets[which[node]] if modes[node] == 6 else tests[modes[node]](x, splits[node])
            side = "true" if holds or (attrs["nodes_missing_value_tracks_true"][node] and np.isnan(x)) else "false"
            node, leaf = attrs[f"nodes_{side}nodeids"][node], attrs[f"nodes_{side}leafs"][node]
        votes[attrs["leaf_targetids"][node]].append(attrs["leaf_weights"].array[node])
    joined = [
        lambda v: sum(v) / len(attrs["tree_roots"]),
        sum,
        lambda v: min(v, default=0),
        lambda v: max(v, default=0),
    ]
    return [joined[aggregate](v) for v in votes]


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tree_ensemble(aggregate: int, dtype: Any) -> None:
    rng = np.random.default_rng(aggregate)
    attrs, x = positioned(rng, 9, dtype), inputs_for(rng).astype(dtype)
    result = one("ml.TreeEnsemble", x, aggregate_function=aggregate, **attrs)
    np.testing.assert_allclose(result, [walk(attrs, row, aggregate) for row in x], rtol=1e-5, atol=1e-6)


def test_trees_without_rows() -> None:
    rng = np.random.default_rng(0)
    result = one("ml.TreeEnsembleRegressor", X[:0], n_targets=2, **forest(rng, 2, "target", [0, 1]))
    assert result.shape == (0, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes_truenodeids": [0, 0, 0]},  # the root is its own child
        {"nodes_truenodeids": [9, 0, 0]},  # no such node
        {"nodes_featureids": [3, 0, 0]},  # no such feature
        {"target_ids": [0, 5]},  # no such target
        {
            "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
            "nodes_truenodeids": [1, 0, 0],
            "nodes_falsenodeids": [2, 2, 0],
        },
    ],
)
def test_hostile_trees_end_in_an_error(change: dict[str, Any]) -> None:
    attrs = {
        "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3, "nodes_values": [0.0] * 3,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
    }  # fmt: skip
    with pytest.raises(InputError):
        run("ml.TreeEnsembleRegressor", X, n_targets=1, **(attrs | change))


def test_a_long_circle_is_found_at_once() -> None:
    n = 200_000
    attrs = {
        "tree_roots": [0], "nodes_featureids": [0] * n, "nodes_modes": Const(np.zeros(n, np.uint8)),
        "nodes_splits": Const(np.zeros(n, np.float32)), "nodes_truenodeids": [(i + 1) % n for i in range(n)],
        "nodes_falsenodeids": [0] * n, "nodes_trueleafs": [0] * n, "nodes_falseleafs": [1] * n,
        "leaf_targetids": [0], "leaf_weights": Const(np.ones(1, np.float32)),
    }  # fmt: skip
    with pytest.raises(InputError, match="lead back to themselves"):
        run("ml.TreeEnsemble", X, n_targets=1, **attrs)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    agree("Normalizer", X, version=1, norm=norm)
    agree("Normalizer", X[0], version=1, norm=norm)
    agree("Normalizer", np.array([[3, -4], [0, 0]], np.int64), version=1, norm=norm)


@pytest.mark.parametrize(("op", "x", "attrs"), [
    ("Binarizer", X, {"threshold": 0.25}),
    ("Imputer", np.array([[1, np.nan], [np.nan, 2]], np.float32),
     {"imputed_value_floats": [7.0, 8.0], "replaced_value_float": float("nan")}),
    ("Imputer", np.array([[1, -1], [-1, 2]], np.int64), {"imputed_value_int64s": [9], "replaced_value_int64": -1}),
    ("Scaler", np.array([[1, 2], [3, 4]], np.int64), {"offset": [0.5, 1.0], "scale": [2.0, 3.0]}),
    ("Scaler", X, {"offset": [0.5], "scale": [2.0]}),
    ("OneHotEncoder", np.array([1.7, 2, 5], np.float32), {"cats_int64s": [1, 2, 3]}),
    ("OneHotEncoder", np.array([["a", "x"]], object), {"cats_strings": ["a", "b"]}),
    ("CategoryMapper", np.array(["a", "z"], object), {"cats_strings": ["a", "b"], "cats_int64s": [3, 4]}),
    ("CategoryMapper", np.array([3, 5], np.int64), {"cats_strings": ["a", "b"], "cats_int64s": [3, 4]}),
    ("LabelEncoder", np.array(["a", "z"], object), {"classes_strings": ["a", "b"]}),
    ("LabelEncoder", np.array([1, 7], np.int64), {"classes_strings": ["a", "b"]}),
])  # fmt: skip
def test_simple_ops(op: str, x: np.ndarray, attrs: dict[str, Any]) -> None:
    agree(op, x, version=1, **attrs)


def test_feature_ops() -> None:
    agree("FeatureVectorizer", X, X[:, :2], version=1, inputdimensions=[3, 2])
    agree("ArrayFeatureExtractor", X, np.array([0, 2], np.int64), version=1)
    agree("ArrayFeatureExtractor", X[0].copy(), np.array([2], np.int64), version=1)


@pytest.mark.parametrize(("x", "attrs", "expected"), [
    (np.array([1.5, np.nan, 2], np.float32), {"keys_floats": [1.5, float("nan")], "values_int64s": [4, 5]}, [4, 5, -1]),
    (np.array(["a", "b", "a"], object), {"keys_strings": ["a", "a"], "values_floats": [1.0, 2.0]}, [2, -0.0, 2]),
    (np.array([3, 1], np.int64), {"keys_int64s": [3], "values_strings": ["x"], "default_string": "?"}, ["x", "?"]),
    (np.array([3, 1], np.int32), {"keys_tensor": Const(np.array([1, 3], np.int32)),
     "values_tensor": Const(np.array([7, 8], np.int16)), "default_tensor": Const(np.array([0], np.int16))}, [8, 7]),
    (np.zeros((0, 2), np.int64), {"keys_int64s": [3], "values_strings": ["x"]}, []),
])  # fmt: skip
def test_label_encoder(x: np.ndarray, attrs: dict[str, Any], expected: list[Any]) -> None:
    result = one("ml.LabelEncoder", x, version=4, **attrs)
    assert result.shape == x.shape
    assert result.reshape(-1).tolist() == expected


def test_maps() -> None:
    assert one("ml.CastMap", {3: np.float32(1.5), 1: np.float32(2)}).tolist() == [[2, 1.5]]
    assert one("ml.CastMap", {3: np.float32(1.5)}, map_form="SPARSE", max_map=5).tolist() == [[0, 0, 0, 1.5, 0]]
    assert one("ml.CastMap", {0: "7"}, cast_to="TO_INT64").tolist() == [[7]]
    vocabulary = ["a", "c", "b", "z"]
    result = run("ml.DictVectorizer", {"a": np.float32(4), "c": np.float32(8)}, string_vocabulary=vocabulary)
    assert result[0].tolist() == [[4, 8, 0, 0]]
    maps = one("ml.ZipMap", X, classlabels_strings=["p", "q", "r"])
    assert maps[1] == {"p": -3, "q": 0.5, "r": 0}
