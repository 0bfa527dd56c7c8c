"""What a type rule sees of one node, and what it answers.

A rule is `rule(ctx: Infer) -> list[Out | Type]`, one entry for each output that the op can have (trailing ones may be
left out). It reads `ctx.inputs`, `ctx.attrs` and `ctx.version`, does size arithmetic through `ctx.dims`, and raises
`InferError` with a sentence when the node cannot be right. A dim that it cannot know is None: the builder makes that
"read it from the value". Rules never look at weights larger than `CONTENT_LIMIT` elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Attrs, Graph
from tierup.ir.types import Array, Dim, DType, Shape, TensorType, Type

CONTENT_LIMIT = 64  # elements; shapes, axes and pads are shorter, and a hostile model must not make us track more

PartialShape = tuple[Dim | None, ...]


class InferError(ValueError):
    """The node's inputs or attributes do not fit its operator."""


class Out(msgspec.Struct, frozen=True):
    """A tensor result: dtype, shape (None: rank unknown; None inside: dim unknown), and the integers it holds, flat,
    where they are known as dims (only for integer tensors of rank 0 or 1)."""

    dtype: DType
    shape: PartialShape | None
    content: tuple[Dim, ...] | None = None


class Infer(msgspec.Struct, frozen=True):
    """One node as a type rule sees it. Absent inputs are None; `wanted[k]` says whether output k is used."""

    op: str
    version: int
    attrs: Attrs
    inputs: tuple[Type | None, ...]
    wanted: tuple[bool, ...]
    dims: DimBuilder
    graphs: tuple[tuple[str, Graph], ...]
    ids: tuple[int | None, ...]
    contents: tuple[tuple[Dim, ...] | None, ...]
    constants: Callable[[int], Array | None]

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> TensorType:
        """Input `index`, which must be a tensor."""
        type = self.inputs[index] if index < len(self.inputs) else None
        if type is None:
            raise InferError(f"input {index} is missing")
        if not isinstance(type, TensorType):
            raise InferError(f"input {index} must be a tensor, but is {type!r}")
        return type

    def dtype(self, index: int) -> DType:
        return self.tensor(index).dtype

    def shape(self, index: int) -> Shape | None:
        return self.tensor(index).shape

    def rank(self, index: int) -> int | None:
        return self.tensor(index).rank

    def content(self, index: int) -> tuple[Dim, ...] | None:
        """The integers that input `index` holds, where they are known as dims."""
        return self.contents[index] if self.has(index) else None

    def elems(self, index: int) -> tuple[Dim, ...] | None:
        """As `content`; where unknown but countable, syms that read the elements at run time."""
        content = self.content(index)
        if content is not None or not self.has(index):
            return content
        type = self.tensor(index)
        value = self.ids[index]
        if not type.dtype.is_integer or type.shape is None or len(type.shape) > 1 or value is None:
            return None
        count = type.shape[0] if type.shape else 1
        if not isinstance(count, int) or count > CONTENT_LIMIT:
            return None
        return tuple(self.dims.elem(value, i) for i in range(count))

    def constant(self, index: int) -> Array | None:
        """Input `index` as an array where it is a weight (any size) or its content is all numbers."""
        if not self.has(index):
            return None
        content = self.content(index)
        if content is not None and all(isinstance(dim, int) for dim in content):
            type = self.tensor(index)
            return np.array(content, type.dtype.numpy).reshape(() if type.shape == () else (-1,))
        value = self.ids[index]
        return None if value is None else self.constants(value)

    def ints(self, index: int) -> tuple[int, ...] | None:
        """Input `index` as plain integers, where they are all known now."""
        array = self.constant(index)
        return None if array is None or array.size > CONTENT_LIMIT else tuple(int(v) for v in array.reshape(-1))

    def axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front, checked against `rank`."""
        if not -rank <= axis < rank:
            raise InferError(f"axis {axis} is outside a tensor of rank {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """`axes` counted from the front, checked against `rank`, each at most once."""
        result = tuple(self.axis(axis, rank) for axis in axes)
        if len(set(result)) != len(result):
            raise InferError(f"axes {tuple(axes)} name one axis twice")
        return result

    def broadcast(self, *shapes: Shape | None) -> Shape | None:
        """The shape that `shapes` have together under NumPy's rules; None if any rank is unknown."""
        result: list[Dim] = []
        for shape in shapes:
            if shape is None:
                return None
            longer, shorter = (result, list(shape)) if len(result) >= len(shape) else (list(shape), result)
            offset = len(longer) - len(shorter)
            joined = [self.dims.broadcast(a, b) for a, b in zip(longer[offset:], shorter, strict=True)]
            result = longer[:offset] + joined
        return tuple(result)


Rule = Callable[[Infer], Sequence[Out | Type]]
