"""ONNX's operator schemas as they lie in `schemas.json`, which `tools/onnx_schemas.py` makes of the `onnx` package.

Asking that package itself takes 15 MiB and its import, at every first start.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

_TABLE = Path(__file__).with_name("schemas.json")


class FormalRow(msgspec.Struct, frozen=True, array_like=True):
    """A formal input: the type variable that it binds (empty: none), and the number of the types that it takes."""

    name: str
    variable: str
    types: int
    required: bool


class SchemaRow(msgspec.Struct, frozen=True, array_like=True):
    """An operator from one opset on."""

    version: int
    deprecated: bool
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    required: tuple[str, ...]
    defaults: dict[str, int | float | str | tuple[int | float | str, ...]]
    kinds: dict[str, int]
    formals: tuple[FormalRow, ...]
    variadic: FormalRow | None
    homogeneous: bool


class Table(msgspec.Struct, frozen=True):
    """The newest opset of ai.onnx, sets of types, and by domain and operator its rows, which are read when needed."""

    opset: int
    types: list[tuple[str, ...]]
    ops: dict[str, dict[str, msgspec.Raw]]


@cache
def table() -> Table:
    return msgspec.json.decode(_TABLE.read_bytes(), type=Table)


def row_of(domain: str, name: str, opset: int) -> SchemaRow | None:
    """The row in force; None if there is none."""
    packed = table().ops.get(domain, {}).get(name)
    rows = [] if packed is None else msgspec.json.decode(packed, type=list[SchemaRow])
    return max((row for row in rows if row.version <= opset), key=lambda row: row.version, default=None)
