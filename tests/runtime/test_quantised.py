"""Quantised models as kernels on bytes: every geometry against float64, what is fused, what lies between layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.runtime.answers import compiled

import tierup
from tierup.codegen.target import target_of
from tierup.frontends.onnx import load_onnx
from tierup.ir.graph import Attrs
from tierup.ir.types import DType, TensorType
from tierup.profile.identity import identify
from tierup.reference.conv import convolve
from tierup.runtime.compiled import Compiled, compile_plan

RANDOM = np.random.default_rng(4)
SCALE, OUT_SCALE = np.float32(0.03), np.float32(0.9)


class Model:
    """Collects the nodes and weights of a quantised model."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.nodes, self.weights, self._count = kind, [], [], 0  # type: ignore[var-annotated]

    def weight(self, array: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        self._count += 1
        self.nodes.append(helper.make_node(op, inputs, [f"v{self._count}"], **attrs))
        return f"v{self._count}"

    def quantised(self, x: str, scale: Any, zero: int) -> str:
        return self.node("QuantizeLinear", x, self.weight(np.float32(scale)), self.weight(self.kind(zero)))

    def real(self, x: str, scale: Any, zero: int) -> str:
        return self.node("DequantizeLinear", x, self.weight(np.float32(scale)), self.weight(self.kind(zero)))

    def again(self, x: str, scale: Any, zero: int) -> str:
        return self.real(self.quantised(x, scale, zero), scale, zero)

    def conv(self, x: str, w: Any, scale: Any, bias: Any, **attrs: Any) -> str:
        zero = np.zeros(np.shape(scale), np.int8)
        weight = self.node(
            "DequantizeLinear",
            self.weight(w),
            self.weight(scale),
            self.weight(zero),
            **({"axis": 0} if zero.ndim else {}),
        )
        return self.node("Conv", x, weight, self.weight(bias), **attrs)

    def made(self, shape: Any, last: str, kind: int) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "y"
        assert last
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info("y", kind, None)]
        graph = helper.make_graph(self.nodes, "quantised", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


GEOMETRIES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 16, 10, 12), (32, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 16, 10, 13), (33, 16, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 3, 20, 21), (24, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    ((1, 8, 9, 9), (48, 8, 3, 3), {"dilations": [2, 2], "pads": [2, 0, 1, 2]}),
    ((2, 61, 7, 7), (13, 61, 1, 1), {}),
    ((1, 64, 7, 7), (128, 64, 1, 1), {"strides": [2, 2]}),
    ((2, 30, 37), (64, 30, 7), {"pads": [2, 4], "strides": [3]}),
    ((1, 4, 5, 6, 7), (8, 4, 3, 3, 3), {"pads": [1] * 6}),
    ((1, 20, 2, 2), (20, 20, 5, 5), {"pads": [4] * 4}),  # windows that lie outside altogether
    ((0, 4, 5, 5), (8, 4, 3, 3), {"pads": [1] * 4}),
    ((1, 32, 9, 20), (32, 1, 3, 3), {"pads": [1] * 4, "group": 32}),
    ((2, 21, 9, 11), (21, 1, 5, 5), {"pads": [2] * 4, "strides": [2, 2], "group": 21}),
    ((1, 16, 4, 5, 6), (16, 1, 3, 3, 3), {"pads": [1] * 6, "group": 16}),
    ((1, 16, 40), (16, 1, 9), {"pads": [4, 4], "group": 16}),
    ((1, 32, 9, 9), (32, 8, 3, 3), {"pads": [1] * 4, "group": 4}),  # groups are joined
    ((1, 64, 7, 8), (96, 32, 3, 3), {"pads": [1] * 4, "group": 2}),
    ((1, 6, 7, 8), (10, 3, 3, 3), {"pads": [1] * 4, "group": 2}),  # groups that fill no vectors
    ((1, 8, 7, 8), (16, 1, 3, 3), {"pads": [1] * 4, "group": 8}),  # two results of each channel
]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(("kind", "zero"), [(np.uint8, 0), (np.uint8, 121), (np.int8, -9)])
@pytest.mark.parametrize(("shape", "kernel", "attrs"), GEOMETRIES)
def test_geometries(
    shape: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], kind: Any, zero: int, opened: bool
) -> None:
    """Bytes are those next to the exact answer; where that is near the middle of two, either."""
    x = RANDOM.standard_normal(shape).astype(np.float32)
    w = RANDOM.integers(-127, 128, kernel).astype(np.int8)
    scale = RANDOM.uniform(0.001, 0.01, len(w)).astype(np.float32)
    bias = RANDOM.standard_normal(len(w)).astype(np.float32)
    model = Model(kind)
    y = model.conv(model.again("x", SCALE, zero), w, scale, bias, **attrs)
    sizes = [f"d{axis}" if opened and axis != 1 else size for axis, size in enumerate(shape)]
    element = TensorProto.UINT8 if kind is np.uint8 else TensorProto.INT8
    got = compiled(model.made(sizes, model.quantised(y, OUT_SCALE, 3), element), x)

    ends = np.iinfo(kind)
    data = np.clip(np.round(x / SCALE) + zero, ends.min, ends.max) - zero
    places = (-1, *(1,) * (len(shape) - 2))
    exact = convolve(Attrs(attrs), data.astype(np.float64), w.astype(np.float64)) * np.float64(SCALE)
    exact = exact * scale.astype(np.float64).reshape(places) + bias.reshape(places)
    wanted = np.clip(exact / np.float64(OUT_SCALE) + 3, ends.min, ends.max)
    assert got.shape == wanted.shape
    assert got.dtype == kind
    slack = 8 * 2.0**-23 * (np.abs(exact) / OUT_SCALE + 256)  # scales, their product, bias and factor are rounded
    assert (np.abs(got - wanted) <= 0.5 + slack).all()


def block() -> tuple[onnx.ModelProto, Any]:
    """Convolutions with a sum around two of them, a pool and a product at the end; not all channels fill words."""
    model = Model(np.int8)
    sizes = ((16, 16, 1, 1), (13, 16, 1, 1), (16, 13, 3, 3), (10, 16))
    front, *w = (RANDOM.integers(-127, 128, size).astype(np.int8) for size in sizes)
    first = model.conv(model.again("x", 0.02, -5), front, np.float32(0.002), np.zeros(16, np.float32))
    first = model.again(first, 0.02, -5)
    y = model.conv(first, w[0], np.float32(0.002), np.ones(13, np.float32))
    y = model.again(model.node("Relu", y), 0.015, -128)
    y = model.again(model.conv(y, w[1], np.float32(0.002), np.ones(16, np.float32), pads=[1] * 4), 0.03, 4)
    y = model.again(model.node("Relu", model.node("Add", y, first)), 0.05, -128)
    y = model.again(model.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), 0.05, -128)
    y = model.node("Flatten", model.again(model.node("GlobalAveragePool", y), 0.05, -128))
    weight = model.node("DequantizeLinear", model.weight(w[2]), model.weight(np.float32(0.01)))
    last = model.node("Gemm", y, weight, model.weight(np.ones(10, np.float32)), transB=1)
    proto = model.made([1, 16, 8, 8], last, TensorProto.FLOAT)
    return proto, RANDOM.standard_normal((1, 16, 8, 8)).astype(np.float32)


def separable() -> tuple[onnx.ModelProto, Any]:
    """Blocks as MobileNets have them: wider by 1×1, every channel by itself, narrower by 1×1, and a sum around."""
    model = Model(np.uint8)

    def conv(x: str, *sizes: int, **attrs: Any) -> str:
        w = RANDOM.integers(-127, 128, sizes).astype(np.int8)
        scale = RANDOM.uniform(0.8, 1.2, len(w)).astype(np.float32) / np.float32(73 * np.sqrt(np.prod(sizes[1:])))
        return model.conv(x, w, scale, (RANDOM.standard_normal(len(w)) / 10).astype(np.float32), **attrs)

    def clipped(y: str) -> str:
        return model.again(model.node("Clip", y, model.weight(np.float32(0)), model.weight(np.float32(6))), 6 / 255, 0)

    x = clipped(conv(model.again("x", 0.03, 114), 16, 3, 3, 3, pads=[1] * 4, strides=[2, 2]))
    for _ in range(2):
        y = clipped(conv(x, 48, 16, 1, 1))
        y = clipped(conv(y, 48, 1, 3, 3, pads=[1] * 4, group=48))
        y = model.again(conv(y, 16, 48, 1, 1), 0.04, 128)
        x = model.again(model.node("Add", x, y), 0.05, 100)
    last = model.node("Relu", conv(x, 16, 1, 5, 5, pads=[2] * 4, strides=[2, 2], group=16))
    return model.made([1, 3, 24, 24], last, TensorProto.FLOAT), RANDOM.standard_normal((1, 3, 24, 24)).astype("f4")


def test_separable_blocks_stay_bytes() -> None:
    plan = planned(separable()[0])
    graph = plan.graph
    placed = [placed for placed in plan.functions[0].kernels if placed.region.kind == "conv"]
    assert len(placed) == 4
    for each in placed:
        assert "dot_bytes" in repr(each.kernel.program)
        type = graph.type(graph.nodes[each.region.nodes[0]].inputs[0] or 0)
        assert isinstance(type, TensorType)
        assert type.dtype is DType.U8


def test_separable_blocks_answer_as_the_baseline_does() -> None:
    proto, x = separable()
    with tierup.load(proto, config=tierup.Config(force_tier=0)) as session:
        wanted = session(x=x)["y"]
    got = compiled(proto, x)
    # A byte that is off by one moves a result of 25 weights by a weight: 127 / (73 · 5) · 1.2 · 0.05 at most.
    assert np.abs(got - wanted).max() <= 0.021


def planned(proto: onnx.ModelProto) -> Compiled:
    target = target_of(identify())
    assert target is not None
    if "dot_bytes" not in target.dots:
        pytest.skip("this machine multiplies bytes one by one, and quantised products stay in floats")
    imported = load_onnx(proto)
    return compile_plan(imported.graph, imported.weights, target)


def test_layers_are_joined_by_bytes() -> None:
    plan = planned(block()[0])
    graph, kernels = plan.graph, plan.functions[0].kernels
    assert [placed.region.kind for placed in kernels] == ["rows"] * 2 + ["matmul"] * 2 + ["conv", "rows", "matmul"]
    for placed in kernels[:6]:
        type = graph.type(graph.nodes[placed.region.nodes[-1]].outputs[0] or 0)
        assert isinstance(type, TensorType)
        assert type.dtype is DType.U8
    assert all("dot_bytes" in repr(kernels[number].kernel.program) for number in (2, 3, 4, 6))


def test_a_whole_model_answers_as_the_baseline_does() -> None:
    proto, x = block()
    with tierup.load(proto, config=tierup.Config(force_tier=0)) as session:
        wanted = session(x=x)["y"]
    got = compiled(proto, x)
    # A byte that is off by one at the end of the chain is 0.05 · 127 · 0.01 at most.
    assert np.abs(got - wanted).max() <= 0.0635
