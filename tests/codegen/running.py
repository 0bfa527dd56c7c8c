"""Compile, load and call a tile program as the run time does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count

import numpy as np

from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.objects import Loaded, compile_object, load_object
from tierup.codegen.target import AVX2, Target, target_of
from tierup.ir.types import Array
from tierup.lower.interpret import grid_steps
from tierup.lower.tile import TileProgram
from tierup.profile.machine import identify

HOST = target_of(identify()) or AVX2
KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_NUMBERS = count()


@lru_cache(maxsize=8)
def _loaded(program: TileProgram, target: Target) -> Loaded:
    code = compile_object(emit_llvm(program, target), target)
    return load_object(code, program.name, f"test{next(_NUMBERS)}")


def call(program: TileProgram, buffers: Mapping[str, Array], sizes: Sequence[int], target: Target = HOST) -> int:
    """What the kernel returns: 0, or 1 where a check failed. It crashes if it touches anything behind a buffer."""
    kernel = KERNEL(_loaded(program, target).address)
    walled = {buffer.name: _walled(buffers[buffer.name]) for buffer in program.buffers}
    passed = [walled[b.name] for b in program.buffers if b.mode != "scratch"]
    scratch = [walled[b.name] for b in program.buffers if b.mode == "scratch"]
    pointers = (ctypes.c_void_p * max(len(passed), 1))(*(array.ctypes.data for array in passed))
    numbers = (ctypes.c_int64 * len(sizes))(*sizes) if sizes else None
    room = scratch[0].ctypes.data if scratch else None
    status: int = kernel(pointers, numbers, room, 0, grid_steps(program, sizes))
    for name, array in walled.items():
        buffers[name][...] = array
    return status


def run(program: TileProgram, buffers: Mapping[str, Array], sizes: Sequence[int], target: Target = HOST) -> None:
    """A call that must succeed."""
    assert call(program, buffers, sizes, target) == 0


def _walled(array: Array) -> Array:
    """A copy that ends where a page begins that may not be touched."""
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    copy: Array = np.ndarray(array.shape, array.dtype, memory, size - array.nbytes)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    nothing_allowed = 0
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), nothing_allowed) == 0
    copy[...] = array
    return copy
