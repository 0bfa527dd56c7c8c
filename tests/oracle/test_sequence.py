"""Sequences and optionals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.cases import one, run

from tierup.errors import InputError
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Weights
from tierup.ir.infer import InferError
from tierup.ir.types import DType, OptionalType, SequenceType, TensorType
from tierup.reference.evaluate import evaluate

A, B, C = np.float32([1]), np.float32([2, 3]), np.float32([[4]])


def at(position: int) -> np.ndarray:
    return np.array(position, np.int64)


def same(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_items() -> None:
    same(one("onnx.SequenceConstruct", A, B, C), [A, B, C])
    same(one("onnx.SequenceEmpty"), [])
    same(run("onnx.SequenceAt", [A, B], at(-1)), [B])
    same(one("onnx.SequenceInsert", [A, B], C), [A, B, C])
    same(one("onnx.SequenceInsert", [A, B], C, at(-2)), [C, A, B])
    same(one("onnx.SequenceInsert", [A, B], C, at(2)), [A, B, C])
    same(one("onnx.SequenceErase", [A, B, C]), [A, B])
    same(one("onnx.SequenceErase", [A, B, C], at(0)), [B, C])
    assert one("onnx.SequenceLength", [A, B]) == 2


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("SequenceAt", ([A], at(1))),
        ("SequenceErase", ([A], at(-2))),
        ("SequenceInsert", ([A], B, at(2))),
        ("SequenceErase", ([],)),
        ("ConcatFromSequence", ([],)),
    ],
)
def test_positions_outside(op: str, inputs: tuple[Any, ...]) -> None:
    with pytest.raises(InputError):
        run(f"onnx.{op}", *inputs, **({"axis": 0} if op.startswith("Concat") else {}))


X = np.arange(14, dtype=np.float32).reshape(2, 7)


def test_split_and_join() -> None:
    same(one("onnx.SplitToSequence", X, at(3), axis=1), [X[:, :3], X[:, 3:6], X[:, 6:]])
    same(one("onnx.SplitToSequence", X, np.array([5, 0, 2]), axis=-1), [X[:, :5], X[:, :0], X[:, 5:]])
    same(one("onnx.SplitToSequence", X), [X[:1], X[1:]])
    same(one("onnx.SplitToSequence", X, keepdims=0), [X[0], X[1]])
    same(one("onnx.SplitToSequence", X[:0]), [])
    same(one("onnx.SplitToSequence", X[:0], at(3)), [])
    same(one("onnx.SplitToSequence", X[:0], np.array([0])), [X[:0]])
    same(run("onnx.ConcatFromSequence", [X, X[:1]], axis=0), [np.concatenate([X, X[:1]])])
    same(run("onnx.ConcatFromSequence", [X, X], axis=-1, new_axis=1), [np.stack([X, X], axis=-1)])
    for sizes in (at(0), np.array([5, 1])):
        with pytest.raises(InputError):
            run("onnx.SplitToSequence", X, sizes, axis=1)


@pytest.mark.parametrize("version", [15, 18, 28])
def test_optionals(version: int) -> None:
    held = one("onnx.Optional", A, version=version)
    assert held is A
    for op, kind, full in (
        ("HasElement", TensorType(DType.BOOL, ()), True),
        ("GetElement", TensorType(DType.F32, None), A),
    ):
        builder = GraphBuilder(Weights())
        given = builder.input(OptionalType(TensorType(DType.F32, None)))
        made = builder.op(f"onnx.Optional{op}", given, version=version)
        assert builder.type(made) == kind
        graph = builder.finish([made])
        same(evaluate(graph, builder.weights, [A]), [full])
        if op == "HasElement":
            same(evaluate(graph, builder.weights, [None]), [False])
        else:
            with pytest.raises(InputError, match="empty"):
                evaluate(graph, builder.weights, [None])


def test_an_empty_optional_needs_its_type() -> None:
    builder = GraphBuilder(Weights())
    kind = SequenceType(TensorType(DType.I64, None))
    (made,) = builder.node("onnx.Optional", [], Attrs({"type": kind}), version=15)
    assert made is not None
    assert builder.type(made) == OptionalType(kind)
    assert evaluate(builder.finish([made]), builder.weights, []) == [None]
    with pytest.raises(InferError):
        builder.node("onnx.Optional", [], version=15)
    assert one("onnx.OptionalHasElement", version=18).item() is False
    assert one("onnx.OptionalHasElement", A, version=18).item() is True


def test_mixed_dtypes_are_refused() -> None:
    with pytest.raises(InferError):
        run("onnx.SequenceConstruct", A, at(1))
    with pytest.raises(InferError):
        run("onnx.SequenceInsert", [A], at(1))
