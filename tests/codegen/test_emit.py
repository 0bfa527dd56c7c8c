"""Compiled tile programs agree with the interpreter, on samples and on random programs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.lower.samples import Sample, layer_norm_sample, matmul_sample, softmax_sample
from tests.lower.strategies import Case, programs

from tierup.codegen.elf import undefined
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.objects import assembly, compile_object, load_object
from tierup.codegen.target import AVX2, AVX512, NEON, Target, target_of
from tierup.ir.types import Array, DType
from tierup.lower.interpret import grid_steps, interpret
from tierup.lower.tile import MAPS, Buffer, Grid, Index, Load, Map, Store, Tile, TileProgram
from tierup.plan.cut import ELEMENTWISE
from tierup.profile.machine import identify

HOST = target_of(identify()) or AVX2
KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_NUMBERS = count()


def run(program: TileProgram, buffers: Mapping[str, Array], sizes: Sequence[int], target: Target = HOST) -> None:
    """Compile, load and call a program as the run time does."""
    code = compile_object(emit_llvm(program, target), target)
    loaded = load_object(code, program.name, f"test{next(_NUMBERS)}")
    passed = [buffers[b.name] for b in program.buffers if b.mode != "scratch"]
    scratch = [buffers[b.name] for b in program.buffers if b.mode == "scratch"]
    pointers = (ctypes.c_void_p * max(len(passed), 1))(*(array.ctypes.data for array in passed))
    numbers = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
    room = scratch[0].ctypes.data if scratch else None
    status = KERNEL(loaded.address)(pointers, numbers, room, 0, grid_steps(program, sizes))
    assert status == 0


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


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_random_programs(case: Case) -> None:
    expected, actual = case.arrays(), case.arrays()
    interpret(case.program, expected, case.sizes)
    run(case.program, actual, case.sizes)
    case.assert_same(actual, expected)


@pytest.mark.parametrize("target", [AVX2, AVX512, NEON], ids=lambda target: target.name)
@pytest.mark.parametrize("sample", [softmax_sample((5, 70)), matmul_sample((5, 40, 7)), layer_norm_sample((5, 70))])
def test_other_targets_compile(sample: Sample, target: Target) -> None:
    """Not run: the machine may lack the instructions."""
    code = compile_object(emit_llvm(sample.program, target), target)
    assert not [name for name in undefined(code) if name != "_GLOBAL_OFFSET_TABLE_"]


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
    assert ELEMENTWISE | {"fma"} == MAPS.keys()


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
