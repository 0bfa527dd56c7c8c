"""The op table: one row for each op that a graph may hold.

A row names the op, says in one line what it does, and holds its type rule (which also records its dim program), the
function in `tierup.reference` that computes it, and what kind of node it makes. Ops of ONNX's own domains have their
arity and attributes checked against the schemas that the `onnx` package ships; other domains state a `Signature`.
"""

from __future__ import annotations

from functools import cache

from tierup.ir.ops.row import Kind, Op, Signature

__all__ = ["Kind", "Op", "Signature", "lookup", "table"]


@cache
def table() -> dict[str, Op]:
    """Every row by name. Built on first use: importing the families costs some milliseconds."""
    from tierup.ir.ops import (
        control,
        core,
        elementwise,
        generate,
        matrix,
        microsoft,
        ml,
        movement,
        nn,
        quant,
        recurrent,
        reduce,
        select,
        sequence,
        signal,
        text,
        training,
        vision,
    )

    families = (
        core, elementwise, generate, movement, select, reduce, matrix, nn, vision, recurrent, signal, quant, control,
        sequence, text, ml, training, microsoft,
    )  # fmt: skip
    rows: dict[str, Op] = {}
    for family in families:
        for row in family.OPS:
            if row.name in rows:
                raise AssertionError(f"op {row.name} has two rows")
            rows[row.name] = row
    return rows


def lookup(name: str) -> Op | None:
    """The row of op `name`, if there is one."""
    return table().get(name)
