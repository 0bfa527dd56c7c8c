"""A model with many kernels, each its own: layers of different widths. Nothing but onnx is needed to make it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save_layers(path: Path, widths: list[int]) -> Path:
    """relu(x w) again and again, with open rows."""
    random, nodes, weights = np.random.default_rng(0), [], []
    for number, (rows, columns) in enumerate(pairwise(widths)):
        drawn: Any = random.standard_normal((rows, columns)) / rows**0.5
        weights.append(numpy_helper.from_array(drawn.astype(np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [f"r{number}" if number else "x", f"w{number}"], [f"m{number}"]))
        last = number == len(widths) - 2
        nodes.append(helper.make_node("Relu", [f"m{number}"], ["y" if last else f"r{number + 1}"]))
    ends = [("x", widths[0]), ("y", widths[-1])]
    inputs, outputs = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", w])] for n, w in ends)
    graph = helper.make_graph(nodes, "layers", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def save_many(path: Path, kernels: int) -> Path:
    """A model with so many kernels, no two alike."""
    return save_layers(path, [32 + number for number in range(kernels + 1)])
