"""Graphs as text: what is printed reads back as the same graph, and what cannot be read names its line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierup.ir.build import GraphBuilder
from tierup.ir.dims import ARITY, READS, DimOp
from tierup.ir.graph import Attrs, Const, Graph, Node, Value, Weights
from tierup.ir.parse import DEPTH_LIMIT
from tierup.ir.text import parse_graph, print_graph
from tierup.ir.types import DType, MapType, OptionalType, SequenceType, Sym, TensorType


def everything(item: Any) -> Any:
    """An object with all its fields, also those that take no part in equality."""
    if isinstance(item, Graph | Node | Value):
        return type(item).__name__, [(name, everything(getattr(item, name))) for name in item.__struct_fields__]
    return tuple(map(everything, item)) if isinstance(item, tuple) else item


def assert_reads_back(graph: Graph) -> None:
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert everything(again) == everything(graph)
    bare = parse_graph(print_graph(graph, names=False))
    assert bare == graph
    assert bare.digest == graph.digest


def test_golden_graph(golden: Callable[[str, str], None]) -> None:
    weights = Weights()
    builder = GraphBuilder(weights, "heads")
    x = builder.open_input(DType.F32, ("batch", "length", 64), "x")
    axis = builder.open_input(DType.I64, (), "axis", default=np.array(0, np.int64))
    shape = builder.op("onnx.Shape", x, version=15, start=0)
    batch = builder.op("onnx.Slice", shape, *(builder.weight(np.array([i])) for i in (0, 1, 0)), version=13)
    rest = builder.weight(np.array([-1, 8, 8]), "rest")
    target = builder.op("onnx.Concat", batch, rest, version=13, axis=0)
    heads = builder.op("onnx.Reshape", x, target, version=14, allowzero=0)
    (first, _) = builder.node(
        "onnx.TopK",
        [heads, builder.weight(np.array([3]))],
        Attrs({"axis": -1, "largest": 1, "sorted": 1}),
        version=11,
        outputs=(True, False),
        name="best of each",
        output_names=("best",),
    )
    assert first is not None
    graph = builder.finish([first, axis])
    assert_reads_back(graph)
    golden("graph_heads", print_graph(graph))


def body(name: str, *nodes: Node) -> Graph:
    kind = TensorType(DType.F32, (2,))
    return Graph((0,), (len(nodes),), nodes, (Value(kind),) * (len(nodes) + 1), name=name)


def test_golden_control_flow(golden: Callable[[str, str], None]) -> None:
    inner = body("inner", Node("onnx.Neg", 13, (0,), (1,)))
    nested = Node("onnx.If", 16, (0,), (1,), Attrs({"captures": 1}), (("then_branch", inner), ("else_branch", inner)))
    values = (
        Value(TensorType(DType.F32, (2,)), "x"),
        Value(TensorType(DType.F32, (Sym(0), 3)), "w"),
        Value(SequenceType(TensorType(DType.STR, None)), 'odd \n "name" \u00e9'),
        Value(OptionalType(MapType(DType.I64, TensorType(DType.F32, None)))),
    )
    attrs = Attrs(
        {
            "empty": (),
            "floats": (0.1, -0.0, math.inf, -math.inf, math.nan, 1e-7),
            "ints": (1, -2),
            "nested": ((1, 2), (), ("a",)),
            "table": Const(np.array([1.0, 2.0], np.float32)),
            "texts": Const(np.array(["a", '"b"'], object)),
            "to": TensorType(DType.BF16, (Sym(0), 2)),
            "why not?": "any\ntext",
        }
    )
    node = Node("onnx.Loop", 16, (None, 0), (2, None), attrs, (("body", body("outer", nested)),), "the loop")
    graph = Graph(
        inputs=(0,),
        outputs=(2,),
        nodes=(node, Node("ms.Print", 1, (2,), ())),
        values=values,
        dims=(DimOp("of", (1, 0)), DimOp("add", (Sym(0), -1)), DimOp("elem", (0, 1)), DimOp("abs", (Sym(2),))),
        weights=((1, "0a1b"),),
        defaults=((0, "not hex"),),
        dim_names=((0, "batch size"),),
        name="main",
    )
    assert_reads_back(graph)
    golden("graph_control_flow", print_graph(graph))
    golden("graph_control_flow_bare", print_graph(graph, names=False))


def test_names_are_no_part_of_the_digest() -> None:
    one, two = body("a", Node("onnx.Neg", 13, (0,), (1,), name="n")), body("b", Node("onnx.Neg", 13, (0,), (1,)))
    assert one.digest == two.digest
    assert one.digest != body("a", Node("onnx.Abs", 13, (0,), (1,))).digest


DIMS = st.integers(0, 2**63 - 1) | st.builds(Sym, st.integers(0, 3))
TENSORS = st.builds(TensorType, st.sampled_from(DType), st.none() | st.lists(DIMS, max_size=4).map(tuple))
TYPES = st.recursive(
    TENSORS,
    lambda inner: (
        st.builds(SequenceType, inner)
        | st.builds(OptionalType, inner)
        | st.builds(MapType, st.sampled_from([DType.I64, DType.STR]), inner)
    ),
    max_leaves=3,
)
HELD = [np.float32, np.int64, np.uint8, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.int4]


@st.composite
def consts(draw: st.DrawFn) -> Const:
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = math.prod(shape)
    if draw(st.booleans()):
        texts = draw(st.lists(st.text(), min_size=count, max_size=count))
        return Const(np.array([*texts, None], object)[:-1].reshape(shape))
    dtype = np.dtype(draw(st.sampled_from(HELD)))
    return Const(np.frombuffer(bytes(range(count * dtype.itemsize)), np.uint8).view(dtype).reshape(shape))


ATTRS = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.booleans() | consts() | TYPES,
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
WORDS = st.text(min_size=1, max_size=8) | st.sampled_from(
    ["axis", "inf", "nan", "true", "_", "graph", "body", "return"]
)
DIGESTS = st.text("0123456789abcdef", min_size=1, max_size=8) | st.text(max_size=4)
_SYMS = 4


@st.composite
def graphs(draw: st.DrawFn, depth: int = 1) -> Graph:
    count = draw(st.integers(1, 7))
    values = draw(st.lists(st.builds(Value, TYPES, st.text(max_size=6)), min_size=count, max_size=count))
    free = draw(st.permutations(range(count)))
    inputs, held, free = free[:1], free[1:2], list(free[2:])
    nodes = []
    used = st.none() | st.integers(0, count - 1)
    for _ in range(draw(st.integers(0, 3))):
        outputs = [free.pop() if free and draw(st.booleans()) else None for _ in range(draw(st.integers(0, 2)))]
        bodies = draw(st.lists(st.tuples(WORDS, graphs(depth - 1)), max_size=2)) if depth else []
        nodes.append(
            Node(
                op=draw(WORDS | st.sampled_from(["onnx.Add", "ms.Gelu"])),
                version=draw(st.integers(0, 30)),
                inputs=tuple(draw(st.lists(used, max_size=3))),
                outputs=tuple(outputs),
                attrs=Attrs(draw(st.dictionaries(WORDS, ATTRS, max_size=3))),
                graphs=tuple(bodies),
                name=draw(st.text(max_size=6)),
            )
        )
    dims = [draw(dim_ops(i, count)) for i in range(_SYMS)]
    named = draw(st.dictionaries(st.integers(0, _SYMS - 1), st.text(min_size=1), max_size=2))
    return Graph(
        inputs=tuple(inputs),
        outputs=tuple(draw(st.lists(st.integers(0, count - 1), max_size=3))),
        nodes=tuple(nodes),
        values=tuple(values),
        dims=tuple(dims),
        weights=tuple((value, draw(DIGESTS)) for value in held),
        defaults=tuple((value, draw(DIGESTS)) for value in inputs if draw(st.booleans())),
        dim_names=tuple(sorted(named.items())),
        name=draw(st.text(max_size=6)),
    )


def dim_ops(index: int, values: int) -> st.SearchStrategy[DimOp]:
    ops = sorted(ARITY) if index else list(READS)

    def args(op: str) -> st.SearchStrategy[DimOp]:
        if op in READS:
            return st.builds(DimOp, st.just(op), st.tuples(st.integers(0, values - 1), st.integers(0, 5)))
        dim = st.integers(-(2**63), 2**63 - 1) | st.builds(Sym, st.integers(0, index - 1))
        return st.builds(DimOp, st.just(op), st.tuples(*[dim] * ARITY[op]))

    return st.sampled_from(ops).flatmap(args)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_any_graph_reads_back(graph: Graph) -> None:
    assert_reads_back(graph)


SMALL = """graph "g" {
  input %0 : f32[d0, 2]
  dim d0 = of %0 0
  %1 : f32[d0, 2] = onnx.Neg@13(%0) {axis=1}
  return %1
}
"""


def test_the_small_text_is_read() -> None:
    assert print_graph(parse_graph(SMALL)) == SMALL


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("graph ", "graf ", 1),
        ("f32[d0, 2]\n", "f33[d0, 2]\n", 2),
        ("f32[d0, 2]\n", "f32[d0, 2\n", 2),
        ("f32[d0, 2]\n", "f32[d0, 2] 3\n", 2),
        ("dim d0", "dim d1", 3),
        ("of %0 0", "of %0", 3),
        ("of %0 0", "up %0 0", 3),
        ("%1 : ", "%0 : ", 4),
        ("%1 : ", "%1 ", 4),
        ("@13", "", 4),
        ("@13", "@x", 4),
        ("(%0)", "(%0", 4),
        ("axis=1", "axis=", 4),
        ("axis=1", "axis=1, axis=2", 4),
        ("axis=1", "axis=f32[1]'00'", 4),
        ("axis=1", "axis=f32[*]'00000000'", 4),
        ("axis=1", "axis=f32[d0]'00000000'", 4),
        ("axis=1", "axis=str[1]'00'", 4),
        ("axis=1", "axis=f32[9000000000000000000, 9]''", 4),
        ("axis=1", 'axis="\\x"', 4),
        ("axis=1", "axis=" + "9" * 5000, 4),
        ("axis=1", "axis=" + "[" * (DEPTH_LIMIT + 2), 4),
        ("axis=1", "axis=" + "seq(" * (DEPTH_LIMIT + 2), 4),
        ("axis=1", "axis=$", 4),
        ("%1\n", "%9\n", 6),
        ("%1\n", "%1\n  return %1\n", 6),
        ("  return %1\n", "", 5),
        ("}\n", "", 6),
        ("}\n", "}\n}\n", 7),
        ("  %1", "  body b = graph {\n  return\n  }\n  %1", 6),
        ("%1 : f32[d0", "%1 : f32[d7", 6),
        ("%1 : ", "%99999999999 : ", 6),
    ],
)  # fmt: skip
def test_what_cannot_be_read_names_its_line(old: str, new: str, line: int) -> None:
    text = SMALL.replace(old, new, 1) if not old.endswith("}\n") else SMALL[: SMALL.rindex(old)] + new
    with pytest.raises(ValueError, match=f"^line {line}: "):
        parse_graph(text)


def test_bodies_nest_only_so_deep() -> None:
    text = "graph {\n" + "() = a.B@1()\nbody b = graph {\n" * (DEPTH_LIMIT + 1)
    with pytest.raises(ValueError, match="nested"):
        parse_graph(text)


def test_deep_bodies_are_printed() -> None:
    graph = body("leaf", Node("onnx.Neg", 13, (0,), (1,)))
    for _ in range(DEPTH_LIMIT - 1):
        graph = body("", Node("onnx.If", 16, (0,), (1,), graphs=(("then_branch", graph),)))
    assert parse_graph(print_graph(graph)) == graph
