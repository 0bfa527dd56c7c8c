"""Sequences are lists, absent optionals None. Nothing is changed in place: every result is a new list."""

from __future__ import annotations

from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array


def _position(value: Array, count: int, ends: int) -> int:
    """A position from the front; `ends` is 1 where the place after the last item is one."""
    position = int(np.asarray(value).reshape(-1)[0])
    if not -count <= position < count + ends:
        raise IndexError(f"position {position} is outside a sequence of {count} items")
    return position + count if position < 0 else position


def at(node: Node, sequence: list[Any], position: Array) -> Any:
    return sequence[_position(position, len(sequence), 0)]


def construct(node: Node, *items: Any) -> tuple[list[Any]]:
    return (list(items),)


def empty(node: Node) -> tuple[list[Any]]:
    return ([],)


def erase(node: Node, sequence: list[Any], position: Array | None = None) -> tuple[list[Any]]:
    if not sequence:
        raise IndexError("an item is erased from an empty sequence")
    where = len(sequence) - 1 if position is None else _position(position, len(sequence), 0)
    return (sequence[:where] + sequence[where + 1 :],)


def insert(node: Node, sequence: list[Any], item: Any, position: Array | None = None) -> tuple[list[Any]]:
    where = len(sequence) if position is None else _position(position, len(sequence), 1)
    return ([*sequence[:where], item, *sequence[where:]],)


def length(node: Node, sequence: list[Any]) -> Array:
    return np.array(len(sequence), np.int64)


def split(node: Node, x: Array, sizes: Array | None = None) -> tuple[list[Array]]:
    axis, total = node.attrs["axis"], x.shape[node.attrs["axis"]]
    if sizes is None or sizes.ndim == 0:
        step = 1 if sizes is None else int(sizes)
        if step < 1:
            raise ValueError(f"a tensor is split into pieces of size {step}")
        borders = list(range(step, total, step))
    else:
        if (sizes < 0).any() or sizes.sum() != total:
            raise ValueError(f"pieces of {sizes.tolist()} do not make up an axis of {total}")
        borders = np.cumsum(sizes)[:-1].tolist()
    pieces = np.split(x, borders, axis) if total or (sizes is not None and sizes.ndim) else []
    if sizes is None and not node.attrs["keepdims"]:
        pieces = [np.squeeze(piece, axis) for piece in pieces]
    return (pieces,)


def concat(node: Node, sequence: list[Array]) -> Array:
    if not sequence:
        raise ValueError("the items of an empty sequence cannot be joined")
    join = np.stack if node.attrs["new_axis"] else np.concatenate
    return join(sequence, axis=node.attrs["axis"])


def optional(node: Node, value: Any = None) -> tuple[Any]:
    return (value,)


def get(node: Node, value: Any) -> tuple[Any]:
    if value is None:
        raise ValueError("the optional is empty")
    return (value,)


def has(node: Node, value: Any = None) -> Array:
    return np.array(value is not None)
