"""Sizes that are taken to be equal because they were on every example, and checked in each call.

Exporters write one size in many ways: min(seq, 512), max(batch, 0), seq · 4 · 64 ÷ seq. Which of them are one size is
not proved here but tried: input sizes are given example numbers, every dim instruction is evaluated on them, and one
whose results equal those of an earlier dim, or one number throughout, is taken to be that. Each such step is an
assumption, a pair of dims that the plan compares when a call begins; where they differ, the baseline answers.

Examples are small and large numbers with which the model's sizes make sense: a model of text has a longest length, one
of sound a shortest. Calls that stray from what was assumed give examples of another kind (decision 8): sizes that are 0
or 1 in them are so in all examples, others are drawn, and the calls are examples themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from tierup.ir.dims import READS, DimBuilder, DimError, DimOp, apply
from tierup.ir.facts import Signature, kind_of
from tierup.ir.graph import Graph, ValueId
from tierup.ir.types import Dim, Shape, Sym, TensorType

# No 0 or 1, which broadcast; and multiples of 32, as images mostly have: whether a size is even may decide others.
_RANGES = (range(5, 98), range(1000, 20001), range(128, 4097, 32))
_EXAMPLES_EACH = 8  # by chance a size is even, or odd, in all of them once in four million times
_TRIES = 10  # for each of them
_PRODUCTS = frozenset({"MatMul", "matmul", "Einsum", "Attention", "MultiHeadAttention", "GroupQueryAttention"})

Example = dict[tuple[int, int], int]  # (position of an input, axis) -> size
Pair = tuple[Dim, Dim]


class Assumptions:
    """Collects what was assumed over all passes of one graph.

    `pairs` hold in the numbering of the dim program of the last builder that was made. With `strays`, which are of one
    kind, they hold in calls like those.
    """

    def __init__(self, graph: Graph, strays: Sequence[Signature] = ()) -> None:
        self.pairs: list[Pair] = []
        self.examples = draw_examples(graph, strays)
        self.enough = len(self.examples) >= (1 if strays else 2)  # with one, all sizes are numbers
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
                first = self.ops[self._first.setdefault(results, sym).id]
                if op in READS and (first.op not in READS or args < first.args):  # the first input's, in every pass
                    self._first[results] = sym
        return sym

    def of(self, value: int, axis: int) -> Dim:
        """The size of an axis; that of an input before it, or 1, where no other examples were found."""
        return self._same(super().of(value, axis))

    def emit(self, op: str, *args: Dim) -> Dim:
        return self._same(super().emit(op, *args))

    def _same(self, result: Dim) -> Dim:
        """What a size is taken to be."""
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
        if op != "of" or not isinstance(value, int) or value >= self._n_inputs or not self._assumptions.enough:
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


def draw_examples(graph: Graph, strays: Sequence[Signature] = ()) -> list[Example]:
    """Sizes of inputs with which every size of the graph that follows from them is at least 1. The same each time.

    Sizes differ unless the graph needs them to agree: `mask` has as many columns as `past` and `ids` have together.
    Sizes of two inputs that broadcast agree in models with attention, whose masks exporters give sizes of their own;
    in others either of them is 1 in half of the examples, so that nothing is assumed of them. `strays` are calls of one
    kind that the examples are to be like.
    """
    axes: dict[Sym, list[tuple[int, int]]] = {}
    for position, value in enumerate(graph.inputs):
        type = graph.type(value)
        for axis, dim in enumerate((type.shape or ()) if isinstance(type, TensorType) else ()):
            if isinstance(dim, Sym):
                axes.setdefault(dim, []).append((position, axis))
    random, needs, attends = Random(0), _needs(graph), _attends(graph)
    given = [{place: stray[place[0]][place[1]] for places in axes.values() for place in places} for stray in strays]
    fixed: _Sizes = {
        dim: size
        for dim, places in axes.items()
        for stray in strays[:1]
        if (size := kind_of(stray)[places[0][0]][places[0][1]]) is not None
    }
    examples, used = list[Example](given), _sizes_used(graph)
    for choices in _RANGES if len(axes) > len(fixed) else ():
        kept = 0
        for _ in range(_TRIES * _EXAMPLES_EACH):
            drawn: _Sizes = {**dict(zip(axes, random.sample(choices, len(axes)), strict=True)), **fixed}
            if kept == _EXAMPLES_EACH:
                break
            sizes = _agreed(graph, needs, drawn, None if attends else kept % 2, fixed)
            if sizes is not None and _makes_sense(graph, used, sizes, least=0 if 0 in fixed.values() else 1):
                examples.append({place: sizes[dim] for dim, places in axes.items() for place in places})
                kept += 1
    return examples


_Sizes = dict[Dim, int]  # of inputs
_Results = dict[Dim, int | None]  # of instructions; None where data decides, or there is no answer


def _makes_sense(graph: Graph, used: Sequence[Sym], sizes: _Sizes, least: int) -> bool:
    """Whether every size that is used and follows from those of inputs is so large."""
    results = _evaluated(graph, sizes)
    known = (results[dim] for dim in used)
    return all(size is None or size >= least for size in known)


def _sizes_used(graph: Graph) -> list[Sym]:
    """The sizes that values have, each once; what the model gives as a number may be 0."""
    shapes = (value.type.shape or () for value in graph.values if isinstance(value.type, TensorType))
    return list(dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, Sym)))


def _attends(graph: Graph) -> bool:
    """Whether both sides of some product are computed in the call."""
    constants = {value for value, _ in graph.weights}
    products = (node for node in graph.nodes if node.op.rpartition(".")[2] in _PRODUCTS)
    return any(sum(value is not None and value not in constants for value in node.inputs) > 1 for node in products)


def _needs(graph: Graph) -> list[Pair]:
    """Sizes that must agree: those that broadcast, and the terms of the sums in products."""
    broadcast = [(op.args[0], op.args[1]) for op in graph.dims if op.op == "broadcast"]
    products = (node.inputs for node in graph.nodes if node.op in ("onnx.MatMul", "core.matmul"))
    shapes = [[_shape(graph, value) for value in inputs] for inputs in products]
    terms = [(left[-1], right[-2]) for left, right in shapes if len(left) > 1 and len(right) > 1]
    return [*broadcast, *((a, b) for a, b in terms if a != b)]


def _shape(graph: Graph, value: ValueId | None) -> Shape:
    type = None if value is None else graph.type(value)
    return (type.shape or ()) if isinstance(type, TensorType) else ()


def _agreed(
    graph: Graph, needs: Sequence[Pair], sizes: _Sizes, one: int | None, fixed: Mapping[Dim, int]
) -> _Sizes | None:
    """Sizes with which everything fits. Where two do not, one that an input has becomes the other, or one from which
    they follow becomes another such, or 1, which broadcasts. Of two that inputs have, the one at `one` becomes 1. Those
    that are fixed stay as they are."""
    clash = _clash(needs, _evaluated(graph, sizes))
    while clash is not None:
        for tried in _changes(graph, needs[clash], sizes, one):
            if any(tried[dim] != size for dim, size in fixed.items()):
                continue
            further = _clash(needs, _evaluated(graph, tried))
            if further is None or further > clash:
                sizes, clash = tried, further
                break
        else:
            return None
    return sizes


def _clash(needs: Sequence[Pair], results: _Results) -> int | None:
    """The first two sizes that do not agree."""
    for number, (a, b) in enumerate(needs):
        found = {results[dim] if isinstance(dim, Sym) else dim for dim in (a, b)} - {1}
        if len(found) > 1 and None not in found:
            return number
    return None


def _changes(graph: Graph, pair: Pair, sizes: _Sizes, one: int | None) -> Iterator[_Sizes]:
    """Sizes with one changed, so that those of a pair may agree; what is likely first."""
    if one is not None and pair[0] in sizes and pair[1] in sizes:
        yield {**sizes, pair[one]: 1}
    results = _evaluated(graph, sizes)
    left, right = ([size for size in sizes if size in _behind(graph, dim)] for dim in pair)
    for own, other in (pair[::-1], pair):
        number = results[other] if isinstance(other, Sym) else other
        if own in sizes and number is not None:
            yield {**sizes, own: number}
    yield from ({**sizes, own: sizes[other]} for own in right for other in left if own != other)
    yield from ({**sizes, own: 1} for own in sizes if own in left or own in right)


def _behind(graph: Graph, dim: Dim) -> set[Dim]:
    """A size and those that it follows from."""
    found: set[Dim] = set()
    pending = [dim]
    while pending:
        dim = pending.pop()
        if isinstance(dim, Sym) and dim not in found:
            found.add(dim)
            op = graph.dims[dim.id]
            pending.extend(() if op.op in READS else op.args)
    return found


def _evaluated(graph: Graph, sizes: _Sizes) -> _Results:
    """What the instructions give."""
    results: _Results = {}
    for number, op in enumerate(graph.dims):
        sym = Sym(number)
        if op.op in READS:
            results[sym] = sizes.get(sym)
            continue
        args = [results[arg] if isinstance(arg, Sym) else arg for arg in op.args]
        try:
            results[sym] = None if None in args else apply(op.op, *(arg for arg in args if arg is not None))
        except DimError:
            results[sym] = None
    return results
