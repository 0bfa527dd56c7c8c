"""Evaluates a core graph in float64 together with how far a right answer in its own precision may be off.

Each value carries a running error bound B: a result y is within budget where |y - value| <= unit · B, with
unit = c · eps. B is |x| for what comes in; sums and products are taken on absolute values, other functions add
|f'| · B + |f|, where |f'| · B is how much f changes over [x - unit · B, x + unit · B]. Values that only move pass
theirs on. An infinite B says that the element is *free*: f32 may give anything there, because

- a jump (a comparison, a cast to integers, an index of the largest) lies within the bound of the value before it,
- something on the way may be more than the dtype holds: which of the partial results overflow is the kernel's choice,
- a value that may be zero or of either sign is divided by, or its logarithm taken.

Integers and bools have a bound of 0, or infinity where they are free. What was not rounded on the way has a bound of 0,
too, and is taken as exact at jumps; in sums and products its B is |x|. The rules are in `bound_rules.py`; a graph with
an op that has none raises NoRule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tierup.errors import TierupError
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Array, DType, TensorType
from tierup.reference.bind import LOOKUPS, bind, widen
from tierup.reference.bound_recurrent import overflowed, recurrent_rules
from tierup.reference.bound_rules import RULES as SINGLE_RULES
from tierup.reference.bounded import FORMATS, Bounded, Step
from tierup.reference.core_recurrent import gru, lstm, rnn
from tierup.reference.precision import down, up

__all__ = [
    "EPS", "Bounded", "NoRule", "evaluate_bounded", "evaluate_plainly", "longest_sum", "missing_rules", "tolerance",
    "within",
]  # fmt: skip

RULES = {**SINGLE_RULES, **recurrent_rules(SINGLE_RULES)}
_RECURRENCES: dict[str, Callable[..., tuple[Array, ...]]] = {"core.rnn": rnn, "core.gru": gru, "core.lstm": lstm}
EPS = 2.0**-23  # the distance from 1 to the next f32
_TERM_ELEMS = 1 << 16  # that are multiplied at once: they stay in the cache


class NoRule(TierupError):
    """An op has no rule for its error bound, so nothing that contains it can be judged."""


def tolerance(longest: int) -> float:
    """The unit for a graph whose longest sum has so many terms: c · eps."""
    return (4 + math.sqrt(longest)) * EPS


def longest_sum(graph: Graph, shape: Callable[[ValueId], Sequence[int]]) -> int:
    """The most terms that are added up, or multiplied, for one element of any node."""
    return max((_terms(node, shape) for node in graph.nodes), default=1)


def _terms(node: Node, shape: Callable[[ValueId], Sequence[int]]) -> int:
    def size(position: int) -> Sequence[int]:
        value = node.inputs[position]
        assert value is not None
        return shape(value)

    match node.op:
        case "core.reduce_sum" | "core.reduce_prod":
            return math.prod(size(0)[axis] for axis in node.attrs["axes"])
        case "core.matmul" | "core.matmul_blocks" | "core.matmul_scaled":
            return size(0)[-1]
        case "core.rnn" | "core.gru" | "core.lstm":
            return size(1)[0]
        case "core.conv":
            return math.prod(size(1)[1:])
        case "core.conv_last":
            return size(1)[0]
        case "core.cumsum" | "core.cumprod":
            return size(0)[int(node.attrs["axis"])]
        case "core.pool_sum":
            return math.prod(node.attrs["kernel_shape"])
        case "core.scatter_elements" | "core.scatter_nd" if node.attrs["reduction"] in ("add", "mul"):
            return 1 + math.prod(size(2))  # all of them may meet in one place
        case _:
            return 1


def missing_rules(graph: Graph) -> list[str]:
    """The ops of a graph that have no rule."""
    return sorted({node.op for node in graph.nodes if node.op not in RULES})


def evaluate_bounded(graph: Graph, weights: Weights, inputs: Sequence[Array], unit: float) -> list[Bounded]:
    """The outputs of `graph`, which has core ops alone, for inputs in the order of `graph.inputs`."""
    missing = missing_rules(graph)
    if missing:
        raise NoRule(f"{', '.join(missing)} has no rule for its error bound")

    tables = _tables(graph)

    def enter(value: ValueId, array: Array) -> Bounded:
        return Bounded(array if value in tables else widen(array), _dtype(graph, value))

    values = {value: enter(value, weights[digest]) for value, digest in graph.weights}
    values.update((value, enter(value, array)) for value, array in zip(graph.inputs, inputs, strict=True))
    fresh = dict(values)
    with np.errstate(all="ignore"):
        for node, unneeded in zip(graph.nodes, _last_uses(graph), strict=True):
            outs = _results(node)
            given = [values[value] for value in node.inputs if value is not None]
            found = RULES[node.op](Step(node, _dtype(graph, outs[0]), unit), *given)
            for out, result in zip(outs, found if isinstance(found, tuple) else (found,), strict=True):
                fresh[out], values[out] = result, overflowed(result, unit)
            del given, found, result
            for value in unneeded:
                del values[value], fresh[value]
    return [fresh[value] for value in graph.outputs]


def _tables(graph: Graph) -> set[ValueId]:
    """Values that are only looked up in: what is found is widened, which is less."""
    found = {node.inputs[0] for node in graph.nodes if node.op in LOOKUPS}
    others = {value for node in graph.nodes for value in node.inputs[node.op in LOOKUPS :]}
    return {value for value in found - others - set(graph.outputs) if value is not None}


def _last_uses(graph: Graph) -> list[list[ValueId]]:
    """For each node the values that nobody needs after it: a large region has many, each as large as its result."""
    last = {value: index for index, node in enumerate(graph.nodes) for value in (*node.inputs, *node.outputs)}
    found: list[list[ValueId]] = [[] for _ in graph.nodes]
    for value, index in last.items():
        if value is not None and value not in graph.outputs:
            found[index].append(value)
    return found


def evaluate_plainly(graph: Graph, weights: Weights, inputs: Sequence[Array]) -> list[Array]:
    """The baseline that errors are compared with: op by op in the graph's own precision, products added up in order.

    NumPy's products add up in as many sums as its BLAS likes, which differs with the machine and the number of rows.
    """
    values = {value: weights[digest] for value, digest in graph.weights}
    values.update(zip(graph.inputs, inputs, strict=True))
    for node, unneeded in zip(graph.nodes, _last_uses(graph), strict=True):
        given = [values[value] for value in node.inputs if value is not None]
        values.update(zip(_results(node), map(np.asarray, _plainly(node, given)), strict=False))
        del given
        for value in unneeded:
            values.pop(value, None)  # a result may be left out
    return [values[value] for value in graph.outputs]


def _plainly(node: Node, given: Sequence[Array]) -> Sequence[Array]:
    match node.op:
        case "core.matmul" if given[0].dtype.kind not in "iu":
            total = _product_in_order(*map(up, given))  # narrow floats add up in f32
            return (total if "to" in node.attrs else down(total, given[0].dtype),)
        case "core.conv_last" if given[0].dtype.kind not in "iu" and node.attrs["group"] == 1:
            x, w, pads = given
            total = _convolution_in_order(node, up(x), up(w), pads)
            return (total if "to" in node.attrs else down(total, x.dtype),)
        case "core.rnn" | "core.gru" | "core.lstm":
            return _RECURRENCES[node.op](node, *given, product=_product_in_order)
        case _:
            return bind(node)(*given)


def _results(node: Node) -> list[ValueId]:
    """The results of a node: the first alone, but for recurrences, whose rules give all."""
    found = [value for value in node.outputs if value is not None]
    if node.outputs[0] is None or (len(found) > 1 and node.op not in _RECURRENCES):
        raise NoRule(f"{node.label} has other results than its first, for which there is no rule")
    return found


def _product_in_order(a: Array, b: Array) -> Array:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return _add_in_order(np.zeros((*batch, a.shape[-2], b.shape[-1]), a.dtype), a, b)


def _add_in_order(total: Array, a: Array, b: Array) -> Array:
    """`total` and every term of a product, one after the other."""
    a, b = (x.reshape((1,) * (total.ndim - x.ndim) + x.shape) for x in (a, b))
    left, right = np.moveaxis(a, -1, 0)[..., None], np.moveaxis(b, -2, 0)[..., None, :]
    step = max(1, _TERM_ELEMS // max(total.size, 1))
    with np.errstate(all="ignore"):
        for first in range(0, len(left), step):
            terms = left[first : first + step] * right[first : first + step]
            terms[0] += total
            # Along an outer axis, NumPy adds up in order; numbers side by side it adds up in pairs.
            total = np.add.reduce(terms) if total.size > 1 else np.add.accumulate(terms)[-1]
    return total


def _convolution_in_order(node: Node, x: Array, w: Array, pads: Array) -> Array:
    """Place by place and channel by channel, as the rows of the weights stand."""
    spatial, channels = x.ndim - 2, x.shape[-1]
    around = [(0, 0), *zip(pads[:spatial].tolist(), pads[spatial:].tolist(), strict=True), (0, 0)]
    padded, kernel = np.pad(x, around), tuple(node.attrs["kernel_shape"])
    rows = list(zip(kernel, node.attrs["strides"], node.attrs["dilations"], strict=True))
    counts = [max((n - (k - 1) * d - 1) // s + 1, 0) for n, (k, s, d) in zip(padded.shape[1:-1], rows, strict=True)]
    total = np.zeros((len(x), *counts, w.shape[1]), x.dtype)
    for number, place in enumerate(itertools.product(*map(range, kernel))):
        steps = zip(place, counts, rows, strict=True)
        window = tuple(slice(p * d, p * d + n * s, s) for p, n, (_, s, d) in steps)
        total = _add_in_order(total, padded[(slice(None), *window)], w[number * channels : (number + 1) * channels])
    return total


def _dtype(graph: Graph, value: ValueId) -> DType:
    type = graph.type(value)
    assert isinstance(type, TensorType)
    return type.dtype


def within(result: Array, expected: Bounded, unit: float) -> Array:
    """Where a result is one that the bound allows: close, of the same kind, or free."""
    if not expected.is_float:
        same = result == expected.value
        if expected.dtype.is_float:  # too small to compute with
            same |= np.isnan(result) & np.isnan(expected.value)
        return np.asarray(same | expected.free)
    value, bound = expected.value, expected.own
    got = result.astype(np.float64)
    with np.errstate(all="ignore"):
        close = np.abs(got - value) <= unit * bound
        over = np.abs(value) + unit * bound >= FORMATS[expected.dtype].largest
        infinite = np.isinf(got) & (got == np.copysign(np.inf, value)) & (over | np.isinf(value))
        return np.asarray(close | infinite | (np.isnan(got) & np.isnan(value)) | np.isinf(bound))
