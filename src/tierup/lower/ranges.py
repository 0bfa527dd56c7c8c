"""Which integers a value can hold, as far as constants tell: an index that cannot leave its axis needs no check."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Array, DType, TensorType

Range = tuple[int, int]  # least and largest

_DEPTH = 16  # nodes that are followed back from an index
# The result holds nothing that the first input does not.
_PICKED = frozenset({
    "core.reshape", "core.slice", "core.transpose", "core.broadcast", "core.gather", "core.gather_elements",
    "core.gather_nd",
})  # fmt: skip
_BITWISE: dict[str, Callable[[Array, int], Array]] = {
    "core.and": lambda a, b: np.asarray(a & b),
    "core.or": lambda a, b: np.asarray(a | b),
    "core.shr": lambda a, b: np.asarray(a >> min(b, 8 * a.itemsize - 1)) if b >= 0 else a[:0],
}


class Ranges:
    """The ranges of values that some nodes of a graph compute; what others put into memory is not relied on."""

    def __init__(self, graph: Graph, weights: Weights, nodes: Iterable[int]) -> None:
        self._graph, self._weights = graph, weights
        self._constants = graph.digests
        inside = [graph.nodes[index] for index in nodes]
        self._producer = {value: node for node in inside for value in node.outputs if value is not None}
        self._known: dict[ValueId, Range | None] = {}

    def of(self, value: ValueId | None, depth: int = 0) -> Range | None:
        """The least and the largest integer that a value can hold; None where that is not known."""
        if value is None or depth > _DEPTH:
            return None
        if value not in self._known:
            self._known[value] = self._found(value, depth)
        return self._known[value]

    def _found(self, value: ValueId, depth: int) -> Range | None:
        image = self._image(value, depth)
        if image is not None:
            return (int(image.min()), int(image.max())) if image.size else None
        node = self._producer.get(value)
        if node is None:
            return None
        if node.op in _PICKED:
            return self.of(node.inputs[0], depth + 1)
        if node.op == "core.cast":
            return self._cast(node, value, depth)
        if node.op in ("core.add", "core.min", "core.max"):
            return self._combined(node, value, depth)
        return None

    def _image(self, value: ValueId | None, depth: int) -> Array | None:
        """Integers among which all that a value can hold are, where they come from one constant."""
        if value is None or depth > _DEPTH:
            return None
        if value in self._constants:
            array = self._weights[self._constants[value]]
            return array if array.dtype.kind in "iu" else None
        node = self._producer.get(value)
        if node is None:
            return None
        if node.op in _PICKED:
            return self._image(node.inputs[0], depth + 1)
        by = self._number(node.inputs[1]) if node.op in _BITWISE else None
        image = None if by is None else self._image(node.inputs[0], depth + 1)
        return None if image is None or by is None else _BITWISE[node.op](image, by)

    def _number(self, value: ValueId | None) -> int | None:
        digest = None if value is None else self._constants.get(value)
        array = None if digest is None else self._weights[digest]
        return int(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype.kind in "iu" else None

    def _cast(self, node: Node, value: ValueId, depth: int) -> Range | None:
        given = self._dtype(node.inputs[0])
        found = (0, 1) if given is DType.BOOL else self.of(node.inputs[0], depth + 1) if given.is_integer else None
        return found if found is not None and self._fits(found, value) else None

    def _combined(self, node: Node, value: ValueId, depth: int) -> Range | None:
        a, b = (self.of(given, depth + 1) for given in node.inputs)
        if a is None or b is None:
            return None
        if node.op == "core.add":
            found = (a[0] + b[0], a[1] + b[1])
            return found if self._fits(found, value) else None  # else it wraps
        choose = min if node.op == "core.min" else max
        return choose(a[0], b[0]), choose(a[1], b[1])

    def _fits(self, found: Range, value: ValueId) -> bool:
        dtype = self._dtype(value)
        if not dtype.is_integer:
            return False
        limits = np.iinfo(dtype.numpy)
        return int(limits.min) <= found[0] and found[1] <= int(limits.max)

    def _dtype(self, value: ValueId | None) -> DType:
        assert value is not None
        type = self._graph.type(value)
        assert isinstance(type, TensorType)
        return type.dtype
