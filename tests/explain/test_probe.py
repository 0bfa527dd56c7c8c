"""Probes in plans: what they see of a call is what it is, and the call's answer stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.explain.models import positions
from tests.security.models import model, node, value

import tierup
from tierup import _native
from tierup.adapt.planning import Planned, make_plan
from tierup.explain.probe import Passed, Probes, Sizes, Sounding, Times
from tierup.frontends.onnx import load_onnx


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(1).standard_normal(shape).astype(np.float32), name)


class Probed:
    """A model whose calls are probed: its answers, what was seen, and the times."""

    def __init__(self, proto: onnx.ModelProto, **feeds: Any) -> None:
        self._model = tierup.load(proto, config=tierup.Config(force_tier=0))
        self._feeds = feeds
        self.expected = self._model.run(feeds)
        self.planned: Planned = make_plan(load_onnx(proto))
        self.graph = self.planned.compiled.graph
        self.probes = Probes(self.planned, 2)
        self.answers: list[dict[str, Any]] = []
        self.soundings: dict[int, Sounding] = self.probes.sound(self.run)
        self.sounding = self.soundings[0]
        self.times: Times = self.probes.time(self.run, timing_s=0)

    def run(self, program: _native.Program) -> None:
        self._model.program = program
        self.answers.append(self._model.run(self._feeds))

    def check(self) -> None:
        for answer in self.answers:
            for name, expected in self.expected.items():
                # two roundings of sums of at most 64 products near 1
                np.testing.assert_allclose(answer[name], expected, rtol=1e-5, atol=1e-5)


def perceptron() -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "w0"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "w1"], ["m"]),
        node("Softmax", ["m"], ["y"]),
    ]
    weights = [weight("w0", 20, 64), weight("w1", 64, 10)]
    return model(nodes, [value("x", ["batch", 20])], [value("y", ["batch", 10])], weights)


def test_kernels_are_seen_with_what_they_are_passed() -> None:
    probed = Probed(perceptron(), x=np.ones((7, 20), np.float32))
    probed.check()
    placed = probed.planned.compiled.functions[0].kernels
    assert sorted(probed.sounding.kernels) == [0, 1, 2] == list(range(len(placed)))
    first: Passed = probed.sounding.kernels[0]
    assert 7 in first.sizes
    assert all(isinstance(number, int) for number in first.sizes)
    width = placed[0].kernel.steps[0][1]
    assert first.steps == -(-64 // width)
    assert first.scratch_bytes == 0
    # two values lie between the kernels: [7, 64] and [7, 10], in blocks of 64 bytes
    assert probed.sounding.arena_bytes == 7 * 64 * 4 + 320


def test_every_part_of_a_call_has_its_time() -> None:
    probed = Probed(perceptron(), x=np.ones((7, 20), np.float32))
    times = probed.times
    assert sorted(times.kernels_us) == [(0, 0), (0, 1), (0, 2)]
    assert times.nodes_us == {}
    assert times.calls >= 3
    assert times.call_us > 0
    assert times.parts_us == sum(times.kernels_us.values()) + times.rest_us


def test_sizes_come_from_inputs() -> None:
    probed = Probed(perceptron(), x=np.ones((7, 20), np.float32))
    sizes = Sizes(probed.graph.dims, probed.sounding)
    shape = probed.graph.type(probed.graph.outputs[0]).shape
    assert [sizes(dim) for dim in shape] == [7, 10]


def test_sizes_come_from_what_the_model_computes() -> None:
    """How many elements differ is known only after a call-out; the kernel behind it runs over as many."""
    nodes = [
        node("Unique", ["x"], ["", "i"]),  # of strings, which kernels do not sort
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Exp", ["f"], ["e"]),
        node("Add", ["e", "e"], ["y"]),
    ]
    proto = model(nodes, [value("x", ["n"], TensorProto.STRING)], [value("y", [None])])
    probed = Probed(proto, x=np.array(["a", "b", "a", "c", "b"], object))
    probed.check()
    function = probed.planned.compiled.functions[0]
    sizes = Sizes(function.dims, probed.sounding)
    assert [sizes(dim) for dim in function.kernels[0].region.domain if dim != 1] == [3]
    assert [probed.graph.nodes[index].op for _, index in probed.times.nodes_us] == ["onnx.Unique"]


def looped() -> onnx.ModelProto:
    """y = exp(x · 2^rounds), doubled in a loop; behind it a branch."""
    body = helper.make_graph(
        [node("Identity", ["going"], ["on"]), node("Add", ["state", "state"], ["next"])],
        "body",
        [value("i", [], TensorProto.INT64), value("going", [], TensorProto.BOOL), value("state", [4])],
        [value("on", [], TensorProto.BOOL), value("next", [4])],
    )
    branches = [
        helper.make_graph([node(op, ["doubled"], [f"out_{op}"])], op, [], [value(f"out_{op}", [4])])
        for op in ("Neg", "Abs")
    ]
    nodes = [
        node("Loop", ["rounds", "", "x"], ["doubled"], body=body),
        node("If", ["up"], ["chosen"], then_branch=branches[0], else_branch=branches[1]),
        node("Exp", ["chosen"], ["e"]),
        node("Add", ["e", "x"], ["y"]),
    ]
    inputs = [value("x", [4]), value("rounds", [], TensorProto.INT64), value("up", [], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", [4])])


def test_kernels_in_bodies_are_seen_and_timed_as_often_as_they_run() -> None:
    for up in (True, False):
        probed = Probed(looped(), x=np.ones(4, np.float32) / 8, rounds=np.array(3), up=np.array(up))
        probed.check()
        names = {function.number: function.graph.name for function in probed.probes.functions}
        ran = {names[number]: runs for (number, _), runs in probed.times.runs.items()}
        assert ran == {"hostile": 1, "body": 3, "Neg" if up else "Abs": 1}
        assert all(us > 0 for us in probed.times.kernels_us.values())
        seen = {names[number] for number, sounding in probed.soundings.items() if sounding.kernels}
        assert seen == set(ran)
        assert probed.times.nodes_us == {}


def test_nodes_that_call_out_in_bodies_are_timed() -> None:
    body = helper.make_graph(
        [node("Identity", ["going"], ["on"]), node("Bernoulli", ["state"], ["next"])],
        "body",
        [value("i", [], TensorProto.INT64), value("going", [], TensorProto.BOOL), value("state", [None])],
        [value("on", [], TensorProto.BOOL), value("next", [None])],
    )
    inputs = [value("x", [4]), value("rounds", [], TensorProto.INT64)]
    proto = model([node("Loop", ["rounds", "", "x"], ["y"], body=body)], inputs, [value("y", [None])])
    probed = Probed(proto, x=np.ones(4, np.float32), rounds=np.array(2))
    probed.check()
    (place,) = probed.times.nodes_us
    assert place in probed.probes.node_spans
    assert probed.times.nodes_us[place] > 0


def test_a_guard_that_fails_leaves_no_kernel_to_see() -> None:
    proto = positions()
    assert Probed(proto, x=np.zeros((1, 20, 4), np.float32)).sounding.kernels
    probed = Probed(proto, x=np.zeros((1, 40000, 4), np.float32))
    probed.check()
    assert probed.sounding.kernels == {}
    assert probed.times.kernels_us == probed.times.nodes_us == {}
    assert probed.times.rest_us > 0
