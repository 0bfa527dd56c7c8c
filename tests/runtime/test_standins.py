"""A kernel that may not serve costs its own region: the reference computes that one, and the others stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.adapt.networks import encoder, perceptron
from tests.codegen.running import HOST
from tests.runtime.programs import F32, runner
from tests.security.models import model, node, value

from tierup.codegen.objects import build
from tierup.frontends.onnx import load_onnx
from tierup.ir.graph import Weights
from tierup.lower.text import print_program
from tierup.plan.program import BODY
from tierup.reference.evaluate import evaluate
from tierup.runtime.compiled import Compiled, compile_plan
from tierup.runtime.executable import executable
from tierup.runtime.kernels import publish
from tierup.runtime.standins import results_of
from tierup.store.objects import program_digest
from tierup.store.records import callout_record, node_of

RANDOM = np.random.default_rng(3)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def joined() -> onnx.ModelProto:
    """One value that three kernels write, each a part of it, and that movement and a product read."""
    nodes = [
        node("Softmax", ["x"], ["p"], axis=-1),
        node("ReduceSum", ["x"], ["s"], keepdims=1),
        node("Relu", ["x"], ["r"]),
        node("Concat", ["p", "r", "x"], ["c"], axis=1),
        node("Transpose", ["c"], ["t"], perm=[1, 0]),
        node("MatMul", ["w", "t"], ["m"]),
        node("Mul", ["m", "s"], ["y"]),
    ]
    weights = [numpy_helper.from_array(floats(5, 24), "w")]
    return model(nodes, [value("x", ["n", 8])], [value("y", [5, "n"])], weights)


def shaped() -> onnx.ModelProto:
    """Shapes that are computed, so that kernels read through nodes that run nowhere."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Concat", ["n", "rest"], ["new"], axis=0),
        node("Tanh", ["x"], ["a"]),
        node("Reshape", ["a", "new"], ["b"]),
        node("Transpose", ["b"], ["c"], perm=[0, 2, 1]),
        node("Softmax", ["c"], ["d"], axis=-1),
        node("Sigmoid", ["d"], ["e"]),
        node("ReduceMean", ["e"], ["f"], axes=[1], keepdims=1),
        node("Sub", ["e", "f"], ["y"]),
    ]
    numbers = {"zero": [0], "rest": [2, -1]}
    weights = [numpy_helper.from_array(np.array(number), name) for name, number in numbers.items()]
    return model(nodes, [value("x", ["n", 12])], [value("y", ["n", 6, 2])], weights)


MODELS: dict[str, tuple[onnx.ModelProto, list[Any]]] = {
    "perceptron": (perceptron(), [floats(3, 20)]),
    "encoder": (encoder(1), [floats(2, 5, 32), floats(2, 1, 1, 5)]),
    "joined": (joined(), [floats(4, 8)]),
    "shaped": (shaped(), [floats(3, 12)]),
}


class Sample:
    """A model, its plan, and what it should answer."""

    def __init__(self, name: str) -> None:
        proto, self.inputs = MODELS[name]
        self.imported = load_onnx(proto)
        (self.expected,) = evaluate(self.imported.graph, self.imported.weights, self.inputs, wide=True)
        self.whole = self.compiled({})

    def compiled(self, refused: dict[str, str]) -> Compiled:
        self.weights = Weights()
        for digest in self.imported.weights:
            self.weights.add(self.imported.weights[digest], digest)
        return compile_plan(self.imported.graph, self.weights, HOST, refused=refused)

    def without(self, *slots: int) -> Compiled:
        texts = [print_program(self.whole.programs[slot]) for slot in slots]
        return self.compiled({program_digest(text): "it is wrong" for text in texts})

    def check(self, compiled: Compiled) -> None:
        program = executable(compiled.plan, self.weights)
        publish(program, compiled.programs, HOST, build)
        graph = self.imported.graph
        names = [graph.value_name(given) for given in graph.inputs]
        made = runner([(name, F32, None, True) for name in names], ["y"], program)
        answer = made.run(dict(zip(names, self.inputs, strict=True)))["y"]
        np.testing.assert_allclose(answer, self.expected, rtol=1e-5, atol=1e-5)  # sums of up to 64 in f32


@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_can_be_done_without(name: str) -> None:
    sample = Sample(name)
    for slot in range(len(sample.whole.programs)):
        compiled = sample.without(slot)
        assert compiled.stand_ins
        assert {made.reason for made in compiled.stand_ins} == {"it is wrong"}
        assert set(compiled.programs) < set(sample.whole.programs)
        assert compiled.plan.fallback_nodes > sample.whole.plan.fallback_nodes
        sample.check(compiled)


@pytest.mark.parametrize("name", MODELS)
def test_all_kernels_can_be_done_without(name: str) -> None:
    sample = Sample(name)
    compiled = sample.without(*range(len(sample.whole.programs)))
    assert compiled.programs == ()
    sample.check(compiled)


def test_kernels_that_write_one_value_go_together() -> None:
    sample = Sample("joined")
    kernels = sample.whole.functions[0].kernels
    writers = [placed.slot for placed in kernels if set(results_of(placed.kernel)) & _written_twice(sample)]
    assert len(writers) > 1
    for slot in writers:
        left = {print_program(program) for program in sample.without(slot).programs}
        assert left.isdisjoint(print_program(sample.whole.programs[writer]) for writer in writers)


def _written_twice(sample: Sample) -> set[int]:
    written = Counter(value for placed in sample.whole.functions[0].kernels for value in results_of(placed.kernel))
    return {value for value, count in written.items() if count > 1}


def test_a_stand_in_says_what_it_stands_for_and_keeps_its_text() -> None:
    sample = Sample("perceptron")
    compiled = sample.without(0)
    (made,) = compiled.stand_ins
    assert made.region == "matmul region (matmul, add, max)"
    assert [alone.reason for alone in compiled.functions[0].alone] == ["it is wrong"]
    (node,) = (node for node in compiled.plan.callouts if node.op == BODY)
    assert compiled.plan.fallback_nodes == len(node.graphs[0][1].nodes)
    assert node_of(callout_record(node)) == node
