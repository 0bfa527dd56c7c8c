"""Just enough of ELF to see which symbols an object needs from elsewhere."""

from __future__ import annotations

import struct

_SYMBOL_TABLE, _SECTION_BYTES, _SYMBOL_BYTES = 2, 64, 24


def undefined(code: bytes) -> list[str]:
    """Names of undefined symbols of a 64-bit little-endian object; ValueError if it is none."""
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("object code is not 64-bit little-endian ELF")
    try:
        table_at, (entry_bytes, count) = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<HH", code, 58)
        if entry_bytes != _SECTION_BYTES:
            raise ValueError("object code has sections of an unknown form")
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", code, table_at + index * _SECTION_BYTES) for index in range(count)
        ]
        names: list[str] = []
        for _, kind, _, _, offset, size, link, *_ in sections:
            if kind == _SYMBOL_TABLE:
                names += _undefined_in(code, offset, size, sections[link][4], sections[link][5])
        return names
    except (struct.error, IndexError) as error:
        raise ValueError("object code is damaged") from error


def _undefined_in(code: bytes, offset: int, size: int, strings: int, strings_bytes: int) -> list[str]:
    found = []
    for at in range(offset + _SYMBOL_BYTES, offset + size, _SYMBOL_BYTES):  # the first symbol is always empty
        name, _, _, section = struct.unpack_from("<IBBH", code, at)
        if section == 0 and name:
            text = code[strings + name : strings + strings_bytes].split(b"\0", 1)[0]
            found.append(text.decode(errors="replace"))
    return found
