"""Models for explanations."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from tests.security.models import model, node, value


def positions() -> onnx.ModelProto:
    """x[1, length, 4] with as many rows of a table of 30000. All examples of lengths are below, so sizes are taken to
    be the length; calls with more find that they are not."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Slice", ["table", "zero", "length", "zero"], ["positions"]),
        node("ReduceSum", ["positions", "zero"], ["sum"]),
        node("Exp", ["x"], ["e"]),
        node("Mul", ["e", "sum"], ["y"]),
    ]
    table = numpy_helper.from_array(np.ones((30000, 4), np.float32), "table")
    weights = [table, *(numpy_helper.from_array(np.array([n]), name) for name, n in (("one", 1), ("zero", 0)))]
    return model(nodes, [value("x", [1, "length", 4])], [value("y", [1, None, 4])], weights)
