"""ONNX Runtime's own ops against ONNX Runtime itself, and their type rules against what comes out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from tests.oracle import cases

from tierup.ir.dims import DimBuilder, DimError, DimOp
from tierup.ir.graph import Attr
from tierup.ir.infer import InferError, Out
from tierup.ir.ops import Op, matrix, quant, signal
from tierup.ir.ops.microsoft import OPS
from tierup.ir.types import Array, DType, Sym, TensorType

RNG = np.random.default_rng(7)


def f(*shape: int, scale: float = 1.0) -> Array:
    return np.asarray(RNG.standard_normal(shape) * scale, np.float32)


def u8(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def s(value: float) -> Array:
    return np.array(value, np.float32)


def z(value: int, dtype: Any = np.uint8) -> Array:
    return np.array(value, dtype)


def i32(*values: int) -> Array:
    return np.array(values, np.int32)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def run(op: str, inputs: Sequence[Array | None], attrs: dict[str, Any], outputs: int) -> list[Array]:
    return cases.run(op, *inputs, outputs=outputs, **attrs)


X3 = f(2, 5, 16)
HEADS4 = [f(2, 5, 16), f(2, 7, 16), f(2, 7, 24)]
LSTM = {"hidden_size": 6}


def lstm(directions: int, *, per_channel: bool = False, dtype: Any = np.int8) -> list[Array | None]:
    make = i8 if dtype == np.int8 else u8
    w, r = make(directions, 5, 24), make(directions, 6, 24)
    shape = (directions, 24) if per_channel else (directions,)
    scales = [np.abs(f(*shape, scale=0.003)) + np.float32(0.001) for _ in range(2)]
    zero = np.full(shape, 0 if dtype == np.int8 else 128, dtype)
    return [f(4, 3, 5), w, r, f(directions, 48, scale=0.1), None, None, None, None, scales[0], zero, scales[1], zero]


def with_inputs(inputs: list[Array | None], **given: Array) -> list[Array | None]:
    return [given.get(f"i{i}", array) for i, array in enumerate(inputs)]


def gqa(batch: int, length: int, past: int, ends: Sequence[int], heads: int = 4, groups: int = 2) -> list[Array | None]:
    """Queries, keys, values, cache, ends, total; head size 16."""
    cache = [f(batch, groups, past, 16), f(batch, groups, past, 16)] if past else [None, None]
    total = max(ends)
    qkv = [f(batch, length, heads * 16), f(batch, length, groups * 16), f(batch, length, groups * 16)]
    return [*qkv, *cache, np.array(ends, np.int32) - 1, np.array([total], np.int32)]


GQA = {"num_heads": 4, "kv_num_heads": 2}
COS, SIN = np.cos(f(12, 8)), np.sin(f(12, 8))
EMBED = [
    RNG.integers(0, 9, (2, 4)).astype(np.int32), RNG.integers(0, 2, (2, 4)).astype(np.int32), f(9, 8), f(6, 8), f(2, 8),
    f(8), f(8),
]  # fmt: skip
QEMBED: list[Array | None] = [
    EMBED[0], EMBED[1], u8(9, 8), u8(6, 8), u8(2, 8), u8(8), u8(8), i32(1, 1, 0, 0, 1, 1, 1, 0).reshape(2, 4),
    s(0.01), s(0.02), s(0.03), s(0.04), s(0.05), z(128), z(127), z(129), z(120), z(130),
]  # fmt: skip

# op, inputs, attributes, number of outputs, absolute tolerance (integers: how far rounding may differ)
CASES: list[tuple[str, list[Array | None], dict[str, Any], int, float]] = [
    ("ms.DynamicQuantizeLSTM", lstm(1), LSTM, 3, 1e-5),
    ("ms.DynamicQuantizeLSTM", lstm(2, per_channel=True), {**LSTM, "direction": "bidirectional"}, 3, 1e-5),
    ("ms.DynamicQuantizeLSTM", lstm(1, dtype=np.uint8), {**LSTM, "direction": "reverse"}, 3, 1e-5),
    ("ms.DynamicQuantizeLSTM", with_inputs(lstm(1), i5=f(1, 3, 6), i6=f(1, 3, 6), i7=f(1, 18)), LSTM, 3, 1e-5),
    ("ms.QLinearAdd", [u8(3, 4), s(0.1), z(3), u8(4), s(0.2), z(7), s(0.25), z(9)], {}, 1, 1),
    ("ms.QLinearAdd", [i8(3, 4), s(0.1), z(0, np.int8), i8(3, 4), s(0.2), z(7, np.int8), s(0.25)], {}, 1, 1),
    ("ms.QLinearMul", [u8(3, 4), s(0.1), z(3), u8(4), s(0.2), z(7), s(2.5), z(90)], {}, 1, 1),
    ("ms.QLinearConcat", [s(0.2), z(5), u8(2, 3), s(0.2), z(5), u8(2, 4), s(0.1), z(9)], {"axis": -1}, 1, 1),
    ("ms.QLinearAveragePool", [u8(2, 3, 6, 7), s(0.1), z(10), s(0.12), z(20)],
     {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}, 1, 1),
    ("ms.QLinearAveragePool", [u8(2, 6, 7, 3), s(0.1), z(10), s(0.12), z(20)],
     {"kernel_shape": (3, 2), "channels_last": 1, "pads": (1, 0, 1, 1), "count_include_pad": 1}, 1, 1),
    ("ms.QLinearGlobalAveragePool", [u8(2, 3, 6, 7), s(0.1), z(10), s(0.05), z(20)], {}, 1, 1),
    ("ms.QLinearGlobalAveragePool", [i8(2, 6, 7, 3), s(0.1), z(10, np.int8), s(0.05), z(2, np.int8)],
     {"channels_last": 1}, 1, 1),
    ("ms.QLinearLeakyRelu", [u8(3, 50), s(0.1), z(128), s(0.1), z(50)], {"alpha": 0.1}, 1, 1),
    ("ms.QLinearSigmoid", [i8(3, 50), s(0.05), z(3, np.int8), s(1 / 256), z(-128, np.int8)], {}, 1, 1),
    ("ms.QLinearSoftmax", [u8(3, 10), s(0.05), z(3), s(1 / 256), z(0)], {"opset": 13, "axis": -1}, 1, 1),
    ("ms.QLinearSoftmax", [i8(2, 3, 5), s(0.05), z(3, np.int8), s(1 / 256), z(-128, np.int8)],
     {"opset": 11, "axis": 1}, 1, 1),
    ("ms.QLinearSoftmax", [u8(2, 3, 5), s(0.05), z(3), s(1 / 256), z(0)], {"opset": 13, "axis": 1}, 1, 1),
    ("ms.QLinearWhere", [RNG.random((3, 4)) < 0.5, u8(3, 4), s(0.1), z(3), u8(4), s(0.2), z(7), s(0.2), z(9)],
     {}, 1, 1),
    ("ms.QLinearConv", [u8(1, 6, 7, 4), s(0.1), z(110), i8(5, 4, 3, 3), s(0.02), z(0, np.int8), s(0.9), z(128)],
     {"channels_last": 1, "pads": (1, 1, 1, 1)}, 1, 1),
    ("ms.QLinearConv", [u8(1, 4, 6, 7), s(0.1), z(110), i8(6, 2, 3, 3), np.full(6, 0.02, np.float32),
                        np.zeros(6, np.int8), s(0.9), z(128), i32(*range(6))], {"group": 2}, 1, 1),
    ("ms.FusedConv", [f(1, 4, 6, 7), f(6, 2, 3, 3), f(6)], {"group": 2, "activation": "Relu"}, 1, 1e-5),
    ("ms.FusedConv", [f(1, 4, 6, 7), f(6, 4, 1, 1), f(6), f(1, 6, 6, 7)], {"activation": "Tanh"}, 1, 1e-5),
    ("ms.FusedConv", [f(1, 4, 6, 7), f(6, 4, 3, 3)],
     {"pads": (1, 1, 1, 1), "activation": "Clip", "activation_params": (-0.5, 3.0)}, 1, 1e-5),
    ("ms.FusedConv", [f(1, 4, 9), f(6, 4, 3)], {"activation": "LeakyRelu", "activation_params": (0.3,)}, 1, 1e-5),
    ("ms.FusedConv", [f(1, 4, 9), f(6, 4, 3)], {"activation": "HardSigmoid", "activation_params": (0.3, 0.4)}, 1, 1e-5),
    ("ms.FusedConv", [f(1, 4, 9), f(6, 4, 3)], {}, 1, 1e-5),
    ("ms.FusedMatMul", [f(2, 3, 4), f(2, 5, 3)], {"transA": 1, "transB": 1, "alpha": 0.5}, 1, 1e-5),
    ("ms.FusedMatMul", [f(3, 2, 4), f(2, 4, 5)], {"transBatchA": 1}, 1, 1e-5),
    ("ms.FusedMatMul", [f(2, 6, 3, 4), f(4, 2, 6, 5)], {"transBatchB": 1}, 1, 1e-5),
    ("ms.FusedMatMul", [f(4), f(4, 5)], {}, 1, 1e-5),
    ("ms.TransposeMatMul", [f(4, 3), f(4, 5)], {"transA": 1}, 1, 1e-5),
    ("ms.FusedGemm", [f(3, 4), f(5, 4), f(5)], {"transB": 1, "alpha": 0.5, "beta": 2.0, "activation": "Relu"}, 1, 1e-5),
    ("ms.FusedGemm", [f(3, 4), f(4, 5)], {"activation": "LeakyRelu", "activation_alpha": 0.2}, 1, 1e-5),
    ("ms.Gelu", [f(3, 50, scale=3)], {}, 1, 1e-5),
    ("ms.BiasGelu", [f(3, 5, 8), f(8)], {}, 1, 1e-5),
    ("ms.FastGelu", [f(3, 5, 8, scale=3), f(8)], {}, 1, 1e-5),
    ("ms.FastGelu", [f(3, 5, 8)], {}, 1, 1e-5),
    ("ms.QuickGelu", [f(3, 5, 8)], {"alpha": 1.2}, 1, 1e-5),
    ("ms.SkipLayerNormalization", [X3, f(2, 5, 16), f(16), f(16), f(16)], {"epsilon": 1e-5}, 1, 1e-4),
    ("ms.SkipLayerNormalization", [X3, f(5, 16), f(16)], {"epsilon": 1e-5}, 1, 1e-4),
    ("ms.SkipSimplifiedLayerNormalization", [X3, f(2, 5, 16), f(16), f(16)], {"epsilon": 1e-5}, 1, 1e-4),
    ("onnx.SimplifiedLayerNormalization", [X3, f(16)], {"epsilon": 1e-5}, 1, 1e-4),
    ("onnx.SimplifiedLayerNormalization", [X3, f(5, 16)], {"axis": 1}, 1, 1e-4),
    ("ms.EmbedLayerNormalization", EMBED, {"epsilon": 1e-5}, 3, 1e-4),
    ("ms.EmbedLayerNormalization",
     [EMBED[0], None, EMBED[2], EMBED[3], None, EMBED[5], EMBED[6], i32(1, 1, 0, 0, 1, 1, 1, 0).reshape(2, 4),
      i32(3, 2, 1, 0).reshape(1, 4)], {}, 2, 1e-4),
    ("ms.QEmbedLayerNormalization", QEMBED, {"epsilon": 1e-5}, 2, 1e-4),
    ("ms.Attention", [X3, f(16, 48, scale=0.3), f(48)], {"num_heads": 4}, 1, 1e-5),
    ("ms.Attention", [X3, f(16, 48, scale=0.3), f(48), i32(3, 5)], {"num_heads": 4}, 2, 1e-5),
    ("ms.Attention", [X3, f(16, 48, scale=0.3), f(48), i32(4, 5, 1, 2)], {"num_heads": 4}, 1, 1e-5),
    ("ms.Attention", [X3, f(16, 48, scale=0.3), f(48), RNG.integers(0, 2, (2, 8)).astype(np.int32), f(2, 2, 4, 3, 4)],
     {"num_heads": 4, "unidirectional": 1}, 2, 1e-5),
    ("ms.Attention", [X3, f(16, 40, scale=0.3), f(40), RNG.integers(0, 2, (2, 5, 5)).astype(np.int32), None,
                      f(1, 4, 5, 5)],
     {"num_heads": 4, "qkv_hidden_sizes": (16, 16, 8), "scale": 0.7, "mask_filter_value": -50.0}, 1, 1e-5),
    ("ms.QAttention", [u8(2, 5, 16), i8(16, 48), f(48), s(0.01), s(0.01), i32(3, 5), z(128), z(0, np.int8)],
     {"num_heads": 4}, 1, 1e-4),
    ("ms.QAttention", [u8(2, 5, 16), i8(16, 48), f(48), s(0.01), np.full(48, 0.01, np.float32), None, z(128),
                       np.zeros(48, np.int8), f(2, 2, 4, 3, 4)],
     {"num_heads": 4, "unidirectional": 1}, 2, 1e-4),
    ("ms.MultiHeadAttention", [*HEADS4], {"num_heads": 4}, 1, 1e-5),
    ("ms.MultiHeadAttention", [*HEADS4, f(56), RNG.integers(0, 2, (2, 7)).astype(np.int32), f(1, 4, 5, 7)],
     {"num_heads": 4, "scale": 0.2}, 4, 1e-5),
    ("ms.MultiHeadAttention", [X3, f(2, 5, 16), f(2, 5, 16), None, None, None, f(2, 4, 3, 4), f(2, 4, 3, 4)],
     {"num_heads": 4, "unidirectional": 1}, 3, 1e-5),
    ("ms.MultiHeadAttention", [X3, f(2, 4, 7, 4), f(2, 4, 7, 4)], {"num_heads": 4}, 1, 1e-5),
    ("ms.GroupQueryAttention", gqa(2, 5, 0, (5, 3)), GQA, 3, 1e-5),
    ("ms.GroupQueryAttention", gqa(1, 3, 6, (9,)), {**GQA, "softcap": 5.0, "scale": 0.3}, 3, 1e-5),
    ("ms.GroupQueryAttention", [*gqa(2, 1, 7, (8, 5)), COS, SIN], {**GQA, "do_rotary": 1}, 3, 1e-5),
    ("ms.GroupQueryAttention", [*gqa(2, 5, 0, (5, 5)), COS, SIN],
     {**GQA, "do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 2}, 3, 1e-5),
    ("ms.GroupQueryAttention", [f(1, 4, 8 * 16), None, None, *gqa(1, 4, 3, (7,))[3:], None, None, None,
                                f(1, 4, 4, 7), f(4)], GQA, 3, 1e-5),
    ("ms.GroupQueryAttention", gqa(1, 3, 6, (9,)), {**GQA, "smooth_softmax": 1, "qk_output": 2}, 4, 1e-5),
    ("ms.RotaryEmbedding", [f(2, 4, 3, 16), i64(0, 1, 2, 5, 6, 7).reshape(2, 3), COS, SIN], {}, 1, 1e-5),
    ("ms.RotaryEmbedding", [f(2, 3, 32), i64(4), COS, SIN], {"interleaved": 1}, 1, 1e-5),
    ("ms.RotaryEmbedding", [f(2, 3, 64), i64(4), COS, SIN], {"num_heads": 2, "rotary_embedding_dim": 16}, 1, 1e-5),
    ("ms.MatMulNBits", [f(2, 3, 40), u8(6, 3, 8), f(6, 3)], {"K": 40, "N": 6, "block_size": 16}, 1, 2e-4),
    ("ms.MatMulNBits", [f(2, 3, 40), u8(6, 3, 8), f(6, 3), u8(6, 2), None, f(6)],
     {"K": 40, "N": 6, "block_size": 16}, 1, 2e-4),
    ("ms.MatMulNBits", [f(3, 64), u8(6, 2, 32), f(6, 2), u8(6, 2)],
     {"K": 64, "N": 6, "block_size": 32, "bits": 8}, 1, 3e-3),
    ("ms.MatMulNBits", [f(3, 64), u8(6, 2, 8), f(6, 2), u8(6, 1)],
     {"K": 64, "N": 6, "block_size": 32, "bits": 2}, 1, 2e-4),
    ("ms.MatMulNBits", [f(3, 64), u8(6, 2, 16), f(6, 2), f(6, 2)],
     {"K": 64, "N": 6, "block_size": 32}, 1, 2e-4),
    ("ms.MatMulBnb4", [f(3, 32), u8(6 * 16), np.abs(f(12))],
     {"K": 32, "N": 6, "block_size": 16, "quant_type": 1}, 1, 1e-5),
    ("ms.MatMulBnb4", [f(3, 32), u8(6 * 16), np.abs(f(12))],
     {"K": 32, "N": 6, "block_size": 16, "quant_type": 0}, 1, 1e-5),
    ("ms.MatMulIntegerToFloat", [u8(2, 3, 8), i8(8, 5), s(0.1), s(0.2), z(9), z(0, np.int8), f(5)], {}, 1, 1e-3),
    ("ms.MatMulIntegerToFloat", [u8(3, 8), u8(8, 5), s(0.1), np.abs(f(5)), z(9), u8(5)], {}, 1, 1e-2),
    ("ms.DynamicQuantizeMatMul", [f(2, 3, 8), i8(8, 5), s(0.02), z(0, np.int8), f(5)], {}, 1, 1e-4),
    ("ms.DynamicQuantizeMatMul", [f(3, 8), u8(8, 5), np.abs(f(5, scale=0.01)), u8(5)], {}, 1, 1e-4),
    ("ms.QuantizeLinear", [f(3, 5, scale=20), s(0.3), z(77)], {}, 1, 0),
    ("ms.QuantizeLinear", [f(3, 5, scale=20), np.abs(f(3)), i8(3)], {"axis": 0}, 1, 0),
    ("ms.DequantizeLinear", [u8(3, 5), s(0.3), z(77)], {}, 1, 1e-5),
    ("ms.DequantizeLinear", [RNG.integers(-999, 999, (3, 5)).astype(np.int16), s(0.3), z(77, np.int16)], {}, 1, 1e-4),
    ("ms.QGemm", [u8(3, 4), s(0.1), z(9), i8(5, 4), s(0.2), z(0, np.int8), i32(1, 2, 3, 4, 5), s(3.0), z(100)],
     {"transB": 1, "alpha": 0.7}, 1, 1),
    ("ms.QGemm", [u8(4, 3), s(0.1), z(9), i8(4, 5), np.abs(f(5)), np.zeros(5, np.int8)], {"transA": 1}, 1, 1e-2),
    ("ms.GatherBlockQuantized", [u8(7, 16), i64(0, 3, 6).reshape(1, 3), f(7, 2), u8(7, 1)], {"block_size": 16},
     1, 1e-4),
    ("ms.GatherBlockQuantized", [u8(7, 16), i64(2), f(7, 2)], {"block_size": 16}, 1, 1e-4),
    ("ms.NhwcMaxPool", [u8(2, 6, 7, 3)], {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1), "strides": (2, 1)}, 1, 0),
    ("ms.MatMulInteger16", [i32(*range(-6, 6)).reshape(3, 4).astype(np.int16), np.full((4, 2), 999, np.int16)],
     {}, 1, 0),
    ("ms.CDist", [f(4, 3), f(5, 3)], {}, 1, 1e-5),
    ("ms.CDist", [f(4, 3), f(5, 3)], {"metric": "euclidean"}, 1, 1e-4),
    ("ms.ExpandDims", [f(2, 3), z(-1, np.int32)], {}, 1, 0),
    ("ms.GatherND", [f(2, 3, 4), i64(0, 1, 1, 2).reshape(2, 2)], {}, 1, 0),
    ("ms.GridSample", [f(1, 2, 4, 5), np.clip(f(1, 3, 3, 2), -1, 1)], {"align_corners": 1}, 1, 1e-5),
    ("ms.Inverse", [f(2, 3, 3) + 3 * np.eye(3, dtype=np.float32)], {}, 1, 1e-5),
    ("ms.NGramRepeatBlock", [i64(1, 2, 3, 1, 2, 4, 4, 4, 4, 4).reshape(2, 5), f(2, 6)], {"ngram_size": 3}, 1, 0),
    ("ms.Pad", [f(2, 3), i64(0, 1, 2, 0), f(1)], {}, 1, 0),
    ("ms.Range", [z(3, np.int64), z(9, np.int64), z(2, np.int64)], {}, 1, 0),
    ("ms.Range", [s(0.5), s(4.0)], {}, 1, 0),
    ("ms.Trilu", [f(2, 3, 4), z(1, np.int64)], {"upper": 0}, 1, 0),
    ("ms.Unique", [np.array([3, 1, 3, 2, 1], np.float32)], {}, 3, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "outputs", "atol"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_matches_onnxruntime(
    op: str, inputs: list[Array | None], attrs: dict[str, Any], outputs: int, atol: float
) -> None:
    results = run(op, inputs, attrs, outputs)
    expected = cases.from_onnxruntime(op, *inputs, version=1 if op.startswith("ms.") else 17, like=results, **attrs)
    cases.assert_close(results, expected, rtol=1e-4 if atol < 1 else 0, atol=atol)


NARROW = [
    "ms.Gelu", "ms.FastGelu", "ms.BiasGelu", "ms.SkipSimplifiedLayerNormalization", "onnx.SimplifiedLayerNormalization",
    "ms.GroupQueryAttention", "ms.MultiHeadAttention", "ms.Attention", "ms.RotaryEmbedding", "ms.MatMulNBits",
    "ms.FusedMatMul", "ms.EmbedLayerNormalization", "ms.GatherBlockQuantized",
]  # fmt: skip


@pytest.mark.parametrize("op", NARROW)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_round_the_result_only(op: str, dtype: Any) -> None:
    """Inputs rounded to a narrow type give what the same numbers give in f32, rounded."""
    for name, inputs, attrs, outputs, _ in CASES:
        if name == op:
            narrow = [x.astype(dtype) if x is not None and x.dtype == np.float32 else x for x in inputs]
            same = [x.astype(np.float32) if x is not None and x.dtype == dtype else x for x in narrow]
            for mine, wide in zip(run(op, narrow, attrs, outputs), run(op, same, attrs, outputs), strict=True):
                assert mine.dtype == (dtype if wide.dtype == np.float32 else wide.dtype)
                np.testing.assert_array_equal(mine, wide.astype(mine.dtype))


def test_every_op_is_checked() -> None:
    assert {row.name for row in OPS} == {case[0] for case in CASES}


def test_signatures_are_those_of_onnxruntime() -> None:
    """Arity, attributes, defaults and which are required, for every row."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {
        ("ms" if schema.domain == "com.microsoft" else "onnx") + f".{schema.name}": schema
        for schema in state.get_all_operator_schema()
        if schema.domain in ("com.microsoft", "")
    }
    for row in OPS:
        schema, signature = schemas[row.name], row.signature
        assert signature is not None
        assert signature.inputs == (schema.min_input, schema.max_input), row.name
        assert signature.outputs == (schema.min_output, schema.max_output), row.name
        defaults = {name: default_of(attribute) for name, attribute in schema.attributes.items()}
        required = {name for name, attribute in schema.attributes.items() if attribute.required}
        assert set(signature.required) == required, row.name
        assert dict(signature.defaults) == {n: v for n, v in defaults.items() if v is not None}, row.name
        assert set(signature.optional) == {n for n, v in defaults.items() if v is None} - required, row.name


def default_of(attribute: Any) -> Any:
    proto = onnx.AttributeProto()
    proto.ParseFromString(attribute._default_value)
    value = helper.get_attribute_value(proto) if proto.type else None
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("style", ["static", "opaque"])
def test_key_lengths_mask_like_zeros_and_ones(style: str) -> None:
    """A key mask of lengths says the same as one of ones and zeros."""
    lengths, ones = (
        cases.one("ms.MultiHeadAttention", *HEADS4, None, mask, styles=(style,), num_heads=4) for mask in MASKS
    )
    np.testing.assert_array_equal(lengths, ones)


MASKS = (i32(4, 7), (np.arange(7) < np.array([[4], [7]])).astype(np.int32))


def test_packed_heads_are_those_that_come_apart() -> None:
    packed = f(2, 5, 4, 3, 4)
    q, k, v = (packed[:, :, :, i].reshape(2, 5, 16) for i in range(3))
    (together,) = run("ms.MultiHeadAttention", [packed], {"num_heads": 4}, 1)
    (apart,) = run("ms.MultiHeadAttention", [q, k, v], {"num_heads": 4}, 1)
    np.testing.assert_allclose(together, apart, rtol=1e-6)


REFUSED: list[tuple[str, list[Array | None], dict[str, Any]]] = [
    ("ms.Attention", [X3, f(16, 48)], {"num_heads": 0}),
    ("ms.Attention", [X3, f(16, 48)], {"num_heads": 4, "do_rotary": 1}),
    ("ms.Attention", [X3, f(16, 48)], {"num_heads": 4, "qkv_hidden_sizes": (16,)}),
    ("ms.MultiHeadAttention", [X3, X3], {"num_heads": 4}),
    ("ms.GroupQueryAttention", gqa(1, 3, 6, (9,)), {**GQA, "kv_num_heads": 3}),
    ("ms.GroupQueryAttention", gqa(1, 3, 6, (9,)), {**GQA, "k_quant_type": "PER_TENSOR"}),
    ("ms.QLinearConcat", [s(0.2), z(5), u8(2, 3), s(0.2)], {"axis": 0}),
    ("ms.FusedConv", [f(1, 4, 9), f(6, 4, 3)], {"activation": "Fancy"}),
    ("ms.FusedMatMul", [f(2, 3), f(2, 3)], {}),
    ("ms.MatMulNBits", [f(3, 64), u8(6, 2, 16), f(6, 2)], {"K": 64, "N": 6, "block_size": 32, "bits": 3}),
    ("ms.MatMulNBits", [f(3, 63), u8(6, 2, 16), f(6, 2)], {"K": 64, "N": 6, "block_size": 32}),
    ("ms.DynamicQuantizeLSTM", lstm(1), {**LSTM, "direction": "sideways"}),
    ("ms.CDist", [f(4, 3), f(5, 3)], {"metric": "cosine"}),
    ("ms.NGramRepeatBlock", [i64(1, 2).reshape(1, 2), f(1, 6)], {"ngram_size": 0}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), REFUSED)
def test_refuses(op: str, inputs: list[Array | None], attrs: dict[str, Any]) -> None:
    with pytest.raises(InferError):
        cases.build("static", op, *inputs, **attrs)


def random_type(rng: random.Random) -> TensorType:
    shape = tuple(rng.choice((0, 1, 2, 3, 4, 8, Sym(0), Sym(1))) for _ in range(rng.randrange(6)))
    return TensorType(rng.choice((DType.F32, DType.U8, DType.I8, DType.I64)), rng.choice((shape, shape, None)))


def random_attr(rng: random.Random, name: str) -> Attr:
    if name in ("update_rule", "equation", "activation", "direction", "metric", "mode", "auto_pad", "padding_mode"):
        return rng.choice(("", "linear", "ij,jk", "...i", "Relu", "forward", "constant", "VALID"))
    if name in (*("pads", "strides", "dilations", "kernel_shape"), "qkv_hidden_sizes", "activation_params"):
        return tuple(rng.randrange(-1, 4) for _ in range(rng.randrange(5)))
    return rng.randrange(-3, 9)


SCALARS = {"activations": (), "activation_alpha": (), "activation_beta": ()}


@pytest.mark.parametrize("row", [*OPS, *matrix.OPS, *signal.OPS, *quant.OPS], ids=lambda row: row.name)
def test_rules_answer_or_refuse(row: Op) -> None:
    """Whatever comes in, a rule gives types or one of its two errors: models are not to be trusted."""
    rng = random.Random(row.name)
    for _ in range(300):
        if row.signature is None:
            schema = cases.schema(row.name)
            names, most = tuple(schema.attributes), min(schema.max_input, 9)
        else:
            sides = row.signature
            names, most = (*sides.defaults, *sides.optional, *sides.required), min(sides.inputs[1], 18)
        inputs = tuple(rng.choice((random_type(rng), random_type(rng), None)) for _ in range(rng.randrange(most + 1)))
        dims = DimBuilder([DimOp("of", (0, 0)), DimOp("of", (0, 1))])
        attrs = {name: SCALARS.get(name, random_attr(rng, name)) for name in names}
        try:
            results = cases.infer(row.name, *inputs, builder=dims, **attrs)
        except (InferError, DimError):
            continue
        assert all(isinstance(result, Out) for result in results)
