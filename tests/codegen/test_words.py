"""Products of words: what the interpreter says, and what each target computes, with instructions for it or without."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.codegen.running import HOST, run

from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.target import AVX2, AVX512, NEON, Target, target_of
from tierup.ir.types import Array, DType
from tierup.lower.interpret import interpret
from tierup.lower.parse import parse_program
from tierup.lower.tile import TileProgram
from tierup.profile.machine import identify

TARGETS = {AVX2, AVX512, HOST} if identify().architecture == "x86_64" else {HOST}

_AVX512_FLAGS = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma", "f16c", "bmi2")


def program(op: str, step: int) -> TileProgram:
    total = {"dot_bytes": "i32", "dot_bf16": "f32"}[op]
    return parse_program(f"""program p(a: i32 in, b: i32 in, c: {total} in, y: {total} out) sizes 1 vector j {{
      grid j < s0 step {step}
      %a : i32[j] = load a[j]
      %b : i32[j] = load b[j]
      %c : {total}[j] = load c[j]
      %d : {total}[j] = {op} %a, %b, %c
      store y[j], %d
    }}""")


def computed(op: str, step: int, a: Array, b: Array, c: Array, target: Target | None) -> Array:
    arrays = {"a": a.copy(), "b": b.copy(), "c": c.copy(), "y": np.zeros_like(c)}
    if target is None:
        interpret(program(op, step), arrays, [len(a)])
    else:
        run(program(op, step), arrays, [len(a)], target)
    return arrays["y"]


def words(values: Array) -> Array:
    """Each row of the last axis as one word."""
    return np.ascontiguousarray(values).reshape(-1).view(np.int32)


@pytest.mark.parametrize("step", [1, 4, 8, 16, 32, 48])
@pytest.mark.parametrize("target", [None, *sorted(TARGETS, key=lambda t: t.name)], ids=lambda t: t and t.name)
def test_bytes_are_exact(target: Target | None, step: int) -> None:
    """All ends of both ranges: nothing saturates on the way, and the sum wraps."""
    random = np.random.default_rng(step)
    ends = np.array(np.meshgrid([0, 1, 128, 255], [-128, -1, 0, 127])).reshape(2, -1)
    a = np.concatenate([np.repeat(ends[0][:, None], 4, 1), random.integers(0, 256, (45, 4))]).astype(np.uint8)
    b = np.concatenate([np.repeat(ends[1][:, None], 4, 1), random.integers(-128, 128, (45, 4))]).astype(np.int8)
    c = random.integers(-(2**31), 2**31, len(a)).astype(np.int32)
    c[:4] = (2**31 - 1, -(2**31), 2**31 - 1, -(2**31))
    wanted = (c + np.sum(a.astype(np.int64) * b, 1) + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(computed("dot_bytes", step, words(a), words(b), c, target), wanted)


@pytest.mark.parametrize("step", [1, 4, 8, 16, 48])
@pytest.mark.parametrize("target", [None, *sorted(TARGETS, key=lambda t: t.name)], ids=lambda t: t and t.name)
def test_pairs_add_up_in_f32(target: Target | None, step: int) -> None:
    """Two products of 8 bits each are exact in f32, so that two roundings are all that may be lost."""
    random = np.random.default_rng(step)
    a, b = (random.standard_normal((101, 2)).astype(DType.BF16.numpy) for _ in range(2))
    c = random.standard_normal(101).astype(np.float32)
    parts = a.astype(np.float64) * b.astype(np.float64)
    wanted, size = c + parts.sum(1), np.abs(c) + np.abs(parts).sum(1)
    got = computed("dot_bf16", step, words(a), words(b), c, target)
    assert (np.abs(got - wanted) <= 2 * 2.0**-24 * size).all()
    np.testing.assert_array_equal(got, computed("dot_bf16", step, words(a), words(b), c, None))


@pytest.mark.parametrize("target", [None, *sorted(TARGETS, key=lambda t: t.name)], ids=lambda t: t and t.name)
def test_denormal_halves_are_zero_and_nan_stays(target: Target | None) -> None:
    a = np.array([[2.0**-130, 1], [np.nan, 1], [np.inf, 1], [0, -0.0]]).astype(DType.BF16.numpy)
    b = np.array([[2.0**100, 2], [1, 1], [1, 1], [3, 4]]).astype(DType.BF16.numpy)
    got = computed("dot_bf16", 4, words(a), words(b), np.ones(4, np.float32), target)
    np.testing.assert_array_equal(got, np.array([3, np.nan, np.inf, 1], np.float32))


def test_targets_name_the_dots_that_they_have() -> None:
    assert AVX2.dots == AVX512.dots == NEON.dots == frozenset()
    identity = identify()
    words_of = {"avx512_vnni": "dot_bytes", "avx512_bf16": "dot_bf16"}
    target = target_of(identity)
    if target is not None and target.name.startswith("avx512"):
        assert target.dots == {dot for feature, dot in words_of.items() if feature in identity.features}


@pytest.mark.skipif(not {"dot_bytes", "dot_bf16"} <= HOST.dots, reason="this machine multiplies no words")
def test_one_instruction_where_there_is_one() -> None:
    for op, name in (("dot_bytes", "vpdpbusd"), ("dot_bf16", "dpbf16ps")):
        assert name in emit_llvm(program(op, 16), HOST)
        assert name not in emit_llvm(program(op, 16), AVX512)


def test_words_take_nothing_from_a_target() -> None:
    """What AVX-512 can do, it can do with products of words, too."""
    identity = replace(identify(), architecture="x86_64", features=(*_AVX512_FLAGS, "avx512_vnni", "avx512_bf16"))
    target = target_of(identity)
    assert target is not None
    assert target.dots == {"dot_bytes", "dot_bf16"}
    assert AVX512.avx512
    assert target.avx512
    assert not AVX2.avx512
