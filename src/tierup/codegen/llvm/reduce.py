"""Reductions of registers: across registers pairwise, then across lanes by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tierup.codegen.llvm.elements import register_type
from tierup.codegen.llvm.maps import emit_map
from tierup.codegen.llvm.writer import Writer
from tierup.ir.types import DType


def _least(dtype: DType) -> float:
    if dtype is DType.BOOL:
        return False
    return -np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def _largest(dtype: DType) -> float:
    if dtype is DType.BOOL:
        return True
    return np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max)


# What changes nothing.
IDENTITY: dict[str, Callable[[DType], float]] = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "max": _least,
    "min": _largest,
    "and": lambda dtype: -1,
    "or": lambda dtype: 0,
}
_OPS = {"sum": "add", "prod": "mul"}
_BLOCK_BITS = 128  # shuffles within blocks of this size are single instructions


def emit_reduce(writer: Writer, op: str, dtype: DType, lanes: int, registers: list[str], *, to_scalar: bool) -> str:
    """All registers combined into one, and with `to_scalar` all its lanes into one element."""
    combine = _OPS.get(op, op)
    while len(registers) > 1:
        pairs = zip(registers[::2], registers[1::2], strict=False)
        joined = [emit_map(writer, combine, dtype, lanes, [a, b]) for a, b in pairs]
        registers = joined + registers[len(registers) - len(registers) % 2 :]
    (total,) = registers
    if not to_scalar or lanes == 1:
        return total
    while lanes % 2 == 0:
        half, kind = lanes // 2, register_type(dtype, lanes)
        low, high = (
            writer.value(f"shufflevector {kind} {total}, {kind} poison, <{half} x i32> {_numbers(start, half)}")
            for start in (0, half)
        )
        if half == 1:
            low, high = (
                writer.value(f"extractelement <1 x {register_type(dtype, 1)}> {v}, i64 0") for v in (low, high)
            )
        total, lanes = emit_map(writer, combine, dtype, half, [low, high]), half
    if lanes == 1:
        return total
    kind = register_type(dtype, lanes)
    single = [writer.value(f"extractelement {kind} {total}, i64 {lane}") for lane in range(lanes)]
    return emit_reduce(writer, op, dtype, 1, single, to_scalar=True)


def emit_reduce_rows(writer: Writer, op: str, dtype: DType, lanes: int, rows: list[str]) -> str:
    """The lanes of each register combined into one element: a register with as many lanes as there are registers.

    Both numbers are powers of two. Registers are put together by two, half of the lanes of each, and the halves are
    combined: three instructions for two registers, where each by itself takes two at every halving.
    """
    combine, together = _OPS.get(op, op), 1  # how many rows share a register, their elements side by side
    while len(rows) > 1:
        pairs = zip(rows[::2], rows[1::2], strict=True)
        halves = _halves_of_two(dtype, lanes, together)
        rows = [_combined(writer, combine, dtype, lanes, a, b, halves) for a, b in pairs]
        together *= 2
    (total,) = rows
    while lanes > together:
        lanes //= 2
        halves = [range(lanes), range(lanes, 2 * lanes)]
        total = _combined(writer, combine, dtype, 2 * lanes, total, "poison", halves)
    return total


def _halves_of_two(dtype: DType, lanes: int, together: int) -> list[Sequence[int]]:
    """Lanes of two registers, which count on: those of one half of both, then those of the other half.

    Halves are those of blocks as long as a block has them: shuffles within blocks are the cheapest.
    """
    block = min(lanes, _BLOCK_BITS // max(32, dtype.bits))
    span = block if together < block else lanes
    low = [
        first + place * together + number + side * lanes
        for first in range(0, lanes, span)
        for place in range(span // together // 2)
        for side in (0, 1)
        for number in range(together)
    ]
    return [low, [number + span // 2 for number in low]]


def _combined(
    writer: Writer, combine: str, dtype: DType, lanes: int, a: str, b: str, halves: Sequence[Sequence[int]]
) -> str:
    """Lanes of two registers, picked in two ways, and combined."""
    kind, picked = register_type(dtype, lanes), list[str]()
    for numbers in halves:
        listed = ", ".join(f"i32 {number}" for number in numbers)
        picked.append(writer.value(f"shufflevector {kind} {a}, {kind} {b}, <{len(numbers)} x i32> <{listed}>"))
    return emit_map(writer, combine, dtype, len(halves[0]), picked)


def _numbers(start: int, count: int) -> str:
    return "<" + ", ".join(f"i32 {start + i}" for i in range(count)) + ">"
