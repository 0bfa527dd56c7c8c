"""Dim programs: every size that is not a plain number, as instructions over input sizes and computed values.

A graph carries a tuple of `DimOp`. A `Sym(i)` is the result of instruction i, which may only refer to earlier ones.
They are recorded while types are inferred and are never simplified symbolically: a Python evaluator here serves
tests and tools, the native program evaluates them in calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tierup.ir.types import Dim, Sym


class DimOp(msgspec.Struct, frozen=True):
    """One instruction. `of` and `elem` have (value id, axis or flat index) as arguments, all others dims."""

    op: str
    args: tuple[Dim, ...]

    def __repr__(self) -> str:
        if self.op in READS:
            return f"{self.op} %{self.args[0]} {self.args[1]}"
        return " ".join([self.op, *map(repr, self.args)])


READS = ("of", "elem")  # instructions that look at a value: the size of an axis, or one integer element
ARITY = {
    "add": 2, "sub": 2, "mul": 2, "floordiv": 2, "ceildiv": 2, "truncdiv": 2, "mod": 2, "min": 2, "max": 2,
    "eq": 2, "lt": 2, "select": 3, "broadcast": 2, "abs": 1, "of": 2, "elem": 2,
}  # fmt: skip


class DimError(ValueError):
    """A dim program has no answer: division by zero, sizes that do not broadcast, overflow."""


def _broadcast(a: int, b: int) -> int:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    raise DimError(f"sizes {a} and {b} do not broadcast")


def _divide(rounding: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def divide(a: int, b: int) -> int:
        if b == 0:
            raise DimError("a size is divided by zero")
        return rounding(a, b)

    return divide


def _truncate(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_RULES: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": _divide(lambda a, b: a // b),
    "ceildiv": _divide(lambda a, b: -(-a // b)),
    "truncdiv": _divide(_truncate),
    "mod": _divide(lambda a, b: a % b),
    "min": min,
    "max": max,
    "eq": lambda a, b: int(a == b),
    "lt": lambda a, b: int(a < b),
    "select": lambda c, a, b: a if c else b,
    "broadcast": _broadcast,
    "abs": abs,
}
_LIMIT = 1 << 63  # native dims are int64


def apply(op: str, *args: int) -> int:
    """The value of one instruction on plain numbers."""
    result = _RULES[op](*args)
    if not -_LIMIT <= result < _LIMIT:
        raise DimError(f"a size overflows 64 bits: {op} of {', '.join(map(str, args))}")
    return result


class DimBuilder:
    """Records dim instructions, one for each distinct content."""

    def __init__(self, ops: Sequence[DimOp] = ()) -> None:
        self.ops: list[DimOp] = list(ops)
        self._ids = {op: Sym(i) for i, op in enumerate(self.ops)}

    def record(self, op: str, *args: Dim) -> Sym:
        """The sym of this instruction, new or recorded before."""
        key = DimOp(op, args)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = Sym(len(self.ops))
            self.ops.append(key)
        return found

    def emit(self, op: str, *args: Dim) -> Dim:
        """The result of `op`: a number where all arguments are numbers."""
        if all(isinstance(a, int) for a in args):
            return apply(op, *args)  # type: ignore[arg-type]  # just checked
        return self.record(op, *args)

    def of(self, value: int, axis: int) -> Dim:
        """The size of one axis of a value, read when the value exists."""
        return self.record("of", value, axis)

    def elem(self, value: int, index: int) -> Sym:
        """One element of an integer tensor, read when the tensor exists."""
        return self.record("elem", value, index)

    def add(self, a: Dim, b: Dim) -> Dim:
        return b if a == 0 else a if b == 0 else self.emit("add", a, b)

    def sub(self, a: Dim, b: Dim) -> Dim:
        return a if b == 0 else 0 if a == b else self.emit("sub", a, b)

    def mul(self, a: Dim, b: Dim) -> Dim:
        return b if a == 1 else a if b == 1 else self.emit("mul", a, b)

    def floordiv(self, a: Dim, b: Dim) -> Dim:
        return a if b == 1 else self.emit("floordiv", a, b)

    def ceildiv(self, a: Dim, b: Dim) -> Dim:
        return a if b == 1 else self.emit("ceildiv", a, b)

    def truncdiv(self, a: Dim, b: Dim) -> Dim:
        return a if b == 1 else self.emit("truncdiv", a, b)

    def mod(self, a: Dim, b: Dim) -> Dim:
        return self.emit("mod", a, b)

    def min(self, a: Dim, b: Dim) -> Dim:
        return a if a == b else self.emit("min", a, b)

    def max(self, a: Dim, b: Dim) -> Dim:
        return a if a == b else self.emit("max", a, b)

    def select(self, condition: Dim, a: Dim, b: Dim) -> Dim:
        if isinstance(condition, int):
            return a if condition else b
        return a if a == b else self.emit("select", condition, a, b)

    def broadcast(self, a: Dim, b: Dim) -> Dim:
        """The size that two axes have together. A number above 1 wins over a sym: the operator checks the sym."""
        if a == b or b == 1:
            return a
        if a == 1:
            return b
        if isinstance(a, int) and not isinstance(b, int):
            return a
        if isinstance(b, int) and not isinstance(a, int):
            return b
        return self.emit("broadcast", a, b)

    def is_positive(self, dim: Dim) -> bool:
        """Whether a size is known to be more than 0."""
        return isinstance(dim, int) and dim > 0

    def is_multiple(self, dim: Dim, number: int) -> bool:
        """Whether a size is known to be a multiple of a number."""
        if isinstance(dim, int):
            return dim % number == 0
        op = self.ops[dim.id]
        return op.op == "mul" and any(self.is_multiple(factor, number) for factor in op.args)

    def product(self, dims: Sequence[Dim]) -> Dim:
        result: Dim = 1
        for dim in dims:
            result = self.mul(result, dim)
        return result

    def sum(self, dims: Sequence[Dim]) -> Dim:
        result: Dim = 0
        for dim in dims:
            result = self.add(result, dim)
        return result


def values_read(ops: Sequence[DimOp], dim: Dim) -> set[int]:
    """The values that a dim is computed from: whose sizes or elements its instructions look at."""
    found: set[int] = set()
    pending, seen = [dim], set[Dim]()
    while pending:
        current = pending.pop()
        if isinstance(current, Sym) and current not in seen:
            seen.add(current)
            op = ops[current.id]
            if op.op not in READS:
                pending.extend(op.args)
            elif isinstance(op.args[0], int):
                found.add(op.args[0])
    return found


def evaluate(ops: Sequence[DimOp], read: Callable[[str, int, int], int]) -> list[int]:
    """All instructions in order; `read(op, value id, index)` answers `of` and `elem`."""
    results: list[int] = []
    for op in ops:
        numbers = [results[arg.id] if isinstance(arg, Sym) else arg for arg in op.args]
        results.append(read(op.op, *numbers) if op.op in READS else apply(op.op, *numbers))
    return results
