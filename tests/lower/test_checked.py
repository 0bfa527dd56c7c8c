"""Programs that come as text are read once, and never without being checked."""

from __future__ import annotations

import pytest

from tierup.lower.checked import checked_program
from tierup.lower.parse import parse_program
from tierup.lower.verify import TileError

COPY = """program copy(x: f32 in, y: f32 out) sizes 1 vector j {
  grid j < s0 step 16
  %v : f32[j] = load x[j]
  store y[j], %v
}
"""


def test_a_text_is_read_once() -> None:
    assert checked_program(COPY) is checked_program(COPY)
    assert checked_program(COPY) == parse_program(COPY)
    assert checked_program(COPY).text == COPY


def test_a_wrong_program_is_refused_each_time() -> None:
    wrong = COPY.replace("store y[j]", "store x[j]")
    for _ in range(2):
        with pytest.raises(TileError):
            checked_program(wrong)
