"""Elements of each dtype in LLVM: in memory, in registers, and the ways between."""

from __future__ import annotations

from tierup.codegen.llvm import small_floats
from tierup.codegen.llvm.writer import Writer
from tierup.ir.types import DType

# In registers; f16 and bf16 are computed in f32 and appear in memory only.
_REGISTER = {
    DType.F32: "float", DType.F64: "double", DType.BOOL: "i1", DType.I8: "i8", DType.U8: "i8", DType.I16: "i16",
    DType.U16: "i16", DType.I32: "i32", DType.U32: "i32", DType.I64: "i64", DType.U64: "i64",
}  # fmt: skip
_MEMORY = {
    **_REGISTER, DType.BOOL: "i8", DType.F16: "half", DType.BF16: "i16", **dict.fromkeys(small_floats.FORMATS, "i8"),
}  # fmt: skip
_ROUNDED = {8: 256, 16: 512}  # lanes that AVX-512 rounds to bf16 in one instruction -> bits of a register
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def register_type(dtype: DType, lanes: int) -> str:
    """LLVM's type of a value; one lane is a scalar."""
    return vector(_REGISTER[dtype], lanes)


def memory_type(dtype: DType, lanes: int) -> str:
    """LLVM's type of the same elements in memory."""
    return vector(_MEMORY[dtype], lanes)


def element_bytes(dtype: DType) -> int:
    """Bytes of one element in memory."""
    return dtype.numpy.itemsize


def vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def mangled(kind: str) -> str:
    """How intrinsics are named after a type: `v16f32`, `i64`, `f32`."""
    if kind.startswith("<"):
        count, _, element = kind[1:-1].split(" ")
        return f"v{count}{_SUFFIX.get(element, element)}"
    return _SUFFIX.get(kind, kind)


def literal(dtype: DType, value: float, lanes: int) -> str:
    """A constant as text, in as many lanes."""
    if dtype in (DType.F32, DType.F64):
        text = _float_text(dtype, value)
    elif dtype is DType.BOOL:
        text = "true" if value else "false"
    else:
        bits = dtype.bits
        text = str((int(value) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))
    if lanes == 1:
        return text
    element = _REGISTER[dtype]
    return "<" + ", ".join([f"{element} {text}"] * lanes) + ">"


def _float_text(dtype: DType, value: float) -> str:
    """LLVM takes floats exactly as the bits of a double."""
    import numpy as np

    rounded = np.float32(value) if dtype is DType.F32 else np.float64(value)
    return f"0x{np.float64(rounded).view(np.uint64):016X}"


def from_memory(writer: Writer, value: str, stored: DType, wanted: DType, lanes: int) -> str:
    """An element as it was loaded, as a value of the dtype to compute in."""
    if stored is DType.BOOL:
        value = writer.value(f"icmp ne {memory_type(stored, lanes)} {value}, {zero(stored, lanes)}")
        return convert(writer, value, DType.BOOL, wanted, lanes)
    if stored is DType.F16:
        wide = writer.value(f"fpext {memory_type(stored, lanes)} {value} to {register_type(DType.F32, lanes)}")
        return convert(writer, wide, DType.F32, wanted, lanes)
    if stored is DType.BF16:
        ints = vector("i32", lanes)
        wide = writer.value(f"zext {memory_type(stored, lanes)} {value} to {ints}")
        high = writer.value(f"shl {ints} {wide}, {literal(DType.I32, 16, lanes)}")
        value = writer.value(f"bitcast {ints} {high} to {register_type(DType.F32, lanes)}")
        return convert(writer, value, DType.F32, wanted, lanes)
    if stored in small_floats.FORMATS:
        return convert(writer, small_floats.decode(writer, value, stored, lanes), DType.F32, wanted, lanes)
    return convert(writer, value, stored, wanted, lanes)


def zero(dtype: DType, lanes: int) -> str:
    """Zero as it lies in memory."""
    return "0" if lanes == 1 else "zeroinitializer"


def to_memory(
    writer: Writer,
    value: str,
    computed: DType,
    stored: DType,
    lanes: int,
    *,
    flush: bool = False,
    at_once: bool = False,
) -> str:
    """A value as it is stored. With `flush`, denormals become zero where it is rounded to bf16; `at_once`: they may,
    and the machine rounds by itself, which makes them so."""
    if stored is DType.BOOL:
        value = convert(writer, value, computed, DType.BOOL, lanes)
        return writer.value(f"zext {register_type(DType.BOOL, lanes)} {value} to {memory_type(stored, lanes)}")
    if stored is DType.F16:
        value = convert(writer, value, computed, DType.F32, lanes)
        # kept apart from a rounding f64 -> f32 before it: LLVM would join the two, and call a library for f64 -> f16
        value = writer.value(f"freeze {register_type(DType.F32, lanes)} {value}")
        return writer.value(f"fptrunc {register_type(DType.F32, lanes)} {value} to {memory_type(stored, lanes)}")
    if stored is DType.BF16:
        value = convert(writer, value, computed, DType.F32, lanes)
        if at_once and lanes in _ROUNDED:
            return _rounded_at_once(writer, value, lanes)
        return _round_to_bf16(writer, flushed(writer, value, lanes) if flush else value, lanes)
    if stored in small_floats.FORMATS:
        return small_floats.encode(writer, convert(writer, value, computed, DType.F32, lanes), stored, lanes)
    return convert(writer, value, computed, stored, lanes)


def _rounded_at_once(writer: Writer, value: str, lanes: int) -> str:
    floats, halves = register_type(DType.F32, lanes), f"<{lanes} x bfloat>"
    rounded = writer.call(halves, f"llvm.x86.avx512bf16.cvtneps2bf16.{_ROUNDED[lanes]}", (floats, value))
    return writer.value(f"bitcast {halves} {rounded} to {memory_type(DType.BF16, lanes)}")


def flushed(writer: Writer, value: str, lanes: int) -> str:
    """A float of f32, or zero of its sign where it is a denormal."""
    floats, ints = register_type(DType.F32, lanes), vector("i32", lanes)
    bits = writer.value(f"bitcast {floats} {value} to {ints}")
    exponent = writer.value(f"and {ints} {bits}, {literal(DType.I32, 0x7F800000, lanes)}")
    none = writer.value(f"icmp eq {ints} {exponent}, {literal(DType.I32, 0, lanes)}")
    sign = writer.value(f"and {ints} {bits}, {literal(DType.I32, -0x80000000, lanes)}")
    kept = writer.value(f"select {vector('i1', lanes)} {none}, {ints} {sign}, {ints} {bits}")
    return writer.value(f"bitcast {ints} {kept} to {floats}")


def _round_to_bf16(writer: Writer, value: str, lanes: int) -> str:
    """The upper half, rounded to nearest even by adding 0x7FFF and the lowest kept bit; NaN stays a quiet NaN."""
    floats, ints = register_type(DType.F32, lanes), vector("i32", lanes)
    bits = writer.value(f"bitcast {floats} {value} to {ints}")
    upper = writer.value(f"lshr {ints} {bits}, {literal(DType.I32, 16, lanes)}")
    odd = writer.value(f"and {ints} {upper}, {literal(DType.I32, 1, lanes)}")
    bias = writer.value(f"add {ints} {odd}, {literal(DType.I32, 0x7FFF, lanes)}")
    rounded = writer.value(f"add {ints} {bits}, {bias}")
    kept = writer.value(f"lshr {ints} {rounded}, {literal(DType.I32, 16, lanes)}")
    quiet = writer.value(f"or {ints} {upper}, {literal(DType.I32, 0x40, lanes)}")
    nan = writer.value(f"fcmp uno {floats} {value}, {value}")
    chosen = writer.value(f"select {vector('i1', lanes)} {nan}, {ints} {quiet}, {ints} {kept}")
    return writer.value(f"trunc {ints} {chosen} to {vector('i16', lanes)}")


def convert(writer: Writer, value: str, source: DType, wanted: DType, lanes: int, *, fits: bool = False) -> str:
    """Between dtypes that registers hold, as `core.cast` defines it. `fits`: floats are integers of 32 bits for sure,
    but for their fractions."""
    if source is wanted:
        return value
    before, after = register_type(source, lanes), register_type(wanted, lanes)
    if wanted is DType.BOOL:
        nought = literal(source, 0, lanes)
        return writer.value(f"{'fcmp une' if source.is_float else 'icmp ne'} {before} {value}, {nought}")
    if source.is_float and wanted.is_float:
        return writer.value(f"{'fpext' if wanted is DType.F64 else 'fptrunc'} {before} {value} to {after}")
    if source.is_float and fits and wanted.bits <= DType.I32.bits:
        exact = writer.value(f"fptosi {before} {value} to {register_type(DType.I32, lanes)}")
        return convert(writer, exact, DType.I32, wanted, lanes)
    if source.is_float:
        return _float_to_integer(writer, value, source, wanted, lanes)
    signed = source.is_signed
    if wanted.is_float:
        return writer.value(f"{'sitofp' if signed else 'uitofp'} {before} {value} to {after}")
    bits = 1 if source is DType.BOOL else source.bits
    if bits == wanted.bits:
        return value
    word = "trunc" if bits > wanted.bits else "sext" if signed else "zext"
    return writer.value(f"{word} {before} {value} to {after}")


def _float_to_integer(writer: Writer, value: str, source: DType, wanted: DType, lanes: int) -> str:
    """As `reference/cast.py`: through i32, or i64 for 64-bit results, and then the low bits."""
    carrier = DType.I64 if wanted.bits == 64 else DType.I32
    if wanted not in (DType.U32, DType.U64):
        return convert(writer, _truncated(writer, value, source, carrier, lanes), carrier, wanted, lanes)
    # the upper half of an unsigned range: less half, and the top bit flipped afterwards
    floats, ints, truth = register_type(source, lanes), register_type(carrier, lanes), vector("i1", lanes)
    half = literal(source, 2.0 ** (carrier.bits - 1), lanes)
    upper = writer.value(f"fcmp oge {floats} {value}, {half}")
    lower = writer.value(f"fsub {floats} {value}, {half}")
    reduced = writer.value(f"select {truth} {upper}, {floats} {lower}, {floats} {value}")
    exact = _truncated(writer, reduced, source, carrier, lanes)
    flipped = writer.value(f"xor {ints} {exact}, {literal(carrier, -(2 ** (carrier.bits - 1)), lanes)}")
    return writer.value(f"select {truth} {upper}, {ints} {flipped}, {ints} {exact}")


def _truncated(writer: Writer, value: str, source: DType, carrier: DType, lanes: int) -> str:
    """Towards zero; the carrier's least value for NaN and for what does not fit."""
    floats, ints, truth = register_type(source, lanes), register_type(carrier, lanes), vector("i1", lanes)
    half = 2.0 ** (carrier.bits - 1)
    # LLVM takes its saturating conversion apart lane by lane; a plain one is one instruction, of numbers that fit
    high = writer.value(f"fcmp oge {floats} {value}, {literal(source, -half, lanes)}")
    low = writer.value(f"fcmp olt {floats} {value}, {literal(source, half, lanes)}")
    fits = writer.value(f"and {truth} {high}, {low}")
    inside = writer.value(f"select {truth} {fits}, {floats} {value}, {floats} {literal(source, 0.0, lanes)}")
    exact = writer.value(f"fptosi {floats} {inside} to {ints}")
    return writer.value(f"select {truth} {fits}, {ints} {exact}, {ints} {literal(carrier, -half, lanes)}")
