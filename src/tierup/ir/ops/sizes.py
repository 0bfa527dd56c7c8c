"""Size arithmetic that several type rules share: clamped slices, reshapes with -1 and 0, products that cancel.

Dims in, dims out, all through a `DimBuilder`. What is recorded agrees with the reference functions wherever those
answer; where they raise, a size may be anything. There is one exception, for the sake of plain sizes: a Reshape of an
empty tensor whose target is computed from the tensor's own sizes. A 0 among them is taken as 0, where the standard
would copy the axis in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import gcd
from operator import attrgetter

from tierup.ir.dims import DimBuilder
from tierup.ir.infer import InferError, PartialShape
from tierup.ir.types import Dim, Shape, Sym

_INT32_MAX = (1 << 31) - 1
_FAR = 1 << 62  # beyond any axis; also keeps sums of a size and a bound within the 64 bits of native dims
_FACTOR_LIMIT = 64  # factors of one product; squaring a size again and again would double them each time
_PROOF_DEPTH = 8  # instructions deep; sizes in real models are a few deep

_ALL_ARGS = frozenset({"add", "mul", "floordiv", "ceildiv", "truncdiv", "mod", "min", "broadcast"})
_ALWAYS = frozenset({"of", "eq", "lt", "abs"})


def never_negative(dims: DimBuilder, dim: Dim, depth: int = _PROOF_DEPTH) -> bool:
    """Whether `dim` is zero or more in every call, as far as its program shows."""
    if isinstance(dim, int):
        return dim >= 0
    op = dims.ops[dim.id]
    if op.op in _ALWAYS:
        return True
    if depth == 0:
        return False
    if op.op in _ALL_ARGS:
        return all(never_negative(dims, arg, depth - 1) for arg in op.args)
    if op.op == "max":
        return any(never_negative(dims, arg, depth - 1) for arg in op.args)
    return op.op == "select" and all(never_negative(dims, arg, depth - 1) for arg in op.args[1:])


def same(a: Dim, b: Dim) -> Dim:
    """The size of an axis that two tensors share; a number says more than a sym."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise InferError(f"sizes {a} and {b} must be equal")
    return b if isinstance(b, int) else a


def clamp(dims: DimBuilder, dim: Dim, low: Dim, high: Dim) -> Dim:
    """`dim`, at least `low`, then at most `high`."""
    return dims.min(dims.max(dim, low), high)


def slice_length(dims: DimBuilder, size: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """How many elements `start:end:step` takes from an axis, by the clamping that ONNX prescribes."""
    if step == 0:
        raise InferError("a slice cannot have step 0")
    start, end = _far(start, size), _far(end, size)
    if step > 0:
        return _forward_length(dims, size, start, end, step)
    last = dims.sub(size, 1)
    first = clamp(dims, _from_front(dims, size, start), 0, last)
    stop: Dim = -1 if end == -_FAR else clamp(dims, _from_front(dims, size, end), -1, last)
    return dims.max(dims.ceildiv(dims.sub(first, stop), -step), 0)


def _far(index: Dim, size: Dim) -> Dim:
    """INT_MAX and INT_MIN, of 32 or 64 bits, are how exporters write "as far as it goes"."""
    if isinstance(size, Sym) and index in (_INT32_MAX, -_INT32_MAX - 1, -_INT32_MAX):
        index = _FAR if index == _INT32_MAX else -_FAR
    return index if isinstance(index, Sym) else max(-_FAR, min(index, _FAR))


def _forward_length(dims: DimBuilder, size: Dim, start: Dim, end: Dim, step: int) -> Dim:
    start = 0 if start == -_FAR else start
    end = size if end == _FAR else end
    if start == 0:
        length = _bound(dims, size, end)
    elif end == size:
        if isinstance(start, int) and start < 0:
            length = dims.min(size, -start)  # x[-k:]
        elif never_negative(dims, start):
            length = dims.max(dims.sub(size, start), 0)  # x[k:]
        else:
            length = dims.sub(size, _bound(dims, size, start))
    else:
        length = dims.max(dims.sub(_bound(dims, size, end), _bound(dims, size, start)), 0)
    return dims.ceildiv(length, step)


def _bound(dims: DimBuilder, size: Dim, index: Dim) -> Dim:
    """A slice bound of a forward slice, within 0 and `size`."""
    if index == size or index == 0:
        return index
    if isinstance(index, int) and index < 0:
        return dims.max(dims.add(size, index), 0)
    if never_negative(dims, index):
        return dims.min(index, size)
    return clamp(dims, _from_front(dims, size, index), 0, size)


def _from_front(dims: DimBuilder, size: Dim, index: Dim) -> Dim:
    """A negative index counts from the end."""
    if never_negative(dims, index):
        return index
    # the size is chosen, not the sum: INT_MAX plus a size would overflow
    return dims.add(index, dims.select(dims.emit("lt", index, 0), size, 0))


def factors(dims: DimBuilder, product: Iterable[Dim]) -> tuple[int, Counter[Sym]]:
    """A product as its number and its symbolic factors; products inside are taken apart, up to a limit."""
    number, syms = 1, Counter[Sym]()
    pending = list(product)
    while pending:
        dim = pending.pop()
        if isinstance(dim, int):
            number *= dim
        elif dims.ops[dim.id].op == "mul" and len(pending) + syms.total() < _FACTOR_LIMIT:
            pending.extend(dims.ops[dim.id].args)
        else:
            syms[dim] += 1
    return number, syms


def quotient(dims: DimBuilder, above: Sequence[Dim], below: Sequence[Dim]) -> Dim:
    """The product of `above` over the product of `below`, with what stands in both left out."""
    number, syms = factors(dims, above)
    divisor, divisor_syms = factors(dims, below)
    if divisor == 0:
        raise InferError("a size of -1 cannot be known where another size is 0")
    shared = gcd(number, divisor)
    upper = _ordered(dims, number // shared, above, syms - divisor_syms)
    lower = _ordered(dims, divisor // shared, below, divisor_syms - syms)
    if lower != [1] and all(isinstance(dim, int) for dim in upper + lower):
        raise InferError(f"{number} elements cannot be divided into groups of {divisor}")
    return dims.floordiv(dims.product(upper), dims.product(lower))


def _ordered(dims: DimBuilder, number: int, product: Sequence[Dim], left: Counter[Sym]) -> list[Dim]:
    """The factors that are left; a product that is left whole stays one dim, so that equal sizes stay equal."""
    kept: list[Dim] = []
    for dim in product:
        own_number, own = factors(dims, [dim])
        if isinstance(dim, Sym) and own <= left and own_number != 0 and number % own_number == 0:
            left, number = left - own, number // own_number
            kept.append(dim)
    kept.extend(sorted(left.elements(), key=attrgetter("id")))
    return [*kept, number] if number != 1 or not kept else kept


class Reshape:
    """Resolves the target of one Reshape, where 0 may mean "copy" and one -1 "what is left"."""

    def __init__(self, dims: DimBuilder, data: Shape, target: Sequence[Dim], keep_zero: bool) -> None:
        self.dims, self.data, self.target, self.keep_zero = dims, data, tuple(target), keep_zero
        self.above: list[Dim] = list(data)  # the -1 is above / below; a copied axis stands in neither
        self.below: list[Dim] = [1] * len(target)
        self.open_hole = not (_has_hole(target, keep_zero) or (keep_zero and 0 in target))  # a sym may turn out as -1

    def shape(self) -> Shape:
        """The shape of the result."""
        result = [self._literal(axis, size) for axis, size in enumerate(self.target)]
        _, spare = factors(self.dims, self.above)
        holes = [axis for axis, size in enumerate(self.target) if size == -1]
        for axis, size in enumerate(self.target):
            if isinstance(size, Sym) and result[axis] is None:
                if self._is_product(axis, size, spare):
                    result[axis] = size
                    continue
                result[axis] = self._loose(axis, size)
                if self.open_hole and not never_negative(self.dims, size):
                    holes.append(axis)
        if not holes:
            _check_count(self.data, self.target, self.above, self.below)
        rest: Dim = quotient(self.dims, self.above, self.below) if holes else 0
        return tuple(
            rest if known is None else self._or_rest(axis, known, rest, holes) for axis, known in enumerate(result)
        )

    def _literal(self, axis: int, size: Dim) -> Dim | None:
        """The sizes that are plain: numbers, copies, and syms that are what the data has there."""
        copies = size == 0 and not self.keep_zero
        if copies and axis >= len(self.data):
            raise InferError(f"size 0 at axis {axis} copies an axis that a tensor of rank {len(self.data)} has not")
        if copies or (axis < len(self.data) and size == self.data[axis] and size != 0):
            self.above[axis] = 1
            return self.data[axis]
        if isinstance(size, Sym) or size == -1:
            return None
        self.below[axis] = size
        return size

    def _is_product(self, axis: int, size: Sym, spare: Counter[Sym]) -> bool:
        """Whether `size` is a product of sizes of the data. It is taken as it is: 0 only if the tensor is empty."""
        number, syms = factors(self.dims, [size])
        if number <= 0 or not syms <= spare:
            return False
        spare -= syms
        self.below[axis] = size
        return True

    def _loose(self, axis: int, size: Sym) -> Dim:
        """A sym that has nothing to do with the data may be 0 in a call and then means "copy"."""
        self.below[axis] = self.dims.max(size, 1)
        if self.keep_zero or axis >= len(self.data):
            return size
        is_zero = self.dims.emit("eq", size, 0)
        self.above[axis] = self.dims.select(is_zero, 1, self.data[axis])
        return self.dims.select(is_zero, self.data[axis], size)

    def _or_rest(self, axis: int, known: Dim, rest: Dim, holes: Sequence[int]) -> Dim:
        """`known`, or the rest where the target's sym turns out as -1."""
        if axis not in holes:
            return known
        return self.dims.select(self.dims.emit("eq", self.target[axis], -1), rest, known)


def _has_hole(target: Sequence[Dim], keep_zero: bool) -> bool:
    holes = sum(size == -1 for size in target)
    if holes > 1:
        raise InferError("at most one size of a new shape may be -1")
    if holes and keep_zero and 0 in target:
        raise InferError("with allowzero, a new shape cannot hold both 0 and -1")
    for size in target:
        if isinstance(size, int) and size < -1:
            raise InferError(f"a new shape cannot have the size {size}")
    return holes == 1


def _check_count(data: Shape, target: Sequence[Dim], above: Sequence[Dim], below: Sequence[Dim]) -> None:
    """Where nothing is open, both sides must hold the same number of elements."""
    if any(isinstance(dim, Sym) for dim in (*data, *target)):
        return
    count, wanted = _numbers(above), _numbers(below)
    if count != wanted:
        raise InferError(f"a tensor of shape {data} cannot be reshaped to {tuple(target)}")


def _numbers(dims: Sequence[Dim]) -> int:
    result = 1
    for dim in dims:
        assert isinstance(dim, int), "only called on closed shapes"
        result *= dim
    return result


def reshaped(dims: DimBuilder, data: Shape | None, target: Sequence[Dim], keep_zero: bool) -> PartialShape:
    """The shape that a Reshape of `data` to `target` gives."""
    if data is not None:
        return Reshape(dims, data, target, keep_zero).shape()
    _has_hole(target, keep_zero)
    return tuple(_of_unknown(dims, size, keep_zero) for size in target)


def _of_unknown(dims: DimBuilder, size: Dim, keep_zero: bool) -> Dim | None:
    """A target size where the data's rank is unknown: only one that is neither a copy nor -1 is known."""
    if isinstance(size, int):
        return size if size > 0 or (size == 0 and keep_zero) else None
    return size if keep_zero and never_negative(dims, size) else None
