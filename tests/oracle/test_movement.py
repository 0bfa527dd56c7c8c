"""Ops that move elements: against ONNX Runtime, and against plain indexing where ONNX Runtime has no answer."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import STYLES, case_id, check, checked, from_onnx, refuses

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Weights
from tierup.ir.infer import InferError
from tierup.ir.types import DType, Sym, TensorType


def f32(*shape: int) -> Any:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


INT_MAX, INT_MIN = 2**31 - 1, -(2**63)

# (op, opset, inputs, attributes, number of outputs); the answer is ONNX Runtime's
CASES = [
    ("Concat", 7, [f32(2, 3), f32(2, 1)], {"axis": 1}, 1),
    ("Concat", 13, [f32(2, 3), f32(0, 3), f32(4, 3)], {"axis": -2}, 1),
    ("DepthToSpace", 7, [f32(2, 8, 2, 3)], {"blocksize": 2}, 1),
    ("DepthToSpace", 13, [f32(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, 1),
    ("SpaceToDepth", 13, [f32(2, 3, 4, 6)], {"blocksize": 2}, 1),
    ("Expand", 8, [f32(3, 1), i64(2, 1, 6)], {}, 1),
    ("Expand", 13, [f32(3, 4), i64(1)], {}, 1),
    ("Expand", 13, [f32(), i64(2, 0)], {}, 1),
    ("Expand", 13, [f32(2, 1, 1), i64(3, 1)], {}, 1),
    ("Flatten", 7, [f32(2, 3, 4)], {}, 1),
    ("Flatten", 13, [f32(2, 3, 4)], {"axis": 0}, 1),
    ("Flatten", 13, [f32(2, 0, 4)], {"axis": -1}, 1),
    ("Flatten", 13, [f32(2, 3)], {"axis": 2}, 1),
    ("Pad", 7, [f32(2, 3)], {"pads": (0, 2, 1, 0), "value": 1.5}, 1),
    ("Pad", 7, [f32(3, 3)], {"pads": (0, 2, 1, 0), "mode": "reflect"}, 1),
    ("Pad", 11, [f32(2, 3), i64(1, 0, 0, 2), np.array(7, np.float32)], {}, 1),
    ("Pad", 13, [f32(4, 5), i64(-1, 2, 0, -3)], {}, 1),
    ("Pad", 13, [f32(4, 5), i64(-1, 2, 2, -1)], {"mode": "edge"}, 1),
    ("Pad", 13, [f32(4, 5), i64(2, 3, 1, 4)], {"mode": "reflect"}, 1),
    ("Pad", 18, [f32(4, 5), i64(2, 1), None, i64(-1)], {}, 1),
    ("Pad", 18, [f32(4, 5), i64(2, 1, 0, 3), np.array(-1, np.float32), i64(1, 0)], {}, 1),
    ("Pad", 19, [f32(3, 4), i64(2, 1, 1, 3)], {"mode": "wrap"}, 1),
    ("Pad", 13, [np.array([[True, True]]), i64(0, 1, 1, 0)], {}, 1),
    ("Reshape", 7, [f32(2, 3, 4), i64(4, -1)], {}, 1),
    ("Reshape", 13, [f32(2, 3, 4), i64(0, -1, 2, 0 + 2)], {}, 1),
    ("Reshape", 14, [f32(0, 3), i64(3, 0, 4)], {"allowzero": 1}, 1),
    ("Reshape", 14, [f32(1), np.zeros(0, np.int64)], {}, 1),
    ("Reshape", 14, [f32(0, 4), i64(0, 2, 2)], {}, 1),
    ("ReverseSequence", 10, [f32(4, 3, 2), i64(4, 1, 2)], {"batch_axis": 1, "time_axis": 0}, 1),
    ("ReverseSequence", 10, [f32(3, 4), i64(4, 1, 3)], {"batch_axis": 0, "time_axis": 1}, 1),
    ("Shape", 7, [f32(2, 0, 4)], {}, 1),
    ("Shape", 15, [f32(2, 3, 4)], {"start": 1}, 1),
    ("Shape", 15, [f32(2, 3, 4)], {"start": -9, "end": -1}, 1),
    ("Shape", 15, [f32(2, 3, 4)], {"start": 2, "end": 1}, 1),
    ("Shape", 13, [f32()], {}, 1),
    ("Size", 7, [f32(2, 3, 4)], {}, 1),
    ("Size", 13, [f32()], {}, 1),
    ("Slice", 7, [f32(4, 5)], {"starts": (1, -3), "ends": (INT_MAX, -1)}, 1),
    ("Slice", 7, [f32(4, 5)], {"starts": (-1,), "ends": (1000,), "axes": (1,)}, 1),
    ("Slice", 10, [f32(4, 5), i64(0, 1), i64(-1, 1000)], {}, 1),
    ("Slice", 10, [f32(4, 5), i32(1), i32(4), i32(-1), i32(2)], {}, 1),
    ("Slice", 13, [f32(4, 5), i64(10), i64(INT_MIN), i64(1), i64(-2)], {}, 1),
    ("Slice", 13, [f32(4, 5), i64(-1, 0), i64(-3, INT_MAX), i64(1, 0), i64(-1, 3)], {}, 1),
    ("Slice", 13, [f32(4, 5), i64(-100), i64(INT_MIN), i64(1), i64(-1)], {}, 1),
    ("Slice", 13, [f32(4, 5), i64(3), i64(1), i64(0)], {}, 1),
    ("Slice", 13, [f32(0, 5), i64(-1), i64(INT_MIN), i64(0), i64(-1)], {}, 1),
    ("Split", 7, [f32(6, 2)], {"axis": 0}, 3),
    ("Split", 7, [f32(6, 2)], {"axis": 0, "split": (1, 5)}, 2),
    ("Split", 13, [f32(2, 6), i64(2, 0, 4)], {"axis": -1}, 3),
    ("Split", 13, [f32(2, 6)], {"axis": 1}, 2),
    ("Split", 18, [f32(7, 2)], {"num_outputs": 3}, 3),
    ("Squeeze", 7, [f32(1, 3, 1)], {"axes": (0,)}, 1),
    ("Squeeze", 11, [f32(1, 3, 1)], {"axes": (-1, 0)}, 1),
    ("Squeeze", 13, [f32(1, 3, 1), i64(2)], {}, 1),
    ("Squeeze", 13, [f32(1, 3, 1)], {}, 1),
    ("Tile", 7, [f32(2, 3), i64(2, 3)], {}, 1),
    ("Tile", 13, [f32(2, 3), i64(0, 1)], {}, 1),
    ("Transpose", 7, [f32(2, 3, 4)], {}, 1),
    ("Transpose", 13, [f32(2, 3, 4)], {"perm": (1, 2, 0)}, 1),
    ("Transpose", 13, [f32()], {}, 1),
    ("Trilu", 14, [f32(2, 3, 4)], {}, 1),
    ("Trilu", 14, [f32(3, 4), np.array(-1, np.int64)], {"upper": 0}, 1),
    ("Trilu", 14, [f32(3, 4), np.array(2**62, np.int64)], {"upper": 0}, 1),
    ("Unsqueeze", 7, [f32(3)], {"axes": (0, 2)}, 1),
    ("Unsqueeze", 13, [f32(3, 4), i64(-1, 1)], {}, 1),
    ("Concat", 13, [i64(2, 3), i64(4)], {"axis": 0}, 1),
    ("Slice", 13, [i64(1, 2, 3, 4), i64(-1), i64(INT_MIN), i64(0), i64(-2)], {}, 1),
    ("Tile", 13, [i64(1, 2), i64(3)], {}, 1),
    ("Expand", 13, [i64(7), i64(3)], {}, 1),
    ("Expand", 13, [i64(1, 2), i64(2, 2)], {}, 1),
    ("Split", 13, [i64(1, 2, 3), i64(2, 1)], {"axis": 0}, 2),
    ("Reshape", 13, [i64(5), np.zeros(0, np.int64)], {}, 1),
    ("Squeeze", 13, [i64(5), i64(0)], {}, 1),
    ("Transpose", 13, [i64(5, 6)], {}, 1),
    ("CenterCropPad", 18, [f32(3, 8, 4), i64(6, 5)], {"axes": (0, -2)}, 1),
    ("Col2Im", 18, [f32(1, 8, 9), i64(4, 4), i64(2, 2)], {}, 1),
    ("Col2Im", 18, [f32(2, 6, 8), i64(5, 7), i64(3, 2)], {"strides": (2, 2), "pads": (0, 1, 0, 1)}, 1),
    ("Col2Im", 18, [f32(1, 4, 9), i64(5, 5), i64(2, 2)], {"dilations": (2, 2)}, 1),
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_agrees_with_onnxruntime(case: Any, style: str) -> None:
    check(case, style)


BF16 = np.dtype(ml_dtypes.bfloat16)
TEXT = np.array([["a", ""], ["bc", "d"]], object)

# What ONNX Runtime has not: (op, opset, inputs, attributes, answers)
WRITTEN_OUT = [
    ("SpaceToDepth", 28, [f32(1, 2, 2, 2)], {"blocksize": 2, "mode": "CRD"}, [f32(1, 8, 1, 1)]),
    ("Pad", 13, [f32(1, 2), i64(0, 3, 0, 4)], {"mode": "reflect"}, [f32(1, 2)[:, [1, 0, 1, 0, 1, 0, 1, 0, 1]]]),
    ("Pad", 19, [f32(1, 1), i64(0, 2, 0, 0)], {"mode": "reflect"}, [np.ones((1, 3), np.float32)]),
    ("Pad", 19, [f32(4), i64(-1, 5)], {"mode": "wrap"}, [np.array([2, 3, 4, 2, 3, 4, 2, 3], np.float32)]),
    ("Pad", 13, [TEXT, i64(0, 0, 0, 1)], {}, [np.array([["a", "", ""], ["bc", "d", ""]], object)]),
    ("Pad", 13, [f32(), np.zeros(0, np.int64)], {}, [f32()]),
    ("Pad", 25, [np.ones(2, BF16), i64(1, 0)], {}, [np.array([0, 1, 1], BF16)]),
    ("Concat", 13, [TEXT, TEXT], {"axis": 0}, [np.concatenate([TEXT, TEXT])]),
    ("Reshape", 14, [f32(0, 6), i64(0, -1, 2)], {}, [f32(0, 3, 2)]),
    ("Trilu", 14, [TEXT], {}, [np.array([["a", ""], ["", "d"]], object)]),
    ("Trilu", 14, [np.ones((2, 2), BF16)], {"upper": 0}, [np.array([[1, 0], [1, 1]], BF16)]),
    ("CenterCropPad", 18, [f32(3, 4), i64(0, 7)], {}, [np.zeros((0, 7), np.float32)]),
    (
        "Col2Im",
        18,
        [np.ones((1, 4, 4), np.float16), i64(3, 3), i64(2, 2)],
        {},
        [np.outer([1, 2, 1], [1, 2, 1]).astype(np.float16)[None, None]],
    ),
    ("Col2Im", 18, [f32(0, 4, 4), i64(3, 3), i64(2, 2)], {}, [f32(0, 1, 3, 3)]),
    ("Split", 18, [f32(0, 2)], {"num_outputs": 2}, [f32(0, 2), f32(0, 2)]),
    ("Tile", 13, [TEXT, i64(1, 2)], {}, [np.tile(TEXT, (1, 2))]),
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", WRITTEN_OUT, ids=case_id)
def test_gives_the_answer_that_is_written_out(case: Any, style: str) -> None:
    check(case, style)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint64, np.complex64, np.bool_, BF16])
@pytest.mark.parametrize(
    ("op", "opset", "operands", "attrs"),
    [
        ("Transpose", 25, [], {"perm": (1, 0)}),
        ("Slice", 13, [i64(2), i64(0), i64(1), i64(-1)], {}),
        ("Tile", 13, [i64(1, 2)], {}),
        ("Trilu", 14, [], {}),
        ("Expand", 13, [i64(2, 1, 1)], {}),
        ("Pad", 25, [i64(1, 0, 0, 1)], {"mode": "edge"}),
    ],
)
def test_keeps_every_dtype(op: str, opset: int, operands: list[Any], attrs: dict[str, Any], dtype: Any) -> None:
    wide = f32(3, 4) % 2
    (expected,) = from_onnx(op, wide, *operands, version=opset, **attrs)
    check((op, opset, [wide.astype(dtype), *operands], attrs, [np.asarray(expected).astype(dtype)]), "open")


# (op, opset, inputs, attributes): refused when the graph is built, and when only the data shows it
REFUSED = [
    ("Reshape", 14, [f32(2, 3), i64(4, -1)], {}),
    ("Reshape", 14, [f32(2, 3), i64(-1, -1)], {}),
    ("Reshape", 14, [f32(2, 3), i64(7)], {}),
    ("Reshape", 14, [f32(2, 3), i64(-2, 3)], {}),
    ("Reshape", 14, [f32(2, 3), i64(2, 3, 0)], {}),
    ("Reshape", 14, [f32(0, 3), i64(0, -1)], {"allowzero": 1}),
    ("Slice", 13, [f32(2, 3), i64(0), i64(1), i64(0), i64(0)], {}),
    ("Slice", 13, [f32(2, 3), i64(0), i64(1), i64(2)], {}),
    ("Split", 13, [f32(2, 3), i64(1, 2)], {"axis": 0}),
    ("Squeeze", 13, [f32(2, 3), i64(0)], {}),
    ("Unsqueeze", 13, [f32(2, 3), i64(0, 0)], {}),
    ("Expand", 13, [f32(2, 3), i64(2, 2)], {}),
    ("Expand", 13, [f32(1), i64(-1)], {}),
    ("Pad", 13, [f32(2), i64(-3, 2)], {"mode": "wrap"}),
    ("Tile", 13, [f32(2), i64(-1)], {}),
    ("Concat", 13, [f32(2, 3), f32(2, 3, 1)], {"axis": 0}),
    ("Concat", 13, [f32(2, 3), f32(3, 3)], {"axis": 1}),
    ("Col2Im", 18, [f32(1, 5, 9), i64(4, 4), i64(2, 2)], {}),
    ("ReverseSequence", 10, [f32(4, 3), i64(4, 1)], {}),
    ("ReverseSequence", 10, [f32(4, 2), i64(5, 1)], {}),
]


@pytest.mark.parametrize("case", REFUSED, ids=case_id)
def test_refuses_with_a_sentence(case: Any) -> None:
    op, opset, inputs, attrs = case
    refuses(op, *inputs, version=opset, outputs=2 if op == "Split" else 1, **attrs)


def test_a_bad_permutation_is_refused() -> None:
    builder = GraphBuilder(Weights())
    x = builder.open_input(DType.F32, (2, 3))
    with pytest.raises(InferError, match="permutation"):
        builder.op("onnx.Transpose", x, version=13, perm=(0, 0))


class Exported:
    """A graph under construction, with the few nodes that exporters write around shapes."""

    def __init__(self) -> None:
        self.builder = GraphBuilder(Weights())

    def ints(self, *values: int) -> int:
        return self.builder.weight(i64(*values))

    def scalar(self, value: int) -> int:
        return self.builder.weight(np.array(value, np.int64))

    def size(self, x: int, axis: int) -> int:
        """x.shape[axis], as Shape, Gather, Unsqueeze."""
        shape = self.builder.op("onnx.Shape", x, version=15, start=0)
        picked = self.builder.op("onnx.Gather", shape, self.scalar(axis), version=13, axis=0)
        return self.builder.op("onnx.Unsqueeze", picked, self.ints(0), version=13)

    def reshape(self, x: int, *sizes: int, allowzero: int = 0) -> int:
        target = self.builder.op("onnx.Concat", *sizes, version=13, axis=0)
        return self.builder.op("onnx.Reshape", x, target, version=14, allowzero=allowzero)

    def shape(self, value: int) -> Any:
        type = self.builder.type(value)
        assert isinstance(type, TensorType)
        return type.shape

    def run(self, *outputs: int, feeds: list[Any]) -> list[Any]:
        return checked(self.builder, self.builder.finish(outputs), feeds)


@pytest.mark.parametrize("allowzero", [0, 1])
def test_splitting_heads_keeps_batch_and_length(allowzero: int) -> None:
    e = Exported()
    x = e.builder.open_input(DType.F32, ("batch", "length", 64))
    heads = e.reshape(x, e.size(x, 0), e.ints(-1), e.ints(8), e.ints(8), allowzero=allowzero)
    batch, length, _ = e.shape(x)
    assert e.shape(heads) == (batch, length, 8, 8)
    moved = e.builder.op("onnx.Transpose", heads, version=13, perm=(0, 2, 1, 3))
    flat = e.reshape(moved, e.builder.op("onnx.Concat", e.ints(-1), version=13, axis=0), e.size(x, 1), e.ints(8))
    back = e.reshape(flat, e.size(x, 0), e.ints(8), e.size(x, 1), e.ints(8))
    assert e.shape(back) == (batch, 8, length, 8)
    again = e.reshape(
        e.builder.op("onnx.Transpose", back, version=13, perm=(0, 2, 1, 3)), e.size(x, 0), e.size(x, 1), e.ints(64)
    )
    assert e.shape(again) == e.shape(x)
    feed = f32(2, 3, 64)
    np.testing.assert_array_equal(e.run(heads, flat, back, again, feeds=[feed])[-1], feed)


def test_a_product_of_sizes_is_divided_again() -> None:
    e = Exported()
    x = e.builder.open_input(DType.F32, ("batch", "length", 12))
    rows = e.builder.op("onnx.Reshape", x, e.ints(-1, 12), version=14, allowzero=0)
    back = e.reshape(rows, e.size(x, 0), e.size(x, 1), e.ints(-1))
    assert e.shape(back) == e.shape(x)
    flat = e.builder.op("onnx.Flatten", x, version=13, axis=2)
    assert e.shape(flat) == e.shape(rows)
    e.run(rows, back, flat, feeds=[f32(2, 5, 12)])


def test_minus_one_with_an_empty_batch_is_what_is_left() -> None:
    e = Exported()
    x = e.builder.open_input(DType.F32, ("batch", "length", 4))
    flat = e.reshape(x, e.size(x, 0), e.ints(-1))
    (result,) = e.run(flat, feeds=[f32(0, 3, 4)])
    assert result.shape == (0, 12)


@pytest.mark.parametrize("target", [(4, 6), (-1, 6), (4, -1), (0, 6), (0, -1), (2, 2, -1), (0, 0), (24, 1)])
def test_a_target_that_comes_with_the_call(target: tuple[int, ...]) -> None:
    e = Exported()
    x = e.builder.open_input(DType.F32, (None, None))
    shape = e.builder.open_input(DType.I64, (len(target),))
    y = e.builder.op("onnx.Reshape", x, shape, version=14, allowzero=0)
    assert len(e.shape(y)) == len(target)
    e.run(y, feeds=[f32(4, 6), i64(*target)])


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_size_of_another_tensor_may_be_zero_and_then_copies(size: int) -> None:
    e = Exported()
    x = e.builder.open_input(DType.F32, (None, None))
    other = e.builder.open_input(DType.F32, (None,))
    y = e.reshape(x, e.size(other, 0), e.ints(-1))
    e.run(y, feeds=[f32(5, 2), f32(size)])


def test_all_but_the_last_sizes() -> None:
    """x.reshape(*x.shape[:-2], -1), as Shape, Slice, Concat, Reshape."""
    e = Exported()
    x = e.builder.open_input(DType.F32, ("a", "b", "c", 7))
    shape = e.builder.op("onnx.Shape", x, version=15, start=0)
    front = e.builder.op("onnx.Slice", shape, e.ints(0), e.ints(-2), e.ints(0), version=13)
    y = e.reshape(x, front, e.ints(-1))
    a, b, _, _ = e.shape(x)
    assert e.shape(y)[:2] == (a, b)
    backwards = e.builder.op("onnx.Slice", shape, e.ints(-1), e.ints(INT_MIN), e.ints(0), e.ints(-1), version=13)
    assert e.builder.content(backwards) == tuple(reversed(e.shape(x)))
    e.run(y, backwards, feeds=[f32(2, 3, 5, 7)])


def test_contents_go_through_split_tile_expand_squeeze_and_size() -> None:
    e = Exported()
    x = e.builder.open_input(DType.F32, ("a", "b", 7))
    a, b, _ = e.shape(x)
    shape = e.builder.op("onnx.Shape", x, version=15, start=0)
    first, rest = e.builder.node("onnx.Split", [shape, e.ints(1, 2)], version=13, outputs=(True, True))
    assert first is not None
    assert rest is not None
    assert e.builder.content(rest) == (b, 7)
    assert e.builder.content(e.builder.op("onnx.Tile", rest, e.ints(2), version=13)) == (b, 7, b, 7)
    assert e.builder.content(e.builder.op("onnx.Expand", first, e.ints(3), version=13)) == (a, a, a)
    scalar = e.builder.op("onnx.Squeeze", first, e.ints(0), version=13)
    assert e.builder.content(scalar) == (a,)
    assert e.builder.content(e.builder.op("onnx.Size", shape, version=13)) == (3,)
    flat = e.builder.op("onnx.Reshape", scalar, e.ints(-1), version=13)
    assert e.builder.content(flat) == (a,)
    e.run(flat, rest, feeds=[f32(2, 3, 7)])


def test_a_join_of_known_and_unknown_numbers_knows_what_it_can() -> None:
    e = Exported()
    x = e.builder.open_input(DType.F32, ("a", 6))
    heads = e.builder.open_input(DType.I64, (1,))
    y = e.reshape(x, e.size(x, 0), heads, e.ints(-1))
    assert e.shape(y)[0] == e.shape(x)[0]
    e.run(y, feeds=[f32(4, 6), i64(3)])


def test_a_position_table_is_cut_to_the_length() -> None:
    e = Exported()
    x = e.builder.open_input(DType.F32, ("batch", "length"))
    table = e.builder.weight(f32(1, 10, 4))
    cut = e.builder.op("onnx.Slice", table, e.ints(0), e.size(x, 1), e.ints(1), version=13)
    assert isinstance(e.shape(cut)[1], Sym)
    e.run(cut, feeds=[f32(2, 7)])
    e.run(cut, feeds=[f32(2, 12)])


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
@pytest.mark.parametrize("size", [0, 1, 6])
def test_slice_bounds_of_every_sign(size: int, step: int) -> None:
    bounds = [INT_MIN, -2147483648, -7, -6, -2, 0, 1, 5, 6, 9, INT_MAX, 2**63 - 1]
    data = f32(size)
    for start in bounds:
        for end in bounds:
            e = Exported()
            x = e.builder.open_input(DType.F32, (None,))
            first, last = (e.builder.open_input(DType.I64, (1,)) for _ in range(2))
            known = e.builder.op("onnx.Slice", x, e.ints(start), e.ints(end), e.ints(0), e.ints(step), version=13)
            read = e.builder.op("onnx.Slice", x, first, last, e.ints(0), e.ints(step), version=13)
            for result in e.run(known, read, feeds=[data, i64(start), i64(end)]):
                np.testing.assert_array_equal(result, data[_places(size, start, end, step)])


def _places(size: int, start: int, end: int, step: int) -> list[int]:
    """The elements that the standard names, one after the other."""
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return list(range(min(max(start, 0), size), min(max(end, 0), size), step))
    return [i for i in range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step) if size]
