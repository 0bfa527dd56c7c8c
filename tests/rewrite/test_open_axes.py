"""Axes, steps and scales that only the call knows: reductions, slices, pads, axes of size 1, ranges and resizing."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.rewrite.graphs import made, node
from tests.security.models import model, value
from tests.security.models import node as op_node

import tierup
from tierup.ir.build import GraphBuilder
from tierup.ir.types import DType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.decompose import decompose

SHAPE = (2, 3, 4)
OPS = ("ReduceSum", "ReduceMax", "ReduceL2", "ReduceMean", "ReduceLogSumExp")


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_choice_of_axes(op: str, keep: int, count: int) -> None:
    def build(b: GraphBuilder) -> int:
        x, axes = b.open_input(DType.F32, ("n", 3, "m")), b.open_input(DType.I64, (count,))
        return int(node(b, f"onnx.{op}", x, axes, version=18, keepdims=keep, noop_with_empty_axes=0))

    graph, weights = made(build)
    after = decompose(graph, weights)
    verify(after, weights)
    assert all(n.op.startswith("core.") for n in after.nodes)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    for chosen in combinations(range(3), count):
        for shift in (0, -3):
            axes = np.array([axis + shift for axis in reversed(chosen)])
            (wanted,), (got,) = evaluate(graph, weights, [x, axes]), evaluate(after, weights, [x, axes])
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=2e-6)  # at most 24 terms, in another order


@pytest.mark.parametrize("axes", [[3], [-4], [0, 5]])
def test_an_axis_outside_is_an_error(axes: list[int]) -> None:
    def build(b: GraphBuilder) -> int:
        x, chosen = b.open_input(DType.F32, SHAPE), b.open_input(DType.I64, (len(axes),))
        return int(node(b, "onnx.ReduceSum", x, chosen, version=13, keepdims=1, noop_with_empty_axes=0))

    graph, weights = made(build)
    after = decompose(graph, weights)
    with pytest.raises(Exception, match="reshape"):
        evaluate(after, weights, [np.ones(SHAPE, np.float32), np.array(axes)])


@pytest.mark.parametrize("noop", [0, 1])
def test_no_axes_are_all_or_none(noop: int) -> None:
    def build(b: GraphBuilder) -> int:
        x, axes = b.open_input(DType.F32, SHAPE), b.open_input(DType.I64, (0,))
        return int(node(b, "onnx.ReduceSum", x, axes, version=13, keepdims=0, noop_with_empty_axes=noop))

    graph, weights = made(build)
    after = decompose(graph, weights)
    inputs = [np.ones(SHAPE, np.float32), np.zeros(0, np.int64)]
    np.testing.assert_array_equal(evaluate(after, weights, inputs)[0], evaluate(graph, weights, inputs)[0])


def check(op: str, feeds: list[list[Any]]) -> None:
    """The decomposed op against the op itself, where nothing is known of its inputs but their shapes."""

    def build(b: GraphBuilder) -> int:
        x = b.open_input(DType.F32, SHAPE)
        rest = [b.open_input(DType.I64, array.shape) for array in feeds[0]]
        return int(node(b, f"onnx.{op}", x, *rest, version=13))

    graph, weights = made(build)
    after = decompose(graph, weights)
    verify(after, weights)
    assert all(n.op.startswith("core.") for n in after.nodes)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    for numbers in feeds:
        (wanted,), (got,) = evaluate(graph, weights, [x, *numbers]), evaluate(after, weights, [x, *numbers])
        assert got.shape == wanted.shape
        np.testing.assert_array_equal(got, wanted)


FAR = 2**63 - 1


def test_slices_with_any_axes_and_steps() -> None:
    bounds = [(0, FAR, 1), (1, 3, 1), (-1, -FAR - 1, -1), (FAR, 0, -2), (-2, FAR, 2), (3, 1, 1), (1, 3, -1), (5, 9, 3)]
    feeds = [
        [np.array([start, 0]), np.array([end, 1]), np.array([axis, other]), np.array([step, 1])]
        for start, end, step in bounds
        for axis, other in ((0, 1), (-1, 0), (2, -2))
    ]
    check("Slice", feeds)


def test_slices_of_nothing_backwards() -> None:
    def build(b: GraphBuilder) -> int:
        x = b.open_input(DType.F32, ("n",))
        return int(node(b, "onnx.Slice", x, *(b.open_input(DType.I64, (1,)) for _ in range(4)), version=13))

    graph, weights = made(build)
    after = decompose(graph, weights)
    for step in (-1, 1, -3):
        numbers = [np.array([number]) for number in (-1, -FAR, 0, step)]
        assert evaluate(after, weights, [np.zeros(0, np.float32), *numbers])[0].shape == (0,)


def test_pads_on_any_axes() -> None:
    feeds = [
        [np.array([1, 0, 2, -1]), np.array(7, np.float32), np.array(axes)]
        for axes in ((0, 1), (2, 0), (-1, -3), (1, -1))
    ]

    def build(b: GraphBuilder) -> int:
        x, pads = b.open_input(DType.F32, SHAPE), b.open_input(DType.I64, (4,))
        fill, axes = b.open_input(DType.F32, ()), b.open_input(DType.I64, (2,))
        return int(node(b, "onnx.Pad", x, pads, fill, axes, version=18, mode="constant"))

    graph, weights = made(build)
    after = decompose(graph, weights)
    assert all(n.op.startswith("core.") for n in after.nodes)
    x = np.arange(24, dtype=np.float32).reshape(SHAPE)
    for numbers in feeds:
        (wanted,), (got,) = evaluate(graph, weights, [x, *numbers]), evaluate(after, weights, [x, *numbers])
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("axes", [[0], [1], [-1], [3], [0, 2], [4, 1], [-1, -5]])
def test_axes_are_put_in_anywhere(axes: list[int]) -> None:
    check("Unsqueeze", [[np.array(axes)]])


def compiled(
    op: str, inputs: list[Any], feeds: dict[str, Any], kind: int = TensorProto.FLOAT, opset: int = 17
) -> tuple[Any, tierup.Model]:
    names = [given.name for given in inputs]
    proto = model([op_node(op, names, ["y"])], inputs, [helper.make_tensor_value_info("y", kind, None)])
    proto.opset_import[0].version = opset
    loaded = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert loaded.report().fallback_nodes == 0
    return loaded.run(feeds)["y"], loaded


def test_axes_of_size_1_go_wherever_they_are() -> None:
    x = np.arange(6, dtype=np.float32)
    shapes = [value("x", ["a", "b", "c"]), value("axes", [1], TensorProto.INT64)]
    for shape, axis in (((1, 2, 3), 0), ((2, 1, 3), -2), ((2, 3, 1), 2)):
        got, loaded = compiled("Squeeze", shapes, {"x": x.reshape(shape), "axes": np.array([axis])})
        np.testing.assert_array_equal(got, x.reshape(tuple(size for size in shape if size != 1)))
        for wrong in (0 if axis else 1, 3, -4):  # an axis with another size, and none
            with pytest.raises(tierup.InputError):
                loaded.run({"x": x.reshape(shape), "axes": np.array([wrong])})


def test_slices_without_an_answer_are_errors() -> None:
    inputs = [value("x", ["n", 4]), *(value(name, [1], TensorProto.INT64) for name in ("from", "to", "axes", "steps"))]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    numbers = {"from": np.array([3]), "to": np.array([-FAR]), "axes": np.array([-1]), "steps": np.array([-2])}
    got, loaded = compiled("Slice", inputs, {"x": x, **numbers})
    np.testing.assert_array_equal(got, x[:, 3::-2])
    for wrong in ({"steps": np.array([0])}, {"axes": np.array([2])}):
        with pytest.raises(tierup.InputError):
            loaded.run({"x": x, **numbers, **wrong})


def test_pads_on_axes_that_are_none_are_errors() -> None:
    inputs = [value("x", ["n", 4]), value("pads", [2], TensorProto.INT64), value("fill", [])]
    inputs.append(value("axes", [1], TensorProto.INT64))
    x, fill = np.ones((3, 4), np.float32), np.array(2, np.float32)
    feeds = {"x": x, "pads": np.array([1, 0]), "fill": fill, "axes": np.array([-1])}
    got, loaded = compiled("Pad", inputs, feeds, opset=18)
    np.testing.assert_array_equal(got, np.pad(x, ((0, 0), (1, 0)), constant_values=2))
    with pytest.raises(tierup.InputError):
        loaded.run({**feeds, "axes": np.array([2])})


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_ranges_with_any_step(dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [value(name, [], kind) for name in ("start", "limit", "delta")]
    feeds = [(1, 7, 2), (7, 1, -2), (1, 7, -1), (0, 3, 3)]
    for start, limit, delta in feeds:
        numbers = {"start": start, "limit": limit, "delta": delta}
        given = {name: np.array(number, dtype) for name, number in numbers.items()}
        got, loaded = compiled("Range", inputs, given, kind)
        np.testing.assert_array_equal(got, np.arange(start, limit, delta, dtype))
    with pytest.raises(tierup.InputError):
        loaded.run({**given, "delta": np.array(0, dtype)})


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratios_that_only_the_call_knows(policy: str) -> None:
    def build(b: GraphBuilder) -> int:
        x, sizes = b.open_input(DType.F32, (1, 2, "h", "w")), b.open_input(DType.I64, (2,))
        attrs = {"axes": (2, 3), "keep_aspect_ratio_policy": policy, "mode": "linear"}
        given = {"coordinate_transformation_mode": "half_pixel", **attrs}
        return int(node(b, "onnx.Resize", x, None, None, sizes, version=18, **given))

    graph, weights = made(build)
    after = decompose(graph, weights)
    assert all(n.op.startswith("core.") for n in after.nodes)
    for height, width, wanted in ((4, 6, (3, 7)), (5, 5, (2, 9)), (3, 8, (6, 16))):
        x = np.random.default_rng(0).standard_normal((1, 2, height, width)).astype(np.float32)
        inputs = [x, np.array(wanted)]
        (right,), (got,) = evaluate(graph, weights, inputs), evaluate(after, weights, inputs)
        np.testing.assert_allclose(got, right, rtol=1e-6)  # the same weights, in f64


def test_nearest_neighbours_under_any_scales() -> None:
    def build(b: GraphBuilder) -> int:
        x, scales = b.open_input(DType.F32, ("a", "b")), b.open_input(DType.F32, (2,))
        return int(node(b, "onnx.Upsample", x, scales, version=9, mode="nearest"))

    graph, weights = made(build)
    after = decompose(graph, weights)
    assert all(n.op.startswith("core.") for n in after.nodes)
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    for scales in ((2, 3), (1, 1), (0.5, 2), (1.5, 0.6), (0.25, 0.4)):
        inputs = [x, np.array(scales, np.float32)]
        np.testing.assert_array_equal(evaluate(after, weights, inputs)[0], evaluate(graph, weights, inputs)[0])
