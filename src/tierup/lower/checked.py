"""Texts from elsewhere -> tile programs that may be executed.

A worker that plans a model mostly compiles its programs, too, and then proves them: each is read and checked once.
"""

from __future__ import annotations

import threading

from tierup.lower.parse import parse_program
from tierup.lower.tile import TileProgram
from tierup.lower.verify import verify

_MOST = 256  # programs: more than most plans have


class Checked:
    """The programs that were checked last, by text. Threads may share it."""

    def __init__(self) -> None:
        self._programs: dict[str, TileProgram] = {}
        self._adding = threading.Lock()

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
        with self._adding:
            if len(self._programs) >= _MOST:
                del self._programs[next(iter(self._programs))]
            self._programs[program.text] = program
        return program


CHECKED = Checked()  # one for the process
