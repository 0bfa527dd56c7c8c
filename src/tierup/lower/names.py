"""Fresh names and size arguments for a tile program in the making."""

from __future__ import annotations

from tierup.ir.types import Dim
from tierup.lower.tile import Arg, Size


class Names:
    """Names that are used once."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, hint: str = "t") -> str:
        self._count += 1
        return f"{hint}{self._count}"


class Sizes:
    """Graph dims as a program's sizes: numbers stay numbers, the others become arguments, each once.

    The first `reserved` arguments are left to others.
    """

    def __init__(self, reserved: int = 0) -> None:
        self.dims: list[Dim] = []
        self._reserved = reserved

    @property
    def count(self) -> int:
        """How many arguments there are."""
        return self._reserved + len(self.dims)

    def of(self, dim: Dim) -> Size:
        if isinstance(dim, int):
            return dim
        if dim not in self.dims:
            self.dims.append(dim)
        return Arg(self._reserved + self.dims.index(dim))

    def check(self, dim: Dim) -> None:
        """Have a dim computed in each call, which ends there if the dim has no answer."""
        self.of(dim)
