"""ONNX Runtime's ops: the cases that are checked against ONNX Runtime itself, decomposed in every form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.test_microsoft import CASES, GQA, MASKS, NARROW, gqa, lstm, with_inputs
from tests.rewrite.lowered import assert_equal, f, lowered, single, u8

from tierup.ir.ops.recurrent import ACTIVATION_DEFAULTS
from tierup.ir.types import Array
from tierup.rewrite.decompose import KEPT, reasons

Case = tuple[str, Sequence[Array | None], dict[str, Any], int]

CACHES = [np.cos(f(9, 8)), np.sin(f(9, 8))]
MORE: list[Case] = [
    ("ms.MultiHeadAttention", [f(2, 5, 4, 3, 4)], {"num_heads": 4}, 1),
    ("ms.MultiHeadAttention", [f(2, 5, 16), f(2, 7, 4, 2, 4)], {"num_heads": 4}, 3),
    ("ms.MultiHeadAttention", [f(2, 5, 16), f(2, 7, 16), f(2, 7, 24), None, MASKS[1]], {"num_heads": 4}, 1),
    ("ms.MultiHeadAttention", [f(2, 5, 16), f(2, 7, 16), f(2, 7, 24), None, MASKS[1][:, :1]], {"num_heads": 4}, 1),
    ("ms.GroupQueryAttention", gqa(2, 4, 9, (9, 6)), {**GQA, "causal": 0}, 3),
    ("ms.GroupQueryAttention", [*gqa(2, 3, 5, (8, 7)), *CACHES, np.array([[1, 2, 3], [0, 8, 5]])],
     {**GQA, "do_rotary": 1}, 3),
    ("ms.GroupQueryAttention", [*gqa(2, 5, 0, (5, 3)), *CACHES, np.array([2])], {**GQA, "do_rotary": 1}, 3),
    ("ms.FusedMatMul", [f(4), f(4)], {"alpha": 2.0}, 1),
    ("ms.MatMulNBits", [f(3, 64), u8(6, 2, 16), f(6, 2), None, np.arange(64, dtype=np.int32) % 2],
     {"K": 64, "N": 6, "block_size": 32}, 1),
    *(("ms.FusedConv", [f(1, 4, 9), f(6, 4, 3)], {"activation": name}, 1)
      for name in ("Affine", "Elu", "HardSwish", "ScaledTanh", "Sigmoid", "Softplus", "Softsign", "ThresholdedRelu")),
]  # fmt: skip
ALL: list[Case] = [(op, inputs, attrs, outputs) for op, inputs, attrs, outputs, _ in CASES if op not in KEPT] + MORE
# What may stay whole where its parameters, or the sizes of these, come with the call.
IN_THE_CALL = {
    "ms.Attention": "whether the mask holds ends alone, or starts too, is known only in the call",
    "ms.QAttention": "whether the mask holds ends alone, or starts too, is known only in the call",
    "ms.DynamicQuantizeLSTM": "its weights, scales or zero points are known only in the call",
    "ms.ExpandDims": "the place of the new axis is known only in the call",
    "ms.GatherND": "the length of its index tuples is known only in the call",
    "ms.GroupQueryAttention": "the longest sequence has a length that is known only in the call",
    "ms.Pad": "known only in the call",
    "ms.Range": "the step of a range is known only in the call, where it may be 0",
    "ms.RotaryEmbedding": "the number of heads is known only in the call|positions of rank 1 must be one number",
}


# The form of the sizes, and how many inputs behind the first are constants.
STYLES = {"constant": ("static", 17), "static": ("static", 0), "open": ("open", 0)}


@pytest.mark.parametrize(("op", "inputs", "attrs", "outputs"), ALL, ids=[f"{i}-{c[0]}" for i, c in enumerate(ALL)])
@pytest.mark.parametrize("style", STYLES)
def test_decomposed(op: str, inputs: Sequence[Array | None], attrs: dict[str, Any], outputs: int, style: str) -> None:
    # attributes are f32 in models; a number that is none would differ between the oracle in f64 and a constant
    attrs = {name: float(np.float32(value)) if isinstance(value, float) else value for name, value in attrs.items()}
    form, known = STYLES[style]
    graph, weights, feeds = single(op, inputs, form, outputs=outputs, constants=range(1, 1 + known), **attrs)
    whole = reasons(graph, weights)
    if whole and style != "constant":
        assert any(why in whole[0][1] for why in IN_THE_CALL[op].split("|"))
        return
    assert_equal(graph, lowered(graph, weights), weights, feeds)


@pytest.mark.parametrize("op", NARROW)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats(op: str, dtype: Any) -> None:
    for name, inputs, attrs, outputs in ALL:
        if name == op:
            narrow = [x.astype(dtype) if x is not None and x.dtype == np.float32 else x for x in inputs]
            graph, weights, feeds = single(op, narrow, outputs=outputs, constants=range(1, 18), **attrs)
            assert_equal(graph, lowered(graph, weights), weights, feeds)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_packed_weights_stay_small(bits: int, zeros: bool) -> None:
    """Each number is a byte, two with zero points of 8 bits, and not four."""
    packed, each = u8(256, 4, 16 * bits // 4), u8(256, 4 * bits // 8)
    inputs = [f(3, 128), packed, f(256, 4), *([each] if zeros else [])]
    graph, weights, feeds = single(
        "ms.MatMulNBits", inputs, constants=(1, 2, 3), K=128, N=256, block_size=32, bits=bits
    )
    after = lowered(graph, weights)
    assert_equal(graph, after, weights, feeds)
    sizes = sorted(weights[digest].nbytes for _, digest in after.weights)
    assert sizes[-1] == 128 * 256 * (2 if zeros and bits == 8 else 1)
    assert sizes[-2] <= 256 * 4 * 4
    assert [node.op for node in after.nodes] == ["core.matmul_blocks"]


def test_blocks_that_are_not_whole_stay_packed() -> None:
    packed = u8(64, 5, 16)
    inputs = [f(3, 140), packed, f(64, 5)]
    graph, weights, feeds = single("ms.MatMulNBits", inputs, constants=(1, 2), K=140, N=64, block_size=32)
    after = lowered(graph, weights)
    assert_equal(graph, after, weights, feeds)
    assert max(weights[digest].nbytes for _, digest in after.weights) == packed.nbytes


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("function", ACTIVATION_DEFAULTS)
def test_functions_and_lengths_of_a_quantised_lstm(function: str, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = with_inputs(lstm(directions), i4=np.array([4, 0, 2], np.int32), i7=f(directions, 18))
    attrs = {
        "hidden_size": 6,
        "direction": direction,
        "clip": 2.5,
        "activations": (function, "Tanh", "Relu") * directions,
    }
    graph, weights, feeds = single(
        "ms.DynamicQuantizeLSTM", inputs, "open", outputs=3, constants=(1, 2, *range(7, 12)), **attrs
    )
    after = lowered(graph, weights)
    assert_equal(graph, after, weights, feeds)
    assert [node.op for node in after.nodes if not node.op.startswith("core.")] == ["onnx.Scan"] * directions


def test_the_rest_is_kept() -> None:
    assert {op for op, *_ in CASES} & set(KEPT) == {
        "ms.Inverse",
        "ms.NGramRepeatBlock",
    }
