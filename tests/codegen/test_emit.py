"""Compiled tile programs agree with the interpreter, on samples and on random programs."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.codegen.running import HOST, call, run
from tests.lower.samples import Sample, layer_norm_sample, matmul_sample, softmax_sample
from tests.lower.strategies import Case, programs

from tierup.codegen.elf import undefined
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.objects import assembly, compile_object, load_object
from tierup.codegen.target import AVX2, AVX512, NEON, Target
from tierup.ir.types import DType
from tierup.lower.interpret import CheckError, interpret
from tierup.lower.tile import (
    MAPS,
    WORD_DOTS,
    Arg,
    Buffer,
    Dot,
    Fill,
    Grid,
    Index,
    Load,
    Loop,
    Map,
    Store,
    Tile,
    TileProgram,
)
from tierup.plan.regions import ELEMENTWISE


def check(sample: Sample) -> None:
    run(sample.program, sample.buffers, sample.sizes)
    # sums of up to 200 f32 elements in another order: 4e-6 is 33 eps
    np.testing.assert_allclose(sample.buffers[sample.out], sample.expected.reshape(-1), rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("sizes", [(0, 5), (3, 0), (1, 1), (5, 70), (4, 64), (2, 63), (3, 200)])
@pytest.mark.parametrize("steps", [(1, 64), (3, 16), (1, 32), (2, 8)])
@pytest.mark.parametrize("sample", [softmax_sample, layer_norm_sample])
def test_rows(sample: Callable[..., Sample], sizes: tuple[int, int], steps: tuple[int, int]) -> None:
    check(sample(sizes, *steps))


@pytest.mark.parametrize("sizes", [(0, 3, 2), (3, 0, 2), (4, 32, 0), (1, 1, 1), (5, 40, 7), (9, 33, 5), (17, 100, 64)])
@pytest.mark.parametrize("steps", [(4, 32, 1), (3, 16, 4), (8, 48, 2), (1, 64, 1)])
def test_matmul(sizes: tuple[int, int, int], steps: tuple[int, int, int]) -> None:
    check(matmul_sample(sizes, *steps))


def packed_product(mode: str) -> TileProgram:
    """out[m, n] = a[m, k] · w, with w in panels of 32 columns; sizes m, n, k."""
    m, n, k = Arg(0), Arg(1), Arg(2)
    tile = Tile(DType.F32, ("i", "j"))
    dot = Loop(
        "t",
        k,
        1,
        (
            Load("b", Tile(DType.F32, ("t", "j")), "w", Index((("j", 1), ("t", 32)), 0, (("j", k),))),
            Load("c", Tile(DType.F32, ("i", "t")), "a", Index((("i", k), ("t", 1)))),
            Dot("new", tile, "c", "b", "old", "t"),
        ),
        (("old", "zero"),),
        ("new",),
        ("sum",),
    )
    rows = Loop("i", m, 4, (Fill("zero", tile, 0.0), dot, Store("out", Index((("i", n), ("j", 1))), "sum")))
    buffers = (Buffer("a", DType.F32), Buffer("w", DType.F32, mode), Buffer("out", DType.F32, "out"))
    return TileProgram("product", buffers, 3, (Grid("j", n, 32),), (rows,), ("j",))


@pytest.mark.parametrize("sizes", [(4, 32, 8), (21, 96, 5), (9, 70, 33), (3, 5, 1)])
def test_panels_are_fetched_ahead(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    random = np.random.default_rng(0)
    a, w = random.standard_normal((m, k)).astype(np.float32), np.zeros((k, -(-n // 32) * 32), np.float32)
    w[:, :n] = random.standard_normal((k, n))
    panels = w.reshape(k, -1, 32).transpose(1, 0, 2).copy()
    buffers = {"a": a.reshape(-1), "w": panels.reshape(-1), "out": np.zeros(m * n, np.float32)}
    run(packed_product("in"), buffers, sizes)
    # sums of up to 33 products: some eps of the largest
    np.testing.assert_allclose(buffers["out"].reshape(m, n), a.astype(np.float64) @ w[:, :n], atol=1e-5)


def test_only_constant_panels_are_fetched_ahead() -> None:
    """Once, where both the panel and the rows are whole; what a kernel packed itself is near."""
    assert emit_llvm(packed_product("in"), AVX512).count("call void @llvm.prefetch") == 1
    assert "prefetch" not in emit_llvm(packed_product("scratch"), AVX512)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(failing=True))
def test_random_programs(case: Case) -> None:
    expected, actual = case.arrays(), case.arrays()
    try:
        interpret(case.program, expected, case.sizes)
    except CheckError:
        assert call(case.program, actual, case.sizes) == 1
        return
    run(case.program, actual, case.sizes)
    case.assert_same(actual, expected)


@pytest.mark.parametrize("vector", [(), ("i",), ("k",), ("i", "j"), ("j", "k"), ("k", "i"), ("i", "j", "k")])
def test_any_axes_may_be_vectors(vector: tuple[str, ...]) -> None:
    """A tile that has several takes the last of its axes; elements are moved where two tiles do not agree."""
    sample = matmul_sample((9, 33, 10), 4, 32, 8)
    check(replace(sample, program=replace(sample.program, vector=vector)))
    if "k" not in vector:
        sample = softmax_sample((5, 70), 8, 32)
        check(replace(sample, program=replace(sample.program, vector=vector)))


@pytest.mark.parametrize("target", [AVX2, AVX512, NEON], ids=lambda target: target.name)
@pytest.mark.parametrize("sample", [softmax_sample((5, 70)), matmul_sample((5, 40, 7)), layer_norm_sample((5, 70))])
def test_other_targets_compile(sample: Sample, target: Target) -> None:
    """Not run: the machine may lack the instructions."""
    code = compile_object(emit_llvm(sample.program, target), target)
    assert not [name for name in undefined(code) if name != "_GLOBAL_OFFSET_TABLE_"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(failing=True), st.sampled_from([AVX2, AVX512, NEON]))
def test_random_programs_call_nothing_and_keep_to_ieee(case: Case, target: Target) -> None:
    text = emit_llvm(case.program, target)
    assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|afn|reassoc)\b", text)
    assert not [name for name in undefined(compile_object(text, target)) if name != "_GLOBAL_OFFSET_TABLE_"]


def test_wide_registers_are_used() -> None:
    text = assembly(emit_llvm(matmul_sample((9, 48, 7), 8, 48, 1).program, AVX512), AVX512)
    assert "zmm" in text
    assert "vfmadd" in text


def test_a_kernel_that_calls_something_is_not_loaded() -> None:
    text = """declare float @expf(float)
define i32 @k(ptr %b, ptr %s, ptr %t, i64 %x, i64 %y) {
  %v = call float @expf(float 1.0)
  %i = fptosi float %v to i32
  ret i32 %i
}"""
    with pytest.raises(ValueError, match="calls expf"):
        load_object(compile_object(text, HOST), "k", "calls")


@pytest.mark.parametrize("symbol", ["", "a b", "x;y", "é"])
def test_strange_symbols_are_refused(symbol: str) -> None:
    with pytest.raises(ValueError, match="no symbol"):
        load_object(b"", symbol, "strange")


def test_damaged_objects_are_refused() -> None:
    code = compile_object(emit_llvm(softmax_sample((2, 8)).program, HOST), HOST)
    for cut in (0, 10, 63):
        with pytest.raises(ValueError, match="object code"):
            load_object(code[:cut], "softmax_rows", f"cut{cut}")


def test_the_planner_knows_every_map() -> None:
    assert ELEMENTWISE | {"fma"} | WORD_DOTS.keys() == MAPS.keys()


def test_two_roundings_stay_two() -> None:
    """f64 to f32 to f16: LLVM would join them into a call of a library, which is also another number."""
    body = (
        Load("v", Tile(DType.F32), "x", Index()),
        Map("t", Tile(DType.F32), "tanh", ("v",)),
        Store("y", Index(), "t"),
    )
    buffers = (Buffer("x", DType.F64), Buffer("y", DType.F16, "out"))
    program = TileProgram("narrow", buffers, 0, (Grid("i", 1, 1),), body)
    x, y = np.array([1e-3 + 1e-12]), np.zeros(1, np.float16)
    run(program, {"x": x, "y": y}, ())
    assert y[0] == np.tanh(x.astype(np.float32)).astype(np.float16)[0]
