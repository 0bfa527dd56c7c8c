"""Sizes that are taken to be equal because they were on every example, and checked in each call.

Exporters write one size in many ways: min(seq, 512), max(batch, 0), seq · 4 · 64 ÷ seq. Which of them are one size is
not proved here but tried: input sizes are given example numbers, every dim instruction is evaluated on them, and one
whose results equal those of an earlier dim, or one number throughout, is taken to be that. Each such step is an
assumption, a pair of dims that the plan compares when a call begins; where they differ, the baseline answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tierup.ir.dims import READS, DimBuilder, DimError, DimOp, apply
from tierup.ir.types import Dim, Sym

_EXAMPLES = 6
_LEAST, _MOST = 5, 97  # no 0 or 1, which broadcast; odd and even; below the limits that models have for lengths

Pair = tuple[Dim, Dim]


class Assumptions:
    """Collects what was assumed over all passes of one graph.

    `pairs` hold in the numbering of the dim program of the last builder that was made.
    """

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self._ops: Sequence[DimOp] = ()

    def builder(self, n_inputs: int) -> SampledDims:
        """A dim builder for the next pass; values below `n_inputs` are the graph's inputs.

        What was assumed before is recorded in it first, so that the finished graph can still be checked for it.
        """
        dims = SampledDims(n_inputs, self)
        numbers: dict[Sym, Sym] = {}

        def again(dim: Dim) -> Dim:
            if not isinstance(dim, Sym):
                return dim
            if dim not in numbers:
                op = self._ops[dim.id]
                args = op.args if op.op in READS else tuple(again(arg) for arg in op.args)
                numbers[dim] = dims.record(op.op, *args)
            return numbers[dim]

        self.pairs = [(again(a), again(b)) for a, b in self.pairs]
        self._ops = dims.ops
        return dims


class SampledDims(DimBuilder):
    """A dim builder that knows the results of its instructions on the examples."""

    def __init__(self, n_inputs: int, assumptions: Assumptions) -> None:
        super().__init__()
        self._n_inputs = n_inputs
        self._assumptions = assumptions
        self._random = Random(0)
        self._drawn: set[tuple[int, ...]] = set()
        self._results: dict[Sym, tuple[int, ...]] = {}
        self._first: dict[tuple[int, ...], Sym] = {}

    def record(self, op: str, *args: Dim) -> Sym:
        known = len(self.ops)
        sym = super().record(op, *args)
        if sym.id == known:
            results = self._draw(args) if op in READS else self._evaluate(op, args)
            if op != "elem" and results is not None:
                self._results[sym] = results
                self._first.setdefault(results, sym)
        return sym

    def emit(self, op: str, *args: Dim) -> Dim:
        result = super().emit(op, *args)
        if not isinstance(result, Sym) or result not in self._results:
            return result
        results = self._results[result]
        same: Dim = results[0] if len(set(results)) == 1 else self._first[results]
        if same != result and (result, same) not in self._assumptions.pairs:
            self._assumptions.pairs.append((result, same))
        return same

    def _draw(self, args: tuple[Dim, ...]) -> tuple[int, ...] | None:
        """Example sizes of an input's axis, like no other's."""
        value = args[0]
        if not isinstance(value, int) or value >= self._n_inputs:
            return None
        while True:
            drawn = tuple(self._random.randint(_LEAST, _MOST) for _ in range(_EXAMPLES))
            apart = all(all(a != b for a, b in zip(drawn, other, strict=True)) for other in self._drawn)
            if (apart or len(self._drawn) > 8) and len(set(drawn)) > 1 and drawn not in self._drawn:
                self._drawn.add(drawn)
                return drawn

    def _evaluate(self, op: str, args: tuple[Dim, ...]) -> tuple[int, ...] | None:
        columns = [self._results.get(arg) if isinstance(arg, Sym) else (arg,) * _EXAMPLES for arg in args]
        if any(column is None for column in columns):
            return None
        try:
            return tuple(apply(op, *numbers) for numbers in zip(*columns, strict=True))
        except DimError:
            return None
