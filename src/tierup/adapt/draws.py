"""Draws what a kernel is tried on: numbers for its open sizes, and elements for its inputs.

Everything follows from the generator that is passed in, so a proof that failed fails again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from tierup.adapt.case import Case, values_read
from tierup.adapt.trial import Sized, Unfit
from tierup.ir.graph import Graph, ValueId
from tierup.ir.types import Array, Dim, DType, Sym
from tierup.plan.regions import COMPUTED, RECURRENCES, SMALL_FLOATS

Draw = np.random.Generator

_TABLE = 65_537  # elements of each kind; a prime, so that rows of no matrix begin alike

# Kernels may add up before they scale, so numbers are no larger than what leaves room for a sum.
_WILD = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-45, 1.0)
_EXTREME = (0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 1e-30, -1e-30, 1e30, -1e30)
_SIMPLE = (-2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5)


@cache
def _table(style: str, dtype: np.dtype[np.generic]) -> Array:
    """Numbers to draw from; drawing each anew takes longer than evaluating a region."""
    draw = np.random.default_rng(20)
    numbers = draw.standard_normal(_TABLE)
    if style == "positive":
        numbers = np.abs(numbers) + 2.0**-4
    elif style == "wide":
        numbers *= 2.0 ** draw.integers(-12, 13, _TABLE)
    return numbers.astype(dtype)


def _from_table(draw: Draw, style: str, count: int, dtype: np.dtype[np.generic]) -> Array:
    table, begin = _table(style, dtype), int(draw.integers(_TABLE))
    if begin + count <= _TABLE:
        return table[begin : begin + count].copy()
    return np.resize(np.roll(table, -begin), count)


def draw_inputs(
    sized: Sized,
    draw: Draw,
    style: str,
    density: float,
    places: int | None = None,
    known: Mapping[ValueId, Array] | None = None,
) -> dict[ValueId, Array]:
    """An array for each input of the graph. `style`: normal, wide (many magnitudes), positive, simple (few numbers, so
    that many are equal, and on the jumps of the region), wild (NaN, infinities, zeros, denormals among normal ones) or
    extreme (as large and small as f32 can compute with); `density` is the share of such elements. Indices stay below
    `places`, too. What is `known` already is not drawn."""
    limits, lengths, ends = index_limits(sized), _row_lengths(sized), _rows_found(sized)
    found = sized.known_inputs() | sized.uniform_inputs() | dict(known or {})
    for value in sized.case.graph.inputs:
        if value not in found:
            shape = sized.shape(value)
            rows = sized.ends.get(value)
            dtype, count = sized.dtype(value), math.prod(shape if rows is None else (2 * rows, *shape[1:]))
            if value in limits:
                limit = limits[value] if places is None else min(limits[value], places)
                drawn = draw.integers(0, max(min(limit, 2 * ends.get(value, limit)), 1), count).astype(dtype.numpy)
                if value in ends and limit > 2 * ends[value]:
                    drawn[drawn >= ends[value]] += limit - 2 * ends[value]
            elif value in lengths:  # none, some or all steps, or more than there are
                drawn = draw.integers(0, lengths[value] + 2, count).astype(dtype.numpy)
                drawn[: count and 1] = lengths[value]  # or nothing might be computed
            elif dtype in SMALL_FLOATS:
                drawn = draw.integers(0, 1 << dtype.bits, count).astype(np.uint8).view(dtype.numpy)
            elif dtype not in COMPUTED:  # they are only moved
                drawn = draw.integers(0, 2, count).astype(dtype.numpy)
            elif style == "simple" and dtype is not DType.BOOL:
                drawn = np.resize(draw.choice(_simple(sized.case, dtype), min(count, _TABLE)), count)
            else:
                drawn = _elements(draw, dtype, count, style, density)
            found[value] = drawn.reshape(shape) if rows is None else _with_zeros_between(drawn, rows, shape)
    for value in _recurrent_weights(sized) - set(
        known or ()
    ):  # or sums are so large that every function has the same answer for all
        found[value] = (found[value] / max(math.sqrt(found[value].shape[0]), 1.0)).astype(sized.dtype(value).numpy)
    return found


def _with_zeros_between(drawn: Array, rows: int, shape: tuple[int, ...]) -> Array:
    """A table of this shape with what was drawn in so many rows at either end."""
    table = np.zeros(shape, drawn.dtype)
    table[:rows], table[-rows:] = drawn.reshape(2, rows, *shape[1:])
    return table


def _rows_found(sized: Sized) -> dict[ValueId, int]:
    """The inputs that rows of large tables are looked up by, and how many rows at either end these have."""
    graph = sized.case.graph
    lookups = [node for node in graph.nodes if node.op == "core.gather" and node.inputs[0] in sized.ends]
    return {
        value: sized.ends[node.inputs[0] or 0] for node in lookups for value in _sources(graph, node.inputs[1] or 0)
    }


def _simple(case: Case, dtype: DType) -> Array:
    """Small numbers, those in the kernel's code, and their neighbours."""
    own = [case.weights[digest].reshape(-1) for _, digest in case.graph.weights]
    constants = np.concatenate([np.zeros(0, dtype.numpy), *(array for array in own if array.dtype == dtype.numpy)])
    if dtype.is_integer:
        ends = np.iinfo(dtype.numpy)
        small = np.arange(max(ends.min, -3), 4, dtype=dtype.numpy)
        return np.concatenate([small, constants, constants - 1, constants + 1]).astype(dtype.numpy)
    constants = constants[np.abs(constants) < 1e6]  # the others are what stands for infinity
    beside = [np.nextafter(constants, constants.dtype.type(end)) for end in (-np.inf, np.inf)]
    return np.concatenate([np.array(_SIMPLE, dtype.numpy), constants, *beside])


def _elements(draw: Draw, dtype: DType, count: int, style: str, density: float) -> Array:
    if dtype is DType.BOOL:
        return draw.random(count) < 0.7
    if dtype.is_integer:
        return _integers(draw, dtype, count, style, density)
    values = _from_table(draw, style if style in ("wide", "positive") else "normal", count, dtype.numpy)
    special = {"wild": _WILD, "extreme": _EXTREME}.get(style)
    if special is not None and count:
        places = draw.integers(0, count, max(2, int(count * density)))
        values[places] = draw.choice(np.array(special), places.size)
    return values


def _integers(draw: Draw, dtype: DType, count: int, style: str, density: float) -> Array:
    ends = np.iinfo(dtype.numpy)
    if style == "wide":
        return draw.integers(ends.min, ends.max, count, dtype.numpy, endpoint=True)
    values = draw.integers(max(ends.min, 0 if style == "positive" else -9), 10, count).astype(dtype.numpy)
    if style in ("wild", "extreme") and count:
        special = np.array([ends.min, ends.max, ends.min + 1, 0, 1], dtype.numpy)
        places = draw.integers(0, count, max(2, int(count * density)))
        values[places] = draw.choice(special, places.size)
    return values


# Which input of an op holds places in its first one, along `axis` or, in tuples, along its first axes.
_PLACES = {"gather": 1, "gather_elements": 1, "scatter_elements": 1, "gather_nd": 1, "scatter_nd": 1}


def index_limits(sized: Sized) -> dict[ValueId, int]:
    """The integer inputs that elements are looked up or put by, and what they must stay below."""
    graph = sized.case.graph
    found: dict[ValueId, int] = {}
    for node in graph.nodes:
        position = _PLACES.get(node.op.removeprefix("core."))
        if position is None:
            continue
        data, indices = node.inputs[0], node.inputs[position]
        assert data is not None
        assert indices is not None
        shape = sized.shape(data)
        first = node.attrs.get("batch_dims", 0)
        axes = range(first, first + sized.shape(indices)[-1]) if node.op.endswith("_nd") else (int(node.attrs["axis"]),)
        limit = min((shape[axis] for axis in axes), default=1)
        for value in _sources(graph, indices):
            if value in graph.inputs and sized.dtype(value).is_integer:
                found[value] = min(limit, found.get(value, limit))
    return found


def _row_lengths(sized: Sized) -> dict[ValueId, int]:
    """The inputs that say how many steps the rows of a recurrence have, and how many there are."""
    nodes = [node for node in sized.case.graph.nodes if node.op in RECURRENCES]
    return {
        value: sized.shape(node.inputs[0] or 0)[0]
        for node in nodes
        for value in node.inputs[-1:]
        if value is not None and value in sized.case.graph.inputs
    }


def _recurrent_weights(sized: Sized) -> set[ValueId]:
    """The inputs that the states of a recurrence are multiplied with."""
    nodes = [node for node in sized.case.graph.nodes if node.op in RECURRENCES]
    return {
        node.inputs[1] for node in nodes if node.inputs[1] in sized.case.graph.inputs and node.inputs[1] is not None
    }


def _sources(graph: Graph, value: ValueId) -> Iterator[ValueId]:
    """What a value is computed from, in the end."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        node = graph.producer(current)
        if node is None:
            yield current
        else:
            ahead = {given for given in node.inputs if given is not None} - seen
            seen |= ahead
            pending.extend(sorted(ahead))


def outside(sized: Sized, inputs: dict[ValueId, Array], draw: Draw) -> dict[ValueId, Array] | None:
    """The same inputs with one index that no lookup may be made with; None where there are none but constants."""
    largest = max((max(sized.shape(value), default=1) for value in sized.case.graph.inputs), default=1)
    for value in indices_given(sized):
        changed = inputs[value].copy()
        changed.reshape(-1)[draw.integers(changed.size)] = draw.choice([-largest - 1, largest, 1 << 30])
        return {**inputs, value: changed}
    return None


def indices_given(sized: Sized) -> list[ValueId]:
    """The inputs with indices that a call may bring: constants are known to lie inside, or checked in the call."""
    read = values_read(sized.case.kernels)
    given = {*sized.case.fixed, *(value for value, _ in sized.case.uniform)}
    own = [value for value in index_limits(sized) if value not in given and value in read]
    return [value for value in own if math.prod(sized.shape(value))]


# What sizes are drawn from: multiples of what models divide by, or of nothing. Sizes that do not agree are drawn again,
# and halved more and more often from the ninth attempt on; those that make the region larger than the limit are halved
# once more each time.
_CHOICES = {"typical": (4, 8, 12, 16, 6, 20), "ragged": (3, 5, 7, 9, 13, 17), "larger": (1, 2, 3), "few": (2, 3)}
_SMALL = {"one": (1,), "mixed": (1, 9), "none": (0, 1, 3)}  # each is drawn as it is; the first is there at least once
_LARGE = (33, 48, 64, 67, 70)
_LIMIT_ELEMS = {"larger": 1 << 18}  # of all values together, beyond what they have where every size is 1
_USUAL_LIMIT_ELEMS = 1 << 16  # an evaluation takes some ms
_ATTEMPTS, _HALVED_AFTER = 48, 8
# Windows over windows of samples leave nothing of a short axis: then one of the sizes is made longer and longer.
_LONG_ATTEMPTS, _LONG_SHIFTS = 60, (3, 4, 5, 6, 7, 8, 9)


def draw_sizes(case: Case, draw: Draw, profile: str, least: int | None = None) -> Sized | None:
    """The case at drawn sizes; None if none such were found. `least` is what `least_elements` says, where it is known.

    `profile`: typical, ragged, few, larger (one size up to 70, the others small), one, mixed (some are 1, the others
    equal: what may be broadcast) or none (at least one is 0).
    """
    best: Sized | None = None
    least = least_elements(case) if least is None else least
    limit = _LIMIT_ELEMS.get(profile, _USUAL_LIMIT_ELEMS) + least
    too_large = 0
    for attempt in range(_ATTEMPTS + _LONG_ATTEMPTS):
        if attempt >= _ATTEMPTS and (best is not None or profile in _SMALL or not case.open_sizes):
            break
        numbers = _numbers(draw, case.open_sizes, profile, attempt if attempt < _ATTEMPTS else attempt % 2, too_large)
        if attempt // 2 % 2:
            _pin(case, numbers)
        if attempt >= _ATTEMPTS:
            numbers[draw.integers(len(numbers))] <<= _LONG_SHIFTS[attempt % len(_LONG_SHIFTS)]
        try:
            sized = Sized(case, numbers)
        except Unfit:
            continue
        if best is None or sized.elements < best.elements:
            best = sized
        if sized.elements <= limit or not case.open_sizes:
            return sized
        too_large += 1
    return best


def _pin(case: Case, numbers: list[int]) -> None:
    """Make sizes equal that the dim program compares: calls are checked so for what the region needs."""

    def place(dim: Dim) -> int | None:
        op = case.graph.dims[dim.id] if isinstance(dim, Sym) else None
        return op.args[1] if op is not None and op.op == "elem" and isinstance(op.args[1], int) else None

    for a, b in (op.args for op in case.graph.dims if op.op == "eq"):
        left, right = place(a), place(b)
        if left is not None and (right is not None or isinstance(b, int)):
            numbers[left] = b if isinstance(b, int) else numbers[right or 0]
        elif right is not None and isinstance(a, int):
            numbers[right] = a


def why_unfit(case: Case) -> str:
    """What is wrong with sizes that might have been right."""
    try:
        Sized(case, [4] * case.open_sizes)
    except Unfit as reason:
        return str(reason)
    return "the others are too large"


def least_elements(case: Case) -> int:
    """The elements of all values where every open size is 1: constants, and axes that are closed."""
    try:
        return Sized(case, [1] * case.open_sizes).elements
    except Unfit:
        return 0


def _numbers(draw: Draw, count: int, profile: str, attempt: int, too_large: int) -> list[int]:
    if profile in _SMALL:
        numbers = draw.choice(_SMALL[profile], count)
        if count:
            numbers[draw.integers(count)] = _SMALL[profile][0]
        return [int(number) for number in numbers]
    numbers = draw.choice(_CHOICES[profile], count)
    if profile == "larger" and count:
        numbers[draw.integers(count)] = draw.choice(_LARGE)
    if attempt % 2 and count:  # some regions need equal sizes
        numbers[:] = numbers.max() if profile == "larger" else numbers[0]
    halved = max(attempt // _HALVED_AFTER, too_large)
    least = 1 if attempt < _ATTEMPTS - _HALVED_AFTER else 0  # some regions have no elements at all
    return [max(int(number) >> halved, least) for number in numbers]
