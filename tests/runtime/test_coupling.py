"""Probabilities of a support vector classifier, compiled: a Loop that ends when every row is near enough."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tierup

RANDOM = np.random.default_rng(14)


def classifier(sizes: tuple[int, ...]) -> onnx.ModelProto:
    classes, total = len(sizes), sum(sizes)
    pairs = classes * (classes - 1) // 2
    attributes = {
        "coefficients": RANDOM.standard_normal((classes - 1) * total),
        "support_vectors": RANDOM.standard_normal(total * 4),
        "rho": RANDOM.standard_normal(pairs),
        "prob_a": -RANDOM.uniform(0.5, 2, pairs),
        "prob_b": RANDOM.standard_normal(pairs),
    }
    node = helper.make_node(
        "SVMClassifier", ["x"], ["label", "likely"], domain="ai.onnx.ml", kernel_type="RBF",
        kernel_params=[0.5, 0.0, 3.0], post_transform="NONE", vectors_per_class=list(sizes),
        classlabels_ints=list(range(classes)), **{name: numbers.tolist() for name, numbers in attributes.items()},
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "svm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("likely", TensorProto.FLOAT, ["n", classes]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("sizes", [(3, 2), (2, 3, 4), (1, 2, 3, 1, 2, 2)])
def test_answers(sizes: tuple[int, ...]) -> None:
    proto = classifier(sizes)
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled.report().fallback_nodes == 0
    baseline = tierup.load(proto, config=tierup.Config(force_tier=0))
    for rows in (1, 2, 33, 0):
        x = RANDOM.standard_normal((rows, 4)).astype(np.float32)
        got, wanted = compiled(x=x), baseline(x=x)
        np.testing.assert_array_equal(got["label"], wanted["label"])
        # a row may be near enough one step sooner or later, which is this near
        np.testing.assert_allclose(got["likely"], wanted["likely"], atol=0.005)
        np.testing.assert_allclose(got["likely"].sum(axis=1), 1, atol=1e-5)
