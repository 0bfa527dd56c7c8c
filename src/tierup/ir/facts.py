"""Facts: what recipes may rely on beside sizes. There is one kind: every element of an input is one number.

Native code looks at it when a call begins, where a variant relies on it (`native/src/facts.hpp`).
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from tierup.ir.types import DType, dtype_from_code

LIMIT_BYTES = 64 << 10  # of an input: native code does not look through more
MOST = 8  # facts that a plan relies on
MOST_STRAYS = 4  # signatures that a plan has further functions for


class Fact(msgspec.Struct, array_like=True, frozen=True, order=True):
    """Every element of the input at this position, of this name and dtype, is `value`."""

    input: Annotated[int, Meta(ge=0, le=4096)]
    name: Annotated[str, Meta(max_length=1000)]
    dtype: Annotated[int, Meta(ge=0, le=64)]
    value: float

    def __str__(self) -> str:
        return f"every element of '{self.name}' is {self.value:.6g}"

    @property
    def element(self) -> bytes:
        """One element as it lies in memory; ValueError if no tensor of numbers holds such a one."""
        dtype = known_dtype(self)
        exact = dtype.numpy.type(self.value if dtype.is_float else int(self.value))
        if not math.isfinite(self.value) or float(exact) != self.value:
            raise ValueError(f"'{self.name[:40]}' of {dtype!r} cannot hold {self.value}")
        return np.asarray(exact).tobytes()


Signature = tuple[tuple[int, ...], ...]  # the shape of each input
Kind = tuple[tuple[int | None, ...], ...]  # the sizes of a signature that are 0 or 1


def kind_of(signature: Signature) -> Kind:
    """What strays have in common that get one function: 0 is nothing, and 1 broadcasts."""
    return tuple(tuple(size if size < 2 else None for size in shape) for shape in signature)


class Aim(msgspec.Struct, frozen=True):
    """What a plan is made for, beside all that may come: calls with these signatures, and what may be relied on in
    them. `strays` are calls in which sizes are not equal that are taken to be so: calls like them get functions of
    their own."""

    signatures: Annotated[tuple[Signature, ...], Meta(max_length=64)] = ()
    facts: Annotated[tuple[Fact, ...], Meta(max_length=MOST)] = ()
    strays: Annotated[tuple[Signature, ...], Meta(max_length=MOST_STRAYS)] = ()

    @property
    def wants(self) -> frozenset[object]:
        """All of it, one by one, whatever the order."""
        return frozenset((*self.signatures, *self.facts, *(("stray", signature) for signature in self.strays)))


def known_dtype(fact: Fact) -> DType:
    """The dtype that a fact is about; ValueError if it is none of numbers."""
    dtype = dtype_from_code(fact.dtype)
    if dtype is None or not (dtype.is_builtin and (dtype.is_float or dtype.is_integer or dtype is DType.BOOL)):
        raise ValueError(f"a fact is about elements of type {fact.dtype}")
    return dtype


def native_facts(facts: tuple[Fact, ...]) -> list[tuple[int, bytes]]:
    """The form that the native program takes; ValueError if one of them is about nothing that can be."""
    return [(fact.input, fact.element) for fact in facts]


def facts_text(facts: tuple[Fact, ...]) -> str:
    """All of them in words."""
    return " and ".join(map(str, facts))
