"""Products of sizes in one form, so that strides which are equal in every call compare equal.

Sizes are never simplified, but a stride is a product of sizes, and one product is recorded in many orders: 4 · d0 · d1
as the stride of one value, d1 · 4 · d0 of another. Here a product is its number and its sorted factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tierup.ir.dims import DimBuilder
from tierup.ir.types import Dim, Shape, Sym

_LONGEST = 64  # factors; a hostile model must not make us track more


class Strides:
    """Writes products into a dim program."""

    def __init__(self, dims: DimBuilder) -> None:
        self.dims = dims
        self._known: dict[Sym, tuple[int, tuple[Sym, ...]]] = {}

    def factors(self, dim: Dim) -> tuple[int, tuple[Sym, ...]]:
        """A dim as a number times dims that are no products, in order."""
        if isinstance(dim, int):
            return dim, ()
        if dim not in self._known:
            self._known[dim] = self._factors(dim)
        return self._known[dim]

    def _factors(self, dim: Sym) -> tuple[int, tuple[Sym, ...]]:
        number, syms = 1, list[Sym]()
        pending: list[Dim] = [dim]
        while pending:
            current = pending.pop()
            if isinstance(current, int):
                number *= current
            elif self.dims.ops[current.id].op != "mul" or len(syms) + len(pending) > _LONGEST:
                syms.append(current)
            else:
                pending.extend(self.dims.ops[current.id].args)
        return number, tuple(sorted(syms, key=lambda sym: sym.id))

    def times(self, *dims: Dim) -> Dim:
        """The product of some dims; equal products are one dim."""
        number, syms = 1, list[Sym]()
        for dim in dims:
            own, others = self.factors(dim)
            number *= own
            syms += others
        if number == 0:
            return 0
        product: Dim = 1
        for sym in sorted(syms, key=lambda sym: sym.id):
            product = self.dims.mul(product, sym)
        return self.dims.mul(product, number)

    def same(self, a: Dim, b: Dim) -> bool:
        """Whether two sizes are equal in every call, as far as their factors tell."""
        return a == b or self.factors(a) == self.factors(b)

    def row_major(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The strides of elements that lie one after another; an empty axis counts as one of one element."""
        strides: list[Dim] = []
        stride: Dim = 1
        for size in reversed(shape):
            strides.append(stride)
            stride = self.times(stride, 1 if size == 0 else size)
        return tuple(reversed(strides))

    def groups(self, old: Shape, new: Shape) -> list[tuple[range, range]] | None:
        """Neighbouring axes of two shapes, none of size 1, that hold the same elements in every call.

        None where that is not known of all axes.
        """
        found: list[tuple[range, range]] = []
        i = j = 0
        while i < len(old) or j < len(new):
            end = self._group(old, new, i, j)
            if end is None:
                return None
            found.append((range(i, end[0]), range(j, end[1])))
            i, j = end
        return found

    def _group(self, old: Shape, new: Shape, i: int, j: int) -> tuple[int, int] | None:
        """Where the smallest group that begins at i and j ends: the side that holds less takes the next axis."""
        first, second = i, j
        before, after = _Product(), _Product()
        while i == first or not before.equals(after):
            smaller = before.is_smaller(after)
            if smaller is None:
                return self._rest(old, new, first, second)
            if smaller and i < len(old):
                before.multiply(*self.factors(old[i]))
                i += 1
            elif not smaller and j < len(new):
                after.multiply(*self.factors(new[j]))
                j += 1
            else:
                return None
        return i, j

    def _rest(self, old: Shape, new: Shape, i: int, j: int) -> tuple[int, int] | None:
        """All that is left as one group."""
        whole = self.same(self.times(*old[i:]), self.times(*new[j:]))
        return (len(old), len(new)) if whole else None


class _Product:
    """A product that grows."""

    def __init__(self) -> None:
        self.number = 1
        self.syms: Counter[Sym] = Counter()

    def multiply(self, number: int, syms: Sequence[Sym]) -> None:
        self.number *= number
        self.syms.update(syms)

    def equals(self, other: _Product) -> bool:
        return self.number == other.number and self.syms == other.syms

    def is_smaller(self, other: _Product) -> bool | None:
        """Whether this one has to grow to become the other; None where neither is part of the other."""
        if self.syms == other.syms:
            return self.number <= other.number
        return True if self.syms <= other.syms else False if other.syms <= self.syms else None
