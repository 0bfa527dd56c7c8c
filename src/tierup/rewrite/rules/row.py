"""The form of one simplification, and what several of them ask."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, Shape
from tierup.rewrite.walk import Rewriter, Rule


class Simplification(Struct, frozen=True):
    """One row: what it is called, the ops it looks at, its algebra, and the rule. Every one is exact to the bit."""

    name: str
    ops: tuple[str, ...]
    algebra: str
    rule: Rule


def numbers(out: Rewriter, value: ValueId | None) -> tuple[int, ...] | None:
    """The integers of a small tensor, where all are known."""
    content = None if value is None else out.content(value)
    numbers = tuple(dim for dim in content or () if isinstance(dim, int))
    return numbers if content is not None and len(numbers) == len(content) else None


def uniform(out: Rewriter, value: ValueId | None) -> Array | None:
    """The one number that a constant holds in all its places, as an array without axes."""
    array = None if value is None else out.constant(value)
    if array is None or array.size == 0 or array.dtype.kind == "O":
        return None
    first = array.reshape(-1)[:1]
    same = array.size == 1 or bool((array == first).all())
    return first.reshape(()) if same else None


def is_number(array: Array | None, number: float, *, negative_zero: bool | None = None) -> bool:
    """Whether a constant is `number`; `negative_zero` tells the two zeros of floats apart."""
    if array is None or array.dtype.kind == "c" or not bool(array == number):
        return False
    if negative_zero is None or array.dtype.kind in "iub":
        return True
    return bool(np.signbit(array.astype(np.float64))) is negative_zero


def keeps_shape(shape: Shape | None, other: Shape | None) -> bool:
    """Whether a tensor of `shape` keeps it when `other` is broadcast against it, in every call."""
    if shape is None or other is None or len(other) > len(shape):
        return False
    pairs = zip(reversed(shape), reversed(other), strict=False)
    return all(b == 1 or a == b for a, b in pairs)


def same_shape(out: Rewriter, node: Node, value: ValueId | None) -> bool:
    """Whether the node's first output has the shape of `value` in every call."""
    results, shape = out.types(node), out.shape(value)
    return results is not None and shape is not None and getattr(results[0], "shape", None) == shape
