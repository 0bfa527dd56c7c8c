"""Matrix products and attention: against NumPy in f64, `onnx.reference`, and attention written out row by row."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import close, from_onnx, infer, one, run

from tierup.errors import InputError
from tierup.ir.build import GraphBuilder
from tierup.ir.dims import DimError
from tierup.ir.graph import Attrs, Weights
from tierup.ir.infer import InferError
from tierup.ir.ops.matrix import parse_einsum
from tierup.ir.types import Array, DType
from tierup.reference.evaluate import evaluate
from tierup.reference.matrix import matmul

RNG = np.random.default_rng(3)
FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


def f(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(RNG.standard_normal(shape)).astype(dtype)


SHAPES = [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 1, 3, 4), (6, 4, 5)), ((2, 3, 4), (4, 5)),
    ((3, 0), (0, 5)), ((0, 4), (4, 5)), ((2, 0, 3, 4), (4, 1)), ((1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    a, b = f(*left, dtype=dtype), f(*right, dtype=dtype)
    close(one("MatMul", a, b), a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("top", [9, 2**31 - 1])
def test_integer_matmul_wraps_and_is_exact(dtype: Any, top: int) -> None:
    a, b = RNG.integers(0, top, (3, 7)).astype(dtype), RNG.integers(0, top, (7, 4)).astype(dtype)
    exact = np.array([[sum(int(x) * int(y) for x, y in zip(r, c, strict=True)) for c in b.T] for r in a], object)
    np.testing.assert_array_equal(one("MatMul", a, b), (exact % 2**64).astype(np.uint64).astype(dtype))


@pytest.mark.parametrize("shapes", [((3, 4), (5, 6)), ((), (3,)), ((2, 3, 4), (3, 4, 5))])
def test_matmul_refuses(shapes: Any) -> None:
    with pytest.raises((InferError, DimError)):
        infer("MatMul", *((DType.F32, shape) for shape in shapes))


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32])
@pytest.mark.parametrize("turn", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("addend", [None, (), (5,), (3, 1), (3, 5)])
def test_gemm(dtype: Any, turn: tuple[int, int], addend: tuple[int, ...] | None) -> None:
    a, b = (f(3, 4) * 4).astype(dtype), (f(4, 5) * 4).astype(dtype)
    c = None if addend is None else (f(*addend) * 4).astype(dtype)
    given = [a.T if turn[0] else a, b.T if turn[1] else b, *([] if c is None else [c])]
    exact = 2 * (a.astype(np.float64) @ b.astype(np.float64)) + 3 * (0 if c is None else c.astype(np.float64))
    result = one("Gemm", *given, alpha=2.0, beta=3.0, transA=turn[0], transB=turn[1])
    if dtype == np.int32:
        np.testing.assert_array_equal(result, exact)
    else:
        close(result, exact, scale=20)


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm_versions(opset: int) -> None:
    a, b, c = f(3, 0), f(0, 5), f(5)
    close(one("Gemm", a, b, c, version=opset), np.broadcast_to(c, (3, 5)))


def test_gemm_does_not_grow_with_its_addend() -> None:
    with pytest.raises(InputError):
        one("Gemm", f(1, 4), f(4, 5), f(3, 5))


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4, 4), (0, 2, 2), (1, 1), (2, 0, 0)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_det(shape: tuple[int, ...], dtype: Any) -> None:
    x = f(*shape, dtype=dtype)
    close(one("Det", x), np.linalg.det(x.astype(np.float64)), ulps=64, scale=4)


EQUATIONS = [
    ("ij,jk->ik", [(3, 4), (4, 5)]),
    ("ij,jk", [(3, 4), (4, 5)]),
    ("ba", [(3, 4)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (6, 4, 5)]),
    ("...i -> ...", [(2, 3)]),
    ("...ij,jk", [(2, 3, 4), (4, 5)]),
    ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("i,j,k->kji", [(2,), (3,), (4,)]),
    ("ij->", [(0, 3)]),
    ("ij,ij->ij", [(3, 1), (3, 4)]),
    ("Aa,aB->BA", [(3, 4), (4, 5)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int32])
def test_einsum(equation: str, shapes: list[tuple[int, ...]], dtype: Any) -> None:
    inputs = [(f(*shape) * 3).astype(dtype) for shape in shapes]
    exact = np.einsum(equation.replace(" ", ""), *(x.astype(np.float64) for x in inputs))
    result = one("Einsum", *inputs, equation=equation)
    if dtype == np.int32:
        np.testing.assert_array_equal(result, exact)
    else:
        close(result, exact, scale=10)


def test_einsum_sums_an_ellipsis_that_the_output_leaves_out() -> None:
    x = f(2, 3, 4)
    close(one("Einsum", x, equation="...i->i"), x.sum(axis=(0, 1)), scale=10)


@pytest.mark.parametrize("equation", ["i1->i", "ij->ik", "i->ii", "i...j...->i", "->->", "a" * 99])
def test_einsum_refuses_equations(equation: str) -> None:
    with pytest.raises(InferError):
        parse_einsum(equation)


@pytest.mark.parametrize(("equation", "rank"), [("ij->i", 1), ("ij->i", 3), ("ij,jk->ik", 2), ("...ijk->i", 2)])
def test_einsum_refuses_inputs_that_do_not_fit(equation: str, rank: int) -> None:
    with pytest.raises(InferError):
        infer("Einsum", (DType.F32, (2,) * rank), equation=equation)


def naive_attention(q: Array, k: Array, v: Array, allowed: Any, added: Any, scale: float, cap: float) -> Array:
    """One query at a time, in f64: `allowed(b, h, i, j)` says which keys count, `added` what their scores gain."""
    result = np.zeros((*q.shape[:3], v.shape[3]))
    group = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys = [j for j in range(k.shape[2]) if allowed(b, h, i, j)]
        if keys:
            rows = k[b, h // group, keys].astype(np.float64)
            scores = rows @ q[b, h, i].astype(np.float64) * scale
            scores = cap * np.tanh(scores / cap) if cap else scores
            scores = scores + np.array([added(b, h, i, j) for j in keys])
            weights = np.exp(scores - scores.max())
            result[b, h, i] = weights / weights.sum() @ v[b, h // group, keys].astype(np.float64)
    return result


def no_mask(*_: int) -> float:
    return 0.0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0), (1, 1)])
def test_attention_with_groups_past_and_windows(dtype: Any, causal: int, cap: float, window: tuple[int, int]) -> None:
    q, k, v = f(2, 4, 3, 8, dtype=dtype), f(2, 2, 3, 8, dtype=dtype), f(2, 2, 3, 6, dtype=dtype)
    past_k, past_v, mask = f(2, 2, 2, 8, dtype=dtype), f(2, 2, 2, 6, dtype=dtype), f(2, 1, 3, 5, dtype=dtype)
    results = run(
        "Attention", q, k, v, mask, past_k, past_v, version=25, outputs=4, is_causal=causal, softcap=cap, scale=0.3,
        left_window_size=window[0], right_window_size=window[1], qk_matmul_output_mode=3,
    )  # fmt: skip

    def allowed(b: int, h: int, i: int, j: int) -> bool:
        ahead = j - (i + 2)
        return (
            (not causal or ahead <= 0)
            and (window[0] < 0 or -ahead <= window[0])
            and (window[1] < 0 or ahead <= window[1])
        )

    keys, values = np.concatenate((past_k, k), 2), np.concatenate((past_v, v), 2)
    exact = naive_attention(q, keys, values, allowed, lambda b, h, i, j: mask[b, 0, i, j], float(np.float32(0.3)), cap)
    np.testing.assert_allclose(results[0], exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(results[1], keys)
    np.testing.assert_array_equal(results[2], values)
    np.testing.assert_allclose(results[3] @ np.repeat(values, 2, axis=1), exact, rtol=1e-4, atol=1e-5)


def test_attention_folded_with_a_boolean_mask_that_hides_a_row() -> None:
    q, k, v = f(2, 3, 8), f(2, 5, 8), f(2, 5, 8)
    mask = RNG.random((3, 5)) < 0.6
    mask[1] = False
    result = one("Attention", q, k, v, mask, q_num_heads=2, kv_num_heads=2)
    heads = [x.reshape(2, -1, 2, 4).transpose(0, 2, 1, 3) for x in (q, k, v)]
    exact = naive_attention(*heads, lambda b, h, i, j: mask[i, j], no_mask, 0.5, 0.0)
    np.testing.assert_allclose(result, exact.transpose(0, 2, 1, 3).reshape(2, 3, 8), rtol=1e-5, atol=1e-6)
    assert (result[:, 1] == 0).all()


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_an_outer_cache(causal: int) -> None:
    q, k, v, valid = f(2, 2, 3, 4), f(2, 2, 6, 4), f(2, 2, 6, 4), np.array([5, 2], np.int64)
    mask = RNG.random((3, 5)) < 0.8  # shorter than the cache: what is missing is hidden
    result = one("Attention", q, k, v, mask, None, None, valid, is_causal=causal)

    def allowed(b: int, h: int, i: int, j: int) -> bool:
        return j < valid[b] and j < 5 and bool(mask[i, j]) and (not causal or j <= i + valid[b] - 3)

    np.testing.assert_allclose(result, naive_attention(q, k, v, allowed, no_mask, 0.5, 0.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", range(4))
def test_attention_shows_its_scores(mode: int) -> None:
    q, k, v, mask = f(1, 1, 2, 4), f(1, 1, 3, 4), f(1, 1, 3, 4), f(2, 3)
    shown = run("Attention", q, k, v, mask, outputs=4, softcap=1.5, qk_matmul_output_mode=mode)[3]
    raw = q @ k.swapaxes(-1, -2) / 2
    capped = 1.5 * np.tanh(raw / 1.5)
    powers = np.exp(capped + mask)
    steps = (raw, capped, capped + mask, powers / powers.sum(-1, keepdims=True))
    np.testing.assert_allclose(shown, steps[mode], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_dtypes_and_no_keys(dtype: Any) -> None:
    q, k, v = (f(1, 2, n, 4, dtype=dtype) for n in (3, 5, 5))
    close(one("Attention", q, k, v), naive_attention(q, k, v, lambda *_: True, no_mask, 0.5, 0.0), ulps=16)
    assert (one("Attention", q, k[:, :, :0], v[:, :, :0]) == 0).all()


@pytest.mark.parametrize(
    ("shapes", "attrs"),
    [
        (((2, 3, 8), (2, 3, 8), (2, 3, 8)), {}),
        (((2, 3, 8), (2, 3, 8), (2, 3, 8)), {"q_num_heads": 3, "kv_num_heads": 3}),
        (((2, 3, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8)), {}),
        (((2, 2, 4, 8), (2, 2, 4, 6), (2, 2, 4, 8)), {}),
        (((2, 2, 4, 8), (2, 4, 8), (2, 4, 8)), {}),
        (((2, 8), (2, 8), (2, 8)), {}),
    ],
)
def test_attention_refuses(shapes: Any, attrs: dict[str, int]) -> None:
    with pytest.raises(InferError):
        infer("Attention", *((DType.F32, shape) for shape in shapes), **attrs)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention(rule: str, past: bool) -> None:
    decay = -np.abs(f(2, 5, 2)) if "gated" in rule else None
    beta = np.abs(f(2, 5, 1)) if "delta" in rule else None
    inputs = [f(2, 5, 12), f(2, 5, 6) / 3, f(2, 5, 8), f(2, 2, 3, 4) if past else None, decay, beta]
    attrs = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule}
    results = run("LinearAttention", *inputs, outputs=2, **attrs)
    for mine, wanted in zip(results, from_onnx("LinearAttention", *inputs, outputs=2, **attrs), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attrs", [{}, {"interleaved": 1}, {"rotary_embedding_dim": 4}])
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_rotary_embedding(attrs: dict[str, int], folded: bool, placed: bool) -> None:
    width = attrs.get("rotary_embedding_dim", 8) // 2
    x = f(2, 3, 16) if folded else f(2, 2, 3, 8)
    places = RNG.integers(0, 9, (2, 3)) if placed else None
    caches = [f(9, width) if placed else f(2, 3, width) for _ in range(2)]
    attrs = attrs | ({"num_heads": 2} if folded else {})
    inputs = [x, *caches, *([places] if placed else [])]
    (expected,) = from_onnx("RotaryEmbedding", *inputs, **attrs)
    np.testing.assert_allclose(one("RotaryEmbedding", *inputs, **attrs), expected, rtol=1e-5, atol=1e-6)


def test_rotary_embedding_refuses_positions_outside_the_cache() -> None:
    with pytest.raises(InputError):
        one("RotaryEmbedding", f(1, 1, 1, 4), f(3, 2), f(3, 2), np.array([[-1]]))


def test_flex_attention_runs_its_bodies() -> None:
    weights = Weights()
    body = GraphBuilder(weights)
    scores = body.open_input(DType.F32, [None] * 4)
    bias = body.open_input(DType.F32, ())
    doubled = body.finish([body.op("onnx.Mul", scores, bias, version=14)])
    builder = GraphBuilder(weights)
    q, k, v = f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 6)
    ids = [builder.open_input(DType.F32, [None] * 4) for _ in range(3)]
    factor = builder.weight(np.array(2, np.float32))
    (y,) = builder.node(
        "preview.FlexAttention", [*ids, factor], Attrs({"captures": 1}), graphs=(("score_mod", doubled),)
    )
    assert y is not None
    (result,) = evaluate(builder.finish([y]), weights, [q, k, v])
    exact = naive_attention(q, k, v, lambda *_: True, no_mask, 2 / np.sqrt(8), 0.0)
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_large_matrices_that_begin_between_borders(turned: bool) -> None:
    """As weights of a mapped file do: multiplied and looked up as they lie, with the same answers."""
    b = f(600, 500)
    shifted = np.frombuffer(b"\0" + b.tobytes(), np.uint8)[1:].view(np.float32).reshape(b.shape)
    assert not shifted.flags.aligned
    a, ids = f(2, 3, 500 if turned else 600), np.array([[3, 0, -1]])
    if turned:
        b, shifted = b.T, shifted.T
    # Sums of some 600 products in f32, against f64: their roundings grow with the root of the length.
    np.testing.assert_allclose(matmul(a, shifted), a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
    for axis in (0, 1):
        assert np.array_equal(one("Gather", shifted, ids, axis=axis), np.take(b, ids, axis))
