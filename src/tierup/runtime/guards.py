"""Dim code that decides whether a call may take a way: sizes are compared when it begins, and nothing can fail."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.dims import READS, DimBuilder
from tierup.ir.types import Dim
from tierup.plan.program import Assembler, DimCode
from tierup.rewrite.assume import Pair

DIM_CODES = {
    "add": DimCode.ADD, "sub": DimCode.SUB, "mul": DimCode.MUL, "floordiv": DimCode.FLOORDIV,
    "ceildiv": DimCode.CEILDIV, "truncdiv": DimCode.TRUNCDIV, "mod": DimCode.MOD, "min": DimCode.MIN,
    "max": DimCode.MAX, "eq": DimCode.EQ, "lt": DimCode.LT, "select": DimCode.SELECT,
    "broadcast": DimCode.BROADCAST, "abs": DimCode.ABS, "of": DimCode.OF, "elem": DimCode.ELEM,
}  # fmt: skip


class GuardCode:
    """Dim code that compares sizes and never fails: a division by zero counts as not equal."""

    def __init__(self, out: Assembler, dims: DimBuilder) -> None:
        self._out, self._dims = out, dims
        self._instructions: list[tuple[int, ...]] = []
        self._conditions: list[int] = []
        self.registers: dict[Dim, int] = {}

    def all_equal(self, pairs: Sequence[Pair]) -> int:
        """The register that is 1 if the sizes of every pair are equal, else 0."""
        for a, b in pairs:
            self._conditions.append(self._do(DimCode.EQ, self._of(a), self._of(b)))
        holds = self._conditions[0]
        for condition in self._conditions[1:]:
            holds = self._do(DimCode.MIN, holds, condition)
        self._out.dims(*self._instructions)
        return holds

    def _do(self, code: DimCode, *operands: int) -> int:
        register = self._out.dim()
        self._instructions.append((code, register, *operands))
        return register

    def _of(self, dim: Dim) -> int:
        if dim not in self.registers:
            self.registers[dim] = self._computed(dim)
        return self.registers[dim]

    def _computed(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return self._do(DimCode.CONST, dim)
        op = self._dims.ops[dim.id]
        if op.op in READS:
            return self._do(DIM_CODES[op.op], *op.args)  # type: ignore[arg-type]  # reads have numbers alone
        operands = [self._of(argument) for argument in op.args]
        if op.op in ("floordiv", "ceildiv", "truncdiv", "mod"):
            zero = self._do(DimCode.EQ, operands[1], self._of(0))
            self._conditions.append(self._do(DimCode.EQ, zero, self._of(0)))
            operands[1] = self._do(DimCode.ADD, operands[1], zero)
        return self._do(DIM_CODES[op.op], *operands)
