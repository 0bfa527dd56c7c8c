"""Small networks whose kernels are tried alone, and what is needed to do so."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace
from onnx import numpy_helper
from tests.codegen.running import HOST
from tests.security.models import model, node, value

from tierup.adapt.case import Case, NotAlone, cases_of
from tierup.adapt.case_record import case_of, record_of
from tierup.codegen.objects import build
from tierup.frontends.onnx import load_onnx
from tierup.lower.tile import TileProgram
from tierup.lower.verify import verify
from tierup.runtime.compiled import compile_plan
from tierup.runtime.kernels import load_code

RANDOM = np.random.default_rng(0)
WIDTH, HEADS = 32, 2


def weight(name: str, *shape: int) -> onnx.TensorProto:
    scale = shape[0] ** -0.5
    return numpy_helper.from_array((RANDOM.standard_normal(shape) * scale).astype(np.float32), name)


def constant(name: str, content: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(content, dtype), name)


def perceptron() -> onnx.ModelProto:
    """softmax(relu(x w0 + b0) w1 + b1)"""
    nodes = [
        node("Gemm", ["x", "w0", "b0"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("Gemm", ["r", "w1", "b1"], ["a"]),
        node("Softmax", ["a"], ["y"], axis=-1),
    ]
    weights = [weight("w0", 20, 70), weight("b0", 70), weight("w1", 70, 10), weight("b1", 10)]
    return model(nodes, [value("x", ["n", 20])], [value("y", ["n", 10])], weights)


def chain() -> onnx.ModelProto:
    """gelu, sigmoid, tanh, a norm and a softmax in one kernel."""
    nodes = [
        *gelu("x", "a"),
        node("Sigmoid", ["a"], ["b"]),
        node("Tanh", ["b"], ["c"]),
        node("Mul", ["c", "x"], ["d"]),
        node("LayerNormalization", ["d", "g", "s"], ["e"], axis=-1),
        node("Softmax", ["e"], ["y"], axis=-1),
    ]
    weights = [weight("g", 100), weight("s", 100), *GELU]
    return model(nodes, [value("x", ["n", 100])], [value("y", ["n", 100])], weights)


GELU = [constant("root", 2**0.5), constant("one", 1.0), constant("half", 0.5)]


def gelu(x: str, y: str) -> list[onnx.NodeProto]:
    return [
        node("Div", [x, "root"], [f"{y}_1"]),
        node("Erf", [f"{y}_1"], [f"{y}_2"]),
        node("Add", [f"{y}_2", "one"], [f"{y}_3"]),
        node("Mul", [x, f"{y}_3"], [f"{y}_4"]),
        node("Mul", [f"{y}_4", "half"], [y]),
    ]


def encoder(layers: int = 2) -> onnx.ModelProto:
    """Layers of attention and a gelu network, each with a norm and a residual, over masked rows."""
    nodes, weights = [], [*GELU, constant("scale", (WIDTH // HEADS) ** -0.5), constant("epsilon", 1e-5)]
    weights += [constant("split", [0, 0, HEADS, -1], np.int64), constant("join", [0, 0, WIDTH], np.int64)]
    x = "x"
    for layer in range(layers):
        made, own = _layer(x, f"l{layer}")
        nodes += made
        weights += own
        x = f"l{layer}_y"
    inputs = [value("x", ["b", "t", WIDTH]), value("mask", ["b", 1, 1, "t"])]
    return model(nodes, inputs, [value(x, ["b", "t", WIDTH])], weights)


def _layer(x: str, layer: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    def name(what: str) -> str:
        return f"{layer}_{what}"

    nodes, weights = [], []

    def dense(source: str, result: str, rows: int, columns: int) -> None:
        weights.extend([weight(name(f"{result}_w"), rows, columns), weight(name(f"{result}_b"), columns)])
        nodes.append(node("MatMul", [source, name(f"{result}_w")], [name(f"{result}_m")]))
        nodes.append(node("Add", [name(f"{result}_m"), name(f"{result}_b")], [name(result)]))

    for part in "qkv":
        dense(x, part, WIDTH, WIDTH)
        nodes.append(node("Reshape", [name(part), "split"], [name(f"{part}_s")]))
        order = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
        nodes.append(node("Transpose", [name(f"{part}_s")], [name(f"{part}_h")], perm=order))
    nodes += [
        node("MatMul", [name("q_h"), name("k_h")], [name("scores")]),
        node("Mul", [name("scores"), "scale"], [name("scaled")]),
        node("Add", [name("scaled"), "mask"], [name("masked")]),
        node("Softmax", [name("masked")], [name("p")], axis=-1),
        node("MatMul", [name("p"), name("v_h")], [name("mixed")]),
        node("Transpose", [name("mixed")], [name("turned")], perm=[0, 2, 1, 3]),
        node("Reshape", [name("turned"), "join"], [name("joined")]),
    ]
    dense(name("joined"), "out", WIDTH, WIDTH)
    nodes.append(node("Add", [name("out"), x], [name("residual")]))
    weights += [weight(name("g"), WIDTH), weight(name("s"), WIDTH)]
    nodes.append(node("LayerNormalization", [name("residual"), name("g"), name("s")], [name("n")], axis=-1))
    dense(name("n"), "up", WIDTH, 2 * WIDTH)
    nodes += gelu(name("up"), name("gelu"))
    dense(name("gelu"), "down", 2 * WIDTH, WIDTH)
    nodes.append(node("Add", [name("down"), name("n")], [name("y")]))
    return nodes, weights


class Alone(Struct, frozen=True):
    """A kernel of a network, isolated, and the kind of its region."""

    kind: str
    case: Case


@cache
def _cases(proto: bytes) -> tuple[Alone, ...]:
    imported = load_onnx(proto)
    found = []
    for function in compile_plan(imported.graph, imported.weights, HOST).functions:
        for placed, case in cases_of(function, imported.weights):
            assert not isinstance(case, NotAlone), case
            found.append(Alone(placed[0].region.kind, case))
    return tuple(found)


def cases(proto: onnx.ModelProto) -> tuple[Alone, ...]:
    """The kernels of a model, in the order of its plan."""
    return _cases(proto.SerializeToString())


def distinct(proto: onnx.ModelProto) -> list[Alone]:
    """Those that differ, as a worker would read them."""
    records = {record_of(alone.case): alone.kind for alone in cases(proto)}
    return [Alone(kind, case_of(record)) for record, kind in records.items()]


def of_kind(proto: onnx.ModelProto, kind: str) -> Case:
    return next(alone.case for alone in cases(proto) if alone.kind == kind)


def load(case: Case) -> list[tuple[int, object]]:
    """Machine code for each kernel; keep the second while the first is called."""
    programs = [kernel.program for kernel in case.kernels]
    for program in programs:
        verify(program)
    return load_code(build(programs, HOST), HOST)


def program_of(case: Case) -> TileProgram:
    return case.kernels[0].program


def with_program(case: Case, program: TileProgram) -> Case:
    (kernel,) = case.kernels
    return replace(case, kernels=(replace(kernel, program=program),))
