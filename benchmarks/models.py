"""Small models for benchmarks, written with onnx alone: a perceptron, an element-wise chain, a feed-forward stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_RANDOM_SEED = 0


class _Sketch:
    """Collects nodes and weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(_RANDOM_SEED)

    def op(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        values = self._random.standard_normal(shape) / np.sqrt(shape[0])
        return self._constant(values.astype(np.float32))

    def number(self, value: float) -> str:
        return self._constant(np.array(value, np.float32))

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def model(self, inputs: dict[str, Sequence[Any]], output: str, shape: Sequence[Any]) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims)) for name, dims in inputs.items()]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, list(shape))
        graph = helper.make_graph(self.nodes, "benchmark", values, [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def mlp() -> onnx.ModelProto:
    """64 -> 128 -> 128 -> 10, ReLU between, softmax behind; batch open."""
    s, h = _Sketch(), "x"
    for layer, (width, following) in enumerate([(64, 128), (128, 128), (128, 10)]):
        h = s.op("Gemm", [h, s.weight(width, following), s.weight(following)])
        if layer < 2:
            h = s.op("Relu", [h])
    return s.model({"x": ["batch", 64]}, s.op("Softmax", [h], axis=-1), ["batch", 10])


def chain() -> onnx.ModelProto:
    """GELU, sigmoid, tanh, normalise, softmax over three [batch, 1024] inputs."""
    s = _Sketch()
    u = s.op("Add", [s.op("Mul", ["x", "b"]), "c"])
    erf = s.op("Erf", [s.op("Div", [u, s.number(2**0.5)])])
    gelu = s.op("Mul", [s.op("Mul", [u, s.op("Add", [erf, s.number(1.0)])]), s.number(0.5)])
    h = s.op("Mul", [s.op("Sigmoid", [gelu]), s.op("Tanh", [s.op("Sub", ["x", "b"])])])
    centred = s.op("Sub", [h, s.op("ReduceMean", [h], axes=[-1], keepdims=1)])
    variance = s.op("ReduceMean", [s.op("Mul", [centred, centred])], axes=[-1], keepdims=1)
    scale = s.op("Reciprocal", [s.op("Sqrt", [s.op("Add", [variance, s.number(1e-5)])])])
    z = s.op("Add", [s.op("Mul", [s.op("Mul", [centred, scale]), "c"]), "x"])
    shape = ["batch", 1024]
    return s.model({"x": shape, "b": shape, "c": shape}, s.op("Softmax", [z], axis=-1), shape)


def feed_forward(width: int = 1024, hidden: int = 4096, layers: int = 4) -> onnx.ModelProto:
    """`layers` times x + down(relu(up(layer_norm(x)))), batch open."""
    s, x = _Sketch(), "x"
    for _ in range(layers):
        n = s.op("LayerNormalization", [x, s.weight(width), s.weight(width)], axis=-1)
        up = s.op("Relu", [s.op("Add", [s.op("MatMul", [n, s.weight(width, hidden)]), s.weight(hidden)])])
        down = s.op("Add", [s.op("MatMul", [up, s.weight(hidden, width)]), s.weight(width)])
        x = s.op("Add", [x, down])
    return s.model({"x": ["batch", width]}, x, ["batch", width])


def product(depth: int, columns: int) -> onnx.ModelProto:
    """relu(x w + b), rows open."""
    s = _Sketch()
    y = s.op("Relu", [s.op("Add", [s.op("MatMul", ["x", s.weight(depth, columns)]), s.weight(columns)])])
    return s.model({"x": ["rows", depth]}, y, ["rows", columns])
