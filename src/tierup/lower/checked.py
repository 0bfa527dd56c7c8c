"""Texts from elsewhere -> tile programs that may be executed.

The same text is compiled, and then proved, by one worker after another or by the same: each reads it once.
"""

from __future__ import annotations

from functools import lru_cache

from tierup.lower.parse import parse_program
from tierup.lower.tile import TileProgram
from tierup.lower.verify import verify

_KEPT = 256  # programs: more than most plans have


@lru_cache(_KEPT)
def checked_program(text: str) -> TileProgram:
    """The program with this text, which keeps the rules of its executors; ValueError or TileError if there is none."""
    program = parse_program(text)
    verify(program)
    return program
