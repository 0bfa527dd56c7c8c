"""Reductions of registers: across registers pairwise, then across lanes by halves."""

from __future__ import annotations

from collections.abc import Callable

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


def _numbers(start: int, count: int) -> str:
    return "<" + ", ".join(f"i32 {start + i}" for i in range(count)) + ">"
