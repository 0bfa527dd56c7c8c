"""Reads relocatable ELF objects, as LLVM writes them: 64 bits, little-endian, relocations with addends.

The bytes are not trusted. Whatever they are, the answer is an `ObjectFile` in which every section lies inside the bytes
and every number names something that exists, or a ValueError that says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NoReturn

import msgspec

LIMIT_BYTES = 64 << 20
ALIGNMENT_LIMIT = 4096
X86_64 = 62  # a machine
PROGRAM_BITS, NO_BITS, X86_UNWIND = 1, 8, 0x7000_0001  # kinds of sections
WRITE, ALLOC, EXECUTE, THREAD_LOCAL = 1, 2, 4, 1 << 10  # flags of sections
UNDEFINED, RESERVED = 0, 0xFF00  # numbers of sections that symbols name; from RESERVED on they name none
FUNCTION, SECTION = 2, 3  # kinds of symbols

_RELOCATABLE, _SYMBOL_TABLE, _STRINGS, _RELA, _REL = 1, 2, 3, 4, 9
_FILE, _HEADER = struct.Struct("<16xHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
_SYMBOL, _RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")


class Section(msgspec.Struct, frozen=True):
    """A stretch of the object. `data` is what lies in it; nothing where it takes no room in the file."""

    kind: int
    flags: int
    alignment: int
    size: int
    data: bytes


class Symbol(msgspec.Struct, frozen=True):
    """A name for `value` bytes into section `section`."""

    name: str
    kind: int
    is_local: bool
    section: int
    value: int
    size: int


class Relocation(msgspec.Struct, frozen=True):
    """The place `offset` bytes into a section depends on where symbol number `symbol` will lie."""

    offset: int
    kind: int
    symbol: int
    addend: int


class ObjectFile(msgspec.Struct, frozen=True):
    """One object. `relocations` has those of each section that has any, by the section's number."""

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: dict[int, tuple[Relocation, ...]]


def undefined(code: bytes) -> list[str]:
    """Names of the symbols that an object needs from elsewhere."""
    symbols = read_object(code).symbols
    return [symbol.name for symbol in symbols if symbol.section == UNDEFINED and symbol.name]


def read_object(code: bytes) -> ObjectFile:
    """The object in `code`; ValueError if it is none, or damaged."""
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("object code is not 64-bit little-endian ELF")
    if len(code) > LIMIT_BYTES:
        raise ValueError(f"object code is larger than {LIMIT_BYTES >> 20} MiB")
    return _Reader(code).read()


class _Reader:
    def __init__(self, code: bytes) -> None:
        self.code = code
        self.headers: list[tuple[int, ...]] = []

    def read(self) -> ObjectFile:
        if len(self.code) < _FILE.size:
            self.refuse("it ends in its header")
        kind, machine, _, _, _, table_at, _, _, _, _, entry_bytes, count, _ = _FILE.unpack_from(self.code)
        if kind != _RELOCATABLE or entry_bytes != _HEADER.size:
            self.refuse("it is no relocatable object")
        table = self.cut(table_at, count * _HEADER.size)
        self.headers = list(_HEADER.iter_unpack(table))
        sections = tuple(self.section(header) for header in self.headers)
        tables = [number for number, header in enumerate(self.headers) if header[1] == _SYMBOL_TABLE]
        if len(tables) != 1:
            self.refuse(f"it has {len(tables)} symbol tables")
        symbols = tuple(self.symbols(tables[0], sections))
        return ObjectFile(machine, sections, symbols, self.relocations(tables[0], sections, len(symbols)))

    def refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"object code is damaged: {reason}")

    def cut(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.code):
            self.refuse("a part of it lies beyond its end")
        return self.code[offset : offset + size]

    def section(self, header: tuple[int, ...]) -> Section:
        _, kind, flags, _, offset, size, _, _, alignment, _ = header
        alignment = max(alignment, 1)
        if alignment & (alignment - 1) or alignment > ALIGNMENT_LIMIT:
            self.refuse(f"a section is aligned to {alignment} bytes")
        data = b"" if kind in (0, NO_BITS) else self.cut(offset, size)
        return Section(kind, flags, alignment, size, data)

    def symbols(self, table: int, sections: tuple[Section, ...]) -> Iterator[Symbol]:
        link = self.headers[table][6]
        if link >= len(sections) or sections[link].kind != _STRINGS:
            self.refuse("its symbols have no names")
        strings, data = sections[link].data, sections[table].data
        if len(data) % _SYMBOL.size:
            self.refuse("its symbol table ends in a symbol")
        for name_at, info, _, section, value, size in _SYMBOL.iter_unpack(data):
            if section < RESERVED:
                if section >= len(sections):
                    self.refuse(f"a symbol lies in section {section} of {len(sections)}")
                if section != UNDEFINED and value + size > sections[section].size:
                    self.refuse("a symbol lies beyond its section")
            end = strings.find(b"\0", name_at)
            if end < 0:
                self.refuse("a symbol's name has no end")
            name = strings[name_at:end].decode(errors="replace")
            yield Symbol(name, info & 15, info >> 4 == 0, section, value, size)

    def relocations(
        self, table: int, sections: tuple[Section, ...], n_symbols: int
    ) -> dict[int, tuple[Relocation, ...]]:
        found: dict[int, tuple[Relocation, ...]] = {}
        for header, section in zip(self.headers, sections, strict=True):
            link, target = header[6], header[7]
            if section.kind == _REL:
                self.refuse("it has relocations without addends")
            if section.kind != _RELA:
                continue
            if link != table or target >= len(sections) or target in found or len(section.data) % _RELOCATION.size:
                self.refuse("its relocations belong to nothing")
            found[target] = tuple(self.places(section.data, sections[target], n_symbols))
        return found

    def places(self, data: bytes, section: Section, n_symbols: int) -> Iterator[Relocation]:
        for offset, info, addend in _RELOCATION.iter_unpack(data):
            if offset >= len(section.data) or info >> 32 >= n_symbols:
                self.refuse("a relocation names a place or a symbol that does not exist")
            yield Relocation(offset, info & 0xFFFF_FFFF, info >> 32, addend)
