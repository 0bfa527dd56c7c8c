"""Tile programs -> machine code in a program's slots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from tierup import _native
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.objects import compile_object, load_object
from tierup.codegen.target import Target
from tierup.lower.tile import TileProgram

_LIBRARIES = count()  # every loaded object is a library with a name of its own


def publish(program: _native.Program, programs: Sequence[TileProgram], target: Target) -> None:
    """Compile the kernels of all slots and make them live."""
    kernels: dict[int, tuple[int, object]] = {}
    for slot, tile in enumerate(programs):
        loaded = load_object(compile_object(emit_llvm(tile, target), target), tile.name, f"kernel{next(_LIBRARIES)}")
        kernels[slot] = (loaded.address, loaded)
    program.publish(kernels)
