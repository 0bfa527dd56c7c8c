"""Parts of a large region: boxes of its results -> a graph that computes these alone, from boxes of its inputs.

A float64 evaluation with bounds costs some hundred times what the kernel does. So of a large case only parts are
evaluated, each with everything that its elements are made of: whole sums, whole windows. What an op needs for a box of
its result is in `part_rules.py`; an op that has no rule is computed whole, and cut afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tierup.adapt.part_rules import Box, Shapes, restrict
from tierup.adapt.trial import Sized
from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId, Weights, static_type
from tierup.ir.types import Array

PART_ELEMS = 1 << 16  # of all values together: an evaluation takes some ms
_STEP = 4  # ranges begin at multiples of this: tiles of two, and pairs that reshapes make axes of, stay whole
_LOOKUPS = ("core.gather", "core.gather_elements", "core.gather_nd", "core.scatter_elements", "core.scatter_nd")

Lengths = dict[tuple[int, int], int]  # by number and size of an axis: results that are alike are cut alike


class Part(Struct, frozen=True):
    """A graph with the inputs of the whole one. It takes boxes of them, and gives boxes of the results."""

    graph: Graph
    weights: Weights
    inputs: tuple[Box, ...]
    outputs: tuple[Box, ...]

    def arguments(self, whole: Sequence[Array]) -> list[Array]:
        """What it takes of the inputs of the whole."""
        return [array[_slices(box)] for array, box in zip(whole, self.inputs, strict=True)]

    def results(self, whole: Sequence[Array]) -> list[Array]:
        """What corresponds to its results."""
        return [array[_slices(box)] for array, box in zip(whole, self.outputs, strict=True)]


def whole_of(sized: Sized) -> Part:
    """Everything."""
    graph = sized.case.graph
    boxes = [tuple(_full(sized.shape(value)) for value in values) for values in (graph.inputs, graph.outputs)]
    return Part(graph, sized.case.weights, *boxes)


def part_lengths(sized: Sized) -> Lengths | None:
    """How long boxes of the results may be; None where parts would save little, or hide an index that lies outside."""
    graph = sized.case.graph
    outside = {*graph.inputs, *(value for value, _ in graph.weights)}
    if any(node.op in _LOOKUPS and node.inputs[1] not in outside for node in graph.nodes):
        return None
    lengths: Lengths = {}
    shapes = [sized.shape(value) for value in graph.outputs]
    axes = {(axis, size): None for shape in shapes for axis, size in enumerate(shape)}
    cost = _cost(sized, lengths)
    for axis in sorted(axes):
        while cost > PART_ELEMS:
            shorter = _shorter(lengths.get(axis, axis[1]))
            less = _cost(sized, {**lengths, axis: shorter})
            if less >= cost:
                break
            lengths[axis], cost = shorter, less
    return lengths if 2 * cost < sized.elements else None


def _shorter(length: int) -> int:
    half = -(-length // 2)
    return min(-(-half // _STEP) * _STEP, length)


def _cost(sized: Sized, lengths: Lengths) -> int:
    graph = sized.case.graph
    needed = _Needed(graph, _shapes(sized), [_placed(sized.shape(value), lengths, {}) for value in graph.outputs])
    return sum(math.prod(end - begin for begin, end in box) for box in needed.hulls.values())


def draw_part(sized: Sized, lengths: Lengths, draw: np.random.Generator, *, last: bool) -> Part:
    """A part of this size: the last of all, where edges are ragged, or any."""
    begins: dict[tuple[int, int], int] = {}
    for (axis, size), length in lengths.items():
        places = max(size - length, 0) // _STEP
        begins[axis, size] = _STEP * (places if last else int(draw.integers(places + 1)))
    graph = sized.case.graph
    boxes = [_placed(sized.shape(value), lengths, begins) for value in graph.outputs]
    return part_of(graph, sized.case.weights, _shapes(sized), boxes)


def _shapes(sized: Sized) -> Shapes:
    return Shapes(sized.shape, sized.content)


def _placed(shape: Sequence[int], lengths: Lengths, begins: Mapping[tuple[int, int], int]) -> Box:
    def place(key: tuple[int, int]) -> tuple[int, int]:
        begin, size = begins.get(key, 0), key[1]
        end = begin + lengths.get(key, size)
        return begin, size if end + _STEP > size else end  # what is left at the end belongs to the last

    return tuple(map(place, enumerate(shape)))


def part_of(graph: Graph, weights: Weights, shapes: Shapes, boxes: Sequence[Box]) -> Part:
    """The part that gives these boxes of the results."""
    return _Cut(graph, weights, shapes, boxes).part()


class _Needed:
    """From the results back: the box of each value that somebody needs, and what each node makes of it."""

    def __init__(self, graph: Graph, shapes: Shapes, boxes: Sequence[Box]) -> None:
        self.hulls: dict[ValueId, Box] = {}
        self.taken: dict[int, list[Box | None]] = {}
        self.made: dict[int, tuple[Node, dict[int, Array]]] = {}
        for value, box in zip(graph.outputs, boxes, strict=True):
            self._join(value, box)
        for index in reversed(range(len(graph.nodes))):
            node = graph.nodes[index]
            outputs = [value for value in node.outputs if value in self.hulls]
            if not outputs:
                continue
            alone = outputs[:1] == [value for value in node.outputs if value is not None]
            found = restrict(node, self.hulls[outputs[0]], shapes) if alone else None
            if found is None:
                for value in outputs:
                    self.hulls[value] = _full(shapes.shape(value))
                boxes_taken = [None if value is None else _full(shapes.shape(value)) for value in node.inputs]
                self.made[index], self.taken[index] = (node, {}), boxes_taken
            else:
                attrs = Attrs({**node.attrs, **found.attrs})
                self.made[index] = replace(node, attrs=attrs), found.constants
                self.taken[index] = [None if i in found.constants else box for i, box in enumerate(found.boxes)]
            for given, taken in zip(node.inputs, self.taken[index], strict=True):
                if given is not None and taken is not None:
                    self._join(given, taken)

    def _join(self, value: ValueId, box: Box) -> None:
        """The least box that holds all that is needed of a value."""
        before = self.hulls.get(value)
        if before is None:
            self.hulls[value] = box
        else:
            self.hulls[value] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(before, box, strict=True))


class _Cut:
    """Builds the graph of a part."""

    def __init__(self, graph: Graph, weights: Weights, shapes: Shapes, boxes: Sequence[Box]) -> None:
        self._graph, self._shapes, self._boxes = graph, shapes, boxes
        self._needed = _Needed(graph, shapes, boxes)
        self._values = list(self._graph.values)
        self._nodes: list[Node] = []
        self._weights, self._constants = Weights(), dict(self._graph.weights)
        for digest in self._constants.values():
            self._weights.add(weights[digest], digest)
        self._sliced: dict[tuple[ValueId, Box], ValueId] = {}

    def part(self) -> Part:
        graph, needed = self._graph, self._needed
        for value, digest in graph.weights:
            box = needed.hulls.get(value, _full(self._shapes.shape(value)))
            self._constants[value] = self._weights.add(self._weights[digest][_slices(box)])
        for index in sorted(needed.made):
            node, constants = needed.made[index]
            inputs: list[ValueId | None] = []
            for position, (given, taken) in enumerate(zip(node.inputs, needed.taken[index], strict=True)):
                if position in constants:
                    inputs.append(self._constant(constants[position]))
                else:
                    inputs.append(given if given is None or taken is None else self._slice(given, taken))
            self._nodes.append(replace(node, inputs=tuple(inputs)))
        outputs = tuple(self._slice(value, box) for value, box in zip(graph.outputs, self._boxes, strict=True))
        boxes = tuple(needed.hulls.get(value, _full(self._shapes.shape(value))) for value in graph.inputs)
        cut = replace(
            graph,
            outputs=outputs,
            nodes=tuple(self._nodes),
            values=tuple(self._values),
            weights=tuple(self._constants.items()),
        )
        return Part(cut, self._weights, boxes, tuple(self._boxes))

    def _slice(self, value: ValueId, box: Box) -> ValueId:
        """A box of a value of which more was computed."""
        hull = self._needed.hulls[value]
        if box == hull:
            return value
        if (value, box) not in self._sliced:
            pairs = zip(box, hull, strict=True)
            starts, ends = zip(*((begin - first, end - first) for (begin, end), (first, _) in pairs), strict=True)
            bounds = [self._constant(np.array(numbers, np.int64)) for numbers in (starts, ends)]
            attrs = Attrs({"axes": tuple(range(len(box))), "steps": (1,) * len(box)})
            self._values.append(Value(self._graph.type(value)))
            result = len(self._values) - 1
            self._nodes.append(Node("core.slice", 1, (value, *bounds), (result,), attrs))
            self._sliced[value, box] = result
        return self._sliced[value, box]

    def _constant(self, array: Array) -> ValueId:
        self._values.append(Value(static_type(array)))
        self._constants[len(self._values) - 1] = self._weights.add(array)
        return len(self._values) - 1


def _full(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in box)
