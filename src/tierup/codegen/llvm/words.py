"""Products of what lies side by side in 32-bit words: one instruction where the machine has it, else part by part."""

from __future__ import annotations

from tierup.codegen.llvm.elements import flushed, literal, register_type
from tierup.codegen.llvm.maps import emit_map
from tierup.codegen.llvm.writer import Writer
from tierup.codegen.target import Target
from tierup.ir.types import DType

_WIDTHS = {4: 128, 8: 256, 16: 512}  # lanes -> bits of a register


def emit_word_dot(writer: Writer, op: str, lanes: int, args: list[str], target: Target) -> str:
    """args[2] plus the products of the parts of args[0] and args[1], which are i32."""
    whole = op in target.dots and lanes in _WIDTHS
    if op == "dot_bytes":
        return _bytes_at_once(writer, lanes, args) if whole else _bytes(writer, lanes, args)
    return _pairs_at_once(writer, lanes, args) if whole else _pairs(writer, lanes, args)


def _bytes_at_once(writer: Writer, lanes: int, args: list[str]) -> str:
    words, total = f"<{4 * lanes} x i8>", register_type(DType.I32, lanes)
    a, b = (writer.value(f"bitcast {total} {arg} to {words}") for arg in args[:2])
    return writer.call(total, f"llvm.x86.avx512.vpdpbusd.{_WIDTHS[lanes]}", (total, args[2]), (words, a), (words, b))


def _pairs_at_once(writer: Writer, lanes: int, args: list[str]) -> str:
    ints, total, pairs = register_type(DType.I32, lanes), register_type(DType.F32, lanes), f"<{2 * lanes} x bfloat>"
    a, b = (writer.value(f"bitcast {ints} {arg} to {pairs}") for arg in args[:2])
    return writer.call(
        total, f"llvm.x86.avx512bf16.dpbf16ps.{_WIDTHS[lanes]}", (total, args[2]), (pairs, a), (pairs, b)
    )


def _bytes(writer: Writer, lanes: int, args: list[str]) -> str:
    kind, total = register_type(DType.I32, lanes), args[2]
    top = literal(DType.I32, 24, lanes)
    for number in range(4):
        above = literal(DType.I32, 24 - 8 * number, lanes)
        left, right = (writer.value(f"shl {kind} {arg}, {above}") for arg in args[:2])
        x, y = writer.value(f"lshr {kind} {left}, {top}"), writer.value(f"ashr {kind} {right}, {top}")
        product = writer.value(f"mul {kind} {x}, {y}")
        total = writer.value(f"add {kind} {total}, {product}")
    return total


def _pairs(writer: Writer, lanes: int, args: list[str]) -> str:
    ints, floats, total = register_type(DType.I32, lanes), register_type(DType.F32, lanes), args[2]
    upper, half = literal(DType.I32, -65536, lanes), literal(DType.I32, 16, lanes)
    for part in (f"and {ints} {{}}, {upper}", f"shl {ints} {{}}, {half}"):
        bits = (writer.value(part.format(arg)) for arg in args[:2])
        x, y = (flushed(writer, writer.value(f"bitcast {ints} {each} to {floats}"), lanes) for each in bits)
        total = emit_map(writer, "fma", DType.F32, lanes, [x, y, total])
    return total
