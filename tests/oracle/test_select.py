"""Ops that pick or place elements: against ONNX Runtime, and against loops over the standard's own definitions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import STYLES, build, case_id, check, checked, refuses

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Weights
from tierup.ir.types import DType, TensorType

BF16 = np.dtype(ml_dtypes.bfloat16)
NAN = np.float32(np.nan)


def f32(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).permutation(int(np.prod(shape))).astype(np.float32).reshape(shape)


def i64(*values: Any) -> Any:
    return np.array(values, np.int64)


def bools(*values: int) -> Any:
    return np.array(values, np.bool_)


def text(*values: Any) -> Any:
    return np.array(values, object)


# (op, opset, inputs, attributes, number of outputs); the answer is ONNX Runtime's
CASES = [
    ("Compress", 9, [f32(3, 4), bools(0, 1, 1)], {"axis": 0}, 1),
    ("Compress", 11, [f32(3, 4), bools(0, 1, 1)], {"axis": -1}, 1),
    ("Compress", 11, [f32(3, 4), bools(0, 1, 1, 0, 0, 1)], {}, 1),
    ("Compress", 11, [f32(3, 4), bools(0, 0, 0)], {"axis": 0}, 1),
    ("Gather", 7, [f32(3, 4), i64(2, 0)], {}, 1),
    ("Gather", 13, [f32(3, 4), i64([0, -1], [1, -4])], {"axis": 1}, 1),
    ("Gather", 13, [f32(3, 4), np.array(-1, np.int32)], {"axis": -2}, 1),
    ("Gather", 13, [f32(0, 4), np.zeros((2, 0), np.int64)], {}, 1),
    ("GatherElements", 11, [f32(3, 4), i64([0, -1, 2, 1])], {"axis": 0}, 1),
    ("GatherElements", 13, [f32(3, 4), i64([0], [-4], [2])], {"axis": 1}, 1),
    ("GatherElements", 13, [f32(5, 4), i64([0, 1], [3, -4])], {"axis": -1}, 1),
    ("GatherND", 11, [f32(3, 4), i64([0, -1], [2, 1])], {}, 1),
    ("GatherND", 12, [f32(2, 3, 4), i64([[1]], [[-3]])], {"batch_dims": 1}, 1),
    ("GatherND", 13, [f32(2, 3, 4), i64([[0, 1]], [[1, -1]])], {}, 1),
    (
        "GatherND",
        13,
        [f32(2, 3, 4, 2), i64([[[1, 0]], [[2, 1]], [[0, 0]]], [[[0, 0]], [[1, 1]], [[3, -1]]])],
        {"batch_dims": 2},
        1,
    ),
    ("NonZero", 9, [np.array([[1, 0], [1, 1]], np.float32)], {}, 1),
    ("NonZero", 13, [bools(0, 1, 1)], {}, 1),
    ("NonZero", 13, [np.zeros((2, 0), np.int64)], {}, 1),
    ("OneHot", 9, [i64([1, -1], [9, -9]), np.array(4, np.int64), np.array([-1, 2], np.float32)], {}, 1),
    ("OneHot", 11, [i64(0, 2), i64(3), i64(0, 1)], {"axis": 0}, 1),
    (
        "OneHot",
        11,
        [np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32), np.array([0, 1], np.float32)],
        {"axis": -2},
        1,
    ),
    ("Scatter", 9, [f32(3, 3), i64([1, 0, 2], [0, 2, 1]), f32(2, 3)], {"axis": 0}, 1),
    ("ScatterElements", 11, [f32(1, 5), i64([1, -1]), f32(1, 2)], {"axis": 1}, 1),
    ("ScatterElements", 16, [f32(1, 5), i64([1, 1]), f32(1, 2)], {"axis": 1, "reduction": "add"}, 1),
    ("ScatterElements", 18, [f32(4, 2), i64([1, 0], [1, -2]), -f32(2, 2)], {"reduction": "min"}, 1),
    ("ScatterElements", 18, [f32(4, 2), i64([1, 0], [1, 2]), f32(2, 2)], {"reduction": "max"}, 1),
    ("ScatterElements", 18, [f32(4, 2), i64([1, 0], [1, 2]), f32(2, 2)], {"reduction": "mul"}, 1),
    ("ScatterND", 11, [f32(8), i64([4], [3], [1], [-1]), f32(4)], {}, 1),
    ("ScatterND", 13, [f32(4, 2, 3), i64([0], [2]), f32(2, 2, 3)], {}, 1),
    ("ScatterND", 16, [f32(4, 3), i64([0, 1], [0, 1]), f32(2)], {"reduction": "add"}, 1),
    ("ScatterND", 18, [f32(4, 3), i64([[0], [0]]), f32(1, 2, 3)], {"reduction": "max"}, 1),
    ("TopK", 7, [f32(3, 4)], {"k": 2}, 2),
    ("TopK", 10, [f32(3, 4), i64(3)], {"axis": 0}, 2),
    ("TopK", 11, [f32(3, 4), i64(2)], {"largest": 0}, 2),
    ("TopK", 11, [np.array([3, 1, 3, 1, 2], np.int64), i64(4)], {}, 2),
    ("TopK", 11, [np.array([3, 1, 3, 1, 2], np.float64), i64(4)], {"largest": 0}, 2),
    ("TopK", 11, [f32(3, 4), i64(0)], {}, 2),
    ("Unique", 11, [np.array([2, 1, 1, 3, 4, 3], np.float32)], {"sorted": 0}, 4),
    ("Unique", 11, [np.array([[1, 3], [2, 3]], np.int64)], {}, 4),
    ("Unique", 11, [np.array([[1, 0, 0], [1, 0, 0], [-2, 3, 4]], np.float32)], {"axis": 0}, 4),
    ("Unique", 11, [np.array([[[1, 1], [0, 1], [2, 1], [0, 1]]] * 2, np.float32)], {"axis": -2, "sorted": 0}, 4),
    ("Unique", 11, [text("b", "a", "b")], {}, 4),
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_agrees_with_onnxruntime(case: Any, style: str) -> None:
    check(case, style)


CACHE, STEPS = f32(2, 4, 3), -f32(2, 2, 3)


def _written(mode: str, starts: tuple[int, int]) -> Any:
    """The standard's own loop."""
    result = CACHE.copy()
    for batch in range(2):
        for step in range(2):
            at = starts[batch] + step
            result[batch, at % 4 if mode == "circular" else at] = STEPS[batch, step]
    return result


# What ONNX Runtime has not, or answers otherwise: (op, opset, inputs, attributes, answers)
WRITTEN_OUT = [
    ("NonZero", 13, [np.array(3.0, np.float32)], {}, [np.zeros((0, 1), np.int64)]),
    ("NonZero", 13, [np.array(0, np.int64)], {}, [np.zeros((0, 0), np.int64)]),
    ("NonZero", 13, [text("", "a")], {}, [i64([1])]),
    ("NonZero", 13, [np.array([0, NAN, 2], BF16)], {}, [i64([1, 2])]),
    ("Gather", 13, [text("a", "b"), i64(1, 1)], {}, [text("b", "b")]),
    ("Gather", 13, [np.array([1, 2], BF16), i64(1)], {}, [np.array([2], BF16)]),
    ("TopK", 11, [np.array([1, NAN, 3], np.float32), i64(2)], {}, [np.array([NAN, 3], np.float32), i64(1, 2)]),
    (
        "TopK",
        11,
        [np.array([1, NAN, 3], np.float32), i64(2)],
        {"largest": 0},
        [np.array([1, 3], np.float32), i64(0, 2)],
    ),
    ("TopK", 24, [np.array([1, 4, 3], BF16), i64(2)], {}, [np.array([4, 3], BF16), i64(1, 2)]),
    ("TopK", 11, [np.array([0, 255, 3], np.uint8), i64(2)], {}, [np.array([255, 3], np.uint8), i64(1, 2)]),
    (
        "ScatterElements",
        18,
        [np.ones(2, BF16), i64(0, 0, 0), np.full(3, 2, BF16)],
        {"reduction": "add"},
        [np.array([7, 1], BF16)],
    ),
    (
        "ScatterElements",
        18,
        [np.ones(2, np.float32), i64(0), np.array([NAN])],
        {"reduction": "max"},
        [np.array([NAN, 1], np.float32)],
    ),
    ("ScatterElements", 18, [text("a", "b"), i64(1), text("c")], {}, [text("a", "c")]),
    ("ScatterND", 18, [f32(0, 3), np.zeros((0, 1), np.int64), f32(0, 3)], {}, [f32(0, 3)]),
    ("Unique", 11, [np.zeros((0, 3), np.float32)], {"axis": 0}, [np.zeros((0, 3), np.float32), i64(), i64(), i64()]),
    (
        "Unique",
        11,
        [np.zeros((3, 0), np.float32)],
        {"axis": 0},
        [np.zeros((1, 0), np.float32), i64(0), i64(0, 0, 0), i64(3)],
    ),
    (
        "Unique",
        11,
        [text(["b", "a"], ["a", "z"], ["b", "a"])],
        {"axis": 0},
        [text(["a", "z"], ["b", "a"]), i64(1, 0), i64(1, 0, 1), i64(1, 2)],
    ),
    (
        "Unique",
        28,
        [np.array([2, 1, 2], BF16)],
        {"sorted": 0},
        [np.array([2, 1], BF16), i64(0, 1), i64(0, 1, 0), i64(2, 1)],
    ),
    ("TensorScatter", 24, [CACHE, STEPS], {}, [_written("linear", (0, 0))]),
    ("TensorScatter", 24, [CACHE, STEPS, i64(1, 2)], {"axis": 1}, [_written("linear", (1, 2))]),
    ("TensorScatter", 24, [CACHE, STEPS, i64(3, 7)], {"mode": "circular"}, [_written("circular", (3, 7))]),
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", WRITTEN_OUT, ids=case_id)
def test_gives_the_answer_that_is_written_out(case: Any, style: str) -> None:
    check(case, style)


# (op, opset, inputs, attributes): a place that does not exist, or operands that do not fit
REFUSED = [
    ("Gather", 13, [f32(3, 4), i64(3)], {}),
    ("Gather", 13, [f32(3, 4), i64(-4)], {}),
    ("Gather", 13, [f32(0, 4), i64(0)], {}),
    ("GatherElements", 13, [f32(3, 4), i64([0, 0, 0, 3])], {}),
    ("GatherElements", 13, [f32(3, 4), i64([-4, 0, 0, 0])], {}),
    ("GatherElements", 13, [f32(3, 4), i64([0], [0], [0], [0])], {"axis": 1}),
    ("GatherND", 13, [f32(3, 4), i64([0, 4])], {}),
    ("GatherND", 13, [f32(3, 4), i64([0, 0, 0])], {}),
    ("GatherND", 13, [f32(3, 4), i64([[0]], [[0]])], {"batch_dims": 1}),
    ("ScatterElements", 18, [f32(3), i64(3), f32(1)], {}),
    ("ScatterElements", 18, [f32(3), i64(-4), f32(1)], {"reduction": "add"}),
    ("ScatterElements", 18, [f32(3), i64(0), f32(2)], {}),
    ("ScatterND", 18, [f32(3, 2), i64([3]), f32(1, 2)], {}),
    ("ScatterND", 18, [f32(3, 2), i64([0, -3]), f32(1)], {"reduction": "mul"}),
    ("ScatterND", 18, [f32(3, 2), i64([0]), f32(1, 1)], {}),
    ("TensorScatter", 24, [CACHE, STEPS, i64(0, 3)], {}),
    ("TensorScatter", 24, [CACHE, STEPS, i64(0, -1)], {}),
    ("TensorScatter", 24, [CACHE, f32(2, 5, 3)], {}),
    ("TopK", 11, [f32(3), i64(4)], {}),
    ("TopK", 11, [f32(3), i64(-1)], {}),
    ("OneHot", 11, [i64(0), i64(-1), i64(0, 1)], {}),
    ("Compress", 11, [f32(2, 2), bools(0, 0, 0)], {"axis": 0}),
]


@pytest.mark.parametrize("case", REFUSED, ids=case_id)
def test_refuses_with_a_sentence(case: Any) -> None:
    op, opset, inputs, attrs = case
    refuses(op, *inputs, version=opset, **attrs)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd_follows_the_standards_loop(reduction: str) -> None:
    random = np.random.default_rng(3)
    data, updates = random.normal(size=(4, 3, 2)), random.normal(size=(5, 2))
    indices = np.stack([random.integers(-4, 4, 5), random.integers(-3, 3, 5)], -1)
    step = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    expected = data.copy()
    for place, update in zip(indices, updates, strict=True):
        expected[tuple(place)] = step(expected[tuple(place)], update)
    check(("ScatterND", 18, [data, indices, updates], {"reduction": reduction}, [expected]), "open")


def test_inputs_are_not_written_to() -> None:
    data, updates = f32(3, 2), f32(1, 2)
    kept = data.copy()
    for reduction in ("none", "add"):
        checked(*build("open", "ScatterND", data, i64([1]), updates, reduction=reduction))
    checked(*build("open", "ScatterElements", data, i64([1, 1]), updates))
    np.testing.assert_array_equal(data, kept)


def test_a_gathered_size_is_known() -> None:
    builder = GraphBuilder(Weights())
    x = builder.open_input(DType.F32, ("a", "b", 5))
    shape = builder.op("onnx.Shape", x, version=15, start=0)
    picked = builder.op("onnx.Gather", shape, builder.weight(i64(-1, 0)), version=13, axis=0)
    kind = builder.type(x)
    assert isinstance(kind, TensorType)
    assert kind.shape is not None
    assert builder.content(picked) == (5, kind.shape[0])
    kept = builder.op("onnx.Compress", shape, builder.weight(bools(0, 1, 1)), version=11, axis=0)
    assert builder.content(kept) == kind.shape[1:]


def test_a_class_count_that_is_a_size_is_a_dim() -> None:
    builder = GraphBuilder(Weights())
    ids = builder.open_input(DType.I64, ("n",))
    table = builder.open_input(DType.F32, ("classes", 4))
    shape = builder.op("onnx.Shape", table, version=15, start=0)
    classes = builder.op("onnx.Gather", shape, builder.weight(np.array(0, np.int64)), version=13, axis=0)
    hot = builder.op("onnx.OneHot", ids, classes, builder.weight(i64(0, 1)), version=11, axis=-1)
    kind, wanted = builder.type(hot), (builder.type(ids), builder.type(table))
    assert isinstance(kind, TensorType)
    assert kind.shape == (wanted[0].shape[0], wanted[1].shape[0])  # type: ignore[union-attr, index]  # both tensors
