"""Recurrent layers as kernels: directions, lengths and options on two threads, against the reference in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from tests.codegen.running import HOST
from tests.runtime.layers import feeds, layer

import tierup
from tierup.frontends.onnx import load_onnx
from tierup.plan.program import StepCode
from tierup.reference.evaluate import evaluate
from tierup.runtime.compiled import compile_plan

SIZES = ((3, 2), (1, 1), (6, 11), (0, 2), (2, 0), (3, 2))


def check(proto: onnx.ModelProto, eps: float = float(np.finfo(np.float32).eps)) -> None:
    """Errors of a step, some roundings of numbers around 1, go into the next ones and shrink there."""
    imported = load_onnx(proto)
    with tierup.load(proto, config=tierup.Config(force_tier=1, threads=2)) as compiled:
        assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
        for time, batch in SIZES:
            given = feeds(proto, time, batch)
            answers = compiled(**given)
            exact = evaluate(
                imported.graph, imported.weights, [given[spec.name] for spec in compiled.inputs], wide=True
            )
            for (name, got), wanted in zip(answers.items(), exact, strict=True):
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=0, atol=64 * eps, err_msg=f"{name}, {time}, {batch}")


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "hidden"), [("RNN", 7), ("RNN", 130), ("GRU", 33), ("GRU", 75), ("LSTM", 9), ("LSTM", 70)]
)
def test_directions(op: str, hidden: int, direction: str, lengths: bool) -> None:
    attrs = {"linear_before_reset": 1} if op == "GRU" else {}
    check(layer(op, hidden, lengths=lengths, direction=direction, **attrs))


@pytest.mark.parametrize("hidden", [9, 75])
def test_a_reset_before_the_product(hidden: int) -> None:
    check(layer("GRU", hidden, direction="bidirectional"))


@pytest.mark.parametrize(("op", "hidden"), [("RNN", 130), ("GRU", 75), ("LSTM", 70), ("LSTM", 9)])
def test_weights_that_come_with_the_call(op: str, hidden: int) -> None:
    check(layer(op, hidden, constant=False, direction="bidirectional"))


@pytest.mark.parametrize("outputs", [("y", "", ""), ("", "h", ""), ("", "", "c")])
def test_results_that_nobody_wants(outputs: tuple[str, ...]) -> None:
    check(layer("LSTM", 70, outputs=outputs))


def test_options() -> None:
    check(layer("LSTM", 70, clip=0.3, input_forget=1, activations=["HardSigmoid", "Softsign", "ScaledTanh"]))


def test_f64() -> None:
    check(layer("LSTM", 70, dtype=np.float64), float(np.finfo(np.float64).eps))


def test_f16_is_computed_in_f32_and_rounded_once() -> None:
    check(layer("LSTM", 70, dtype=np.float16), float(np.finfo(np.float16).eps) / 64)


def test_steps_of_time_are_a_loop_of_the_plan() -> None:
    """One kernel step and a backward branch, whatever the number of steps."""
    imported = load_onnx(layer("LSTM", 70, lengths=False))
    compiled = compile_plan(imported.graph, imported.weights, HOST)
    (number,) = [n for n, placed in enumerate(compiled.functions[0].kernels) if placed.region.kind == "recurrent"]
    assert compiled.functions[0].kernels[number].kernel.rounds is not None
    steps = compiled.plan.functions[0].steps
    kernels = [position for position, step in enumerate(steps) if step[0] == StepCode.KERNEL]
    branches = [step for step in steps if step[0] == StepCode.BRANCH_DIM]
    assert [branch[-1] for branch in branches] == [kernels[number]]


@pytest.mark.parametrize("name", ["lengths", "h0", "r"])
def test_sizes_that_do_not_agree_end_the_call(name: str) -> None:
    """Nothing names these sizes in the model, so only the kernel can see it: it would read behind its inputs."""
    proto = layer("GRU", 6, constant=False, linear_before_reset=1)
    given = feeds(proto, 4, 3)
    for spec in proto.graph.input:
        if spec.name in ("lengths", "h0", "r"):
            for number, dim in enumerate(spec.type.tensor_type.shape.dim):
                dim.dim_param = f"{spec.name}_{number}"
    wrong = {"lengths": np.ones(2, np.int32), "h0": given["h0"][:, :2], "r": np.zeros((1, 21, 7), np.float32)}
    with tierup.load(proto, config=tierup.Config(force_tier=1, threads=2)) as compiled:
        assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
        assert np.isfinite(compiled(**given)["h"]).all()
        with pytest.raises(tierup.InputError):
            compiled(**{**given, name: wrong[name]})
