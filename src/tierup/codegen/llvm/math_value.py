"""Vectors as Python values: an operator on them writes the LLVM instruction that it stands for.

Comes in: names of values that the writer has written. Goes out: names of the results. Nothing is folded or reordered,
no fast-math flag is ever written, and the only functions called are intrinsics that become instructions on every target
with fused multiply-add.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct

from tierup.codegen.llvm.writer import Writer


class Format(Struct, frozen=True, dict=True):
    """How an IEEE format lays out its bits, under LLVM's names."""

    kind: str
    integer: str
    digits: int  # explicit bits of the significand
    bias: int

    @cached_property
    def shifter(self) -> float:
        """Adding 1.5 · 2^digits rounds to the nearest integer and leaves it in the low bits."""
        return 1.5 * 2.0**self.digits

    @cached_property
    def least(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    def bits(self, number: float) -> int:
        """The pattern of a number, as an integer."""
        form, code = ("<f", "<i") if self.kind == "float" else ("<d", "<q")
        return int(struct.unpack(code, struct.pack(form, number))[0])


F32 = Format("float", "i32", 23, 127)
F64 = Format("double", "i64", 52, 1023)
FORMATS = {"float": F32, "double": F64, "i32": F32, "i64": F64}
_SHORT = {"float": "f32", "double": "f64", "i1": "i1", "i32": "i32", "i64": "i64"}


TABLE_SIZE = 16


def _word(kind: str, number: float) -> str:
    """A float as LLVM reads it: exactly, by the bits of a double."""
    exact = struct.unpack("<f", struct.pack("<f", number))[0] if kind == "float" else number
    return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"


class Value(Struct, frozen=True):
    """A vector of `lanes` elements of LLVM type `kind`, under its name."""

    writer: Writer
    lanes: int
    kind: str
    text: str

    @property
    def type(self) -> str:
        return f"<{self.lanes} x {self.kind}>"

    @property
    def format(self) -> Format:
        return FORMATS[self.kind]

    @property
    def looks_up(self) -> bool:
        """Whether lanes can choose from a table in a register."""
        return self.writer.avx512 and self.lanes == TABLE_SIZE

    @property
    def scales(self) -> bool:
        """Whether one instruction scales lanes by powers of two."""
        return self.writer.avx512 and self.lanes == 16 and self.format is F32

    def scaled(self, n: Value) -> Value:
        """This times 2ⁿ, rounded once, for whole n."""
        assert self.scales
        same = (self.type, "poison")
        call = self.writer.call(
            self.type,
            "llvm.x86.avx512.mask.scalef.ps.512",
            (self.type, self.text),
            (n.type, n.text),
            same,
            ("i16", "-1"),
            ("i32", "4"),  # round as always
        )
        return Value(self.writer, self.lanes, self.kind, call)

    def look_up(self, table: Sequence[float]) -> Value:
        """On integers: the float that their low four bits number, one instruction where the value `looks_up`."""
        assert self.looks_up
        assert len(table) == TABLE_SIZE
        numbers = ", ".join(f"float {_word('float', number)}" for number in table)
        floats = f"<{TABLE_SIZE} x float>"
        call = self.writer.call(
            floats, "llvm.x86.avx512.permvar.sf.512", (floats, f"<{numbers}>"), (self.type, self.text)
        )
        return Value(self.writer, self.lanes, "float", call)

    def splat(self, number: Operand, kind: str | None = None) -> Value:
        """A constant in every lane, of this value's kind unless told."""
        if isinstance(number, Value):
            return number
        kind = kind or self.kind
        if kind in ("float", "double"):
            word = _word(kind, number)
        else:
            word = str(int(number))
        return Value(self.writer, self.lanes, kind, f"splat ({kind} {word})")

    def named(self, kind: str, instruction: str) -> Value:
        return Value(self.writer, self.lanes, kind, self.writer.value(instruction))

    def call(self, function: str, *others: Operand) -> Value:
        """An LLVM intrinsic whose operands and result all have this value's type."""
        values = [self, *map(self.splat, others)]
        name = f"llvm.{function}.v{self.lanes}{_SHORT[self.kind]}"
        return Value(
            self.writer, self.lanes, self.kind, self.writer.call(self.type, name, *((v.type, v.text) for v in values))
        )

    def _binary(self, for_floats: str, for_integers: str, other: Operand) -> Value:
        word = for_floats if self.kind in ("float", "double") else for_integers
        return self.named(self.kind, f"{word} {self.type} {self.text}, {self.splat(other).text}")

    def __add__(self, other: Operand) -> Value:
        return self._binary("fadd", "add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._binary("fsub", "sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return self.splat(other) - self

    def __mul__(self, other: Operand) -> Value:
        return self._binary("fmul", "mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", "", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.splat(other) / self

    def __neg__(self) -> Value:
        return self.named(self.kind, f"fneg {self.type} {self.text}")

    def __and__(self, other: Operand) -> Value:
        return self._binary("", "and", other)

    def __or__(self, other: Operand) -> Value:
        return self._binary("", "or", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("", "xor", other)

    def __lshift__(self, other: Operand) -> Value:
        return self._binary("", "shl", other)

    def __rshift__(self, other: Operand) -> Value:
        """The logical shift: zeros come in."""
        return self._binary("", "lshr", other)

    def __invert__(self) -> Value:
        return self ^ (1 if self.kind == "i1" else -1)

    def compare(self, predicate: str, other: Operand) -> Value:
        """`predicate` is LLVM's: olt, une, uno, ... for floats, eq, slt, ... for integers."""
        word = "fcmp" if self.kind in ("float", "double") else "icmp"
        return self.named("i1", f"{word} {predicate} {self.type} {self.text}, {self.splat(other).text}")

    def __lt__(self, other: Operand) -> Value:
        return self.compare("olt", other)

    def __le__(self, other: Operand) -> Value:
        return self.compare("ole", other)

    def __gt__(self, other: Operand) -> Value:
        return self.compare("ogt", other)

    def __ge__(self, other: Operand) -> Value:
        return self.compare("oge", other)

    def equals(self, other: Operand) -> Value:
        return self.compare("oeq", other)

    def select(self, yes: Operand, no: Operand) -> Value:
        """On a mask: `yes` where it is set. One of the two must be a value."""
        sample = yes if isinstance(yes, Value) else no
        assert isinstance(sample, Value)
        yes, no = sample.splat(yes), sample.splat(no)
        return self.named(
            sample.kind, f"select {self.type} {self.text}, {sample.type} {yes.text}, {sample.type} {no.text}"
        )

    def choose(self, yes: float, no: float, kind: str) -> Value:
        """On a mask: one of two constants."""
        return self.select(self.splat(yes, kind), self.splat(no, kind))

    def any(self) -> str:
        """On a mask: an `i1` that says whether any lane is set."""
        return self.writer.call("i1", f"llvm.vector.reduce.or.v{self.lanes}i1", (self.type, self.text))

    def convert(self, word: str, kind: str) -> Value:
        """One of LLVM's conversions: fpext, fptrunc, sitofp, zext, trunc, bitcast."""
        return self.named(kind, f"{word} {self.type} {self.text} to <{self.lanes} x {kind}>")

    def bits(self) -> Value:
        return self.convert("bitcast", self.format.integer)

    def number(self) -> Value:
        """The float with these bits."""
        return self.convert("bitcast", self.format.kind)

    def abs(self) -> Value:
        return self.call("fabs")

    def sqrt(self) -> Value:
        return self.call("sqrt")

    def signed(self, other: Value) -> Value:
        """This magnitude with the other's sign."""
        return self.call("copysign", other)

    def at_most(self, limit: float) -> Value:
        """The smaller; NaN stays NaN. Written so that x86's min does it in one instruction."""
        return (self > limit).select(limit, self)

    def at_least(self, limit: float) -> Value:
        return (self < limit).select(limit, self)


Operand = Value | float | int


def fma(a: Value, b: Operand, c: Operand) -> Value:
    """a · b + c, rounded once."""
    return a.call("fma", b, c)


def horner(x: Value, coefficients: tuple[float, ...]) -> Value:
    """c0 + x · (c1 + x · (...)), with the lowest power first."""
    result: Operand = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        result = fma(x, result, coefficient)
    assert isinstance(result, Value)
    return result


def polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    """The same sum; a long one as two chains, over even and odd powers, for one multiplication more."""
    if len(coefficients) < 8:
        return horner(x, coefficients)
    square = x * x
    return fma(x, horner(square, coefficients[1::2]), horner(square, coefficients[::2]))


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and what its rounding lost (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """The same where |a| ≥ |b| or a = 0 (Dekker)."""
    total = a + b
    return total, (a - total) + b


def two_product(a: Value, b: Operand) -> tuple[Value, Value]:
    """a · b and what its rounding lost."""
    product = a * b
    return product, fma(a, b, -product)
