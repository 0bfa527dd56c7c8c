"""DynamicQuantizeLSTM as kernels: every direction and option against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tierup

STEPS, ROWS, INPUTS, HIDDEN = 7, 3, 5, 8


def layer(direction: str, kind: Any, *, by_column: bool, more: bool) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model with open time and batch, and what to feed; with `more`, lengths, first states and peepholes."""
    random = np.random.default_rng(7)
    count, ends = 2 if direction == "bidirectional" else 1, np.iinfo(kind)
    shape = (count, 4 * HIDDEN) if by_column else (count,)
    weights = {
        "w": random.integers(ends.min, ends.max + 1, (count, INPUTS, 4 * HIDDEN)).astype(kind),
        "r": random.integers(ends.min, ends.max + 1, (count, HIDDEN, 4 * HIDDEN)).astype(kind),
        "b": random.standard_normal((count, 8 * HIDDEN)).astype(np.float32),
        "w_scale": random.uniform(0.005, 0.01, shape).astype(np.float32),
        "r_scale": random.uniform(0.005, 0.01, shape).astype(np.float32),
        "zero": np.full(shape, 0 if kind is np.int8 else 128, kind),
        **({"p": random.standard_normal((count, 3 * HIDDEN)).astype(np.float32)} if more else {}),
    }
    feeds = {"x": random.standard_normal((STEPS, ROWS, INPUTS)).astype(np.float32)}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("t", "n", INPUTS))]
    if more:
        feeds["lengths"] = np.array([STEPS, 0, 4], np.int32)
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ("n",)))
        for name in ("h", "c"):
            feeds[name] = random.standard_normal((count, ROWS, HIDDEN)).astype(np.float32)
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (count, "n", HIDDEN)))
    given = ["lengths", "h", "c", "p"] if more else [""] * 4
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "w", "r", "b", *given, "w_scale", "zero", "r_scale", "zero"], ["y", "y_h", "y_c"],
        domain="com.microsoft", hidden_size=HIDDEN, direction=direction,
    )  # fmt: skip
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "layer", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize(("kind", "by_column"), [(np.int8, False), (np.uint8, True)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_all_directions(direction: str, kind: Any, by_column: bool, more: bool) -> None:
    proto, feeds = layer(direction, kind, by_column=by_column, more=more)
    with tierup.load(proto, config=tierup.Config(force_tier=0)) as session:
        wanted = session.run(feeds)
    with tierup.load(proto, config=tierup.Config(force_tier=1)) as session:
        got = session.run(feeds)
        assert session.report().to_dict()["counters"]["fallback_nodes"] == 0
    for name, array in wanted.items():
        # of these numbers none lies so near the middle of two bytes that a last digit decides which it becomes
        np.testing.assert_allclose(got[name], array, rtol=0, atol=64 * np.finfo(np.float32).eps)
