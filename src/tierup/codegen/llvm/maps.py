"""Map operations on registers: one function for floats, one for integers, one for bools.

Numbers as DESIGN says: no fast-math flags; min and max hand NaN on; integer division by zero gives zero, shifts by the
width or more give zero or the sign. fmod and integer pow write blocks of their own, as some functions in math.py do.
"""

from __future__ import annotations

from collections.abc import Callable

from tierup.codegen.llvm.elements import literal, mangled, register_type, vector
from tierup.codegen.llvm.math import emit as emit_math
from tierup.codegen.llvm.writer import Writer
from tierup.ir.types import DType

_FLOAT_INSTRUCTIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FLOAT_INTRINSICS = {
    "abs": "fabs", "floor": "floor", "ceil": "ceil", "round": "roundeven", "sqrt": "sqrt", "min": "minimum",
    "max": "maximum", "fma": "fma",
}  # fmt: skip
_FLOAT_COMPARE = {"eq": "oeq", "lt": "olt", "le": "ole"}
_INTEGER_INSTRUCTIONS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}


def emit_map(writer: Writer, op: str, dtype: DType, lanes: int, args: list[str], numbers: tuple[bool, ...] = ()) -> str:
    """`op` on values of `dtype` (for `select`, that of the chosen ones). `numbers`: which of them surely are no NaN."""
    if op == "select":
        kind, truth = register_type(dtype, lanes), vector("i1", lanes)
        return writer.value(f"select {truth} {args[0]}, {kind} {args[1]}, {kind} {args[2]}")
    if dtype.is_float and op in ("min", "max") and writer.second_of_nan:
        return _extreme(writer, op, register_type(dtype, lanes), lanes, args, numbers or (False, False))
    if dtype.is_float:
        return _float(writer, op, dtype, lanes, args)
    if dtype is DType.BOOL:
        return _bool(writer, op, lanes, args)
    return _integer(writer, op, dtype, lanes, args)


def _float(writer: Writer, op: str, dtype: DType, lanes: int, args: list[str]) -> str:
    kind = register_type(dtype, lanes)
    if op in _FLOAT_INSTRUCTIONS:
        return writer.value(f"{_FLOAT_INSTRUCTIONS[op]} {kind} {args[0]}, {args[1]}")
    if op in _FLOAT_INTRINSICS:
        name = f"llvm.{_FLOAT_INTRINSICS[op]}.{mangled(kind)}"
        return writer.call(kind, name, *((kind, value) for value in args))
    if op in _FLOAT_COMPARE:
        return writer.value(f"fcmp {_FLOAT_COMPARE[op]} {kind} {args[0]}, {args[1]}")
    if op == "neg":
        return writer.value(f"fneg {kind} {args[0]}")
    if lanes > 1:
        return emit_math(writer, op, dtype, lanes, *args)
    wide = [writer.value(f"insertelement <1 x {kind}> poison, {kind} {value}, i64 0") for value in args]
    result = emit_math(writer, op, dtype, 1, *wide)
    return writer.value(f"extractelement <1 x {kind}> {result}, i64 0")


def _extreme(writer: Writer, op: str, kind: str, lanes: int, args: list[str], numbers: tuple[bool, ...]) -> str:
    """x86's own min or max is the comparison and the choice, and gives its second operand where one is NaN: a NaN in
    the first is put back, unless that surely is a number, as the 0 of a ReLU. Of -0 and 0 it gives the second, as it
    does of all equals: a ReLU leaves -0 as it is. LLVM's minimum and maximum order -0 below 0, too, in twice as many
    instructions, one after the other."""
    first, second = args if numbers[0] or not numbers[1] else reversed(args)
    truth = vector("i1", lanes)
    beats = writer.value(f"fcmp {'olt' if op == 'min' else 'ogt'} {kind} {first}, {second}")
    chosen = writer.value(f"select {truth} {beats}, {kind} {first}, {kind} {second}")
    if any(numbers):
        return chosen
    nan = writer.value(f"fcmp uno {kind} {first}, {first}")
    return writer.value(f"select {truth} {nan}, {kind} {first}, {kind} {chosen}")


def _bool(writer: Writer, op: str, lanes: int, args: list[str]) -> str:
    kind, ones = vector("i1", lanes), literal(DType.BOOL, True, lanes)
    if op == "not":
        return writer.value(f"xor {kind} {args[0]}, {ones}")
    if op in ("and", "min", "or", "max", "xor"):
        word = {"min": "and", "max": "or"}.get(op, op)
        return writer.value(f"{word} {kind} {args[0]}, {args[1]}")
    if op == "eq":
        return writer.value(f"icmp eq {kind} {args[0]}, {args[1]}")
    unsigned = {"lt": "ult", "le": "ule"}[op]
    return writer.value(f"icmp {unsigned} {kind} {args[0]}, {args[1]}")


def _integer(writer: Writer, op: str, dtype: DType, lanes: int, args: list[str]) -> str:
    kind, sign = register_type(dtype, lanes), "s" if dtype.is_signed else "u"
    if op in _INTEGER_INSTRUCTIONS:
        return writer.value(f"{_INTEGER_INSTRUCTIONS[op]} {kind} {args[0]}, {args[1]}")
    if op in ("min", "max"):
        return writer.call(kind, f"llvm.{sign}{op}.{mangled(kind)}", *((kind, value) for value in args))
    if op in ("eq", "lt", "le"):
        word = "eq" if op == "eq" else sign + op
        return writer.value(f"icmp {word} {kind} {args[0]}, {args[1]}")
    if op == "not":
        return writer.value(f"xor {kind} {args[0]}, {literal(dtype, -1, lanes)}")
    if op in ("neg", "abs"):
        negative = writer.value(f"sub {kind} {literal(dtype, 0, lanes)}, {args[0]}")
        if op == "neg" or not dtype.is_signed:
            return negative if op == "neg" else args[0]
        return writer.call(kind, f"llvm.smax.{mangled(kind)}", (kind, args[0]), (kind, negative))
    return _INTEGER_CAREFUL[op](writer, dtype, lanes, args[0], args[1])


def _shift(word: str) -> Callable[[Writer, DType, int, str, str], str]:
    def emit(writer: Writer, dtype: DType, lanes: int, value: str, by: str) -> str:
        """LLVM leaves shifts by the width or more undefined."""
        kind, truth = register_type(dtype, lanes), vector("i1", lanes)
        inside = writer.value(f"icmp ult {kind} {by}, {literal(dtype, dtype.bits, lanes)}")
        arithmetic = word == "shr" and dtype.is_signed
        last = literal(dtype, dtype.bits - 1 if arithmetic else 0, lanes)
        safe = writer.value(f"select {truth} {inside}, {kind} {by}, {kind} {last}")
        name = "shl" if word == "shl" else "ashr" if dtype.is_signed else "lshr"
        shifted = writer.value(f"{name} {kind} {value}, {safe}")
        if arithmetic:
            return shifted  # shifted by the width less one, only the sign is left
        return writer.value(f"select {truth} {inside}, {kind} {shifted}, {kind} {literal(dtype, 0, lanes)}")

    return emit


def _divide(word: str) -> Callable[[Writer, DType, int, str, str], str]:
    def emit(writer: Writer, dtype: DType, lanes: int, a: str, b: str) -> str:
        """By zero: zero. The least integer by -1 wraps. LLVM leaves both undefined."""
        kind, truth, nought = register_type(dtype, lanes), vector("i1", lanes), literal(dtype, 0, lanes)
        bad = writer.value(f"icmp eq {kind} {b}, {nought}")
        one = literal(dtype, 1, lanes)
        minus = None
        if dtype.is_signed:
            minus = writer.value(f"icmp eq {kind} {b}, {literal(dtype, -1, lanes)}")
            bad_or_minus = writer.value(f"or {truth} {bad}, {minus}")
        else:
            bad_or_minus = bad
        safe = writer.value(f"select {truth} {bad_or_minus}, {kind} {one}, {kind} {b}")
        sign = "s" if dtype.is_signed else "u"
        if word == "div":
            result = writer.value(f"{sign}div {kind} {a}, {safe}")
            if minus is not None:
                negative = writer.value(f"sub {kind} {nought}, {a}")
                result = writer.value(f"select {truth} {minus}, {kind} {negative}, {kind} {result}")
        else:
            result = writer.value(f"{sign}rem {kind} {a}, {safe}")
            if word == "mod" and dtype.is_signed:
                result = _floored(writer, dtype, lanes, result, b)
        return writer.value(f"select {truth} {bad}, {kind} {nought}, {kind} {result}")

    return emit


def _floored(writer: Writer, dtype: DType, lanes: int, rest: str, b: str) -> str:
    """A remainder with the sign of b: b is added where the signs differ and something is left."""
    kind, truth, nought = register_type(dtype, lanes), vector("i1", lanes), literal(dtype, 0, lanes)
    left = writer.value(f"icmp ne {kind} {rest}, {nought}")
    signs = writer.value(f"xor {kind} {rest}, {b}")
    differ = writer.value(f"icmp slt {kind} {signs}, {nought}")
    both = writer.value(f"and {truth} {left}, {differ}")
    moved = writer.value(f"add {kind} {rest}, {b}")
    return writer.value(f"select {truth} {both}, {kind} {moved}, {kind} {rest}")


def _power(writer: Writer, dtype: DType, lanes: int, a: str, b: str) -> str:
    """a to the b by squaring, which wraps; to a b below zero it is the reciprocal, truncated."""
    kind, truth, nought, one = (*_kinds(dtype, lanes), literal(dtype, 0, lanes), literal(dtype, 1, lanes))
    start = emit_map(writer, "max", dtype, lanes, [b, nought])
    before, again, done = writer.label, writer.fresh_label("pow"), writer.fresh_label("power")
    writer.jump(again)
    writer.start(again)
    total, square, left = (writer.name() for _ in range(3))
    at = len(writer.lines)  # the phis go here once the values that come round have names
    last = writer.value(f"and {kind} {left}, {one}")
    odd = writer.value(f"icmp ne {kind} {last}, {nought}")
    product = writer.value(f"mul {kind} {total}, {square}")
    next_total = writer.value(f"select {truth} {odd}, {kind} {product}, {kind} {total}")
    next_square = writer.value(f"mul {kind} {square}, {square}")
    next_left = writer.value(f"lshr {kind} {left}, {one}")
    more = writer.value(f"icmp ne {kind} {next_left}, {nought}")
    if lanes > 1:
        more = writer.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", (truth, more))
    rounds = ((total, one, next_total), (square, a, next_square), (left, start, next_left))
    writer.lines[at:at] = [
        f"  {name} = phi {kind} [{first}, %{before}], [{later}, %{again}]" for name, first, later in rounds
    ]
    writer.branch(more, again, done)
    writer.start(done)
    return next_total if not dtype.is_signed else _reciprocal(writer, dtype, lanes, a, b, next_total)


def _reciprocal(writer: Writer, dtype: DType, lanes: int, a: str, b: str, whole: str) -> str:
    """`whole`, but where b is below zero, 1 to it is 1, -1 to it ±1, and everything else 0."""
    kind, truth, nought, one = (*_kinds(dtype, lanes), literal(dtype, 0, lanes), literal(dtype, 1, lanes))
    minus = literal(dtype, -1, lanes)
    last = writer.value(f"and {kind} {b}, {one}")
    even = writer.value(f"icmp eq {kind} {last}, {nought}")
    sign = writer.value(f"select {truth} {even}, {kind} {one}, {kind} {minus}")
    is_one, is_minus = (writer.value(f"icmp eq {kind} {a}, {number}") for number in (one, minus))
    negative = writer.value(f"select {truth} {is_minus}, {kind} {sign}, {kind} {nought}")
    reciprocal = writer.value(f"select {truth} {is_one}, {kind} {one}, {kind} {negative}")
    below = writer.value(f"icmp slt {kind} {b}, {nought}")
    return writer.value(f"select {truth} {below}, {kind} {reciprocal}, {kind} {whole}")


def _kinds(dtype: DType, lanes: int) -> tuple[str, str]:
    return register_type(dtype, lanes), vector("i1", lanes)


_INTEGER_CAREFUL: dict[str, Callable[[Writer, DType, int, str, str], str]] = {
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "div": _divide("div"),
    "mod": _divide("mod"),
    "fmod": _divide("fmod"),
    "pow": _power,
}
