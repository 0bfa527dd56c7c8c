"""Where the elements of a value come from, point by point of a space.

A `Source` gives one element for each point: it is read from a base value at an address that is linear in the point's
position, with integers from the data added where a gather stands in the chain; it is a position itself (iota), brought
inside an axis where pads repeat elements; or it is a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.graph import ValueId
from tierup.ir.types import Dim, DType


class Linear(Struct, frozen=True):
    """offset + Σ position · stride, with one stride for each axis of a space."""

    offset: Dim
    strides: tuple[Dim, ...]


class Term(Struct, frozen=True):
    """What an address adds: an index from 0 up to `extent`, times a stride."""

    index: Source
    stride: Dim
    extent: Dim


class Read(Struct, frozen=True):
    """An element of a value that lies in memory, row-major."""

    base: ValueId
    at: Linear
    terms: tuple[Term, ...] = ()


class Count(Struct, frozen=True):
    """A position, as `dtype`."""

    at: Linear
    dtype: DType


class Bent(Struct, frozen=True):
    """A position brought inside an axis of `size` elements, as pads do by `mode`: edge, reflect or wrap."""

    mode: str
    at: Linear
    size: Dim


class Known(Struct, frozen=True):
    """A size, or a number, as `dtype`."""

    size: Dim
    dtype: DType


Source = Read | Count | Bent | Known
Change = Callable[[Linear], Linear | None]


def rearranged(source: Source, change: Change) -> Source | None:
    """The same elements over another space; None where the change is not possible."""
    if isinstance(source, Known):
        return source
    at = change(source.at)
    if at is None:
        return None
    if not isinstance(source, Read):
        return replace(source, at=at)
    terms = []
    for term in source.terms:
        index = rearranged(term.index, change)
        if index is None:
            return None
        terms.append(replace(term, index=index))
    return Read(source.base, at, tuple(terms))


def linears(source: Source) -> list[Linear]:
    """Everything linear in a source."""
    if isinstance(source, Known):
        return []
    inner = [linear for term in source.terms for linear in linears(term.index)] if isinstance(source, Read) else []
    return [source.at, *inner]


def reads(source: Source) -> list[Read]:
    """A source's own read, and those of the indices in it."""
    if not isinstance(source, Read):
        return []
    return [source, *(read for term in source.terms for read in reads(term.index))]


def dims_in(source: Source) -> Iterator[Dim]:
    """Every size that a source needs."""
    if isinstance(source, Known):
        yield source.size
        return
    yield source.at.offset
    yield from source.at.strides
    if isinstance(source, Bent):
        yield source.size
    for term in source.terms if isinstance(source, Read) else ():
        yield from (term.stride, term.extent)
        yield from dims_in(term.index)
