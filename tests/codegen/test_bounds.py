"""Which floats of a tile program are bounded, and that conversions rely on nothing else."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from tests.codegen.running import run

from tierup.codegen.llvm.bounds import Bounds, fits, float_bounds
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.llvm.frame import walk
from tierup.codegen.target import AVX512, target_of
from tierup.ir.types import DType
from tierup.lower.parse import parse_program
from tierup.profile.identity import identify

HEAD = "program p(x: f32 in, y: u8 out) sizes 1 vector i {\ngrid i < s0 step 4\n%x : f32[i] = load x[i]\n"
CLIP = (
    "%l : f32[] = fill 0.0\n%h : f32[] = fill 255.0\n%c : bool[i] = lt %l, %r\n"
    "%k : f32[i] = select %c, %r, %l\n%m : f32[i] = min %k, %h\n"
)


def bounds_of(body: str, name: str) -> Bounds:
    program = parse_program(f"{HEAD}{body}}}")
    return float_bounds(walk(program.body)).get(name, Bounds())


def test_what_is_known() -> None:
    rounded = "%r : f32[i] = round %x\n"
    assert bounds_of(rounded, "r") == Bounds()
    assert bounds_of(rounded + CLIP, "k") == Bounds(0, inf, True)
    assert bounds_of(rounded + CLIP, "m") == Bounds(0, 255, True)
    more = "%a : f32[i] = add %m, %h\n%n : f32[i] = add %m, %x\n%o : f32[i] = max %m, %x\n"
    assert bounds_of(rounded + CLIP + more, "a") == Bounds(255, 510, True)
    assert bounds_of(rounded + CLIP + more, "n") == Bounds()
    assert bounds_of(rounded + CLIP + more, "o") == Bounds(0, inf, False)  # a NaN stays one


def test_a_choice_by_something_else_bounds_nothing() -> None:
    other = "%l : f32[] = fill 0.0\n%c : bool[i] = lt %x, %l\n%k : f32[i] = select %c, %l, %x\n"
    assert bounds_of(other, "k") == Bounds()


def test_what_fits() -> None:
    assert fits(Bounds(0, 255, True), DType.I32)
    assert not fits(Bounds(0, 255, False), DType.I32)
    assert not fits(Bounds(0, 2.0**31, True), DType.I32)
    assert not fits(None, DType.I32)


@pytest.mark.parametrize("clipped", [False, True])
def test_only_bounded_floats_are_converted_unchecked(clipped: bool) -> None:
    target = target_of(identify())
    assert target is not None
    last = "m" if clipped else "r"
    body = f"%r : f32[i] = round %x\n{CLIP}%b : u8[i] = convert %{last}\nstore y[i], %b\n"
    text = emit_llvm(parse_program(f"{HEAD}{body}}}"), target)
    assert ("fcmp oge" not in text) == clipped
    assert "fptosi" in text


@pytest.mark.parametrize(("constant", "checks"), [("0.0", False), ("nan", True)])
def test_the_larger_of_a_float_and_a_number_is_one_comparison(constant: str, checks: bool) -> None:
    text = f"""program relu(x: f32 in, y: f32 out) vector i {{
      grid i < 20 step 16
      %c : f32[] = fill {constant}
      %x : f32[i] = load x[i]
      %m : f32[i] = max %x, %c
      store y[i], %m
    }}"""
    program = parse_program(text)
    assert ("fcmp uno" in emit_llvm(program, AVX512)) == checks
    x = np.array([-1, 2, np.nan, np.inf, -np.inf] * 4, np.float32)
    y = np.zeros_like(x)
    run(program, {"x": x, "y": y}, ())
    np.testing.assert_array_equal(y, np.maximum(x, np.float32(constant)))
