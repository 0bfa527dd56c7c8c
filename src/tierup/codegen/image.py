"""Object code -> images: kernels that run wherever they are copied to, so that no linker is needed to load them.

An image is one kernel: bytes that begin with its first instruction, followed by the constants it reads. Everything in
it is reached relative to the instruction pointer, so it may lie on any border of `ALIGNMENT` bytes, in memory that is
never written. What cannot be made so is refused with a reason: addresses that only the loader would know, data that is
written, functions of others.

LLVM writes a batch of kernels as one section of code and a few sections of constants. The code is cut at the functions'
symbols, and each image gets those constants' sections that its function mentions.
"""

from __future__ import annotations

import struct

import msgspec

from tierup.codegen.elf import (
    ALLOC,
    EXECUTE,
    FUNCTION,
    PROGRAM_BITS,
    RESERVED,
    SECTION,
    THREAD_LOCAL,
    UNDEFINED,
    WRITE,
    X86_64,
    X86_UNWIND,
    ObjectFile,
    Relocation,
    Symbol,
    read_object,
)
from tierup.codegen.target import Target

ALIGNMENT = 64
FUNCTION_LIMIT = 1024
LIMIT_BYTES = 64 << 20  # of all images of an object

_PC32, _PLT32 = 2, 4  # S + A - P in 32 bits; with no functions of others, the second is the first
_FUNCTION_ALIGNMENT = 16  # LLVM's, on x86-64
_INT3 = b"\xcc"


def runs_images(target: Target) -> bool:
    """Whether kernels for this target are kept as images. Elsewhere LLVM loads their objects."""
    return target.triple.startswith("x86_64-")


def images(code: bytes) -> dict[str, bytes]:
    """The image of each global function of an x86-64 object; ValueError says why there is none."""
    read = read_object(code)
    if read.machine != X86_64:
        raise ValueError("object code is not for x86-64")
    linker = _Linker(read)
    found: dict[str, bytes] = {}
    for function in linker.entries():
        found[function.name] = linker.image(function)
        if sum(map(len, found.values())) > LIMIT_BYTES:
            raise ValueError(f"the kernels of one object are larger than {LIMIT_BYTES >> 20} MiB")
    return found


class _Piece(msgspec.Struct, frozen=True):
    """Bytes of one section that stay together: a function, or a section of constants."""

    section: int
    start: int
    end: int


class _Linker:
    def __init__(self, read: ObjectFile) -> None:
        self.read = read
        self.functions = self._cut_code()
        self._check_sections()

    def entries(self) -> list[Symbol]:
        """The functions that others may call."""
        found = [s for s in self.read.symbols if s.kind == FUNCTION and not s.is_local and s.section in self.functions]
        if len(found) > FUNCTION_LIMIT:
            raise ValueError(f"object code has more than {FUNCTION_LIMIT} functions")
        return found

    def image(self, function: Symbol) -> bytes:
        """Lay out the function, then what it needs, then what that needs; then fill in the distances."""
        pending = [self._piece(function)]
        places: dict[_Piece, int] = {}
        relocations: dict[_Piece, list[Relocation]] = {}
        end = 0
        while pending:
            piece = pending.pop(0)
            if piece in places:
                continue
            alignment = max(self.read.sections[piece.section].alignment, _FUNCTION_ALIGNMENT)
            places[piece] = -(-end // alignment) * alignment
            end = places[piece] + piece.end - piece.start
            relocations[piece] = self._relocations(piece)
            pending.extend(self._piece(self.read.symbols[r.symbol]) for r in relocations[piece])
        out = bytearray(_INT3 * end)
        for piece, place in places.items():
            out[place : place + piece.end - piece.start] = self.read.sections[piece.section].data[
                piece.start : piece.end
            ]
        for piece, found in relocations.items():
            for relocation in found:
                self._fill_in(out, piece, relocation, places)
        return bytes(out)

    def _fill_in(self, out: bytearray, piece: _Piece, relocation: Relocation, places: dict[_Piece, int]) -> None:
        if relocation.kind not in (_PC32, _PLT32):
            raise ValueError(f"object code has a relocation of kind {relocation.kind}, which needs an absolute address")
        symbol = self.read.symbols[relocation.symbol]
        target = self._piece(symbol)
        at = places[piece] + relocation.offset - piece.start
        if at + 4 > places[piece] + piece.end - piece.start:
            raise ValueError("object code is damaged: a relocation lies across an end")
        distance = places[target] + symbol.value - target.start + relocation.addend - at
        if not -(1 << 31) <= distance < 1 << 31:
            raise ValueError("object code has a relocation that reaches too far")
        struct.pack_into("<i", out, at, distance)

    def _piece(self, symbol: Symbol) -> _Piece:
        """What holds the thing that a symbol names."""
        if symbol.section == UNDEFINED:
            raise ValueError(f"a kernel calls {symbol.name[:100]}, but a kernel calls nothing")
        if symbol.section >= RESERVED:
            raise ValueError(f"object code has no section for {symbol.name[:100]!r}")
        section = self.read.sections[symbol.section]
        if section.kind != PROGRAM_BITS or not section.flags & ALLOC:
            raise ValueError(f"object code refers to {symbol.name[:100]!r}, which is not loaded")
        if not section.flags & EXECUTE:
            return _Piece(symbol.section, 0, section.size)
        pieces = self.functions[symbol.section]
        if symbol.kind == SECTION and len(pieces) > 1:
            # Jump tables count from their own start, so which of the functions is meant cannot be told.
            raise ValueError("object code refers to one of several functions by its section")
        for piece in pieces:
            if piece.start <= symbol.value < piece.end:
                return piece
        raise ValueError(f"object code refers to {symbol.name[:100]!r}, which lies in no function")

    def _relocations(self, piece: _Piece) -> list[Relocation]:
        return [r for r in self.read.relocations.get(piece.section, ()) if piece.start <= r.offset < piece.end]

    def _check_sections(self) -> None:
        for section in self.read.sections:
            if not section.flags & ALLOC or section.size == 0 or section.kind == X86_UNWIND:
                continue
            if section.flags & (WRITE | THREAD_LOCAL) or section.kind != PROGRAM_BITS:
                raise ValueError("object code has data that is written")
            if section.alignment > ALIGNMENT:
                raise ValueError(f"object code is aligned to {section.alignment} bytes, more than {ALIGNMENT}")

    def _cut_code(self) -> dict[int, list[_Piece]]:
        """The functions of each section of code, in order.

        A function can only be taken out if no other one reaches it without a relocation. LLVM leaves those out for
        functions that others cannot see: local ones, and private ones, which have no symbol and show as a gap.
        """
        cut: dict[int, list[_Piece]] = {}
        for number, section in enumerate(self.read.sections):
            if not section.flags & ALLOC or not section.flags & EXECUTE:
                continue
            symbols = [s for s in self.read.symbols if s.section == number and s.kind == FUNCTION]
            pieces = sorted({_Piece(number, s.value, s.value + s.size) for s in symbols}, key=lambda p: p.start)
            edges = [0, *(edge for piece in pieces for edge in (piece.start, piece.end)), section.size]
            gaps = [after - before for before, after in zip(edges[::2], edges[1::2], strict=True)]
            if any(not 0 <= gap < _FUNCTION_ALIGNMENT for gap in gaps):
                raise ValueError("object code has code that belongs to no function")
            if len(pieces) > 1 and any(s.is_local for s in symbols):
                raise ValueError("object code has a local function beside others")
            cut[number] = pieces
        return cut
