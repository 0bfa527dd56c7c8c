"""What a node's attributes are turned into once, for nodes with attributes too large to read in every call."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from tierup.ir.graph import Node

T = TypeVar("T")


class Prepared(Generic[T]):
    """The last few results of `make`, by the identity of their node: hashing a large node would cost as much."""

    def __init__(self, make: Callable[[Node], T], limit: int = 32) -> None:
        self._make = make
        self._limit = limit
        self._made: OrderedDict[int, tuple[weakref.ref[Node], T]] = OrderedDict()

    def of(self, node: Node) -> T:
        found = self._made.get(id(node))
        if found is not None and found[0]() is node:
            return found[1]
        made = self._make(node)
        self._made[id(node)] = (weakref.ref(node), made)
        if len(self._made) > self._limit:
            self._made.popitem(last=False)
        return made
