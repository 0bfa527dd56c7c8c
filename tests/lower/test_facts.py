"""Programs under the assumption that a buffer holds one number: what is left, and that it computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tierup.lower.facts import fold, unread
from tierup.lower.interpret import CheckError, interpret
from tierup.lower.parse import parse_program
from tierup.lower.text import print_program
from tierup.lower.tile import TileProgram
from tierup.lower.verify import verify
from tierup.lower.work import work

MASKED = """
program p(x: f32 in, m: i64 in, y: f32 out) vector j {
  grid j < 40 step 16
  %x : f32[j] = load x[j]
  %m : i64[j] = load m[j]
  %f : f32[j] = convert %m
  %one : f32[] = fill 1.0
  %least : f32[] = fill -10000.0
  %left : f32[j] = sub %one, %f
  %mask : f32[j] = mul %left, %least
  %sum : f32[j] = add %x, %mask
  store y[j], %sum
}
"""
LOOKED_UP = """
program p(table: f32 in, ids: i64 in, y: f32 out) vector j {
  grid i < 3 step 1
  %ids : i64[i] = load ids[i]
  check %ids < 4
  for j < 20 step 16 {
    %row : f32[i, j] = load table[j + %ids * 20]
    store y[i * 20 + j], %row
  }
}
"""
REDUCED = """
program p(x: f32 in, m: f32 in, y: f32 out) vector j {
  grid i < 2 step 1
  %least : f32[j] = fill -inf
  for j < 20 step 16 carry %top = %least {
    %m : f32[j] = load m[i * 20 + j]
    %t : f32[j] = tanh %m
    %next : f32[j] = max %top, %t
    yield %next
  } -> %tops
  for j < 20 step 16 {
    %x : f32[j] = load x[i * 20 + j]
    store y[i * 20 + j], %x
  }
}
"""


def run(program: TileProgram, **arrays: Any) -> Any:
    verify(program)
    out = np.zeros(64, np.float32)
    interpret(program, {**arrays, "y": out}, ())
    return out


def floats(count: int) -> Any:
    return np.random.default_rng(1).standard_normal(count).astype(np.float32)


def test_an_additive_mask_of_nothing_is_left_out() -> None:
    program = parse_program(MASKED)
    folded = fold(program, {"m": 1})
    assert print_program(folded).split("{", 1)[1].split() == (
        ["grid", "j", "<", "40", "step", "16", "%x", ":", "f32[j]", "=", "load", "x[j]", "store", "y[j],", "%x", "}"]
    )
    x = np.concatenate([floats(36), np.array([-0.0, np.nan, np.inf, -np.inf], np.float32)])
    given = {"x": x, "m": np.ones(40, np.int64)}
    assert run(folded, **given).tobytes() == run(program, **given).tobytes()
    assert folded.buffers == program.buffers
    assert unread(folded) == {"m"}
    assert work(folded) < work(program) / 2


def test_a_mask_that_hides_is_a_literal() -> None:
    program = parse_program(MASKED)
    folded, given = fold(program, {"m": 0}), {"x": floats(40), "m": np.zeros(40, np.int64)}
    assert "fill -10000.0" in print_program(folded)
    assert run(folded, **given).tobytes() == run(program, **given).tobytes()


def test_zero_is_added_for_the_sake_of_its_sign() -> None:
    program = parse_program(MASKED.replace("-10000.0", "10000.0"))
    folded, given = fold(program, {"m": 1}), {"x": np.full(40, -0.0, np.float32), "m": np.ones(40, np.int64)}
    assert "add" in print_program(folded)
    assert not np.signbit(run(folded, **given)).any()


def test_a_lookup_at_a_known_place_is_a_load() -> None:
    program = parse_program(LOOKED_UP)
    folded = fold(program, {"ids": 2})
    text = print_program(folded)
    assert "%ids" not in text
    assert "check" not in text
    given = {"table": floats(80), "ids": np.full(3, 2, np.int64)}
    assert run(folded, **given).tobytes() == run(program, **given).tobytes()


@pytest.mark.parametrize("place", [-1, 4])
def test_a_place_outside_still_ends_the_call(place: int) -> None:
    folded = fold(parse_program(LOOKED_UP), {"ids": place})
    with pytest.raises(CheckError):
        run(folded, table=floats(80), ids=np.full(3, place, np.int64))


def test_loops_that_nobody_needs_are_left_out() -> None:
    program = parse_program(REDUCED)
    folded = fold(program, {})
    assert print_program(folded).count("for ") == 1
    given = {"x": floats(40), "m": floats(40)}
    assert run(folded, **given).tobytes() == run(program, **given).tobytes()


def test_a_chain_of_maps_of_one_number_is_one_number() -> None:
    lines = "\n".join(f"  %t{n + 1} : f32[j] = tanh %t{n}" for n in range(5))
    program = parse_program(f"""
program p(x: f32 in, m: f32 in, y: f32 out) vector j {{
  grid j < 40 step 16
  %x : f32[j] = load x[j]
  %t0 : f32[j] = load m[j]
{lines}
  %r : f32[j] = mul %x, %t5
  store y[j], %r
}}
""")
    folded, given = fold(program, {"m": 0.5}), {"x": floats(40), "m": np.full(40, 0.5, np.float32)}
    assert "tanh" not in print_program(folded)
    assert run(folded, **given).tobytes() == run(program, **given).tobytes()
    assert work(folded) < work(program) / 10
