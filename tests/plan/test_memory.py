"""Layouts of values between kernels: never in each other's way at any size, and tight at the sizes they were made for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierup.ir.dims import DimBuilder, evaluate
from tierup.ir.types import Dim, Sym
from tierup.plan.memory import ALIGNMENT, Layout, Request, lower_bound, plan_memory

INPUTS = 4  # open sizes that the examples have


def numbers(dims: DimBuilder, inputs: Sequence[int]) -> Callable[[Dim], int]:
    """What each dim is where axis i of the input has `inputs[i]` elements."""
    results = evaluate(dims.ops, lambda op, value, index: inputs[index])
    return lambda dim: results[dim.id] if isinstance(dim, Sym) else dim


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def plan(requests: Sequence[Request], dims: DimBuilder, inputs: Sequence[int] = ()) -> tuple[Layout, int]:
    """A layout made at some input sizes, and the bytes that it takes there."""
    layout = plan_memory(requests, dims, numbers(dims, inputs))
    return layout, numbers(dims, inputs)(layout.total)


def may_take_over(old: Request, new: Request) -> bool:
    return old.key in new.reuses and old.size == new.size and old.first < new.first == old.last


def check(requests: Sequence[Request], layout: Layout, number: Callable[[Dim], int]) -> None:
    """Aligned, inside, and apart: two values share bytes in a step only where one takes over the other's memory."""
    total = number(layout.total)
    places = {r.key: (number(layout.offsets[r.key]), number(r.size)) for r in requests}
    assert layout.offsets.keys() == places.keys()
    assert total % ALIGNMENT == 0
    for offset, size in places.values():
        assert offset % ALIGNMENT == 0
        assert 0 <= offset
        assert size == 0 or offset + size <= total
    for a, b in combinations(requests, 2):
        (begin_a, size_a), (begin_b, size_b) = places[a.key], places[b.key]
        alive_together = a.first <= b.last and b.first <= a.last
        overlap = begin_a < begin_b + size_b and begin_b < begin_a + size_a and size_a > 0 and size_b > 0
        if alive_together and overlap:
            assert may_take_over(a, b) or may_take_over(b, a)
            assert begin_a == begin_b


def open_sizes(dims: DimBuilder) -> list[Dim]:
    """Sizes of all kinds: numbers, zero, what is a multiple of the alignment anyway, sums and products."""
    axes = [dims.of(0, axis) for axis in range(INPUTS)]
    products = [dims.mul(axes[0], 4), dims.product((axes[1], axes[2], 3)), dims.product((axes[1], 16, axes[3], 4))]
    return [0, 1, 64, 1000, *axes, *products, dims.add(axes[0], axes[3]), dims.sub(axes[2], axes[2])]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[DimBuilder, list[Request]]:
    dims = DimBuilder()
    sizes = open_sizes(dims)
    few = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3))  # equal sizes, so that there are take-overs
    requests = []
    for key in range(draw(st.integers(0, 24))):
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 4))
        reuses = tuple(draw(st.lists(st.integers(0, 26), max_size=3)))
        requests.append(Request(key, draw(st.sampled_from(few)), first, last, reuses))
    return dims, requests


input_sizes = st.lists(st.one_of(st.integers(0, 5000), st.integers(0, 2)), min_size=INPUTS, max_size=INPUTS)


@given(graphs(), input_sizes, st.lists(input_sizes, min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_values_that_are_alive_together_never_overlap(
    graph: tuple[DimBuilder, list[Request]], typical: list[int], others: list[list[int]]
) -> None:
    dims, requests = graph
    layout, peak = plan(requests, dims, typical)
    for inputs in (typical, *others):
        check(requests, layout, numbers(dims, inputs))
    assert peak >= lower_bound(requests, numbers(dims, typical))


def random_requests(random: Random, count: int, steps: int, longest: int, sizes: Sequence[Dim]) -> list[Request]:
    spans = [(first, first + random.randint(0, longest)) for first in random.choices(range(steps), k=count)]
    return [Request(key, random.choice(sizes), first, last) for key, (first, last) in enumerate(spans)]


@pytest.mark.parametrize(("count", "longest"), [(200, 4), (200, 60), (600, 600)])
def test_large_graphs_at_other_sizes(count: int, longest: int) -> None:
    """With the search, and, where too many pairs are alive together for it, without."""
    random = Random(count + longest)
    dims = DimBuilder()
    requests = random_requests(random, count, count, longest, open_sizes(dims))
    layout, _ = plan(requests, dims, [random.randint(1, 5000) for _ in range(INPUTS)])
    for _ in range(3):
        check(requests, layout, numbers(dims, [random.choice([0, 1, random.randint(2, 5000)]) for _ in range(INPUTS)]))


def least_peak(requests: Sequence[Request]) -> int:
    """The least that any layout takes, found by trying all.

    In a best layout that is pushed down, each value in order of offsets lies on the highest of those before it that are
    alive with it. So all orders in which offsets do not fall are tried, and given up where no better than the best.
    """
    best, bound = sum(aligned(int_size(r)) for r in requests), lower_bound(requests, int)

    def place(left: list[Request], placed: list[tuple[Request, int]], floor: int, peak: int) -> None:
        nonlocal best
        if not left:
            best = peak
        for request in left:
            ends = [end for other, end in placed if other.first <= request.last and request.first <= other.last]
            offset = max(ends, default=0)
            end = offset + aligned(int_size(request))
            if best > bound and offset >= floor and max(peak, end) < best:
                rest = [other for other in left if other is not request]
                place(rest, [*placed, (request, end)], offset, max(peak, end))

    place(list(requests), [], 0, 0)
    return best


def int_size(request: Request) -> int:
    assert isinstance(request.size, int)
    return request.size


def small_graphs() -> Iterator[list[Request]]:
    random = Random(1)
    for _ in range(150):
        sizes = [ALIGNMENT * random.randint(1, 30) for _ in range(8)]
        yield random_requests(random, random.randint(2, 8), 8, 4, sizes)


def test_the_exact_solver_on_a_graph_that_needs_more_than_its_busiest_step() -> None:
    """Steps 1 to 3 hold 4, 4 and 4 units, but c must avoid a and b, which can be apart only with a gap that d needs."""
    unit = ALIGNMENT
    spans = [(1, 0, 2), (1, 1, 4), (2, 3, 6), (1, 5, 8), (1, 7, 9), (2, 0, 0), (1, 4, 4), (2, 8, 8)]
    requests = [Request(key, size * unit, first, last) for key, (size, first, last) in enumerate(spans)]
    assert lower_bound(requests, int) <= least_peak(requests)


def test_small_graphs_against_an_exact_solver() -> None:
    """The least peak on all but a few, and never more than a quarter above it."""
    graphs = list(small_graphs())
    missed = 0
    for requests in graphs:
        peak, least = plan(requests, DimBuilder())[1], least_peak(requests)
        assert lower_bound(requests, int) <= least <= peak <= 1.25 * least
        missed += peak > least
    assert missed <= 0.02 * len(graphs)
