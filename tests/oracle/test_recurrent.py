"""Recurrent layers: reference functions against ONNX Runtime and a naive loop, rules against results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import agree, assert_close, build, random, run, unknown_dims, widened

from tierup.errors import InputError
from tierup.ir.infer import InferError
from tierup.ir.types import Array

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}
TIME, BATCH, SIZE, HIDDEN = 5, 3, 4, 6
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def _inputs(op: str, directions: int = 1, optional: bool = True, layout: int = 0, dtype: Any = np.float32) -> list[Any]:
    """All inputs; the optional ones are bias, lengths, first states and peepholes."""
    rows = GATES[op] * HIDDEN
    state = (BATCH, directions, HIDDEN) if layout else (directions, BATCH, HIDDEN)
    inputs: list[Array | None] = [
        random(*((BATCH, TIME) if layout else (TIME, BATCH)), SIZE, dtype=dtype),
        random(directions, rows, SIZE, seed=1, dtype=dtype),
        random(directions, rows, HIDDEN, seed=2, dtype=dtype),
    ]
    if optional:
        inputs += [random(directions, 2 * rows, seed=3, dtype=dtype), np.array([5, 2, 4], np.int32)]
        inputs += [random(*state, seed=4, dtype=dtype)]
        if op == "LSTM":
            inputs += [random(*state, seed=5, dtype=dtype), random(directions, 3 * HIDDEN, seed=6, dtype=dtype)]
    return inputs


def _both(op: str, inputs: list[Any], opset: int = 14, **attrs: Any) -> None:
    agree(op, *inputs, version=opset, outputs=OUTPUTS[op], hidden_size=HIDDEN, **attrs)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", GATES)
def test_directions(op: str, direction: str, optional: bool) -> None:
    _both(op, _inputs(op, DIRECTIONS[direction], optional), direction=direction)
    _both(op, _inputs(op, DIRECTIONS[direction], optional), 7, direction=direction)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}),
    ("GRU", {"clip": 0.5}),
    ("RNN", {"clip": 0.5}),
    ("LSTM", {"input_forget": 1}),
    ("RNN", {"activations": ["Relu"]}),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]}),
    ("RNN", {"activations": ["LeakyRelu"]}),
    ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}),
    ("RNN", {"activations": ["ThresholdedRelu"], "activation_alpha": [0.4]}),
    ("RNN", {"activations": ["ScaledTanh"], "activation_alpha": [0.8], "activation_beta": [1.2]}),
    ("RNN", {"activations": ["HardSigmoid"]}),
    ("RNN", {"activations": ["Elu"], "activation_alpha": [0.7]}),
    ("RNN", {"activations": ["Softsign"]}),
    ("RNN", {"activations": ["Softplus"]}),
    ("RNN", {"activations": ["Relu", "LeakyRelu"], "direction": "bidirectional", "activation_alpha": [0.3]}),
    ("GRU", {"activations": ["HardSigmoid", "Softsign"], "activation_alpha": [0.3], "activation_beta": [0.4]}),
    ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Tanh"], "activation_alpha": [0.3]}),
    (
        "LSTM",
        {
            "direction": "bidirectional",
            "activations": ["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Tanh", "Elu"],
            "activation_alpha": [0.1, 0.25, 0.6],
            "activation_beta": [0.45],
        },
    ),
]


@pytest.mark.parametrize(("op", "attrs"), OPTIONS)
def test_options(op: str, attrs: dict[str, Any]) -> None:
    inputs = _inputs(op, DIRECTIONS[attrs.get("direction", "forward")])
    _both(op, [inputs[0] * np.float32(0.3), *inputs[1:]], **attrs)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", GATES)
def test_layout(op: str, direction: str) -> None:
    directions = DIRECTIONS[direction]
    inputs = _inputs(op, directions, layout=1)
    y, *states = run(op, *inputs, outputs=OUTPUTS[op], layout=1, hidden_size=HIDDEN, direction=direction)
    assert y.shape == (BATCH, TIME, directions, HIDDEN)
    swapped = [a.swapaxes(0, 1) if i == 0 or (i > 4 and a.ndim == 3) else a for i, a in enumerate(inputs)]
    expected, *last = run(op, *swapped, outputs=OUTPUTS[op], hidden_size=HIDDEN, direction=direction)
    assert_close([y, *states], [expected.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in last)])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", GATES)
def test_lengths_are_sequences_cut_off(op: str, direction: str) -> None:
    """Each row is what the row alone gives, cut to its length; a length of 0 keeps the state."""
    inputs = _inputs(op, DIRECTIONS[direction])
    lengths = np.array([5, 0, 3], np.int32)
    inputs[4] = lengths
    results = run(op, *inputs, outputs=OUTPUTS[op], direction=direction)
    for row, length in enumerate(lengths):
        cut = [inputs[0][:length, row : row + 1], *inputs[1:4], None]
        cut += [a[:, row : row + 1] if a.ndim == 3 else a for a in inputs[5:]]
        y, *states = run(op, *cut, outputs=OUTPUTS[op], direction=direction)
        assert_close([results[0][:length, :, row]], [y[:, :, 0]])
        assert not results[0][length:, :, row].any()
        assert_close([state[:, row] for state in results[1:]], [state[:, 0] for state in states])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 1e-2)])
@pytest.mark.parametrize("op", GATES)
def test_narrow_floats_are_the_wide_result_rounded(op: str, dtype: Any, tolerance: float) -> None:
    inputs = _inputs(op, dtype=dtype)
    narrow = run(op, *inputs, version=22, outputs=OUTPUTS[op])
    wide = widened(op, *inputs, version=22, outputs=OUTPUTS[op])
    for n, w in zip(narrow, wide, strict=True):
        assert (n.dtype, w.dtype) == (dtype, np.float64)
        np.testing.assert_allclose(n.astype(np.float64), w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_lstm_step_by_step(clip: float | None) -> None:
    """The clip goes before every activation, as the text has it; ONNX Runtime leaves out the last one, h(C)."""
    x, w, r, b, _, h, c, p = (a.astype(np.float64) for a in _inputs("LSTM"))
    y, last, cell = run("LSTM", x, w, r, b, None, h, c, p, outputs=3, **({"clip": clip} if clip else {}))
    state, memory = h[0], c[0]
    peep_i, peep_o, peep_f = np.split(p[0], 3)

    def clipped(v: Array) -> Array:
        return np.clip(v, -clip, clip) if clip else v

    def sigmoid(v: Array) -> Array:
        return 1 / (1 + np.exp(-clipped(v)))

    for t in range(TIME):
        i, o, f, g = np.split(x[t] @ w[0].T + state @ r[0].T + b[0, : 4 * HIDDEN] + b[0, 4 * HIDDEN :], 4, axis=1)
        new = memory * sigmoid(f + peep_f * memory) + np.tanh(clipped(g)) * sigmoid(i + peep_i * memory)
        state, memory = np.tanh(clipped(new)) * sigmoid(o + peep_o * new), new
        np.testing.assert_allclose(y[t, 0], state, atol=1e-12)
    assert_close([last[0], cell[0]], [state, memory], atol=1e-12)


@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0)])
@pytest.mark.parametrize("op", GATES)
def test_empty(op: str, time: int, batch: int) -> None:
    inputs = [np.zeros((time, batch, SIZE), np.float32), *_inputs(op, optional=False)[1:]]
    y, *states = run(op, *inputs, outputs=OUTPUTS[op])
    assert y.shape == (time, 1, batch, HIDDEN)
    assert all(state.shape == (1, batch, HIDDEN) and not state.any() for state in states)


def test_large_gates_do_not_overflow() -> None:
    x = np.full((1, 1, 1), 1e4, np.float32)
    for sign in (1, -1):
        w, r = np.full((1, 4, 1), sign, np.float32), np.zeros((1, 4, 1), np.float32)
        assert all(np.isfinite(result).all() for result in run("LSTM", x, w, r, outputs=3))


def test_lengths_outside_are_refused() -> None:
    inputs = _inputs("GRU")
    inputs[4] = np.array([5, 6, 1], np.int32)
    with pytest.raises(InputError, match="between 0 and 5"):
        run("GRU", *inputs)


def test_open_dims_are_programs_over_input_dims() -> None:
    for op in GATES:
        built = build("opaque", op, *_inputs(op, 2), outputs=OUTPUTS[op], direction="bidirectional")
        assert unknown_dims(built.graph) == 0


def _with(index: int, *shape: int, op: str = "LSTM") -> list[Any]:
    inputs = _inputs(op)
    inputs[index] = np.zeros(shape, np.float32)
    return inputs


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("LSTM", _inputs("LSTM"), {"direction": "sideways"}, "direction"),
        ("LSTM", _inputs("LSTM"), {"direction": "bidirectional"}, "directions"),
        ("LSTM", _inputs("LSTM"), {"activations": ["Tanh"]}, "1 activations, expected 3"),
        ("LSTM", _inputs("LSTM"), {"activations": ["Tanh", "Gelu", "Tanh"]}, "Gelu"),
        ("LSTM", _inputs("LSTM"), {"hidden_size": 7}, "hidden size"),
        ("LSTM", _with(0, TIME, BATCH), {}, "input 0 has 2 axes"),
        ("LSTM", _with(1, 1, 23, SIZE), {}, "multiple of 4"),
        ("LSTM", _with(1, 1, 24, SIZE + 1), {}, "columns"),
        ("LSTM", _with(2, 1, 20, HIDDEN), {}, "recurrence"),
        ("LSTM", _with(3, 1, 24), {}, "bias"),
        ("LSTM", _with(5, 1, BATCH, 5), {}, "first state"),
        ("LSTM", _with(7, 1, 17), {}, "peepholes"),
    ],
)
def test_refusals(op: str, inputs: list[Any], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(InferError, match=message):
        build("closed", op, *inputs, **attrs)
