"""What a region becomes: a tile program, and what a call passes to it."""

from __future__ import annotations

from msgspec import Struct

from tierup.ir.graph import ValueId
from tierup.ir.types import Dim
from tierup.lower.inplace import in_place
from tierup.lower.tile import TileProgram


class Panels(Struct, frozen=True):
    """A constant matrix [K, N] as panels of `width` columns, each [K, width], the last one filled up with zeros.

    With a `form` of `plan/packing.py` they hold words of several rows, or columns of several groups, instead.
    """

    value: ValueId
    width: int
    form: str = ""


class Kernel(Struct, frozen=True):
    """A program with the values and sizes that a call binds to its buffers and arguments.

    `steps` is how many grid steps there are, as (extent, step) of each dimension; `grain` how many of them are worth a
    thread's while; `scratch_bytes` what each thread needs beside its registers. With `rounds`, at least one, the whole
    grid runs as often, each time after all of the time before; the first two size arguments are then the number of the
    round and of the next, and `sizes` are the others.
    """

    program: TileProgram
    buffers: tuple[ValueId | Panels, ...]
    sizes: tuple[Dim, ...]
    steps: tuple[tuple[Dim, int], ...]
    grain: Dim
    scratch_bytes: Dim = 0
    rounds: Dim | None = None

    @property
    def n_sizes(self) -> int:
        """How many size arguments a call passes."""
        return len(self.sizes) + (0 if self.rounds is None else 2)

    def replaces(self, result: ValueId) -> tuple[ValueId, ...]:
        """Values that `result` may be written over: each element is read for the last time before it is written."""
        passed = [buffer for buffer in self.program.buffers if buffer.mode != "scratch"]
        values = dict(zip((buffer.name for buffer in passed), self.buffers, strict=True))
        pairs = in_place(self.program)
        found = (values[source] for source, target in pairs if values[target] == result)
        return tuple(value for value in found if isinstance(value, int))
