"""What decompositions are written against: core ops by name, constants, and sizes as values.

A decomposition holds sizes as dims. `Core.sizes` turns them into the i64 vectors that core ops take: numbers become a
weight, open dims are read off the value that has them (`core.shape`), and what is computed from them is computed with
integer maps, so that the type rules of the core ops find the same dims again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Attrs, Node, ValueId
from tierup.ir.ops.sizes import never_negative
from tierup.ir.types import Array, Dim, DType, Shape, Sym
from tierup.rewrite.walk import Rewriter

_DEPTH = 64  # instructions of a dim program that are followed; sizes in real models are a few deep
_INTEGER_MAPS = {
    "add": "add", "sub": "sub", "mul": "mul", "truncdiv": "div", "min": "min", "max": "max", "mod": "mod", "abs": "abs",
}  # fmt: skip
Bound = tuple[Dim, Dim, int]  # start, end and step of a slice


class Declined(Exception):
    """A decomposition cannot take this node; the sentence says why. The node stays whole."""


class Core:
    """Adds core ops to a graph that is being rewritten."""

    def __init__(self, out: Rewriter) -> None:
        self.out = out

    @property
    def dims(self) -> DimBuilder:
        return self.out.dims

    # What is known of values and nodes.

    def dtype(self, value: ValueId) -> DType:
        dtype = self.out.dtype(value)
        if dtype is None:
            raise Declined("a value that is no tensor")
        return dtype

    def shape(self, value: ValueId) -> Shape:
        shape = self.out.shape(value)
        if shape is None:
            raise Declined("the rank of an input is known only in the call")
        return shape

    def rank(self, value: ValueId) -> int:
        return len(self.shape(value))

    def given(self, node: Node, index: int) -> ValueId | None:
        """Input `index`, where it is there."""
        return node.inputs[index] if index < len(node.inputs) else None

    def input(self, node: Node, index: int = 0) -> ValueId:
        """Input `index`, which must be there."""
        value = self.given(node, index)
        if value is None:
            raise Declined(f"input {index} is missing")
        return value

    def is_known(self, value: ValueId) -> bool:
        """Whether `numbers` knows the integers of a value."""
        content = self.out.content(value)
        whole = content is not None and all(isinstance(dim, int) for dim in content)
        return whole or self.out.constant(value) is not None or self.out.shape(value) == (0,)

    def numbers(self, value: ValueId, what: str) -> tuple[int, ...]:
        """The integers that a constant holds, or a vector without elements."""
        content = () if self.out.shape(value) == (0,) else self.out.content(value)
        if content is not None and all(isinstance(dim, int) for dim in content):
            return tuple(dim for dim in content if isinstance(dim, int))
        array = self.out.constant(value)
        if array is None:
            raise Declined(f"{what} is known only in the call")
        return tuple(int(number) for number in array.reshape(-1))

    def elems(self, value: ValueId, what: str) -> tuple[Dim, ...]:
        """The integers in a scalar or vector, as dims; they are read in the call where they are not known before."""
        content, shape = self.out.content(value), self.shape(value)
        if content is not None:
            return content
        count = shape[0] if shape else 1
        if not isinstance(count, int) or len(shape) > 1 or count > 64 or not self.dtype(value).is_integer:
            raise Declined(f"{what} has a length that is known only in the call")
        return tuple(self.dims.elem(value, index) for index in range(count))

    def axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front."""
        if not -rank <= axis < rank:
            raise Declined(f"axis {axis} is outside rank {rank}")
        return axis % rank

    def result_shape(self, node: Node, index: int = 0) -> Shape:
        """The shape that the node's own type rule gives to an output."""
        results = self.out.types(node)
        shape = None if results is None else getattr(results[index], "shape", None)
        if shape is None or any(dim is None for dim in shape):
            raise Declined("the shape of the result is known only in the call")
        return tuple(shape)

    # Constants.

    def weight(self, array: Array) -> ValueId:
        return self.out.weight(array)

    def number(self, number: float, dtype: DType) -> ValueId:
        """A scalar constant."""
        with np.errstate(over="ignore"):  # a bound beyond a narrow type is infinite in it
            return self.weight(np.array(number).astype(dtype.numpy).reshape(()))

    def like(self, number: float, value: ValueId) -> ValueId:
        """A scalar constant in the dtype of `value`."""
        return self.number(number, self.dtype(value))

    def integers(self, numbers: Sequence[int]) -> ValueId:
        return self.weight(np.array(numbers, np.int64).reshape(-1))

    # Core ops.

    def op(self, name: str, *inputs: ValueId, **attrs: Any) -> ValueId:
        """One core op with one result."""
        (result,) = self.out.once(f"core.{name}", inputs, Attrs(attrs))
        assert result is not None
        return result

    def many(self, name: str, count: int, *inputs: ValueId, **attrs: Any) -> tuple[ValueId, ...]:
        """One core op with `count` results."""
        results = self.out.once(f"core.{name}", inputs, Attrs(attrs), (True,) * count)
        return tuple(result for result in results if result is not None)

    def pair(self, name: str, *inputs: ValueId, **attrs: Any) -> tuple[ValueId, ValueId]:
        """One core op with two results."""
        first, second = self.many(name, 2, *inputs, **attrs)
        return first, second

    def add(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("add", a, b)

    def sub(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("sub", a, b)

    def mul(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("mul", a, b)

    def div(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("div", a, b)

    def min(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("min", a, b)

    def max(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("max", a, b)

    def eq(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("eq", a, b)

    def lt(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("lt", a, b)

    def le(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("le", a, b)

    def both(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("and", a, b)

    def either(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("or", a, b)

    def inverse(self, a: ValueId) -> ValueId:
        return self.op("not", a)

    def neg(self, a: ValueId) -> ValueId:
        return self.op("neg", a)

    def abs(self, a: ValueId) -> ValueId:
        return self.op("abs", a)

    def exp(self, a: ValueId) -> ValueId:
        return self.op("exp", a)

    def sqrt(self, a: ValueId) -> ValueId:
        return self.op("sqrt", a)

    def select(self, condition: ValueId, a: ValueId, b: ValueId) -> ValueId:
        return self.op("select", condition, a, b)

    def matmul(self, a: ValueId, b: ValueId) -> ValueId:
        return self.op("matmul", a, b)

    def clamp(self, x: ValueId, low: ValueId, high: ValueId) -> ValueId:
        return self.min(self.max(x, low), high)

    def cast(self, x: ValueId, to: DType, **attrs: Any) -> ValueId:
        if self.dtype(x) is to:
            return x
        return self.op("cast", x, to=to.code, **{"saturate": 1, **attrs})

    def wide(self, x: ValueId) -> ValueId:
        """`x` in f32 where it is a narrower float: what accumulates or takes several steps rounds once, at the end."""
        dtype = self.dtype(x)
        narrow = dtype.is_float and dtype not in (DType.F32, DType.F64)
        return self.cast(x, DType.F32) if narrow else x

    def reduce(self, name: str, x: ValueId, axes: Sequence[int], keepdims: bool = True) -> ValueId:
        return self.op(f"reduce_{name}", x, axes=tuple(axes), keepdims=int(keepdims))

    def mean(self, x: ValueId, axes: Sequence[int]) -> ValueId:
        """Σx / n over axes, which stay with size 1."""
        count = self.dims.product([self.shape(x)[axis] for axis in axes])
        return self.div(self.reduce("sum", x, axes), self.scalar(count, self.dtype(x)))

    # Movement.

    def reshape(self, x: ValueId, dims: Sequence[Dim]) -> ValueId:
        return x if self.out.shape(x) == tuple(dims) else self.op("reshape", x, self.sizes(dims))

    def broadcast(self, x: ValueId, dims: Sequence[Dim]) -> ValueId:
        return x if self.out.shape(x) == tuple(dims) else self.op("broadcast", x, self.sizes(dims))

    def transpose(self, x: ValueId, perm: Sequence[int]) -> ValueId:
        return x if tuple(perm) == tuple(range(len(perm))) else self.op("transpose", x, perm=tuple(perm))

    def unsqueeze(self, x: ValueId, *axes: int) -> ValueId:
        """New axes of size 1, at these places of the result."""
        rest = iter(self.shape(x))
        return self.reshape(x, [1 if i in axes else next(rest) for i in range(self.rank(x) + len(axes))])

    def slice(self, x: ValueId, bounds: Mapping[int, Bound]) -> ValueId:
        """start:end:step on each axis; the bounds lie inside the tensor, and -1 ends a backward slice."""
        axes = tuple(bounds)
        starts, ends, steps = ([bounds[axis][i] for axis in axes] for i in range(3))
        return self.op("slice", x, self.sizes(starts), self.sizes(ends), axes=axes, steps=tuple(steps))

    def part(self, x: ValueId, axis: int, start: Dim, end: Dim) -> ValueId:
        """start:end on one axis."""
        return x if (start, end) == (0, self.shape(x)[axis]) else self.slice(x, {axis: (start, end, 1)})

    def concat(self, parts: Sequence[ValueId], axis: int) -> ValueId:
        return parts[0] if len(parts) == 1 else self.op("concat", *parts, axis=axis)

    def iota(self, dims: Sequence[Dim], axis: int, dtype: DType = DType.I64) -> ValueId:
        return self.op("iota", self.sizes(dims), axis=axis, dtype=dtype.code)

    def gather(self, x: ValueId, indices: ValueId, axis: int) -> ValueId:
        return self.op("gather", x, indices, axis=axis)

    # Sizes as values.

    def scalar(self, dim: Dim, dtype: DType) -> ValueId:
        """A dim as a number of `dtype`, without axes."""
        if isinstance(dim, int):
            return self.number(dim, dtype)
        return self.cast(self.reshape(self.sizes([dim]), ()), dtype)

    def sizes(self, dims: Sequence[Dim]) -> ValueId:
        """A vector of i64 that holds `dims`."""
        if all(isinstance(dim, int) for dim in dims):
            return self.integers([dim for dim in dims if isinstance(dim, int)])
        parts: list[ValueId] = []
        at = 0
        while at < len(dims):
            part, count = self._run(dims[at:])
            parts.append(part)
            at += count
        return self.concat(parts, 0)

    def _run(self, dims: Sequence[Dim]) -> tuple[ValueId, int]:
        """As many leading dims as one weight or one shape holds, and how many they are."""
        count = next((i for i, dim in enumerate(dims) if isinstance(dim, Sym)), len(dims))
        if count:
            return self.integers([dim for dim in dims[:count] if isinstance(dim, int)]), count
        assert isinstance(dims[0], Sym)
        home = self.out.home(dims[0])
        if home is None:
            return self._computed(dims[0], 0), 1
        value, axis = home
        shape = self.shape(value)
        count = 1
        while count < len(dims) and axis + count < len(shape) and shape[axis + count] == dims[count]:
            count += 1
        return self.part(self.op("shape", value), 0, axis, axis + count), count

    def _size(self, dim: Dim, depth: int) -> ValueId:
        """A vector with one dim."""
        if isinstance(dim, int):
            return self.integers([dim])
        return self._run([dim])[0] if self.out.home(dim) is not None else self._computed(dim, depth)

    def _computed(self, sym: Sym, depth: int) -> ValueId:
        """The instruction behind a dim, as integer maps."""
        if depth > _DEPTH:
            raise Declined("a size is computed in too many steps")
        instruction = self.dims.ops[sym.id]
        value = self._instruction(instruction.op, instruction.args, depth + 1)
        if self.out.content(value) != (sym,):
            self.out.know(value, (sym,))
        return value

    def _instruction(self, op: str, args: tuple[Dim, ...], depth: int) -> ValueId:
        if op in ("of", "elem"):
            value, index = args
            assert isinstance(value, int)
            assert isinstance(index, int)
            if op == "of":
                return self.slice(self.op("shape", value), {0: (index, index + 1, 1)})
            flat = self.reshape(self.cast(value, DType.I64), self.shape(value) or (1,))
            return self.part(flat, 0, index, index + 1)
        values = [self._size(arg, depth) for arg in args]
        if op == "floordiv" and all(never_negative(self.dims, arg) for arg in args):
            return self.div(*values)
        if op in _INTEGER_MAPS:
            return self.op(_INTEGER_MAPS[op], *values)
        return self._composed(op, *values)

    def _composed(self, op: str, a: ValueId, b: ValueId, c: ValueId | None = None) -> ValueId:
        match op:
            case "floordiv":  # (a - a mod b) / b leaves nothing
                return self.div(self.sub(a, self.op("mod", a, b)), b)
            case "ceildiv":  # -floor(-a / b)
                return self.neg(self._composed("floordiv", self.neg(a), b))
            case "eq" | "lt":
                return self.cast(self.op(op, a, b), DType.I64)
            case "broadcast":  # the one that is not 1
                return self.select(self.eq(a, self.integers([1])), b, a)
            case "select" if c is not None:
                return self.select(self.cast(a, DType.BOOL), b, c)
        raise Declined(f"a size is computed with '{op}'")


Decomposition = Callable[[Core, Node], ValueId | Sequence[ValueId | None]]
