"""Which buffers may be one: programs read as text."""

from __future__ import annotations

import pytest

from tierup.lower.inplace import in_place
from tierup.lower.parse import parse_program

ELEMENTWISE = """
program p(x: f32 in, y: f32 out) sizes 1 vector j {
  grid j < s0 step 16
  %a : f32[j] = load x[j]
  %b : f32[j] = exp %a
  store y[j], %b
}
"""
TWICE = """
program p(x: f32 in, y: f32 out) sizes 2 vector j {
  grid i < s0 step 1
  %zero : f32[j] = fill 0.0
  for j < s1 step 16 carry %m = %zero {
    %v : f32[j] = load x[i * s1 + j]
    %n : f32[j] = max %m, %v
    yield %n
  } -> %ms
  %top : f32[] = reduce max %ms over j
  for j < s1 step 16 {
    %w : f32[j] = load x[i * s1 + j]
    %d : f32[j] = sub %w, %top
    store y[i * s1 + j], %d
  }
}
"""
READ_LATER = """
program p(x: f32 in, y: f32 out, z: f32 out) sizes 2 vector j {
  grid i < s0 step 1
  for j < s1 step 16 {
    %v : f32[j] = load x[i * s1 + j]
    store y[i * s1 + j], %v
  }
  for j < s1 step 16 {
    %w : f32[j] = load x[i * s1 + j]
    store z[i * s1 + j], %w
  }
}
"""
TURNED = """
program p(x: f32 in, y: f32 out) sizes 2 vector j {
  grid i < s0 step 1
  for j < s1 step 16 {
    %v : f32[j] = load x[j * s0 + i]
    store y[i * s1 + j], %v
  }
}
"""

WRITTEN_BEFORE = """
program p(x: f32 in, y: f32 out) sizes 1 vector j {
  grid j < s0 step 16
  %a : f32[j] = fill 0.0
  store y[j], %a
  %b : f32[j] = load x[j]
  store y[j], %b
}
"""


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (ELEMENTWISE, [("x", "y")]),
        (TWICE, [("x", "y")]),  # a row is read twice before any of it is written
        (READ_LATER, [("x", "z")]),  # y would overwrite what the second loop reads
        (TURNED, []),
        (WRITTEN_BEFORE, []),  # y is written twice, first while x is still needed
        (ELEMENTWISE.replace("y: f32 out", "y: f64 out"), []),  # the elements lie elsewhere
    ],
)
def test_pairs(text: str, pairs: list[tuple[str, str]]) -> None:
    assert in_place(parse_program(text)) == pairs
