"""Sizes that are taken to be equal because they were on every example, and checked in each call.

Exporters write one size in many ways: min(seq, 512), max(batch, 0), seq · 4 · 64 ÷ seq. Which of them are one size is
not proved here but tried: input sizes are given example numbers, every dim instruction is evaluated on them, and one
whose results equal those of an earlier dim, or one number throughout, is taken to be that. Each such step is an
assumption, a pair of dims that the plan compares when a call begins; where they differ, the baseline answers.

Examples are small and large numbers with which the model's sizes make sense: a model of text has a longest length, one
of sound a shortest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random

from tierup.ir.dims import READS, DimBuilder, DimError, DimOp, apply
from tierup.ir.graph import Graph
from tierup.ir.types import Dim, Sym, TensorType

# No 0 or 1, which broadcast; and multiples of 32, as images mostly have: whether a size is even may decide others.
_RANGES = (range(5, 98), range(1000, 20001), range(128, 4097, 32))
_EXAMPLES_EACH = 8  # by chance a size is even, or odd, in all of them once in four million times
_TRIES = 60  # to find them in a range

Example = dict[tuple[int, int], int]  # (position of an input, axis) -> size
Pair = tuple[Dim, Dim]


class Assumptions:
    """Collects what was assumed over all passes of one graph.

    `pairs` hold in the numbering of the dim program of the last builder that was made.
    """

    def __init__(self, graph: Graph) -> None:
        self.pairs: list[Pair] = []
        self.examples = draw_examples(graph)
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
        self._results: dict[Sym, tuple[int, ...]] = {}
        self._first: dict[tuple[int, ...], Sym] = {}

    def record(self, op: str, *args: Dim) -> Sym:
        known = len(self.ops)
        sym = super().record(op, *args)
        if sym.id == known:
            results = self._read(op, args) if op in READS else self._evaluate(op, args)
            if results is not None:
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

    def is_positive(self, dim: Dim) -> bool:
        return super().is_positive(dim) or (dim in self._results and self.emit("lt", 0, dim) == 1)

    def _read(self, op: str, args: tuple[Dim, ...]) -> tuple[int, ...] | None:
        """The example sizes of an input's axis; values are inputs below a number."""
        examples, (value, axis) = self._assumptions.examples, args
        if op != "of" or not isinstance(value, int) or value >= self._n_inputs or len(examples) < 2:
            return None
        sizes = [example.get((value, axis)) for example in examples if isinstance(axis, int)]
        return None if None in sizes else tuple(size for size in sizes if size is not None)

    def _evaluate(self, op: str, args: tuple[Dim, ...]) -> tuple[int, ...] | None:
        count = len(self._assumptions.examples)
        columns = [self._results.get(arg) if isinstance(arg, Sym) else (arg,) * count for arg in args]
        if any(column is None for column in columns):
            return None
        try:
            return tuple(apply(op, *numbers) for numbers in zip(*columns, strict=True))
        except DimError:
            return None


def draw_examples(graph: Graph) -> list[Example]:
    """Sizes of inputs with which every size of the graph that follows from them is at least 1. The same each time."""
    axes: dict[Sym, list[tuple[int, int]]] = {}
    for position, value in enumerate(graph.inputs):
        type = graph.type(value)
        for axis, dim in enumerate((type.shape or ()) if isinstance(type, TensorType) else ()):
            if isinstance(dim, Sym):
                axes.setdefault(dim, []).append((position, axis))
    random, examples = Random(0), list[Example]()
    for choices in _RANGES if axes else ():
        drawn = (dict(zip(axes, random.sample(choices, len(axes)), strict=True)) for _ in range(_TRIES))
        for sizes in islice((sizes for sizes in drawn if _makes_sense(graph, sizes)), _EXAMPLES_EACH):
            examples.append({place: sizes[dim] for dim, places in axes.items() for place in places})
    return examples


def _makes_sense(graph: Graph, sizes: dict[Sym, int]) -> bool:
    results: dict[Sym, int | None] = {}
    for number, op in enumerate(graph.dims):
        sym = Sym(number)
        args = [] if op.op in READS else [results[arg] if isinstance(arg, Sym) else arg for arg in op.args]
        results[sym] = None
        if op.op in READS:
            results[sym] = sizes.get(sym)
        elif None not in args:
            try:
                results[sym] = apply(op.op, *(arg for arg in args if arg is not None))
            except DimError:
                if op.op == "broadcast":
                    return False
    shapes = (value.type.shape or () for value in graph.values if isinstance(value.type, TensorType))
    known = (results[dim] for shape in shapes for dim in shape if isinstance(dim, Sym))  # a constant may be empty
    return all(size is None or size > 0 for size in known)
