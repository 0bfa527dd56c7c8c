"""Decomposed equals imported, op by op: ONNX's own node tests, as given, with constant parameters, with open sizes.

Each is decomposed, and in the last two forms simplified before and after. The oracle is the imported graph in f64. The
decomposed graph in f32 must be about as near to it as the imported graph in f32 is; `node_cases.differences` says how
near. Integers and truth values must be equal.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.rewrite.graphs import f32, made, node
from tests.rewrite.node_cases import Case, answers, differences, forms, imported, mistyped, node_cases

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph
from tierup.ir.ops import table
from tierup.ir.types import DType, dtype_from_numpy
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.decompose import KEPT, decompose, reasons
from tierup.rewrite.decompose import table as decompositions
from tierup.rewrite.decompose.table import FAMILIES
from tierup.rewrite.rewrite import lower_to_core

# Ops of the table that no node test of ONNX holds; they have tests of their own, here or beside their family.
_ELSEWHERE = {"onnx.Constant", "onnx.GlobalLpPool", "onnx.SimplifiedLayerNormalization", "onnx.Scatter"}


def own(family: str) -> list[Case]:
    """The node tests that hold an op of `family`."""
    ops = {op.partition(".")[2] for op in decompositions.family(family) if op.startswith(("onnx.", "preview."))}
    return [case for case in node_cases() if case.ops & ops]


def problems(case: Case, lowered: Counter[str]) -> list[str]:
    """What is wrong after decomposing one case in each of its forms; counts the ops that were decomposed."""
    found: list[str] = []
    for form, model, inputs in forms(case):
        loaded = imported(model)
        before = None if loaded is None else answers(*loaded, inputs)
        if loaded is None or before is None:
            continue
        graph, weights = loaded
        exact = answers(graph, weights, inputs, wide=True) or before
        after = (decompose if form == "given" else lower_to_core)(graph, weights)
        verify(after, weights)
        results = answers(after, weights, inputs)
        wrong = ["raises"] if results is None else differences(before, exact, results)
        if form == "open" and results is not None:
            wrong += mistyped(after, weights, inputs)
        found += [f"{case.name}, {form}: {problem}" for problem in wrong]
        left = {n.op for _, n in after.walk()}
        lowered.update(n.op for _, n in graph.walk() if n.op not in left)
    return found


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_decomposed_is_imported(family: str) -> None:
    lowered: Counter[str] = Counter()
    found = [problem for case in own(family) for problem in problems(case, lowered)]
    assert found == []
    tested = {op for op in decompositions.family(family) if op.startswith("onnx.")}
    assert tested - set(lowered) - _ELSEWHERE == set(), "these were never decomposed"


SINGLE: list[tuple[str, int, list[np.ndarray], dict[str, Any]]] = [
    ("onnx.GlobalLpPool", 2, [np.linspace(-2, 3, 24, dtype=np.float32).reshape(2, 3, 4)], {"p": 3}),
    ("onnx.Scatter", 9, [np.zeros((2, 3), np.float32), np.array([[1, -1, 0]]), np.ones((1, 3), np.float32)],
     {"axis": 0}),
    ("onnx.Softmax", 11, [np.linspace(-9, 9, 24, dtype=np.float32).reshape(2, 3, 4)], {"axis": 1}),
    ("onnx.Hardmax", 11, [np.linspace(-9, 9, 24, dtype=np.float32).reshape(2, 3, 4)], {"axis": 1}),
    ("onnx.Mod", 13, [np.array([-7.5, 7.5, -0.0, 6], np.float32), np.array([2, -2, 3, 3], np.float32)], {"fmod": 0}),
    ("onnx.Div", 14, [np.array([-7, 7, -7, 5], np.int32), np.array([2, -2, -2, 0], np.int32)], {}),
    ("onnx.Pow", 15, [np.array([-2, 3, 1, 2], np.int32), np.array([3, 2, -1, -1], np.int64)], {}),
    ("onnx.ReduceMean", 13, [np.array([[-7, 2], [3, 1]], np.int32)], {"axes": (1,), "keepdims": 0}),
    ("onnx.ReduceMean", 13, [np.ones((3, 4), np.float16) * np.float16(6e4)], {"axes": (0, 1), "keepdims": 1}),
    ("onnx.Clip", 6, [np.array([-9, 0.1, 9], np.float16)], {"min": -1.0, "max": 3.4028234663852886e38}),
    ("onnx.Tile", 13, [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([2, 0])], {}),
    ("onnx.Slice", 13, [np.arange(5, dtype=np.float32), np.array([-2]), np.array([-99]), np.array([0]), np.array([-2])],
     {}),
    ("onnx.Slice", 13, [np.zeros((0, 3), np.float32), np.array([9]), np.array([-9]), np.array([0]), np.array([-1])],
     {}),
    ("onnx.Einsum", 12, [np.arange(12, dtype=np.float32).reshape(2, 2, 3)], {"equation": "iij->j"}),
    ("onnx.Einsum", 12, [np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(4, 2)],
     {"equation": "ab,bc,cd->da"}),
    ("onnx.Einsum", 12, [np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(3, dtype=np.int32)],
     {"equation": "...i,i->..."}),
    ("ml.ArrayFeatureExtractor", 1, [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[2, 0]])], {}),
    ("ml.Binarizer", 1, [np.array([[-1, 0.5, 2]], np.float32)], {"threshold": 0.5}),
    ("ml.FeatureVectorizer", 1, [np.ones((2, 3), np.float32), np.ones((2, 1), np.int64)], {"inputdimensions": (2, 2)}),
    ("ml.Imputer", 1, [np.array([[1, np.nan, 3]], np.float32)],
     {"imputed_value_floats": (7.0, 8.0, 9.0), "replaced_value_float": float("nan")}),
    ("ml.LinearRegressor", 1, [np.arange(6, dtype=np.float32).reshape(2, 3)],
     {"coefficients": (1.0, 2.0, 3.0, -1.0, 0.0, 1.0), "intercepts": (0.5, 1.0), "targets": 2,
      "post_transform": "SOFTMAX"}),
    ("ml.Normalizer", 1, [np.array([[3, -4], [0, 0]], np.float32)], {"norm": "L2"}),
    ("ml.Scaler", 1, [np.arange(6, dtype=np.int64).reshape(2, 3)], {"offset": (1.0,), "scale": (2.0, 3.0, 4.0)}),
]  # fmt: skip


@pytest.mark.parametrize("open_dims", [False, True])
@pytest.mark.parametrize(
    ("op", "version", "inputs", "attrs"), SINGLE, ids=[f"{s[0]}-{i}" for i, s in enumerate(SINGLE)]
)
def test_single_nodes(op: str, version: int, inputs: list[np.ndarray], attrs: dict[str, Any], open_dims: bool) -> None:
    """What ONNX's node tests leave out: old versions, integers, empty tensors, negative steps, repeated labels, ml."""
    fed: list[np.ndarray] = []

    def build(b: GraphBuilder) -> int:
        values = []
        for index, array in enumerate(inputs):
            dtype = dtype_from_numpy(array.dtype)
            assert dtype is not None
            if index and array.ndim == 1 and array.dtype == np.int64:
                values.append(b.weight(array))
            else:
                values.append(b.open_input(dtype, [None] * array.ndim if open_dims else array.shape))
                fed.append(array)
        return int(node(b, op, *values, version=version, **attrs))

    graph, weights = made(build)
    after = decompose(graph, weights)
    verify(after, weights)
    if op != "ml.FeatureVectorizer" or not open_dims:  # whose widths must be known
        assert [reason for _, reason in reasons(after, weights)] == []
    before, exact = (answers(graph, weights, fed, wide=wide) for wide in (False, True))
    results = answers(after, weights, fed)
    assert before is not None
    assert exact is not None
    assert results is not None
    assert differences(before, exact, results) == []
    assert mistyped(after, weights, fed) == []


def test_every_op_is_core_or_decomposed_or_kept() -> None:
    core = {name for name, row in table().items() if row.core}
    decomposed = {op for family in FAMILIES for op in decompositions.family(family)}
    assert core | decomposed | set(KEPT) == set(table())
    assert not core & decomposed
    assert not core & set(KEPT)
    assert not decomposed & set(KEPT)
    assert all(len(reason.split()) > 3 for reason in KEPT.values())


def test_every_decomposition_is_found_where_its_op_looks() -> None:
    for name in FAMILIES:
        for op, decomposed in decompositions.family(name).items():
            assert decompositions.decomposition(op) is decomposed
    assert decompositions.decomposition("onnx.NoSuchOp") is None


def test_a_constant_is_a_weight() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.add", f32(b, 2), node(b, "onnx.Constant", version=13, value_floats=(1.0, 2.0)))

    graph, weights = made(build)
    after = decompose(graph, weights)
    assert [n.op for n in after.nodes] == ["core.add"]


def test_declined_nodes_stay_and_say_why() -> None:
    """A reduction over axes whose number is known only in the call."""

    def build(b: GraphBuilder) -> int:
        axes = b.open_input(DType.I64, ("k",))
        return int(node(b, "onnx.ReduceSum", f32(b, 2, 3), axes, version=13, keepdims=0, noop_with_empty_axes=0))

    graph, weights = made(build)
    after = decompose(graph, weights)
    assert [n.op for n in after.nodes] == ["onnx.ReduceSum"]
    ((declined, reason),) = reasons(after, weights)
    assert declined.op == "onnx.ReduceSum"
    assert reason == "the axes of a reduction has a length that is known only in the call"


def test_unknown_ranks_and_strings_stay_whole() -> None:
    def build(b: GraphBuilder) -> list[int]:
        text = b.open_input(DType.STR, (2, 3))
        return [node(b, "onnx.Softmax", b.open_input(DType.F32, None), version=13, axis=-1),
                node(b, "onnx.Transpose", text, version=13)]  # fmt: skip

    graph, weights = made(build)
    after = decompose(graph, weights)
    assert [n.op for n in after.nodes] == ["onnx.Softmax", "onnx.Transpose"]
    assert [reason for _, reason in reasons(after, weights)] == [
        "the rank of an input is known only in the call",
        "no tile program has strings, complex numbers, sequences or maps",
    ]


def shapes_of(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes if n.op == "core.shape"]


def test_open_sizes_are_read_once_and_stay_one_dim() -> None:
    """Two reshapes of one open tensor share its shape, and their results still have its dims."""

    def build(b: GraphBuilder) -> list[int]:
        x = f32(b, "n", "m")
        wide = node(b, "onnx.Unsqueeze", x, b.weight(np.array([1], np.int64)), version=13)
        return [node(b, "onnx.Squeeze", wide, b.weight(np.array([1], np.int64)), version=13), wide]

    graph, weights = made(build)
    after = lower_to_core(graph, weights)
    assert len(shapes_of(after)) == 1
    assert after.outputs[0] == after.inputs[0]  # squeezing what was unsqueezed gives x itself


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_saturated_functions(dtype: type) -> None:
    """Far from zero nothing overflows on the way: sigmoid, softplus and softmax of ±10⁴ are finite."""
    x = np.array([-1e4, -88.0, -1.0, 0.0, 1.0, 88.0, 1e4], dtype)

    def build(b: GraphBuilder) -> list[int]:
        value = b.open_input(DType.F16 if dtype is np.float16 else DType.F32, (7,))
        return [
            node(b, "onnx.Sigmoid", value, version=13),
            node(b, "onnx.Softplus", value, version=1),
            node(b, "onnx.Softmax", value, version=13, axis=-1),
        ]

    graph, weights = made(build)
    after = decompose(graph, weights)
    exact = answers(graph, weights, [x], wide=True)
    before, results = answers(graph, weights, [x]), answers(after, weights, [x])
    assert exact is not None
    assert before is not None
    assert results is not None
    assert differences(before, exact, results) == []
    assert all(np.isfinite(result).all() for result in results)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0])
def test_small_powers_are_products(exponent: float) -> None:
    x = np.array([-np.inf, -3e38, -1.5, -0.0, 0.0, 1e-20, 0.3, 7.0, 2e19, np.inf, np.nan], np.float32)
    graph, weights = made(
        lambda b: int(node(b, "onnx.Pow", f32(b, *x.shape), b.weight(np.array(exponent, np.float32)), version=15))
    )
    after = decompose(graph, weights)
    assert "core.pow" not in {item.op for item in after.nodes}
    with np.errstate(over="ignore"):
        (wanted,), (got,) = evaluate(graph, weights, [x]), evaluate(after, weights, [x])
    np.testing.assert_allclose(got, wanted, rtol=3e-7)  # a rounding or two of the last digit
