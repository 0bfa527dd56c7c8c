"""Texts from elsewhere -> tile programs that may be executed.

A worker that plans a model mostly compiles its programs, too, and then proves them: each is read and checked once.
"""

from __future__ import annotations

from tierup.lower.parse import parse_program
from tierup.lower.tile import TileProgram
from tierup.lower.verify import verify

_MOST = 256  # programs: more than most plans have


class Checked:
    """The programs that were checked last, by text. Threads may share it."""

    def __init__(self) -> None:
        self._programs: dict[str, TileProgram] = {}

    def program(self, text: str) -> TileProgram:
        """The program with this text, which keeps the rules of its executors; ValueError or TileError if there is
        none."""
        return self._programs.get(text) or self.add(parse_program(text))

    def add(self, program: TileProgram) -> TileProgram:
        """Check a program that will come as text; TileError if it breaks a rule."""
        known = self._programs.get(program.text)
        if known is not None:
            return known
        verify(program)
        for oldest in list(self._programs)[: max(0, len(self._programs) + 1 - _MOST)]:
            self._programs.pop(oldest, None)
        self._programs[program.text] = program
        return program


CHECKED = Checked()  # one for the process
