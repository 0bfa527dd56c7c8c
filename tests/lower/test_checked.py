"""Programs that come as text are read once, and never without being checked."""

from __future__ import annotations

import pytest

from tierup.lower import checked
from tierup.lower.checked import Checked
from tierup.lower.parse import parse_program
from tierup.lower.verify import TileError

COPY = """program copy(x: f32 in, y: f32 out) sizes 1 vector j {
  grid j < s0 step 16
  %v : f32[j] = load x[j]
  store y[j], %v
}
"""


def test_a_text_is_read_once() -> None:
    known = Checked()
    assert known.program(COPY) is known.program(COPY)
    assert known.program(COPY) == parse_program(COPY)


def test_a_program_that_was_made_here_is_not_read() -> None:
    known, made = Checked(), parse_program(COPY)
    known.add(made)
    assert known.program(made.text) is made


def test_a_wrong_program_is_refused_each_time() -> None:
    known, wrong = Checked(), COPY.replace("store y[j]", "store x[j]")
    for _ in range(2):
        with pytest.raises(TileError):
            known.program(wrong)
        with pytest.raises(TileError):
            known.add(parse_program(wrong))


def test_there_is_room_for_a_number_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "_MOST", 2)
    known = Checked()
    first = known.program(COPY)
    for name in ("one", "two"):
        known.program(COPY.replace("copy", name))
    assert known.program(COPY) is not first
