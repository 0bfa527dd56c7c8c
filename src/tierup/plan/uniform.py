"""Facts about inputs -> which values of a graph with closed sizes are one number in all their elements.

What depends on assumed inputs, constants and sizes alone is computed by the reference, node by node; a value that
depends on a fact, and whose elements turn out equal, is uniform.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tierup.errors import TierupError
from tierup.ir.dims import DimBuilder
from tierup.ir.facts import LIMIT_BYTES, Fact
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Array, TensorType
from tierup.plan.contents import contents
from tierup.reference.bind import bind
from tierup.rewrite.walk import is_pure

_LIMIT_ELEMS = 1 << 20  # of a value that is computed here


class Uniform(Struct, frozen=True):
    """What each element of a value is, and a bit for each fact that this depends on."""

    number: float
    needs: int


def uniform_values(graph: Graph, weights: Weights, facts: Sequence[Fact], dims: DimBuilder) -> dict[ValueId, Uniform]:
    """The values that are one number where these facts hold. The graph's sizes are numbers where inputs decide them."""
    known = _assumed(graph, facts)
    if not known:
        return {}
    for value, digest in graph.weights:
        if weights[digest].size <= _LIMIT_ELEMS:
            known[value] = weights[digest], 0
    for value, array in _sizes(graph, weights, dims).items():
        known.setdefault(value, (array, 0))
    for node in graph.nodes:
        for value, result in _results(graph, node, known).items():
            known.setdefault(value, result)
    numbers = ((value, needs, _number(array)) for value, (array, needs) in known.items() if needs)
    return {value: Uniform(number, needs) for value, needs, number in numbers if number is not None}


_Known = dict[ValueId, tuple[Array, int]]


def _assumed(graph: Graph, facts: Sequence[Fact]) -> _Known:
    """The inputs that facts are about; not those that are larger than what is looked through."""
    found: _Known = {}
    for position, fact in enumerate(facts):
        value = graph.inputs[fact.input]
        shape = _shape(graph, value)
        if shape is not None:
            number = np.frombuffer(fact.element, _dtype(graph, value))[0]
            if number.nbytes * math.prod(shape) <= LIMIT_BYTES:
                found[value] = np.full(shape, number), 1 << position
    return found


def _sizes(graph: Graph, weights: Weights, dims: DimBuilder) -> dict[ValueId, Array]:
    """Small integer tensors that are known as numbers."""
    found: dict[ValueId, Array] = {}
    for value, content in contents(graph, weights, dims).items():
        shape, numbers = _shape(graph, value), [size for size in content if isinstance(size, int)]
        if shape is not None and len(numbers) == len(content) == math.prod(shape):
            found[value] = np.array(numbers, _dtype(graph, value)).reshape(shape)
    return found


def _results(graph: Graph, node: Node, known: _Known) -> _Known:
    """What a node gives, if all that it takes is known."""
    taken = [value for value in node.inputs if value is not None]
    if node.graphs or not is_pure(node) or any(value not in known for value in taken):
        return {}
    shapes = [_shape(graph, value) for value in node.outputs if value is not None]
    if any(shape is None or math.prod(shape) > _LIMIT_ELEMS for shape in shapes):
        return {}
    needs = functools.reduce(operator.or_, (known[value][1] for value in taken), 0)
    numbered = replace(node, outputs=tuple(None if v is None else i for i, v in enumerate(node.outputs)))
    try:
        computed = bind(numbered)(*(None if value is None else known[value][0] for value in node.inputs))
    except TierupError:
        return {}
    pairs = ((v, a) for v, a in zip(node.outputs, computed, strict=False) if v is not None)
    return {value: (np.asarray(array), needs) for value, array in pairs if np.shape(array) == _shape(graph, value)}


def _number(array: Array) -> float | None:
    """The number that every element is, bit by bit, if it is finite."""
    if not array.size or array.dtype.kind not in "fiub":
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = flat.view(f"u{flat.dtype.itemsize}")
    number: float = flat[0].item()
    return number if bool((bits == bits[0]).all()) and math.isfinite(number) else None


def _shape(graph: Graph, value: ValueId) -> tuple[int, ...] | None:
    """A tensor's shape, where all of it is numbers."""
    type = graph.type(value)
    if not isinstance(type, TensorType) or type.shape is None:
        return None
    numbers = tuple(dim for dim in type.shape if isinstance(dim, int))
    return numbers if len(numbers) == len(type.shape) else None


def _dtype(graph: Graph, value: ValueId) -> np.dtype[np.generic]:
    type = graph.type(value)
    assert isinstance(type, TensorType)
    return type.dtype.numpy
