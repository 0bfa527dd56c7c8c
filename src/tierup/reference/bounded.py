"""Values with error bounds, and how steps round them. `bounds.py` says what a bound is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.graph import Node
from tierup.ir.types import Array, DType
from tierup.reference.bind import bind


class Format(Struct, frozen=True):
    """A float type: its eps in units of f32's, the largest finite number, the least normal one, the least of all."""

    relative: float
    largest: float
    normal: float
    least: float


FORMATS = {
    DType.F64: Format(2.0**-29, float(np.finfo(np.float64).max), 2.0**-1022, 2.0**-1074),
    DType.F32: Format(1.0, float(np.finfo(np.float32).max), 2.0**-126, 2.0**-149),
    DType.F16: Format(2.0**13, 65504.0, 2.0**-14, 2.0**-24),
    DType.BF16: Format(2.0**16, float.fromhex("0x1.fep127"), 2.0**-126, 2.0**-133),
}


class Bounded(Struct, frozen=True, eq=False):
    """A value (floats in f64, everything else as it is), its dtype in the graph, and its bound.

    The bound is 0 where an element is exact, and None where all are. A float that `counts` was made of integers.
    """

    value: Array
    dtype: DType
    bound: Array | None = None
    counts: bool = False

    @property
    def is_float(self) -> bool:
        """Whether it is computed with as a float; narrower ones are only moved."""
        return self.dtype in FORMATS

    @property
    def own(self) -> Array:
        """The bound, also of what is exact."""
        return np.zeros(self.value.shape) if self.bound is None else self.bound

    @property
    def magnitude(self) -> Array:
        """B as sums and products count it: not less than the size of the value; of what is not finite nothing."""
        if not self.is_float:
            return self.own
        size, relative = size_of(self.value), FORMATS[self.dtype].relative
        least = size if relative == 1.0 else relative * size
        return least if self.bound is None else np.maximum(self.bound, least)

    @property
    def free(self) -> Array | bool:
        """Where anything goes."""
        return False if self.bound is None else np.isinf(self.bound)

    def error(self, unit: float) -> Array | float:
        """How far a right value may be off."""
        return 0.0 if self.bound is None else unit * self.bound


def size_of(x: Array) -> Array:
    """|x|, and 0 for what is not finite."""
    size = np.abs(x)
    finite = np.isfinite(size)
    return size if finite.all() else np.where(finite, size, 0.0)


def any_free(given: Sequence[Bounded]) -> Array | bool:
    """Where one of them is."""
    free: Array | bool = False
    for x in given:
        free = free | x.free
    return free


def all_exact(given: Sequence[Bounded]) -> bool:
    """Whether all elements of all of them are."""
    return all(x.bound is None for x in given)


def may_vanish(x: Bounded, unit: float) -> Array | bool:
    """Where a value that was rounded may be zero, or of the other sign."""
    return False if x.bound is None else (np.abs(x.value) <= unit * x.bound) & (x.bound > 0)


def freed(x: Bounded, unsure: Array | bool) -> Bounded:
    """The same, but for where anything goes."""
    return replace(x, bound=np.where(unsure, np.inf, x.own)) if np.any(unsure) else x


class Step:
    """One node: how to compute it in float64, and how its results are rounded."""

    def __init__(self, node: Node, dtype: DType, unit: float) -> None:
        self.node, self.dtype, self.unit = node, dtype, unit
        self._call = bind(node, wide=True)

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype]

    def __call__(self, *arrays: Array) -> Array:
        return np.asarray(self._call(*arrays)[0])

    def results(self, *arrays: Array) -> list[Array]:
        """All results of an op that has several."""
        return [np.asarray(result) for result in self._call(*arrays)]

    def exact(self, value: Array) -> Bounded:
        return Bounded(value, self.dtype)

    def passed(self, value: Array, bound: Array) -> Bounded:
        """A float that was not rounded again. What is not finite is so for certain, unless it is free."""
        bound = np.where(np.isnan(bound), np.inf, bound)
        return Bounded(value, self.dtype, np.where(np.isfinite(value) | np.isinf(bound), bound, 0.0))

    def rounded(self, value: Array, bound: Array, terms: int = 1) -> Bounded:
        """A float that was rounded: where it is tiny, by half the distance of denormals, once for each term."""
        result = self.passed(value, bound)
        assert result.bound is not None
        tiny = (np.abs(value) < 2 * self.format.normal) & ((value != 0) | (result.bound > 0))
        return replace(result, bound=result.bound + tiny * (terms * self.format.least / self.unit))

    def summed(self, value: Array, bound: Array, terms: int) -> Bounded:
        """A sum: in some order of its terms it may pass through as much as they are together."""
        return self.rounded(value, np.where(bound > self.format.largest * self.format.relative, np.inf, bound), terms)

    def whole(self, value: Array, free: Array | bool) -> Bounded:
        """Integers or bools."""
        if not np.any(free):
            return self.exact(value)
        return Bounded(value, self.dtype, np.where(np.broadcast_to(free, value.shape), np.inf, 0.0))


Rule = Callable[..., Bounded]  # (step, operand, ...)
