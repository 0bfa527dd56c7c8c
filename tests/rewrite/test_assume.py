"""Sizes that are taken to be equal: what is found, what is not, and what happens where it does not hold."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tests.security.models import model, node, value

import tierup
from tierup.frontends.onnx import load_onnx
from tierup.ir.dims import apply
from tierup.ir.types import Sym
from tierup.ir.verify import verify
from tierup.rewrite.assume import Assumptions, draw_examples
from tierup.rewrite.rewrite import lower_to_core


def ints(name: str, *numbers: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def truncated(limit: int) -> onnx.ModelProto:
    """x + table[: min(length, limit)], as models with a table of positions have it."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Slice", ["table", "zero", "length", "zero"], ["positions"]),
        node("Add", ["x", "positions"], ["y"]),
    ]
    table = numpy_helper.from_array(np.arange(limit * 4, dtype=np.float32).reshape(limit, 4), "table")
    weights = [table, ints("one", 1), ints("zero", 0)]
    return model(nodes, [value("x", ["batch", "length", 4])], [value("y", ["batch", None, 4])], weights)


def lowered(proto: onnx.ModelProto) -> tuple[object, Assumptions]:
    imported = load_onnx(proto)
    assume = Assumptions(imported.graph)
    graph = lower_to_core(imported.graph, imported.weights, assume)
    verify(graph, imported.weights)
    return graph, assume


def test_a_size_that_looks_like_another_becomes_that() -> None:
    graph, assume = lowered(truncated(512))
    (output,) = graph.outputs
    assert graph.type(output).shape == graph.type(graph.inputs[0]).shape
    assert [repr(graph.dims[a.id]).split()[0] for a, _ in assume.pairs] == ["min"]


def two_inputs(op: str, **attrs: object) -> onnx.ModelProto:
    nodes = [node(op, ["x", "z"], ["y"], **attrs)]
    return model(nodes, [value("x", ["n"]), value("z", ["m"])], [value("y", [None])])


def masked_scores() -> onnx.ModelProto:
    """Scores of attention, and a mask whose length has a name of its own."""
    nodes = [node("MatMul", ["query", "keys"], ["scores"]), node("Add", ["scores", "mask"], ["y"])]
    inputs = [value("query", [2, 4, 8]), value("keys", [2, 8, "length"]), value("mask", [2, 1, "masked"])]
    return model(nodes, inputs, [value("y", [2, 4, None])])


def test_sizes_of_inputs_to_attention_are_one() -> None:
    graph, assume = lowered(masked_scores())
    _, keys, mask = (graph.type(given).shape for given in graph.inputs)
    assert keys[-1] == mask[-1]
    assert [repr(graph.dims[a.id]) for a, _ in assume.pairs] == ["of %2 2"]


def test_sizes_of_inputs_that_broadcast_elsewhere_are_left_open() -> None:
    graph, assume = lowered(two_inputs("Add"))
    n, m = (graph.type(given).shape for given in graph.inputs)
    assert n != m
    assert assume.pairs == []


def test_sizes_of_inputs_are_two_where_they_may_differ() -> None:
    graph, assume = lowered(two_inputs("Concat", axis=0))
    n, m = (graph.type(given).shape for given in graph.inputs)
    assert assume.pairs == []
    assert n != m


@pytest.mark.parametrize("sizes", [(3, 3), (3, 1), (1, 3), (0, 1)])
def test_inputs_that_broadcast_all_the_same_are_answered(sizes: tuple[int, int]) -> None:
    n, m = sizes
    compiled = tierup.load(two_inputs("Add"), config=tierup.Config(force_tier=1))
    x, z = np.arange(n, dtype=np.float32), np.ones(m, np.float32)
    np.testing.assert_array_equal(compiled(x=x, z=z)["y"], x + z)
    counters = compiled.report().to_dict()["counters"]
    assert (counters["deopts"], counters["fallback_nodes"]) == (0, 0)


def test_a_size_of_an_input_may_be_the_sum_of_others() -> None:
    """As a mask over the tokens that a cache holds and those that are new."""
    nodes = [node("Concat", ["past", "ids"], ["all"], axis=0), node("Mul", ["mask", "all"], ["y"])]
    inputs = [value("mask", ["total"]), value("past", ["before"]), value("ids", ["new"])]
    graph, assume = lowered(model(nodes, inputs, [value("y", [None])]))
    (output,) = graph.outputs
    assert graph.type(output).shape == graph.type(graph.inputs[0]).shape
    assert [repr(graph.dims[a.id]).split()[0] for a, _ in assume.pairs] == ["add"]


def test_terms_of_a_product_are_as_many_on_both_sides() -> None:
    nodes = [node("MatMul", ["x", "z"], ["y"])]
    inputs = [value("x", ["batch", "n", "k"]), value("z", ["batch", "terms", "m"])]
    proto = model(nodes, inputs, [value("y", ["batch", "n", "m"])])
    graph, _ = lowered(proto)
    assert graph.type(graph.inputs[0]).shape[-1] == graph.type(graph.inputs[1]).shape[-2]
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
    x, z = np.ones((2, 3, 8), np.float32), np.ones((2, 8, 5), np.float32)
    np.testing.assert_array_equal(compiled(x=x, z=z)["y"], np.full((2, 3, 5), 8, np.float32))
    with pytest.raises(tierup.InputError):
        compiled(x=x, z=z[:, :6])


def test_sizes_behind_terms_of_a_product_agree() -> None:
    """Weights over the keys of a cache, times its values: exporters give both lengths of their own."""
    nodes = [
        node("Concat", ["keys", "key"], ["all_keys"], axis=2),
        node("MatMul", ["query", "all_keys"], ["weights"]),
        node("Concat", ["values", "value"], ["all_values"], axis=1),
        node("MatMul", ["weights", "all_values"], ["y"]),
    ]
    given = {
        "query": [2, 1, 8],
        "keys": [2, 8, "before"],
        "key": [2, 8, 1],
        "values": [2, "past", 8],
        "value": [2, 1, 8],
    }
    proto = model(nodes, [value(name, shape) for name, shape in given.items()], [value("y", [2, 1, 8])])
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
    arrays = {
        name: np.ones([5 if isinstance(d, str) else d for d in shape], np.float32) for name, shape in given.items()
    }
    np.testing.assert_array_equal(compiled(**arrays)["y"], np.full((2, 1, 8), 6 * 8, np.float32))


def test_a_product_whose_terms_depend_on_data_is_answered() -> None:
    """Its lowering once took them to be as many as on the other side."""
    nodes = [node("Compress", ["z", "kept"], ["some"], axis=1), node("MatMul", ["x", "some"], ["y"])]
    inputs = [value("x", [2, 3, "k"]), value("z", [2, "all", 5]), value("kept", ["all"], TensorProto.BOOL)]
    compiled = tierup.load(model(nodes, inputs, [value("y", [2, 3, 5])]), config=tierup.Config(force_tier=1))
    x, z, kept = np.ones((2, 3, 4), np.float32), np.ones((2, 6, 5), np.float32), np.arange(6) < 4
    np.testing.assert_array_equal(compiled(x=x, z=z, kept=kept)["y"], np.full((2, 3, 5), 4, np.float32))
    with pytest.raises(tierup.InputError):
        compiled(x=x, z=z, kept=~kept)


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (3, 4)])
def test_a_model_that_fits_one_row_alone_is_compiled_for_that(shape: tuple[int, int]) -> None:
    """x + flat(x): with more than one row only a length of 1 broadcasts."""
    nodes = [node("Reshape", ["x", "all"], ["flat"]), node("Add", ["x", "flat"], ["y"])]
    proto = model(nodes, [value("x", ["rows", "length"])], [value("y", [None, None])], [ints("all", -1)])
    assert {example[0, 0] for example in draw_examples(load_onnx(proto).graph)} == {1}
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    x = np.arange(12, dtype=np.float32)[: shape[0] * shape[1]].reshape(shape)
    if shape == (3, 4):
        with pytest.raises(tierup.InputError):
            compiled(x=x)
    else:
        np.testing.assert_array_equal(compiled(x=x)["y"], x + x.reshape(-1))


def test_a_constant_without_elements_says_nothing_about_sizes() -> None:
    """Exporters join an empty cache to the first keys, and Resize may be given no region."""
    nodes = [node("Concat", ["none", "x"], ["y"], axis=0)]
    none = numpy_helper.from_array(np.zeros(0, np.float32), "none")
    assert draw_examples(load_onnx(model(nodes, [value("x", ["n"])], [value("y", [None])], [none])).graph)


def test_what_depends_on_data_is_not_assumed() -> None:
    nodes = [node("NonZero", ["x"], ["where"]), node("Transpose", ["where"], ["y"], perm=[1, 0])]
    proto = model(nodes, [value("x", ["n"])], [value("y", [None, 1], TensorProto.INT64)])
    assert lowered(proto)[1].pairs == []


@pytest.mark.parametrize("length", [0, 1, 9, 50, 51, 600])
def test_where_an_assumption_fails_the_baseline_answers(length: int) -> None:
    """min(length, 50) is the length up to 50; from there on only a length of 1 could be added, and 51 is an error."""
    proto = truncated(50)
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    baseline = tierup.load(proto, config=tierup.Config(force_tier=0))
    x = np.ones((2, length, 4), np.float32)
    if length > 50:
        with pytest.raises(tierup.TierupError):
            baseline(x=x)
        with pytest.raises(tierup.TierupError):
            compiled(x=x)
    else:
        np.testing.assert_array_equal(compiled(x=x)["y"], baseline(x=x)["y"])


def test_a_call_outside_the_assumptions_is_answered() -> None:
    """max(length, 3) is the length in every example; a length of 2 needs the graph as it was written."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Max", ["shape", "three"], ["size"]),
        node("ConstantOfShape", ["size"], ["zeros"]),
    ]
    proto = model(nodes, [value("x", ["length"])], [value("zeros", [None])], [ints("three", 3)])
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    for length in (0, 2, 3, 8):
        assert compiled(x=np.ones(length, np.float32))["zeros"].shape == (max(length, 3),)


def test_a_division_by_zero_in_a_guard_is_no_error() -> None:
    """length · 4 ÷ length is 4, except for an empty input."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Mul", ["shape", "four"], ["more"]),
        node("Div", ["more", "shape"], ["size"]),
        node("Add", ["size", "four"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["length"])], [value("y", [1], TensorProto.INT64)], [ints("four", 4)])
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    baseline = tierup.load(proto, config=tierup.Config(force_tier=0))
    assert compiled(x=np.ones(7, np.float32))["y"].tolist() == [8]
    empty = np.ones(0, np.float32)
    with np.errstate(divide="ignore"):
        assert compiled(x=empty)["y"].tolist() == baseline(x=empty)["y"].tolist()


def test_examples_are_sizes_that_the_model_can_have() -> None:
    """A window of 400 samples every 160 needs at least 400 samples; a table of 50 positions at most 50."""
    nodes = [node("Conv", ["x", "w"], ["y"], strides=[160])]
    window = numpy_helper.from_array(np.ones((1, 1, 400), np.float32), "w")
    proto = model(nodes, [value("x", ["batch", 1, "samples"])], [value("y", ["batch", 1, None])], [window])
    examples = draw_examples(load_onnx(proto).graph)
    assert min(example[0, 2] for example in examples) >= 400
    # Sound is halved again and again: what holds for every other length alone must meet one for which it does not.
    assert len({example[0, 2] for example in examples}) >= 8
    assert max(example[0, 1] for example in draw_examples(load_onnx(truncated(50)).graph)) <= 50


def test_a_graph_without_open_sizes_needs_no_examples() -> None:
    proto = model([node("Exp", ["x"], ["y"])], [value("x", [3])], [value("y", [3])])
    assert draw_examples(load_onnx(proto).graph) == []


def halved(times: int) -> onnx.ModelProto:
    """Pools of 3 by steps of 2, all but the first in ceil mode: the parity of each size decides the next."""
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2]}
    nodes = [node("MaxPool", [f"t{n}"], [f"t{n + 1}"], **attrs, ceil_mode=int(n > 0)) for n in range(times)]
    return model(nodes, [value("t0", [1, 3, "h", "w"])], [value(f"t{times}", [None] * 4)])


@pytest.mark.parametrize("size", [224, 227, 192, 97])
def test_odd_and_even_sizes_are_not_taken_for_one_another(size: int) -> None:
    graph, assume = lowered(halved(4))
    counts = dict.fromkeys(range(len(graph.dims)), 0)
    for number, op in enumerate(graph.dims):
        args = [counts[arg.id] if isinstance(arg, Sym) else arg for arg in op.args]
        counts[number] = size if op.op == "of" else apply(op.op, *args)
    sizes = [[counts[dim.id] if isinstance(dim, Sym) else dim for dim in pair] for pair in assume.pairs]
    assert sizes
    assert all(first == second for first, second in sizes)


def test_examples_have_multiples_as_images_do() -> None:
    """Only sizes of whole 32s make sense where halves are doubled and added to what they were made from."""
    half = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [node("MaxPool", [f"t{n}"], [f"t{n + 1}"], **half) for n in range(5)]
    nodes += [node("Resize", ["t5", "", "scales"], ["u"]), node("Add", ["u", "t0"], ["y"])]
    scales = numpy_helper.from_array(np.array([1, 1, 32, 32], np.float32), "scales")
    proto = model(nodes, [value("t0", [1, 3, "h", "w"])], [value("y", [None] * 4)], [scales])
    examples = draw_examples(load_onnx(proto).graph)
    assert len(examples) >= 8
    assert all(size % 32 == 0 for example in examples for size in example.values())


def test_an_empty_constant_leaves_examples_that_make_sense() -> None:
    """Resize may have an empty tensor of sizes that nobody reads."""
    nodes = [node("Resize", ["x", "none", "scales"], ["y"])]
    weights = [numpy_helper.from_array(np.array(numbers, np.float32), name) for name, numbers in
               (("none", []), ("scales", [1, 1, 2, 2]))]  # fmt: skip
    proto = model(nodes, [value("x", [1, 3, "h", "w"])], [value("y", [None] * 4)], weights)
    assert draw_examples(load_onnx(proto).graph)
