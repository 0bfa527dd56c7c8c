"""Every row of the table: where it applies, where it must not, and that nothing changed either way."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rewrite.graphs import Build, assert_same, const, f32, ints, made, node
from tests.rewrite.sequence_graphs import SEQUENCES_APPLY, SEQUENCES_MUST_NOT

from tierup.errors import InputError
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Node, Weights
from tierup.ir.types import DType
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rules import TABLE
from tierup.rewrite.walk import Rewriter, Values, Walked, walk

ROWS = {row.name: row for row in TABLE}
BOOL = np.bool_


def typed(builder: GraphBuilder, dtype: DType, *shape: int | str) -> int:
    return builder.open_input(dtype, shape)


def cast(b: GraphBuilder, x: int, to: DType) -> int:
    return int(node(b, "onnx.Cast", x, to=to.code, saturate=1))


def binary(op: str, constant: float, shape: tuple[int, ...] = (), *, left: bool = False) -> Build:
    """x ∘ constant, or constant ∘ x."""

    def build(b: GraphBuilder) -> int:
        x, c = f32(b, "n", 2), const(b, np.full(shape, constant))
        return int(node(b, op, *((c, x) if left else (x, c))))

    return build


def _captures(count: int) -> Attrs:
    return Attrs({"captures": count})


def branches(b: GraphBuilder, condition: int) -> int:
    """if condition then -x else x + x, with x captured."""
    then, other = GraphBuilder(b.weights), GraphBuilder(b.weights)
    x = f32(b, 2)
    graphs = []
    for name, inner in (("else_branch", other), ("then_branch", then)):
        captured = inner.open_input(DType.F32, (2,))
        result = inner.op("onnx.Neg", captured) if inner is then else inner.op("onnx.Add", captured, captured)
        graphs.append((name, inner.finish([result])))
    (result,) = b.node("onnx.If", [condition, x], _captures(1), graphs=tuple(graphs), version=21)
    assert result is not None
    return result


def bag(
    b: GraphBuilder, first: int = 1, *, step: int = 1, rank: int = 1, decides: bool = True, dtype: DType = DType.I64
) -> list[int]:
    """Whether x[i : i + step] equals x[i + 1 : i + 2], with i = n + first, and a branch for either answer."""
    x, place = typed(b, DType.I64, *(3, 1, 1)[:rank]), typed(b, dtype, 1)
    numpy = dtype.numpy

    def count(by: int) -> int:
        return int(node(b, "onnx.Add", place, const(b, [first + by], numpy), version=14))

    one, two = (
        node(
            b,
            "onnx.Slice",
            x,
            count(begin),
            count(begin + length),
            const(b, [0], numpy),
            const(b, [1], numpy),
            version=13,
        )
        for begin, length in ((0, step), (1, 1))
    )
    same = node(b, "onnx.Equal", one, two, version=13)
    return [branches(b, same)] if decides else [same]


def loop(b: GraphBuilder, trips: int, *, scan: bool = False, weight: bool = False) -> int:
    """x doubled `trips` times, or what is doubled stacked; or x plus a captured weight."""
    inner = GraphBuilder(b.weights)
    inner.open_input(DType.I64, ())
    going, state = inner.open_input(DType.BOOL, ()), inner.open_input(DType.F32, (2,))
    captured = [inner.open_input(DType.F32, (2,))] if weight else []
    result = inner.op("onnx.Add", state, captured[0] if captured else state)
    graph = inner.finish([going, result, result] if scan else [going, result])
    outside = [const(b, [1, 2])] if weight else []
    inputs = [const(b, trips, np.int64), const(b, True, BOOL), f32(b, 2), *outside]
    results = b.node("onnx.Loop", inputs, _captures(len(outside)), graphs=(("body", graph),), version=21,
                     outputs=[True, True] if scan else [True])  # fmt: skip
    assert results[-1] is not None
    return results[-1]


def reshape(b: GraphBuilder, x: int, *sizes: int, allowzero: int = 0) -> int:
    return int(node(b, "onnx.Reshape", x, ints(b, *sizes), allowzero=allowzero))


def turned_list(b: GraphBuilder, x: int, rows: int, *ends: int, to: int) -> int:
    """A list as a matrix with two columns, its rows backwards, column by column."""
    matrix = b.op("core.reshape", x, ints(b, rows, 2))
    back = b.op("core.slice", matrix, ints(b, rows - 1), ints(b, *ends), axes=(0,), steps=(-1,))
    return int(b.op("core.reshape", b.op("core.transpose", back, perm=(1, 0)), ints(b, to)))


def dropout(b: GraphBuilder, training: bool | None, outputs: int = 1) -> list[int]:
    extra = [] if training is None else [const(b, 0.0), const(b, training, BOOL)]
    results = node(b, "onnx.Dropout", f32(b, 4), *extra, version=13, outputs=outputs)
    return results if isinstance(results, list) else [results]


def shape_of(b: GraphBuilder, x: int) -> int:
    return b.op("core.shape", x)


def table(b: GraphBuilder) -> int:
    return const(b, np.arange(15).reshape(5, 3))


def pick(b: GraphBuilder, x: int, axis: int) -> int:
    places = b.op("core.abs", typed(b, DType.I64, 2))  # 2 and 1
    return b.op("core.gather", x, places, axis=axis)


APPLIES: list[tuple[str, Build]] = [
    ("add zero", binary("core.add", -0.0)),
    ("add zero", binary("onnx.Add", -0.0, (1, 2), left=True)),
    ("add zero", lambda b: b.op("core.add", typed(b, DType.I32, 4), const(b, 0, np.int32))),
    ("subtract zero", binary("core.sub", 0.0)),
    ("subtract zero", lambda b: b.op("onnx.Sub", typed(b, DType.I64, 4), const(b, [0], np.int64))),
    ("multiply by one", binary("onnx.Mul", 1.0)),
    ("multiply by one", binary("core.mul", 1.0, (2,), left=True)),
    ("divide by one", binary("onnx.Div", 1.0)),
    ("power of one", binary("core.pow", 1.0)),
    ("and true", lambda b: b.op("onnx.And", typed(b, DType.BOOL, 3), const(b, True, BOOL))),
    ("or false", lambda b: b.op("core.or", typed(b, DType.BOOL, 3), const(b, False, BOOL))),
    ("or false", lambda b: b.op("core.or", typed(b, DType.I32, 3), const(b, 0, np.int32))),
    ("identity", lambda b: node(b, "onnx.Identity", f32(b, 3))),
    ("of one", lambda b: node(b, "onnx.Max", f32(b, 3))),
    ("of one", lambda b: b.op("core.concat", f32(b, 3), axis=0)),
    ("involution", lambda b: b.op("core.neg", b.op("core.neg", f32(b, 11)))),
    ("involution", lambda b: b.op("onnx.Not", b.op("onnx.Not", typed(b, DType.BOOL, 3)))),
    ("idempotent", lambda b: b.op("onnx.Relu", b.op("onnx.Relu", f32(b, 11)))),
    ("cast to itself", lambda b: cast(b, f32(b, 11), DType.F32)),
    ("cast of cast", lambda b: cast(b, cast(b, typed(b, DType.F16, 11), DType.F32), DType.F64)),
    ("cast of cast", lambda b: cast(b, cast(b, typed(b, DType.U8, 11), DType.F32), DType.I8)),
    ("cast of cast", lambda b: cast(b, cast(b, typed(b, DType.BOOL, 4), DType.I64), DType.F32)),
    ("select known", lambda b: b.op("core.select", const(b, True, BOOL), f32(b, 3), f32(b, 3))),
    ("select known", lambda b: b.op("onnx.Where", const(b, [False], BOOL), f32(b, "n"), f32(b, "n"))),
    ("select known", lambda b: b.op("core.select", typed(b, DType.BOOL, 3), x := f32(b, 3), x)),
    ("dropout", lambda b: dropout(b, None)),
    ("dropout", lambda b: dropout(b, False)),
    ("reshape to itself", lambda b: reshape(b, f32(b, 2, 3), 2, 3)),
    ("reshape to itself", lambda b: reshape(b, f32(b, "n", 3), 0, -1)),
    ("reshape to itself", lambda b: b.op("core.reshape", x := f32(b, "n", 3), shape_of(b, x))),
    ("reshape of reshape", lambda b: reshape(b, reshape(b, f32(b, "n", 4), 0, 2, 2), -1, 4, 1)),
    ("reshape of reshape", lambda b: reshape(b, reshape(b, f32(b, 2, 0), 0, 0), 0, 3, allowzero=1)),
    ("list by places", lambda b: turned_list(b, typed(b, DType.I64, 6), 3, -1, to=6)),
    ("list by places", lambda b: turned_list(b, typed(b, DType.I32, 8), 4, 1, to=4)),
    ("identity transpose", lambda b: b.op("core.transpose", f32(b, 2, 3), perm=(0, 1))),
    ("identity transpose", lambda b: node(b, "onnx.Transpose", f32(b, 2))),
    ("transpose of transpose",
     lambda b: b.op("core.transpose", b.op("core.transpose", f32(b, 2, 3, 4), perm=(1, 2, 0)), perm=(2, 1, 0))),
    ("transpose of transpose", lambda b: node(b, "onnx.Transpose", node(b, "onnx.Transpose", f32(b, "n", 3)))),
    ("transpose of single", lambda b: b.op("core.transpose", f32(b, 2, 1, "n", 3), perm=(0, 2, 3, 1))),
    ("transpose of single", lambda b: b.op("core.transpose", f32(b, 1, 1), perm=(1, 0))),
    ("transpose of cast weight",
     lambda b: b.op("core.transpose", b.op("core.cast", table(b), to=DType.F64.code, saturate=1), perm=(1, 0))),
    ("broadcast to itself", lambda b: b.op("core.broadcast", f32(b, 2, 3), ints(b, 2, 3))),
    ("broadcast to itself", lambda b: node(b, "onnx.Expand", f32(b, "n", 3), ints(b, 1, 3))),
    ("broadcast of broadcast",
     lambda b: b.op("core.broadcast", b.op("core.broadcast", f32(b, 3), ints(b, 2, 3)), ints(b, 4, 2, 3))),
    ("tile once", lambda b: node(b, "onnx.Tile", f32(b, "n", 3), ints(b, 1, 1))),
    ("slice of all", lambda b: node(b, "onnx.Slice", f32(b, "n", 3), ints(b, 0), ints(b, 2**31 - 1))),
    ("slice of all", lambda b: b.op("core.slice", f32(b, 2, 3), ints(b, 0), ints(b, 3), axes=(1,), steps=(1,))),
    ("split in one", lambda b: node(b, "onnx.Split", f32(b, 2, 3), ints(b, 2), axis=0)),
    ("pad by nothing", lambda b: node(b, "onnx.Pad", f32(b, "n"), ints(b, 0, 0), mode="reflect")),
    ("pad by nothing", lambda b: b.op("core.pad", f32(b, 2), ints(b, 0, 0), const(b, 1), mode="constant")),
    ("gather of mapped weight", lambda b: pick(b, b.op("core.neg", table(b)), 0)),
    ("gather of mapped weight", lambda b: pick(b, b.op("core.mul", const(b, [2, 3, 4]), table(b)), 0)),
    ("gather of mapped weight",
     lambda b: pick(b, b.op("core.mul", table(b), const(b, [[1], [2], [3], [4], [5]])), 0)),  # one scale a row
    ("gather of mapped weight", lambda b: pick(b, b.op("core.sub", t := table(b), t), 1)),
    ("reduce nothing", lambda b: b.op("core.reduce_max", f32(b, 2, 3), axes=(), keepdims=1)),
    ("reduce nothing", lambda b: b.op("core.reduce_sum", typed(b, DType.I32, 3), axes=(), keepdims=0)),
    ("captured weights", lambda b: loop(b, 3, weight=True)),
    ("known branch", lambda b: branches(b, const(b, True, BOOL))),
    ("known branch", lambda b: branches(b, const(b, [False], BOOL))),
    ("no trips", lambda b: loop(b, 0)),
    ("deciding slice", bag),
    ("deciding slice", lambda b: bag(b, -2)),  # counted from the end
    *SEQUENCES_APPLY,
]  # fmt: skip

MUST_NOT: list[tuple[str, Build]] = [
    ("add zero", binary("core.add", 0.0)),  # turns -0.0 into 0.0
    ("add zero", binary("core.add", -0.0, (4, 1, 2))),  # gives the sum another axis
    ("add zero", lambda b: b.op("onnx.Add", f32(b, "n"), const(b, [-0.0] * 3))),  # n may be 1
    ("subtract zero", binary("core.sub", -0.0)),
    ("subtract zero", binary("core.sub", 0.0, left=True)),
    ("multiply by one", binary("onnx.Mul", 0.0)),
    ("multiply by one", binary("onnx.Mul", 1.0, (5, 1, 1))),
    ("divide by one", binary("onnx.Div", 1.0, left=True)),
    ("power of one", binary("core.pow", 1.0, left=True)),
    ("and true", lambda b: b.op("core.and", typed(b, DType.I32, 3), const(b, 1, np.int32))),
    ("or false", lambda b: b.op("onnx.Or", typed(b, DType.BOOL, 3), const(b, True, BOOL))),
    ("identity", lambda b: b.op("onnx.Relu", f32(b, 3))),
    ("of one", lambda b: node(b, "onnx.Max", f32(b, 3), f32(b, 3))),
    ("involution", lambda b: b.op("core.neg", b.op("core.abs", f32(b, 3)))),
    ("idempotent", lambda b: b.op("core.floor", b.op("core.ceil", f32(b, 3)))),
    ("cast to itself", lambda b: cast(b, f32(b, 3), DType.F64)),
    ("cast of cast", lambda b: cast(b, cast(b, f32(b, 11), DType.F16), DType.F32)),  # rounds on the way
    ("cast of cast", lambda b: cast(b, cast(b, typed(b, DType.I32, 11), DType.F32), DType.F64)),  # 2^24 + 1
    ("cast of cast", lambda b: cast(b, cast(b, typed(b, DType.I8, 11), DType.U8), DType.I32)),  # wraps on the way
    ("cast of cast", lambda b: cast(b, cast(b, typed(b, DType.I32, 11), DType.BOOL), DType.I32)),
    ("select known", lambda b: b.op("core.select", const(b, True, BOOL), f32(b, 1), f32(b, 3))),  # stretches a
    ("select known", lambda b: b.op("core.select", const(b, [True, False], BOOL), f32(b, 2), f32(b, 2))),
    ("dropout", lambda b: dropout(b, True)),
    ("dropout", lambda b: dropout(b, False, outputs=2)),  # someone wants the mask
    ("reshape to itself", lambda b: reshape(b, f32(b, 2, 3), 3, 2)),
    ("reshape to itself", lambda b: reshape(b, f32(b, "n", "m"), 3, 3)),  # equal only in this call
    ("reshape of reshape", lambda b: reshape(b, reshape(b, f32(b, 4, 2), 2, 4), 0, 2, 2)),  # 0 copies the 2
    ("list by places", lambda b: turned_list(b, f32(b, 6), 3, -1, to=6)),  # no sizes are floats
    ("list by places", lambda b: turned_list(b, typed(b, DType.I64, 80), 40, -1, to=80)),  # nor lists so long
    ("list by places", lambda b: b.op("core.reshape", b.op("core.transpose", typed(b, DType.I64, 3, 2), perm=(1, 0)),
                                      ints(b, 6))),  # of a matrix
    ("identity transpose", lambda b: node(b, "onnx.Transpose", f32(b, 2, 2))),
    ("transpose of transpose", lambda b: b.op("core.transpose", b.op("core.abs", f32(b, 2, 3)), perm=(1, 0))),
    ("transpose of single", lambda b: b.op("core.transpose", f32(b, 1, "n", 3), perm=(0, 2, 1))),
    ("transpose of cast weight",
     lambda b: b.op("core.transpose", b.op("core.cast", f32(b, 5, 3), to=DType.F64.code, saturate=1), perm=(1, 0))),
    ("transpose of cast weight", lambda b: b.op("core.transpose", b.op("core.neg", table(b)), perm=(1, 0))),
    ("broadcast to itself", lambda b: b.op("core.broadcast", f32(b, 1, 3), ints(b, 2, 3))),
    ("broadcast to itself", lambda b: node(b, "onnx.Expand", f32(b, "n"), ints(b, 3))),  # n may be 1
    ("broadcast to itself", lambda b: node(b, "onnx.Expand", f32(b, 3), ints(b, 1, 1))),  # one more axis
    ("broadcast of broadcast", lambda b: b.op("core.broadcast", b.op("core.abs", f32(b, 3)), ints(b, 2, 3))),
    ("tile once", lambda b: node(b, "onnx.Tile", f32(b, 2, 3), ints(b, 1, 2))),
    ("slice of all", lambda b: node(b, "onnx.Slice", f32(b, 3), ints(b, 0), ints(b, 2))),
    ("slice of all",
     lambda b: node(b, "onnx.Slice", f32(b, 3), ints(b, -1), ints(b, -9), ints(b, 0), ints(b, -1))),  # reversed
    ("split in one", lambda b: node(b, "onnx.Split", f32(b, 4), None, axis=0, num_outputs=2, outputs=2)),
    ("pad by nothing", lambda b: node(b, "onnx.Pad", f32(b, 3), ints(b, 1, -1), mode="constant")),
    ("gather of mapped weight", lambda b: pick(b, b.op("core.neg", f32(b, 5, 3)), 0)),  # is computed in the call anyway
    ("gather of mapped weight", lambda b: pick(b, b.op("core.mul", table(b), const(b, [[2, 3, 4]])), 0)),  # one row
    ("reduce nothing", lambda b: b.op("core.reduce_sum", f32(b, 2, 3), axes=(), keepdims=1)),  # 0 + -0.0 is 0
    ("reduce nothing", lambda b: b.op("core.reduce_max", f32(b, 2, 3), axes=(0,), keepdims=1)),
    ("captured weights", lambda b: loop(b, 2)),
    ("known branch", lambda b: branches(b, typed(b, DType.BOOL))),
    ("no trips", lambda b: loop(b, 2)),
    ("no trips", lambda b: loop(b, 0, scan=True)),  # nothing stacked is still a tensor
    ("deciding slice", lambda b: bag(b, decides=False)),  # it may be empty
    ("deciding slice", lambda b: bag(b, rank=2)),
    ("deciding slice", lambda b: bag(b, dtype=DType.I32)),
    *SEQUENCES_MUST_NOT,
]  # fmt: skip


def alone(name: str, graph: Graph, weights: Weights) -> Walked:
    """The graph after one walk with this row only."""
    row = ROWS[name]

    def rule(out: Rewriter, node: Node) -> Values | None:
        return row.rule(out, node) if node.op in row.ops else None

    return walk(graph, weights, (rule,))


@pytest.mark.parametrize(("name", "build"), APPLIES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(APPLIES)])
def test_applies(name: str, build: Build) -> None:
    graph, weights = made(build)
    walked = alone(name, graph, weights)
    assert walked.changes >= 1
    assert_same(graph, walked.graph, weights)
    again = alone(name, walked.graph, weights)
    assert again.changes == 0  # and is done


@pytest.mark.parametrize(("name", "build"), MUST_NOT, ids=[f"{n}-{i}" for i, (n, _) in enumerate(MUST_NOT)])
def test_must_not_apply(name: str, build: Build) -> None:
    graph, weights = made(build)
    walked = alone(name, graph, weights)
    assert walked.changes == 0
    assert [n.op for n in walked.graph.nodes] == [n.op for n in graph.nodes]
    if name != "dropout":  # which draws anew in each evaluation
        assert_same(graph, walked.graph, weights)


@pytest.mark.parametrize("place", [-9, -4, -3, -2, 1, 2, 7, 2**63 - 2])
def test_a_slice_that_decides_and_is_empty_is_turned_away_as_before(place: int) -> None:
    """The first is x[place + 1], the second x[place + 2]; x has three elements."""
    graph, weights = made(bag)
    rewritten = alone("deciding slice", graph, weights).graph
    inputs = [np.array([5, 5, 6]), np.array([place]), np.zeros(2, np.float32)]
    if place == -4:
        return assert_same(graph, rewritten, weights, inputs)
    for either in (graph, rewritten):
        with pytest.raises(InputError):
            evaluate(either, weights, inputs)
    return None


def test_every_row_is_tested_both_ways() -> None:
    assert {name for name, _ in APPLIES} == set(ROWS)
    assert {name for name, _ in MUST_NOT} == set(ROWS)
