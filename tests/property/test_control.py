"""Random nested control flow: the compiled plan gives the evaluator's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.runtime.programs import runner
from tests.security.models import model, node, value

from tierup.codegen.objects import build
from tierup.codegen.target import AVX2, Target, target_of
from tierup.errors import TierupError
from tierup.frontends.onnx import load_onnx
from tierup.ir.types import DType
from tierup.lower.text import print_program
from tierup.lower.tile import TileProgram
from tierup.profile.machine import identify
from tierup.reference.evaluate import evaluate
from tierup.runtime.compiled import compile_plan
from tierup.runtime.executable import executable
from tierup.runtime.kernels import publish

HOST = target_of(identify()) or AVX2
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_COLUMNS = 4  # of every matrix; how many rows there are, only calls know
_CONSTANTS = {
    "rows_axis": np.array([0]), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
    "i_one": np.array(1), "i_three": np.array(3), "none": np.array(0.0, np.float32),
    "low": np.array(-50.0, np.float32), "high": np.array(50.0, np.float32),
    "row": np.array([1.0, -2.0, 3.0, 0.5], np.float32),
}  # fmt: skip


class Writer:
    """Draws one graph. Its matrices hold small multiples of a half, so that sums of them are exact."""

    def __init__(self, data: st.DataObject, names: list[str], counts: list[str], depth: int, fresh: list[int]) -> None:
        self.draw = data.draw
        self.data, self.depth, self.fresh = data, depth, fresh
        self.nodes: list[onnx.NodeProto] = []
        self.matrices, self.counts = list(names), list(counts)

    def name(self) -> str:
        self.fresh[0] += 1
        return f"v{self.fresh[0]}"

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        result = self.name()
        self.nodes.append(node(op, inputs, [result], **attributes))
        return result

    def matrix(self) -> str:
        return self.draw(st.sampled_from(self.matrices))

    def inner(self, own: list[str], counts: list[str]) -> Writer:
        return Writer(self.data, [*self.matrices, *own], [*self.counts, *counts], self.depth - 1, self.fresh)

    def write(self, most: int) -> None:
        for _ in range(self.draw(st.integers(1, most))):
            kinds = ["map", "sum", "rows", "join", "row"]
            kinds += ["branch", "squeeze", "loop", "scan"] if self.depth else []
            self.matrices.append(getattr(self, self.draw(st.sampled_from(kinds)))())

    def map(self) -> str:
        op = self.draw(st.sampled_from(["Neg", "Relu", "Abs", "Identity"]))
        return self.add(op, [self.matrix()])

    def sum(self) -> str:
        """Of a matrix and the sum of another's rows: they always fit."""
        total = self.add("ReduceSum", [self.matrix(), "rows_axis"], keepdims=1)
        return self.bounded(self.add("Add", [self.matrix(), total]))

    def row(self) -> str:
        return self.bounded(self.add("Add", [self.matrix(), "row"]))

    def bounded(self, name: str) -> str:
        return self.add("Clip", [name, "low", "high"])

    def rows(self) -> str:
        return self.add(
            "Slice",
            [
                self.matrix(),
                *self.draw(st.sampled_from([["zero", "one"], ["zero", "two"], ["one", "two"]])),
                "rows_axis",
            ],
        )

    def join(self) -> str:
        return self.add(
            "Slice", [self.add("Concat", [self.matrix(), self.matrix()], axis=0), "zero", "five", "rows_axis"]
        )

    def condition(self) -> str:
        kind = self.draw(st.sampled_from(["data", "size", "count", "given"]))
        if kind == "given":
            return "flag"
        if kind == "data":
            return self.add("Greater", [self.add("ReduceSum", [self.matrix()], keepdims=0), "none"])
        if kind == "size":
            return self.add("Equal", [self.length(self.matrix()), "one"])
        return self.add("Less", [self.draw(st.sampled_from(self.counts)), "i_one"])

    def length(self, name: str) -> str:
        return self.add("Slice", [self.add("Shape", [name]), "zero", "one"])

    def branch(self) -> str:
        bodies = {}
        for name in ("then_branch", "else_branch"):
            inner = self.inner([], [])
            inner.write(3)
            bodies[name] = helper.make_graph(inner.nodes, name, [], [_open(inner.matrices[-1])])
        return self.add("If", [self.condition()], **bodies)

    def squeeze(self) -> str:
        """Where there is one row, a vector: what follows does not know the rank."""
        given = self.matrix()
        bodies = {}
        for name, op in (("then_branch", "Squeeze"), ("else_branch", "Identity")):
            result = self.name()
            inputs = [given, "rows_axis"] if op == "Squeeze" else [given]
            bodies[name] = helper.make_graph([node(op, inputs, [result])], name, [], [_open(result)])
        condition = self.add("Equal", [self.length(given), "one"])
        either = self.bounded(self.add("Add", [self.add("If", [condition], **bodies), "row"]))
        return self.add("Reshape", [either, "matrix_shape"])

    def loop(self) -> str:
        step, going, state = self.name(), self.name(), self.name()
        inner = self.inner([state], [step])
        inner.write(3)
        result = inner.matrices[-1]
        further = inner.condition() if self.draw(st.booleans()) else inner.add("Identity", [going])
        if inner.draw(st.booleans()):
            further = inner.add("Identity", [going])
        item = inner.add("ReduceSum", [inner.matrix(), "rows_axis"], keepdims=0)
        flag = inner.add("Reshape", [further, "no_axes"])
        ins = [value(step, [], I64), value(going, [], BOOL), _open(state)]
        body = helper.make_graph(inner.nodes, "body", ins, [value(flag, [], BOOL), _open(result), _open(item)])
        trips = self.draw(st.sampled_from(["i_three", "trips", self.length(self.matrix()), *self.counts]))
        last, items = self.name(), self.name()
        self.nodes.append(node("Loop", [trips, "", self.matrix()], [last, items], body=body))
        return self.draw(st.sampled_from([last, items]))

    def scan(self) -> str:
        state, part = self.name(), self.name()
        inner = self.inner([state], [])
        inner.matrices.append(inner.bounded(inner.add("Add", [state, part])))
        inner.write(2)
        result = inner.add("ReduceSum", [inner.matrices[-1], "rows_axis"], keepdims=1)
        item = inner.add("ReduceSum", [inner.matrix(), "rows_axis"], keepdims=0)
        body = helper.make_graph(inner.nodes, "body", [_open(state), _open(part)], [_open(result), _open(item)])
        last, items = self.name(), self.name()
        first = self.add("ReduceSum", [self.matrix(), "rows_axis"], keepdims=1)
        ways = {
            "scan_input_directions": [self.draw(st.integers(0, 1))],
            "scan_output_directions": [self.draw(st.integers(0, 1))],
        }
        self.nodes.append(node("Scan", [first, self.matrix()], [last, items], body=body, num_scan_inputs=1, **ways))
        return self.draw(st.sampled_from([last, items]))


def _open(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, F32, None)


def draw_model(data: st.DataObject) -> onnx.ModelProto:
    """A model of a matrix, a flag and a number, with control flow within control flow."""
    writer = Writer(data, ["x"], ["trips"], 3, [0])
    writer.write(4)
    constants = {
        **_CONSTANTS,
        "five": np.array([5]),
        "matrix_shape": np.array([-1, _COLUMNS]),
        "no_axes": np.array([], np.int64),
    }
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    inputs = [value("x", ["n", _COLUMNS]), value("flag", [], BOOL), value("trips", [], I64)]
    outputs = [_open(name) for name in dict.fromkeys(writer.matrices[1:])]
    return model(writer.nodes, inputs, outputs, weights)


_BUILT: dict[str, bytes] = {}


def _build(programs: Sequence[TileProgram], target: Target) -> list[bytes]:
    """Models that are drawn have most kernels in common."""
    missing = {print_program(program): program for program in programs if print_program(program) not in _BUILT}
    _BUILT.update(zip(missing, build(list(missing.values()), target), strict=True))
    return [_BUILT[print_program(program)] for program in programs]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_control_flow(data: st.DataObject) -> None:
    imported = load_onnx(draw_model(data))
    graph, weights = imported.graph, imported.weights
    plan = compile_plan(graph, weights, HOST)
    program = executable(plan.plan, weights)
    publish(program, plan.programs, HOST, _build)
    outputs = [f"o{number}" for number in range(len(graph.outputs))]
    codes = (DType.F32.code, DType.BOOL.code, DType.I64.code)
    specs = [(name, code, None, True) for name, code in zip(("x", "flag", "trips"), codes, strict=True)]
    native = runner(specs, outputs, program)
    for rows, flag, trips in ((3, True, 2), (1, False, 0), (0, True, 1), (2, False, 3)):
        x = (np.arange(rows * _COLUMNS, dtype=np.float32).reshape(rows, _COLUMNS) - 3) / 2
        feeds = [x, np.array(flag), np.array(trips)]
        try:
            expected = evaluate(graph, weights, feeds)
        except TierupError:  # perhaps in what nobody needs, so that the plan has an answer
            continue
        answers = native.run(dict(zip(("x", "flag", "trips"), feeds, strict=True)))
        for name, wanted in zip(outputs, expected, strict=True):
            assert (answers[name].shape, answers[name].dtype) == (wanted.shape, wanted.dtype)
            assert np.array_equal(answers[name], wanted), plan.plan
