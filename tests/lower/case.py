"""A random program and one call of it: arrays to pass, and how exactly its results are known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from tierup.ir.types import Array, DType
from tierup.lower.tile import Buffer, TileProgram

# Series functions of two executors, a few roundings after them, and sums of a few hundred elements in another order.
_TOLERANCE_EPS = 64


class Case(Struct, frozen=True):
    """A program and one call of it. `errors` says how far each output may be off, relatively; 0 for not at all.

    `counts` are inputs that addresses add: integers from 0 up to the number given, or each of them once ("distinct").
    """

    program: TileProgram
    sizes: tuple[int, ...]
    lengths: Mapping[str, int]
    errors: Mapping[str, float]
    counts: Mapping[str, int | str]
    seed: int

    def arrays(self) -> dict[str, Array]:
        """Fresh arrays for all buffers, the same ones each time: inputs random, the others full of sevens."""
        random = np.random.default_rng(self.seed)
        return {
            buffer.name: self._input(random, buffer)
            if buffer.mode == "in"
            else np.full(self.lengths[buffer.name], 7).astype(buffer.dtype.numpy)
            for buffer in self.program.buffers
        }

    def _input(self, random: np.random.Generator, buffer: Buffer) -> Array:
        length, count = self.lengths[buffer.name], self.counts.get(buffer.name)
        if count is None:
            return _random(random, buffer.dtype, length)
        numbers = random.permutation(length) if count == "distinct" else random.integers(0, count, length)
        return numbers.astype(buffer.dtype.numpy)

    def assert_same(self, got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
        """Compare all outputs, and see that the inputs are untouched."""
        for buffer in self.program.buffers:
            if buffer.mode == "scratch":
                continue
            a, b = (_comparable(arrays[buffer.name]) for arrays in (got, want))
            error = self.errors.get(buffer.name, 0.0)
            message = f"{buffer.name}, {self.sizes}\n{self.program!r}"
            if error:
                np.testing.assert_allclose(a, b, rtol=error, atol=error / _TOLERANCE_EPS, err_msg=message)
            else:
                np.testing.assert_array_equal(a, b, err_msg=message)


def _comparable(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype in (DType.F16.numpy, DType.BF16.numpy) else x


def _random(random: np.random.Generator, dtype: DType, length: int) -> Array:
    """Floats are small multiples of 1/8, integers small, and some of each are special."""
    if dtype is DType.BOOL:
        return random.random(length) < 0.5
    if dtype.is_float:
        values: Array = np.clip(np.rint(random.standard_normal(length) * 16) / 8, -8, 8)
        special: Array = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0])
    else:
        bounds = np.iinfo(dtype.numpy)
        values = random.integers(max(-99, int(bounds.min)), 99, length)
        special = np.array([0, 1, bounds.min, bounds.max, bounds.max], dtype.numpy)
        values = values.astype(dtype.numpy)
    return np.where(random.random(length) < 0.06, random.choice(special, length), values).astype(dtype.numpy)


def bound(dtype: DType) -> float:
    eps = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F64: 2.0**-52}
    return _TOLERANCE_EPS * eps.get(dtype, 2.0**-23)
