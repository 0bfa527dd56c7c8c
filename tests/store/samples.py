"""Small models for the plan cache, and settings that keep them apart from everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tests.security.models import model, node, value

import tierup


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def perceptron(seed: int = 0) -> onnx.ModelProto:
    """softmax(relu(x w0ᵀ + b0) w1), x[batch, 40]: a weight that is transposed, one that is not, and a small one."""
    random = np.random.default_rng(seed)
    weights = {"w0": (64, 40), "b0": (64,), "w1": (64, 33)}
    nodes = [
        node("Gemm", ["x", "w0", "b0"], ["h"], transB=1),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "w1"], ["m"]),
        node("Softmax", ["m"], ["y"], axis=-1),
    ]
    tensors = [
        numpy_helper.from_array((random.standard_normal(shape) / 8).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    return model(nodes, [value("x", ["batch", 40])], [value("y", ["batch", 33])], tensors)


def positions(limit: int = 512) -> onnx.ModelProto:
    """Whether x + table[:length] is above 0, drawn with a chance of 0 or 1, which is a call-out. A plan takes length to
    be below the limit, and is guarded."""
    table = numpy_helper.from_array(np.arange(limit * 4, dtype=np.float32).reshape(limit, 4), "table")
    numbers = [numpy_helper.from_array(np.array(number), name) for name, number in (("one", [1]), ("zero", [0]))]
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Slice", ["table", "zero", "length", "zero"], ["part"]),
        node("Add", ["x", "part"], ["sum"]),
        node("Relu", ["sum"], ["relu"]),
        node("Sign", ["relu"], ["chance"]),
        node("Bernoulli", ["chance"], ["y"]),
    ]
    x, y = (value(name, ["batch", "length", 4]) for name in ("x", "y"))
    return model(nodes, [x], [y], [table, *numbers])


def saved(folder: Path, proto: onnx.ModelProto, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def settings(folder: Path, **fields: Any) -> tierup.Config:
    """A cache of its own, and no measuring of the machine."""
    return tierup.Config(cache_dir=folder / "cache", data_dir=folder / "data", adapt=False, **fields)


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "plans").glob("*.plan"))
