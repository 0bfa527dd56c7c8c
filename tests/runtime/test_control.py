"""Control flow in plans with kernels: bodies compile like any graph, and give the baseline's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.plan.test_baseline import CASES, branches, counting_loop, scalar
from tests.security.models import model, node, value

import tierup
from tierup.adapt.case import Case, cases_of
from tierup.codegen.target import AVX512
from tierup.frontends.onnx import load_onnx
from tierup.plan.program import BODY, StepCode
from tierup.runtime.compiled import Compiled, compile_plan

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RANDOM = np.random.default_rng(0)


def weight(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def ranked(name: str) -> onnx.ValueInfoProto:
    """A value of which not even the rank is declared."""
    return helper.make_tensor_value_info(name, F32, None)


def planned(proto: onnx.ModelProto, signatures: Any = ()) -> Compiled:
    imported = load_onnx(proto)
    return compile_plan(imported.graph, imported.weights, AVX512, signatures)


def answers(proto: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the compiled plan, and of the baseline."""
    tiers = [tierup.load(proto, config=tierup.Config(force_tier=tier, threads=1)) for tier in (1, 0)]
    return tiers[0].run(feeds), tiers[1].run(feeds)


def assert_same(proto: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    """The same bits: what is computed here is exact."""
    for got, wanted in zip(*(found.values() for found in answers(proto, feeds)), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize(("proto", "feeds"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_nothing_of_simple_control_flow_calls_out(proto: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    compiled = planned(proto)
    assert compiled.plan.fallback_nodes == 0
    assert not compiled.plan.count(StepCode.CALLOUT)
    assert_same(proto, feeds)


def test_a_body_is_one_kernel_where_its_nodes_fuse() -> None:
    """x + x in one branch, and relu(x) in the other: a function with a kernel for each."""
    compiled = planned(branches())
    (function,) = compiled.functions
    assert [[placed.region.kind for placed in body.kernels] for body in function.bodies] == [["rows"], ["rows"]]
    assert [body.number for body in function.bodies] == [1, 2]
    assert [body.graph.name for body in function.bodies] == [compiled.plan.functions[i].name for i in (1, 2)]


def test_kernels_in_bodies_have_cases_to_be_proved_on() -> None:
    imported = load_onnx(counting_loop())
    compiled = compile_plan(imported.graph, imported.weights, AVX512)
    found = [case for function in compiled.all_functions for _, case in cases_of(function, imported.weights)]
    assert len(found) == compiled.plan.slots > 0
    assert all(isinstance(case, Case) for case in found)


def test_a_node_without_a_lowering_calls_out_inside_its_body() -> None:
    then = helper.make_graph(
        [node("Relu", ["x"], ["r"]), node("Bernoulli", ["r"], ["u"]), node("Neg", ["u"], ["t"])],
        "then",
        [],
        [value("t", [None])],
    )
    other = helper.make_graph([node("Add", ["x", "x"], ["e"])], "else", [], [value("e", [None])])
    proto = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [value("x", ["n"]), scalar("c", BOOL)],
        [value("y", [None])],
    )
    compiled = planned(proto)
    assert [alone.node.op for function in compiled.all_functions for alone in function.alone] == ["onnx.Bernoulli"]
    for condition in (True, False):
        x = np.array([1, -1, 1], np.float32)  # what is 0 or 1 comes out as it is
        assert_same(proto, {"x": x, "c": np.array(condition)})


def growing() -> onnx.ModelProto:
    """Doubles the rows of s while the loop goes on: its size is another one in every round."""
    body = helper.make_graph(
        [node("Concat", ["s", "s"], ["s2"], axis=0), node("Identity", ["go"], ["go2"])],
        "body",
        [scalar("i", I64), scalar("go", BOOL), value("s", [None, 3])],
        [scalar("go2", BOOL), value("s2", [None, 3])],
    )
    inputs = [value("x", ["n", 3]), scalar("m", I64)]
    loop = node("Loop", ["m", "", "h"], ["last"], body=body)
    return model([node("Relu", ["x"], ["h"]), loop, node("Neg", ["last"], ["y"])], inputs, [value("y", [None, 3])])


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_carried_values_may_change_their_size(rounds: int) -> None:
    proto = growing()
    assert planned(proto).plan.fallback_nodes == 0
    assert_same(proto, {"x": RANDOM.standard_normal((2, 3)).astype(np.float32), "m": np.array(rounds)})


def test_a_loop_that_never_runs_does_not_give_out_memory_of_the_arena() -> None:
    """What goes into it lies between kernels, comes out as it is, and is read long after."""
    body = helper.make_graph(
        [node("Neg", ["s"], ["s2"]), node("Identity", ["go"], ["go2"])],
        "body",
        [scalar("i", I64), scalar("go", BOOL), value("s", [16, 16])],
        [scalar("go2", BOOL), value("s2", [16, 16])],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Loop", ["m", "", "a"], ["b"], body=body),
        node("MatMul", ["x", "v"], ["c"]),
        node("MatMul", ["c", "w"], ["d"]),
        node("MatMul", ["d", "v"], ["e"]),
        node("Add", ["e", "b"], ["y"]),
    ]
    arrays = [np.round(RANDOM.standard_normal((16, 16))).astype(np.float32) for _ in range(2)]
    weights = [weight("w", arrays[0]), weight("v", arrays[1])]
    proto = model(nodes, [value("x", [16, 16]), scalar("m", I64)], [value("y", [16, 16])], weights)
    x = np.round(RANDOM.standard_normal((16, 16))).astype(np.float32)
    for rounds in (0, 1):
        assert_same(proto, {"x": x, "m": np.array(rounds)})


def test_an_empty_loop_gives_what_the_baseline_gives() -> None:
    """In the body a rewrite learns that items have 3 columns, which the model as imported does not know."""
    body = helper.make_graph(
        [node("ReduceSum", ["x", "axes"], ["item"], keepdims=0), node("Identity", ["go"], ["go2"])],
        "body",
        [scalar("i", I64), scalar("go", BOOL)],
        [scalar("go2", BOOL), ranked("item")],
    )
    inputs = [value("x", ["n", 3]), scalar("m", I64)]
    loop = node("Loop", ["m", ""], ["items"], body=body)
    proto = model([loop], inputs, [ranked("items")], [weight("axes", np.array([0]))])
    for rounds in (0, 2):
        assert_same(proto, {"x": np.ones((2, 3), np.float32), "m": np.array(rounds)})


def squeezing(*follows: onnx.NodeProto) -> onnx.ModelProto:
    """Where x has one column it becomes a vector; what follows needs to know. All of that is in a branch."""
    then = helper.make_graph([node("Squeeze", ["x", "last"], ["t"])], "then", [], [ranked("t")])
    other = helper.make_graph([node("Identity", ["x"], ["e"])], "else", [], [ranked("e")])
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "one", "two"], ["columns"]),
        node("Equal", ["columns", "one"], ["c"]),
        node("If", ["c"], ["r"], then_branch=then, else_branch=other),
        *follows,
        node("Add", ["p", "half"], ["s"]),
    ]
    outer = helper.make_graph(nodes, "outer", [], [ranked("s")])
    plain = helper.make_graph([node("Neg", ["x"], ["plain"])], "plain", [], [ranked("plain")])
    weights = [weight(name, np.array([number])) for name, number in (("last", -1), ("one", 1), ("two", 2))]
    weights += [weight("half", np.float32(0.5))]
    inputs = [value("x", ["n", "k"]), scalar("flag", BOOL)]
    return model([node("If", ["flag"], ["y"], then_branch=outer, else_branch=plain)], inputs, [ranked("y")], weights)


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("flag", [True, False])
def test_ranks_that_only_branches_know_are_known(columns: int, flag: bool) -> None:
    proto = squeezing(node("Relu", ["r"], ["p"]))
    assert planned(proto).plan.fallback_nodes == 0
    assert_same(proto, {"x": RANDOM.standard_normal((3, columns)).astype(np.float32), "flag": np.array(flag)})


def test_closed_sizes_decide_branches() -> None:
    """With the sizes of a signature the inner condition is a number, and one branch is left."""
    compiled = planned(squeezing(node("Relu", ["r"], ["p"])), [((3, 1), ())])
    opened, closed = compiled.functions
    assert len(opened.bodies) == 4
    assert len(closed.bodies) == 2
    assert compiled.plan.fallback_nodes == 0


def test_a_branch_that_cannot_be_right_is_one_call_out_that_says_so() -> None:
    """A product with the wrong number of columns: no call gets there but by mistake."""
    then = helper.make_graph([node("MatMul", ["x", "w"], ["t"])], "then", [], [value("t", [None, 2])])
    other = helper.make_graph([node("MatMul", ["x", "v"], ["e"])], "else", [], [value("e", [None, 2])])
    weights = [weight("w", np.ones((3, 2), np.float32)), weight("v", np.ones((4, 2), np.float32))]
    proto = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)], [value("x", ["n", 3]), scalar("c", BOOL)],
        [value("y", [None, 2])], weights,
    )  # fmt: skip
    compiled = planned(proto)
    (alone,) = [alone for function in compiled.all_functions for alone in function.alone]
    assert alone.node.op == BODY
    assert "node_e" in alone.reason
    x = np.ones((2, 3), np.float32)
    assert_same(proto, {"x": x, "c": np.array(True)})
    for tier in (0, 1):
        with pytest.raises(tierup.InputError, match="node_e"):
            tierup.load(proto, config=tierup.Config(force_tier=tier)).run({"x": x, "c": np.array(False)})


def test_scans_of_any_axis_and_direction() -> None:
    """Of two inputs along different axes, one backwards; items are put together along the last axis."""
    body = helper.make_graph(
        [node("Add", ["a", "b"], ["sum"]), node("Sub", ["s", "sum"], ["s2"]), node("Mul", ["sum", "two"], ["item"])],
        "body",
        [value("s", [3]), value("a", [3]), value("b", [3])],
        [value("s2", [3]), value("item", [3])],
    )
    scan = node(
        "Scan", ["s0", "x", "y"], ["last", "items"], body=body, num_scan_inputs=2, scan_input_axes=[1, -2],
        scan_input_directions=[0, 1], scan_output_axes=[-1], scan_output_directions=[1],
    )  # fmt: skip
    inputs = [value("s0", [3]), value("x", [3, "n"]), value("y", ["n", 3])]
    proto = model([scan], inputs, [value("last", [3]), value("items", [3, None])], [weight("two", np.float32(2))])
    assert planned(proto).plan.fallback_nodes == 0
    for steps in (0, 1, 4):
        x, y = (np.arange(3 * steps, dtype=np.float32).reshape(shape) for shape in ((3, steps), (steps, 3)))
        assert_same(proto, {"s0": np.zeros(3, np.float32), "x": x, "y": y})


def test_the_plan_cache_keeps_bodies(tmp_path: Path) -> None:
    """A call-out that is a whole body comes back from the cache as well: a vector has no columns to transpose."""
    path = tmp_path / "model.onnx"
    onnx.save(squeezing(node("Transpose", ["r"], ["p"], perm=[1, 0])), path)
    config = tierup.Config(cache_dir=tmp_path / "cache", data_dir=tmp_path / "data", force_tier=1, threads=1)
    found = []
    for _ in range(2):
        with tierup.load(path, config=config) as loaded:
            assert loaded.report().to_dict()["counters"]["fallback_nodes"] == 1
            assert loaded.run({"x": np.ones((3, 4), np.float32), "flag": np.array(True)})["y"].shape == (4, 3)
            with pytest.raises(tierup.InputError) as raised:
                loaded.run({"x": np.ones((3, 1), np.float32), "flag": np.array(True)})
            found.append(str(raised.value))
    assert found[0] == found[1]
    assert "node_p" in found[0]
