"""Tree ensembles as lookups: the reference's answers, for every test, vote and transform; what stays whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.test_ml import MODES, TRANSFORMS, forest, inputs_for, positioned
from tests.rewrite.lowered import lowered
from tests.runtime.test_random_graphs import compiled

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import Array, dtype_from_numpy
from tierup.reference.evaluate import evaluate
from tierup.rewrite.decompose import decompose, reasons
from tierup.rewrite.rewrite import simplify

_DEFAULTS = {"post_transform": "NONE"}


def frozen(attrs: dict[str, Any]) -> Attrs:
    return Attrs({name: tuple(value) if isinstance(value, list) else value for name, value in attrs.items()})


def graph_of(op: str, x: Array, outputs: int, attrs: dict[str, Any], *, is_open: bool) -> tuple[Graph, Weights]:
    b = GraphBuilder(Weights())
    dtype = dtype_from_numpy(x.dtype)
    assert dtype is not None
    given = b.open_input(dtype, ("rows", *x.shape[1:]) if is_open else x.shape)
    made = b.node(f"ml.{op}", [given], frozen(_DEFAULTS | attrs), version=5, outputs=[True] * outputs)
    return b.finish([value for value in made if value is not None]), b.weights


def check(op: str, x: Array, outputs: int = 1, **attrs: Any) -> None:
    """Both forms give the reference's answers, evaluated and compiled. Votes are added in f64: transforms round f32."""
    for is_open in (False, True):
        graph, weights = graph_of(op, x, outputs, attrs, is_open=is_open)
        after = lowered(graph, weights)
        wanted = evaluate(graph, weights, [x])
        ready = simplify(after, weights)
        for results in (evaluate(after, weights, [x]), compiled(ready, weights, [x])):
            for got, answer in zip(results, wanted, strict=True):
                assert (got.shape, got.dtype) == (answer.shape, answer.dtype)
                np.testing.assert_allclose(got, answer, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("mode", ["", *MODES])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressors(mode: str, aggregate: str) -> None:
    rng = np.random.default_rng(len(mode) + len(aggregate))
    attrs = forest(rng, 7, "target", [0, 1], mode, low=-1)
    check("TreeEnsembleRegressor", inputs_for(rng), n_targets=2, aggregate_function=aggregate,
          base_values=[0.5, -0.5], **attrs)  # fmt: skip


@pytest.mark.parametrize("trees", [1, 3, 16, 45])
def test_blocks_of_trees(trees: int) -> None:
    """Blocks that are filled up, single trees, and trees of other heights than their neighbours."""
    rng = np.random.default_rng(trees)
    attrs = forest(rng, trees, "target", [0])
    for rows in (0, 1, 40):
        check("TreeEnsembleRegressor", inputs_for(rng, rows), n_targets=1, aggregate_function="SUM", **attrs)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_transforms(transform: str, targets: int) -> None:
    rng = np.random.default_rng(1)
    attrs = forest(rng, 1, "target", list(range(targets)))
    check("TreeEnsembleRegressor", inputs_for(rng), n_targets=targets, aggregate_function="SUM",
          post_transform=transform, **attrs)  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
@pytest.mark.parametrize(("votes", "labels", "low"),
                         [([0, 1, 2], [5, 7, 9], 0), ([0], [5, 7], 0), ([0], [0, 1], -1), ([1], [5, 7], 0),
                          ([1], [5, 7], -1), ([0], [1], -1), ([0, 1], [3, 4], -1)])  # fmt: skip
def test_classifiers(transform: str, votes: list[int], labels: list[int], low: float) -> None:
    rng = np.random.default_rng(len(votes))
    attrs = forest(rng, 6 if len(votes) > 1 else 1, "class", votes, low=low)
    for base in ([], [0.25]):
        check("TreeEnsembleClassifier", inputs_for(rng), 2, post_transform=transform, base_values=base,
              classlabels_int64s=labels, **attrs)  # fmt: skip


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ensembles(aggregate: int, dtype: Any) -> None:
    rng = np.random.default_rng(aggregate)
    attrs = positioned(rng, 9, dtype)
    modes = attrs["nodes_modes"].array
    modes[modes == 6] = 4
    check("TreeEnsemble", inputs_for(rng).astype(dtype), aggregate_function=aggregate, **attrs | {"post_transform": 0})


def test_integers_are_features_too() -> None:
    rng = np.random.default_rng(5)
    attrs = forest(rng, 4, "target", [0])
    check("TreeEnsembleRegressor", rng.integers(-3, 4, (9, 3)), n_targets=1, aggregate_function="SUM", **attrs)


def why(op: str, x: Array, outputs: int = 1, **attrs: Any) -> str:
    graph, weights = graph_of(op, x, outputs, attrs, is_open=False)
    assert [node.op for node in decompose(graph, weights).nodes] == [f"ml.{op}"]
    ((_, reason),) = reasons(graph, weights)
    return reason


def test_what_stays_whole() -> None:
    rng = np.random.default_rng(0)
    attrs, x = forest(rng, 2, "class", [0, 1]), inputs_for(rng)
    assert "strings" in why("TreeEnsembleClassifier", x, 2, classlabels_strings=["a", "b"], **attrs)
    assert "feature" in why("TreeEnsembleClassifier", x[:, :1], 2, classlabels_int64s=[0, 1], **attrs)
    sets = positioned(np.random.default_rng(1), 9, np.float32)
    assert "members" in why("TreeEnsemble", x, aggregate_function=1, **sets | {"post_transform": 0})
    chain = 70
    deep = {
        "nodes_treeids": [0] * (2 * chain + 1),
        "nodes_nodeids": list(range(2 * chain + 1)),
        "nodes_featureids": [0] * (2 * chain + 1),
        "nodes_values": [float(i) for i in range(2 * chain + 1)],
        "nodes_modes": ["BRANCH_LEQ"] * chain + ["LEAF"] * (chain + 1),
        "nodes_truenodeids": [*range(chain, 2 * chain), *[0] * (chain + 1)],
        "nodes_falsenodeids": [*range(1, chain), 2 * chain, *[0] * (chain + 1)],
        "target_treeids": [0] * (chain + 1),
        "target_nodeids": list(range(chain, 2 * chain + 1)),
        "target_ids": [0] * (chain + 1),
        "target_weights": [1.0] * (chain + 1),
    }
    assert "levels" in why("TreeEnsembleRegressor", x, n_targets=1, aggregate_function="SUM", **deep)


def test_trees_that_share_nodes_stay() -> None:
    """Two nodes with the same children: numbered as a tree they would become more nodes than there are."""
    rows = 12
    attrs = {
        "nodes_treeids": [0] * (rows + 2),
        "nodes_nodeids": list(range(rows + 2)),
        "nodes_featureids": [0] * (rows + 2),
        "nodes_values": [0.0] * (rows + 2),
        "nodes_modes": ["BRANCH_LEQ"] * rows + ["LEAF"] * 2,
        "nodes_truenodeids": [*range(1, rows), rows, 0, 0],
        "nodes_falsenodeids": [*range(1, rows), rows + 1, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [rows, rows + 1],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }
    x = np.zeros((2, 1), np.float32)
    assert "share" in why("TreeEnsembleRegressor", x, n_targets=1, aggregate_function="SUM", **attrs)
