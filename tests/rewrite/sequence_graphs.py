"""Graphs of sequences and optionals, for each rule: where it applies, and where it must not."""

from __future__ import annotations

import numpy as np
from tests.rewrite.graphs import Build, const, f32, ints, node

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs
from tierup.ir.types import DType, OptionalType, SequenceType, TensorType


def position(b: GraphBuilder, at: int) -> int:
    return const(b, at, np.int64)


def construct(b: GraphBuilder) -> int:
    return int(node(b, "onnx.SequenceConstruct", f32(b, "n"), f32(b, "m"), f32(b, "k"), version=11))


def changed(b: GraphBuilder) -> int:
    """b, d, c out of a, b, c."""
    more = node(b, "onnx.SequenceInsert", construct(b), f32(b, "l"), position(b, -1), version=11)
    return int(node(b, "onnx.SequenceErase", more, position(b, 0), version=11))


def at(b: GraphBuilder, sequence: int, place: int) -> int:
    return int(node(b, "onnx.SequenceAt", sequence, place, version=11))


def cut(b: GraphBuilder, *sizes: int, axis: int = -1, keepdims: int = 0, whole: tuple[int | str, ...] = (2, 3)) -> int:
    """x in pieces of these sizes; without sizes, in pieces of one."""
    given = [ints(b, *sizes)] if sizes else []
    return int(node(b, "onnx.SplitToSequence", f32(b, *whole), *given, version=11, axis=axis, keepdims=keepdims))


def each(b: GraphBuilder, size: int, axis: int = 0, whole: tuple[int | str, ...] = (5, 3)) -> int:
    x = f32(b, *whole)
    return int(node(b, "onnx.SplitToSequence", x, position(b, size), version=11, axis=axis, keepdims=0))


def joined(b: GraphBuilder, sequence: int, axis: int = 0, new_axis: int = 0) -> int:
    return int(node(b, "onnx.ConcatFromSequence", sequence, version=11, axis=axis, new_axis=new_axis))


def length(b: GraphBuilder, sequence: int) -> int:
    return int(node(b, "onnx.SequenceLength", sequence, version=11))


def given(b: GraphBuilder) -> int:
    return b.input(SequenceType(TensorType(DType.F32, None)))


def captured(b: GraphBuilder, *, passed_on: bool = False) -> int:
    """Σ of the slices of x, counted through by a loop that captures all of them, and may pass them on first."""
    inner = GraphBuilder(b.weights)
    step, going = inner.open_input(DType.I64, ()), inner.open_input(DType.BOOL, ())
    total = inner.open_input(DType.F32, ("n",))
    sequence = inner.input(SequenceType(TensorType(DType.F32, None)))
    item = at(inner, node(inner, "onnx.Identity", sequence) if passed_on else sequence, step)
    body = inner.finish([inner.op("onnx.Identity", going), inner.op("onnx.Add", total, item, version=14)])
    pieces = cut(b, axis=0, whole=("t", 3))
    inputs = [length(b, pieces), const(b, True, np.bool_), f32(b, 3), pieces]
    (result,) = b.node("onnx.Loop", inputs, Attrs({"captures": 1}), graphs=(("body", body),), version=21)
    assert result is not None
    return result


def collecting(b: GraphBuilder, *, at_front: bool = False, grows: bool = False, begins: bool = False) -> int:
    """The states of a loop, appended to a sequence, which may begin with one; or states that grow."""
    inner = GraphBuilder(b.weights)
    inner.open_input(DType.I64, ())
    going, state = inner.open_input(DType.BOOL, ()), inner.open_input(DType.F32, ("n",))
    items = inner.input(SequenceType(TensorType(DType.F32, None)))
    twice = node(inner, "onnx.Concat", state, state, axis=0) if grows else inner.op("onnx.Neg", state, version=13)
    more = node(inner, "onnx.SequenceInsert", items, twice, *([position(inner, 0)] if at_front else []), version=11)
    body = inner.finish([inner.op("onnx.Identity", going), twice, more])
    x = f32(b, "n")
    first = node(b, "onnx.SequenceConstruct", x, version=11) if begins else node(b, "onnx.SequenceEmpty", version=11)
    inputs = [position(b, 3), const(b, True, np.bool_), x, first]
    results = b.node(
        "onnx.Loop", inputs, Attrs({"captures": 0}), graphs=(("body", body),), version=21, outputs=[True, True]
    )
    assert results[1] is not None
    return joined(b, results[1])


def optional(b: GraphBuilder) -> int:
    return int(node(b, "onnx.Optional", f32(b, 2), version=15))


def absent(b: GraphBuilder) -> int:
    return b.input(OptionalType(TensorType(DType.F32, None)))


SEQUENCES_APPLY: list[tuple[str, Build]] = [
    ("known item", lambda b: at(b, construct(b), position(b, 1))),
    ("known item", lambda b: at(b, construct(b), position(b, -3))),
    ("known item", lambda b: at(b, changed(b), position(b, 1))),
    ("known item", lambda b: at(b, cut(b, 1, 2), position(b, 1))),
    ("known item", lambda b: at(b, cut(b, 1, 2, axis=0, whole=("n", 2)), position(b, -1))),
    ("known item", lambda b: at(b, each(b, 2), position(b, 2))),  # the last is shorter
    ("known item", lambda b: at(b, cut(b, axis=0, whole=("n", 2)), b.open_input(DType.I64, ()))),
    ("known item", lambda b: at(b, cut(b, axis=1, keepdims=1, whole=(2, "n")), b.open_input(DType.I64, (1,)))),
    ("known item", lambda b: at(b, each(b, 1, whole=("n", 2)), b.open_input(DType.I64, ()))),
    ("known length", lambda b: length(b, changed(b))),
    ("known length", lambda b: length(b, cut(b, axis=0, whole=("n", 0)))),
    ("known length", lambda b: length(b, each(b, 2, whole=(0, 3)))),
    ("known items", lambda b: joined(b, changed(b))),
    ("known items", lambda b: joined(b, cut(b, 1, 2), axis=-1)),
    ("known items", lambda b: joined(b, cut(b, axis=1), axis=-1, new_axis=1)),
    ("known items", lambda b: joined(b, cut(b, axis=0, whole=("n", 2, 4)), axis=1)),
    ("known items", lambda b: joined(b, cut(b, axis=1, whole=(2, "n", 4)), axis=-2)),
    ("known items", lambda b: joined(b, cut(b, axis=1, whole=(2, "n", 4)), axis=2, new_axis=1)),
    ("known items", lambda b: joined(b, cut(b, axis=1, keepdims=1, whole=(2, "n", 4)), axis=1)),
    ("known items", lambda b: joined(b, cut(b, axis=0, keepdims=1, whole=("n", 2)), axis=1)),
    ("known items", lambda b: joined(b, cut(b, axis=0, whole=("n", 0, 4)), axis=0)),
    ("known items", lambda b: joined(b, cut(b, axis=0, whole=("n",)), new_axis=1)),
    ("what is there", lambda b: node(b, "onnx.OptionalGetElement", optional(b), version=18)),
    ("what is there", lambda b: node(b, "onnx.OptionalGetElement", f32(b, 2), version=18)),
    ("whether it is there", lambda b: node(b, "onnx.OptionalHasElement", optional(b), version=18)),
    ("whether it is there", lambda b: node(b, "onnx.OptionalHasElement", f32(b, 2), version=18)),
    ("whether it is there", lambda b: node(b, "onnx.OptionalHasElement", version=18)),
    ("captured sequence", captured),
    ("collected", collecting),
]
SEQUENCES_MUST_NOT: list[tuple[str, Build]] = [
    ("known item", lambda b: at(b, construct(b), b.open_input(DType.I64, ()))),
    ("known length", lambda b: length(b, each(b, 2, whole=("n", 3)))),
    ("known items", lambda b: joined(b, each(b, 2, whole=("n", 3)))),
    ("what is there", lambda b: node(b, "onnx.OptionalGetElement", absent(b), version=18)),
    ("whether it is there", lambda b: node(b, "onnx.OptionalHasElement", absent(b), version=18)),
    ("captured sequence", lambda b: captured(b, passed_on=True)),
    ("collected", lambda b: collecting(b, at_front=True)),
    ("collected", lambda b: collecting(b, grows=True)),
    ("collected", lambda b: collecting(b, begins=True)),
]
