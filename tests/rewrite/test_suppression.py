"""NonMaxSuppression by steps over all classes at once: against the reference, decomposed and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.rewrite.lowered import lowered, single

import tierup
from tierup.reference.evaluate import evaluate

SIZES = [(1, 1, 10), (2, 3, 40), (1, 2, 90), (1, 1, 0), (0, 2, 5), (1, 0, 5), (1, 1, 1)]


def scene(images: int, classes: int, boxes: int) -> tuple[Any, Any]:
    """Boxes, and scores of which many are equal."""
    random = np.random.default_rng(images + classes + boxes)
    at, sizes = (random.random((images, boxes, 2)).astype(np.float32) for _ in range(2))
    corners = np.concatenate([at, at + (sizes - np.float32(0.1)) * np.float32(0.3)], axis=-1)  # some turned over
    return corners, np.round(random.random((images, classes, boxes)), 1).astype(np.float32)


def given(most: Any, overlap: Any, least: Any) -> list[Any]:
    numbers = ((most, np.int64), (overlap, np.float32), (least, np.float32))
    return [None if number is None else np.array([number], kind) for number, kind in numbers]


@pytest.mark.parametrize("form", ["static", "open"])
@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize(
    "options",
    [(5, 0.4, 0.25), (100, 0.4, None), (7, None, 0.5), (100, 0.0, 0.95), (0, 0.4, 0.2), (-3, 0.4, 0.2), (9, 0.3, 2.0)],
)
def test_what_stays_is_what_the_reference_keeps(options: tuple[Any, ...], centred: int, form: str) -> None:
    for sizes in SIZES:
        inputs = [*scene(*sizes), *given(*options)]
        graph, weights, feeds = single(
            "onnx.NonMaxSuppression", inputs, form, constants=(2, 3, 4), fixed=((0, 2),), center_point_box=centred
        )
        after = lowered(graph, weights)
        (wanted,), (got,) = evaluate(graph, weights, feeds), evaluate(after, weights, feeds)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(got, wanted)


def test_without_a_limit_nothing_stays() -> None:
    graph, weights, feeds = single("onnx.NonMaxSuppression", scene(1, 2, 9))
    assert evaluate(lowered(graph, weights), weights, feeds)[0].shape == (0, 3)


def test_scores_that_are_no_numbers_come_last() -> None:
    boxes = np.array([[[i, i, i + 0.5, i + 0.5] for i in range(4)]], np.float32)
    scores = np.array([[[np.nan, 1, -np.inf, 2]]], np.float32)
    graph, weights, feeds = single("onnx.NonMaxSuppression", [boxes, scores, *given(9, 0.5, None)], constants=(2, 3))
    got = evaluate(lowered(graph, weights), weights, feeds)[0]
    assert got[:2].tolist() == [[0, 0, 3], [0, 0, 1]]
    assert sorted(got[2:, 2].tolist()) == [0, 2]


def model(*options: Any) -> onnx.ModelProto:
    names = ["most", "overlap", "least"]
    arrays = dict(zip(names, given(*options), strict=True))
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", *names], ["y"])
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ("b", "n", 4)),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ("b", "c", "n")),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, (None, 3))]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "boxes", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_it_is_compiled() -> None:
    proto = model(12, 0.4, 0.3)
    baseline = tierup.load(proto, config=tierup.Config(force_tier=0))
    with tierup.load(proto, config=tierup.Config(force_tier=1)) as session:
        for sizes in (*SIZES, (1, 20, 300)):
            boxes, scores = scene(*sizes)
            wanted = baseline(boxes=boxes, scores=scores)["y"]
            np.testing.assert_array_equal(session(boxes=boxes, scores=scores)["y"], wanted)
        assert session.report().to_dict()["counters"]["fallback_nodes"] == 0
