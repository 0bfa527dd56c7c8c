"""Graphs: typed values, immutable nodes, weights beside them.

Values are small integers, local to a graph; each has one producer (an input, a weight or a node) and any number of
consumers. Nodes stand in an order in which every value is produced before it is used. A graph is closed: bodies of
control nodes are graphs whose inputs are the node's inputs, so nothing is captured by name.
"""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field

from tierup.digests import sha256
from tierup.ir.dims import DimOp
from tierup.ir.types import Array, DType, TensorType, Type, dtype_from_numpy, dtypes_in

ValueId = int


class Const(Struct, frozen=True, eq=False, dict=True):
    """A small tensor inside an attribute; equal by content, and its repr is its text."""

    array: Array

    @cached_property
    def text(self) -> str:
        """`f32[2]'0000803f00000040'`: dtype, shape, and the elements as hex, or as JSON where they are strings."""
        dtype = dtype_from_numpy(self.array.dtype)
        if dtype is DType.STR:
            return f"str{list(self.array.shape)}{json.dumps([str(item) for item in self.array.reshape(-1)])}"
        return f"{dtype!r}{list(self.array.shape)}'{self.array.tobytes().hex()}'"

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


Attr = int | float | str | Const | Type | tuple["Attr", ...]


class Attrs(Mapping[str, Attr]):
    """A node's attributes: a mapping that hashes, sorted by name, with `get` typed loosely for readers."""

    __slots__ = ("_items", "_known_key")

    def __init__(self, items: Mapping[str, Attr] | Sequence[tuple[str, Attr]] = ()) -> None:
        self._items: dict[str, Attr] = dict(sorted(dict(items).items()))
        self._known_key: tuple[tuple[str, str], ...] | None = None

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self._items.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> ItemsView[str, Attr]:
        return self._items.items()

    def values(self) -> ValuesView[Attr]:
        return self._items.values()

    def _key(self) -> tuple[tuple[str, str], ...]:
        # repr tells 1 from 1.0, and knows NaN from NaN, which == does not
        if self._known_key is None:
            self._known_key = tuple((name, repr(value)) for name, value in self._items.items())
        return self._known_key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attrs) and self._items.keys() == other._items.keys() and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Attrs({self._items!r})"


class Node(Struct, frozen=True, eq=False, weakref=True):
    """One operation. `op` is `domain.Name`, `version` the opset in which its meaning began.

    An absent optional input or output is None. `graphs` are the bodies of a control node, by attribute name.
    `name` is where it came from; it takes no part in equality.
    """

    op: str
    version: int
    inputs: tuple[ValueId | None, ...]
    outputs: tuple[ValueId | None, ...]
    attrs: Attrs = field(default_factory=Attrs)
    graphs: tuple[tuple[str, Graph], ...] = ()
    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        return self.op, self.version, self.inputs, self.outputs, self.attrs, self.graphs

    def graph(self, name: str) -> Graph | None:
        """The body with this attribute name."""
        return dict(self.graphs).get(name)

    @property
    def label(self) -> str:
        """How messages name this node."""
        return f"node '{self.name}' ({self.op})" if self.name else f"a node ({self.op})"


class Value(Struct, frozen=True, eq=False):
    """A value's type, and the name it had in the model, which takes no part in equality."""

    type: Type
    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.type)


class Graph(Struct, frozen=True, eq=False, dict=True):
    """Closed, ordered and typed. `weights` maps value ids to digests in a `Weights` table.

    `defaults` are inputs that a caller may leave out, with the weight that stands in. `dim_names` are the names
    that the model gives to syms; they and `name` take no part in equality.
    """

    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    dims: tuple[DimOp, ...] = ()
    weights: tuple[tuple[ValueId, str], ...] = ()
    defaults: tuple[tuple[ValueId, str], ...] = ()
    dim_names: tuple[tuple[int, str], ...] = ()
    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        return self.inputs, self.outputs, self.nodes, self.values, self.dims, self.weights, self.defaults

    def type(self, value: ValueId) -> Type:
        return self.values[value].type

    def value_name(self, value: ValueId) -> str:
        """The model's name of a value, or its number."""
        return self.values[value].name or f"%{value}"

    def __repr__(self) -> str:
        from tierup.ir.text import print_graph  # the text is the repr; text.py knows graphs, not the reverse

        return print_graph(self)

    @cached_property
    def producers(self) -> Mapping[ValueId, int]:
        """The index of the node that computes each value."""
        return {value: i for i, node in enumerate(self.nodes) for value in node.outputs if value is not None}

    @cached_property
    def users(self) -> Mapping[ValueId, Sequence[int]]:
        """The indices of the nodes that read each value, in order; a node that reads it twice stands there once."""
        found: dict[ValueId, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for value in dict.fromkeys(node.inputs):
                if value is not None:
                    found.setdefault(value, []).append(index)
        return found

    @cached_property
    def digests(self) -> Mapping[ValueId, str]:
        """The digests of the values that are weights."""
        return dict(self.weights)

    def producer(self, value: ValueId | None) -> Node | None:
        """The node that computes a value, if one does."""
        index = None if value is None else self.producers.get(value)
        return None if index is None else self.nodes[index]

    @cached_property
    def digest(self) -> str:
        """Names nothing but the content: names of values and nodes are left out."""
        from tierup.ir.text import print_graph

        return sha256(print_graph(self, names=False).encode()).hexdigest()

    @property
    def has_other_dtypes(self) -> bool:
        """Whether a value of it, or of a body inside it, has a type that is not NumPy's own."""
        graphs = [self, *(body for _, node in self.walk() for _, body in node.graphs)]
        return any(
            not dtype.is_builtin for graph in graphs for value in graph.values for dtype in dtypes_in(value.type)
        )

    def walk(self) -> Iterator[tuple[Graph, Node]]:
        """Every node of this graph and of all bodies inside it."""
        pending: list[Graph] = [self]
        while pending:
            graph = pending.pop()
            for node in graph.nodes:
                yield graph, node
                pending.extend(body for _, body in node.graphs)


class Weights:
    """Constant tensors by digest, shared by a graph, its bodies and everything rewritten from it."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def add(self, array: Array, digest: str | None = None) -> str:
        """Keep `array` (it must not change afterwards) and return its digest."""
        digest = digest or weight_digest(array)
        self._arrays.setdefault(digest, array)
        return digest

    def __getitem__(self, digest: str) -> Array:
        return self._arrays[digest]

    def __contains__(self, digest: str) -> bool:
        return digest in self._arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    @property
    def total_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())


def weight_digest(array: Array) -> str:
    """SHA-256 over dtype, shape and elements."""
    digest = sha256(weight_header(array.dtype, array.shape), ahead_bytes=array.nbytes)
    if array.dtype.kind in "OUS":
        digest.update(repr(array.tolist()).encode())
    else:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def weight_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What a weight's digest covers before its elements."""
    return f"{dtype_from_numpy(dtype)!r}{list(shape)}".encode()


def static_type(array: Array) -> TensorType:
    """The type of a concrete array."""
    dtype = dtype_from_numpy(array.dtype)
    if dtype is None:
        raise TypeError(f"NumPy dtype {array.dtype} is none of Tierup's")
    return TensorType(dtype, tuple(array.shape))
