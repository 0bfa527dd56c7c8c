"""Every real model gives ONNX Runtime's answer.

The measure is the root mean square of the difference over that of the answer. Float models: 5e-5, some hundred f32
roundings, for sums taken in another order through some fifty layers (largest seen: 1.2e-5). Two outputs of yunet have
their own: they are sigmoids near 0, where nearly all of the difference is ONNX Runtime's own distance from the float64
answer. Models that quantise activations while they run: 0.15, because a sum that differs in its last bit
can round to the next of 256 steps, and later layers multiply that (resnet50_qdq: one flip in layer 2 becomes 3% at the
output; ONNX Runtime differs from itself by 9% on minilm_l6_dynq8 when its optimiser is switched off). There the check
that bites is the other one: each node, fed what the float64 evaluation feeds it, stays within one step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import tierup
from tests.models.catalog import NAMES, model_inputs, model_path
from tierup.frontends.onnx import load_onnx
from tierup.reference.bind import bind, widen
from tierup.reference.evaluate import evaluate

FLOAT_TOLERANCE = 5e-5
OUTPUT_TOLERANCE = {("yunet", "obj_8"): 2e-4, ("yunet", "obj_16"): 1e-3}
QUANTISED_TOLERANCE = 0.15
QUANTISED = {"minilm_l6_dynq8", "moonshine_tiny_enc", "resnet50_qdq"}

pytestmark = pytest.mark.models


def onnxruntime_answer(name: str) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(model_path(name)), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, model_inputs(name)), strict=True))


def rms_difference(actual: Any, expected: Any) -> float:
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.sqrt(np.mean((actual - expected) ** 2) / max(np.mean(expected**2), 1e-30)))


def check(name: str, actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for output, wanted in expected.items():
        got = actual[output]
        if isinstance(wanted, list):  # ZipMap: a list of {label: probability}
            assert [list(row) for row in got] == [list(row) for row in wanted]
            got, wanted = ([list(row.values()) for row in rows] for rows in (got, wanted))
        got, wanted = np.asarray(got), np.asarray(wanted)
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), output
        if wanted.dtype.kind != "f":
            assert np.array_equal(got, wanted), output
        else:
            usual = QUANTISED_TOLERANCE if name in QUANTISED else FLOAT_TOLERANCE
            tolerance = OUTPUT_TOLERANCE.get((name, output), usual)
            assert rms_difference(got, wanted) <= tolerance, output


@pytest.mark.parametrize("name", NAMES)
def test_model_agrees_with_onnxruntime(name: str) -> None:
    with tierup.load(model_path(name)) as model:
        check(name, model.run(model_inputs(name)), onnxruntime_answer(name))


@pytest.mark.parametrize("name", NAMES)
def test_compiled_model_agrees_with_onnxruntime(name: str) -> None:
    with tierup.load(model_path(name), config=tierup.Config(force_tier=1)) as model:
        check(name, model.run(model_inputs(name)), onnxruntime_answer(name))


@pytest.mark.parametrize("name", NAMES)
def test_inferred_shapes_agree_with_the_answer(name: str) -> None:
    with tierup.load(model_path(name)) as model:
        answer = model.run(model_inputs(name))
        for output in model.outputs:
            if output.shape is not None and isinstance(answer[output.name], np.ndarray):
                actual = answer[output.name].shape
                assert len(actual) == len(output.shape)
                assert all(not isinstance(d, int) or d == a for d, a in zip(output.shape, actual, strict=True))


@pytest.mark.parametrize("name", sorted(set(NAMES) - QUANTISED))
def test_baseline_is_as_close_to_float64_as_onnxruntime(name: str) -> None:
    imported = load_onnx(model_path(name))
    graph, feeds = imported.graph, model_inputs(name)
    inputs = [feeds[graph.value_name(value)] for value in graph.inputs]
    exact = dict(zip(imported.output_names, evaluate(graph, imported.weights, inputs, wide=True), strict=True))
    ours = dict(zip(imported.output_names, evaluate(graph, imported.weights, inputs), strict=True))
    for output, theirs in onnxruntime_answer(name).items():
        if isinstance(theirs, np.ndarray) and theirs.dtype.kind == "f":
            # 4: the factor that the acceptance rule grants a reordered sum; 1e-6: a few f32 roundings
            bound = 4 * rms_difference(theirs, exact[output]) + 1e-6
            assert rms_difference(ours[output], exact[output]) <= bound, output


@pytest.mark.parametrize("name", sorted(QUANTISED))
def test_every_node_of_a_quantised_model_is_within_one_step_of_float64(name: str) -> None:
    imported = load_onnx(model_path(name))
    graph, feeds = imported.graph, model_inputs(name)
    values = {value: widen(imported.weights[digest]) for value, digest in graph.weights}
    values.update({value: widen(feeds[graph.value_name(value)]) for value in graph.inputs})
    for node in graph.nodes:
        inputs = [None if value is None else values[value] for value in node.inputs]
        exact = bind(node, wide=True)(*inputs)
        narrow = bind(node)(*[_narrow(value) for value in inputs])
        for value, wide, rounded in zip(node.outputs, exact, narrow, strict=True):
            if value is None:
                continue
            values[value] = wide
            if rounded.dtype.kind == "f":
                scale = max(float(np.abs(wide).max()), 1e-30) if wide.size else 1.0
                assert np.abs(rounded - wide).max(initial=0) <= 1e-4 * scale, node.label
            elif rounded.dtype.itemsize == 1:
                assert np.abs(rounded.astype(int) - wide.astype(int)).max(initial=0) <= 1, node.label


def _narrow(value: Any) -> Any:
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value
